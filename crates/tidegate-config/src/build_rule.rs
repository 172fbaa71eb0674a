//! Builds a rule from its fields and reports all errors in them.

use std::collections::HashMap;
use std::net::IpAddr;

use tidegate::policy::{
    AfterMatch, Enforcement, KeyPart, ListEntry, Match, Override, PathPattern, PlanDraft,
};
use tidegate::{
    ClientNetwork, Clock, InvalidPlans, InvalidRule, Key, Limit, Micros, Network, PolicyRule, Rule,
    RuleDraft, SystemClock,
};

use crate::canonical::canonical;
use crate::errors::field_error::FieldError;
use crate::limits;
use crate::on_store_failure::OnStoreFailureSetting;
use crate::ratio::RatioSetting;
use crate::rule_file::{MatchFile, OverrideFile, RuleFile};

/// The result of building a rule.
pub(crate) struct BuiltRule {
    /// `None` if there are errors.
    pub(crate) rule: Option<PolicyRule>,
    /// The rule in canonical form.
    pub(crate) file: RuleFile,
    pub(crate) on_store_failure: Option<OnStoreFailureSetting>,
    pub(crate) fallback_ratio: Option<RatioSetting>,
    pub(crate) faults: Vec<FieldError>,
    pub(crate) warnings: Vec<FieldError>,
}

pub(crate) fn build(written: &RuleFile) -> BuiltRule {
    let mut reader = RuleReader { faults: Vec::new(), warnings: Vec::new() };
    let draft = reader.draft(written);
    let fallback_ratio =
        RatioSetting::read(written.fallback_ratio, "fallback_ratio", &mut reader.faults);
    let lease = written.lease.and_then(|lease| {
        let size = lease.size();
        if size.is_none() {
            reader.fault("lease", "lease", "lease too small; use auto or a number above 1");
        }
        size
    });
    let file = canonical(written, &draft);
    let mut rule = None;
    if reader.faults.is_empty() {
        match PolicyRule::new(draft) {
            Ok(mut built) => {
                if let Some(size) = lease {
                    built = built.lease(size);
                }
                if let Some(on_reserve) = written.reserve {
                    built = built.on_reserve(on_reserve);
                }
                if let Some(on_expiry) = written.on_expiry {
                    built = built.on_expiry(on_expiry.into());
                }
                rule = Some(built);
            }
            Err(error @ InvalidRule::Unit(..)) => reader.fault("unit", "unit", error),
            Err(error @ InvalidRule::Estimate { .. }) => {
                reader.fault("estimate", "estimate", error);
            }
            Err(error) => reader.fault("", "rule", error),
        }
    }
    let RuleReader { faults, warnings } = reader;
    let on_store_failure = written.on_store_failure;
    BuiltRule { rule, file, on_store_failure, fallback_ratio, faults, warnings }
}

/// Parses the parts of a key. `field` is the path of the list.
pub(crate) fn key_parts(
    texts: &[String],
    field: &str,
    faults: &mut Vec<FieldError>,
) -> Vec<KeyPart> {
    if texts.len() > Key::MAX_PARTS {
        faults.push(FieldError::new(field, "key", InvalidRule::KeyParts(texts.len())));
        return Vec::new();
    }
    let mut parts = Vec::with_capacity(texts.len());
    for (i, text) in texts.iter().enumerate() {
        let field = format!("{field}[{i}]");
        match text.parse::<KeyPart>() {
            Ok(part) if parts.contains(&part) => {
                faults.push(FieldError::new(
                    &field,
                    "key",
                    format!("duplicate key part {part}; remove one"),
                ));
            }
            Ok(part) => parts.push(part),
            Err(error) => faults.push(FieldError::new(&field, "key", error)),
        }
    }
    parts
}

/// Upper bound of the headers that a rule matches.
const MAX_HEADERS: usize = 64;

struct RuleReader {
    faults: Vec<FieldError>,
    warnings: Vec<FieldError>,
}

impl RuleReader {
    fn fault(&mut self, field: &str, what: &'static str, message: impl ToString) {
        if self.faults.len() < FieldError::MAX_PER_RULE {
            self.faults.push(FieldError::new(field, what, message));
        }
    }

    fn warn(&mut self, field: &str, what: &'static str, message: impl ToString) {
        if self.warnings.len() < FieldError::MAX_PER_RULE {
            self.warnings.push(FieldError::new(field, what, message));
        }
    }

