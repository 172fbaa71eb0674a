//! The builder of the outbound layer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Clock, Limiter, SystemClock};
use tower_layer::Layer;

use super::settings::{AdviceMode, OutgoingSettings};
use super::wait::PauseGate;
use super::{Head, Outgoing};

/// Limits outgoing calls and honours the rate-limit headers of the upstream. See [the
/// module](super).
///
/// Clones and all services that a layer makes share the state of upstreams.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limiter, Memory};
/// use tidegate_tower::OutgoingLayer;
///
/// // At most 10 a second and host; a call waits for up to 5 s, then fails.
/// let limiter = Limiter::new(Memory::default(), "leaky-bucket 10/s capacity 1".parse()?);
/// let layer = OutgoingLayer::new(limiter).wait(Duration::from_secs(5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct OutgoingLayer {
    settings: OutgoingSettings,
}

impl OutgoingLayer {
    /// How long a call waits by default.
    pub const DEFAULT_WAIT: Duration = Duration::from_secs(10);
    /// The longest pause by default.
    pub const DEFAULT_MAX_PAUSE: Duration = Duration::from_secs(3_600);
    /// Maximum number of tracked upstreams. To make room for another, pauses that are over are
    /// evicted first, and then the one that ends next.
    pub const MAX_KEYS: usize = 10_000;

    /// Takes a permit of `limiter` for every call, and honours the headers of the upstream.
    ///
    /// A `concurrency` limit has no permits to take, so every call would be refused. Use tower's
    /// `concurrency_limit` for calls in flight.
    pub fn new(limiter: Limiter) -> Self {
        let clock = limiter.engine().clock();
        Self::with(Some(limiter), clock)
    }

    /// Only honours the headers of the upstream.
    pub fn without_limit() -> Self {
        Self::with(None, Arc::new(SystemClock))
    }

    fn with(limiter: Option<Limiter>, clock: Arc<dyn Clock>) -> Self {
        let settings = OutgoingSettings {
            limiter,
            gate: Arc::new(PauseGate::new(clock, Self::MAX_KEYS)),
            wait: Self::DEFAULT_WAIT.into(),
            max_pause: Self::DEFAULT_MAX_PAUSE.into(),
            advice_mode: AdviceMode::All,
            key: Arc::new(|head| head.authority()),
            cost: Arc::new(|_| 1),
        };
        Self { settings }
    }

    /// The longest time that a call waits before it is sent, for pauses and permits together. With
    /// zero, it is sent at once or not at all.
    #[must_use]
    pub fn wait(mut self, timeout: Duration) -> Self {
        self.settings.wait = timeout.into();
        self
    }

    /// The longest pause that an upstream can demand. With zero, its headers are ignored.
    #[must_use]
    pub fn max_pause(mut self, span: Duration) -> Self {
        self.settings.max_pause = span.into();
        self
    }

    /// Honours only the headers of rejections, and not those of served responses with nothing
    /// remaining.
    ///
    /// For upstreams with small limits: resets are in whole seconds, so a limit of `10/s burst 1`
    /// reports nothing remaining for a second after every call.
    #[must_use]
    pub fn only_after_rejection(mut self) -> Self {
        self.settings.advice_mode = AdviceMode::RejectionsOnly;
        self
    }

    /// Counts and pauses calls by this key instead of [`Head::authority`].
    ///
    /// ```
    /// # use tidegate_tower::client::OutgoingLayer;
    /// // An API that limits by account.
    /// let layer = OutgoingLayer::without_limit().key(|head| {
    ///     let account = head.headers().get("x-account").and_then(|value| value.to_str().ok());
    ///     format!("{} {}", head.authority(), account.unwrap_or_default())
    /// });
    /// ```
    #[must_use]
    pub fn key(mut self, key: impl Fn(&Head<'_>) -> String + Send + Sync + 'static) -> Self {
        self.settings.key = Arc::new(key);
        self
    }

    /// Takes this many permits for a call instead of one.
    #[must_use]
    pub fn cost(mut self, cost: impl Fn(&Head<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.settings.cost = Arc::new(cost);
        self
    }

    /// Measures waits and pauses by this clock instead of that of the limiter or the system. The
    /// state of upstreams is reset.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.settings.gate = Arc::new(PauseGate::new(Arc::new(clock), Self::MAX_KEYS));
        self
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
