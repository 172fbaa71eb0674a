//! The expected results of calls on a few cells.

use tidegate_core::{Expiry, Verdict, Wait};

use crate::cell::{CellEvent, CellState, ModelCell, ModelHold};
use crate::entries::{EntriesCell, SharingClass};
use crate::spec::MAX;
use crate::{ModelAnswer, ModelCall, ModelOp, ModelSettled, Spec};

/// A few cells, each one rule on one key.
#[derive(Clone, Debug)]
pub struct ExpectedWorld {
    cells: Vec<WorldCell>,
}

/// What a system does when the limit of a cell changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangeModel {
    /// The first call of the new limit puts it in force, and the old one never returns.
    Ordered,
    /// Limits return, and each call is decided under its own.
    Shared(SharingClass),
}

#[derive(Clone, Debug)]
enum WorldCell {
    Ordered(ModelCell),
    Shared(EntriesCell),
}

impl WorldCell {
    fn at(&self, now: i128) -> CellState {
        match self {
            Self::Ordered(cell) => cell.at(now),
            Self::Shared(cell) => cell.at(now),
        }
    }

    /// The cell as the operation reports it.
    fn at_op(&self, op: &ModelOp, now: i128) -> CellState {
        match (self, op.about_hold()) {
            (Self::Shared(cell), Some(id)) => cell.at_hold(id, now),
            _ => self.at(now),
        }
    }

    /// Consumption that is ahead of the clock is rebased by every call.
    fn rebase(&mut self, now: i128) {
        match self {
            Self::Ordered(cell) if cell.at(now).was_ahead() => cell.push(now, CellEvent::Rebased),
            Self::Ordered(_) => {}
            Self::Shared(cell) => cell.rebase(now),
        }
    }

    fn push(&mut self, now: i128, event: CellEvent) {
        match (self, event) {
            (Self::Ordered(cell), event) => cell.push(now, event),
            (Self::Shared(cell), CellEvent::Change(spec)) => cell.set_limit(spec),
            (Self::Shared(cell), event) => cell.apply(now, event),
        }
    }
}

/// A cell of a call, with its costs added up.
struct CallCell {
    cell: usize,
    cost: i128,
    before: CellState,
}

/// The expected verdict. Waits are not computed, but checked against their definition.
struct Expected<'a> {
    allowed: bool,
    delay: i128,
    /// The cost that `retry_after` refers to, and the state that it is counted in.
    retry: Option<(i128, &'a CellState)>,
    /// The state that is reported.
    reported: &'a CellState,
}

impl ExpectedWorld {
    pub fn new(specs: &[Spec], model: ChangeModel) -> Self {
        let cell = |&spec: &Spec| match model {
            ChangeModel::Ordered => WorldCell::Ordered(ModelCell::new(spec)),
            ChangeModel::Shared(class) => WorldCell::Shared(EntriesCell::new(spec, class)),
        };
        Self { cells: specs.iter().map(cell).collect() }
    }

    /// Is nothing used or held, under any limit?
    pub fn is_unused(&self, cell: usize, now: u64) -> bool {
        match &self.cells[cell] {
            WorldCell::Ordered(cell) => cell.at(i128::from(now)).is_unused(),
            WorldCell::Shared(cell) => cell.is_unused(i128::from(now)),
        }
    }

    /// The number of limits that have an entry on this cell.
    pub fn entry_count(&self, cell: usize) -> usize {
        match &self.cells[cell] {
            WorldCell::Ordered(_) => 1,
            WorldCell::Shared(cell) => cell.entry_count(),
        }
    }

    /// The state of this cell for a call at `now`.
    pub fn situation(&self, cell: usize, now: u64) -> CellState {
        self.cells[cell].at(i128::from(now))
    }

