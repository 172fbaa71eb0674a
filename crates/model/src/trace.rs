//! Random calls on a small world, drawn where an implementation is most likely to be wrong.

use tidegate_core::{Expiry, Wait};

use crate::model::Situation;
use crate::spec::{MAX, Window};
use crate::{Answer, Call, Op, Part, Rng, Spec, World};

const DAY: u64 = 86_400_000_000;
const LARGEST_COST: u64 = 1 << 32;

/// What a subject can be asked.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// The longest a hold may last, in microseconds.
    pub max_ttl: u64,
    /// How long after its end a hold may be settled, in microseconds.
    pub remembers: u64,
    /// May concurrency be charged, as other limits are, or only be held?
    pub concurrency_is_charged: bool,
    /// May limits change?
    pub changes: bool,
    /// May a limit change while there are holds on it? A hold whose cell was forgotten is settled
    /// under the limit it was made for, so where a subject forgets, nobody asks for such a one.
    pub changes_with_holds: bool,
    /// And to or from a window of the calendar? A subject that is told the windows of the limit a
    /// hold was made for does not know those of the present one.
    pub calendars_with_holds: bool,
    /// Is a changed limit charged at once? For a subject that carries consumption over only when
    /// it writes.
    pub changes_are_charged: bool,
    /// Are there windows of made-up zones, which only a caller of the core can pass in?
    pub zones: bool,
    /// May the subject forget a state that has recovered? Then such states are reset before the
    /// clock steps back to a time at which they had not.
    pub forgets: bool,
    /// The last instant, in microseconds.
    pub last_instant: u64,
}

impl Profile {
    /// All there is in the definition.
    pub const EVERYTHING: Self = Self {
        max_ttl: MAX as u64,
        remembers: MAX as u64,
        concurrency_is_charged: true,
        changes: true,
        changes_with_holds: true,
        calendars_with_holds: true,
        changes_are_charged: false,
        zones: true,
        forgets: false,
        last_instant: MAX as u64,
    };

    fn allows(&self, spec: &Spec) -> bool {
        self.zones || !matches!(spec, Spec::Fixed { window: Window::Zoned(..), .. })
    }

    /// What `draw` draws, as often as it takes.
    fn draw(&self, rng: &mut Rng, draw: impl Fn(&mut Rng) -> Spec) -> Spec {
        loop {
            let spec = draw(rng);
            if self.allows(&spec) {
                return spec;
            }
        }
    }
}

/// The calls of one seed. What is drawn depends on what was answered.
pub(crate) struct Trace {
    rng: Rng,
    profile: Profile,
    specs: Vec<Spec>,
    now: u64,
    last_instant: u64,
    steps_back: bool,
    holds: bool,
    charging_holds: bool,
    changes: bool,
    charge_next: Option<usize>,
    reset_next: Vec<usize>,
    steps_next: bool,
    granted: Vec<Granted>,
    next_id: u128,
    /// Instants that answers have named.
    named: Vec<u64>,
}

/// A hold that may be settled.
#[derive(Clone)]
struct Granted {
    id: u128,
    expiry: Expiry,
    parts: Vec<Part>,
    /// The deadline it was given, and to which it was renewed.
    until: u64,
    /// Cells whose limit has changed since.
    changed: Vec<usize>,
}

impl Granted {
    /// Might a subject have forgotten under which limit it is to be settled?
    fn may_be_forgotten(&self, world: &World, now: u64) -> bool {
        self.changed.iter().any(|&cell| world.situation(cell, now).is_unused())
    }
}

