//! What the client is told about its limits.

use std::fmt::Write;

use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate::{Decision, Micros, RuleLimit, Verdict, Wait};

/// `RateLimit-Policy`: the limits as they stand in the policy.
pub static RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// `RateLimit`: what is left of each.
pub static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// `X-RateLimit-Limit`: the most that fits at once, of the limit that speaks.
pub static X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// `X-RateLimit-Remaining`: what it has left.
pub static X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// `X-RateLimit-Reset`: the seconds until it is as if unused.
pub static X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The headers that tell a client what was decided.
///
/// ```text
/// RateLimit-Policy: "login.1";q=5;w=60, "login.2";q=100;w=86400
/// RateLimit: "login.1";r=0;t=12, "login.2";r=71;t=40000
/// Retry-After: 12
/// X-RateLimit-Limit: 5
/// X-RateLimit-Remaining: 0
/// X-RateLimit-Reset: 60
/// Cache-Control: no-store
/// ```
///
/// `RateLimit-Policy` and `RateLimit` follow draft-ietf-httpapi-ratelimit-headers, from -08 on:
///
/// - `q` is the most that fits at once; `w` the seconds after which all of it is there again, left
///   out unless it is a whole number and always the same ([`tidegate::Limit::recovery`]).
/// - `r` is what remains; `t` the seconds until the limit allows what it denied, or else until it
///   is as if unused. A limit that can never allow the request has no `t`.
///
/// The `X-RateLimit-*` headers are about the one limit that speaks ([`Decision::speaker`]). Seconds
/// are rounded up. There are no headers about limits if there are no limits.
#[derive(Clone, Debug)]
pub struct RateLimitHeaders {
    limits: Option<Limits>,
    denial: Option<Denial>,
}

#[derive(Clone, Debug)]
struct Limits {
    policy: HeaderValue,
    state: HeaderValue,
    limit: u64,
    remaining: u64,
    reset_after: u64,
}

#[derive(Clone, Debug)]
struct Denial {
    /// In seconds; `None` if the request can never pass.
    retry_after: Option<u64>,
}

impl RateLimitHeaders {
    /// The headers for a decision. The items are the limits to tell of, in order, each with its
    /// verdict in that decision.
    pub fn new<'a>(
        items: impl IntoIterator<Item = (&'a RuleLimit, &'a Verdict)>,
        decision: &Decision,
    ) -> Self {
        let denial = (!decision.allowed()).then(|| Denial {
            retry_after: decision.retry_after().span().map(|wait| seconds(wait).max(1)),
        });
        Self { limits: Limits::new(items, &decision.verdict()), denial }
    }

    /// Writes them all over what was there: for a request that passed, or was denied.
    pub fn write(&self, headers: &mut HeaderMap) {
        self.write_standing(headers);
        let Some(denial) = &self.denial else { return };
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match denial.retry_after {
            Some(seconds) => headers.insert(RETRY_AFTER, seconds.into()),
            None => headers.remove(RETRY_AFTER),
        };
    }

    /// Writes only those about limits, without `Retry-After` and `Cache-Control`: for a peek, which
    /// is answered even where there is nothing left.
    pub fn write_standing(&self, headers: &mut HeaderMap) {
        let Some(limits) = &self.limits else { return };
        headers.insert(&RATELIMIT_POLICY, limits.policy.clone());
        headers.insert(&RATELIMIT, limits.state.clone());
        headers.insert(&X_RATELIMIT_LIMIT, limits.limit.into());
        headers.insert(&X_RATELIMIT_REMAINING, limits.remaining.into());
        headers.insert(&X_RATELIMIT_RESET, limits.reset_after.into());
    }
}

impl Limits {
    /// `None` for no items.
    fn new<'a>(
        items: impl IntoIterator<Item = (&'a RuleLimit, &'a Verdict)>,
        speaker: &Verdict,
    ) -> Option<Self> {
        // Room for two limits with names of some length.
        let (mut policy, mut state) = (List::with_capacity(96), List::with_capacity(96));
        for (limit, verdict) in items {
            policy.item(limit.policy());
            policy.parameter('q', verdict.limit);
            if let Some(window) = limit.limit().recovery().and_then(whole_seconds) {
                policy.parameter('w', window);
            }
            state.item(limit.policy());
            state.parameter('r', verdict.remaining);
            if let Some(wait) = until_change(verdict) {
                state.parameter('t', seconds(wait));
            }
        }
        Some(Self {
            policy: policy.value()?,
            state: state.value()?,
            limit: speaker.limit,
            remaining: speaker.remaining,
            reset_after: seconds(speaker.reset_after),
        })
    }
}

