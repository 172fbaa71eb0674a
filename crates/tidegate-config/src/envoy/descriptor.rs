//! Parses descriptors.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tidegate::{InvalidRule, Limit, Rule};

use super::config::EnvoyConfig;
use super::descriptor_limit::DescriptorLimit;
use super::diagnostics::Diagnostics;
use super::fields::{ChargeMode, FieldLevel, LocatedFields};
use super::inherit::Inherited;
use super::lookup::{DescriptorLevel, DescriptorNode, is_wildcard};
use super::rate_limit::{self, ParsedLimit};
use super::reservation::EnvoyReservation;
use super::rlqs;
use super::rule_name::DescriptorPath;
use super::unit::EnvoyWindows;
use crate::errors::sources::{SourceFiles, SourceSpan};
use crate::parse::tree::{QuotedText, YamlNode};

/// Fields that have no effect without a limit.
const LIMIT_FIELDS: [&str; 9] = [
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "metadata",
    "charge",
    "estimate",
    "reservation_ttl",
    "on_expiry",
    "rlqs",
];

/// Parses the descriptors of all files.
#[derive(Default, Debug)]
pub(crate) struct DescriptorReader {
    /// Which algorithm a `rate_limit` stands for.
    pub(crate) windows: EnvoyWindows,
    pub(crate) sources: SourceFiles,
    pub(crate) diagnostics: Diagnostics,
    /// Descriptors by [`DescriptorPath::identity`].
    seen: HashMap<String, SourceSpan>,
    /// Number of duplicate descriptors.
    pub(crate) duplicates: usize,
    /// Rules by their name.
    rule_names: HashMap<String, SourceSpan>,
    descriptor_count: usize,
    rule_count: usize,
    /// Domain and name of the limits that have a name.
    named: HashSet<(Box<str>, Box<str>)>,
    /// Domain and name of the limits in `replaces`.
    replaced: Vec<(Box<str>, Box<str>, SourceSpan)>,
}

impl DescriptorReader {
    pub(crate) fn new(windows: EnvoyWindows) -> Self {
        Self { windows, ..Self::default() }
    }

    /// Adds the descriptors of a list to a level. `path` is the path of their parent.
    pub(crate) fn descriptors(
        &mut self,
        items: &[YamlNode],
        around: &str,
        path: &mut DescriptorPath,
        inherited: Inherited,
        level: &mut DescriptorLevel,
    ) {
        for (i, item) in items.iter().enumerate() {
            self.descriptor_count += 1;
            let field = format!("{around}[{i}]");
            if self.descriptor_count == EnvoyConfig::MAX_DESCRIPTORS + 1 {
                let message =
                    format!("more than {} descriptors; use fewer", EnvoyConfig::MAX_DESCRIPTORS);
                self.diagnostics.error(item.span, &field, message);
            }
            if self.descriptor_count > EnvoyConfig::MAX_DESCRIPTORS || self.diagnostics.is_full() {
                return;
            }
            if let Some(node) = self.descriptor(item, field, path, inherited) {
                level.push(node);
            }
        }
    }

    fn descriptor(
        &mut self,
        item: &YamlNode,
        field: String,
        path: &mut DescriptorPath,
        inherited: Inherited,
    ) -> Option<DescriptorNode> {
        let has = |field| item.get(field).is_some_and(|value| !value.is_nothing());
        let level = match has("limit") || has("limits") {
            true => FieldLevel::NotationDescriptor,
            false => FieldLevel::Descriptor,
        };
        let fields = LocatedFields::of(item, field, level, &mut self.diagnostics)?;
        let inherited = inherited.with(&fields, &mut self.diagnostics);
        let (key, value) = (&*fields.values.key, &*fields.values.value);
        if key.is_empty() {
            if !fields.is_broken("key") {
                let span = fields.name_span("key");
                self.diagnostics.error(span, &fields.path("key"), "a descriptor needs a key");
            }
            // Errors of its children are reported too.
            self.children(&fields, path, inherited);
            return None;
        }
        let mut node = DescriptorNode::new(key, value);
        path.steps.push((key.into(), value.into()));
        let span = fields.value_span("value").or(fields.value_span("key"));
        let is_new = self.is_new(&fields, path, span.unwrap_or(fields.start));
        self.flags(&fields, &mut node);
        node.leaf = self.leaf(&fields, path, inherited, is_new);
        node.below = self.children(&fields, path, inherited);
        path.steps.pop();
        is_new.then_some(node)
    }

    fn children(
        &mut self,
        fields: &LocatedFields<'_>,
        path: &mut DescriptorPath,
        inherited: Inherited,
    ) -> DescriptorLevel {
        let mut level = DescriptorLevel::default();
        let items = fields.items("descriptors");
        self.descriptors(items, &fields.path("descriptors"), path, inherited, &mut level);
        level
    }

    /// Reports a duplicate descriptor.
    fn is_new(
        &mut self,
        fields: &LocatedFields<'_>,
        path: &DescriptorPath,
        span: SourceSpan,
    ) -> bool {
        let Some(first) = self.seen.insert(path.identity(), span) else { return true };
        self.duplicates += 1;
        let first = self.sources.place(first).map_or(String::new(), |first| first.to_string());
        let what = match path.steps.last() {
            Some((key, value)) if !value.is_empty() => {
                format!("key {} and value {}", QuotedText(key), QuotedText(value))
            }
            Some((key, _)) => format!("key {} and no value", QuotedText(key)),
            None => "nothing".into(),
        };
        let message = format!("duplicate descriptor with {what}, first at {first}; remove one");
        self.diagnostics.error(span, &fields.path("key"), message);
        false
    }

