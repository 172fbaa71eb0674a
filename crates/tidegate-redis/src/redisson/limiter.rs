//! One limiter, asked.

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use redis::Value;
use tidegate::{EngineError, Micros};

use super::answer::{first, natural, taken};
use super::error::{Error, TooMany};
use super::line::Line;
use super::names::Names;
use super::rate::Rate;
use super::unheard::Unheard;
use super::words::Ask;
use crate::client::{Client, Taken, Writes, numbers};
use crate::link::race;
use crate::reply::unreadable;

/// A limiter of Redisson, by its name. Clones are the same one.
///
/// Every answer counts by Redis's clock, which is one for all; Java's entries by the clock of whoever made them.
#[derive(Clone)]
pub struct RateLimiter {
    client: Client,
    names: Arc<Names>,
    line: Arc<Line>,
}

/// What a script answers that has done a part and has to be asked again.
const UNFINISHED: i64 = 4;

impl RateLimiter {
    /// Of 1,000 entries each.
    const MOST_PARTS: u32 = 10_000;
    /// For all parts of one answer, whatever the timeout is.
    const LONGEST: Micros = Micros::from_millis(2_000);

    /// The limiter that Java has as `redisson.getRateLimiter(name)`. Nothing is asked yet.
    pub fn new(client: &Client, name: &str) -> Self {
        let names = Names::new(name, client.id()).into();
        Self { client: client.clone(), names, line: client.lines().line(name) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.names.name()
    }

    /// Sets the rate if there is none. False if there is one, which then stays.
    pub async fn try_set_rate(&self, rate: Rate) -> Result<bool, Error> {
        self.configure("try", rate).await
    }

    /// Sets the rate and begins anew: what was taken no longer counts, in `PerClient` mode of this client.
    pub async fn set_rate(&self, rate: Rate) -> Result<(), Error> {
        self.configure("set", rate).await.map(drop)
    }

    /// Sets the rate, and what was taken goes on counting; of another [`Mode`](super::Mode) it begins anew. False if
    /// there is no limiter yet.
    pub async fn update_rate(&self, rate: Rate) -> Result<bool, Error> {
        self.configure("update", rate).await
    }

    /// Takes `permits` if there are as many now. Asking for none takes nothing and tells what is left.
    pub async fn try_acquire(&self, permits: u32) -> Result<Taken, Error> {
        self.take(permits, Micros::MAX).await
    }

    /// Takes `permits`, and waits for them until `timeout` has passed; first come first served among the limiters
    /// of this name on the same [`Client`]. Answers at once when they cannot come in time.
    ///
    /// When there are so many entries to be counted that it takes longer than `timeout`, and than a call may take, that
    /// is an error. What is counted by then stays so, and the next goes on from there.
    ///
    /// Dropped while it waits it takes nothing; dropped while it asks it gives back what it may have got.
    pub async fn try_acquire_for(&self, permits: u32, timeout: Duration) -> Result<Taken, Error> {
        let end = self.after(timeout.into());
        let mut turn = pin!(self.line.turn.lock());
        // It stands in the line from here on, before it does anything that takes time.
        let turn = match poll_fn(|cx| Poll::Ready(turn.as_mut().poll(cx))).await {
            Poll::Ready(turn) => turn,
            Poll::Pending => {
                let look = self.look(permits, end).await?;
                if self.again(&look) > end {
                    return Ok(look.untaken());
                }
                let turn = async { Some(turn.await) };
                let late = async {
                    self.client.clock().sleep_until(end).await;
                    None
                };
                match race(turn, late).await {
                    Some(turn) => turn,
                    None => return Ok(self.look(permits, end).await?.untaken()),
                }
            }
        };
        let clock = self.client.clock();
        let came = clock.elapsed();
        let next = self.line.next(came);
        clock.sleep_until(next.min(end)).await;
        let mut has_waited = next > came;
        let taken = loop {
            // Asked for before the answer, so that nothing is missed that is given back behind it.
            let released = self.line.released.notified();
            let taken = self.take(permits, end).await?;
            let again = self.again(&taken);
            if taken.allowed() && has_waited {
                self.line.served(clock.elapsed());
            }
            if taken.allowed() || again > end {
                break taken;
            }
            has_waited = true;
            race(released, clock.sleep_until(again)).await;
        };
        drop(turn);
        Ok(taken)
    }

    /// Takes `permits`, and waits for them as long as it takes; otherwise as
    /// [`try_acquire_for`](Self::try_acquire_for).
    pub async fn acquire(&self, permits: u32) -> Result<(), Error> {
        loop {
            if self.try_acquire_for(permits, Duration::MAX).await?.allowed() {
                return Ok(());
            }
        }
    }

    /// Gives `permits` back, the oldest first, and says how many came back: no more than were taken, nor than
    /// 1,000 entries have.
    pub async fn release(&self, permits: u32) -> Result<u64, Error> {
        if permits == 0 {
            return Ok(0);
        }
        let count = permits.to_string();
        let words = [count.as_bytes(), &random()?];
        let answer = self.ask(Ask::Release, &words, Micros::MAX).await?;
        self.see(&answer);
        let given = natural(&answer, 1)?;
        self.line.released.notify_one();
        Ok(given)
    }

    /// How many permits there are now. Writes nothing, unless there are more than 1,000 entries to be counted, or this
    /// client finds a rate that it did not know and what lies there has to be put right.
    pub async fn available_permits(&self) -> Result<u64, Error> {
        Ok(self.look(0, Micros::MAX).await?.remaining)
    }

    /// The rate, if there is one.
    pub async fn config(&self) -> Result<Option<Rate>, Error> {
        let words = [self.name(), "rate", "interval", "type", "keepAliveTime"];
        let answer = self.client.call(self.name(), "HMGET", &words[..], Writes::No).await?;
        let Value::Array(fields) = answer else { return Err(unreadable(false).into()) };
        Ok(Rate::read(&fields).map_err(|()| unreadable(false))?)
    }

    /// Forgets the limiter after `span`, in whole milliseconds, rounded up. A limiter with a keep-alive time lives
    /// on when it is used. False if there is none.
    pub async fn expire(&self, span: Duration) -> Result<bool, Error> {
        let ms = span.min(Rate::LONGEST).as_nanos().div_ceil(1_000_000).to_string();
        let answer = self.ask(Ask::Expire, &[ms.as_bytes()], Micros::MAX).await?;
        Ok(first(&answer)? == 1)
    }

    /// Forgets the limiter: its rate, what was taken of all, and what was taken of this client. False if there was
    /// none.
    pub async fn delete(&self) -> Result<bool, Error> {
        let answer =
            self.client.call(self.name(), "DEL", &self.names.keys()[..], Writes::Yes).await?;
        match answer {
            Value::Int(keys) => Ok(keys > 0),
            _ => Err(unreadable(true).into()),
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Takes an entry back.
    pub(super) async fn undo(&self, permits: u32, id: [u8; 16]) -> Result<(), EngineError> {
        self.ask(Ask::Undo, &[permits.to_string().as_bytes(), &id], Micros::MAX).await?;
        self.line.released.notify_one();
        Ok(())
    }

    /// What an answer ends with: the rate and the interval, by which everything is in order now.
    fn see(&self, answer: &[i64]) {
        if let [0 | 1, .., rate, interval] = *answer {
            self.line.see((rate.unsigned_abs(), interval.unsigned_abs()));
        }
    }

    /// Takes `permits` if there are as many, with an answer by `end`.
    async fn take(&self, permits: u32, end: Micros) -> Result<Taken, Error> {
        let id = random()?;
        let unheard = Unheard::new(self, permits, id);
        let count = permits.to_string();
        let answer = self.ask(Ask::Take, &[count.as_bytes(), b"take", &id], end).await;
        let answer = unheard.hear(answer)?;
        self.see(&answer);
        let taken = taken(permits, &answer)?;
        if !taken.allowed() {
            self.line.turned_away(Micros::new(natural(&answer, 3)?));
        }
        Ok(taken)
    }

    async fn look(&self, permits: u32, end: Micros) -> Result<Taken, Error> {
        let count = permits.to_string();
        let words = [count.as_bytes(), b"look", &random()?];
        let answer = self.ask(Ask::Take, &words, end).await?;
        self.see(&answer);
        taken(permits, &answer)
    }

    async fn configure(&self, how: &str, rate: Rate) -> Result<bool, Error> {
        let fields = rate.fields();
        let mut words = vec![how.as_bytes()];
        let id = random()?;
        words.push(&id);
        words.extend(fields.iter().map(String::as_bytes));
        let set = first(&self.ask(Ask::Configure, &words, Micros::MAX).await?)? == 1;
        if set {
            self.line.see(rate.permits_and_interval());
        }
        Ok(set)
    }

    /// Asks until there is an answer: of many entries, each call counts a part. After `end`, no other is begun, but
    /// for as long as one call may take: a short timeout is no reason to have no answer.
    async fn ask(&self, ask: Ask, words: &[&[u8]], end: Micros) -> Result<Vec<i64>, EngineError> {
        let end = end.max(self.after(self.client.deadline().into()));
        let end = end.min(self.after(Self::LONGEST));
        for _ in 0..Self::MOST_PARTS {
            let (instant, seen) = (self.client.instant(), self.line.seen());
            let seen = seen.map_or(String::new(), |(rate, interval)| format!("{rate} {interval}"));
            let args = [&[instant.as_bytes(), seen.as_bytes()], words].concat();
            let answer = self.client.run(ask.script(), &self.names.keys(), &args).await?;
            let answer = numbers(&answer)?;
            if answer.first() != Some(&UNFINISHED) {
                return Ok(answer);
            }
            if self.client.clock().elapsed() >= end {
                break;
            }
        }
        Err(EngineError::unavailable(TooMany))
    }

    /// When it is worth asking again.
    fn again(&self, taken: &Taken) -> Micros {
        self.after(taken.retry_after().unwrap_or_default().into())
    }

    fn after(&self, span: Micros) -> Micros {
        self.client.clock().elapsed().saturating_add(span)
    }
}

/// An id for an entry, of as many bytes as Redisson's.
fn random() -> Result<[u8; 16], EngineError> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(EngineError::unavailable)?;
    Ok(id)
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("name", &self.name()).finish_non_exhaustive()
    }
}
