//! What the members and columns of a log mean, by their names.

use std::borrow::Cow;

use tidegate::Cost;

use super::entry::{Entry, Fault, Origin, address};
use super::instant;

/// What a member of a JSON object or a column of a table tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Field {
    Time,
    Method,
    /// With its query, or without.
    Target,
    /// The query, where it stands apart.
    Query,
    Host,
    /// Whoever called.
    Peer,
    /// The client, found out by somebody else.
    Client,
    Cost,
    /// A header, by the rest of its name.
    Header,
}

impl Field {
    /// Of this name, in whatever case and with dashes or underscores.
    pub(super) fn of(name: &str) -> Self {
        let is = |other: &str| {
            let same = |(a, b): (u8, u8)| a.eq_ignore_ascii_case(&b) || (a == b'-' && b == b'_');
            name.len() == other.len() && name.bytes().zip(other.bytes()).all(same)
        };
        let any = |names: &[&str]| names.iter().any(|other| is(other));
        if any(&[
            "time",
            "timestamp",
            "@timestamp",
            "start_time",
            "time_local",
            "time_iso8601",
            "msec",
            "ts",
        ]) {
            Self::Time
        } else if any(&["method", "request_method", ":method"]) {
            Self::Method
        } else if any(&["path", "uri", "url", "request_uri", ":path"]) {
            Self::Target
        } else if any(&["query", "query_string", "args"]) {
            Self::Query
        } else if any(&["host", "authority", "http_host", ":authority"]) {
            Self::Host
        } else if any(&[
            "remote_addr",
            "downstream_remote_address",
            "downstream_direct_remote_address",
            "peer",
        ]) {
            Self::Peer
        } else if any(&["client_ip", "client"]) {
            Self::Client
        } else if is("cost") {
            Self::Cost
        } else {
            Self::Header
        }
    }

    /// The name of a header: `header:X-Api-Key`, `x_api_key` and `http_x_api_key` are one.
    pub(super) fn header_name(name: &str) -> Cow<'_, str> {
        let name =
            name.strip_prefix("header:").or_else(|| name.strip_prefix("http_")).unwrap_or(name);
        if name.bytes().all(|b| !b.is_ascii_uppercase() && b != b'_') {
            return Cow::Borrowed(name);
        }
        Cow::Owned(
            name.bytes()
                .map(|b| char::from(if b == b'_' { b'-' } else { b.to_ascii_lowercase() }))
                .collect(),
        )
    }
}

/// The values of a line, until all are there.
#[derive(Default)]
pub(super) struct Named<'a> {
    target: Option<Cow<'a, str>>,
    query: Option<Cow<'a, str>>,
}

impl<'a> Named<'a> {
    /// Puts a value where it belongs. Empty ones and `-` are none.
    pub(super) fn put(
        &mut self,
        field: Field,
        name: Cow<'a, str>,
        value: Cow<'a, str>,
        entry: &mut Entry<'a>,
    ) -> Result<(), Fault> {
        if value.is_empty() || value == "-" {
            return Ok(());
        }
        match field {
            Field::Time => {
                entry.at = Some(instant::parse(value.as_bytes()).ok_or("the time cannot be read")?)
            }
            Field::Method => entry.method = value,
            Field::Target => self.target = Some(value),
            Field::Query => self.query = Some(value),
            Field::Host => entry.set_owned_host(value),
            Field::Peer if entry.from.is_none() => entry.from = address(&value).map(Origin::Peer),
            Field::Peer => {}
            Field::Client => entry.from = address(&value).map(Origin::Client).or(entry.from),
            Field::Cost => {
                let cost = value.trim().parse().ok().and_then(|cost| Cost::new(cost).ok());
                entry.cost = Some(cost.ok_or("the cost is no number from 1 up")?.max(Cost::ONE));
            }
            Field::Header => {
                let name = match name {
                    Cow::Borrowed(name) => Field::header_name(name),
                    Cow::Owned(name) => Cow::Owned(Field::header_name(&name).into_owned()),
                };
                entry.push_header(name, value);
            }
        }
        Ok(())
    }

    pub(super) fn finish(self, entry: &mut Entry<'a>) -> Result<(), Fault> {
        if entry.at.is_none() {
            return Err("no time in it");
        }
        let target = self.target.ok_or("no path in it")?;
        match self.query.filter(|_| !target.contains('?')) {
            Some(query) => {
                let query = query.strip_prefix('?').unwrap_or(&query);
                entry.set_target(format!("{target}?{query}").into())
            }
            None => entry.set_target(target),
        }
    }
}
