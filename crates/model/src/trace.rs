//! Random calls on a few cells, drawn where an implementation is most likely to be wrong.

use tidegate_core::{Expiry, Wait};

use crate::alternating_limits::AlternatingLimits;
use crate::cell::CellState;
use crate::spec::{MAX, WindowKind};
use crate::{
    CellUses, ChangeModel, ExpectedWorld, MAX_CELLS, ModelAnswer, ModelCall, ModelCharge, ModelOp,
    ModelQuantity, Spec, TraceRng,
};

const DAY: u64 = 86_400_000_000;
const MAX_COST: u64 = 1 << 32;

/// What a system under test supports.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// The longest TTL of a hold, in microseconds.
    pub max_ttl: u64,
    /// How long after its expiry a hold can be settled, in microseconds.
    pub remembers: u64,
    /// Can concurrency be charged like other limits, or only be held?
    pub concurrency_is_charged: bool,
    /// Can holds be extended? Engines do that, the core has no such operation.
    pub extends: bool,
    pub changes: bool,
    /// Can a limit change while there are holds on it? A hold whose cell was forgotten is settled
    /// under the limit that it was made for. So such a hold is never settled on a system that
    /// forgets.
    pub changes_with_holds: bool,
    /// What happens when a limit changes?
    pub model: ChangeModel,
    /// Do limits return while they are in use? Only if the model has several limits on a cell.
    pub returns: bool,
    /// Are there windows of artificial zones, which only a caller of the core can pass in?
    pub zones: bool,
    /// Can the system forget a state that has recovered? If so, such states are reset before the
    /// clock steps back to a time at which they had not.
    pub forgets: bool,
    /// The last instant, in microseconds.
    pub last_instant: u64,
    /// The fewest calls of a trace.
    pub min_len: u64,
}

impl Profile {
    /// Everything that the definition has.
    pub const EVERYTHING: Self = Self {
        max_ttl: MAX as u64,
        remembers: MAX as u64,
        concurrency_is_charged: true,
        extends: false,
        changes: true,
        changes_with_holds: true,
        model: ChangeModel::Ordered,
        returns: false,
        zones: true,
        forgets: false,
        last_instant: MAX as u64,
        min_len: 5,
    };

    fn allows(&self, spec: &Spec) -> bool {
        self.zones || !matches!(spec, Spec::Fixed { window: WindowKind::Zoned(..), .. })
    }

    /// Draws until the profile allows the limit.
    fn draw(&self, rng: &mut TraceRng, draw: impl Fn(&mut TraceRng) -> Spec) -> Spec {
        loop {
            let spec = draw(rng);
            if self.allows(&spec) {
                return spec;
            }
        }
    }
}

/// The calls of one seed. They depend on the results of earlier calls.
pub(crate) struct Trace {
    rng: TraceRng,
    profile: Profile,
    specs: Vec<Spec>,
    now: u64,
    last_instant: u64,
    steps_back: bool,
    holds: bool,
    charging_holds: bool,
    changes: bool,
    flips: Option<AlternatingLimits>,
    /// Was the last call a change of the limit?
    has_flipped: bool,
    reset_next: Vec<usize>,
    steps_next: bool,
    granted: Vec<Granted>,
    next_id: u128,
    /// Instants that results contain.
    named: Vec<u64>,
}

/// A hold that may be settled.
#[derive(Clone)]
struct Granted {
    id: u128,
    uses: CellUses,
    parts: Vec<ModelCharge>,
    /// Cells that were queues, which cannot be extended.
    queues: Vec<usize>,
    /// The deadline that it was granted with or renewed to.
    until: u64,
    /// Cells whose limit has changed since.
    changed: Vec<usize>,
}

impl Granted {
    /// Is this cell held, and charged if it expires?
    fn is_charging(&self, cell: usize) -> bool {
        self.uses[cell] == Some(Expiry::Charge)
    }
}

