//! What another reading of the policy has changed.

use std::collections::HashMap;

use serde_json::Value;
use tidegate::Micros;

use crate::config::{LoadedRule, RuleFile};

/// What the last reading of the files has changed about their rules.
#[derive(Clone, PartialEq, Debug)]
pub struct Changes {
    /// When it came into force.
    pub at: Micros,
    /// Rules that are new.
    pub added: Names,
    /// Rules that are no more.
    pub removed: Names,
    /// Rules that are otherwise than before, at most [`Changes::MOST`].
    pub changed: Vec<Changed>,
    /// How many rules are otherwise than before.
    pub changed_count: usize,
    /// Are the rules that stay looked at in another order?
    pub reordered: bool,
}

/// Names of rules: how many there are, and the first of them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Names {
    /// At most [`Changes::MOST`].
    pub first: Vec<String>,
    /// All of them.
    pub count: usize,
}

/// A rule that is otherwise than before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The rule.
    pub name: String,
    /// What of it.
    pub fields: Vec<ChangedField>,
}

/// A field as it was and as it is, in JSON; nothing where it was not given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangedField {
    /// Its name.
    pub name: String,
    /// As it was.
    pub before: Option<String>,
    /// As it is.
    pub after: Option<String>,
}

impl Changes {
    /// The most rules of a kind that are named.
    pub const MOST: usize = 50;
    /// The most characters of a value that are kept.
    const MOST_LETTERS: usize = 300;

    /// From one policy to the next.
    pub fn between(before: &[LoadedRule], after: &[LoadedRule], at: Micros) -> Self {
        let known = |rules: &[LoadedRule]| -> HashMap<String, usize> {
            rules.iter().enumerate().map(|(i, rule)| (rule.file.name.clone(), i)).collect()
        };
        let (old, new) = (known(before), known(after));
        let mut changes = Self {
            at,
            added: Names::default(),
            removed: Names::default(),
            changed: Vec::new(),
            changed_count: 0,
            reordered: false,
        };
        let gone = before.iter().filter(|rule| !new.contains_key(&rule.file.name));
        gone.for_each(|rule| changes.removed.push(&rule.file.name));
        let mut last = 0;
        for rule in after {
            let Some(place) = old.get(&rule.file.name).copied() else {
                changes.added.push(&rule.file.name);
                continue;
            };
            changes.reordered |= place < last;
            last = last.max(place);
            changes.compare(&before[place].file, &rule.file);
        }
        changes
    }

    /// Is everything as it was?
    pub fn is_empty(&self) -> bool {
        self.added.count + self.removed.count + self.changed_count == 0 && !self.reordered
    }

    fn compare(&mut self, before: &RuleFile, after: &RuleFile) {
        if before == after {
            return;
        }
        self.changed_count += 1;
        if self.changed.len() < Self::MOST {
            let fields = fields(before, after);
            self.changed.push(Changed { name: after.name.clone(), fields });
        }
    }
}

impl Names {
    fn push(&mut self, name: &str) {
        self.count += 1;
        if self.first.len() < Changes::MOST {
            self.first.push(name.into());
        }
    }
}

fn fields(before: &RuleFile, after: &RuleFile) -> Vec<ChangedField> {
    let value = |rule| serde_json::to_value(rule).unwrap_or_default();
    let (before, after) = (value(before), value(after));
    let names = [&before, &after].into_iter().filter_map(Value::as_object).flatten();
    let mut names: Vec<&String> = names.map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    let differs = |name: &&String| before.get(*name) != after.get(*name);
    let written = |value: &Value| {
        let text = value.to_string();
        match text.char_indices().nth(Changes::MOST_LETTERS) {
            Some((end, _)) => format!("{}\u{2026}", &text[..end]),
            None => text,
        }
    };
    let field = |name: &String| ChangedField {
        name: name.clone(),
        before: before.get(name).map(written),
        after: after.get(name).map(written),
    };
    names.into_iter().filter(differs).map(field).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn changes(before: &str, after: &str) -> Changes {
        let rules = |text| Config::load_str("policy.yaml", text).unwrap().rules;
        Changes::between(&rules(before), &rules(after), Micros::ZERO)
    }

    #[test]
    fn what_was_added_removed_and_changed_is_told() {
        let rule =
            |name: &str, limit: &str| format!("  - {{ name: {name}, limits: [\"{limit}\"] }}\n");
        let before = format!("rules:\n{}{}", rule("a", "5/s"), rule("b", "5/s"));
        let after = format!("rules:\n{}{}", rule("b", "6/s"), rule("c", "5/s"));
        let changes = changes(&before, &after);
        assert_eq!(changes.removed.first, ["a"]);
        assert_eq!(changes.added.first, ["c"]);
        let field = ChangedField {
            name: "limits".into(),
            before: Some("[\"5/s\"]".into()),
            after: Some("[\"6/s\"]".into()),
        };
        assert_eq!(changes.changed, [Changed { name: "b".into(), fields: vec![field] }]);
        assert!(!changes.reordered && !changes.is_empty());
    }

    #[test]
    fn the_order_counts_and_the_same_is_no_change() {
        let text = |names: [&str; 3]| {
            let rule = |name| format!("  - {{ name: {name}, limits: [\"5/s\"] }}\n");
            format!("rules:\n{}", names.map(rule).concat())
        };
        assert!(changes(&text(["a", "b", "c"]), &text(["a", "b", "c"])).is_empty());
        assert!(changes(&text(["a", "b", "c"]), &text(["c", "a", "b"])).reordered);
    }

    #[test]
    fn many_changes_are_counted() {
        let policy = |limit: &str| {
            let rule = |i| format!("  - {{ name: r{i}, limits: [\"{limit}\"] }}\n");
            format!("rules:\n{}", (0..1_000).map(rule).collect::<String>())
        };
        let all = changes(&policy("5/s"), &policy("6/s"));
        assert_eq!((all.changed.len(), all.changed_count), (Changes::MOST, 1_000));
        let new = changes("rules: []", &policy("5/s"));
        assert_eq!((new.added.first.len(), new.added.count), (Changes::MOST, 1_000));
    }
}
