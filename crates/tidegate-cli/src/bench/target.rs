//! Benchmark target: how to connect, with credentials and TLS, and the request for each key.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidegate::{Cost, Limiter, Micros};

use super::address::TargetUrl;
use super::client::BenchClient;
use super::client::grpc;
use super::client::grpc::{GrpcCall, GrpcClient};
use super::client::http;
use super::client::http::HttpConnection;
use super::client::resp;
use super::client::resp::RespClient;
use super::client::response::RequestError;
use super::client::store::{LimitedStore, StoreClient};
use super::request_template::{BenchKeys, RequestTemplate};
use super::workload::{Workload, WorkloadTarget};
use crate::endpoint::{ServerEndpoint, ServerUrl, TargetProtocol};
use crate::tls_args::TlsArgs;
use tidegate_config::ServerSettings;
use tidegate_server::internal::store::StoreError;

pub(crate) struct BenchTarget {
    kind: TargetKind,
    /// Without a password.
    url: String,
}

enum TargetKind {
    Http(ServerEndpoint, Arc<RequestTemplate>),
    Resp(ServerEndpoint, Arc<RequestTemplate>, Option<Box<str>>),
    Grpc(ServerEndpoint, Arc<GrpcCall>),
    Store(Arc<LimitedStore>),
}

#[derive(Default)]
pub(crate) struct Credentials {
    pub(crate) tls: TlsArgs,
    pub(crate) token: Option<Box<str>>,
}

impl BenchTarget {
    /// Namespace in the store, so that benchmark keys do not collide with those of servers.
    const NAMESPACE: &'static str = "tg-bench";

    /// `timeout` applies to each call to a store; other targets take it from the plan. Needs a
    /// runtime.
    pub(crate) fn new(
        address: &TargetUrl,
        workload: &Workload,
        credentials: Credentials,
        timeout: Duration,
    ) -> Result<Self, TargetMismatch> {
        Cost::new(workload.cost).map_err(|_| TargetMismatch::Cost)?;
        let kind = match address {
            TargetUrl::Server(server) => TargetKind::at(server, workload, credentials)?,
            TargetUrl::Store(store) => {
                let WorkloadTarget::Limit(limit) = &workload.target else {
                    return Err(TargetMismatch::StoreNeedsLimit);
                };
                let namespace = Some(Self::NAMESPACE.to_string());
                let settings = ServerSettings { namespace, ..ServerSettings::default() };
                let engine = store.engine_within(&settings, timeout)?;
                let (keys, cost) = (BenchKeys::new(workload.keys), workload.cost);
                let limiter = Limiter::new(engine, limit.clone());
                TargetKind::Store(Arc::new(LimitedStore { limiter, keys, cost }))
            }
        };
        Ok(Self { kind, url: address.to_string() })
    }

    /// Whether one connection can have several requests in flight.
    pub(crate) fn takes_pipelines(&self) -> bool {
        matches!(self.kind, TargetKind::Resp(..))
    }

    /// Whether each worker has a connection.
    pub(crate) fn has_connections(&self) -> bool {
        !matches!(self.kind, TargetKind::Store(_))
    }

    /// When a worker gives up on a response. A store times out by itself first, and reports why.
    pub(crate) fn deadline(&self, timeout: Micros) -> Duration {
        const GRACE: Duration = Duration::from_secs(1);
        let grace = if self.has_connections() { Duration::ZERO } else { GRACE };
        Duration::from(timeout) + grace
    }

    pub(crate) async fn connect(&self) -> Result<BenchClient, RequestError> {
        Ok(match &self.kind {
            TargetKind::Http(endpoint, template) => {
                BenchClient::Http(HttpConnection::new(endpoint.connect().await?, template.clone()))
            }
            TargetKind::Resp(endpoint, template, token) => {
                let stream = endpoint.connect().await?;
                BenchClient::Resp(
                    RespClient::new(stream, template.clone(), token.as_deref()).await?,
                )
            }
            TargetKind::Grpc(endpoint, call) => {
                BenchClient::Grpc(GrpcClient::new(endpoint.connect().await?, call.clone()).await?)
            }
            TargetKind::Store(limited) => BenchClient::Store(StoreClient(limited.clone())),
        })
    }
}