impl Trace {
    pub(crate) fn new(seed: u64, profile: Profile) -> Self {
        let mut rng = TraceRng::new(seed);
        let cells = rng.pick(&[1, 1, 1, 2, 2, 3, 4]);
        let specs: Vec<Spec> =
            (0..cells).map(|_| profile.draw(&mut rng, Spec::draw_good)).collect();
        let steps_back = rng.one_in(2);
        let changes = profile.changes && rng.one_in(3);
        let held = specs.iter().any(|spec| matches!(spec, Spec::Concurrency { .. }));
        let changes = changes && (profile.changes_with_holds || !held);
        let is_shared = profile.model != ChangeModel::Ordered;
        let flips = (changes && is_shared)
            .then(|| AlternatingLimits::new(&mut rng, &specs, profile.returns));
        // A system that orders limits keeps less, and reports a settled hold under the newest.
        let is_plain = flips.is_some() && !profile.returns;
        let steps_back = steps_back && !is_plain;
        // The windows of a zone in the past and in the far future are unknown.
        let zoned = specs.iter().any(|spec| match spec {
            Spec::Fixed { window, .. } => {
                changes && !is_shared || matches!(window, WindowKind::Zoned(..))
            }
            _ => false,
        });
        let unzoned = profile.last_instant;
        let last_instant = if zoned { unzoned.min(MAX as u64 - 1_000 * DAY) } else { unzoned };
        let start = match rng.below(20) {
            0 => 0,
            1 => rng.magnitude(1 << 20),
            2 => last_instant - rng.magnitude(last_instant),
            3..=5 => rng.below(last_instant),
            _ => 1_700_000_000_000_000 + rng.below(365 * DAY),
        };
        let holds = rng.below(3) > 0 && (!changes || profile.changes_with_holds) && !is_plain;
        Self {
            profile,
            specs,
            now: start,
            last_instant,
            steps_back,
            holds,
            charging_holds: !(zoned && steps_back),
            changes: changes && !is_shared,
            flips,
            has_flipped: false,
            reset_next: Vec::new(),
            steps_next: false,
            granted: Vec::new(),
            next_id: 0,
            named: Vec::new(),
            rng,
        }
    }

    pub(crate) fn specs(&self) -> &[Spec] {
        &self.specs
    }

    pub(crate) fn len(&mut self) -> u64 {
        let least = self.profile.min_len;
        match self.rng.one_in(20) {
            true => self.rng.between(100, 300),
            false => self.rng.between(least, 2 * least.max(30)),
        }
    }

    pub(crate) fn next(&mut self, world: &ExpectedWorld) -> ModelCall {
        let cell = self.rng.below(self.specs.len() as u64) as usize;
        if !self.steps_next && self.steps_back && self.rng.one_in(12) {
            self.steps_next = true;
            let unused = |&cell: &usize| world.is_unused(cell, self.now);
            let cells = 0..if self.profile.forgets { self.specs.len() } else { 0 };
            self.reset_next = cells.filter(unused).collect();
        }
        if let Some(cell) = self.reset_next.pop() {
            return ModelCall {
                now: self.now,
                op: ModelOp::Reset,
                parts: vec![ModelCharge { cell, cost: 0 }],
            };
        }
        if let Some(spec) = self.flip(cell, world) {
            let parts = vec![ModelCharge { cell, cost: 0 }];
            return ModelCall { now: self.now, op: ModelOp::Swap(spec), parts };
        }
        self.move_time(&world.situation(cell, self.now));
        let mut op = self.op(cell, world);
        let mut parts = self.parts(op, cell, world);
        if let ModelOp::Hold { uses, quantity, .. } = &mut op {
            *quantity = self.quantity(uses, &mut parts, world);
        }
        if let ModelOp::Hold { uses, .. } = op
            && parts.iter().all(|part| uses[part.cell].is_none())
        {
            op = ModelOp::Check; // there is nothing to hold
        }
        ModelCall { now: self.now, op, parts }
    }

    fn flip(&mut self, cell: usize, world: &ExpectedWorld) -> Option<Spec> {
        // Not between noticing that states are unused, resetting them and the step back.
        let has_flipped = std::mem::take(&mut self.has_flipped);
        if has_flipped || self.steps_next || !self.profile.returns && world.entry_count(cell) > 1 {
            return None;
        }
        let next = self.flips.as_ref()?.next(&mut self.rng, cell, &self.specs[cell]);
        self.has_flipped = next.is_some();
        next
    }