fn until_change(verdict: &Verdict) -> Option<Micros> {
    match (verdict.allowed, verdict.retry_after) {
        (true, _) => Some(verdict.reset_after),
        (false, Wait::For(wait)) => Some(wait),
        (false, Wait::Never) => None,
    }
}

const MICROS_PER_SECOND: u64 = 1_000_000;

fn seconds(span: Micros) -> u64 {
    span.get().div_ceil(MICROS_PER_SECOND)
}

fn whole_seconds(span: Micros) -> Option<u64> {
    let whole = span.get().is_multiple_of(MICROS_PER_SECOND);
    whole.then(|| span.get() / MICROS_PER_SECOND)
}

/// A list of named items with parameters, as structured fields (RFC 9651) write it.
struct List(String);

impl List {
    /// The largest integer of structured fields, 15 digits.
    const MAX_INTEGER: u64 = 999_999_999_999_999;

    fn with_capacity(capacity: usize) -> Self {
        Self(String::with_capacity(capacity))
    }

    fn item(&mut self, name: &str) {
        if !self.0.is_empty() {
            self.0.push_str(", ");
        }
        self.0.push('"');
        // The names of rules need no escapes. Should another come here, it must not break the line.
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        if name.chars().all(plain) {
            self.0.push_str(name);
        } else {
            self.0.extend(name.chars().map(|c| if plain(c) { c } else { '_' }));
        }
        self.0.push('"');
    }

    fn parameter(&mut self, name: char, number: u64) {
        // A string takes whatever is written to it.
        let _ = write!(self.0, ";{name}={}", number.min(Self::MAX_INTEGER));
    }

