//! From files to a policy.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tidegate::policy::Warning;
use tidegate::{InvalidRule, Policy, PolicyRule};

use super::build::{self, Built};
use super::check::Checked;
use super::file::PolicyFile;
use super::fill::Filler;
use super::include::Frame;
use super::limits::Fault;
use super::place;
use super::problem::{self, Found, Problem, Problems};
use super::ratio::Ratio;
use super::rule_file::RuleFile;
use super::settings::Settings;
use super::shape::Shape;
use super::source::{SourceId, Sources, Span};
use super::surroundings::Surroundings;
use super::tree::{self, Entry, Kind, Node, Shown};
use super::yaml;
use super::{Config, Loaded, LoadedRule};

/// Reads a file and what it includes.
pub(super) fn file(path: &Path, surroundings: &dyn Surroundings) -> Result<Loaded, Problems> {
    let name = path.display().to_string();
    let files = vec![path.to_path_buf()];
    let refused =
        |message| Problems::of(Problem::of_file(&name, message)).with_files(files.clone());
    let bytes = surroundings
        .read(path, Config::MAX_BYTES)
        .map_err(|error| refused(format!("cannot be read: {error}")))?;
    if bytes.len() > Config::MAX_BYTES {
        return Err(refused(TOO_LONG.into()));
    }
    Loader::new(surroundings).load(path, &name, bytes)
}

/// Reads a text.
pub(super) fn text(
    name: &str,
    text: &str,
    surroundings: &dyn Surroundings,
) -> Result<Loaded, Problems> {
    if text.len() > Config::MAX_BYTES {
        return Err(Problems::of(Problem::of_file(name, TOO_LONG.into())));
    }
    Loader::new(surroundings).load(Path::new(name), name, text.into())
}

pub(super) const TOO_LONG: &str = "longer than 1 MiB; split it, and include the parts";

pub(super) struct Loader<'s> {
    pub(super) surroundings: &'s dyn Surroundings,
    filler: Filler<'s>,
    pub(super) sources: Sources,
    pub(super) found: Vec<Found>,
    warnings: Vec<Found>,
    pub(super) files: Vec<PathBuf>,
    /// Where each file was included.
    pub(super) included: HashMap<PathBuf, Option<Span>>,
    settings: Settings,
    rules: Vec<PlacedRule>,
    names: HashMap<String, Span>,
    rule_count: usize,
}

/// When so much is wrong, no more rules are looked at.
const MOST_FOUND: usize = 10_000;
/// Nobody reads more warnings.
const MOST_WARNINGS: usize = 1_000;

/// A rule, and the place of everything in it.
struct PlacedRule {
    built: Built,
    rule: PolicyRule,
    node: Node,
    field: String,
}

impl<'s> Loader<'s> {
    fn new(surroundings: &'s dyn Surroundings) -> Self {
        Self {
            surroundings,
            filler: Filler::new(surroundings),
            sources: Sources::default(),
            found: Vec::new(),
            warnings: Vec::new(),
            files: Vec::new(),
            included: HashMap::new(),
            settings: Settings::default(),
            rules: Vec::new(),
            names: HashMap::new(),
            rule_count: 0,
        }
    }

    fn load(mut self, path: &Path, name: &str, bytes: Vec<u8>) -> Result<Loaded, Problems> {
        let identity = self.surroundings.identity(path);
        self.included.insert(identity.clone(), None);
        let frame = Frame { path, name, identity, from: None, defaults: Vec::new() };
        let main = self.file(&frame, bytes);
        if self.rules.is_empty() && self.found.is_empty() {
            let start = Span { source: main, start: 0, end: 0 };
            let message = "there are no rules; nothing is limited";
            self.warnings.push(Found::new(start, "rules", message));
        }
        self.finish()
    }

    fn finish(self) -> Result<Loaded, Problems> {
        let Self { sources, found, mut warnings, files, settings, rules, .. } = self;
        if !found.is_empty() {
            return Err(Problems::new(found, &sources).with_files(files));
        }
        let mut places = HashMap::new();
        let mut loaded = Vec::with_capacity(rules.len());
        for PlacedRule { built, rule, node, field } in rules {
            places.insert(built.file.name.clone(), (node, field, loaded.len()));
            loaded.push(LoadedRule::new(built, rule, &settings));
        }
        let policy = Policy::new(loaded.iter().map(|one| one.rule.clone())).map_err(|error| {
            let problem = Problem::of_field(String::new(), error.to_string());
            Problems::of(problem).with_files(files.clone())
        })?;
        for warning in policy.warnings() {
            if matches!(warning, Warning::IdleEntry { .. }) {
                // Found already, with its place.
                continue;
            }
            let Some((node, field, place)) = places.get(warning.rule()) else { continue };
            let within = match warning {
                Warning::Concurrency { .. } => concurrency_field(&loaded[*place]),
                _ => "name".into(),
            };
            let (span, _) = place::of(node, &within, None);
            warnings.push(Found::new(span, &format!("{field}.{within}"), warning.to_string()));
        }
        let warnings = problem::warnings(warnings, &sources);
        Ok(Loaded { policy, rules: loaded, settings, files, warnings })
    }

