//! From a rule as it is written to one that can be used. All that is wrong with it is told.

use std::collections::HashMap;
use std::net::IpAddr;

use tidegate::policy::{Enforcement, Entry, Match, OnMissingKey, Override, Then};
use tidegate::policy::{KeyPart, PathPattern};
use tidegate::{Client, Network};
use tidegate::{InvalidRule, Key, Micros, PolicyRule, Rule, RuleDraft};

use super::canonical::canonical;
use super::file::OnStoreFailure;
use super::limits::{self, Fault};
use super::ratio::Ratio;
use super::rule_file::{MatchFile, MissingKey, OverrideFile, RuleFile};

/// What has become of a rule.
pub(super) struct Built {
    /// The rule, unless there are faults.
    pub(super) rule: Option<PolicyRule>,
    /// The rule as it would be written by the book.
    pub(super) file: RuleFile,
    pub(super) on_store_failure: Option<OnStoreFailure>,
    pub(super) fallback_ratio: Option<Ratio>,
    pub(super) faults: Vec<Fault>,
    pub(super) warnings: Vec<Fault>,
}

/// Makes a rule of what is written.
pub(super) fn build(written: &RuleFile) -> Built {
    let mut reader = Reader { faults: Vec::new(), warnings: Vec::new() };
    let draft = reader.draft(written);
    let fallback_ratio = written.fallback_ratio.and_then(|ratio| {
        let ratio = Ratio::new(ratio);
        if ratio.is_none() {
            reader.fault("fallback_ratio", "share", Ratio::ADVICE);
        }
        ratio
    });
    let lease = written.lease.and_then(|lease| {
        let size = lease.size();
        if size.is_none() {
            reader.fault("lease", "lease", "too small a lease; write auto or a number above 1");
        }
        size
    });
    let file = canonical(written, &draft);
    let mut rule = None;
    if reader.faults.is_empty() {
        match PolicyRule::new(draft) {
            Ok(built) => {
                rule = Some(match lease {
                    Some(size) => built.lease(size),
                    None => built,
                });
            }
            Err(error) => reader.fault("", "rule", error),
        }
    }
    let Reader { faults, warnings } = reader;
    let on_store_failure = written.on_store_failure;
    Built { rule, file, on_store_failure, fallback_ratio, faults, warnings }
}

/// The parts of a key; faults go by `field`.
pub(super) fn key_parts(texts: &[String], field: &str, faults: &mut Vec<Fault>) -> Vec<KeyPart> {
    if texts.len() > Key::MAX_PARTS {
        faults.push(Fault::new(field, "key", InvalidRule::KeyParts(texts.len())));
        return Vec::new();
    }
    let mut parts = Vec::with_capacity(texts.len());
    for (i, text) in texts.iter().enumerate() {
        let field = format!("{field}[{i}]");
        match text.parse::<KeyPart>() {
            Ok(part) if parts.contains(&part) => {
                faults.push(Fault::new(
                    &field,
                    "key",
                    format!("{part} is in the key twice; remove one"),
                ));
            }
            Ok(part) => parts.push(part),
            Err(error) => faults.push(Fault::new(&field, "key", error)),
        }
    }
    parts
}

/// The most headers that a rule may look at.
const MAX_HEADERS: usize = 64;

struct Reader {
    faults: Vec<Fault>,
    warnings: Vec<Fault>,
}

impl Reader {
    fn fault(&mut self, field: &str, what: &'static str, message: impl ToString) {
        if self.faults.len() < Fault::MOST {
            self.faults.push(Fault::new(field, what, message));
        }
    }

