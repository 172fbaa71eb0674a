//! What keeps the counts: the contract between limiters, layers and stores.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tidegate_core::{Cost, InvalidCost, Standing, Verdict};

use crate::{Call, CallId, Charge, Clock, Decision, Key, RuleLimit, Source};

/// Decides calls, each in one atomic step.
///
/// A store implements it, and so does a layer around another engine. It is used as
/// `Arc<dyn Engine>`, so that a program can choose its store at run time.
pub trait Engine: Send + Sync + 'static {
    /// Decides one call: all its charges or none.
    ///
    /// An engine that can answer at once returns [`Answer::Ready`]. One that cannot returns
    /// [`Answer::Later`] and does nothing before that is polled; dropped unpolled, it leaves no
    /// trace. Dropped after that, the call may or may not have been charged.
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision>;

    /// Decides a check of one charge, as [`decide`](Self::decide) would, if that is quickly done at
    /// once. `None` says nothing about the charge and has changed nothing: `decide` is to be asked.
    ///
    /// Most checks are of this kind. What they are answered fits into a few registers, and a whole
    /// [`Decision`] need not be handed through.
    fn check_one(&self, _charge: &Charge<'_>) -> Option<(Source, Verdict)> {
        None
    }

    /// What is known about one key under one limit. Charges nothing.
    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection>;

    /// Which shards of the store a call asks. They fail apart from each other.
    fn shards(&self, _call: &Call<'_>) -> Shards {
        Shards::ONE
    }

    /// How the engine is.
    fn health(&self) -> Health;

    /// The clock by which callers wait for their turn. A layer passes on the one below.
    fn clock(&self) -> Arc<dyn Clock>;
}

impl<E: Engine + ?Sized> Engine for Arc<E> {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        (**self).decide(call)
    }

    fn check_one(&self, charge: &Charge<'_>) -> Option<(Source, Verdict)> {
        (**self).check_one(charge)
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        (**self).inspect(limit, key)
    }

    fn shards(&self, call: &Call<'_>) -> Shards {
        (**self).shards(call)
    }

    fn health(&self) -> Health {
        (**self).health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        (**self).clock()
    }
}

/// An answer that is there already, or that has to be awaited.
pub enum Answer<'a, T> {
    /// Here it is.
    Ready(Result<T, EngineError>),
    /// It will come.
    Later(Pin<Box<dyn Future<Output = Result<T, EngineError>> + Send + 'a>>),
}

impl<T> Answer<'_, T> {
    /// The answer, if it needs no waiting for.
    pub fn now(self) -> Result<T, EngineError> {
        match self {
            Self::Ready(answer) => answer,
            Self::Later(_) => Err(Refusal::NotImmediate.into()),
        }
    }
}

/// Ready once.
impl<T: Unpin> Future for Answer<'_, T> {
    type Output = Result<T, EngineError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Later(future) => future.as_mut().poll(cx),
            Self::Ready(answer) => {
                let taken = Err(Refusal::AnswerTaken.into());
                Poll::Ready(std::mem::replace(answer, taken))
            }
        }
    }
}

/// Everything known about one key under one limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspection {
    /// Where it was found.
    pub source: Source,
    /// What is used, held and left.
    pub standing: Standing,
    /// The most that fits at once.
    pub limit: u64,
    /// Who was charged how much, oldest first, as far as a `sliding-log` was told.
    pub entries: Vec<(Option<Box<str>>, u64)>,
    /// The key shares an overflow bucket, because memory ran out.
    pub shared: bool,
}

/// Shards of a store, by number. More than [`MOST`](Self::MOST) of them share numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shards(u64);

impl Shards {
    /// How many are told apart.
    pub const MOST: usize = 64;

    /// The only one of a store that fails as a whole.
    pub const ONE: Self = Self(1);

    /// No shard, for a call that is never sent.
    pub const NONE: Self = Self(0);

    /// With shard `number` too.
    #[must_use]
    pub const fn and(self, number: usize) -> Self {
        Self(self.0 | 1 << (number % Self::MOST))
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// A bit for each of their numbers.
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Their numbers, each below [`MOST`](Self::MOST).
    pub fn numbers(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let number = left.trailing_zeros() as usize;
            left &= left.checked_sub(1)?;
            Some(number)
        })
    }
}

/// Whether calls go to a store that has failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Circuit {
    /// They do.
    Closed,
    /// One at a time, to see whether it answers again.
    HalfOpen,
    /// They do not.
    Open,
}

impl Circuit {
    /// The word for it in what is told about a server.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half-open",
            Self::Open => "open",
        }
    }
}

/// How an engine is.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Health {
    /// It answers.
    pub up: bool,
    /// Keys it has state for, where that is known.
    pub tracked_keys: Option<u64>,
    /// Bytes it uses in this process.
    pub memory_bytes: u64,
    /// What should be otherwise, though it answers, and what to do about it.
    pub warning: Option<Arc<str>>,
    /// Permits that this process has borrowed and not spent, by rule.
    pub lent: BTreeMap<String, u64>,
    /// How often the store may have lost what it had counted: another server took its place, or it
    /// came back empty.
    pub resets: u64,
    /// What happened the last time, for a log.
    pub last_reset: Option<Arc<str>>,
    /// Of the shard that is worst off; `None` if nobody guards the store.
    pub circuit: Option<Circuit>,
}

impl Health {
    /// An engine that answers, with `tracked_keys` in `memory_bytes`.
    pub fn up(tracked_keys: Option<u64>, memory_bytes: u64) -> Self {
        Self {
            up: true,
            tracked_keys,
            memory_bytes,
            warning: None,
            lent: BTreeMap::new(),
            resets: 0,
            last_reset: None,
            circuit: None,
        }
    }
}