    fn flags(&mut self, fields: &LocatedFields<'_>, node: &mut DescriptorNode) {
        node.value_to_metric = fields.values.value_to_metric;
        node.share_threshold = fields.values.share_threshold;
        if node.share_threshold && !is_wildcard(node.value()) && !is_wildcard(node.key()) {
            let (span, path) =
                (fields.name_span("share_threshold"), fields.path("share_threshold"));
            self.diagnostics.error(span, &path, "share_threshold needs a * in value");
        }
    }

    fn leaf(
        &mut self,
        fields: &LocatedFields<'_>,
        path: &DescriptorPath,
        inherited: Inherited,
        is_new: bool,
    ) -> Option<Arc<DescriptorLimit>> {
        let before = self.diagnostics.errors.len();
        let diagnostics = &mut self.diagnostics;
        let values = &fields.values;
        let Some(limited) = rate_limit::read(fields, self.windows, &self.sources, diagnostics)
        else {
            for field in LIMIT_FIELDS {
                if let Some(span) = fields.entry(field).map(|entry| entry.key_span) {
                    let message = format!("{field} has no effect without a limit");
                    diagnostics.warn(span, &fields.path(field), message);
                }
            }
            return None;
        };
        let ParsedLimit { limits, current_limit, name, replaces } = limited;
        let reservation = EnvoyReservation::read(fields, &limits, diagnostics);
        let shares = rlqs::read(fields, &limits, inherited.charge_denied, diagnostics);
        if diagnostics.errors.len() > before {
            return None;
        }
        let is_unlimited = current_limit.is_none() && fields.entry("rate_limit").is_some();
        if limits.is_empty() && !is_unlimited {
            // All its limits were removed with a warning.
            return None;
        }
        let rule = if is_unlimited {
            None
        } else {
            let (enforced, shadow) =
                if values.shadow_mode { (Vec::new(), limits) } else { (limits, Vec::new()) };
            let rule = self.rule(fields, path, enforced, shadow)?;
            if is_new {
                self.check_name(&rule, fields);
            }
            Some(rule)
        };
        let rule = rule.map(|rule| {
            let rule = rule.on_store_failure(inherited.on_store_failure());
            rule.on_expiry(reservation.on_expiry)
        });
        self.references(path, name.as_deref(), &replaces);
        Some(Arc::new(DescriptorLimit {
            rule,
            stat: path.stat().into(),
            name,
            replaces: replaces.into_iter().map(|(name, _)| name).collect(),
            current_limit,
            is_shadow: values.shadow_mode,
            is_quota: values.quota_mode,
            detailed_metric: values.detailed_metric,
            charge_denied: inherited.charge_denied,
            allow_override: inherited.allow_override,
            says_unavailable: inherited.says_unavailable(),
            charge_if_allowed: values.charge == Some(ChargeMode::IfAllowed),
            reservation,
            shares,
            metadata: Some(values.metadata.clone()).filter(|metadata| !metadata.is_empty()),
        }))
    }

    fn rule(
        &mut self,
        fields: &LocatedFields<'_>,
        path: &DescriptorPath,
        enforced: Vec<Limit>,
        shadow: Vec<Limit>,
    ) -> Option<Rule> {
        self.rule_count += 1;
        if self.rule_count > EnvoyConfig::MAX_RULES {
            if self.rule_count == EnvoyConfig::MAX_RULES + 1 {
                let message = InvalidRule::TooManyRules.to_string();
                self.diagnostics.error(fields.start, &fields.around, message);
            }
            return None;
        }
        match Rule::with_shadow(&path.rule_name(), enforced, shadow) {
            Ok(rule) => Some(rule),
            Err(error) => {
                self.diagnostics.error(fields.start, &fields.around, error.to_string());
                None
            }
        }
    }

    /// Reports a rule name that another descriptor has too.
    fn check_name(&mut self, rule: &Rule, fields: &LocatedFields<'_>) {
        if let Some(first) = self.rule_names.insert(rule.name().into(), fields.start) {
            let first = self.sources.place(first).map_or(String::new(), |first| first.to_string());
            let message = format!("rule name collides with the one at {first}; rename the domain");
            self.diagnostics.error(fields.start, &fields.around, message);
        }
    }

    /// Remembers the name of a limit, and the names that it replaces.
    fn references(
        &mut self,
        path: &DescriptorPath,
        name: Option<&str>,
        replaces: &[(Box<str>, SourceSpan)],
    ) {
        let domain = || Box::<str>::from(&*path.domain);
        self.named.extend(name.map(|name| (domain(), name.into())));
        let replaced = replaces.iter().map(|(name, span)| (domain(), name.clone(), *span));
        self.replaced.extend(replaced);
    }

    /// Warns about `replaces` of limits that do not exist. Call it after all files are parsed.
    pub(crate) fn check_replaced(&mut self) {
        for (domain, name, span) in std::mem::take(&mut self.replaced) {
            let named = (domain, name);
            if !self.named.contains(&named) {
                let message = format!("no limit named {} in this domain", QuotedText(&named.1));
                self.diagnostics.warn(span, "replaces", message);
            }
        }
    }
}
