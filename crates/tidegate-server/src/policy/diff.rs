//! Rules that the last reload added, removed and changed.

use std::collections::HashMap;

use serde_json::Value;
use tidegate::Micros;
use tidegate_config::{LoadedRule, RuleFile};

/// What a reload changed about the rules of the files.
#[derive(Clone, PartialEq, Debug)]
pub struct PolicyDiff {
    /// When the new policy became active.
    pub at: Micros,
    pub added: RuleNames,
    /// Rules that were removed.
    pub removed: RuleNames,
    /// Rules that changed, at most [`PolicyDiff::MAX_LISTED`].
    pub changed: Vec<RuleDiff>,
    /// How many rules changed.
    pub changed_count: usize,
    /// Whether the rules that remain are evaluated in another order.
    pub reordered: bool,
}

/// The number of rules, and the names of the first of them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RuleNames {
    /// At most [`PolicyDiff::MAX_LISTED`] names.
    pub first: Vec<String>,
    /// The number of all of them.
    pub count: usize,
}

/// A rule that changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleDiff {
    /// The name of the rule.
    pub name: String,
    /// The fields that changed, by name.
    pub fields: Vec<FieldDiff>,
}

/// A field before and after, in JSON; `None` where it was not given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldDiff {
    /// The name of the field.
    pub name: String,
    /// The old value, shortened.
    pub before: Option<String>,
    /// The new value, shortened.
    pub after: Option<String>,
}

impl PolicyDiff {
    /// The maximum number of rules that are listed by name, for each kind of change.
    pub const MAX_LISTED: usize = 50;
    /// The maximum number of characters of a value.
    const MAX_CHARS: usize = 300;

    /// The difference between two policies; `at` is when the second became active.
    pub fn between(before: &[LoadedRule], after: &[LoadedRule], at: Micros) -> Self {
        let known = |rules: &[LoadedRule]| -> HashMap<String, usize> {
            rules.iter().enumerate().map(|(i, rule)| (rule.file.name.clone(), i)).collect()
        };
        let (old, new) = (known(before), known(after));
        let mut diff = Self {
            at,
            added: RuleNames::default(),
            removed: RuleNames::default(),
            changed: Vec::new(),
            changed_count: 0,
            reordered: false,
        };
        let removed = before.iter().filter(|rule| !new.contains_key(&rule.file.name));
        removed.for_each(|rule| diff.removed.push(&rule.file.name));
        let mut last = 0;
        for rule in after {
            let Some(index) = old.get(&rule.file.name).copied() else {
                diff.added.push(&rule.file.name);
                continue;
            };
            diff.reordered |= index < last;
            last = last.max(index);
            diff.compare(&before[index].file, &rule.file);
        }
        diff
    }

    pub fn is_empty(&self) -> bool {
        self.added.count + self.removed.count + self.changed_count == 0 && !self.reordered
    }

    fn compare(&mut self, before: &RuleFile, after: &RuleFile) {
        if before == after {
            return;
        }
        self.changed_count += 1;
        if self.changed.len() < Self::MAX_LISTED {
            let fields = fields(before, after);
            self.changed.push(RuleDiff { name: after.name.clone(), fields });
        }
    }
}

impl RuleNames {
    fn push(&mut self, name: &str) {
        self.count += 1;
        if self.first.len() < PolicyDiff::MAX_LISTED {
            self.first.push(name.into());
        }
    }
}

fn fields(before: &RuleFile, after: &RuleFile) -> Vec<FieldDiff> {
    let value = |rule| serde_json::to_value(rule).unwrap_or_default();
    let (before, after) = (value(before), value(after));
    let names = [&before, &after].into_iter().filter_map(Value::as_object).flatten();
    let mut names: Vec<&String> = names.map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    let differs = |name: &&String| before.get(*name) != after.get(*name);
    let shortened = |value: &Value| {
        let text = value.to_string();
        match text.char_indices().nth(PolicyDiff::MAX_CHARS) {
            Some((end, _)) => format!("{}\u{2026}", &text[..end]),
            None => text,
        }
    };
    let field = |name: &String| FieldDiff {
        name: name.clone(),
        before: before.get(name).map(shortened),
        after: after.get(name).map(shortened),
    };
    names.into_iter().filter(differs).map(field).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::PolicyLoader;

    fn changes(before: &str, after: &str) -> PolicyDiff {
        let rules = |text| PolicyLoader::load_str("policy.yaml", text).unwrap().rules;
        PolicyDiff::between(&rules(before), &rules(after), Micros::ZERO)
    }

    #[test]
    fn added_removed_and_changed_rules_are_listed() {
        let rule =
            |name: &str, limit: &str| format!("  - {{ name: {name}, limits: [\"{limit}\"] }}\n");
        let before = format!("rules:\n{}{}", rule("a", "5/s"), rule("b", "5/s"));
        let after = format!("rules:\n{}{}", rule("b", "6/s"), rule("c", "5/s"));
        let changes = changes(&before, &after);
        assert_eq!(changes.removed.first, ["a"]);
        assert_eq!(changes.added.first, ["c"]);
        let field = FieldDiff {
            name: "limits".into(),
            before: Some("[\"5/s\"]".into()),
            after: Some("[\"6/s\"]".into()),
        };
        assert_eq!(changes.changed, [RuleDiff { name: "b".into(), fields: vec![field] }]);
        assert!(!changes.reordered && !changes.is_empty());
    }

    #[test]
    fn a_new_order_is_a_change_and_the_same_policy_is_none() {
        let text = |names: [&str; 3]| {
            let rule = |name| format!("  - {{ name: {name}, limits: [\"5/s\"] }}\n");
            format!("rules:\n{}", names.map(rule).concat())
        };
        assert!(changes(&text(["a", "b", "c"]), &text(["a", "b", "c"])).is_empty());
        assert!(changes(&text(["a", "b", "c"]), &text(["c", "a", "b"])).reordered);
    }

    #[test]
    fn changes_beyond_the_listed_ones_are_counted() {
        let policy = |limit: &str| {
            let rule = |i| format!("  - {{ name: r{i}, limits: [\"{limit}\"] }}\n");
            format!("rules:\n{}", (0..1_000).map(rule).collect::<String>())
        };
        let all = changes(&policy("5/s"), &policy("6/s"));
        assert_eq!((all.changed.len(), all.changed_count), (PolicyDiff::MAX_LISTED, 1_000));
        let new = changes("rules: []", &policy("5/s"));
        assert_eq!((new.added.first.len(), new.added.count), (PolicyDiff::MAX_LISTED, 1_000));
    }
}
