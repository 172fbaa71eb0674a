//! Follows a control plane: one aggregated discovery stream (ADS, state of the world).
//!
//! A stream begins without a version, so that the control plane sends everything it has. After a
//! restart it may count its versions from the start again, and the same version would be another
//! configuration.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use prost_types::{Struct, Value, value::Kind};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;
use tracing::{info, warn};

use super::connect::{XdsConnectError, connect, write_causes};
use super::options::XdsOptions;
use super::resource::{self, TYPE_URL};
use crate::policy::{EnvoyResource, PolicyManager};
use crate::transport::envoy::proto::google::rpc::Status as RpcStatus;
use crate::transport::envoy::proto::{DiscoveryRequest, DiscoveryResponse, Node};

/// The method of the control plane.
const METHOD: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// Largest response, in bytes.
const MAX_RESPONSE: usize = 16 << 20;
/// Longest error text of a refusal and of a lost connection, in bytes.
const MAX_ERROR_TEXT: usize = 4 << 10;
/// Pause before the same configuration is refused again. Some control planes resend a refused
/// configuration at once, and send nothing else before they know the result.
const REFUSED_AGAIN: Duration = Duration::from_millis(500);

/// A task that follows the control plane until this is dropped.
#[derive(Debug)]
pub(crate) struct XdsClient {
    task: JoinHandle<()>,
    has_config: watch::Receiver<bool>,
}

impl XdsClient {
    /// Connects, and gives every configuration to `policies`.
    pub(crate) fn spawn(options: XdsOptions, policies: Arc<PolicyManager>) -> Self {
        let (sender, has_config) = watch::channel(false);
        let session = XdsSession {
            options,
            policies,
            has_config: sender,
            version: String::new(),
            accepted: None,
            refused: None,
        };
        Self { task: tokio::spawn(session.run()), has_config }
    }

    /// Waits until a configuration is in force.
    pub(crate) async fn first_config(&mut self) {
        // An error means that the task has ended, which it does not.
        let _ = self.has_config.wait_for(|has_config| *has_config).await;
    }
}

impl Drop for XdsClient {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is known across streams.
struct XdsSession {
    options: XdsOptions,
    policies: Arc<PolicyManager>,
    has_config: watch::Sender<bool>,
    /// Version of the last configuration that was accepted.
    version: String,
    /// The last resources that were accepted.
    accepted: Option<Vec<prost_types::Any>>,
    /// The last resources, if they were refused.
    refused: Option<Vec<prost_types::Any>>,
}

impl XdsSession {
    async fn run(mut self) {
        let mut failures = 0;
        self.policies.lose_control_plane("connecting".into());
        loop {
            let address = self.options.address.clone();
            let mut responses = 0;
            let error = match self.follow(&mut responses).await {
                Ok(()) => "the stream has ended".to_string(),
                Err(error) => error.to_string(),
            };
            if responses > 0 {
                failures = 0;
            }
            let pause = self.options.backoff.pause(failures, random());
            failures = failures.saturating_add(1);
            let retry = humane(pause);
            self.policies.lose_control_plane(shortened(error.clone()));
            warn!(%address, error, retry, "no connection to the control plane; limits stay as they are");
            tokio::time::sleep(pause).await;
        }
    }

    /// Follows one stream until it ends. Counts the responses.
    async fn follow(&mut self, responses: &mut u64) -> Result<(), StreamError> {
        let channel = connect(&self.options).await?;
        // One request is open at a time; the second place is for the first one.
        let (sender, requests) = mpsc::channel(2);
        let mut request = Request::new(ReceiverStream::new(requests));
        for header in &self.options.headers {
            header.append_to(request.metadata_mut());
        }
        let first = DiscoveryRequest { node: Some(self.node()), ..subscription() };
        sender.send(first).await.map_err(|_| StreamError::Closed)?;
        let mut grpc = Grpc::new(channel).max_decoding_message_size(MAX_RESPONSE);
        grpc.ready().await.map_err(|error| StreamError::Ended(Status::from_error(error.into())))?;
        let codec = ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
        // Many control planes send nothing, not even headers, before they have a configuration.
        self.policies.lose_control_plane("connected, and nothing sent yet".into());
        let stream = grpc.streaming(request, PathAndQuery::from_static(METHOD), codec).await?;
        let mut stream: Streaming<DiscoveryResponse> = stream.into_inner();
        let address = &self.options.address;
        info!(%address, node = self.options.node_id, "connected to the control plane");
        while let Some(response) = stream.message().await? {
            *responses += 1;
            self.policies.reach_control_plane();
            let Some(reply) = self.receive(response).await else { continue };
            sender.send(reply).await.map_err(|_| StreamError::Closed)?;
        }
        Ok(())
    }