    /// Stores the instants and holds of the result.
    pub(crate) fn record_result(&mut self, call: &ModelCall, result: &ModelAnswer) {
        self.named.clear();
        for verdict in &result.verdicts {
            if let Wait::For(wait) = verdict.retry_after {
                self.named.push(call.now.saturating_add(wait.get()));
            }
            self.named.push(call.now.saturating_add(verdict.reset_after.get()));
        }
        match call.op {
            ModelOp::Hold { .. } | ModelOp::Enter { .. }
                if result.verdicts.iter().all(|v| v.allowed) =>
            {
                let mut parts: Vec<ModelCharge> = Vec::new();
                let (mut made, mut uses) = (None, CellUses::default());
                for part in &call.parts {
                    let hold = call.op.hold_on(part.cell, &self.specs[part.cell]);
                    made = hold.or(made);
                    uses[part.cell] = hold.map(|(_, _, expiry)| expiry);
                    // Only a reservation reports cells that it has charged.
                    if hold.is_none() && matches!(call.op, ModelOp::Enter { .. }) {
                        continue;
                    }
                    match parts.iter_mut().find(|p| p.cell == part.cell) {
                        Some(twice) => twice.cost += part.cost,
                        None => parts.push(*part),
                    }
                }
                set_granted(&mut parts, call.op, result.granted);
                if let Some((id, ttl, _)) = made {
                    let (until, changed) = (call.now + ttl, Vec::new());
                    let queues = (0..self.specs.len()).filter(|cell| self.specs[*cell].is_queue());
                    let queues = queues.collect();
                    self.granted.push(Granted { id, uses, parts, queues, until, changed });
                }
            }
            ModelOp::Renew { id, ttl, .. } if !result.expired => {
                let renewed = self.granted.iter_mut().filter(|granted| granted.id == id);
                renewed.for_each(|granted| granted.until = call.now + ttl);
            }
            ModelOp::Extend { id, ttl, .. }
                if !result.expired && result.verdicts.iter().all(|v| v.allowed) =>
            {
                for granted in self.granted.iter_mut().filter(|granted| granted.id == id) {
                    granted.until = ttl.map_or(granted.until, |ttl| call.now + ttl);
                    let parts = granted.parts.iter_mut().zip(&result.reserved);
                    parts.for_each(|(part, reserved)| part.cost = *reserved);
                }
            }
            ModelOp::Settle { id, .. } => self.granted.retain(|granted| granted.id != id),
            // A hold that was removed by a reset is never settled.
            ModelOp::Reset => {
                let cell = call.parts[0].cell;
                let elsewhere = |granted: &Granted| granted.parts.iter().all(|p| p.cell != cell);
                self.granted.retain(|granted| granted.is_charging(cell) || elsewhere(granted));
            }
            ModelOp::Change(spec) | ModelOp::Swap(spec) => {
                let cell = call.parts[0].cell;
                self.specs[cell] = spec;
                for granted in &mut self.granted {
                    if granted.parts.iter().any(|part| part.cell == cell) {
                        granted.changed.push(cell);
                    }
                }
            }
            _ => {}
        }
    }

    fn move_time(&mut self, found: &CellState) {
        let rng = &mut self.rng;
        let scale = scale(found.spec());
        if std::mem::take(&mut self.steps_next) {
            let step = match rng.below(5) {
                0 => 1,
                1 => rng.between(1, 2 * found.spec().tick() as u64 + 2),
                2 => rng.magnitude(scale),
                3 => rng.magnitude(4 * scale),
                _ => rng.magnitude(self.now),
            };
            self.now = self.now.saturating_sub(step);
            return;
        }
        let deadlines: Vec<u64> = found.deadlines().map(|deadline| deadline as u64).collect();
        let to = match rng.below(24) {
            0..=7 => self.now,
            8 => self.now + 1,
            9 => self.now + rng.around(found.spec().tick() as u64),
            10..=13 if !self.named.is_empty() => {
                let named = rng.pick(&self.named);
                named - rng.below(2).min(named)
            }
            14 | 15 if !deadlines.is_empty() => {
                let deadline = rng.pick(&deadlines);
                rng.around(deadline)
            }
            16 | 17 => {
                let grain = grain(found.spec());
                let next = match found.window_end() {
                    Some(end) => end as u64,
                    None => (self.now / grain + 1) * grain,
                };
                rng.around(next)
            }
            18 => self.now + rng.magnitude(16 * scale),
            19 if rng.one_in(4) => self.now + rng.magnitude(MAX as u64),
            _ => self.now + rng.magnitude(2 * scale),
        };
        self.now = to.clamp(self.now, self.last_instant);
    }

