//! All limits that are lent in shares, their holders, and the messages to them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tidegate::{Clock, Key, Micros, Verdict, Wait};
use tidegate_config::envoy::ShareLimit;

use crate::observe::metrics::{Metrics, QuotaEvent};
use crate::shares::allocator::{Allocator, Message, Outbox};
use crate::shares::ledger::{HolderId, ShareTiming};
use crate::transport::envoy::proto::BucketId;

/// What a limit is counted under: its rule and its key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LimitKey(Arc<[u8]>);

impl LimitKey {
    pub(crate) fn new(rule: &str, key: Key<'_>) -> Self {
        let mut bytes = Vec::with_capacity(64);
        for part in std::iter::once(rule.as_bytes()).chain(key.parts()) {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(part);
        }
        Self(bytes.into())
    }
}

/// A stream of one Envoy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct StreamId(u64);

/// The limits that are lent in shares. Instants are those of [`Clock::elapsed`], which never steps.
pub(crate) struct QuotaShares {
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    timing: ShareTiming,
    /// What an earlier process has lent has ended by then, and nothing is lent before.
    from: Micros,
    state: Mutex<QuotaState>,
}

#[derive(Default)]
struct QuotaState {
    limits: HashMap<LimitKey, Allocator>,
    holders: HashMap<HolderId, QuotaHolder>,
    streams: HashMap<StreamId, QuotaOutgoing>,
    last_id: u64,
}

struct QuotaHolder {
    limit: LimitKey,
    stream: StreamId,
    bucket: BucketId,
}

/// Messages of a stream that are not written yet.
#[derive(Default)]
struct QuotaOutgoing {
    queue: VecDeque<DecidedMessage>,
    waker: Option<Waker>,
}

struct DecidedMessage {
    at: Micros,
    holder: HolderId,
    message: Message,
}

/// A message to write.
pub(super) type BucketMessage = (BucketId, Message);

impl QuotaShares {
    /// Most limits with a state, which is one for each key.
    pub(crate) const MAX_LIMITS: usize = 65_536;
    /// Most buckets of all streams.
    pub(crate) const MAX_HOLDERS: usize = 65_536;
    /// Most messages that are written at once.
    const MAX_MESSAGES: usize = 256;

    pub(crate) fn new(clock: Arc<dyn Clock>, metrics: Arc<Metrics>) -> Self {
        let timing = ShareTiming::default();
        let from = clock.elapsed().saturating_add(timing.lifetime());
        Self { clock, metrics, timing, from, state: Mutex::default() }
    }

    pub(super) fn timing(&self) -> ShareTiming {
        self.timing
    }