    /// Reads one file and then those that it includes.
    pub(super) fn file(&mut self, frame: &Frame<'_>, bytes: Vec<u8>) -> SourceId {
        self.files.push(frame.path.to_path_buf());
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
                let source = self.sources.add(frame.name, text);
                let span = Span { source, start: at, end: at };
                self.found.push(Found::new(span, "", "not UTF-8; save the file as UTF-8"));
                return source;
            }
        };
        let source = self.sources.add(frame.name, text);
        let root = yaml::parse(source, &mut self.sources, &mut self.found);
        let Some(mut root) = root else { return source };
        self.filler.fill(&mut root, &mut self.found);
        match root.kind {
            Kind::Map(_) => self.root(frame, root),
            Kind::Nothing | Kind::Unknown => {}
            Kind::List(_) | Kind::Scalar(_) => {
                let message = "a policy is a map of fields; begin with rules:";
                self.found.push(Found::new(root.span, "", message));
            }
        }
        source
    }

    fn root(&mut self, frame: &Frame<'_>, root: Node) {
        let Kind::Map(entries) = root.kind else { return };
        let mut rules = Vec::new();
        let mut others = Vec::new();
        for entry in entries {
            match (&*entry.key, entry.value.kind) {
                ("rules", Kind::List(items)) => rules = items,
                (key, _) if frame.from.is_some() && belongs_in_main(key) => {
                    let message = format!(
                        "{key} belongs in the main file; an included one has rules, defaults \
                         and include"
                    );
                    self.found.push(Found::new(entry.key_span, key, message));
                }
                (_, kind) => others.push(Entry { value: Node { kind, ..entry.value }, ..entry }),
            }
        }
        let root = Node { span: root.span, kind: Kind::Map(others) };
        let (file, checked) = self.settings(frame, &root);
        let defaults = self.defaults(frame, &root, &file, &checked);
        self.found.extend(checked.found);
        for (i, node) in rules.into_iter().enumerate() {
            let field = format!("rules[{i}]");
            self.rule_count += 1;
            if self.rule_count > Policy::MAX_RULES {
                let message = InvalidRule::TooManyRules.to_string();
                self.found.push(Found::new(node.span, &field, message));
                break;
            }
            if self.found.len() >= MOST_FOUND {
                break;
            }
            self.rule(node, field, &defaults);
        }
        let frame = Frame { defaults, identity: frame.identity.clone(), ..*frame };
        if let Some(Node { kind: Kind::List(items), .. }) = root.get("include") {
            for (item, path) in items.iter().zip(&file.include) {
                self.include(&frame, item, path);
            }
        }
    }

    /// What stands beside the rules.
    fn settings(&mut self, frame: &Frame<'_>, root: &Node) -> (PolicyFile, Checked) {
        let mut checked = Checked::default();
        let value = checked.value(root, Shape::policy(), "");
        checked.secrets.drain(..).for_each(|span| self.sources.hide(span));
        let file: PolicyFile = serde_json::from_value(value).unwrap_or_else(|error| {
            checked.found.push(Found::new(root.span, "", error.to_string()));
            PolicyFile::default()
        });
        let mut faults = Vec::new();
        let folder = frame.path.parent().unwrap_or(Path::new(""));
        let settings = Settings::read(&file, folder, &mut faults);
        self.add_faults(faults, root, "", &checked);
        if frame.from.is_none() {
            self.settings = settings;
        }
        (file, checked)
    }

    /// What the rules of a file inherit: its own defaults, then those of the files around it.
    fn defaults(
        &mut self,
        frame: &Frame<'_>,
        root: &Node,
        file: &PolicyFile,
        checked: &Checked,
    ) -> Vec<Entry> {
        let own = file.defaults.clone().unwrap_or_default();
        let mut faults = Vec::new();
        build::key_parts(own.key.as_deref().unwrap_or(&[]), "defaults.key", &mut faults);
        if own.fallback_ratio.is_some_and(|ratio| Ratio::new(ratio).is_none()) {
            faults.push(Fault::new("defaults.fallback_ratio", "share", Ratio::ADVICE));
        }
        let is_good = |key: &str| {
            let field = format!("defaults.{key}");
            let is_about = |fault: &Fault| fault.field.starts_with(&field);
            !checked.is_broken(&field) && !faults.iter().any(is_about)
        };
        let mut entries = match root.get("defaults") {
            Some(Node { kind: Kind::Map(entries), .. }) => entries.clone(),
            _ => Vec::new(),
        };
        entries.retain(|entry| is_good(&entry.key));
        let mut inherited = frame.defaults.clone();
        // A field that is wrong here is not taken from further away either.
        let here = |key: &str| root.get("defaults").is_some_and(|own| own.get(key).is_some());
        inherited.retain(|entry| !here(&entry.key));
        entries.append(&mut inherited);
        self.add_faults(faults, root, "", checked);
        entries
    }

    fn rule(&mut self, mut node: Node, field: String, defaults: &[Entry]) {
        let mut checked = Checked::default();
        let Kind::Map(entries) = &mut node.kind else {
            checked.value(&node, Shape::rule(), &field);
            self.found.append(&mut checked.found);
            return;
        };
        for default in defaults {
            if entries.iter().all(|entry| entry.key != default.key) {
                entries.push(default.clone());
            }
        }
        let value = checked.value(&node, Shape::rule(), "");
        checked.secrets.drain(..).for_each(|span| self.sources.hide(span));
        let rule_field = |within: &str| match within {
            "" => field.clone(),
            _ => format!("{field}.{within}"),
        };
        let file: RuleFile = serde_json::from_value(value).unwrap_or_else(|error| {
            checked.found.push(Found::new(node.span, "", error.to_string()));
            RuleFile::default()
        });
        let mut built = build::build(&file);
        let before = self.found.len();
        self.add_faults(std::mem::take(&mut built.faults), &node, &field, &checked);
        let room = MOST_WARNINGS.saturating_sub(self.warnings.len());
        for fault in std::mem::take(&mut built.warnings).into_iter().take(room) {
            let (span, _) = place::of(&node, &fault.field, None);
            self.warnings.push(Found::new(span, &rule_field(&fault.field), fault.message));
        }
        let clean = self.found.len() == before && checked.found.is_empty();
        for found in checked.found {
            self.found.push(Found { field: rule_field(&found.field), ..found });
        }
        self.own_name(&file.name, &node, &field);
        if let Some(rule) = built.rule.take().filter(|_| clean) {
            self.rules.push(PlacedRule { built, rule, node, field });
        }
    }

    /// Tells if another rule has the name already.
    fn own_name(&mut self, name: &str, node: &Node, field: &str) {
        let Some(Node { span, kind: Kind::Scalar(scalar) }) = node.get("name") else { return };
        let Some(first) = self.names.get(name).and_then(|&first| self.sources.place(first)) else {
            self.names.insert(name.into(), *span);
            return;
        };
        let message = if scalar.shown == Shown::Filled {
            format!("with its variables filled in, this names the rule at {first} too; rename one")
        } else {
            format!("two rules named {}, the first at {first}; rename one", tree::Name(name))
        };
        self.found.push(Found::new(*span, &format!("{field}.name"), message));
    }

    /// Faults in their places, but for fields about which something has been said already.
    fn add_faults(&mut self, faults: Vec<Fault>, node: &Node, around: &str, checked: &Checked) {
        let news = faults.into_iter().filter(|fault| !checked.is_broken(&fault.field));
        let found = news.map(|fault| place::found(fault, node, around, &self.sources));
        self.found.extend(found);
    }
}

fn belongs_in_main(field: &str) -> bool {
    let goes_anywhere = ["rules", "defaults", "include"].contains(&field);
    !goes_anywhere && Shape::policy().field(field).is_some()
}

/// The field of the limit that counts holders.
fn concurrency_field(loaded: &LoadedRule) -> String {
    let limits = loaded.rule.rule().limits();
    let place = limits.iter().position(|limit| limit.limit().lease().is_some()).unwrap_or(0);
    match place.checked_sub(loaded.file.limits.len()) {
        None => format!("limits[{place}]"),
        Some(shadow) => format!("shadow_limits[{shadow}]"),
    }
}
