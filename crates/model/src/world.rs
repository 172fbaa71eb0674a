//! What the answers of a small world must be.

use tidegate_core::{Expiry, Verdict, Wait};

use crate::model::{Cell, Event, Hold, Situation};
use crate::spec::MAX;
use crate::{Answer, Call, Op, Spec};

/// A few cells, each one limit on one key.
#[derive(Clone, Debug)]
pub struct World {
    cells: Vec<Cell>,
}

/// A cell that a call names, with its costs added.
struct Touched {
    cell: usize,
    cost: i128,
    before: Situation,
}

/// What a verdict must be. The waits are not reckoned: they are held to their definition.
struct Expected<'a> {
    allowed: bool,
    delay: i128,
    /// The cost that `retry_after` is about, and the situation it is counted in.
    retry: Option<(i128, &'a Situation)>,
    /// The situation that is reported.
    reported: &'a Situation,
}

impl World {
    /// Unused cells.
    pub fn new(specs: &[Spec]) -> Self {
        Self { cells: specs.iter().map(|&spec| Cell::new(spec)).collect() }
    }

    /// The cell with this index as a call at `now` would find it.
    pub fn situation(&self, cell: usize, now: u64) -> Situation {
        self.cells[cell].at(i128::from(now))
    }

    /// Does the call, and says what is wrong with the answer.
    pub fn judge(&mut self, call: &Call, got: &Answer) -> Result<(), String> {
        let touched = self.touch(call);
        let at_once = matches!(call.op, Op::Check | Op::Hold { .. } | Op::Enter { .. });
        let allowed = touched.iter().all(|t| t.before.allows(t.cost));
        let done = call.op.asks() && at_once && allowed || !call.op.asks();
        let mut refunded = 0;
        let mut expired = false;
        if done {
            for t in &touched {
                if let Op::Refund = call.op {
                    refunded = refunded.max(t.before.clone().refund(t.cost));
                }
                if let Op::Settle { id, .. } | Op::Renew { id, .. } = call.op {
                    expired |= !t.before.has(id);
                }
                if let Some(event) = event(call, t.before.spec(), t.cost) {
                    self.cells[t.cell].push(i128::from(call.now), event);
                }
            }
        }
        if (i128::from(got.refunded), got.expired) != (refunded, expired) {
            return Err(format!("expected refunded {refunded} and expired {expired}"));
        }
        if got.verdicts.len() != call.parts.len() {
            return Err(format!("expected {} verdicts", call.parts.len()));
        }
        for (part, verdict) in call.parts.iter().zip(&got.verdicts) {
            let touched = touched.iter().find(|t| t.cell == part.cell).unwrap();
            let after = self.situation(part.cell, call.now);
            let expected = expected(call, touched, &after, done);
            expected.judge(verdict).map_err(|why| format!("cell {}: {why}", part.cell))?;
        }
        Ok(())
    }

    /// Every cell of the call once. What is ahead of the clock is brought back, whatever follows.
    fn touch(&mut self, call: &Call) -> Vec<Touched> {
        let now = i128::from(call.now);
        let mut touched: Vec<Touched> = Vec::new();
        for part in &call.parts {
            let cost = i128::from(part.cost);
            match touched.iter_mut().find(|t| t.cell == part.cell) {
                Some(twice) => twice.cost += cost,
                None => {
                    let cell = &mut self.cells[part.cell];
                    let before = cell.at(now);
                    if before.was_ahead() {
                        cell.push(now, Event::BroughtBack);
                    }
                    touched.push(Touched { cell: part.cell, cost, before });
                }
            }
        }
        touched
    }
}

impl Op {
    /// Can it be denied?
    fn asks(&self) -> bool {
        matches!(self, Self::Check | Self::Peek | Self::Hold { .. } | Self::Enter { .. })
    }
}