    fn op(&mut self, cell: usize, world: &ExpectedWorld) -> ModelOp {
        let remembers = self.profile.remembers;
        let forgotten = self.now.saturating_sub(remembers);
        self.granted.retain(|granted| granted.until > forgotten || remembers == MAX as u64);
        let rng = &mut self.rng;
        let holds_only =
            !self.profile.concurrency_is_charged && self.specs.iter().any(Spec::is_held);
        match rng.below(100) {
            // A peek puts no new limit in force, unless the system orders limits.
            0..=7 if self.flips.is_none() || self.profile.returns => ModelOp::Peek,
            8..=14 if !holds_only => ModelOp::Record,
            15..=21 if !holds_only => ModelOp::Refund,
            22 => ModelOp::Reset,
            23..=34 if self.holds || holds_only => {
                let uses = self.uses();
                ModelOp::Hold { id: self.new_id(), ttl: self.ttl(cell), uses, quantity: None }
            }
            35..=46 if !self.granted.is_empty() => {
                let place = rng.below(self.granted.len() as u64) as usize;
                let granted = &self.granted[place];
                if may_be_forgotten(&self.profile, granted, world, self.now) {
                    return ModelOp::Peek;
                }
                let Granted { id, uses, ref parts, .. } = *granted;
                if rng.one_in(4) {
                    return ModelOp::Renew { id, ttl: self.ttl(cell), uses };
                }
                let mut costs = [None; MAX_CELLS];
                let (is_cancelled, is_as_held) = (rng.one_in(6), rng.one_in(4));
                for part in parts.iter().filter(|part| uses[part.cell].is_some()) {
                    // Slots have no actual cost.
                    if self.specs[part.cell].is_held() || is_as_held {
                        continue;
                    }
                    costs[part.cell] = match rng.below(7) {
                        _ if is_cancelled => Some(0),
                        0 => Some(0),
                        1 => Some(part.cost / 2),
                        2 => Some(part.cost + 1),
                        3 => Some(rng.magnitude(MAX_COST)),
                        4 => Some(rng.magnitude(2 * MAX_COST)),
                        5 => Some(part.cost),
                        _ => None,
                    };
                }
                ModelOp::Settle { id, uses, costs }
            }
            47..=50 if self.changes => {
                let old = self.specs[cell];
                let new = self.profile.draw(rng, |rng| old.draw_change(rng));
                // The same limit in another notation is no change, and neither is one with the same
                // numbers.
                let numbers = |spec: &Spec| spec.limit().map(|limit| limit.numbers());
                if numbers(&new) == numbers(&old) { ModelOp::Peek } else { ModelOp::Change(new) }
            }
            // The latest hold: of the others more have expired.
            51..=60 if self.profile.extends && !self.granted.is_empty() => {
                let place = self.granted.len() - 1;
                if may_be_forgotten(&self.profile, &self.granted[place], world, self.now) {
                    return ModelOp::Peek;
                }
                self.extend(place, cell, world)
            }
            _ if holds_only || self.holds && rng.one_in(6) => {
                ModelOp::Enter { id: self.new_id(), ttl: self.ttl(cell) }
            }
            _ => ModelOp::Check,
        }
    }

