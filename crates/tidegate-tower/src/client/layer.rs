//! The layer and its settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tidegate::{Clock, Limiter, Micros, SystemClock};
use tower_layer::Layer;

use super::advice::Heard;
use super::gate::{Gate, Held, Visit};
use super::{Head, NotSent, Outgoing};

/// Shapes outgoing calls and honours what the far side says. See [the module](super).
///
/// Clones, and all services that a layer makes, share what they know of far sides.
#[derive(Clone)]
pub struct OutgoingLayer {
    settings: Settings,
}

/// What a service needs to know.
#[derive(Clone)]
pub(super) struct Settings {
    limiter: Option<Limiter>,
    gate: Arc<Gate>,
    wait: Micros,
    max_pause: Micros,
    heeds: Heeds,
    key: Arc<dyn Fn(&Head<'_>) -> String + Send + Sync>,
    cost: Arc<dyn Fn(&Head<'_>) -> u64 + Send + Sync>,
}

/// Which answers are heeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heeds {
    All,
    Refusals,
}

impl OutgoingLayer {
    /// How long a call waits unless told otherwise.
    pub const DEFAULT_WAIT: Duration = Duration::from_secs(10);
    /// The longest pause unless told otherwise.
    pub const DEFAULT_MAX_PAUSE: Duration = Duration::from_secs(3_600);
    /// Far sides of which something is remembered. To make room for another, pauses that are over
    /// are forgotten first, and then the one that ends next.
    pub const MAX_KEYS: usize = 10_000;

    /// Takes a permit of `limiter` for every call, and honours what the far side says.
    ///
    /// A limit of `concurrency` has no permits to take, so every call would be refused; tower's
    /// `concurrency_limit` counts calls on their way.
    pub fn new(limiter: Limiter) -> Self {
        let clock = limiter.engine().clock();
        Self::with(Some(limiter), clock)
    }

    /// Only honours what the far side says.
    pub fn heeding() -> Self {
        Self::with(None, Arc::new(SystemClock))
    }

    fn with(limiter: Option<Limiter>, clock: Arc<dyn Clock>) -> Self {
        let settings = Settings {
            limiter,
            gate: Arc::new(Gate::new(clock, Self::MAX_KEYS)),
            wait: Self::DEFAULT_WAIT.into(),
            max_pause: Self::DEFAULT_MAX_PAUSE.into(),
            heeds: Heeds::All,
            key: Arc::new(|head| head.authority()),
            cost: Arc::new(|_| 1),
        };
        Self { settings }
    }

    /// Lets a call wait this long before it is sent, for pauses and permits together. With zero it
    /// is sent at once or not at all.
    #[must_use]
    pub fn wait(mut self, timeout: Duration) -> Self {
        self.settings.wait = timeout.into();
        self
    }

    /// Lets no far side ask for a longer pause than this. With zero, nothing it says is heeded.
    #[must_use]
    pub fn max_pause(mut self, span: Duration) -> Self {
        self.settings.max_pause = span.into();
        self
    }

    /// Heeds only answers that refuse, and not those that were served and say that nothing remains.
    ///
    /// For far sides with small limits: they count in whole seconds, so a limit of `10/s burst 1`
    /// says after every call that nothing remains for a second.
    #[must_use]
    pub fn heed_refusals_only(mut self) -> Self {
        self.settings.heeds = Heeds::Refusals;
        self
    }

    /// Counts and pauses calls by this key, and not by [`Head::authority`].
    ///
    /// ```
    /// # use tidegate_tower::client::OutgoingLayer;
    /// // One API that limits by account.
    /// let layer = OutgoingLayer::heeding().key(|head| {
    ///     let account = head.headers().get("x-account").and_then(|value| value.to_str().ok());
    ///     format!("{} {}", head.authority(), account.unwrap_or_default())
    /// });
    /// ```
    #[must_use]
    pub fn key(mut self, key: impl Fn(&Head<'_>) -> String + Send + Sync + 'static) -> Self {
        self.settings.key = Arc::new(key);
        self
    }

    /// Takes this many permits for a call, and not one.
    #[must_use]
    pub fn cost(mut self, cost: impl Fn(&Head<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.settings.cost = Arc::new(cost);
        self
    }

    /// Measures waits and pauses by this clock, and not by the limiter's or the system's. What was
    /// known of far sides is forgotten.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.settings.gate = Arc::new(Gate::new(Arc::new(clock), Self::MAX_KEYS));
        self
    }
}

impl Settings {
    /// Whom a call is for, and what it costs.
    pub(super) fn describe(&self, head: &Head<'_>) -> (String, u64) {
        ((self.key)(head), (self.cost)(head))
    }

    /// Waits until a call may be sent.
    pub(super) async fn admit(&self, key: String, cost: u64) -> Result<Visit, NotSent> {
        let mut visit = self.gate.arrive(&key, self.wait);
        loop {
            if let Err(Held { retry_after, hint }) = visit.enter().await {
                return Err(NotSent::Held { key, retry_after: retry_after.into(), hint });
            }
            if let Some(limiter) = &self.limiter {
                let permit = limiter.check(&key).cost(cost).wait(visit.time_left().into());
                match visit.unless_paused(permit).await {
                    Some(Ok(_)) => {}
                    Some(Err(limited)) => return Err(NotSent::Limited { key, limited }),
                    // Whoever took a permit into the pause would go with all others that did so
                    // when it ends. So it is left, and a new one is waited for afterwards.
                    None => continue,
                }
            }
            // A pause that began in this very moment costs the permit: late is the safe side.
            if visit.depart() {
                return Ok(visit);
            }
        }
    }

    /// Takes in what an answer says.
    pub(super) fn heed(&self, visit: Visit, status: StatusCode, headers: &HeaderMap) {
        let mut heard = Heard::of(status, headers, self.gate.clock().now());
        if self.max_pause == Micros::ZERO || (heard.well && self.heeds == Heeds::Refusals) {
            heard.advice = None;
        }
        visit.answered(heard, self.max_pause);
    }
}

impl<S> Layer<S> for OutgoingLayer {
    type Service = Outgoing<S>;

    fn layer(&self, inner: S) -> Outgoing<S> {
        Outgoing::new(inner, Arc::new(self.settings.clone()))
    }
}

impl fmt::Debug for OutgoingLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingLayer")
            .field("limiter", &self.limiter)
            .field("wait", &self.wait)
            .field("max_pause", &self.max_pause)
            .field("heeds", &self.heeds)
            .finish_non_exhaustive()
    }
}
