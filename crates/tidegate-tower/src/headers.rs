//! Response headers that report limits: `RateLimit`, `RateLimit-Policy`, `X-RateLimit-*` and
//! `Retry-After`. Imports: policy_names.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate::{Clock, Decision, Micros, RuleLimit, Unit, Verdict, Wait};

use crate::policy_names::PolicyNames;

/// `RateLimit-Policy`: the quota and window of each limit.
pub static RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// `RateLimit`: the remaining quota of each limit.
pub static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// `RateLimit-Limit` of [`HeaderStyle::Draft6`].
pub static RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
/// `RateLimit-Remaining` of [`HeaderStyle::Draft6`].
pub static RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
/// `RateLimit-Reset` of [`HeaderStyle::Draft6`].
pub static RATELIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
/// `X-RateLimit-Limit`: the capacity of the most restrictive limit.
pub static X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// `X-RateLimit-Remaining`: what the most restrictive limit has left.
pub static X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// `X-RateLimit-Reset`: seconds until the most restrictive limit is fully recovered; in
/// [`HeaderStyle::Epoch`] the time since the epoch.
pub static X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The names that clients of OpenAI read: limit, remaining and reset of each unit that they know.
static OPENAI: [(Unit, [HeaderName; 3]); 2] = [
    (
        Unit::Requests,
        [
            HeaderName::from_static("x-ratelimit-limit-requests"),
            HeaderName::from_static("x-ratelimit-remaining-requests"),
            HeaderName::from_static("x-ratelimit-reset-requests"),
        ],
    ),
    (
        Unit::Tokens,
        [
            HeaderName::from_static("x-ratelimit-limit-tokens"),
            HeaderName::from_static("x-ratelimit-remaining-tokens"),
            HeaderName::from_static("x-ratelimit-reset-tokens"),
        ],
    ),
];

/// Which version of the headers about limits is written. Clients of older libraries read older
/// ones.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// draft-ietf-httpapi-ratelimit-headers from -08 on, and `X-RateLimit-*`; see
    /// [`RateLimitHeaders`].
    #[default]
    Draft8,
    /// Draft -07 and `X-RateLimit-*`. `RateLimit` describes the most restrictive limit.
    ///
    /// ```text
    /// RateLimit-Policy: 5;w=60, 100;w=86400
    /// RateLimit: limit=5, remaining=0, reset=12
    /// ```
    Draft7,
    /// Draft -06 and `X-RateLimit-*`.
    ///
    /// ```text
    /// RateLimit-Policy: 5;w=60, 100;w=86400
    /// RateLimit-Limit: 5
    /// RateLimit-Remaining: 0
    /// RateLimit-Reset: 12
    /// ```
    Draft6,
    /// Only `X-RateLimit-*`, with a reset in seconds since 1970, as GitHub and the legacy headers
    /// of express-rate-limit have it.
    Epoch,
    /// As [`Draft8`](Self::Draft8), and what clients of OpenAI read: the most restrictive limit of
    /// requests and that of tokens. A rule without a unit counts requests.
    ///
    /// ```text
    /// x-ratelimit-limit-requests: 60
    /// x-ratelimit-remaining-requests: 59
    /// x-ratelimit-reset-requests: 1s
    /// x-ratelimit-limit-tokens: 100000
    /// x-ratelimit-remaining-tokens: 98500
    /// x-ratelimit-reset-tokens: 6m0s
    /// ```
    OpenAi,
}

/// The headers that report a decision to a client.
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
/// - `q` is the capacity. `qu` is what it counts: `concurrent-requests` for a `concurrency` limit,
///   `tokens` or `money` as the rule says; without it, requests. The draft registers no unit for
///   tokens and money. `w` is the number of seconds in which an empty limit recovers fully. It
///   is left out unless it is a constant number of whole seconds ([`tidegate::Limit::recovery`]).
///   `rate` and `per`, which are ours, say that a bucket refills by `rate` in `per` seconds, if its
///   capacity is another number: `100/s burst 20` is `q=20;rate=100;per=1`.
/// - `r` is what remains. `t` is the number of seconds until a denied request would be allowed, or,
///   for an allowed one, until the limit is fully recovered. A limit that can never allow the
///   request has no `t`.
///
/// The `X-RateLimit-*` headers describe the most restrictive limit
/// ([`Decision::most_restrictive`]). Seconds are rounded up. Without limits, no header about limits
/// is written.
#[derive(Clone, Debug)]
pub struct RateLimitHeaders {
    limits: Option<LimitHeaders>,
    denial: Option<DenialHeaders>,
}

