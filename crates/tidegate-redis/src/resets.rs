//! How often the store may have lost what it had counted, and what happened.
//!
//! A server that has lost charges does not say so. But every process has a name of its own, and so has
//! the history of its data, which replicas share and continue. Whoever connects asks for both and
//! compares them with what was there before. A connection that was lost and made again leads to the
//! same process: nothing happened. Otherwise nobody can prove that nothing was lost, so it counts.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use crate::address::Place;
use crate::greeting::field;

/// A server from its start to its end, as it was met.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Life {
    pub(crate) place: Place,
    process: String,
    /// The name of its data's history; empty if it does not tell.
    history: String,
    /// The history that it continues as a primary, and from where.
    earlier: Option<(String, u64)>,
    /// It had no keys when it was met.
    is_empty: bool,
}

impl Life {
    /// What the server at `place` says to `INFO` about itself, its replication and its keys. None if it
    /// does not say who it is.
    pub(crate) fn read(
        place: &Place,
        db: i64,
        [server, replication, keyspace]: [&Value; 3],
    ) -> Option<Self> {
        let earlier = field(replication, "master_replid2");
        let offset = field(replication, "second_repl_offset").and_then(|text| text.parse().ok());
        Some(Self {
            place: place.clone(),
            process: field(server, "run_id").filter(|id| !id.is_empty())?,
            history: field(replication, "master_replid").unwrap_or_default(),
            earlier: earlier.zip(offset),
            is_empty: matches!(keyspace, Value::BulkString(_) | Value::VerbatimString { .. })
                && field(keyspace, &format!("db{db}")).is_none(),
        })
    }

    pub(crate) fn is_same_process(&self, other: &Self) -> bool {
        self.process == other.process
    }

    /// Has it the data of `other`, or had it up to its end?
    pub(crate) fn continues(&self, other: &Self) -> bool {
        let is_same = |history: &str| !history.is_empty() && history == other.history;
        is_same(&self.history) || self.earlier.as_ref().is_some_and(|(name, _)| is_same(name))
    }
}

/// One server has come in the place of another, or of itself.
pub(crate) struct Change<'a> {
    pub(crate) before: &'a Life,
    pub(crate) now: &'a Life,
    /// It is known to have been a replica of that one.
    pub(crate) was_replica: bool,
}

impl fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { before, now, was_replica } = self;
        let place = &now.place;
        let continues = now.continues(before);
        let until = now.earlier.as_ref().filter(|(name, _)| continues && *name == before.history);
        if before.place == *place {
            write!(f, "redis at {place} was restarted")?;
            match until {
                _ if now.is_empty => f.write_str(" and came back empty; limits begin anew"),
                Some((_, offset)) => write!(
                    f,
                    " with what it had saved before replication offset {offset}; later charges are lost"
                ),
                None => f.write_str("; charges that it had not saved are lost"),
            }
        } else {
            write!(f, "redis at {place} is the primary now instead of {}", before.place)?;
            match until {
                Some((_, offset)) => write!(
                    f,
                    " and has what was charged before replication offset {offset}; later charges are lost"
                ),
                None if continues || *was_replica => {
                    f.write_str(", whose replica it was; charges that had not reached it are lost")
                }
                None => f.write_str(" and was not its replica; limits may begin anew"),
            }
        }
    }
}

/// The count, and who was met last. Clones share it: however many connections lead to a server, it is
/// restarted once.
#[derive(Clone, Default)]
pub(crate) struct Resets(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    life: Option<Arc<Life>>,
    count: u64,
    last: Option<Arc<str>>,
    /// When something was last noted that is noted once.
    noted: Option<Instant>,
}

impl Resets {
    /// This server has everything now.
    pub(crate) fn meet(&self, life: &Arc<Life>) {
        let mut known = self.lock();
        let before = known.life.replace(Arc::clone(life));
        if let Some(before) = before.filter(|before| !before.is_same_process(life)) {
            known.note(&Change { before: &before, now: life, was_replica: false });
        }
    }

    /// The same again within a second has been seen by several callers at a time.
    pub(crate) fn note_once(&self, what: &dyn fmt::Display) {
        const AT_ONCE: Duration = Duration::from_secs(1);
        let mut known = self.lock();
        let seen = known.noted.is_some_and(|at| at.elapsed() < AT_ONCE);
        if !seen {
            known.noted = Some(Instant::now());
            known.note(what);
        }
    }

