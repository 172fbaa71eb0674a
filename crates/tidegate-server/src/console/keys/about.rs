//! Which key, under which rule or limit.

use tidegate::Key;

use super::super::form::Fields;
use crate::hottest::Hottest;
use crate::logs::is_hidden;
use crate::service::Target;

/// A rule or a limit, and a key.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct About {
    pub(super) rule: String,
    /// A limit of the asker's own, where no rule is named.
    pub(super) limit: String,
    pub(super) key: Vec<String>,
}

impl About {
    /// The field in which a form passes on what it is about. It holds a query, in which every key can be written: a
    /// browser would change the ends of lines in a field of its own.
    pub(super) const FIELD: &str = "about";

    /// From an address: each part of the key in a field `key`, or in a line of the field `parts`.
    pub(super) fn read(fields: &Fields) -> Self {
        let mut key: Vec<String> = fields.all("key").map(String::from).collect();
        let typed = fields.text("parts").trim_end_matches(['\r', '\n']);
        if !typed.is_empty() {
            key.extend(typed.split('\n').map(|line| line.trim_end_matches('\r').into()));
        }
        let text = |name: &str| fields.text(name).trim().to_string();
        Self { rule: text("rule"), limit: text("limit"), key }
    }

    /// From a form of ours.
    pub(super) fn passed_on(fields: &Fields) -> Self {
        Self::read(&Fields::read(fields.text(Self::FIELD).as_bytes()))
    }

    /// Is there anything to look for?
    pub(super) fn is_empty(&self) -> bool {
        self.rule.is_empty() && self.limit.is_empty()
    }

    /// What is asked; the limit if no rule is named.
    pub(super) fn target(&self) -> Target<'_> {
        if self.rule.is_empty() { Target::Limit(&self.limit) } else { Target::Rule(&self.rule) }
    }

    pub(super) fn key(&self) -> Key<'_> {
        Key::from(&*self.key)
    }

    /// The key for people to read.
    pub(super) fn shown(&self) -> String {
        Hottest::shown(self.key())
    }

    /// The parts as somebody types them; nothing if they could not have been typed.
    pub(super) fn typed(&self) -> String {
        let cannot = self.key.iter().any(|part| part.contains(is_hidden));
        if cannot { String::new() } else { self.key.join("\n") }
    }

    /// As the query of an address.
    pub(super) fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        if !self.rule.is_empty() {
            query.append_pair("rule", &self.rule);
        }
        if !self.limit.is_empty() {
            query.append_pair("limit", &self.limit);
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
    fn every_key_survives_the_way_through_an_address() {
        for key in [vec!["a"], vec!["a", ""], vec!["a\r\nb", "\u{0}&=+ %\u{202e}<b>"], vec![]] {
            let key: Vec<String> = key.into_iter().map(String::from).collect();
            let about = About { rule: "r".into(), limit: String::new(), key };
            assert_eq!(About::read(&Fields::read(about.query().as_bytes())), about);
        }
    }

    #[test]
    fn a_line_is_a_part() {
        let read = |query: &str| About::read(&Fields::read(query.as_bytes())).key;
        assert_eq!(read("parts=acme%0D%0Aalice%0D%0A"), ["acme", "alice"]);
        assert_eq!(read("parts=a+b"), ["a b"]);
        assert_eq!(read("parts="), [""; 0]);
        assert_eq!(read("key=a%0Ab"), ["a\nb"]);
    }
}