    /// Applies the call, and returns what is wrong with the result.
    pub fn judge(&mut self, call: &ModelCall, got: &ModelAnswer) -> Result<(), String> {
        if let ModelOp::Swap(spec) = call.op {
            self.cells[call.parts[0].cell].push(i128::from(call.now), CellEvent::Change(spec));
            return Ok(());
        }
        let mut touched = self.cells_of(call);
        let granted = grant(call, &mut touched);
        if let ModelOp::Extend { .. } = call.op {
            return self.judge_extended(call, &touched, got);
        }
        let at_once =
            matches!(call.op, ModelOp::Check | ModelOp::Hold { .. } | ModelOp::Enter { .. });
        let allowed = touched.iter().all(|t| t.before.allows(t.cost));
        let done = call.op.can_be_denied() && at_once && allowed || !call.op.can_be_denied();
        let mut refunded = 0;
        let mut expired = false;
        if done {
            for t in &touched {
                if let ModelOp::Refund = call.op {
                    refunded = refunded.max(t.before.clone().refund(t.cost));
                }
                if let ModelOp::Settle { id, uses, .. } | ModelOp::Renew { id, uses, .. } = call.op
                {
                    expired |= uses[t.cell].is_some() && !t.before.has(id);
                }
                if let Some(event) = event(call, t) {
                    self.cells[t.cell].push(i128::from(call.now), event);
                } else {
                    self.touch(t.cell, call);
                }
            }
        } else {
            touched.iter().for_each(|t| self.touch(t.cell, call));
        }
        if got.granted != granted.filter(|_| done) {
            return Err(format!("expected that {granted:?} is granted"));
        }
        if (i128::from(got.refunded), got.expired) != (refunded, expired) {
            return Err(format!("expected refunded {refunded} and expired {expired}"));
        }
        if got.verdicts.len() != call.parts.len() {
            return Err(format!("expected {} verdicts", call.parts.len()));
        }
        for (part, verdict) in call.parts.iter().zip(&got.verdicts) {
            let touched = touched.iter().find(|t| t.cell == part.cell).unwrap();
            let after = self.cells[part.cell].at_op(&call.op, i128::from(call.now));
            let expected = expected(call, touched, &after, done);
            expected.judge(verdict).map_err(|why| format!("cell {}: {why}", part.cell))?;
        }
        self.judge_settled(call, &touched, got)
    }

    fn judge_extended(
        &mut self,
        call: &ModelCall,
        touched: &[CallCell],
        got: &ModelAnswer,
    ) -> Result<(), String> {
        let ModelOp::Extend { id, uses, totals, min, ttl } = call.op else { return Ok(()) };
        if touched.iter().any(|t| uses[t.cell].is_some() && !t.before.has(id)) {
            let expired = ModelAnswer { expired: true, ..ModelAnswer::default() };
            return if *got == expired { Ok(()) } else { Err("expected that it expired".into()) };
        }
        let added = |t: &CallCell, quantity: u64| {
            let total = totals[t.cell].map_or(0, |total| i128::from(total.min(quantity)));
            (total - t.cost).max(0)
        };
        let allows = |t: &CallCell, quantity| match added(t, quantity) {
            0 => true,
            cost => t.before.fits(cost),
        };
        let fits = |quantity| touched.iter().all(|t| allows(t, quantity));
        let want = totals.iter().flatten().copied().max().unwrap_or(0);
        // What does not fit fits no more with a larger quantity.
        let (mut quantity, mut above) = (min.unwrap_or(want), want + 1);
        let granted = fits(quantity);
        while granted && above - quantity > 1 {
            let middle = quantity + (above - quantity) / 2;
            if fits(middle) { quantity = middle } else { above = middle }
        }
        let mut reserved = Vec::new();
        for t in touched {
            let cost = t.cost + if granted { added(t, quantity) } else { 0 };
            reserved.push(cost as u64);
            if granted && uses[t.cell].is_some() && (cost > t.cost || ttl.is_some()) {
                let (cost, ttl) = (Some(cost), ttl.map(i128::from));
                let event = CellEvent::Renew { id, cost, ttl };
                self.cells[t.cell].push(i128::from(call.now), event);
            }
        }
        if (&got.reserved, got.verdicts.len()) != (&reserved, touched.len()) || got.expired {
            return Err(format!("expected reserved {reserved:?}"));
        }
        for (t, verdict) in touched.iter().zip(&got.verdicts) {
            let after = self.cells[t.cell].at_op(&call.op, i128::from(call.now));
            let allowed = allows(t, quantity);
            let retry = (!allowed).then(|| (added(t, quantity), &t.before));
            let expected = Expected { allowed, delay: 0, retry, reported: &after };
            expected.judge(verdict).map_err(|why| format!("cell {}: {why}", t.cell))?;
        }
        Ok(())
    }