    /// What `what` tells counts as one.
    pub(crate) fn note(&self, what: &dyn fmt::Display) {
        self.lock().note(what);
    }

    /// How often, and what happened last.
    pub(crate) fn told(&self) -> (u64, Option<Arc<str>>) {
        let known = self.lock();
        (known.count, known.last.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn note(&mut self, what: &dyn fmt::Display) {
        self.count += 1;
        self.last = Some(what.to_string().into());
    }
}

impl fmt::Debug for Resets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Resets").field(&self.lock().count).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: &str = "0000000000000000000000000000000000000000";

    /// The server on `port`, process, history, the history before and its end; and its keys.
    fn life(
        port: u16,
        process: &str,
        history: &str,
        earlier: (&str, i64),
        keys: &str,
    ) -> Arc<Life> {
        let place = Place::Tcp { host: "10.0.0.1".to_owned(), port };
        let bulk = |text: String| Value::BulkString(text.into_bytes());
        let server = bulk(format!("# Server\r\nrun_id:{process}\r\n"));
        let (name, offset) = earlier;
        let replication = bulk(format!(
            "role:master\r\nmaster_replid:{history}\r\nmaster_replid2:{name}\r\n\
             second_repl_offset:{offset}\r\n"
        ));
        let keys = bulk(format!("# Keyspace\r\n{keys}"));
        Life::read(&place, 2, [&server, &replication, &keys]).unwrap().into()
    }

    #[test]
    fn what_happened_is_told_as_precisely_as_it_is_known() {
        let first = || life(1, "a", "h1", (NONE, -1), "db2:keys=7,expires=6\r\n");
        for (now, expected) in [
            (
                life(1, "b", "h2", (NONE, -1), ""),
                "redis at 10.0.0.1:1 was restarted and came back \
              empty; limits begin anew",
            ),
            (
                life(1, "b", "h2", (NONE, -1), "db0:keys=9\r\n"),
                "redis at 10.0.0.1:1 was restarted \
              and came back empty; limits begin anew",
            ),
            (
                life(1, "b", "h2", (NONE, -1), "db2:keys=1\r\n"),
                "redis at 10.0.0.1:1 was restarted; \
              charges that it had not saved are lost",
            ),
            (
                life(1, "b", "h2", ("h1", 95), "db2:keys=1\r\n"),
                "redis at 10.0.0.1:1 was restarted \
              with what it had saved before replication offset 95; later charges are lost",
            ),
            (
                life(2, "b", "h2", ("h1", 95), "db2:keys=1\r\n"),
                "redis at 10.0.0.1:2 is the primary \
              now instead of 10.0.0.1:1 and has what was charged before replication offset 95; \
              later charges are lost",
            ),
            (
                life(2, "b", "h1", (NONE, -1), "db2:keys=1\r\n"),
                "redis at 10.0.0.1:2 is the primary \
              now instead of 10.0.0.1:1, whose replica it was; charges that had not reached it are \
              lost",
            ),
            (
                life(2, "b", "h2", ("h0", 95), ""),
                "redis at 10.0.0.1:2 is the primary now instead of \
              10.0.0.1:1 and was not its replica; limits may begin anew",
            ),
        ] {
            let resets = Resets::default();
            resets.meet(&first());
            resets.meet(&now);
            let (count, last) = resets.told();
            assert_eq!((count, last.as_deref()), (1, Some(expected)));
            // Other connections to the same server, and the same one again.
            (0..1000).for_each(|_| resets.meet(&now));
            assert_eq!(resets.told().0, 1);
        }
    }

    #[test]
    fn the_first_meeting_and_a_server_that_does_not_tell_count_for_nothing() {
        let resets = Resets::default();
        resets.meet(&life(1, "a", "h1", (NONE, -1), ""));
        resets.meet(&life(1, "a", "h2", (NONE, -1), ""));
        assert_eq!(resets.told(), (0, None));
        let place = Place::Unix("/run/redis".into());
        for silent in [Value::Nil, Value::Okay, Value::BulkString(b"run_id:\r\n".to_vec())] {
            assert_eq!(Life::read(&place, 0, [&silent, &silent, &silent]), None);
        }
    }
}