impl Trace {
    pub(crate) fn new(seed: u64, profile: Profile) -> Self {
        let mut rng = Rng::new(seed);
        let cells = rng.pick(&[1, 1, 1, 2, 2, 3, 4]);
        let specs: Vec<Spec> =
            (0..cells).map(|_| profile.draw(&mut rng, Spec::draw_good)).collect();
        let steps_back = rng.one_in(2);
        let changes = profile.changes && rng.one_in(3);
        let held = specs.iter().any(|spec| matches!(spec, Spec::Concurrency { .. }));
        let calendar = !profile.calendars_with_holds && specs.iter().any(is_calendar);
        let changes = changes && (profile.changes_with_holds && !calendar || !held);
        // A zone's windows in the past and in the far future are known to nobody.
        let zoned = specs.iter().any(|spec| match spec {
            Spec::Fixed { window, .. } => changes || matches!(window, Window::Zoned(..)),
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
        let holds = rng.below(3) > 0 && (!changes || profile.changes_with_holds && !calendar);
        Self {
            profile,
            specs,
            now: start,
            last_instant,
            steps_back,
            holds,
            charging_holds: !(zoned && steps_back),
            changes,
            charge_next: None,
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
        if self.rng.one_in(20) { self.rng.between(100, 300) } else { self.rng.between(5, 60) }
    }

    /// The next call.
    pub(crate) fn next(&mut self, world: &World) -> Call {
        if let Some(cell) = self.charge_next.take() {
            let parts = vec![Part { cell, cost: 1 }];
            return Call { now: self.now, op: Op::Record, parts };
        }
        let cell = self.rng.below(self.specs.len() as u64) as usize;
        if !self.steps_next && self.steps_back && self.rng.one_in(12) {
            self.steps_next = true;
            let unused = |&cell: &usize| world.situation(cell, self.now).is_unused();
            let cells = 0..if self.profile.forgets { self.specs.len() } else { 0 };
            self.reset_next = cells.filter(unused).collect();
        }
        if let Some(cell) = self.reset_next.pop() {
            return Call { now: self.now, op: Op::Reset, parts: vec![Part { cell, cost: 0 }] };
        }
        self.move_time(&world.situation(cell, self.now));
        let op = self.op(cell, world);
        let parts = self.parts(op, cell, world);
        Call { now: self.now, op, parts }
    }

    /// Remembers what the answer names, and which holds there are.
    pub(crate) fn answered(&mut self, call: &Call, answer: &Answer) {
        self.named.clear();
        for verdict in &answer.verdicts {
            if let Wait::For(wait) = verdict.retry_after {
                self.named.push(call.now.saturating_add(wait.get()));
            }
            self.named.push(call.now.saturating_add(verdict.reset_after.get()));
        }
        match call.op {
            Op::Hold { .. } | Op::Enter { .. } if answer.verdicts.iter().all(|v| v.allowed) => {
                let mut parts: Vec<Part> = Vec::new();
                let mut made = None;
                for part in &call.parts {
                    let Some(hold) = call.op.hold_on(&self.specs[part.cell]) else { continue };
                    made = Some(hold);
                    match parts.iter_mut().find(|p| p.cell == part.cell) {
                        Some(twice) => twice.cost += part.cost,
                        None => parts.push(*part),
                    }
                }
                if let Some((id, ttl, expiry)) = made {
                    let (until, changed) = (call.now + ttl, Vec::new());
                    self.granted.push(Granted { id, expiry, parts, until, changed });
                }
            }
            Op::Renew { id, ttl } if !answer.expired => {
                let renewed = self.granted.iter_mut().filter(|granted| granted.id == id);
                renewed.for_each(|granted| granted.until = call.now + ttl);
            }
            Op::Settle { id, .. } => self.granted.retain(|granted| granted.id != id),
            // Nobody asks for a hold that a reset has forgotten.
            Op::Reset => {
                let cell = call.parts[0].cell;
                let elsewhere = |granted: &Granted| granted.parts.iter().all(|p| p.cell != cell);
                self.granted
                    .retain(|granted| granted.expiry == Expiry::Charge || elsewhere(granted));
            }
            Op::Change(spec) => {
                let cell = call.parts[0].cell;
                self.specs[cell] = spec;
                for granted in &mut self.granted {
                    if granted.parts.iter().any(|part| part.cell == cell) {
                        granted.changed.push(cell);
                    }
                }
                self.charge_next = self.profile.changes_are_charged.then_some(cell);
            }
            _ => {}
        }
    }

    fn move_time(&mut self, found: &Situation) {
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

    fn op(&mut self, cell: usize, world: &World) -> Op {
        let remembers = self.profile.remembers;
        let forgotten = self.now.saturating_sub(remembers);
        self.granted.retain(|granted| granted.until > forgotten || remembers == MAX as u64);
        let rng = &mut self.rng;
        let holds_only =
            !self.profile.concurrency_is_charged && self.specs.iter().any(Spec::is_held);
        match rng.below(100) {
            0..=7 => Op::Peek,
            8..=14 if !holds_only => Op::Record,
            15..=21 if !holds_only => Op::Refund,
            22 => Op::Reset,
            23..=34 if self.holds || holds_only => {
                let charging = self.charging_holds && rng.one_in(2);
                let expiry = if charging { Expiry::Charge } else { Expiry::Release };
                Op::Hold { id: self.new_id(), ttl: self.ttl(cell), expiry }
            }
            35..=46 if !self.granted.is_empty() => {
                let place = rng.below(self.granted.len() as u64) as usize;
                let granted = &self.granted[place];
                if self.profile.forgets && granted.may_be_forgotten(world, self.now) {
                    return Op::Peek;
                }
                let Granted { id, expiry, ref parts, .. } = *granted;
                if rng.one_in(4) {
                    return Op::Renew { id, ttl: self.ttl(cell) };
                }
                let own = parts[0].cost;
                let cost = match rng.below(6) {
                    0 => Some(0),
                    1 => Some(own / 2),
                    2 => Some((own + 1).min(LARGEST_COST)),
                    3 => Some(rng.magnitude(LARGEST_COST)),
                    _ => None,
                };
                Op::Settle { id, expiry, cost }
            }
            // What is only held cannot be charged.
            47..=50 if self.profile.changes_are_charged && self.specs[cell].is_held() => Op::Peek,
            47..=50 if self.changes => {
                let old = self.specs[cell];
                let mut new = self.profile.draw(rng, |rng| old.draw_change(rng));
                let held = self.holds || holds_only;
                while held && !self.profile.calendars_with_holds && is_calendar(&new) {
                    new = self.profile.draw(rng, |rng| old.draw_change(rng));
                }
                // The same limit written in another way is no change, nor is one of the same numbers.
                let numbers = |spec: &Spec| spec.limit().map(|limit| limit.numbers());
                if numbers(&new) == numbers(&old) { Op::Peek } else { Op::Change(new) }
            }
            _ if holds_only || self.holds && rng.one_in(6) => {
                Op::Enter { id: self.new_id(), ttl: self.ttl(cell) }
            }
            _ => Op::Check,
        }
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

    fn parts(&mut self, op: Op, cell: usize, world: &World) -> Vec<Part> {
        match op {
            Op::Settle { id, .. } | Op::Renew { id, .. } => {
                let granted = self.granted.iter().find(|granted| granted.id == id).unwrap();
                return granted.parts.clone();
            }
            Op::Reset | Op::Change(_) => return vec![Part { cell, cost: 0 }],
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
        if self.rng.one_in(16) && !matches!(op, Op::Refund) {
            let twice = self.rng.pick(&cells);
            cells.push(twice);
        }
        let parts = cells.iter().map(|&cell| {
            let found = world.situation(cell, self.now);
            let zero_is_fine = match op {
                Op::Enter { .. } => !found.spec().is_held(),
                _ => matches!(op, Op::Check | Op::Peek),
            };
            let cost = self.cost(&found).max(u64::from(!zero_is_fine));
            Part { cell, cost }
        });
        parts.collect()
    }

    fn cost(&mut self, found: &Situation) -> u64 {
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
            17 => self.rng.magnitude(LARGEST_COST),
            18 => LARGEST_COST,
            _ => self.rng.between(1, 3),
        };
        cost.min(LARGEST_COST)
    }
}

fn is_calendar(spec: &Spec) -> bool {
    matches!(spec, Spec::Fixed { window: Window::Calendar(_) | Window::Zoned(..), .. })
}

/// The time in which a limit changes its mind.
fn scale(spec: &Spec) -> u64 {
    match *spec {
        Spec::Bucket { count, period, .. } => (period / count.max(1)).max(1) * 2,
        Spec::Steps { every, .. } => every,
        Spec::Fixed { window: Window::Aligned(length) | Window::FirstHit(length), .. } => length,
        Spec::Fixed { window: Window::Zoned(_, zone), .. } => zone.page,
        Spec::Fixed { window: Window::Calendar(_), .. } => 10 * DAY,
        Spec::Log { window, .. }
        | Spec::SubWindows { window, .. }
        | Spec::Approximate { window, .. } => window,
        Spec::Concurrency { .. } => 1_000,
    }
}

/// What instants are rounded to.
fn grain(spec: &Spec) -> u64 {
    match *spec {
        Spec::Steps { every, .. } => every,
        Spec::Approximate { window, .. } => window,
        Spec::SubWindows { .. } => spec.grain() as u64,
        _ => spec.tick() as u64,
    }
}
