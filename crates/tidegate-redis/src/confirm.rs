//! What counts only when replicas have it.
//!
//! `WAIT` says how many replicas have all that was written on its own connection, and until it does,
//! nothing else is answered there. So calls that are to be confirmed go over connections of their own,
//! a few for each server, and each has one call at a time.
//!
//! `WAIT` is sent when the script has answered, and only if there is something to confirm. Sent along
//! with the script, it would come sooner by one way there and back. But then whoever is denied would
//! wait for replicas as well, and while one stands still, denials would block every connection: a
//! server that has nothing else to do ends a `WAIT` a tenth of a second late.

mod promise;
mod unconfirmed;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value};
use tidegate::EngineError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::link::{Fault, Link, LinkError, Pinned, Settings, after, on_runtime};

pub(crate) use unconfirmed::Unconfirmed;

/// How many calls a server has on their way at a time, and how many connections for them.
const CONNECTIONS: usize = 4;
/// What is left of a call's time for telling the caller that it was not confirmed; or a tenth of what
/// there is.
const MARGIN: Duration = Duration::from_millis(2);
/// For how long a `WAIT` may be overdue. A server looks ten times a second, and may be busy.
const OVERDUE: Duration = Duration::from_secs(1);
/// As good as for ever, and still a number that every server takes.
const LONGEST: Duration = Duration::from_secs(3_600);

/// The connections to one server on which charges are confirmed. Clones share them.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Shared>);

struct Shared {
    replicas: u32,
    free: Mutex<Vec<Link>>,
    turns: Arc<Semaphore>,
    /// Why the latest charge was not confirmed, if it was not.
    warning: Mutex<Option<Arc<str>>>,
}

impl Pool {
    /// None if nothing is to be confirmed. Begins to connect.
    pub(crate) fn new(settings: &Settings, link: impl Fn(Settings) -> Link) -> Option<Self> {
        let replicas = settings.confirmed_by;
        // A sign of life has to wait behind a `WAIT`.
        let silence = settings.silence.saturating_add(settings.deadline);
        let free = || {
            let settings = Settings { silence, ..settings.clone() };
            (0..CONNECTIONS).map(|_| link(settings.clone())).collect()
        };
        (replicas > 0).then(|| {
            let turns = Semaphore::new(CONNECTIONS).into();
            let (free, warning) = (Mutex::new(free()), Mutex::default());
            Self(Arc::new(Shared { replicas, free, turns, warning }))
        })
    }

    /// The answer to `cmd`, and who can confirm what it wrote.
    pub(crate) async fn call_until(
        &self,
        end: Instant,
        cmd: &Cmd,
    ) -> Result<(Value, Witness), LinkError> {
        let witness = self.witness(end).await?;
        Ok((witness.pinned.call_until(end, cmd).await?, witness))
    }

    /// The same behind `ASKING`.
    pub(crate) async fn call_asking_until(
        &self,
        end: Instant,
        cmd: &Cmd,
    ) -> Result<(Value, Witness), LinkError> {
        let witness = self.witness(end).await?;
        Ok((witness.pinned.call_asking_until(end, cmd).await?, witness))
    }

    /// Waits until one of the connections is free.
    pub(crate) async fn ready(&self, end: Instant) -> Result<(), LinkError> {
        self.witness(end).await.map(drop)
    }

    pub(crate) fn replicas(&self) -> u32 {
        self.0.replicas
    }

    /// Why the latest charge was not confirmed, if it was not.
    pub(crate) fn warning(&self) -> Option<Arc<str>> {
        lock(&self.0.warning).clone()
    }

    async fn witness(&self, end: Instant) -> Result<Witness, LinkError> {
        on_runtime()?;
        let turn = timeout_at(end, Arc::clone(&self.0.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            let what = "all connections for what replicas confirm are busy";
            let what = format!("{what}; see whether replicas keep up, or allow more time");
            return Err(LinkError::Down(Fault(what).into()));
        };
        let taken = Taken::new(&self.0, turn)?;
        let pinned = taken.link.pinned(end).await?;
        Ok(Witness { taken, pinned })
    }
}

/// A connection that nobody else has. Dropped, it is free again.
struct Taken {
    link: Link,
    shared: Arc<Shared>,
    _turn: OwnedSemaphorePermit,
}

impl Taken {
    fn new(shared: &Arc<Shared>, turn: OwnedSemaphorePermit) -> Result<Self, LinkError> {
        let mut free = lock(&shared.free);
        // One that is connected, if there is one, and of these the latest that was used.
        let place = free.iter().rposition(Link::is_connected).or(free.len().checked_sub(1));
        let link = place.map(|place| free.remove(place));
        drop(free);
        // There are as many as turns.
        let link = link.ok_or_else(|| LinkError::Down(Fault("no connection".into()).into()))?;
        Ok(Self { link, shared: Arc::clone(shared), _turn: turn })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        lock(&self.shared.free).push(self.link.clone());
    }
}

/// The connection by which an answer came. It can say how many replicas have what was written.
pub(crate) struct Witness {
    taken: Taken,
    pinned: Pinned,
}

impl Witness {
    /// Completes when enough replicas have all that was written on this connection. With `touch`, which
    /// writes something that changes nothing, enough have all that anybody has written before.
    pub(crate) async fn confirm(self, end: Instant, touch: Option<Cmd>) -> Result<(), EngineError> {
        let shared = Arc::clone(&self.taken.shared);
        let wanted = shared.replicas;
        let left = end.saturating_duration_since(Instant::now());
        let margin = MARGIN.min(left / 10);
        let span = left.saturating_sub(2 * margin).min(LONGEST);
        let late = Unconfirmed::Late { wanted };
        if left.is_zero() {
            return Err(late.into());
        }
        // Whoever gives up, or is dropped, leaves the connection blocked: nobody may have it until it
        // is not. So somebody else waits there.
        let answer = tokio::spawn(self.wait(wanted, span, touch));
        let confirmed = match timeout_at(end - margin, answer).await {
            Ok(Ok(Ok(Value::Int(got)))) if got >= i64::from(wanted) => Ok(()),
            Ok(Ok(Ok(Value::Int(got)))) => Err(Unconfirmed::Few { got, wanted }),
            Ok(Ok(Ok(_))) => Err(Unconfirmed::Unreadable { wanted }),
            Ok(Ok(Err(why))) => Err(Unconfirmed::Refused { wanted, why }),
            Ok(Err(_)) | Err(_) => Err(late),
        };
        *lock(&shared.warning) = confirmed.as_ref().err().map(|why| why.to_string().into());
        confirmed.map_err(Into::into)
    }

    async fn wait(
        self,
        replicas: u32,
        span: Duration,
        touch: Option<Cmd>,
    ) -> Result<Value, LinkError> {
        let mut cmds = redis::pipe();
        touch.map(|touch| cmds.add_command(touch));
        // Without a time, or with 0, it would wait for ever.
        let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1);
        cmds.cmd("WAIT").arg(replicas).arg(ms);
        let answer = self.pinned.call_all_until(after(span + OVERDUE), &cmds).await;
        if matches!(answer, Err(LinkError::TimedOut)) {
            self.pinned.abandon();
        }
        answer
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
