//! How to get at what is asked.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidegate::{Cost, Limiter, Micros};

use super::address::{Address, Door, Protocol};
use super::ask::grpc::{self, Call, Grpc};
use super::ask::http::{self, Http};
use super::ask::resp::{self, Resp};
use super::ask::store::{Asked, Limited};
use super::ask::wire::{self, Tls};
use super::ask::{Asker, Trouble};
use super::question::{About, Question};
use super::template::{Names, Template};
use crate::config::Settings;
use crate::store::StoreError;

/// Something to ask.
pub struct Target {
    to: To,
    shown: String,
}

enum To {
    Http(Reach, Arc<Template>),
    Resp(Reach, Arc<Template>),
    Grpc(Reach, Arc<Call>),
    Store(Arc<Limited>),
}

/// How to get to a door.
struct Reach {
    host: String,
    tls: Option<Tls>,
    token: Option<Box<str>>,
}

/// What opens a door.
#[derive(Default)]
pub struct Access {
    /// With TLS: how.
    pub tls: Option<Tls>,
    /// The token to show.
    pub token: Option<Box<str>>,
}

impl Target {
    /// What the keys of questions to a store begin with there: they are kept apart from those of servers.
    const NAMESPACE: &'static str = "tg-bench";

    /// The target at `address`; a question to a store may take `patience`. Needs a runtime.
    pub fn new(
        address: &Address,
        question: &Question,
        access: Access,
        patience: Duration,
    ) -> Result<Self, InvalidTarget> {
        Cost::new(question.cost).map_err(|_| InvalidTarget::Cost)?;
        let to = match address {
            Address::Door(door) => To::at(door, question, access)?,
            Address::Store(store) => {
                let About::Limit(limit) = &question.about else {
                    return Err(InvalidTarget::NotOfStore);
                };
                let namespace = Some(Self::NAMESPACE.to_string());
                let settings = Settings { namespace, ..Settings::default() };
                let engine = store.engine_within(&settings, patience)?;
                let (names, cost) = (Names::new(question.keys), question.cost);
                let limiter = Limiter::new(engine, limit.clone());
                To::Store(Arc::new(Limited { limiter, names, cost }))
            }
        };
        Ok(Self { to, shown: address.to_string() })
    }

    /// May several questions be on their way in one connection?
    pub fn takes_pipelines(&self) -> bool {
        matches!(self.to, To::Resp(..))
    }

    /// Does each who asks have a connection?
    pub(crate) fn has_connections(&self) -> bool {
        !matches!(self.to, To::Store(_))
    }

    /// When an answer is not waited for any more. A store gives up by itself, and can say why.
    pub(crate) fn deadline(&self, patience: Micros) -> Duration {
        const GRACE: Duration = Duration::from_secs(1);
        let grace = if self.has_connections() { Duration::ZERO } else { GRACE };
        Duration::from(patience) + grace
    }

    /// Somebody to ask.
    pub(crate) async fn connect(&self) -> Result<Asker, Trouble> {
        Ok(match &self.to {
            To::Http(reach, question) => {
                Asker::Http(Http::new(reach.connect().await?, question.clone()))
            }
            To::Resp(reach, question) => {
                let stream = reach.connect().await?;
                Asker::Resp(Resp::new(stream, question.clone(), reach.token.as_deref()).await?)
            }
            To::Grpc(reach, call) => {
                Asker::Grpc(Grpc::new(reach.connect().await?, call.clone()).await?)
            }
            To::Store(limited) => Asker::Store(Asked(limited.clone())),
        })
    }
}

