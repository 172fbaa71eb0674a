//! Meaning of JSON members and CSV columns, by name.

use std::borrow::Cow;

use tidegate::Cost;

use super::timestamp;
use crate::replay::log_entry::{AccessLogEntry, ClientOrigin, LineError, address};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogField {
    Time,
    Method,
    /// Path, with or without query.
    Target,
    /// Query in a separate column.
    Query,
    Host,
    /// Peer of the server; may be a proxy.
    Peer,
    /// Client address as determined by the server.
    Client,
    Cost,
    /// Any other name; see [`LogField::header_name`].
    Header,
}

impl LogField {
    /// Case does not matter, and dashes equal underscores.
    pub(crate) fn of(name: &str) -> Self {
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

    /// `header:X-Api-Key`, `x_api_key` and `http_x_api_key` are all `x-api-key`.
    pub(crate) fn header_name(name: &str) -> Cow<'_, str> {
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

/// Values that can only be set once the whole line is read.
#[derive(Default)]
pub(crate) struct EntryBuilder<'a> {
    target: Option<Cow<'a, str>>,
    query: Option<Cow<'a, str>>,
}

impl<'a> EntryBuilder<'a> {
    /// Sets a value. Empty values and `-` are ignored.
    pub(crate) fn put(
        &mut self,
        field: LogField,
        name: Cow<'a, str>,
        value: Cow<'a, str>,
        entry: &mut AccessLogEntry<'a>,
    ) -> Result<(), LineError> {
        if value.is_empty() || value == "-" {
            return Ok(());
        }
        match field {
            LogField::Time => entry.at = Some(timestamp::parse(&value).ok_or("invalid time")?),
            LogField::Method => entry.method = value,
            LogField::Target => self.target = Some(value),
            LogField::Query => self.query = Some(value),
            LogField::Host => entry.set_owned_host(value),
            LogField::Peer if entry.from.is_none() => {
                entry.from = address(&value).map(ClientOrigin::Peer)
            }
            LogField::Peer => {}
            LogField::Client => {
                entry.from = address(&value).map(ClientOrigin::Client).or(entry.from)
            }
            LogField::Cost => {
                let cost = value.trim().parse().ok().and_then(|cost| Cost::new(cost).ok());
                let cost = cost.ok_or("invalid cost; expected a number from 1")?;
                entry.cost = Some(cost.max(Cost::ONE));
            }
            LogField::Header => {
                let name = match name {
                    Cow::Borrowed(name) => LogField::header_name(name),
                    Cow::Owned(name) => Cow::Owned(LogField::header_name(&name).into_owned()),
                };
                entry.push_header(name, value);
            }
        }
        Ok(())
    }

    pub(crate) fn finish(self, entry: &mut AccessLogEntry<'a>) -> Result<(), LineError> {
        if entry.at.is_none() {
            return Err("missing time");
        }
        let target = self.target.ok_or("missing path")?;
        match self.query.filter(|_| !target.contains('?')) {
            Some(query) => {
                let query = query.strip_prefix('?').unwrap_or(&query);
                entry.set_target(format!("{target}?{query}").into())
            }
            None => entry.set_target(target),
        }
    }
}
