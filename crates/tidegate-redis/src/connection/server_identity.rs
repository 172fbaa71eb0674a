//! Which process a server is, and which history its data has.

use redis::Value;

use crate::connection::endpoint::Endpoint;
use crate::connection::info::field;

/// One server process, as it reported itself when the connection was made.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct ServerIdentity {
    pub(crate) endpoint: Endpoint,
    run_id: String,
    /// `master_replid`; empty if the server does not report it.
    pub(crate) replication_id: String,
    /// `master_replid2` and its last offset: the history that this server continues as a primary.
    pub(crate) previous_history: Option<(String, u64)>,
    /// The database had no keys when the connection was made.
    pub(crate) is_empty: bool,
}

impl ServerIdentity {
    /// From the `INFO` sections of the server at `endpoint`: server, replication and keyspace.
    /// None if it does not report its run id.
    pub(crate) fn read(
        endpoint: &Endpoint,
        db: i64,
        [server, replication, keyspace]: [&Value; 3],
    ) -> Option<Self> {
        let previous = field(replication, "master_replid2");
        let offset = field(replication, "second_repl_offset").and_then(|text| text.parse().ok());
        Some(Self {
            endpoint: endpoint.clone(),
            run_id: field(server, "run_id").filter(|id| !id.is_empty())?,
            replication_id: field(replication, "master_replid").unwrap_or_default(),
            previous_history: previous.zip(offset),
            is_empty: matches!(keyspace, Value::BulkString(_) | Value::VerbatimString { .. })
                && field(keyspace, &format!("db{db}")).is_none(),
        })
    }

    pub(crate) fn is_same_process(&self, other: &Self) -> bool {
        self.run_id == other.run_id
    }

    /// Whether this server has the data of `other`, now or up to the end of the previous history.
    pub(crate) fn continues(&self, other: &Self) -> bool {
        let is_same = |id: &str| !id.is_empty() && id == other.replication_id;
        is_same(&self.replication_id)
            || self.previous_history.as_ref().is_some_and(|(id, _)| is_same(id))
    }
}