#[derive(Clone, Debug)]
struct LimitHeaders {
    /// None in a style without it.
    policy: Option<HeaderValue>,
    /// `RateLimit`, if it is a list of all limits.
    state: Option<HeaderValue>,
    most_restrictive: MostRestrictive,
    /// In [`HeaderStyle::OpenAi`].
    by_unit: Vec<UnitHeaders>,
}

/// The most restrictive limit of one unit.
#[derive(Clone, Debug)]
struct UnitHeaders {
    names: &'static [HeaderName; 3],
    verdict: Verdict,
}

/// The limit that the headers about a single limit describe.
#[derive(Clone, Debug)]
struct MostRestrictive {
    style: HeaderStyle,
    limit: HeaderValue,
    remaining: u64,
    /// Value of `X-RateLimit-Reset`, in seconds.
    reset: u64,
    /// Seconds until a denied request would be allowed, or an allowed limit is fully recovered.
    until_change: u64,
}

#[derive(Clone, Debug)]
struct DenialHeaders {
    /// In seconds; `None` if the limit can never allow the request.
    retry_after: Option<u64>,
}

impl RateLimitHeaders {
    /// Number of headers that [`add`](Self::add) writes.
    const ADDED: usize = 5;

    /// The headers for a decision; `limits` are those of the call, as for [`Decision::pair`].
    pub fn new<'a>(
        decision: &Decision,
        limits: impl IntoIterator<Item = &'a Arc<RuleLimit>>,
    ) -> Self {
        Self { limits: LimitHeaders::new(decision, limits), denial: DenialHeaders::of(decision) }
    }

    /// The same in another style. The clock is read for [`HeaderStyle::Epoch`].
    pub fn in_style<'a>(
        style: HeaderStyle,
        clock: &dyn Clock,
        decision: &Decision,
        limits: impl IntoIterator<Item = &'a Arc<RuleLimit>>,
    ) -> Self {
        let limits = match style {
            HeaderStyle::Draft8 => LimitHeaders::new(decision, limits),
            HeaderStyle::OpenAi => {
                let limits: Vec<_> = limits.into_iter().collect();
                let by_unit = UnitHeaders::all(decision, &limits);
                LimitHeaders::new(decision, limits).map(|all| LimitHeaders { by_unit, ..all })
            }
            older => LimitHeaders::older(older, clock, decision, limits),
        };
        Self { limits, denial: DenialHeaders::of(decision) }
    }

    /// Replaces all headers of the same names: for an allowed or a denied request.
    pub fn write(&self, headers: &mut HeaderMap) {
        self.write_limits(headers);
        self.write_retry_after(headers);
    }

    /// Appends the headers about limits to those that another layer has written. Both lists grow.
    /// The `X-RateLimit-*` headers describe whichever limit has the least remaining.
    pub fn add(self, headers: &mut HeaderMap) {
        let Some(limits) = self.limits else { return };
        // One allocation for all of them. An error means that the map is at its maximum size.
        let _ = headers.try_reserve(Self::ADDED);
        limits.policy.map(|policy| headers.append(&RATELIMIT_POLICY, policy));
        limits.state.map(|state| headers.append(&RATELIMIT, state));
        let is_tighter = |remaining: u64, headers: &HeaderMap, name: &HeaderName| {
            let before = headers.get(name).and_then(|value| value.to_str().ok()?.parse().ok());
            before.is_none_or(|before: u64| remaining < before)
        };
        if is_tighter(limits.most_restrictive.remaining, headers, &X_RATELIMIT_REMAINING) {
            limits.most_restrictive.write(headers);
        }
        for unit in limits.by_unit {
            if is_tighter(unit.verdict.remaining, headers, &unit.names[1]) {
                unit.write(headers);
            }
        }
    }

    /// Writes only `Retry-After` and `Cache-Control`, and only for a denied request.
    pub fn write_retry_after(&self, headers: &mut HeaderMap) {
        let Some(denial) = &self.denial else { return };
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match denial.retry_after {
            Some(seconds) => headers.insert(RETRY_AFTER, seconds.into()),
            None => headers.remove(RETRY_AFTER),
        };
    }

    /// Writes only the headers about limits, without `Retry-After` and `Cache-Control`: for a peek,
    /// which succeeds even if nothing is left.
    pub fn write_limits(&self, headers: &mut HeaderMap) {
        let Some(limits) = &self.limits else { return };
        limits.policy.clone().map(|policy| headers.insert(&RATELIMIT_POLICY, policy));
        limits.state.clone().map(|state| headers.insert(&RATELIMIT, state));
        limits.most_restrictive.clone().write(headers);
        limits.by_unit.iter().for_each(|unit| unit.write(headers));
    }
}