    fn judge_settled(
        &self,
        call: &ModelCall,
        touched: &[CallCell],
        got: &ModelAnswer,
    ) -> Result<(), String> {
        let ModelOp::Settle { .. } = call.op else {
            return if got.settled.is_empty() { Ok(()) } else { Err("nothing was settled".into()) };
        };
        let expected = call.parts.iter().map(|part| {
            let touched = touched.iter().find(|t| t.cell == part.cell).unwrap();
            let after = self.cells[part.cell].at_op(&call.op, i128::from(call.now));
            settled(call, touched, &after)
        });
        let expected: Vec<ModelSettled> = expected.collect();
        if got.settled == expected { Ok(()) } else { Err(format!("expected settled {expected:?}")) }
    }

    /// A call charged nothing.
    fn touch(&mut self, cell: usize, call: &ModelCall) {
        if let WorldCell::Shared(cell) = &mut self.cells[cell]
            && !matches!(call.op, ModelOp::Peek)
        {
            cell.touch(i128::from(call.now));
        }
    }

    /// Every cell of the call once. Consumption that is ahead of the clock is rebased in any case.
    fn cells_of(&mut self, call: &ModelCall) -> Vec<CallCell> {
        let now = i128::from(call.now);
        let mut touched: Vec<CallCell> = Vec::new();
        for part in &call.parts {
            let cost = i128::from(part.cost);
            match touched.iter_mut().find(|t| t.cell == part.cell) {
                Some(twice) => twice.cost += cost,
                None => {
                    let cell = &mut self.cells[part.cell];
                    cell.rebase(now);
                    let before = cell.at_op(&call.op, now);
                    touched.push(CallCell { cell: part.cell, cost, before });
                }
            }
        }
        touched
    }
}

impl ModelOp {
    /// Can it be denied?
    fn can_be_denied(&self) -> bool {
        matches!(self, Self::Check | Self::Peek | Self::Hold { .. } | Self::Enter { .. })
    }
}

/// Sets the costs to those of the largest quantity that fits in every cell; to those of the minimum
/// if none does. The quantity, if the call names one.
fn grant(call: &ModelCall, touched: &mut [CallCell]) -> Option<u64> {
    let ModelOp::Hold { quantity: Some(quantity), .. } = call.op else { return None };
    let fits =
        |granted| touched.iter().all(|t| t.before.allows(quantity.cost(t.cell, t.cost, granted)));
    // What does not fit fits no more with a larger quantity.
    let (mut granted, mut above) = (quantity.min, quantity.want + 1);
    while fits(granted) && above - granted > 1 {
        let middle = granted + (above - granted) / 2;
        if fits(middle) { granted = middle } else { above = middle }
    }
    for t in touched {
        t.cost = quantity.cost(t.cell, t.cost, granted);
    }
    Some(granted)
}

/// What settling a cell has charged, by what is used before and after.
fn settled(call: &ModelCall, touched: &CallCell, after: &CellState) -> ModelSettled {
    let reserved = touched.cost;
    let number = |permits: i128| permits as u64;
    let Some(Settling { actual, at_end, due }) = Settling::of(call, touched) else {
        let reserved = number(reserved);
        return ModelSettled { reserved, charged: reserved, uncharged: 0 };
    };
    let reserved = number(reserved);
    if touched.before.spec().is_held() {
        return ModelSettled { reserved, ..ModelSettled::default() };
    }
    let charged = at_end + (after.used() - touched.before.used()).clamp(0, due);
    let uncharged = (actual - charged).max(0);
    ModelSettled { reserved, charged: number(charged), uncharged: number(uncharged) }
}

/// How a cell that is held is settled.
struct Settling {
    actual: i128,
    /// What was charged when the hold expired.
    at_end: i128,
    /// What is charged now.
    due: i128,
}

impl Settling {
    /// The largest cost of one charge.
    const MAX_COST: i128 = 1 << 32;