    /// A repeated limit takes memory and denies nothing that the first does not.
    fn warn_of_repeated_limits(&mut self, limits: &[Limit]) {
        for (i, limit) in limits.iter().enumerate() {
            if let Some(first) = limits[..i].iter().position(|other| other == limit) {
                let message = format!("the same limit as limits[{first}] has no effect; remove it");
                self.warn(&format!("limits[{i}]"), "limit", message);
            }
        }
    }

    fn draft(&mut self, written: &RuleFile) -> RuleDraft {
        self.name(&written.name);
        let limits = limits::read(&written.limits, "limits", &mut self.faults);
        let shadow_limits = limits::read(&written.shadow_limits, "shadow_limits", &mut self.faults);
        self.warn_of_repeated_limits(&limits);
        self.count(written);
        let matches = self.matches(&written.matches);
        let key = self.key(written, &matches);
        RuleDraft {
            name: written.name.clone(),
            on_missing_key: written.on_missing_key.unwrap_or_default(),
            enforcement: if written.shadow { Enforcement::Shadow } else { Enforcement::Enforce },
            then: if written.stop == Some(true) { AfterMatch::Stop } else { AfterMatch::Continue },
            cost_header: written.cost.as_deref().and_then(|cost| self.header("cost", cost)),
            plans: self.plans(written),
            unit: written.unit,
            estimate: written.estimate.map(u64::from),
            overrides: self.overrides(written, &key),
            allow: self.entries(&written.allow, "allow", &key),
            deny: self.entries(&written.deny, "deny", &key),
            matches,
            key,
            limits,
            shadow_limits,
        }
    }

    fn name(&mut self, name: &str) {
        if [Rule::ADHOC, Rule::THROTTLE].contains(&name) {
            return self.fault("name", "name", InvalidRule::Reserved(name.into()));
        }
        // Checks the name only: a rule without limits is refused after its name was checked.
        if let Err(error @ InvalidRule::Name(_)) = Rule::new(name, []) {
            match name.char_indices().nth(64) {
                Some(_) => {
                    self.fault("name", "name", "rule name longer than 64 characters; shorten it")
                }
                None => self.fault("name", "name", error),
            }
        }
    }

    fn plans(&mut self, written: &RuleFile) -> Option<PlanDraft> {
        let settings = [("plan", &written.plan), ("default_plan", &written.default_plan)];
        if written.plans.is_empty() {
            for (field, _) in settings.iter().filter(|(_, given)| given.is_some()) {
                let message =
                    format!("{field} has no effect without plans; add plans or remove it");
                self.fault(field, field, message);
            }
            return None;
        }
        let before = self.faults.len();
        let read = |(name, texts): (&String, &Vec<String>)| {
            let field = format!("plans.{name}");
            (name.as_str().into(), limits::read(texts, &field, &mut self.faults))
        };
        let plans = written.plans.iter().take(PlanDraft::MAX_PLANS + 1).map(read).collect();
        let draft = PlanDraft {
            plans,
            default_plan: written.default_plan.as_deref().unwrap_or_default().into(),
            header: written.plan.as_deref().and_then(|plan| self.header("plan", plan)),
        };
        if !written.limits.is_empty() {
            self.fault("limits", "limits", InvalidPlans::LimitsToo);
        } else if self.faults.len() == before
            && let Err(error) = draft.check()
        {
            let (field, what) = match &error {
                InvalidPlans::Name(name) => (format!("plans.{name}"), "plan name"),
                InvalidPlans::Algorithms { plan, .. } => (format!("plans.{plan}"), "plan"),
                InvalidPlans::Default(_) => ("default_plan".into(), "plan"),
                _ => ("plans".into(), "plans"),
            };
            self.fault(&field, what, error);
        }
        Some(draft)
    }

    fn count(&mut self, written: &RuleFile) {
        for (name, limits) in &written.plans {
            let (field, count) = (format!("plans.{name}"), limits.len());
            if count == 0 {
                self.fault(&field, "plan", "a plan needs at least one limit, for example 100/s");
            } else if count + written.shadow_limits.len() > Rule::MAX_LIMITS {
                let count = count + written.shadow_limits.len();
                self.fault(&field, "plan", InvalidRule::LimitCount(count));
            }
        }
        if !written.plans.is_empty() {
            return;
        }
        let count = written.limits.len() + written.shadow_limits.len();
        if count == 0 {
            let message = "a rule needs at least one limit, for example limits: [\"100/s\"]";
            self.fault("limits", "rule", message);
        } else if count > Rule::MAX_LIMITS {
            self.fault("limits", "rule", InvalidRule::LimitCount(count));
        }
    }

