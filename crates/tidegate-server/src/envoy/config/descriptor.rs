//! From a descriptor of a file to one that can be looked up.

use std::sync::Arc;

use tidegate::{InvalidRule, Limit, Rule};

use super::fields::Fields;
use super::inherit::{self, Inherited};
use super::limits::{self, Limited};
use super::load::Loader;
use super::name::Path;
use super::{EnvoyConfig, Leaf, metadata};
use crate::config::source::Span;
use crate::config::tree::{self, Name};
use crate::envoy::lookup::{Level, Node, is_wildcard};

const FIELDS: [&str; 12] = [
    "key",
    "value",
    "rate_limit",
    "limit",
    "limits",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];

/// The fields that say something about a limit and nothing without one.
const OF_A_LIMIT: [&str; 4] = ["shadow_mode", "quota_mode", "detailed_metric", "metadata"];

impl Loader<'_> {
    /// Adds the descriptors of a list to a level. `path` is the way to them.
    pub(super) fn descriptors(
        &mut self,
        items: &[tree::Node],
        around: &str,
        path: &mut Path,
        inherited: Inherited,
        level: &mut Level,
    ) {
        for (i, item) in items.iter().enumerate() {
            self.descriptor_count += 1;
            let field = format!("{around}[{i}]");
            if self.descriptor_count == EnvoyConfig::MAX_DESCRIPTORS + 1 {
                let message =
                    format!("more than {} descriptors; use fewer", EnvoyConfig::MAX_DESCRIPTORS);
                self.notes.wrong(item.span, &field, message);
            }
            if self.descriptor_count > EnvoyConfig::MAX_DESCRIPTORS || self.notes.is_full() {
                return;
            }
            if let Some(node) = self.descriptor(item, field, path, inherited) {
                level.push(node);
            }
        }
    }

    fn descriptor(
        &mut self,
        item: &tree::Node,
        field: String,
        path: &mut Path,
        inherited: Inherited,
    ) -> Option<Node> {
        let fields = Fields::of(item, field, &mut self.notes)?;
        let in_our_words = fields.entry("limit").or(fields.entry("limits")).is_some();
        let names: &[&str] = if in_our_words { &["name", "replaces"] } else { &[] };
        let meant = fields.only(&[&FIELDS, &inherit::FIELDS[..], names].concat(), &mut self.notes);
        let inherited = inherited.with(&fields, &mut self.notes);
        let value = fields.text("value", &mut self.notes);
        let Some(key) = fields.text("key", &mut self.notes).filter(|key| !key.text.is_empty())
        else {
            if fields.entry("key").is_none_or(|key| key.value.is_text()) && !meant.contains(&"key")
            {
                let span = fields.name_span("key").unwrap_or(fields.start);
                self.notes.wrong(span, &fields.path("key"), "a descriptor needs a key; add one");
            }
            // All that is wrong below is told too.
            self.below(&fields, path, inherited);
            return None;
        };
        let mut node = Node::new(key.text, value.map_or("", |value| value.text));
        path.steps.push((node.key().into(), node.value().into()));
        let is_new = self.is_new(&fields, path, value.map_or(key.span, |value| value.span));
        self.flags(&fields, &mut node);
        node.leaf = self.leaf(&fields, item, path, inherited);
        node.below = self.below(&fields, path, inherited);
        path.steps.pop();
        is_new.then_some(node)
    }

    fn below(&mut self, fields: &Fields<'_>, path: &mut Path, inherited: Inherited) -> Level {
        let mut level = Level::default();
        let items = fields.list("descriptors", &mut self.notes);
        self.descriptors(items, &fields.path("descriptors"), path, inherited, &mut level);
        level
    }

    /// Tells if there is such a descriptor already.
    fn is_new(&mut self, fields: &Fields<'_>, path: &Path, span: Span) -> bool {
        let Some(first) = self.seen.insert(path.identity(), span) else { return true };
        let first = self.sources.place(first).map_or(String::new(), |first| first.to_string());
        let what = match path.steps.last() {
            Some((key, value)) if !value.is_empty() => {
                format!("key {} and value {}", Name(key), Name(value))
            }
            Some((key, _)) => format!("key {} and no value", Name(key)),
            None => "nothing".into(),
        };
        let message = format!("a second descriptor of {what}, the first at {first}; remove one");
        self.notes.wrong(span, &fields.path("key"), message);
        false
    }

    fn flags(&mut self, fields: &Fields<'_>, node: &mut Node) {
        let notes = &mut self.notes;
        node.value_to_metric = fields.flag("value_to_metric", notes).unwrap_or(false);
        node.share_threshold = fields.flag("share_threshold", notes).unwrap_or(false);
        if node.share_threshold && !is_wildcard(node.value()) && !is_wildcard(node.key()) {
            let span = fields.name_span("share_threshold").unwrap_or(fields.start);
            let message = "share_threshold without a * in value; there is nobody to share with";
            notes.wrong(span, &fields.path("share_threshold"), message);
        }
    }

    fn leaf(
        &mut self,
        fields: &Fields<'_>,
        item: &tree::Node,
        path: &Path,
        inherited: Inherited,
    ) -> Option<Arc<Leaf>> {
        let before = self.notes.wrong_count();
        let notes = &mut self.notes;
        let is_shadow = fields.flag("shadow_mode", notes).unwrap_or(false);
        let is_quota = fields.flag("quota_mode", notes).unwrap_or(false);
        let detailed_metric = fields.flag("detailed_metric", notes).unwrap_or(false);
        let metadata = metadata::read(fields, notes);
        let Some(limited) = limits::read(fields, item, &self.sources, notes) else {
            for field in OF_A_LIMIT {
                if let Some(span) = fields.entry(field).map(|entry| entry.key_span) {
                    let message = format!("{field} has no effect without a limit beside it");
                    notes.odd(span, &fields.path(field), message);
                }
            }
            return None;
        };
        let Limited { limits, current_limit, name, replaces } = limited;
        if notes.wrong_count() > before {
            return None;
        }
        let is_unlimited = current_limit.is_none() && fields.entry("rate_limit").is_some();
        if limits.is_empty() && !is_unlimited {
            // Nothing is left of it, which has been told.
            return None;
        }
        let rule = if is_unlimited {
            None
        } else {
            let (decide, look_on) =
                if is_shadow { (Vec::new(), limits) } else { (limits, Vec::new()) };
            Some(self.rule(fields, path, decide, look_on)?)
        };
        let rule = rule.map(|rule| rule.on_store_failure(inherited.on_store_failure()));
        self.references(path, name.as_deref(), &replaces);
        Some(Arc::new(Leaf {
            rule,
            stat: path.stat().into(),
            name,
            replaces: replaces.into_iter().map(|(name, _)| name).collect(),
            current_limit,
            is_shadow,
            is_quota,
            detailed_metric,
            charge_denied: inherited.charge_denied,
            allow_override: inherited.allow_override,
            says_unavailable: inherited.says_unavailable(),
            metadata,
        }))
    }

    fn rule(
        &mut self,
        fields: &Fields<'_>,
        path: &Path,
        decide: Vec<Limit>,
        look_on: Vec<Limit>,
    ) -> Option<Rule> {
        self.rule_count += 1;
        if self.rule_count > EnvoyConfig::MAX_RULES {
            if self.rule_count == EnvoyConfig::MAX_RULES + 1 {
                let message = InvalidRule::TooManyRules.to_string();
                self.notes.wrong(fields.start, &fields.around, message);
            }
            return None;
        }
        let name = path.rule_name();
        let rule = match Rule::with_shadow(&name, decide, look_on) {
            Ok(rule) => rule,
            Err(error) => {
                self.notes.wrong(fields.start, &fields.around, error.to_string());
                return None;
            }
        };
        if let Some(first) = self.names.insert(name, fields.start) {
            let first = self.sources.place(first).map_or(String::new(), |first| first.to_string());
            let message =
                format!("the rule would have the name of the one at {first}; rename the domain");
            self.notes.wrong(fields.start, &fields.around, message);
        }
        Some(rule)
    }
}
