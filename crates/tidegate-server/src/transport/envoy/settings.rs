//! Settings of the rate limit service.

use tidegate::policy::Enforcement;

/// Response headers and enforcement.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EnvoySettings {
    /// Rate limit headers of a response (`--envoy-headers`).
    pub headers: ResponseHeaders,
    /// Whether limits are enforced. In shadow mode every request is allowed, and the status of each
    /// descriptor keeps its own code.
    pub enforcement: Enforcement,
}

/// Headers that Envoy adds to the response to its client.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ResponseHeaders {
    /// Envoy adds no headers.
    #[default]
    Off,
    /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`, as envoyproxy/ratelimit
    /// writes them.
    Envoy,
    /// The headers of the HTTP API.
    Tidegate,
}
