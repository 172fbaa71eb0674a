//! Rules that are sent as JSON, for example over the HTTP API.

use crate::build_rule::build;
use crate::errors::problem::{Finding, Problem, Problems};
use crate::loaded_policy::LoadedRule;
use crate::parse::check::CheckedTree;
use crate::parse::expected::ExpectedType;
use crate::parse::json;
use crate::rule_file::RuleFile;
use crate::settings::ServerSettings;

impl RuleFile {
    /// Parses a rule from JSON. Without a name, the name is empty. Each problem names its field.
    pub fn from_json(text: impl AsRef<[u8]>) -> Result<Self, Problems> {
        let node = json::parse(text.as_ref()).map_err(|error| {
            let message = match error.is_data() {
                true => error.to_string(),
                false => {
                    format!("invalid JSON at line {} column {}", error.line(), error.column())
                }
            };
            Problems::of(Problem::of_field(String::new(), message))
        })?;
        let mut checked = CheckedTree::default();
        let is_nameless = node.get("name").is_none();
        let value = checked.value(&node, ExpectedType::rule(), "");
        if value["name"] == "" && !is_nameless && !checked.is_broken("name") {
            let message = "empty name; remove it or name the rule";
            checked.found.push(Finding::new(node.span, "name", message));
        }
        // The name may be given elsewhere, for example in a URL; `load` requires it.
        checked.found.retain(|found| !(is_nameless && found.field == "name"));
        if !checked.found.is_empty() {
            let problem = |found: Finding| Problem::of_field(found.field, found.message);
            return Err(Problems::of_fields(checked.found.into_iter().map(problem).collect()));
        }
        serde_json::from_value(value)
            .map_err(|error| Problems::of(Problem::of_field(String::new(), error.to_string())))
    }

    /// Builds the rule. `settings` supply the failure mode and the fallback ratio if the rule has
    /// none; `defaults` of a policy file do not apply.
    pub fn load(&self, settings: &ServerSettings) -> Result<LoadedRule, Problems> {
        let mut built = build(self);
        match built.rule.take() {
            Some(rule) => Ok(LoadedRule::new(built, rule, settings)),
            None => {
                let faults = built.faults.into_iter();
                let problems = faults.map(|fault| Problem::of_field(fault.field, fault.message));
                Err(Problems::of_fields(problems.collect()))
            }
        }
    }
}
