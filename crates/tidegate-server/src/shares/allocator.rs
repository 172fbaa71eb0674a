//! Who gets which share of a limit: max-min fairness over the demand of the latest reports.
//!
//! Any policy is safe, since the [`Ledger`] decides what can be lent; this one is about use and
//! fairness.

use std::collections::BTreeMap;

use tidegate::Micros;

use super::demand::RequestDemand;
use super::fairness::divide;
use super::ledger::{Assignment, HolderId, Ledger, Share, ShareTiming};
use tidegate_config::envoy::ShareLimit;

/// What a holder is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    Assign(Assignment),
    /// It has no share.
    DenyAll,
}

/// Messages in the order in which they must be written.
pub(crate) type Outbox = Vec<(HolderId, Message)>;

/// A holder that is connected.
#[derive(Clone, Debug)]
struct Participant {
    demand: RequestDemand,
    joined: Micros,
    reported: Micros,
    target: Share,
    /// It has not reported for as long as a share lasts.
    is_silent: bool,
}

/// Divides one limit among holders and the callers of its central bucket.
#[derive(Clone, Debug)]
pub(crate) struct Allocator {
    ledger: Ledger,
    participants: BTreeMap<HolderId, Participant>,
    /// Demand of callers of the central bucket.
    central: RequestDemand,
    central_count: u64,
    central_target: u64,
    planned: Option<Micros>,
    ticked: Micros,
    /// Whether a holder has much less than its target.
    is_contended: bool,
}

impl Allocator {
    /// The shortest time between two plans.
    const PLAN_EVERY: Micros = Micros::from_millis(250);