    fn matches(&mut self, written: &MatchFile) -> Match {
        let mut methods = Vec::new();
        for (i, method) in written.method.texts().iter().enumerate() {
            // HTTP allows a bar in a method, but no method has one: a list is meant.
            if is_token(method) && !method.contains('|') {
                methods.push(method.to_ascii_uppercase().into());
            } else {
                let field = format!("match.{}", written.method.field("method", i));
                self.fault(&field, "method", method_fault(method));
            }
        }
        let path = written.path.as_deref().and_then(|path| match path.parse::<PathPattern>() {
            Ok(path) => Some(path),
            Err(error) => {
                self.fault("match.path", "path", error);
                None
            }
        });
        let host = written.host.as_deref().and_then(|host| match host_fault(host) {
            None => Some(host.to_ascii_lowercase().into()),
            Some(message) => {
                self.fault("match.host", "host", message);
                None
            }
        });
        let mut headers = Vec::new();
        if written.header.len() > MAX_HEADERS {
            let message = format!("{} headers; use at most {MAX_HEADERS}", written.header.len());
            self.fault("match.header", "header", message);
        }
        for (name, value) in &written.header {
            if is_token(name) {
                headers.push((name.to_ascii_lowercase().into(), value.as_str().into()));
            } else {
                let field = format!("match.header.{name}");
                self.fault(&field, "header", "invalid header name; expected one like x-plan");
            }
        }
        Match { methods, path, host, headers }
    }

    fn key(&mut self, written: &RuleFile, matches: &Match) -> Vec<KeyPart> {
        let texts = written.key.as_deref().unwrap_or(&[]);
        let parts = key_parts(texts, "key", &mut self.faults);
        if written.matches.path.is_some() && matches.path.is_none() {
            // The path is invalid, so its segments are unknown.
            return parts;
        }
        for part in &parts {
            let KeyPart::Path(name) = part else { continue };
            if !matches.path.as_ref().is_some_and(|path| path.names(name)) {
                let index = texts.iter().position(|text| *text == part.to_string()).unwrap_or(0);
                let error = InvalidRule::NoSuchSegment(name.clone());
                self.fault(&format!("key[{index}]"), "key", error);
            }
        }
        parts
    }

    /// The name of the header that `field` refers to.
    fn header(&mut self, field: &'static str, written: &str) -> Option<Box<str>> {
        match written.parse() {
            Ok(KeyPart::Header(name)) => Some(name),
            _ => {
                let message = format!("{field} must be header:NAME, for example header:x-{field}");
                self.fault(field, field, message);
                None
            }
        }
    }

    fn overrides(&mut self, written: &RuleFile, key: &[KeyPart]) -> Vec<Override> {
        if written.overrides.len() > PolicyRule::MAX_ENTRIES {
            let error = InvalidRule::TooManyEntries(written.overrides.len());
            self.fault("overrides", "list", error);
            return Vec::new();
        }
        let mut first: HashMap<Vec<String>, usize> = HashMap::new();
        let mut overrides = Vec::with_capacity(written.overrides.len());
        for (i, one) in written.overrides.iter().enumerate() {
            let field = format!("overrides[{i}]");
            overrides.push(self.one_override(one, &field, written));
            let of_key = format!("{field}.key");
            let given = one.key.texts().len();
            let needed = written.key.as_ref().map_or(0, Vec::len);
            if needed != 0 && given != needed {
                let (had, has) = (counted(given, "part"), counted(needed, "part"));
                let message = format!("the override's key has {had}, but the rule's key has {has}");
                self.fault(&of_key, "key", message);
            } else if given == 0 {
                self.fault(&of_key, "key", "an override needs a key");
            } else if let Some(before) = first.insert(normal(one.key.texts(), key), i) {
                self.faults.push(
                    FieldError::new(&of_key, "key", InvalidRule::DuplicateOverride)
                        .with_first(&format!("overrides[{before}].key")),
                );
            }
            if self.faults.len() >= FieldError::MAX_PER_RULE {
                break;
            }
        }
        overrides
    }