/// What a call that is done does to a cell.
fn event(call: &Call, spec: &Spec, cost: i128) -> Option<Event> {
    let hold = |id, ttl: u64, expiry| {
        let ttl = i128::from(ttl);
        Hold { id, cost, deadline: (i128::from(call.now) + ttl).min(MAX), ttl, expiry }
    };
    if let Some((id, ttl, expiry)) = call.op.hold_on(spec) {
        return Some(Event::Hold(hold(id, ttl, expiry)));
    }
    match call.op {
        Op::Check | Op::Enter { .. } | Op::Record => (cost > 0).then_some(Event::Charge(cost)),
        Op::Peek | Op::Hold { .. } => None,
        Op::Refund => Some(Event::Refund(cost)),
        Op::Reset => Some(Event::Reset),
        Op::Settle { id, expiry, cost: named } => {
            Some(Event::Settle { hold: hold(id, 0, expiry), cost: named.map_or(cost, i128::from) })
        }
        Op::Renew { id, ttl } => Some(Event::Renew { id, ttl: i128::from(ttl) }),
        Op::Change(spec) => Some(Event::Change(spec)),
    }
}

fn expected<'a>(
    call: &Call,
    touched: &'a Touched,
    after: &'a Situation,
    done: bool,
) -> Expected<'a> {
    let before = &touched.before;
    if !call.op.asks() || touched.cost == 0 {
        // The answer of a peek, and the turn that a settled hold was given.
        let allowed = after.allows(0);
        let delay = match call.op {
            Op::Settle { id, expiry, cost } => {
                let ended = !before.has(id) && expiry == Expiry::Charge;
                let due = cost.map_or(touched.cost, i128::from);
                if due > if ended { touched.cost } else { 0 } { before.delay() } else { 0 }
            }
            _ => 0,
        };
        return Expected { allowed, delay, retry: Some((1, after)), reported: after };
    }
    let allowed = before.allows(touched.cost);
    let delay = if allowed { before.delay() } else { 0 };
    if done {
        return Expected { allowed, delay, retry: None, reported: after };
    }
    Expected { allowed, delay, retry: Some((touched.cost, before)), reported: before }
}

impl Expected<'_> {
    fn judge(&self, got: &Verdict) -> Result<(), String> {
        let limit = self.reported.spec().capacity();
        let remaining = self.reported.remaining();
        let delay = self.delay.min(MAX);
        let plain = (got.allowed, got.delay.get(), got.limit, got.remaining);
        let allowed = self.allowed;
        if plain != (allowed, delay as u64, limit as u64, remaining as u64) {
            return Err(format!(
                "expected allowed {allowed}, delay {delay}, limit {limit}, remaining {remaining}"
            ));
        }
        match (self.retry, got.retry_after) {
            (None, Wait::NONE) => {}
            (None, _) => return Err("expected to wait for nothing".into()),
            (Some((cost, _)), wait) if cost > limit => {
                if wait != Wait::Never {
                    return Err(format!("expected that {cost} never fits"));
                }
            }
            (Some(_), Wait::Never) => return Err("expected that it fits some day".into()),
            (Some((cost, from)), Wait::For(wait)) => {
                from.is_least(wait.get(), |later| later.fits(cost))
                    .map_err(|why| format!("retry_after: {cost} {why}"))?;
            }
        }
        self.reported
            .is_least(got.reset_after.get(), Situation::is_unused)
            .map_err(|why| format!("reset_after: {why}"))
    }
}

impl Situation {
    /// Is `span` the least after which `holds`, if nobody comes?
    fn is_least(&self, span: u64, holds: impl Fn(&Self) -> bool) -> Result<(), String> {
        let span = i128::from(span);
        if let Some(end) = self.spec().zone().and(self.window_end())
            && span > end - self.now()
        {
            // Nobody knows when the window after this one ends.
            return if holds(&self.after(end - self.now())) {
                Err(format!("is so when the window ends, before {span}"))
            } else {
                Ok(())
            };
        }
        if span < MAX && !holds(&self.after(span)) {
            return Err(format!("is not so after {span}"));
        }
        if span > 0 && holds(&self.after(span - 1)) {
            return Err(format!("is so already after {}", span - 1));
        }
        Ok(())
    }
}