    /// Applies a response. Returns the request that accepts or refuses it; `None` if it is of a
    /// type that was not requested.
    async fn receive(&mut self, response: DiscoveryResponse) -> Option<DiscoveryRequest> {
        let DiscoveryResponse { version_info, resources, type_url, nonce } = response;
        if type_url != TYPE_URL {
            warn!(type_url, "response of the control plane ignored: it was not requested");
            return None;
        }
        if self.refused.as_ref() == Some(&resources) {
            tokio::time::sleep(REFUSED_AGAIN).await;
        }
        let error = self.apply(resources).await.err();
        match &error {
            None => self.version = version_info,
            Some(error) => warn!(version = version_info, error, "configuration refused"),
        }
        Some(DiscoveryRequest {
            node: Some(self.node()),
            version_info: self.version.clone(),
            response_nonce: nonce,
            error_detail: error.map(refusal),
            ..subscription()
        })
    }

    /// Puts the resources in force, unless they already are.
    async fn apply(&mut self, resources: Vec<prost_types::Any>) -> Result<(), String> {
        if self.accepted.as_ref() == Some(&resources) {
            // A control plane takes back a refused configuration by sending the one before.
            self.policies.keep_resources();
            self.refused = None;
            return Ok(());
        }
        let applied = match resource::decode(&resources) {
            Ok(decoded) => self.set_resources(decoded).await,
            Err(error) => {
                self.policies.refuse_resources(&error);
                Err(error)
            }
        };
        match &applied {
            Ok(()) => {
                (self.accepted, self.refused) = (Some(resources), None);
                self.has_config.send_replace(true);
            }
            Err(_) => self.refused = Some(resources),
        }
        applied
    }

    /// Parses on a thread for blocking work: there may be thousands of descriptors.
    async fn set_resources(&self, resources: Vec<EnvoyResource>) -> Result<(), String> {
        let policies = self.policies.clone();
        let set = tokio::task::spawn_blocking(move || {
            policies.set_resources(resources).map_err(|error| error.summary())
        });
        set.await.unwrap_or_else(|panic| {
            let error = panic.to_string();
            self.policies.refuse_resources(&error);
            Err(error)
        })
    }

    fn node(&self) -> Node {
        let field = |(name, value): &(String, String)| {
            (name.clone(), Value { kind: Some(Kind::StringValue(value.clone())) })
        };
        let fields = self.options.metadata.iter().map(field).collect();
        Node {
            id: self.options.node_id.clone(),
            metadata: Some(Struct { fields }),
            user_agent_name: "tidegate".into(),
            user_agent_version: env!("CARGO_PKG_VERSION").into(),
        }
    }
}

fn subscription() -> DiscoveryRequest {
    DiscoveryRequest { type_url: TYPE_URL.into(), ..DiscoveryRequest::default() }
}

fn refusal(error: String) -> RpcStatus {
    RpcStatus { code: Code::InvalidArgument.into(), message: shortened(error) }
}

fn shortened(mut error: String) -> String {
    if let Some((end, _)) = error.char_indices().find(|(i, _)| *i >= MAX_ERROR_TEXT) {
        error.truncate(end);
    }
    error
}

/// In tenths of a second.
fn humane(pause: Duration) -> String {
    format!("in {:.1}s", pause.as_secs_f64())
}

/// A random number, or 0 without a source of randomness: then there is no jitter.
fn random() -> u32 {
    let mut bytes = [0; 4];
    let _ = getrandom::fill(&mut bytes);
    u32::from_le_bytes(bytes)
}

/// Why a stream has ended.
enum StreamError {
    Connect(XdsConnectError),
    Ended(Status),
    /// The connection has ended while a request was sent.
    Closed,
}

impl From<XdsConnectError> for StreamError {
    fn from(error: XdsConnectError) -> Self {
        Self::Connect(error)
    }
}

impl From<Status> for StreamError {
    fn from(status: Status) -> Self {
        Self::Ended(status)
    }
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => error.fmt(f),
            Self::Ended(status) => write_causes(status, f),
            Self::Closed => f.write_str("the stream has ended"),
        }
    }
}