impl UnitHeaders {
    fn all(decision: &Decision, limits: &[&Arc<RuleLimit>]) -> Vec<Self> {
        let of_unit = |(unit, names): &'static (Unit, [HeaderName; 3])| {
            let counts = |limit: &RuleLimit| {
                let is_rate = limit.limit().lease().is_none();
                is_rate && limit.unit().unwrap_or(Unit::Requests) == *unit
            };
            let pairs = decision.pair(limits.iter().copied());
            let verdicts = pairs.filter(|(limit, _)| counts(limit)).map(|(_, verdict)| *verdict);
            let own = Decision::new(decision.source, verdicts.collect());
            own.verdicts.first()?;
            Some(Self { names, verdict: own.verdict() })
        };
        OPENAI.iter().filter_map(of_unit).collect()
    }

    fn write(&self, headers: &mut HeaderMap) {
        let Self { names: [limit, remaining, reset], verdict } = self;
        headers.insert(limit, Digits::of(verdict.limit).value());
        headers.insert(remaining, Digits::of(verdict.remaining).value());
        let value = HeaderValue::try_from(duration_text(verdict.reset_after)).ok();
        value.map(|value| headers.insert(reset, value));
    }
}

/// A duration as OpenAI writes it: `0s`, `17ms`, `8.64s`, `6m0s`, `23h59m59s`. Rounded up to
/// milliseconds.
fn duration_text(span: Micros) -> String {
    let millis = span.get().div_ceil(1_000);
    if (1..1_000).contains(&millis) {
        return format!("{millis}ms");
    }
    let (seconds, millis) = (millis / 1_000, millis % 1_000);
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    let fraction = format!(".{millis:03}");
    let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
    let seconds = format!("{}{fraction}s", seconds % 60);
    match (hours, minutes) {
        (0, 0) => seconds,
        (0, _) => format!("{minutes}m{seconds}"),
        _ => format!("{hours}h{minutes}m{seconds}"),
    }
}

impl MostRestrictive {
    fn write(self, headers: &mut HeaderMap) {
        self.write_draft(headers);
        headers.insert(&X_RATELIMIT_LIMIT, self.limit);
        headers.insert(&X_RATELIMIT_REMAINING, Digits::of(self.remaining).value());
        headers.insert(&X_RATELIMIT_RESET, Digits::of(self.reset).value());
    }

    /// Writes the headers of the older drafts.
    fn write_draft(&self, headers: &mut HeaderMap) {
        let Self { remaining, until_change, .. } = *self;
        match self.style {
            HeaderStyle::Draft8 | HeaderStyle::OpenAi | HeaderStyle::Epoch => {}
            HeaderStyle::Draft7 => {
                let limit = self.limit.to_str().unwrap_or("0");
                let state = format!("limit={limit}, remaining={remaining}, reset={until_change}");
                let state = HeaderValue::try_from(state).ok();
                state.map(|state| headers.insert(&RATELIMIT, state));
            }
            HeaderStyle::Draft6 => {
                headers.insert(&RATELIMIT_LIMIT, self.limit.clone());
                headers.insert(&RATELIMIT_REMAINING, Digits::of(remaining).value());
                headers.insert(&RATELIMIT_RESET, Digits::of(until_change).value());
            }
        }
    }
}

impl DenialHeaders {
    /// `None` for an allowed request.
    fn of(decision: &Decision) -> Option<Self> {
        (!decision.allowed()).then(|| Self {
            retry_after: decision.retry_after().span().map(|wait| seconds(wait).max(1)),
        })
    }
}

