//! Loads policy files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tidegate::policy::Warning;
use tidegate::{InvalidRule, Policy, PolicyRule};

use crate::build_rule::{self, BuiltRule};
use crate::environment::{Environment, IsolatedEnvironment, OsEnvironment};
use crate::errors::field_error::FieldError;
use crate::errors::problem::{self, Finding, Problem, Problems};
use crate::errors::sources::{SourceFiles, SourceId, SourceSpan, escaped};
use crate::include::{self, IncludeFrame};
use crate::loaded_policy::{LoadedPolicy, LoadedRule};
use crate::parse::check::CheckedTree;
use crate::parse::expected::ExpectedType;
use crate::parse::tree::{MapEntry, NodeKind, QuotedText, Visibility, YamlNode};
use crate::parse::{locate, yaml};
use crate::policy_file::PolicyFile;
use crate::ratio::RatioSetting;
use crate::rule_file::RuleFile;
use crate::settings::ServerSettings;
use crate::variables::Substitution;

/// Loads policy files.
#[derive(Clone, Copy, Debug)]
pub struct PolicyLoader;

impl PolicyLoader {
    /// Upper bound of the size of one file, in bytes.
    pub const MAX_BYTES: usize = 1 << 20;
    /// Upper bound of the files of one policy.
    pub const MAX_FILES: usize = include::MAX_FILES;
    /// Upper bound of the nesting of includes.
    pub const MAX_INCLUDES: usize = include::MAX_INCLUDES;

    /// Loads a file and the files that it includes. Variables come from the process environment.
    pub fn load(path: impl AsRef<Path>) -> Result<LoadedPolicy, Problems> {
        Self::load_from(path, &OsEnvironment)
    }

    /// Loads a policy from text, which cannot include files or use variables. Messages show `name`
    /// as the file.
    pub fn load_str(name: &str, text: &str) -> Result<LoadedPolicy, Problems> {
        if text.len() > Self::MAX_BYTES {
            return Err(Problems::of(Problem::of_file(name, TOO_LONG.into())));
        }
        FileLoader::new(&IsolatedEnvironment).load(Path::new(name), name, text.into())
    }

    /// Like [`load`](Self::load), with files and variables from `environment`.
    pub fn load_from(
        path: impl AsRef<Path>,
        environment: &dyn Environment,
    ) -> Result<LoadedPolicy, Problems> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let files = vec![path.to_path_buf()];
        let refused =
            |message| Problems::of(Problem::of_file(&name, message)).with_files(files.clone());
        let bytes = environment
            .read(path, Self::MAX_BYTES)
            .map_err(|error| refused(format!("cannot be read: {error}")))?;
        if bytes.len() > Self::MAX_BYTES {
            return Err(refused(TOO_LONG.into()));
        }
        FileLoader::new(environment).load(path, &name, bytes)
    }
}

const TOO_LONG: &str = "file larger than 1 MiB; split it and use include";

/// State while the files of one policy are loaded.
struct FileLoader<'s> {
    environment: &'s dyn Environment,
    variables: Substitution<'s>,
    sources: SourceFiles,
    found: Vec<Finding>,
    warnings: Vec<Finding>,
    files: Vec<PathBuf>,
    /// Files by their identity, and where each was included.
    included: HashMap<PathBuf, Option<SourceSpan>>,
    settings: ServerSettings,
    rules: Vec<LocatedRule>,
    names: HashMap<String, SourceSpan>,
    rule_count: usize,
    /// Whether a file has a list of rules, which may be empty.
    lists_rules: bool,
}

/// Rules after so many errors are not checked.
const MAX_FINDINGS: usize = 10_000;
/// Upper bound of the warnings that are collected.
const MAX_WARNINGS: usize = 1_000;

/// A rule with its tree, for positions.
struct LocatedRule {
    built: BuiltRule,
    rule: PolicyRule,
    node: YamlNode,
    field: String,
}

impl<'s> FileLoader<'s> {
    fn new(environment: &'s dyn Environment) -> Self {
        Self {
            environment,
            variables: Substitution::new(environment),
            sources: SourceFiles::default(),
            found: Vec::new(),
            warnings: Vec::new(),
            files: Vec::new(),
            included: HashMap::new(),
            settings: ServerSettings::default(),
            rules: Vec::new(),
            names: HashMap::new(),
            rule_count: 0,
            lists_rules: false,
        }
    }