    /// Nothing is lent before `from`, and the central bucket is empty then.
    pub(crate) fn starting(limit: ShareLimit, timing: ShareTiming, from: Micros) -> Self {
        Self {
            ledger: Ledger::starting(limit, timing, from),
            participants: BTreeMap::new(),
            central: RequestDemand::default(),
            central_count: 0,
            central_target: 0,
            planned: None,
            ticked: from,
            is_contended: false,
        }
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    #[cfg(test)]
    pub(crate) fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// Whether no holder is there and nothing is used.
    pub(crate) fn is_unused(&self) -> bool {
        self.participants.is_empty() && self.ledger.is_unused()
    }

    /// Puts another limit in force.
    pub(crate) fn set_limit(&mut self, limit: ShareLimit) {
        self.ledger.set_limit(limit);
        self.planned = None;
    }

    /// Ends what has expired, and tells holders whose share has ended before it is lent anew.
    pub(crate) fn advance(&mut self, now: Micros, out: &mut Outbox) {
        for id in self.ledger.advance(now) {
            self.deny(id, out);
        }
    }

    fn deny(&mut self, id: HolderId, out: &mut Outbox) {
        self.ledger.forget_last(id);
        out.push((id, Message::DenyAll));
    }

    /// A bucket reports for the first time on its stream.
    pub(crate) fn join(&mut self, now: Micros, id: HolderId, out: &mut Outbox) {
        self.advance(now, out);
        self.ledger.join(id);
        let new = Participant {
            demand: RequestDemand::default(),
            joined: now,
            reported: now,
            target: Share::default(),
            is_silent: false,
        };
        self.participants.insert(id, new);
        self.planned = None;
        self.plan(now);
        self.renew(now, id, out);
    }

    /// The stream of a holder has ended.
    pub(crate) fn leave(&mut self, now: Micros, id: HolderId, out: &mut Outbox) {
        self.advance(now, out);
        self.ledger.leave(id);
        self.participants.remove(&id);
        self.planned = None;
    }

    /// A holder reports `count` requests, admitted and denied.
    pub(crate) fn report(&mut self, now: Micros, id: HolderId, count: u64, out: &mut Outbox) {
        self.advance(now, out);
        let Some(participant) = self.participants.get_mut(&id) else { return };
        participant.demand.add(count, now.saturating_sub(participant.reported));
        participant.reported = now;
        participant.is_silent = false;
        self.plan(now);
        self.renew(now, id, out);
    }

    /// A message was not written in time, and never will be.
    pub(crate) fn dropped(&mut self, id: HolderId) {
        self.ledger.forget_last(id);
    }

    /// What is done every second: new shares for holders that have too little.
    pub(crate) fn tick(&mut self, now: Micros, out: &mut Outbox) {
        self.advance(now, out);
        let lifetime = self.ledger.timing().lifetime();
        for participant in self.participants.values_mut() {
            participant.is_silent = now.saturating_sub(participant.reported) >= lifetime;
        }
        let count = std::mem::take(&mut self.central_count);
        self.central.add(count, now.saturating_sub(self.ticked));
        self.ticked = self.ticked.max(now);
        self.plan(now);
        let live = self.participants.iter().filter(|(_, it)| !it.is_silent);
        let mut poorest: Vec<(u64, HolderId)> = live
            .filter_map(|(&id, it)| {
                let has = self.in_use(id).tokens;
                let is_poor = has < it.target.tokens - it.target.tokens / 4;
                is_poor.then(|| (has * 1_024 / it.target.tokens.max(1), id))
            })
            .collect();
        poorest.sort_unstable();
        for (_, id) in poorest {
            if self.in_use(id) == Share::default() && self.ledger.has_share(id) {
                // Its bucket may be in use or not; it reports before it can be without a share.
                continue;
            }
            self.increase(id, out);
        }
    }

    /// Takes `tokens` from the central bucket, if it has them.
    pub(crate) fn take(&mut self, now: Micros, tokens: u64, out: &mut Outbox) -> bool {
        self.advance(now, out);
        self.central_count = self.central_count.saturating_add(tokens);
        self.ledger.take(tokens)
    }

    /// Takes `tokens` from the central bucket whether or not they are there.
    pub(crate) fn record(&mut self, now: Micros, tokens: u64, out: &mut Outbox) {
        self.advance(now, out);
        self.central_count = self.central_count.saturating_add(tokens);
        self.ledger.record(tokens);
    }

    /// Gives tokens back that were taken and not used.
    pub(crate) fn give_back(&mut self, tokens: u64) {
        self.ledger.give_back(tokens);
    }

    fn in_use(&self, id: HolderId) -> Share {
        self.ledger.in_use(id).map_or(Share::default(), |it| it.share)
    }

    /// Sends a holder its next share, or tells it that it has none.
    fn renew(&mut self, now: Micros, id: HolderId, out: &mut Outbox) {
        let Some(wanted) = self.wanted(id) else { return };
        if let Some(assignment) = self.ledger.grant(id, wanted) {
            out.push((id, Message::Assign(assignment)));
            return;
        }
        // A bucket that was assigned on an earlier stream may use its share until it ends.
        let joined = self.participants.get(&id).map_or(now, |it| it.joined);
        let is_new = now.saturating_sub(joined) < self.ledger.timing().lifetime();
        if !is_new && !self.ledger.has_share(id) {
            self.deny(id, out);
        }
    }

    /// Sends a holder a larger share, if that makes a difference.
    fn increase(&mut self, id: HolderId, out: &mut Outbox) {
        let has = self.in_use(id);
        let Some(wanted) = self.wanted(id) else { return };
        let free = self.ledger.limit().tokens.saturating_sub(self.ledger.lent().tokens);
        let reach = wanted.tokens.min(free.saturating_add(self.ledger.lent_to(id).tokens));
        if reach <= has.tokens + has.tokens / 4 {
            return;
        }
        if let Some(assignment) = self.ledger.grant(id, wanted) {
            out.push((id, Message::Assign(assignment)));
        }
    }

    /// The share to ask the ledger for. One that is close to its target stays as it is, since every
    /// change costs a fraction of a token.
    fn wanted(&self, id: HolderId) -> Option<Share> {
        let target = self.participants.get(&id)?.target;
        let Some(has) = self.ledger.in_use(id).map(|it| it.share) else {
            return Some(Share { tokens: self.within_reserve(id, target.tokens), ..target });
        };
        let seconds = self.ledger.limit().interval.length().get() / 1_000_000;
        let is_slow = target.tokens <= 5 * seconds;
        let tolerance = if is_slow { target.tokens / 4 } else { target.tokens * 3 / 100 };
        let is_close = has.tokens.abs_diff(target.tokens) <= tolerance;
        let gives_way = self.is_contended && has.tokens > target.tokens;
        if !is_close || gives_way {
            let tokens = match target.tokens > has.tokens {
                true => self.within_reserve(id, target.tokens).max(has.tokens),
                false => target.tokens,
            };
            return Some(Share { tokens, burst: target.burst });
        }
        let missing = target.burst.saturating_sub(has.burst);
        let growth = missing.min(self.ledger.central_tokens());
        let burst = if growth > 0 && growth >= missing.min(target.burst.div_ceil(4)) {
            has.burst + growth
        } else {
            has.burst
        };
        Some(Share { tokens: has.tokens, burst })
    }

    /// While bursts are owed, an eighth of the rate stays at the central bucket to pay them, and
    /// its callers keep their part.
    fn within_reserve(&self, id: HolderId, tokens: u64) -> u64 {
        let total = self.lendable();
        let others = self.ledger.lent().tokens - self.ledger.lent_to(id).tokens;
        tokens.min(total.saturating_sub(others))
    }

    /// Tokens per interval that may be lent to all holders together.
    fn lendable(&self) -> u64 {
        let total = self.ledger.limit().tokens;
        let reserve = if self.owes_bursts() { total.div_ceil(8) } else { 0 };
        total.saturating_sub(reserve.max(self.central_target))
    }

    fn owes_bursts(&self) -> bool {
        let live = self.participants.iter().filter(|(_, it)| !it.is_silent);
        let owed: u64 =
            live.map(|(&id, it)| it.target.burst.saturating_sub(self.in_use(id).burst)).sum();
        owed > self.ledger.central_tokens()
    }

    /// Sets the targets of all holders.
    fn plan(&mut self, now: Micros) {
        if self.planned.is_some_and(|at| now.saturating_sub(at) < Self::PLAN_EVERY) {
            return;
        }
        self.planned = Some(now);
        let limit = self.ledger.limit();
        let length = limit.interval.length();
        let central = self.central.in_span(length).filter(|&demand| demand > 0);
        let live: Vec<HolderId> =
            self.participants.iter().filter(|(_, it)| !it.is_silent).map(|(&id, _)| id).collect();
        let count = live.len() as u64 + u64::from(central.is_some());
        let even = limit.tokens / count.max(1);
        let floor = (even / 20).max(1);
        // A sixteenth of headroom.
        let with_headroom = |demand: u64| demand.saturating_add(demand / 16).max(floor);
        let demand = |id: &HolderId| self.participants.get(id)?.demand.in_span(length);
        let mut wanted: Vec<u64> =
            live.iter().map(|id| demand(id).map_or(floor, with_headroom)).collect();
        wanted.extend(central.map(with_headroom));
        let shares = divide(limit.tokens, &wanted);
        self.central_target =
            if central.is_some() { shares.last().copied().unwrap_or(0) } else { 0 };
        for (id, &tokens) in live.iter().zip(&shares) {
            let burst = u128::from(limit.burst) * u128::from(tokens) / u128::from(limit.tokens);
            let burst = u64::try_from(burst).unwrap_or(limit.burst).max(1);
            if let Some(participant) = self.participants.get_mut(id) {
                participant.target = Share { burst, tokens };
            }
        }
        let has_little = |id: &HolderId| {
            let target = self.participants.get(id).map_or(0, |it| it.target.tokens);
            self.in_use(*id).tokens < target - target / 4
        };
        let left = limit.tokens.saturating_sub(self.ledger.lent().tokens);
        self.is_contended = live.iter().any(has_little) || left < self.central_target / 4 * 3;
    }
}