impl LimitHeaders {
    /// `None` without an enforced limit.
    fn new<'a>(
        decision: &Decision,
        limits: impl IntoIterator<Item = &'a Arc<RuleLimit>>,
    ) -> Option<Self> {
        let most_restrictive = decision.most_restrictive();
        let (mut policy, mut state) = (HeaderList::None, StructuredList::new());
        let (mut x_headers, mut names) = (None, PolicyNames::default());
        for (index, (limit, verdict)) in decision.pair(limits).enumerate() {
            let name = names.name(limit);
            let cached = limit
                .cached(CachedHeaders::new)
                .filter(|cached| cached.limit == verdict.limit && matches!(name, Cow::Borrowed(_)));
            let (item, value) = match cached {
                Some(cached) => (Cow::Borrowed(cached), cached.value.clone()),
                // A reduced capacity was granted, the name has a number, or the cache slot holds
                // another type.
                None => {
                    let built = CachedHeaders::granting(limit, &name, verdict.limit);
                    let value = built.value.clone();
                    (Cow::Owned(built), value)
                }
            };
            policy.add(&item.item);
            state.item(&name);
            state.parameter("r", verdict.remaining);
            if let Some(wait) = until_change(verdict) {
                state.parameter("t", seconds(wait));
            }
            if index == most_restrictive {
                x_headers = Some(MostRestrictive::new(HeaderStyle::Draft8, value, verdict));
            }
        }
        let (policy, state) = (Some(policy.value()?), Some(state.value()?));
        Some(Self { policy, state, most_restrictive: x_headers?, by_unit: Vec::new() })
    }

    /// The same in an older style.
    fn older<'a>(
        style: HeaderStyle,
        clock: &dyn Clock,
        decision: &Decision,
        limits: impl IntoIterator<Item = &'a Arc<RuleLimit>>,
    ) -> Option<Self> {
        let strictest = decision.most_restrictive();
        let (mut policy, mut most_restrictive) = (String::new(), None);
        for (index, (limit, verdict)) in decision.pair(limits).enumerate() {
            let separator = if policy.is_empty() { "" } else { ", " };
            // Writing to a string cannot fail.
            let _ = write!(policy, "{separator}{}", verdict.limit);
            if let Some(window) = limit.limit().recovery().and_then(whole_seconds) {
                let _ = write!(policy, ";w={window}");
            }
            if index == strictest {
                let capacity = Digits::of(verdict.limit).value();
                most_restrictive = Some(MostRestrictive::new(style, capacity, verdict));
            }
        }
        let mut most_restrictive = most_restrictive?;
        let mut policy = HeaderValue::try_from(policy).ok();
        if style == HeaderStyle::Epoch {
            most_restrictive.reset += seconds(clock.now());
            policy = None;
        }
        Some(Self { policy, state: None, most_restrictive, by_unit: Vec::new() })
    }
}

impl MostRestrictive {
    fn new(style: HeaderStyle, limit: HeaderValue, verdict: &Verdict) -> Self {
        let until_change = until_change(verdict).unwrap_or(verdict.reset_after);
        let (reset, until_change) = (seconds(verdict.reset_after), seconds(until_change));
        Self { style, limit, remaining: verdict.remaining, reset, until_change }
    }
}

/// The header values of a limit that are the same for every request; built once per limit.
#[derive(Clone)]
struct CachedHeaders {
    limit: u64,
    /// The capacity as a header value.
    value: HeaderValue,
    /// Its item in `RateLimit-Policy`.
    item: HeaderValue,
}

impl CachedHeaders {
    fn new(limit: &RuleLimit) -> Self {
        Self::granting(limit, limit.policy(), limit.limit().capacity())
    }

    /// The values for a limit of this name whose granted capacity is `capacity`.
    fn granting(limit: &RuleLimit, name: &str, capacity: u64) -> Self {
        let mut item = StructuredList::new();
        item.item(name);
        item.parameter("q", capacity);
        if let Some(unit) = quota_unit(limit) {
            item.text_parameter("qu", unit);
        }
        if let Some(window) = limit.limit().recovery().and_then(whole_seconds) {
            item.parameter("w", window);
        }
        if let Some((rate, per)) = sustained_rate(limit) {
            item.parameter("rate", rate);
            item.parameter("per", per);
        }
        // A list of one is never empty.
        let item = item.value().unwrap_or(HeaderValue::from_static("?0"));
        Self { limit: capacity, value: Digits::of(capacity).value(), item }
    }
}

/// A header value joined from items that are header values already.
enum HeaderList {
    None,
    One(HeaderValue),
    Many(Vec<u8>),
}

impl HeaderList {
    fn add(&mut self, item: &HeaderValue) {
        *self = match std::mem::replace(self, Self::None) {
            Self::None => Self::One(item.clone()),
            Self::One(first) => Self::Many([first.as_bytes(), b", ", item.as_bytes()].concat()),
            Self::Many(mut line) => {
                line.extend_from_slice(b", ");
                line.extend_from_slice(item.as_bytes());
                Self::Many(line)
            }
        };
    }

    fn value(self) -> Option<HeaderValue> {
        match self {
            Self::None => None,
            Self::One(value) => Some(value),
            Self::Many(line) => HeaderValue::try_from(line).ok(),
        }
    }
}

/// The unit of a limit in headers; `None` for requests, the default of the draft.
fn quota_unit(limit: &RuleLimit) -> Option<&'static str> {
    match limit.unit() {
        _ if limit.limit().lease().is_some() => Some("concurrent-requests"),
        None | Some(Unit::Requests) => None,
        Some(unit) => Some(unit.name()),
    }
}