    fn one_override(&mut self, one: &OverrideFile, field: &str, written: &RuleFile) -> Override {
        let of_limits = format!("{field}.limits");
        let limits = limits::read(&one.limits, &of_limits, &mut self.faults);
        let count = one.limits.len() + written.shadow_limits.len();
        if one.limits.is_empty() {
            let message = "an override needs a limit; to exempt the key, add it to allow";
            self.fault(&of_limits, "override", message);
        } else if count > Rule::MAX_LIMITS {
            self.fault(&of_limits, "override", InvalidRule::LimitCount(count));
        }
        let until = one.until.as_deref().and_then(|until| match instant(until) {
            Ok(end) => {
                if end <= SystemClock.now() {
                    let message = "this override has ended; remove it, or set a later time";
                    self.warn(&format!("{field}.until"), "time", message);
                }
                Some(end)
            }
            Err(message) => {
                self.fault(&format!("{field}.until"), "time", message);
                None
            }
        });
        Override { key: one.key.texts().to_vec(), limits, until }
    }

    fn entries(&mut self, texts: &[String], list: &str, key: &[KeyPart]) -> Vec<ListEntry> {
        if texts.len() > PolicyRule::MAX_ENTRIES {
            self.fault(list, "list", InvalidRule::TooManyEntries(texts.len()));
            return Vec::new();
        }
        for (i, text) in texts.iter().enumerate() {
            let field = format!("{list}[{i}]");
            if text.is_empty() {
                self.fault(&field, "entry", "empty entry; expected a network or a key");
            }
            match text.parse::<Network>() {
                Ok(_) => {}
                // As a key it would never match, without any error.
                Err(error) if looks_like_network(text) => self.fault(&field, "network", error),
                Err(_) if key.len() > 1 => {
                    let message = format!(
                        "never matches: not a network, and the rule's key has {}",
                        counted(key.len(), "part")
                    );
                    self.warn(&field, "entry", message);
                }
                Err(_) => {}
            }
        }
        texts.iter().map(|text| ListEntry::from(&**text)).collect()
    }
}

/// Several methods in one text are a list.
fn method_fault(method: &str) -> String {
    let parts: Vec<&str> = method.split(['|', ',']).filter(|part| !part.is_empty()).collect();
    match parts.len() > 1 && parts.iter().all(|part| is_token(part)) {
        true => format!("a method is one word; write [{}] for several", parts.join(", ")),
        false => "invalid method; expected one like GET or POST".into(),
    }
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// The parts of a key as they are counted: client addresses as their network.
fn normal(texts: &[String], key: &[KeyPart]) -> Vec<String> {
    let one = |(i, text): (usize, &String)| match key.get(i) {
        Some(KeyPart::ClientIp) => ClientNetwork::key_of(text).into_owned(),
        _ => text.clone(),
    };
    texts.iter().enumerate().map(one).collect()
}

/// Whether `text` can be the name of a method or a header.
fn is_token(text: &str) -> bool {
    let is_tchar = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    (1..=256).contains(&text.len()) && text.bytes().all(is_tchar)
}

fn host_fault(host: &str) -> Option<&'static str> {
    let name = host.strip_prefix("*.").unwrap_or(host);
    if host.contains("://") || host.contains('/') {
        Some("host must be a name; remove the scheme and the path")
    } else if name.contains('*') {
        Some("* is allowed only as the first label, for example *.example.com")
    } else if name.parse::<IpAddr>().is_ok() {
        None
    } else if name.contains(':') {
        Some("host must be a name; remove the port")
    } else if name.is_empty() || name.len() > 253 || !name.split('.').all(is_label) {
        Some("invalid host; expected one like api.example.com or *.example.com")
    } else {
        None
    }
}

fn is_label(label: &str) -> bool {
    !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
}

fn looks_like_network(text: &str) -> bool {
    let Some((host, prefix)) = text.split_once('/') else { return false };
    let numbers = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let ipv4 = host.split('.').all(numbers) && host.contains('.');
    let ipv6 =
        host.contains(':') && host.bytes().all(|b| b.is_ascii_hexdigit() || b":.%".contains(&b));
    host.parse::<IpAddr>().is_ok() || ((ipv4 || ipv6) && prefix.bytes().all(|b| b.is_ascii_digit()))
}

fn instant(text: &str) -> Result<Micros, String> {
    let advice = "use RFC 3339, for example 2027-01-01T00:00:00Z";
    let time: jiff::Timestamp = text.parse().map_err(|_| format!("invalid time; {advice}"))?;
    let micros = u64::try_from(time.as_microsecond());
    let micros = micros.map_err(|_| format!("time before 1970; {advice}"))?;
    if micros > Micros::MAX.get() {
        return Err("time out of range; omit it for an override without an end".into());
    }
    Ok(Micros::new(micros))
}