    /// None if the call does not settle the cell, or the cell was charged at the start.
    fn of(call: &ModelCall, touched: &CallCell) -> Option<Self> {
        let ModelOp::Settle { id, uses, costs } = call.op else { return None };
        let expiry = uses[touched.cell]?;
        let is_charged = expiry == Expiry::Charge && !touched.before.has(id);
        let at_end = if is_charged { touched.cost } else { 0 };
        let actual = costs[touched.cell].map_or(touched.cost, i128::from);
        let due = (actual.min(touched.cost.max(Self::MAX_COST)) - at_end).max(0);
        Some(Self { actual, at_end, due })
    }
}

/// The effect of a call on a cell.
fn event(call: &ModelCall, touched: &CallCell) -> Option<CellEvent> {
    let &CallCell { cell, cost, ref before } = touched;
    let hold = |id, ttl: u64, expiry| {
        let ttl = i128::from(ttl);
        ModelHold { id, cost, deadline: (i128::from(call.now) + ttl).min(MAX), ttl, expiry }
    };
    if let Some((id, ttl, expiry)) = call.op.hold_on(cell, before.spec()) {
        return Some(CellEvent::Hold(hold(id, ttl, expiry)));
    }
    match call.op {
        ModelOp::Check | ModelOp::Hold { .. } | ModelOp::Enter { .. } => {
            (cost > 0).then_some(CellEvent::Charge(cost))
        }
        ModelOp::Record => (cost > 0).then_some(CellEvent::Record(cost)),
        ModelOp::Peek => None,
        ModelOp::Refund => Some(CellEvent::Refund(cost)),
        ModelOp::Reset => Some(CellEvent::Reset),
        ModelOp::Settle { id, .. } => {
            Settling::of(call, touched).map(|settling| CellEvent::Settle { id, due: settling.due })
        }
        ModelOp::Renew { id, ttl, uses } => {
            uses[cell].map(|_| CellEvent::Renew { id, cost: None, ttl: Some(i128::from(ttl)) })
        }
        ModelOp::Extend { .. } => None, // `judge_extended`
        ModelOp::Change(spec) | ModelOp::Swap(spec) => Some(CellEvent::Change(spec)),
    }
}

fn expected<'a>(
    call: &ModelCall,
    touched: &'a CallCell,
    after: &'a CellState,
    done: bool,
) -> Expected<'a> {
    let before = &touched.before;
    if !call.op.can_be_denied() || touched.cost == 0 {
        // The verdict of a peek, and the delay of a settled hold.
        let allowed = after.allows(0);
        let settling = Settling::of(call, touched);
        let delay = if settling.is_some_and(|one| one.due > 0) { before.delay() } else { 0 };
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
            (None, _) => return Err("expected no wait".into()),
            (Some((cost, _)), wait) if cost > limit => {
                if wait != Wait::Never {
                    return Err(format!("expected that {cost} never fits"));
                }
            }
            (Some(_), Wait::Never) => return Err("expected that it fits at some time".into()),
            (Some((cost, from)), Wait::For(wait)) if from.decided_anew_after(cost).is_some() => {
                let expected = from.decided_anew_after(cost).unwrap();
                if i128::from(wait.get()) != expected {
                    return Err(format!("expected a wait of {expected} for an entry"));
                }
            }
            (Some((cost, from)), Wait::For(wait)) => {
                from.is_least(wait.get(), |later| later.fits(cost))
                    .map_err(|why| format!("retry_after: {cost} {why}"))?;
            }
        }
        self.reported
            .is_least(got.reset_after.get(), CellState::is_unused)
            .map_err(|why| format!("reset_after: {why}"))
    }
}

impl CellState {
    /// Is `span` the shortest after which `holds` is true, without further calls?
    fn is_least(&self, span: u64, holds: impl Fn(&Self) -> bool) -> Result<(), String> {
        let span = i128::from(span);
        if let Some(end) = self.spec().zone().and(self.window_end())
            && span > end - self.now()
        {
            // The end of the window after this one is unknown.
            return if holds(&self.after(end - self.now())) {
                Err(format!("is true at the end of the window, before {span}"))
            } else {
                Ok(())
            };
        }
        if span < MAX && !holds(&self.after(span)) {
            return Err(format!("is not true after {span}"));
        }
        if span > 0 && holds(&self.after(span - 1)) {
            return Err(format!("is true already after {}", span - 1));
        }
        Ok(())
    }
}