    fn lock(&self) -> MutexGuard<'_, QuotaState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn connect(&self) -> StreamId {
        let mut state = self.lock();
        let stream = StreamId(state.next_id());
        state.streams.insert(stream, QuotaOutgoing::default());
        stream
    }

    /// The stream has ended: what its holders were lent counts until its deadline.
    pub(super) fn disconnect(&self, stream: StreamId, holders: impl Iterator<Item = HolderId>) {
        let (mut state, now) = (self.lock(), self.clock.elapsed());
        state.streams.remove(&stream);
        for id in holders {
            state.with_holder(id, now, |allocator, out| allocator.leave(now, id, out));
            state.holders.remove(&id);
        }
    }

    /// A bucket reports for the first time on its stream. `None` if there are too many.
    pub(super) fn join(
        &self,
        stream: StreamId,
        (key, limit): (LimitKey, ShareLimit),
        bucket: BucketId,
    ) -> Option<HolderId> {
        let (mut state, now) = (self.lock(), self.clock.elapsed());
        let is_full = state.holders.len() >= Self::MAX_HOLDERS;
        if is_full || state.allocator(&key, limit, self.timing, self.from).is_none() {
            self.metrics.count_quota(QuotaEvent::Full, 1);
            return None;
        }
        let id = HolderId(state.next_id());
        state.holders.insert(id, QuotaHolder { limit: key, stream, bucket });
        state.with_holder(id, now, |allocator, out| allocator.join(now, id, out));
        Some(id)
    }

    /// A holder reports `count` requests. `false` if its bucket stands for another limit by now.
    pub(super) fn report(&self, id: HolderId, found: &(LimitKey, ShareLimit), count: u64) -> bool {
        let (mut state, now) = (self.lock(), self.clock.elapsed());
        let (key, limit) = found;
        if state.holders.get(&id).is_none_or(|holder| holder.limit != *key) {
            return false;
        }
        state.allocator(key, *limit, self.timing, self.from);
        state.with_holder(id, now, |allocator, out| allocator.report(now, id, count, out));
        true
    }

    /// A bucket has no limit any more.
    pub(super) fn leave(&self, id: HolderId) {
        let (mut state, now) = (self.lock(), self.clock.elapsed());
        state.with_holder(id, now, |allocator, out| allocator.leave(now, id, out));
        state.holders.remove(&id);
    }

    /// The next messages of a stream, to be written at once.
    ///
    /// Half of the guard is for the time until here, and half for the way to the Envoy. A message
    /// that is older is dropped; so are later ones to the same holder, which were decided as if it
    /// had been written.
    pub(super) fn poll_messages(
        &self,
        stream: StreamId,
        context: &mut Context<'_>,
    ) -> Poll<Vec<BucketMessage>> {
        let (mut state, now) = (self.lock(), self.clock.elapsed());
        let half = Micros::new(self.timing.guard.get() / 2);
        let (mut messages, mut dropped) = (Vec::new(), BTreeSet::new());
        while messages.len() < Self::MAX_MESSAGES {
            let outgoing = state.streams.get_mut(&stream);
            let Some(next) = outgoing.and_then(|it| it.queue.pop_front()) else { break };
            let is_late = now.saturating_sub(next.at) > half || dropped.contains(&next.holder);
            if is_late && matches!(next.message, Message::Assign(_)) {
                dropped.insert(next.holder);
                state.with_holder(next.holder, now, |allocator, _| allocator.dropped(next.holder));
            } else if let Some(holder) = state.holders.get(&next.holder) {
                messages.push((holder.bucket.clone(), next.message));
            }
        }
        self.metrics.count_quota(QuotaEvent::Dropped, dropped.len() as u64);
        if !messages.is_empty() {
            self.metrics.count_quota(QuotaEvent::Sent, messages.len() as u64);
            return Poll::Ready(messages);
        }
        if let Some(outgoing) = state.streams.get_mut(&stream) {
            outgoing.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }

    /// What is done every second: new shares for holders that have too little.
    pub(crate) fn tick(&self) {
        let (mut state, now) = (self.lock(), self.clock.elapsed());
        let mut out = Outbox::new();
        state.limits.retain(|_, allocator| {
            allocator.tick(now, &mut out);
            !allocator.is_unused()
        });
        state.send(now, out);
        self.metrics.set_quota(state.streams.len() as u64, state.holders.len() as u64);
    }

    /// Takes `tokens` for a caller that asks for each request, if the limit has them.
    pub(crate) fn take(&self, key: &LimitKey, limit: ShareLimit, tokens: u64) -> Verdict {
        self.with_limit(key, limit, |allocator, now, out| {
            let allowed = allocator.take(now, tokens, out);
            verdict(allocator, now, allowed, tokens)
        })
    }

    /// Takes `tokens` whether or not the limit has them.
    pub(crate) fn record(&self, key: &LimitKey, limit: ShareLimit, tokens: u64) -> Verdict {
        self.with_limit(key, limit, |allocator, now, out| {
            allocator.record(now, tokens, out);
            verdict(allocator, now, true, tokens)
        })
    }

    /// Gives tokens back: those of a request that was denied, or a refund.
    pub(crate) fn give_back(&self, key: &LimitKey, limit: ShareLimit, tokens: u64) -> Verdict {
        self.with_limit(key, limit, |allocator, now, out| {
            allocator.advance(now, out);
            allocator.give_back(tokens);
            verdict(allocator, now, true, 0)
        })
    }

    /// What the limit has for callers that ask for each request.
    pub(crate) fn peek(&self, key: &LimitKey, limit: ShareLimit) -> Verdict {
        self.with_limit(key, limit, |allocator, now, out| {
            allocator.advance(now, out);
            verdict(allocator, now, true, 1)
        })
    }

    fn with_limit(
        &self,
        key: &LimitKey,
        limit: ShareLimit,
        call: impl FnOnce(&mut Allocator, Micros, &mut Outbox) -> Verdict,
    ) -> Verdict {
        let (mut state, now) = (self.lock(), self.clock.elapsed());
        let mut out = Outbox::new();
        let Some(allocator) = state.allocator(key, limit, self.timing, self.from) else {
            self.metrics.count_quota(QuotaEvent::Full, 1);
            return denied(limit.burst);
        };
        let verdict = call(allocator, now, &mut out);
        state.send(now, out);
        verdict
    }
}