    fn load(mut self, path: &Path, name: &str, bytes: Vec<u8>) -> Result<LoadedPolicy, Problems> {
        let identity = self.environment.identity(path);
        self.included.insert(identity.clone(), None);
        let frame = IncludeFrame { path, name, identity, from: None, defaults: Vec::new() };
        let main = self.file(&frame, bytes);
        if self.rules.is_empty() && self.found.is_empty() {
            let start = SourceSpan { source: main, start: 0, end: 0 };
            if self.lists_rules {
                let message = "no rules: nothing is limited";
                self.warnings.push(Finding::new(start, "rules", message));
            } else {
                // Most likely a file that was truncated, or is being written.
                let message = "no rules: nothing would be limited; if that is intended, write \
                               rules: []";
                self.found.push(Finding::new(start, "rules", message));
            }
        }
        self.finish()
    }

    fn finish(self) -> Result<LoadedPolicy, Problems> {
        let Self { sources, found, mut warnings, files, settings, rules, .. } = self;
        if !found.is_empty() {
            return Err(Problems::new(found, &sources).with_files(files));
        }
        let mut nodes = HashMap::new();
        let mut loaded = Vec::with_capacity(rules.len());
        for LocatedRule { built, rule, node, field } in rules {
            nodes.insert(built.file.name.clone(), (node, field, loaded.len()));
            loaded.push(LoadedRule::new(built, rule, &settings));
        }
        let policy = Policy::new(loaded.iter().map(|one| one.rule.clone())).map_err(|error| {
            let problem = Problem::of_field(String::new(), error.to_string());
            Problems::of(problem).with_files(files.clone())
        })?;
        for warning in policy.warnings() {
            if matches!(warning, Warning::IdleEntry { .. }) {
                // Reported while the rule was built, with its position.
                continue;
            }
            let Some((node, field, index)) = nodes.get(warning.rule()) else { continue };
            let within = match warning {
                Warning::Concurrency { .. } => concurrency_field(&loaded[*index]),
                _ => "name".into(),
            };
            let (span, _) = locate::of(node, &within, None);
            warnings.push(Finding::new(span, &format!("{field}.{within}"), warning.to_string()));
        }
        let warnings = problem::warnings(warnings, &sources);
        Ok(LoadedPolicy { policy, rules: loaded, settings, files, warnings })
    }