    /// Lets a third of the holds grant a quantity, in some of the cells that can be extended. Sets
    /// their costs to those of the minimum.
    fn quantity(
        &mut self,
        uses: &CellUses,
        parts: &mut [ModelCharge],
        world: &ExpectedWorld,
    ) -> Option<ModelQuantity> {
        if !self.profile.extends || !self.rng.one_in(3) {
            return None;
        }
        let mut per_unit = [None; MAX_CELLS];
        let mut left = None;
        for part in &*parts {
            let spec = &self.specs[part.cell];
            if uses[part.cell].is_some() && !spec.is_held() && !spec.is_queue() {
                left = Some(world.situation(part.cell, self.now).remaining() as u64);
                per_unit[part.cell] = Some(match self.rng.below(4) {
                    0 | 1 => (1, 1),
                    2 => (self.rng.between(1, 20) as u32, self.rng.between(1, 20) as u32),
                    _ => (self.rng.magnitude(1 << 31) as u32, self.rng.between(1, 1 << 20) as u32),
                });
            }
        }
        let left = left?;
        let want = match self.rng.below(6) {
            0 => self.rng.between(1, 5),
            1 => left,
            2 => left + 1,
            3 => left.saturating_mul(2),
            4 => self.rng.magnitude(MAX_COST),
            _ => self.rng.between(1, left.max(1)),
        };
        let want = want.clamp(1, MAX_COST / 2);
        let min = if self.rng.one_in(3) { 1 } else { self.rng.between(1, want) };
        let mut quantity = ModelQuantity { min, want, per_unit };
        for (place, unit) in quantity.per_unit.iter_mut().enumerate() {
            let is_large = unit.is_some_and(|(num, den)| {
                u128::from(want) * u128::from(num) > u128::from(MAX_COST / 2) * u128::from(den)
            });
            if is_large {
                *unit = Some((1, 1));
            }
            // Twice the same cell: one of the charges is fixed.
            for (nth, part) in parts.iter_mut().filter(|part| part.cell == place).enumerate() {
                let Some((num, den)) = *unit else { continue };
                let base = [0, self.rng.below(4), part.cost.min(left / 2).min(1 << 30)];
                let of_min = (u128::from(min) * u128::from(num)).div_ceil(u128::from(den)) as u64;
                part.cost = match nth {
                    0 => self.rng.pick(&base) + of_min,
                    _ => part.cost.clamp(1, 3),
                };
            }
        }
        Some(quantity)
    }

    /// Extends a hold; half of the time in all cells by the same total.
    fn extend(&mut self, place: usize, cell: usize, world: &ExpectedWorld) -> ModelOp {
        let Granted { id, uses, parts, queues, .. } = self.granted[place].clone();
        let mut totals = [None; MAX_CELLS];
        for part in &parts {
            let is_charged = uses[part.cell].is_some() && !self.specs[part.cell].is_held();
            if !is_charged || queues.contains(&part.cell) || self.rng.one_in(5) {
                continue;
            }
            let remaining = world.situation(part.cell, self.now).remaining() as u64;
            let total = match self.rng.below(7) {
                0 => part.cost,
                1 => part.cost + 1,
                2 => part.cost + remaining,
                3 => part.cost + remaining + 1,
                4 => part.cost + remaining / 2,
                5 => part.cost / 2,
                _ => self.rng.magnitude(MAX_COST),
            };
            totals[part.cell] = Some(total.min(MAX_COST));
        }
        let mut min = None;
        let first = totals.iter().flatten().next().copied();
        if let Some(total) = first.filter(|total| *total > 0 && self.rng.one_in(2)) {
            totals.iter_mut().flatten().for_each(|other| *other = total);
            min = Some(self.rng.between(1, total)).filter(|_| self.rng.one_in(2));
        }
        let ttl = self.rng.one_in(3).then(|| self.ttl(cell));
        ModelOp::Extend { id, uses, totals, min, ttl }
    }

    /// What a hold does with each cell.
    fn uses(&mut self) -> CellUses {
        let all_charging = self.charging_holds && self.rng.one_in(4);
        let mut uses = [Some(Expiry::Release); MAX_CELLS];
        for (spec, held) in self.specs.iter().zip(&mut uses) {
            *held = match self.rng.below(8) {
                _ if spec.is_held() => Some(Expiry::Release),
                _ if all_charging => Some(Expiry::Charge),
                0..=2 if self.charging_holds => Some(Expiry::Charge),
                // A cell that was charged is reported under the newest limit, not under its own.
                3..=4 if self.flips.is_none() => None,
                _ => Some(Expiry::Release),
            };
        }
        uses
    }

    fn new_id(&mut self) -> u128 {
        self.next_id += 1;
        self.next_id
    }

    fn ttl(&mut self, cell: usize) -> u64 {
        let scale = scale(&self.specs[cell]);
        let ttl = match self.rng.below(6) {
            0 => 1,
            1 => self.rng.around(self.specs[cell].tick() as u64),
            2 => self.rng.magnitude(MAX as u64),
            _ => self.rng.magnitude(2 * scale),
        };
        ttl.clamp(1, self.profile.max_ttl)
    }

