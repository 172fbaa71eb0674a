//! Where the primary is, as sentinels say.
//!
//! Each sentinel is attended by a task of its own, so that none waits for another: it is asked every
//! second, and tells what happens as it publishes it. `words` reads what they say, and `opinions`
//! weighs it.
//!
//! Sentinels speak late. The one that leads a failover looks once a second whether the replica that
//! it has promoted took notice, and names it after that. But it publishes its choice before. So a
//! scout asks the chosen one, and when that says that it is a primary, it is.

mod opinions;
mod words;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{PushInfo, RedisResult};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::address::{Place, Sentinels};
use crate::dial::{Connection, Dialer};
use crate::link::{Fault, jittered, race};
use crate::sentinel::opinions::{Opinions, Word};
use crate::sentinel::words::Event;

pub(crate) use crate::sentinel::words::is_primary;

/// How often a sentinel is asked when nothing happens.
const PERIOD: Duration = Duration::from_secs(1);
/// How often at most, when the primary is in doubt.
const SHORTEST_PERIOD: Duration = Duration::from_millis(50);
/// Between attempts to reach a sentinel.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// How often a chosen replica is asked whether it is the primary yet.
const SCOUT_PAUSE: Duration = Duration::from_millis(25);
/// For how long a choice is worth following, and for how long those may be wrong who still name the
/// primary before.
const FAILOVER: Duration = Duration::from_secs(10);
/// For how long a server that turned out to be a replica is not to be named.
const REFUTED: Duration = Duration::from_secs(1);

/// Where the primary is; or why nobody knows.
pub(crate) type Named = Result<Place, Arc<Fault>>;

/// Knows where the primary is as long as it runs, and what was known last after that.
#[derive(Clone)]
pub(crate) struct Watcher(Arc<Shared>);

struct Shared {
    sentinels: Sentinels,
    /// How to enter the servers that they watch.
    dialer: Dialer,
    /// For entering, and for every answer.
    deadline: Duration,
    opinions: Mutex<Opinions>,
    named: watch::Sender<Named>,
    /// Changes when the primary may be somewhere else.
    doubt: watch::Sender<()>,
    /// The replica that is to become the primary.
    chosen: watch::Sender<Option<Place>>,
}

impl Watcher {
    pub(crate) fn new(sentinels: Sentinels, dialer: Dialer, deadline: Duration) -> Self {
        let what = format!("no sentinel has named the primary of {:?} yet", sentinels.master);
        Self(Arc::new(Shared {
            opinions: Mutex::new(Opinions::new(sentinels.places.len())),
            named: watch::Sender::new(Err(Fault(what + "; wait a moment").into())),
            doubt: watch::Sender::new(()),
            chosen: watch::Sender::new(None),
            sentinels,
            dialer,
            deadline,
        }))
    }

    /// What sentinels call the primary and its replicas.
    pub(crate) fn master(&self) -> &str {
        &self.0.sentinels.master
    }

    pub(crate) fn named(&self) -> watch::Receiver<Named> {
        self.0.named.subscribe()
    }

    /// Is that where the primary is?
    pub(crate) fn names(&self, place: &Place) -> bool {
        self.0.named.borrow().as_ref().ok() == Some(place)
    }

    /// The primary was lost: asks the sentinels now.
    pub(crate) fn doubt(&self) {
        self.0.doubt.send_replace(());
    }

    /// The server at `place` says that it is a replica. Whoever named it, was late.
    pub(crate) fn refute(&self, place: &Place) {
        self.0.opinions().disown(place.clone(), Instant::now() + REFUTED);
    }

    /// Never completes.
    pub(crate) async fn run(&self) {
        loop {
            let mut tasks = JoinSet::new();
            for index in 0..self.0.sentinels.places.len() {
                let shared = Arc::clone(&self.0);
                tasks.spawn(async move { shared.attend(index).await });
            }
            let shared = Arc::clone(&self.0);
            tasks.spawn(async move { shared.scout().await });
            // None of them ends but by a panic.
            tasks.join_next().await;
            drop(tasks);
            sleep(PAUSES.1).await;
        }
    }
}