    fn draft(&mut self, written: &RuleFile) -> RuleDraft {
        self.name(&written.name);
        let limits = limits::read(&written.limits, "limits", &mut self.faults);
        let shadow_limits = limits::read(&written.shadow_limits, "shadow_limits", &mut self.faults);
        self.count(written);
        let matches = self.matches(&written.matches);
        let key = self.key(written, &matches);
        RuleDraft {
            name: written.name.clone(),
            on_missing_key: match written.on_missing_key.unwrap_or_default() {
                MissingKey::Shared => OnMissingKey::Shared,
                MissingKey::Deny => OnMissingKey::Deny,
                MissingKey::Skip => OnMissingKey::Skip,
            },
            enforcement: if written.shadow { Enforcement::Shadow } else { Enforcement::Enforce },
            then: if written.stop == Some(true) { Then::Stop } else { Then::Continue },
            cost_header: written.cost.as_deref().and_then(|cost| self.cost(cost)),
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
        // A rule without limits is refused for that, after its name has been looked at.
        if let Err(error @ InvalidRule::Name(_)) = Rule::new(name, []) {
            match name.char_indices().nth(64) {
                Some(_) => {
                    self.fault("name", "name", "the rule's name is longer than 64; shorten it")
                }
                None => self.fault("name", "name", error),
            }
        }
    }

    fn count(&mut self, written: &RuleFile) {
        let count = written.limits.len() + written.shadow_limits.len();
        if count == 0 {
            let message = "a rule needs a limit; write one like limits: [\"100/s\"]";
            self.fault("limits", "rule", message);
        } else if count > Rule::MAX_LIMITS {
            self.fault("limits", "rule", InvalidRule::LimitCount(count));
        }
    }

    fn matches(&mut self, written: &MatchFile) -> Match {
        let mut methods = Vec::new();
        for (i, method) in written.method.texts().iter().enumerate() {
            if is_token(method) {
                methods.push(method.to_ascii_uppercase().into());
            } else {
                let field = format!("match.{}", written.method.field("method", i));
                self.fault(&field, "method", "not a method; write one like GET or POST");
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
                self.fault(&field, "header", "not the name of a header; write one like x-plan");
            }
        }
        Match { methods, path, host, headers }
    }

    fn key(&mut self, written: &RuleFile, matches: &Match) -> Vec<KeyPart> {
        let texts = written.key.as_deref().unwrap_or(&[]);
        let parts = key_parts(texts, "key", &mut self.faults);
        if written.matches.path.is_some() && matches.path.is_none() {
            // Nobody knows which segments the path was meant to have.
            return parts;
        }
        for part in &parts {
            let KeyPart::Path(name) = part else { continue };
            if !matches.path.as_ref().is_some_and(|path| path.names(name)) {
                let place = texts.iter().position(|text| *text == part.to_string()).unwrap_or(0);
                let error = InvalidRule::NoSuchSegment(name.clone());
                self.fault(&format!("key[{place}]"), "key", error);
            }
        }
        parts
    }

    fn cost(&mut self, cost: &str) -> Option<Box<str>> {
        match cost.parse() {
            Ok(KeyPart::Header(name)) => Some(name),
            _ => {
                self.fault("cost", "cost", "the cost comes from a header; write header:x-cost");
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
                let message =
                    format!("an override for a key of {had}, but the rule's key has {has}");
                self.fault(&of_key, "key", message);
            } else if given == 0 {
                self.fault(&of_key, "key", "an override without a key; write the key it is for");
            } else if let Some(before) = first.insert(normal(one.key.texts(), key), i) {
                self.faults.push(
                    Fault::new(&of_key, "key", InvalidRule::DuplicateOverride)
                        .with_first(&format!("overrides[{before}].key")),
                );
            }
            if self.faults.len() >= Fault::MOST {
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
            let message = "an override needs a limit; to exempt the key, put it into allow";
            self.fault(&of_limits, "override", message);
        } else if count > Rule::MAX_LIMITS {
            self.fault(&of_limits, "override", InvalidRule::LimitCount(count));
        }
        let until = one.until.as_deref().and_then(|until| match instant(until) {
            Ok(until) => Some(until),
            Err(message) => {
                self.fault(&format!("{field}.until"), "time", message);
                None
            }
        });
        Override { key: one.key.texts().to_vec(), limits, until }
    }

    fn entries(&mut self, texts: &[String], list: &str, key: &[KeyPart]) -> Vec<Entry> {
        if texts.len() > PolicyRule::MAX_ENTRIES {
            self.fault(list, "list", InvalidRule::TooManyEntries(texts.len()));
            return Vec::new();
        }
        for (i, text) in texts.iter().enumerate() {
            let field = format!("{list}[{i}]");
            if text.is_empty() {
                self.fault(&field, "entry", "an empty entry; write a network or a key");
            }
            match text.parse::<Network>() {
                Ok(_) => {}
                // Taken for a key, it would never match, and nobody would know.
                Err(error) if looks_like_network(text) => self.fault(&field, "network", error),
                Err(_) if key.len() > 1 && self.warnings.len() < Fault::MOST => {
                    let message = format!(
                        "this can never match: it is no network, and the rule's key has {}",
                        counted(key.len(), "part")
                    );
                    self.warnings.push(Fault::new(&field, "entry", message));
                }
                Err(_) => {}
            }
        }
        texts.iter().map(|text| Entry::from(&**text)).collect()
    }
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// The parts of a key as requests have them.
fn normal(texts: &[String], key: &[KeyPart]) -> Vec<String> {
    let one = |(i, text): (usize, &String)| match key.get(i) {
        Some(KeyPart::ClientIp) => Client::key(text).into_owned(),
        _ => text.clone(),
    };
    texts.iter().enumerate().map(one).collect()
}

/// The name of a method or a header.
fn is_token(text: &str) -> bool {
    let is_tchar = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    (1..=256).contains(&text.len()) && text.bytes().all(is_tchar)
}

fn host_fault(host: &str) -> Option<&'static str> {
    let name = host.strip_prefix("*.").unwrap_or(host);
    if host.contains("://") || host.contains('/') {
        Some("a host is a name alone; leave out the scheme and the path")
    } else if name.contains('*') {
        Some("a * stands only in front; write *.example.com")
    } else if name.parse::<IpAddr>().is_ok() {
        None
    } else if name.contains(':') {
        Some("a host is a name alone; leave out the port")
    } else if name.is_empty() || name.len() > 253 || !name.split('.').all(is_label) {
        Some("not a host; write one like api.example.com or *.example.com")
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
    let four = host.split('.').all(numbers) && host.contains('.');
    let six =
        host.contains(':') && host.bytes().all(|b| b.is_ascii_hexdigit() || b":.%".contains(&b));
    host.parse::<IpAddr>().is_ok() || ((four || six) && prefix.bytes().all(|b| b.is_ascii_digit()))
}

fn instant(text: &str) -> Result<Micros, String> {
    let advice = "write one like 2027-01-01T00:00:00Z";
    let time: jiff::Timestamp = text.parse().map_err(|_| format!("not a time; {advice}"))?;
    let micros = u64::try_from(time.as_microsecond());
    let micros = micros.map_err(|_| format!("a time before 1970; {advice}"))?;
    if micros > Micros::MAX.get() {
        return Err("too far away; leave it out for an override that does not end".into());
    }
    Ok(Micros::new(micros))
}