    fn parts(&mut self, op: ModelOp, cell: usize, world: &ExpectedWorld) -> Vec<ModelCharge> {
        if let Some(id) = op.about_hold() {
            let granted = self.granted.iter().find(|granted| granted.id == id).unwrap();
            return granted.parts.clone();
        }
        match op {
            ModelOp::Reset | ModelOp::Change(_) | ModelOp::Swap(_) => {
                return vec![ModelCharge { cell, cost: 0 }];
            }
            _ => {}
        }
        let mut cells = vec![cell];
        if self.rng.one_in(3) {
            for other in 0..self.specs.len() {
                if other != cell && self.rng.one_in(2) {
                    cells.push(other);
                }
            }
        }
        if self.rng.one_in(16) && !matches!(op, ModelOp::Refund) {
            let twice = self.rng.pick(&cells);
            cells.push(twice);
        }
        let parts = cells.iter().map(|&cell| {
            let found = world.situation(cell, self.now);
            let zero_is_fine = match op {
                ModelOp::Enter { .. } => !found.spec().is_held(),
                ModelOp::Hold { uses, .. } => uses[cell].is_none(),
                _ => matches!(op, ModelOp::Check | ModelOp::Peek),
            };
            let cost = self.cost(&found).max(u64::from(!zero_is_fine));
            ModelCharge { cell, cost }
        });
        parts.collect()
    }

    fn cost(&mut self, found: &CellState) -> u64 {
        let capacity = found.spec().capacity() as u64;
        let remaining = found.remaining() as u64;
        let cost = match self.rng.below(20) {
            0 => 0,
            1..=7 => 1,
            8 | 9 => self.rng.between(1, 5),
            10 | 11 => remaining,
            12 => remaining + 1,
            13 => remaining.saturating_sub(1),
            14 => self.rng.around(capacity),
            15 => self.rng.around(found.used() as u64),
            16 => self.rng.magnitude(capacity.max(1)),
            17 => self.rng.magnitude(MAX_COST),
            18 => MAX_COST,
            _ => self.rng.between(1, 3),
        };
        cost.min(MAX_COST)
    }
}

/// Sets the costs of a hold to those of the quantity that it was granted.
fn set_granted(parts: &mut [ModelCharge], op: ModelOp, granted: Option<u64>) {
    if let (ModelOp::Hold { quantity: Some(quantity), .. }, Some(granted)) = (op, granted) {
        for part in parts {
            part.cost = quantity.cost(part.cell, i128::from(part.cost), granted) as u64;
        }
    }
}

/// Can the system have forgotten under which limit the hold is settled? One that keeps a single
/// limit does so once nothing is used under that, though other limits may still count it.
fn may_be_forgotten(profile: &Profile, granted: &Granted, world: &ExpectedWorld, now: u64) -> bool {
    let is_unused = |&cell: &usize| match profile.returns {
        true => world.is_unused(cell, now),
        false => world.situation(cell, now).is_unused(),
    };
    profile.forgets && granted.changed.iter().any(is_unused)
}

/// The time in which a limit recovers.
fn scale(spec: &Spec) -> u64 {
    match *spec {
        Spec::Bucket { count, period, .. } => (period / count.max(1)).max(1) * 2,
        Spec::Steps { every, .. } => every,
        Spec::Fixed {
            window: WindowKind::Aligned(length) | WindowKind::FirstHit(length), ..
        } => length,
        Spec::Fixed { window: WindowKind::Zoned(_, zone), .. } => zone.page,
        Spec::Fixed { window: WindowKind::Calendar(_), .. } => 10 * DAY,
        Spec::Log { window, .. }
        | Spec::SubWindows { window, .. }
        | Spec::Approximate { window, .. } => window,
        Spec::Concurrency { .. } => 1_000,
    }
}

/// The resolution of instants.
fn grain(spec: &Spec) -> u64 {
    match *spec {
        Spec::Steps { every, .. } => every,
        Spec::Approximate { window, .. } => window,
        Spec::SubWindows { .. } => spec.grain() as u64,
        _ => spec.tick() as u64,
    }
}