    /// The value of the header; `None` if the list is empty.
    fn value(self) -> Option<HeaderValue> {
        HeaderValue::try_from(self.0).ok().filter(|value| !value.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::{Rule, Source};

    fn rule(name: &str, limits: &[&str]) -> Rule {
        Rule::new(name, limits.iter().map(|limit| limit.parse().unwrap())).unwrap()
    }

    fn verdict(limit: u64, remaining: u64, reset_after: u64) -> Verdict {
        let reset_after = Micros::new(reset_after);
        let (retry_after, delay) = (Wait::NONE, Micros::ZERO);
        Verdict { allowed: true, retry_after, delay, limit, remaining, reset_after }
    }

    fn denied(limit: u64, retry_after: Wait, reset_after: u64) -> Verdict {
        Verdict { allowed: false, retry_after, ..verdict(limit, 0, reset_after) }
    }

    fn headers(rule: &Rule, verdicts: &[Verdict]) -> RateLimitHeaders {
        let decision = Decision::new(Source::Memory, verdicts.into());
        let limits = rule.limits().iter().map(|limit| &**limit);
        RateLimitHeaders::new(limits.zip(&decision.verdicts), &decision)
    }

    fn written(rule: &Rule, verdicts: &[Verdict]) -> Vec<String> {
        let mut map = HeaderMap::new();
        headers(rule, verdicts).write(&mut map);
        lines(&map)
    }

    fn lines(map: &HeaderMap) -> Vec<String> {
        map.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn an_allowed_request_is_told_what_is_left() {
        let login = rule("login", &["sliding-log 5/1m"]);
        assert_eq!(
            written(&login, &[verdict(5, 4, 12_000_000)]),
            [
                "ratelimit-policy: \"login\";q=5;w=60",
                "ratelimit: \"login\";r=4;t=12",
                "x-ratelimit-limit: 5",
                "x-ratelimit-remaining: 4",
                "x-ratelimit-reset: 12",
            ]
        );
    }

    #[test]
    fn a_denied_request_is_told_when_to_come_back_by_the_limit_that_speaks() {
        let login = rule("login", &["sliding-log 5/1m", "fixed-window 100/1d", "concurrency 3"]);
        let wait = |micros| Wait::For(Micros::new(micros));
        assert_eq!(
            written(
                &login,
                &[
                    denied(5, wait(11_000_001), 59_000_000),
                    verdict(100, 71, 39_999_999_999),
                    denied(3, wait(1), 1),
                ]
            ),
            [
                "ratelimit-policy: \"login.1\";q=5;w=60, \"login.2\";q=100;w=86400, \"login.3\";q=3",
                "ratelimit: \"login.1\";r=0;t=12, \"login.2\";r=71;t=40000, \"login.3\";r=0;t=1",
                "x-ratelimit-limit: 5",
                "x-ratelimit-remaining: 0",
                "x-ratelimit-reset: 59",
                "cache-control: no-store",
                "retry-after: 12",
            ]
        );
    }

    #[test]
    fn a_wait_is_at_least_one_second_and_never_is_not_told_as_one() {
        let api = rule("api", &["10/s", "0/s"]);
        let wait = |micros| denied(10, Wait::For(Micros::new(micros)), 0);
        for (micros, told) in [(0, "1"), (1, "1"), (1_000_000, "1"), (1_000_001, "2")] {
            let mut map = HeaderMap::new();
            headers(&api, &[wait(micros)]).write(&mut map);
            assert_eq!(map[RETRY_AFTER], told, "{micros}");
        }
        let mut map = HeaderMap::new();
        map.insert(RETRY_AFTER, 5.into());
        headers(&api, &[wait(1), denied(0, Wait::Never, 0)]).write(&mut map);
        assert_eq!(map.get(RETRY_AFTER), None);
        assert_eq!(map[CACHE_CONTROL], "no-store");
        assert_eq!(map[&RATELIMIT], "\"api.1\";r=0;t=1, \"api.2\";r=0");
        assert_eq!(map[&RATELIMIT_POLICY], "\"api.1\";q=10;w=1, \"api.2\";q=0");
        assert_eq!(map[&X_RATELIMIT_LIMIT], "0");
    }

    #[test]
    fn a_peek_is_not_told_to_come_back() {
        let api = rule("api", &["10/s"]);
        let mut map = HeaderMap::new();
        headers(&api, &[denied(10, Wait::For(Micros::from_secs(2)), 0)]).write_standing(&mut map);
        assert_eq!(map.len(), 5);
        assert!(!map.contains_key(RETRY_AFTER) && !map.contains_key(CACHE_CONTROL));
    }

    #[test]
    fn a_window_is_told_only_if_it_is_whole_seconds() {
        for (limit, policy) in [
            ("100/s", "\"r\";q=100;w=1"),
            ("100/s burst 20", "\"r\";q=20"),
            ("10/s burst 50", "\"r\";q=50;w=5"),
            ("3/s burst 10", "\"r\";q=10"),
            ("fixed-window 9/1500ms", "\"r\";q=9"),
            ("fixed-window 9/w", "\"r\";q=9;w=604800"),
            ("fixed-window 9/month", "\"r\";q=9"),
            ("concurrency 9", "\"r\";q=9"),
        ] {
            let rule = rule("r", &[limit]);
            let capacity = rule.limits()[0].limit().capacity();
            let mut map = HeaderMap::new();
            headers(&rule, &[verdict(capacity, 1, 0)]).write(&mut map);
            assert_eq!(map[&RATELIMIT_POLICY], policy, "{limit}");
        }
    }

    #[test]
    fn integers_of_structured_fields_have_at_most_15_digits() {
        let huge = rule("huge", &["fixed-window 4503599627370495/s"]);
        let most = (1 << 52) - 1;
        let told = written(&huge, &[verdict(most, most - 1, Micros::MAX.get())]);
        assert_eq!(told[0], "ratelimit-policy: \"huge\";q=999999999999999;w=1");
        assert_eq!(told[1], "ratelimit: \"huge\";r=999999999999999;t=9007199255");
        assert_eq!(told[2], "x-ratelimit-limit: 4503599627370495");
    }

    #[test]
    fn headers_that_were_there_are_replaced_and_no_limits_leave_them() {
        let mut map = HeaderMap::new();
        for name in [&RATELIMIT, &RATELIMIT, &X_RATELIMIT_LIMIT] {
            map.append(name, HeaderValue::from_static("old"));
        }
        let before = map.clone();
        let decision = Decision::new(Source::Memory, [verdict(5, 4, 0)].as_slice().into());
        RateLimitHeaders::new([], &decision).write(&mut map);
        assert_eq!(map, before);
        headers(&rule("api", &["10/s"]), &[verdict(10, 4, 0)]).write(&mut map);
        assert_eq!(map.get_all(&RATELIMIT).iter().count(), 1);
        assert!(!lines(&map).iter().any(|line| line.contains("old")));
    }

    #[test]
    fn a_name_from_elsewhere_cannot_break_the_line() {
        let limit: tidegate::Limit = "10/s".parse().unwrap();
        for (name, printed) in [("a\r\nb", "a__b"), ("\"x\\", "_x_"), ("é", "_"), ("", "")] {
            let stored = RuleLimit::stored(name, name, "state", limit.clone());
            let decision = Decision::new(Source::Memory, [verdict(10, 9, 0)].as_slice().into());
            let mut map = HeaderMap::new();
            RateLimitHeaders::new([(&stored, &decision.verdicts[0])], &decision).write(&mut map);
            assert_eq!(map[&RATELIMIT], format!("\"{printed}\";r=9;t=0"));
        }
    }
}
