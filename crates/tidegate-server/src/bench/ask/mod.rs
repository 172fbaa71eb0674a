//! Whoever asks: one connection to a door, or a store.
//!
//! # Layout
//!
//! - [`Asker`]: asks, over `http`, `resp` or `grpc`, or on a `store`. `wire`: bytes there and back.
//! - [`Answer`], [`Trouble`]: what comes of a question.

pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod resp;
pub(crate) mod store;
pub(crate) mod wire;

use std::borrow::Cow;
use std::fmt;

/// What comes of a question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Allow,
    Deny,
    /// The target answered, and did not decide.
    Trouble(Trouble),
}

/// Why a question has no decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Trouble {
    /// What such ones are counted under: `timeout`, `http 503`.
    pub(crate) kind: Cow<'static, str>,
    /// What was said about this one.
    pub(crate) told: String,
}

impl Trouble {
    /// How much of what the target says is kept.
    const MOST_LETTERS: usize = 200;

    pub(crate) fn new(kind: impl Into<Cow<'static, str>>, told: impl fmt::Display) -> Self {
        let told = told.to_string().chars().take(Self::MOST_LETTERS).collect();
        Self { kind: kind.into(), told }
    }

    /// There is no connection.
    pub(crate) fn connect(told: impl fmt::Display) -> Self {
        Self::new("connect", told)
    }

    /// There was one.
    pub(crate) fn closed(told: impl fmt::Display) -> Self {
        Self::new("closed", told)
    }

    /// What came is not what is spoken here.
    pub(crate) fn garbled(told: impl fmt::Display) -> Self {
        Self::new("garbled", told)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.told)
    }
}

/// Asks one question after the other, or several at once where that can be.
pub(crate) enum Asker {
    Http(http::Http),
    Resp(resp::Resp),
    Grpc(grpc::Grpc),
    Store(store::Asked),
}

impl Asker {
    /// Asks about these keys, and appends the answers in their order. Trouble is that of the first without
    /// an answer; all that follow have none either, and there is no asking here any more.
    pub(crate) async fn ask(
        &mut self,
        keys: &[u32],
        answers: &mut Vec<Answer>,
    ) -> Result<(), Trouble> {
        match self {
            Self::Http(http) => http.ask(keys, answers).await,
            Self::Resp(resp) => resp.ask(keys, answers).await,
            Self::Grpc(grpc) => grpc.ask(keys, answers).await,
            Self::Store(store) => store.ask(keys, answers).await,
        }
    }

    /// The target has said that nothing more is answered here.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Http(http) => http.is_over(),
            Self::Resp(_) | Self::Grpc(_) | Self::Store(_) => false,
        }
    }

    /// What should be known about the answers so far.
    pub(crate) fn note(&self) -> Option<&'static str> {
        match self {
            Self::Grpc(grpc) => grpc.note(),
            Self::Http(_) | Self::Resp(_) | Self::Store(_) => None,
        }
    }
}