impl QuotaState {
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The state of a limit; `None` if there are too many.
    ///
    /// A limit without a state has lent nothing since the start, and nobody has taken from it for
    /// long enough: it is what it would be if it had been there from the start.
    fn allocator(
        &mut self,
        key: &LimitKey,
        limit: ShareLimit,
        timing: ShareTiming,
        from: Micros,
    ) -> Option<&mut Allocator> {
        if !self.limits.contains_key(key) {
            if self.limits.len() >= QuotaShares::MAX_LIMITS {
                return None;
            }
            self.limits.insert(key.clone(), Allocator::starting(limit, timing, from));
        }
        let allocator = self.limits.get_mut(key)?;
        if allocator.ledger().limit() != limit {
            allocator.set_limit(limit);
        }
        Some(allocator)
    }

    fn with_holder(
        &mut self,
        id: HolderId,
        now: Micros,
        call: impl FnOnce(&mut Allocator, &mut Outbox),
    ) {
        let mut out = Outbox::new();
        let limit = self.holders.get(&id).map(|holder| &holder.limit);
        if let Some(allocator) = limit.and_then(|limit| self.limits.get_mut(limit)) {
            call(allocator, &mut out);
        }
        self.send(now, out);
    }

    fn send(&mut self, now: Micros, out: Outbox) {
        for (holder, message) in out {
            let stream = self.holders.get(&holder).map(|holder| holder.stream);
            if let Some(outgoing) = stream.and_then(|stream| self.streams.get_mut(&stream)) {
                outgoing.queue.push_back(DecidedMessage { at: now, holder, message });
                outgoing.waker.take().into_iter().for_each(Waker::wake);
            }
        }
    }
}

/// What is reported after a call for `tokens`.
fn verdict(allocator: &Allocator, now: Micros, allowed: bool, tokens: u64) -> Verdict {
    let ledger = allocator.ledger();
    let (limit, remaining) = (ledger.limit(), ledger.central_tokens());
    let at_least = Micros::from_millis(1);
    let wait = || {
        // Without a rate of its own the central bucket waits for the end of a share.
        let end = ledger.next_deadline().unwrap_or(now).saturating_sub(now);
        let start = ledger.at().saturating_sub(now);
        let wait = ledger.wait_for(tokens).map_or(end, |wait| wait.saturating_add(start));
        Wait::For(wait.max(at_least))
    };
    let retry_after = match allowed {
        _ if tokens > limit.burst => Wait::Never,
        true => Wait::NONE,
        false => wait(),
    };
    let missing = u128::from(limit.burst - remaining.min(limit.burst));
    let reset = missing * u128::from(limit.interval.length().get()) / u128::from(limit.tokens);
    Verdict {
        allowed,
        retry_after,
        delay: Micros::ZERO,
        limit: limit.burst,
        remaining,
        reset_after: Micros::new(u64::try_from(reset).unwrap_or(u64::MAX)),
    }
}

/// There is no memory for another limit.
fn denied(limit: u64) -> Verdict {
    let second = Micros::from_secs(1);
    let retry_after = Wait::For(second);
    let (allowed, remaining, delay) = (false, 0, Micros::ZERO);
    Verdict { allowed, retry_after, delay, limit, remaining, reset_after: second }
}

impl fmt::Debug for QuotaShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuotaShares").field("timing", &self.timing).finish_non_exhaustive()
    }
}