    /// Parses one file, then the files that it includes.
    fn file(&mut self, frame: &IncludeFrame<'_>, bytes: Vec<u8>) -> SourceId {
        self.files.push(frame.path.to_path_buf());
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
                let source = self.sources.add(frame.name, text);
                let span = SourceSpan { source, start: at, end: at };
                self.found.push(Finding::new(span, "", "not UTF-8; save the file as UTF-8"));
                return source;
            }
        };
        let source = self.sources.add(frame.name, text);
        let errors = self.found.len();
        let root = yaml::parse(source, &mut self.sources, &mut self.found);
        let is_empty = self.found.len() == errors && root.as_ref().is_none_or(YamlNode::is_nothing);
        if is_empty && frame.from.is_some() {
            let message = "empty file; if it has no rules yet, write rules: []";
            let start = SourceSpan { source, start: 0, end: 0 };
            self.found.push(Finding::new(start, "rules", message));
        }
        let Some(mut root) = root else { return source };
        self.variables.fill(&mut root, &mut self.found);
        match root.kind {
            NodeKind::Map(_) => self.root(frame, root),
            NodeKind::Nothing | NodeKind::Unknown => {}
            NodeKind::List(_) | NodeKind::Scalar(_) => {
                let message = "a policy must be a map; start with rules:";
                self.found.push(Finding::new(root.span, "", message));
            }
        }
        source
    }

    fn root(&mut self, frame: &IncludeFrame<'_>, root: YamlNode) {
        let NodeKind::Map(entries) = root.kind else { return };
        let mut rules = Vec::new();
        let mut others = Vec::new();
        for entry in entries {
            match (&*entry.key, entry.value.kind) {
                ("rules", NodeKind::List(items)) => {
                    self.lists_rules = true;
                    rules = items;
                }
                (key, _) if frame.from.is_some() && belongs_in_main(key) => {
                    let message = format!(
                        "{key} is only allowed in the main file; included files may have rules, \
                         defaults and include"
                    );
                    self.found.push(Finding::new(entry.key_span, key, message));
                }
                (_, kind) => {
                    others.push(MapEntry { value: YamlNode { kind, ..entry.value }, ..entry })
                }
            }
        }
        let root = YamlNode { span: root.span, kind: NodeKind::Map(others) };
        let (file, checked) = self.settings(frame, &root);
        let defaults = self.defaults(frame, &root, &file, &checked);
        self.found.extend(checked.found);
        for (i, node) in rules.into_iter().enumerate() {
            let field = format!("rules[{i}]");
            self.rule_count += 1;
            if self.rule_count > Policy::MAX_RULES {
                let message = InvalidRule::TooManyRules.to_string();
                self.found.push(Finding::new(node.span, &field, message));
                break;
            }
            if self.found.len() >= MAX_FINDINGS {
                break;
            }
            self.rule(node, field, &defaults);
        }
        let frame = IncludeFrame { defaults, identity: frame.identity.clone(), ..*frame };
        if let Some(YamlNode { kind: NodeKind::List(items), .. }) = root.get("include") {
            for (item, path) in items.iter().zip(&file.include) {
                self.include(&frame, item, path);
            }
        }
    }

    /// Loads a file that another file includes.
    fn include(&mut self, frame: &IncludeFrame<'_>, item: &YamlNode, written: &str) {
        let NodeKind::Scalar(scalar) = &item.kind else { return };
        let path = frame.path.parent().unwrap_or(Path::new("")).join(written);
        let name = include::shown_name(&path, scalar, item.span, &self.sources);
        let identity = self.environment.identity(&path);
        let files = self.files.len();
        let error = frame.include_error(&identity, &name, &self.included, files, &self.sources);
        if let Some(message) = error {
            self.found.push(Finding::new(item.span, "include", message));
            return;
        }
        self.included.insert(identity.clone(), Some(item.span));
        let bytes = match self.environment.read(&path, PolicyLoader::MAX_BYTES) {
            Ok(bytes) if bytes.len() > PolicyLoader::MAX_BYTES => Err(TOO_LONG.to_string()),
            Ok(bytes) => Ok(bytes),
            Err(error) => Err(format!("cannot be read: {error}")),
        };
        match bytes {
            Ok(bytes) => {
                let defaults = frame.defaults.clone();
                let from = Some(frame);
                self.file(
                    &IncludeFrame { path: &path, name: &name, identity, from, defaults },
                    bytes,
                );
            }
            Err(message) => {
                self.files.push(path);
                let message = format!("{}: {message}", escaped(&name));
                self.found.push(Finding::new(item.span, "include", message));
            }
        }
    }

    /// The fields other than `rules`, and their errors.
    fn settings(&mut self, frame: &IncludeFrame<'_>, root: &YamlNode) -> (PolicyFile, CheckedTree) {
        let mut checked = CheckedTree::default();
        let value = checked.value(root, ExpectedType::policy(), "");
        checked.secrets.drain(..).for_each(|span| self.sources.hide(span));
        let file: PolicyFile = serde_json::from_value(value).unwrap_or_else(|error| {
            checked.found.push(Finding::new(root.span, "", error.to_string()));
            PolicyFile::default()
        });
        let mut faults = Vec::new();
        let folder = frame.path.parent().unwrap_or(Path::new(""));
        let settings = ServerSettings::read(&file, folder, &mut faults);
        self.add_faults(faults, root, "", &checked);
        if frame.from.is_none() {
            self.settings = settings;
        }
        (file, checked)
    }

    /// The defaults for the rules of a file: its own, then those of the files that include it.
    fn defaults(
        &mut self,
        frame: &IncludeFrame<'_>,
        root: &YamlNode,
        file: &PolicyFile,
        checked: &CheckedTree,
    ) -> Vec<MapEntry> {
        let own = file.defaults.clone().unwrap_or_default();
        let mut faults = Vec::new();
        build_rule::key_parts(own.key.as_deref().unwrap_or(&[]), "defaults.key", &mut faults);
        RatioSetting::read(own.fallback_ratio, "defaults.fallback_ratio", &mut faults);
        let is_valid = |key: &str| {
            let field = format!("defaults.{key}");
            let is_about = |fault: &FieldError| fault.field.starts_with(&field);
            !checked.is_broken(&field) && !faults.iter().any(is_about)
        };
        let mut entries = match root.get("defaults") {
            Some(YamlNode { kind: NodeKind::Map(entries), .. }) => entries.clone(),
            _ => Vec::new(),
        };
        entries.retain(|entry| is_valid(&entry.key));
        let mut inherited = frame.defaults.clone();
        // An invalid default is not replaced by one of a file further up.
        let here = |key: &str| root.get("defaults").is_some_and(|own| own.get(key).is_some());
        inherited.retain(|entry| !here(&entry.key));
        entries.append(&mut inherited);
        self.add_faults(faults, root, "", checked);
        entries
    }

    fn rule(&mut self, mut node: YamlNode, field: String, defaults: &[MapEntry]) {
        let mut checked = CheckedTree::default();
        let NodeKind::Map(entries) = &mut node.kind else {
            checked.value(&node, ExpectedType::rule(), &field);
            self.found.append(&mut checked.found);
            return;
        };
        for default in defaults {
            if entries.iter().all(|entry| entry.key != default.key) {
                entries.push(default.clone());
            }
        }
        let value = checked.value(&node, ExpectedType::rule(), "");
        checked.secrets.drain(..).for_each(|span| self.sources.hide(span));
        let rule_field = |within: &str| match within {
            "" => field.clone(),
            _ => format!("{field}.{within}"),
        };
        let file: RuleFile = serde_json::from_value(value).unwrap_or_else(|error| {
            checked.found.push(Finding::new(node.span, "", error.to_string()));
            RuleFile::default()
        });
        let mut built = build_rule::build(&file);
        let before = self.found.len();
        self.add_faults(std::mem::take(&mut built.faults), &node, &field, &checked);
        let room = MAX_WARNINGS.saturating_sub(self.warnings.len());
        for fault in std::mem::take(&mut built.warnings).into_iter().take(room) {
            let (span, _) = locate::of(&node, &fault.field, None);
            self.warnings.push(Finding::new(span, &rule_field(&fault.field), fault.message));
        }
        let clean = self.found.len() == before && checked.found.is_empty();
        for found in checked.found {
            self.found.push(Finding { field: rule_field(&found.field), ..found });
        }
        self.check_name(&file.name, &node, &field);
        if let Some(rule) = built.rule.take().filter(|_| clean) {
            self.rules.push(LocatedRule { built, rule, node, field });
        }
    }

    /// Reports a name that another rule has already.
    fn check_name(&mut self, name: &str, node: &YamlNode, field: &str) {
        let Some(YamlNode { span, kind: NodeKind::Scalar(scalar) }) = node.get("name") else {
            return;
        };
        let Some(first) = self.names.get(name).and_then(|&first| self.sources.place(first)) else {
            self.names.insert(name.into(), *span);
            return;
        };
        let message = if scalar.shown == Visibility::Filled {
            format!("after substitution this has the same name as the rule at {first}; rename one")
        } else {
            format!("duplicate rule {}, first defined at {first}; rename one", QuotedText(name))
        };
        self.found.push(Finding::new(*span, &format!("{field}.name"), message));
    }

    /// Adds errors with their position, except for fields with an error already.
    fn add_faults(
        &mut self,
        faults: Vec<FieldError>,
        node: &YamlNode,
        around: &str,
        checked: &CheckedTree,
    ) {
        let new = faults.into_iter().filter(|fault| !checked.is_broken(&fault.field));
        let found = new.map(|fault| locate::found(fault, node, around, &self.sources));
        self.found.extend(found);
    }
}

/// Whether the field is not allowed in included files.
fn belongs_in_main(field: &str) -> bool {
    let is_allowed = ["rules", "defaults", "include"].contains(&field);
    !is_allowed && ExpectedType::policy().field(field).is_some()
}

/// The path of the first concurrency limit.
fn concurrency_field(loaded: &LoadedRule) -> String {
    let limits = loaded.rule.rule().limits();
    let index = limits.iter().position(|limit| limit.limit().lease().is_some()).unwrap_or(0);
    let default = loaded.file.default_plan.as_ref();
    let planned = default.and_then(|name| Some((name, loaded.file.plans.get(name)?.len())));
    match index.checked_sub(planned.map_or(loaded.file.limits.len(), |(_, count)| count)) {
        None => match planned {
            Some((name, _)) => format!("plans.{name}[{index}]"),
            None => format!("limits[{index}]"),
        },
        Some(shadow) => format!("shadow_limits[{shadow}]"),
    }
}