impl Shared {
    /// Keeps asking one of the sentinels.
    async fn attend(self: Arc<Self>, index: usize) {
        let (min, max) = PAUSES;
        let mut pause = min;
        loop {
            let why = match timeout(self.deadline, self.enter(index)).await {
                Ok(Ok(connection)) => {
                    let made = Instant::now();
                    let why = self.question(index, connection).await;
                    if made.elapsed() > max {
                        pause = min;
                    }
                    why
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => self.silence(),
            };
            self.hear(index, Word::Nothing(why));
            sleep(jittered(pause)).await;
            pause = max.min(pause.saturating_mul(2));
        }
    }

    /// A connection to a sentinel, on which it tells what happens.
    async fn enter(self: &Arc<Self>, index: usize) -> RedisResult<Connection> {
        let shared = Arc::clone(self);
        let listener = Arc::new(move |message| shared.listen(message));
        let dialer = self.sentinels.dialer.clone().with_listener(listener);
        let mut connection = dialer.dial(&self.sentinels.places[index]).await?;
        // One who may not subscribe still learns everything by asking, only later. One by one: a
        // second confirmation would be taken for the answer to the next question.
        for channel in [Event::MOVED, Event::CHOSEN] {
            let _ = connection.subscribe(channel).await;
        }
        Ok(connection)
    }

    /// Asks until there is no answer, and says why.
    async fn question(&self, index: usize, mut connection: Connection) -> String {
        let mut doubt = self.doubt.subscribe();
        let mut cmd = redis::cmd("SENTINEL");
        cmd.arg("get-master-addr-by-name").arg(&self.sentinels.master);
        loop {
            let answer = timeout(self.deadline, connection.send_packed_command(&cmd)).await;
            match answer.map(|answer| answer.and_then(words::word)) {
                Ok(Ok(word)) => self.hear(index, word),
                Ok(Err(error)) => return error.to_string(),
                Err(_) => return self.silence(),
            }
            sleep(SHORTEST_PERIOD).await;
            let _ = timeout(jittered(PERIOD), doubt.changed()).await;
        }
    }

    fn silence(&self) -> String {
        format!("no answer within {:?}", self.deadline)
    }

    /// Weighs the word of a sentinel.
    fn hear(&self, index: usize, word: Word) {
        let now = Instant::now();
        let mut opinions = self.opinions();
        opinions.hear(index, word, now);
        let present = self.named.borrow().clone().ok();
        match opinions.majority(present.as_ref(), now) {
            Some(place) => self.name(place.clone()),
            None if present.is_none() => {
                let fault = opinions.fault(&self.sentinels);
                let _ = self.named.send_replace(Err(fault.into()));
            }
            // Their silence says nothing about the primary.
            None => {}
        }
    }

    /// What a sentinel publishes.
    fn listen(&self, message: PushInfo) {
        match words::event(&message, &self.sentinels.master) {
            Some(Event::Moved { from, to }) => {
                // The leader of a failover publishes its end last, perhaps after the next one.
                let present = self.named.borrow().clone().ok();
                let late = self.opinions().is_disowned(&to, Instant::now());
                if !late || present == Some(from) {
                    self.switch(to);
                }
            }
            Some(Event::Chosen(place)) => drop(self.chosen.send_replace(Some(place))),
            None => {}
        }
    }

    /// Looks after the replica that was chosen.
    async fn scout(&self) {
        let mut chosen = self.chosen.subscribe();
        loop {
            let place = chosen.borrow_and_update().clone();
            let another = async {
                let _ = chosen.changed().await;
            };
            match place {
                Some(place) => race(another, self.await_promotion(&place)).await,
                None => another.await,
            }
        }
    }

    /// Goes there when it is the primary. Gives up in time: a failover may be called off.
    async fn await_promotion(&self, place: &Place) {
        let promoted = async {
            loop {
                let dialled = timeout(self.deadline, self.dialer.dial(place)).await;
                if let Ok(Ok(connection)) = dialled
                    && self.is_promoted(&connection).await
                {
                    return;
                }
                // A promotion ends all connections.
                sleep(jittered(SCOUT_PAUSE)).await;
            }
        };
        if timeout(FAILOVER, promoted).await.is_ok() {
            self.switch(place.clone());
        }
        self.chosen.send_if_modified(|chosen| {
            let same = chosen.as_ref() == Some(place);
            if same {
                *chosen = None;
            }
            same
        });
    }

    /// True when it is; false when the connection ends before.
    async fn is_promoted(&self, connection: &Connection) -> bool {
        loop {
            match timeout(self.deadline, is_primary(connection.clone())).await {
                Ok(Ok(true)) => return true,
                Ok(Ok(false)) => sleep(jittered(SCOUT_PAUSE)).await,
                Ok(Err(_)) | Err(_) => return false,
            }
        }
    }

    /// A failover has put the primary there, whatever other sentinels still believe.
    fn switch(&self, place: Place) {
        let mut opinions = self.opinions();
        let present = self.named.borrow().clone().ok();
        if let Some(present) = present.filter(|present| *present != place) {
            opinions.disown(present, Instant::now() + FAILOVER);
        }
        self.name(place);
    }

    fn name(&self, place: Place) {
        self.named.send_if_modified(|named| {
            let moves = named.as_ref().ok() != Some(&place);
            if moves {
                *named = Ok(place);
            }
            moves
        });
    }

    fn opinions(&self) -> MutexGuard<'_, Opinions> {
        self.opinions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
use crate::link::server;

#[cfg(test)]
#[path = "../tests/support/sentinel.rs"]
mod processes;

#[cfg(test)]
mod tests;