/// What a bucket allows in how many seconds, unless that is its capacity: then `q` says it.
fn sustained_rate(limit: &RuleLimit) -> Option<(u64, u64)> {
    let limit = limit.limit();
    if limit.lease().is_some() || limit.count() == limit.capacity() {
        return None;
    }
    Some((limit.count(), limit.span().length().and_then(whole_seconds)?))
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

/// A list of named items with parameters, in the syntax of structured fields (RFC 9651).
struct StructuredList {
    /// Inline buffer: enough for two limits with names of moderate length, without an allocation.
    start: [u8; Self::SHORT],
    len: usize,
    rest: Vec<u8>,
}

impl StructuredList {
    const SHORT: usize = 160;
    /// The largest integer of structured fields, 15 digits.
    const MAX_INTEGER: u64 = 999_999_999_999_999;

    fn new() -> Self {
        Self { start: [0; Self::SHORT], len: 0, rest: Vec::new() }
    }

    fn item(&mut self, name: &str) {
        self.push(if self.len == 0 { b"\"" } else { b", \"" });
        // Rule names need no escapes. Any other name must not break the header line.
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-' | b'#');
        if name.bytes().all(plain) {
            self.push(name.as_bytes());
        } else {
            for c in name.chars() {
                self.push(&[u8::try_from(c).ok().filter(|b| plain(*b)).unwrap_or(b'_')]);
            }
        }
        self.push(b"\"");
    }

    fn parameter(&mut self, name: &str, number: u64) {
        for part in [";", name, "="] {
            self.push(part.as_bytes());
        }
        self.push(Digits::of(number.min(Self::MAX_INTEGER)).as_bytes());
    }

    /// `text` has no characters that need an escape.
    fn text_parameter(&mut self, name: &str, text: &str) {
        for part in [";", name, "=\"", text, "\""] {
            self.push(part.as_bytes());
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        match self.start.get_mut(self.len..end) {
            Some(free) if self.rest.is_empty() => {
                free.copy_from_slice(bytes);
                self.len = end;
            }
            _ => self.rest.extend_from_slice(bytes),
        }
    }

    /// The value of the header; `None` if the list is empty.
    fn value(mut self) -> Option<HeaderValue> {
        let start = &self.start[..self.len];
        let value = if self.rest.is_empty() {
            HeaderValue::from_bytes(start)
        } else {
            self.rest.splice(..0, start.iter().copied());
            HeaderValue::try_from(self.rest)
        };
        value.ok().filter(|value| !value.is_empty())
    }
}

struct Digits {
    digits: [u8; Self::MAX],
    start: usize,
}

impl Digits {
    /// Digits of `u64::MAX`.
    const MAX: usize = 20;

    fn of(mut number: u64) -> Self {
        let (mut digits, mut start) = ([b'0'; Self::MAX], Self::MAX);
        loop {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return Self { digits, start };
            }
        }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.digits[self.start..]
    }

    /// As a header value, in one allocation.
    fn value(&self) -> HeaderValue {
        // Digits are always valid in a header.
        HeaderValue::from_bytes(self.as_bytes()).unwrap_or(HeaderValue::from_static("0"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::{ManualClock, Rule, Source};

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
        RateLimitHeaders::new(&decision, rule.limits())
    }

    fn in_style(style: HeaderStyle, rule: &Rule, verdicts: &[Verdict]) -> RateLimitHeaders {
        let decision = Decision::new(Source::Memory, verdicts.into());
        let clock = ManualClock::new(Micros::from_secs(1_700_000_000));
        RateLimitHeaders::in_style(style, &clock, &decision, rule.limits())
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
    fn an_allowed_response_carries_what_is_left() {
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
    fn the_rate_of_a_bucket_is_given_where_it_is_not_the_capacity() {
        for (limit, capacity, policy) in [
            ("100/s burst 20", 20, "\"r\";q=20;rate=100;per=1"),
            ("10/s burst 20", 20, "\"r\";q=20;w=2;rate=10;per=1"),
            ("60/m burst 1", 1, "\"r\";q=1;w=1;rate=60;per=60"),
            ("5/100ms burst 9", 9, "\"r\";q=9"),
            ("5/m", 5, "\"r\";q=5;w=60"),
            ("sliding-log 5/m", 5, "\"r\";q=5;w=60"),
        ] {
            let mut map = HeaderMap::new();
            headers(&rule("r", &[limit]), &[verdict(capacity, 1, 0)]).write(&mut map);
            assert_eq!(map[&RATELIMIT_POLICY], policy, "{limit}");
        }
    }

    #[test]
    fn older_styles_describe_the_most_restrictive_limit() {
        let login = rule("login", &["sliding-log 5/1m", "fixed-window 100/1d", "concurrency 3"]);
        let denials = [
            denied(5, Wait::For(Micros::new(11_000_001)), 59_000_000),
            verdict(100, 71, 39_999_999_999),
            verdict(3, 1, 0),
        ];
        let policy = "ratelimit-policy: 5;w=60, 100;w=86400, 3";
        let x = ["x-ratelimit-limit: 5", "x-ratelimit-remaining: 0"];
        let denial = ["cache-control: no-store", "retry-after: 12"];
        for (style, lines) in [
            (
                HeaderStyle::Draft7,
                vec![
                    policy,
                    "ratelimit: limit=5, remaining=0, reset=12",
                    x[0],
                    x[1],
                    "x-ratelimit-reset: 59",
                ],
            ),
            (
                HeaderStyle::Draft6,
                vec![
                    policy,
                    "ratelimit-limit: 5",
                    "ratelimit-remaining: 0",
                    "ratelimit-reset: 12",
                    x[0],
                    x[1],
                    "x-ratelimit-reset: 59",
                ],
            ),
            (HeaderStyle::Epoch, vec![x[0], x[1], "x-ratelimit-reset: 1700000059"]),
        ] {
            let mut map = HeaderMap::new();
            in_style(style, &login, &denials).write(&mut map);
            assert_eq!(self::lines(&map), [lines, denial.to_vec()].concat(), "{style:?}");
        }
        let mut map = HeaderMap::new();
        in_style(HeaderStyle::Draft8, &login, &denials).write(&mut map);
        assert_eq!(lines(&map), written(&login, &denials));
    }

    #[test]
    fn the_unit_of_a_limit_is_named_unless_it_is_requests() {
        for (unit, policy) in [
            (Unit::Requests, "\"r\";q=9;w=60"),
            (Unit::Tokens, "\"r\";q=9;qu=\"tokens\";w=60"),
            (Unit::Money, "\"r\";q=9;qu=\"money\";w=60"),
        ] {
            let mut map = HeaderMap::new();
            headers(&rule("r", &["fixed-window 9/m"]).unit(unit), &[verdict(9, 1, 0)])
                .write(&mut map);
            assert_eq!(map[&RATELIMIT_POLICY], policy);
        }
    }

    #[test]
    fn clients_of_openai_read_the_tightest_limit_of_each_unit() {
        let rules = [
            rule("plain", &["60/m", "fixed-window 900/d", "concurrency 3"]),
            rule("tokens", &["fixed-window 100000/m", "fixed-window 150000/d"]).unit(Unit::Tokens),
            rule("spend", &["fixed-window 5/d"]).unit(Unit::Money),
        ];
        let limits: Vec<_> = rules.iter().flat_map(|rule| rule.limits()).collect();
        let verdicts = [
            verdict(60, 59, 1_000_000),
            verdict(900, 7, 12_000),
            verdict(3, 1, 0),
            verdict(100_000, 98_500, 60_000_000),
            verdict(150_000, 149_000, 86_399_000_001),
            verdict(5, 0, 1),
        ];
        let written = |verdicts: &[Verdict]| {
            let decision = Decision::new(Source::Memory, verdicts.into());
            let clock = ManualClock::new(Micros::ZERO);
            let style = HeaderStyle::OpenAi;
            RateLimitHeaders::in_style(style, &clock, &decision, limits.iter().copied())
        };
        let mut map = HeaderMap::new();
        written(&verdicts).write(&mut map);
        assert_eq!(
            lines(&map)[5..],
            [
                "x-ratelimit-limit-requests: 900",
                "x-ratelimit-remaining-requests: 7",
                "x-ratelimit-reset-requests: 12ms",
                "x-ratelimit-limit-tokens: 100000",
                "x-ratelimit-remaining-tokens: 98500",
                "x-ratelimit-reset-tokens: 1m0s",
            ]
        );
        // A denial by the day's tokens, although the minute has fewer left.
        let mut daily = verdicts;
        daily[3] = verdict(100_000, 400, 60_000_000);
        daily[4] = denied(150_000, Wait::For(Micros::from_secs(9)), 86_399_000_001);
        written(&daily).add(&mut map);
        assert_eq!(map["x-ratelimit-limit-tokens"], "150000");
        assert_eq!(map["x-ratelimit-reset-tokens"], "23h59m59.001s");
        assert_eq!(map["x-ratelimit-remaining-requests"], "7");
        assert_eq!(map.get_all("x-ratelimit-limit-tokens").iter().count(), 1);
        let mut map = HeaderMap::new();
        in_style(HeaderStyle::OpenAi, &rule("c", &["concurrency 3"]), &[verdict(3, 1, 0)])
            .write(&mut map);
        assert_eq!(map.len(), 5, "only those of the draft");
    }

    #[test]
    fn durations_are_written_as_openai_does() {
        for (micros, text) in [
            (0, "0s"),
            (1, "1ms"),
            (999_000, "999ms"),
            (999_001, "1s"),
            (8_640_000, "8.64s"),
            (360_000_000, "6m0s"),
            (3_600_000_000, "1h0m0s"),
            (90_061_500_000, "25h1m1.5s"),
        ] {
            assert_eq!(duration_text(Micros::new(micros)), text);
        }
    }

    #[test]
    fn in_older_styles_the_tighter_of_two_layers_is_described() {
        let (wide, tight) = (rule("wide", &["100/s"]), rule("tight", &["10/s"]));
        let of_wide = (&wide, verdict(100, 90, 1));
        let of_tight = (&tight, verdict(10, 3, 2_000_000));
        for (style, name, state) in [
            (HeaderStyle::Draft7, &RATELIMIT, "limit=10, remaining=3, reset=2"),
            (HeaderStyle::Draft6, &RATELIMIT_RESET, "2"),
            (HeaderStyle::Epoch, &X_RATELIMIT_RESET, "1700000002"),
        ] {
            for order in [[of_wide, of_tight], [of_tight, of_wide]] {
                let mut map = HeaderMap::new();
                for (rule, verdict) in order {
                    in_style(style, rule, &[verdict]).add(&mut map);
                }
                assert_eq!(map.get_all(name).iter().collect::<Vec<_>>(), [state], "{style:?}");
                let policies = if style == HeaderStyle::Epoch { 0 } else { 2 };
                assert_eq!(map.get_all(&RATELIMIT_POLICY).iter().count(), policies);
            }
        }
    }

    #[test]
    fn retry_after_comes_from_the_most_restrictive_limit() {
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
                "ratelimit-policy: \"login.1\";q=5;w=60, \"login.2\";q=100;w=86400, \
                 \"login.3\";q=3;qu=\"concurrent-requests\"",
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
    fn retry_after_is_at_least_one_second_and_missing_for_never() {
        let api = rule("api", &["10/s", "0/s"]);
        let wait = |micros| denied(10, Wait::For(Micros::new(micros)), 0);
        for (micros, seconds) in [(0, "1"), (1, "1"), (1_000_000, "1"), (1_000_001, "2")] {
            let mut map = HeaderMap::new();
            headers(&api, &[wait(micros)]).write(&mut map);
            assert_eq!(map[RETRY_AFTER], seconds, "{micros}");
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
    fn a_peek_has_no_retry_after() {
        let api = rule("api", &["10/s"]);
        let mut map = HeaderMap::new();
        headers(&api, &[denied(10, Wait::For(Micros::from_secs(2)), 0)]).write_limits(&mut map);
        assert_eq!(map.len(), 5);
        assert!(!map.contains_key(RETRY_AFTER) && !map.contains_key(CACHE_CONTROL));
    }

    #[test]
    fn a_window_is_written_only_if_it_is_whole_seconds() {
        for (limit, policy) in [
            ("100/s", "\"r\";q=100;w=1"),
            ("100/s burst 20", "\"r\";q=20;rate=100;per=1"),
            ("10/s burst 50", "\"r\";q=50;w=5;rate=10;per=1"),
            ("3/s burst 10", "\"r\";q=10;rate=3;per=1"),
            ("fixed-window 9/1500ms", "\"r\";q=9"),
            ("fixed-window 9/w", "\"r\";q=9;w=604800"),
            ("fixed-window 9/month", "\"r\";q=9"),
            ("concurrency 9", "\"r\";q=9;qu=\"concurrent-requests\""),
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
        let max = (1 << 52) - 1;
        let lines = written(&huge, &[verdict(max, max - 1, Micros::MAX.get())]);
        assert_eq!(lines[0], "ratelimit-policy: \"huge\";q=999999999999999;w=1");
        assert_eq!(lines[1], "ratelimit: \"huge\";r=999999999999999;t=9007199255");
        assert_eq!(lines[2], "x-ratelimit-limit: 4503599627370495");
    }

    #[test]
    fn existing_headers_are_replaced_and_kept_if_there_are_no_limits() {
        let mut map = HeaderMap::new();
        for name in [&RATELIMIT, &RATELIMIT, &X_RATELIMIT_LIMIT] {
            map.append(name, HeaderValue::from_static("old"));
        }
        let before = map.clone();
        let decision = Decision::new(Source::Memory, [verdict(5, 4, 0)].as_slice().into());
        RateLimitHeaders::new(&decision, []).write(&mut map);
        assert_eq!(map, before);
        headers(&rule("api", &["10/s"]), &[verdict(10, 4, 0)]).write(&mut map);
        assert_eq!(map.get_all(&RATELIMIT).iter().count(), 1);
        assert!(!lines(&map).iter().any(|line| line.contains("old")));
    }

    #[test]
    fn headers_of_two_layers_are_joined_and_x_headers_are_of_the_tighter_one() {
        let (wide, tight) = (rule("wide", &["100/s"]), rule("tight", &["10/s"]));
        let orders = [[(&wide, 100, 90), (&tight, 10, 3)], [(&tight, 10, 3), (&wide, 100, 90)]];
        for order in orders {
            let mut map = HeaderMap::new();
            for (rule, limit, remaining) in order {
                headers(rule, &[verdict(limit, remaining, 1)]).add(&mut map);
            }
            assert_eq!(map.get_all(&RATELIMIT).iter().count(), 2);
            assert_eq!(map.get_all(&RATELIMIT_POLICY).iter().count(), 2);
            assert_eq!(
                (&map[&X_RATELIMIT_LIMIT], &map[&X_RATELIMIT_REMAINING]),
                (&HeaderValue::from_static("10"), &HeaderValue::from_static("3"),)
            );
        }
    }

    #[test]
    fn a_long_list_is_written_whole() {
        let limits: Vec<String> = (1..=16).map(|n| format!("{n}/{n}s")).collect();
        let name = "n".repeat(64);
        let long = rule(&name, &limits.iter().map(String::as_str).collect::<Vec<_>>());
        let verdicts: Vec<_> = (1..=16).map(|n| verdict(n, n, 1)).collect();
        let lines = written(&long, &verdicts);
        let expected: Vec<_> = (1..=16).map(|n| format!("\"{name}.{n}\";r={n};t=1")).collect();
        assert_eq!(lines[1], format!("ratelimit: {}", expected.join(", ")));
        let expected: Vec<_> = (1..=16).map(|n| format!("\"{name}.{n}\";q={n};w={n}")).collect();
        assert_eq!(lines[0], format!("ratelimit-policy: {}", expected.join(", ")));
    }

    #[test]
    fn a_reduced_capacity_is_written_as_granted() {
        let login = rule("login", &["10/s"]);
        let policy = |limit| written(&login, &[verdict(limit, 1, 1)])[0].clone();
        assert_eq!(policy(10), "ratelimit-policy: \"login\";q=10;w=1");
        assert_eq!(policy(5), "ratelimit-policy: \"login\";q=5;w=1");
        assert_eq!(policy(10), "ratelimit-policy: \"login\";q=10;w=1");
    }

    #[test]
    fn limits_of_one_name_are_numbered() {
        let (api, many) = (rule("api", &["10/s"]), rule("many", &["5/s", "9/min"]));
        let limits = [api.limits(), many.limits(), api.limits(), many.limits()].concat();
        let verdicts: Vec<_> = [10, 5, 9, 10, 5, 9].map(|limit| verdict(limit, 1, 0)).into();
        let decision = Decision::new(Source::Memory, verdicts.as_slice().into());
        for _ in 0..2 {
            let mut map = HeaderMap::new();
            RateLimitHeaders::new(&decision, &limits).write(&mut map);
            assert_eq!(
                map[&RATELIMIT_POLICY],
                "\"api\";q=10;w=1, \"many.1\";q=5;w=1, \"many.2\";q=9;w=60, \
                 \"api#2\";q=10;w=1, \"many.1#2\";q=5;w=1, \"many.2#2\";q=9;w=60"
            );
            let names = ["api", "many.1", "many.2", "api#2", "many.1#2", "many.2#2"];
            let state = names.map(|name| format!("\"{name}\";r=1;t=0")).join(", ");
            assert_eq!(map[&RATELIMIT], state);
        }
    }

    #[test]
    fn a_name_with_special_characters_cannot_break_the_line() {
        let limit: tidegate::Limit = "10/s".parse().unwrap();
        for (name, printed) in [("a\r\nb", "a__b"), ("\"x\\", "_x_"), ("é", "_"), ("", "")] {
            let stored = Arc::new(RuleLimit::stored(name, name, "state", limit.clone()));
            let decision = Decision::new(Source::Memory, [verdict(10, 9, 0)].as_slice().into());
            let mut map = HeaderMap::new();
            RateLimitHeaders::new(&decision, [&stored]).write(&mut map);
            assert_eq!(map[&RATELIMIT], format!("\"{printed}\";r=9;t=0"));
        }
    }
}
