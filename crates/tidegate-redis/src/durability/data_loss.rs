//! Counts how often the store may have lost charges, and describes the last time.
//!
//! A server does not report that it has lost charges. But every process has a run id, and its data
//! has a replication id, which replicas share and continue. Both are read on each connect and
//! compared with the previous ones. A reconnect to the same process has lost nothing. Anything else
//! may have lost charges, so it counts.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::connection::server_identity::ServerIdentity;

/// A server process was replaced by another one.
pub(crate) struct ServerChange<'a> {
    pub(crate) before: &'a ServerIdentity,
    pub(crate) now: &'a ServerIdentity,
    /// The new server is known to have been a replica of the old one.
    pub(crate) was_replica: bool,
}

impl fmt::Display for ServerChange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { before, now, was_replica } = self;
        let endpoint = &now.endpoint;
        let continues = now.continues(before);
        let is_of_before = |id: &String| continues && *id == before.replication_id;
        let until = now.previous_history.as_ref().filter(|(id, _)| is_of_before(id));
        if before.endpoint == *endpoint {
            write!(f, "redis at {endpoint} was restarted")?;
            match until {
                _ if now.is_empty => f.write_str(" with an empty data set; all limits are reset"),
                Some((_, offset)) => write!(
                    f,
                    " and restored up to replication offset {offset}; later charges are lost"
                ),
                None => f.write_str("; charges that it had not saved are lost"),
            }
        } else {
            write!(f, "redis at {endpoint} is the primary now instead of {}", before.endpoint)?;
            match until {
                Some((_, offset)) => write!(
                    f,
                    " and has the charges up to replication offset {offset}; later charges are lost"
                ),
                None if continues || *was_replica => {
                    f.write_str(", whose replica it was; charges not yet replicated are lost")
                }
                None => f.write_str(" and was not its replica; limits may be reset"),
            }
        }
    }
}

/// The count, and the server that was connected last. Clones share it, so that a restart counts
/// once, however many connections the server has.
#[derive(Clone, Default)]
pub(crate) struct DataLossLog(Arc<Mutex<DataLossState>>);

#[derive(Default)]
struct DataLossState {
    server: Option<Arc<ServerIdentity>>,
    count: u64,
    last: Option<Arc<str>>,
    /// The latest event of [`DataLossLog::record_once`].
    recorded_once: Option<Instant>,
}

impl DataLossLog {
    /// `server` owns all keys from now on. Records a loss if it is another process than before.
    pub(crate) fn connected(&self, server: &Arc<ServerIdentity>) {
        let mut state = self.lock();
        let before = state.server.replace(Arc::clone(server));
        if let Some(before) = before.filter(|before| !before.is_same_process(server)) {
            state.record(&ServerChange { before: &before, now: server, was_replica: false });
        }
    }

    /// Like [`record`](Self::record), but several events within a second are one: they were
    /// detected by concurrent calls.
    pub(crate) fn record_once(&self, event: &dyn fmt::Display) {
        const SAME_EVENT: Duration = Duration::from_secs(1);
        let mut state = self.lock();
        let is_known = state.recorded_once.is_some_and(|at| at.elapsed() < SAME_EVENT);
        if !is_known {
            state.recorded_once = Some(Instant::now());
            state.record(event);
        }
    }

    pub(crate) fn record(&self, event: &dyn fmt::Display) {
        self.lock().record(event);
    }

    /// The count, and the description of the last event.
    pub(crate) fn summary(&self) -> (u64, Option<Arc<str>>) {
        let state = self.lock();
        (state.count, state.last.clone())
    }

    fn lock(&self) -> MutexGuard<'_, DataLossState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DataLossState {
    fn record(&mut self, event: &dyn fmt::Display) {
        self.count += 1;
        self.last = Some(event.to_string().into());
    }
}

impl fmt::Debug for DataLossLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DataLossLog").field(&self.lock().count).finish()
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;
    use crate::connection::endpoint::Endpoint;

    const NONE: &str = "0000000000000000000000000000000000000000";

    /// The server on `port`: run id, replication id, previous history and its end, and its keys.
    fn server(
        port: u16,
        run_id: &str,
        history: &str,
        previous: (&str, i64),
        keys: &str,
    ) -> Arc<ServerIdentity> {
        let endpoint = Endpoint::Tcp { host: "10.0.0.1".to_owned(), port };
        let bulk = |text: String| Value::BulkString(text.into_bytes());
        let server = bulk(format!("# Server\r\nrun_id:{run_id}\r\n"));
        let (name, offset) = previous;
        let replication = bulk(format!(
            "role:master\r\nmaster_replid:{history}\r\nmaster_replid2:{name}\r\n\
             second_repl_offset:{offset}\r\n"
        ));
        let keys = bulk(format!("# Keyspace\r\n{keys}"));
        ServerIdentity::read(&endpoint, 2, [&server, &replication, &keys]).unwrap().into()
    }

    #[test]
    fn a_loss_is_described_as_precisely_as_it_is_known() {
        let first = || server(1, "a", "h1", (NONE, -1), "db2:keys=7,expires=6\r\n");
        for (now, expected) in [
            (
                server(1, "b", "h2", (NONE, -1), ""),
                "redis at 10.0.0.1:1 was restarted with an empty data set; all limits are reset",
            ),
            (
                server(1, "b", "h2", (NONE, -1), "db0:keys=9\r\n"),
                "redis at 10.0.0.1:1 was restarted with an empty data set; all limits are reset",
            ),
            (
                server(1, "b", "h2", (NONE, -1), "db2:keys=1\r\n"),
                "redis at 10.0.0.1:1 was restarted; charges that it had not saved are lost",
            ),
            (
                server(1, "b", "h2", ("h1", 95), "db2:keys=1\r\n"),
                "redis at 10.0.0.1:1 was restarted and restored up to replication offset 95; \
                 later charges are lost",
            ),
            (
                server(2, "b", "h2", ("h1", 95), "db2:keys=1\r\n"),
                "redis at 10.0.0.1:2 is the primary now instead of 10.0.0.1:1 and has the charges up \
                 to replication offset 95; later charges are lost",
            ),
            (
                server(2, "b", "h1", (NONE, -1), "db2:keys=1\r\n"),
                "redis at 10.0.0.1:2 is the primary now instead of 10.0.0.1:1, whose replica it was; \
                 charges not yet replicated are lost",
            ),
            (
                server(2, "b", "h2", ("h0", 95), ""),
                "redis at 10.0.0.1:2 is the primary now instead of 10.0.0.1:1 and was not its \
                 replica; limits may be reset",
            ),
        ] {
            let log = DataLossLog::default();
            log.connected(&first());
            log.connected(&now);
            let (count, last) = log.summary();
            assert_eq!((count, last.as_deref()), (1, Some(expected)));
            // Other connections to the same server, and the same one again.
            (0..1000).for_each(|_| log.connected(&now));
            assert_eq!(log.summary().0, 1);
        }
    }

    #[test]
    fn the_first_connection_and_a_server_without_a_run_id_count_nothing() {
        let log = DataLossLog::default();
        log.connected(&server(1, "a", "h1", (NONE, -1), ""));
        log.connected(&server(1, "a", "h2", (NONE, -1), ""));
        assert_eq!(log.summary(), (0, None));
        let endpoint = Endpoint::Unix("/run/redis".into());
        for silent in [Value::Nil, Value::Okay, Value::BulkString(b"run_id:\r\n".to_vec())] {
            assert_eq!(ServerIdentity::read(&endpoint, 0, [&silent, &silent, &silent]), None);
        }
    }
}