impl TargetKind {
    fn at(
        server: &ServerUrl,
        workload: &Workload,
        credentials: Credentials,
    ) -> Result<Self, TargetMismatch> {
        let (keys, cost) = (BenchKeys::new(workload.keys), workload.cost);
        let endpoint = ServerEndpoint::new(server, &credentials.tls)
            .map_err(|error| TargetMismatch::Tls(error.to_string()))?;
        let (host, token) = (&endpoint.host, credentials.token.as_deref());
        match (server.protocol, &workload.target) {
            (TargetProtocol::Http, WorkloadTarget::Rule(_) | WorkloadTarget::Limit(_)) => {
                let template = RequestTemplate::new(keys, |key| {
                    let body = match &workload.target {
                        WorkloadTarget::Rule(rule) => {
                            json!({ "rule": rule, "key": key, "cost": cost })
                        }
                        target => json!({ "limit": target.limit(), "key": key, "cost": cost }),
                    };
                    http::request(host, token, &body)
                });
                Ok(Self::Http(endpoint, Arc::new(template)))
            }
            (TargetProtocol::Resp, WorkloadTarget::Rule(_) | WorkloadTarget::Limit(_)) => {
                let cost = cost.to_string();
                let template = RequestTemplate::new(keys, |key| match &workload.target {
                    WorkloadTarget::Rule(rule) => {
                        resp::command(&["TG.CHECK", rule, key, "COST", &cost])
                    }
                    target => resp::command(&["TG.LIMIT", &target.limit(), key, "COST", &cost]),
                });
                Ok(Self::Resp(endpoint, Arc::new(template), credentials.token))
            }
            (TargetProtocol::Grpc, WorkloadTarget::Descriptor(descriptor)) => {
                let template =
                    RequestTemplate::new(keys, |key| grpc::framed(&descriptor.request(key, cost)));
                let scheme = if endpoint.has_tls() { "https" } else { "http" };
                let call = GrpcCall::new(scheme, host, token, template);
                let call = call.map_err(|_| TargetMismatch::Host)?;
                Ok(Self::Grpc(endpoint, Arc::new(call)))
            }
            (TargetProtocol::Grpc, _) => Err(TargetMismatch::GrpcNeedsDescriptor),
            (_, WorkloadTarget::Descriptor(_)) => Err(TargetMismatch::DescriptorNeedsGrpc),
        }
    }
}

/// The URL without its password.
impl fmt::Display for BenchTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl fmt::Debug for BenchTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BenchTarget").field(&self.url).finish()
    }
}

/// Why a target does not support a workload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum TargetMismatch {
    /// The cost is above [`Cost::MAX`].
    Cost,
    /// The host is not valid in a request.
    Host,
    /// A store has no rules and no descriptors.
    StoreNeedsLimit,
    /// Envoy's service has only descriptors.
    GrpcNeedsDescriptor,
    /// Only Envoy's service has descriptors.
    DescriptorNeedsGrpc,
    /// TLS cannot be set up: certificates, or the name of the server.
    Tls(String),
    Store(StoreError),
}

impl fmt::Display for TargetMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cost => write!(f, "cost too large; at most {}", Cost::MAX.get()),
            Self::Host => f.write_str("invalid target host; expected one like 127.0.0.1:8081"),
            Self::StoreNeedsLimit => f.write_str("a store has no rules; use --limit"),
            Self::GrpcNeedsDescriptor => f.write_str(
                "gRPC limits are configured on the server; use --domain and --descriptor",
            ),
            Self::DescriptorNeedsGrpc => {
                f.write_str("--domain and --descriptor need grpc://; use --rule or --limit")
            }
            Self::Tls(error) => f.write_str(error),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TargetMismatch {}

impl From<StoreError> for TargetMismatch {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::workload::DescriptorTemplate;

    #[test]
    fn a_target_refuses_a_workload_that_it_does_not_support() {
        let rule = || WorkloadTarget::Rule("login".into());
        let limit = || WorkloadTarget::Limit("5/min".parse().unwrap());
        let descriptor = || {
            WorkloadTarget::Descriptor(DescriptorTemplate {
                domain: "d".into(),
                entries: Vec::new(),
            })
        };
        let cases: [(&str, WorkloadTarget, u64, Option<TargetMismatch>); 9] = [
            ("http://h", rule(), 1, None),
            ("http://h", limit(), 0, None),
            ("resp://h", limit(), 1 << 32, None),
            ("resp://h", rule(), (1 << 32) + 1, Some(TargetMismatch::Cost)),
            ("http://h", descriptor(), 1, Some(TargetMismatch::DescriptorNeedsGrpc)),
            ("resp://h", descriptor(), 1, Some(TargetMismatch::DescriptorNeedsGrpc)),
            ("grpc://h", descriptor(), 1, None),
            ("grpc://h", rule(), 1, Some(TargetMismatch::GrpcNeedsDescriptor)),
            ("redis://h", rule(), 1, Some(TargetMismatch::StoreNeedsLimit)),
        ];
        for (address, target, cost, refused) in cases {
            let workload = Workload { target, cost, keys: 10 };
            let address = address.parse().unwrap();
            let timeout = Duration::from_secs(1);
            let target = BenchTarget::new(&address, &workload, Credentials::default(), timeout);
            assert_eq!(target.err(), refused, "{address} {workload:?}");
        }
    }
}