impl To {
    fn at(door: &Door, question: &Question, access: Access) -> Result<Self, InvalidTarget> {
        let Access { tls, token } = access;
        let (names, cost) = (Names::new(question.keys), question.cost);
        let reach = Reach { host: door.authority(), tls, token };
        let (host, token) = (&reach.host, reach.token.as_deref());
        match (door.protocol, &question.about) {
            (Protocol::Http, About::Rule(_) | About::Limit(_)) => {
                let template = Template::new(names, |key| {
                    let body = match &question.about {
                        About::Rule(rule) => json!({ "rule": rule, "key": key, "cost": cost }),
                        about => json!({ "limit": about.limit(), "key": key, "cost": cost }),
                    };
                    http::request(host, token, &body)
                });
                Ok(Self::Http(reach, Arc::new(template)))
            }
            (Protocol::Resp, About::Rule(_) | About::Limit(_)) => {
                let cost = cost.to_string();
                let template = Template::new(names, |key| match &question.about {
                    About::Rule(rule) => resp::command(&["TG.CHECK", rule, key, "COST", &cost]),
                    about => resp::command(&["TG.LIMIT", &about.limit(), key, "COST", &cost]),
                });
                Ok(Self::Resp(reach, Arc::new(template)))
            }
            (Protocol::Grpc, About::Descriptor(descriptor)) => {
                let template =
                    Template::new(names, |key| grpc::framed(&descriptor.request(key, cost)));
                let scheme = if reach.tls.is_some() { "https" } else { "http" };
                let call = Call::new(scheme, host, token, template);
                let call = call.map_err(|_| InvalidTarget::Host)?;
                Ok(Self::Grpc(reach, Arc::new(call)))
            }
            (Protocol::Grpc, _) => Err(InvalidTarget::NotOfGrpc),
            (_, About::Descriptor(_)) => Err(InvalidTarget::OnlyOfGrpc),
        }
    }
}

impl Reach {
    async fn connect(&self) -> Result<Box<dyn wire::Stream>, Trouble> {
        wire::connect(&self.host, self.tls.as_ref()).await
    }
}

/// Where it is, without a password.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Target").field(&self.shown).finish()
    }
}

/// Why a question cannot be asked of a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InvalidTarget {
    /// It costs too much.
    Cost,
    /// No request can have such a host.
    Host,
    /// A store knows limits alone.
    NotOfStore,
    /// Envoy's service knows descriptors alone.
    NotOfGrpc,
    /// Only Envoy's service knows descriptors.
    OnlyOfGrpc,
    /// The store's address or settings are not good.
    Store(StoreError),
}

impl fmt::Display for InvalidTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cost => write!(f, "a cost is at most {}; ask for less", Cost::MAX.get()),
            Self::Host => {
                f.write_str("the target's host is no name; write one like 127.0.0.1:8081")
            }
            Self::NotOfStore => f.write_str("a store knows no rules; ask with --limit"),
            Self::NotOfGrpc => f.write_str(
                "over gRPC the limits are the server's; name --domain and --descriptor instead",
            ),
            Self::OnlyOfGrpc => {
                f.write_str("only grpc:// has domains and descriptors; name --rule or --limit")
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for InvalidTarget {}

impl From<StoreError> for InvalidTarget {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::question::Descriptor;

    #[test]
    fn each_target_is_asked_in_its_own_way() {
        let rule = || About::Rule("login".into());
        let limit = || About::Limit("5/min".parse().unwrap());
        let descriptor =
            || About::Descriptor(Descriptor { domain: "d".into(), entries: Vec::new() });
        let cases: [(&str, About, u64, Option<InvalidTarget>); 9] = [
            ("http://h", rule(), 1, None),
            ("http://h", limit(), 0, None),
            ("resp://h", limit(), 1 << 32, None),
            ("resp://h", rule(), (1 << 32) + 1, Some(InvalidTarget::Cost)),
            ("http://h", descriptor(), 1, Some(InvalidTarget::OnlyOfGrpc)),
            ("resp://h", descriptor(), 1, Some(InvalidTarget::OnlyOfGrpc)),
            ("grpc://h", descriptor(), 1, None),
            ("grpc://h", rule(), 1, Some(InvalidTarget::NotOfGrpc)),
            ("redis://h", rule(), 1, Some(InvalidTarget::NotOfStore)),
        ];
        for (address, about, cost, refused) in cases {
            let question = Question { about, cost, keys: 10 };
            let address = address.parse().unwrap();
            let patience = Duration::from_secs(1);
            let target = Target::new(&address, &question, Access::default(), patience);
            assert_eq!(target.err(), refused, "{address} {question:?}");
        }
    }
}
