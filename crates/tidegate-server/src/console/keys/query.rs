//! The key, rule or limit that the page shows.

use tidegate::policy::RuleTarget;
use tidegate::{Key, RuleCheck};

use super::super::form::FormFields;
use crate::check::{CheckError, CheckService};
use crate::text::escape::{display_key, is_hidden};

/// A key under a rule or an ad-hoc limit.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct KeyQuery {
    pub(super) rule: String,
    /// An ad-hoc limit; used if `rule` is empty.
    pub(super) limit: String,
    /// The plan of the key, if the rule has plans; empty for the default.
    pub(super) plan: String,
    pub(super) key: Vec<String>,
}

impl KeyQuery {
    /// The form field with the query. It is percent-encoded, because browsers change line ends in
    /// form fields.
    pub(super) const FIELD: &str = "about";

    /// From a query string: each part of the key is a field `key`, or a line of the field `parts`.
    pub(super) fn read(fields: &FormFields) -> Self {
        let mut key: Vec<String> = fields.all("key").map(String::from).collect();
        let typed = fields.text("parts").trim_end_matches(['\r', '\n']);
        if !typed.is_empty() {
            key.extend(typed.split('\n').map(|line| line.trim_end_matches('\r').into()));
        }
        let text = |name: &str| fields.text(name).trim().to_string();
        Self { rule: text("rule"), limit: text("limit"), plan: text("plan"), key }
    }

    /// From the field [`FIELD`](Self::FIELD) of a form.
    pub(super) fn from_form(fields: &FormFields) -> Self {
        Self::read(&FormFields::read(fields.text(Self::FIELD).as_bytes()))
    }

    /// Whether neither a rule nor a limit is given.
    pub(super) fn is_empty(&self) -> bool {
        self.rule.is_empty() && self.limit.is_empty()
    }

    /// The check of the key, at this cost.
    pub(super) fn check(
        &self,
        service: &CheckService,
        cost: u64,
    ) -> Result<RuleCheck<'_>, CheckError> {
        let target = match self.rule.is_empty() {
            true => service.adhoc_limit(&self.limit)?,
            false => RuleTarget::Named(&self.rule),
        };
        let plan = Some(&*self.plan).filter(|plan| !plan.is_empty());
        Ok(RuleCheck { plan, ..RuleCheck::of(target, self.key(), cost) })
    }

    pub(super) fn key(&self) -> Key<'_> {
        Key::from(&*self.key)
    }

    /// The key with its parts joined and escaped.
    pub(super) fn display(&self) -> String {
        display_key(self.key())
    }

    /// The parts as lines of the text field; empty if they have characters that cannot be typed.
    pub(super) fn typed(&self) -> String {
        let has_hidden = self.key.iter().any(|part| part.contains(is_hidden));
        if has_hidden { String::new() } else { self.key.join("\n") }
    }

    /// The query string, without `?`.
    pub(super) fn encoded(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        if !self.rule.is_empty() {
            query.append_pair("rule", &self.rule);
        }
        if !self.limit.is_empty() {
            query.append_pair("limit", &self.limit);
        }
        if !self.plan.is_empty() {
            query.append_pair("plan", &self.plan);
        }
        for part in &self.key {
            query.append_pair("key", part);
        }
        query.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_survives_encoding() {
        for key in [vec!["a"], vec!["a", ""], vec!["a\r\nb", "\u{0}&=+ %\u{202e}<b>"], vec![]] {
            let key: Vec<String> = key.into_iter().map(String::from).collect();
            let query =
                KeyQuery { rule: "r".into(), plan: "pro".into(), key, ..KeyQuery::default() };
            assert_eq!(KeyQuery::read(&FormFields::read(query.encoded().as_bytes())), query);
        }
    }

    #[test]
    fn each_line_is_a_part() {
        let read = |query: &str| KeyQuery::read(&FormFields::read(query.as_bytes())).key;
        assert_eq!(read("parts=acme%0D%0Aalice%0D%0A"), ["acme", "alice"]);
        assert_eq!(read("parts=a+b"), ["a b"]);
        assert_eq!(read("parts="), [""; 0]);
        assert_eq!(read("key=a%0Ab"), ["a\nb"]);
    }
}