/// Why there is no decision. A denial is a decision and never an error.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EngineError {
    /// Nobody answered; nothing was charged.
    Unavailable(Arc<dyn Error + Send + Sync>),
    /// Nobody answered in time; it may have been charged.
    Ambiguous(Arc<dyn Error + Send + Sync>),
    /// The call is not one that can be answered; nothing was charged.
    Refused(Refusal),
}

impl EngineError {
    /// Nobody answered, because of `cause`.
    pub fn unavailable(cause: impl Error + Send + Sync + 'static) -> Self {
        Self::Unavailable(Arc::new(cause))
    }

    /// What is wrong is the call or what lies under its keys: a refusal, perhaps before the store was asked, or a
    /// [`Misfit`]. It says nothing against the store.
    pub fn is_answer(&self) -> bool {
        match self {
            Self::Refused(_) => true,
            Self::Unavailable(cause) | Self::Ambiguous(cause) => cause.is::<Misfit>(),
        }
    }

    /// The refusal, if it is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Unavailable(_) | Self::Ambiguous(_) => None,
        }
    }
}

/// What lies under a key is not what it should be, says a store that is well otherwise.
#[derive(Clone, Debug)]
pub struct Misfit(pub Arc<dyn Error + Send + Sync>);

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Misfit {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(cause) => write!(f, "no decision, nothing charged: {cause}"),
            Self::Ambiguous(cause) => write!(f, "no decision, perhaps charged: {cause}"),
            Self::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl Error for EngineError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unavailable(cause) | Self::Ambiguous(cause) => Some(&**cause),
            Self::Refused(_) => None,
        }
    }
}

impl From<Refusal> for EngineError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Why a call cannot be answered.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// A call of no charges or too many; or of some, about a hold.
    ChargeCount(usize),
    /// A key beyond [`Key::MAX_LEN`] or [`Key::MAX_PARTS`].
    KeyTooLong,
    /// A key that could not be written as text.
    KeyNotWritten,
    /// A cost that is too large.
    Cost(InvalidCost),
    /// A cost that is no number of permits: negative, or beyond 64 bits.
    CostRange,
    /// An id that is empty or beyond [`CallId::MAX_LEN`](crate::CallId::MAX_LEN).
    IdLength(usize),
    /// The id was used for another request.
    IdReused,
    /// No such hold, or it is forgotten.
    UnknownHold,
    /// The hold was settled in another way.
    AlreadySettled,
    /// A hold of nothing.
    EmptyHold,
    /// A hold longer than [`HoldId::MAX_TTL`](crate::HoldId::MAX_TTL), or of no length.
    HoldLength,
    /// `concurrency` counts holders; it can be held and released, not charged.
    ConcurrencyNeedsHold,
    /// [`Op::Enter`](crate::Op::Enter) under an id.
    EnterTakesNoId,
    /// No such time zone.
    UnknownZone(Box<str>),
    /// No such rule.
    UnknownRule(Box<str>),
    /// Only a check and an entry can wait for their turn.
    OnlyChecksWait,
    /// The engine cannot answer without waiting.
    NotImmediate,
    /// The answer has been taken already.
    AnswerTaken,
}

impl Refusal {
    /// Has the store found this out? All else is seen from the call alone, before anybody is asked.
    pub(crate) fn is_of_the_store(&self) -> bool {
        matches!(self, Self::IdReused | Self::UnknownHold | Self::AlreadySettled)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChargeCount(count) => {
                write!(
                    f,
                    "a call of {count} charges; use 1 to {}, or none about a reservation",
                    Call::MAX_CHARGES
                )
            }
            Self::KeyTooLong => write!(
                f,
                "the key is too long; at most {} bytes in {} parts, or send a hash",
                Key::MAX_LEN,
                Key::MAX_PARTS
            ),
            Self::KeyNotWritten => {
                f.write_str("the key cannot be written; its Display gives an error")
            }
            Self::Cost(invalid) => invalid.fmt(f),
            Self::CostRange => write!(f, "the cost is no number from 0 to {}", Cost::MAX),
            Self::IdLength(len) => write!(f, "an id of {len} bytes; use 1 to {}", CallId::MAX_LEN),
            Self::IdReused => f.write_str("the id was used for another request; use a new one"),
            Self::UnknownHold => f.write_str("no such reservation, or settled over an hour ago"),
            Self::AlreadySettled => f.write_str("the reservation was settled in another way"),
            Self::EmptyHold => f.write_str("a reservation of nothing; use a cost of 1 or more"),
            Self::HoldLength => f.write_str("a reservation must last from 1us to 1h, or its lease"),
            Self::ConcurrencyNeedsHold => {
                f.write_str("concurrency counts holders; reserve to enter, and cancel to leave")
            }
            Self::EnterTakesNoId => {
                f.write_str("entering takes no id; enter without one, or reserve under it")
            }
            Self::UnknownZone(zone) => {
                write!(f, "unknown time zone {zone:?}; use an IANA name like Europe/Berlin")
            }
            Self::UnknownRule(rule) => write!(f, "no rule named {rule:?}"),
            Self::OnlyChecksWait => {
                f.write_str("only what takes permits or places can wait; await the others")
            }
            Self::NotImmediate => {
                f.write_str("this engine cannot answer without waiting; await the answer")
            }
            Self::AnswerTaken => f.write_str("the answer was taken already; poll it once"),
        }
    }
}

impl Error for Refusal {}

impl From<InvalidCost> for Refusal {
    fn from(invalid: InvalidCost) -> Self {
        Self::Cost(invalid)
    }
}
