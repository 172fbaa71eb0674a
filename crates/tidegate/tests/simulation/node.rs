//! A process: layers around its link, and what is asked of it.

use std::sync::{Arc, Mutex};

use tidegate::{
    Breaker, BreakerEvent, Call, CallId, Charge, Cost, Decision, DenyCache, Engine, EngineError,
    Expiry, Fallback, HoldId, Lease, Micros, Op, Source,
};
use tidegate_model::Rng;
use tokio::task::AbortHandle;

use crate::log::{LifeRow, Outcome, Row};
use crate::network::{Life, OnBehalf, Wire};
use crate::time::NodeClock;
use crate::traffic::{Kind, Request};
use crate::world::World;

/// How long a place is kept, and a reservation lasts.
pub(crate) const HOLD: Micros = Micros::from_millis(800);

pub(crate) struct Node {
    pub(crate) life: Arc<Life>,
    engine: Arc<dyn Engine>,
    pub(crate) lease: Option<Arc<Lease<Arc<dyn Engine>>>>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Node {
    /// Starts a process.
    pub(crate) fn start(world: &Arc<World>, node: usize) {
        let number = world.state().log.lives.len();
        let pace = world.plan.paces[node];
        let mut rng = Rng::new(world.plan.seed ^ (number as u64) << 32);
        let clock = NodeClock::new(&world.timeline, pace, rng.below(3_600_000_000));
        let life = Life::new(node, number, clock);
        let new = Self::around(world, &life);
        let mut state = world.state();
        state.log.lives.push(LifeRow { pace, died: None });
        state.nodes[node] = Some(Arc::new(new));
    }

    fn around(world: &Arc<World>, life: &Arc<Life>) -> Self {
        let (layers, mutation) = (world.plan.layers, world.mutation);
        let wire = Wire { world: world.clone(), life: life.clone() };
        let mut engine = mutation.above_the_wire(Arc::new(wire));
        if layers.breaker {
            engine = breaker(engine, world, life);
        }
        if layers.deny_cache {
            engine = mutation.above_the_deny_cache(Arc::new(DenyCache::new(engine)));
        }
        let mut lease = None;
        if layers.lease {
            let borrows = Arc::new(Lease::new(mutation.below_the_lease(engine)));
            lease = Some(borrows.clone());
            engine = borrows;
        }
        if layers.fallback {
            engine = mutation.as_the_fallback(engine, |engine| Arc::new(Fallback::new(engine)));
        }
        Self { life: life.clone(), engine, lease, tasks: Mutex::default() }
    }

    /// It dies in the middle of everything.
    pub(crate) fn kill(&self) {
        self.life.die();
        self.tasks.lock().unwrap().drain(..).for_each(|task| task.abort());
    }
}

fn breaker(engine: Arc<dyn Engine>, world: &Arc<World>, life: &Life) -> Arc<dyn Engine> {
    let number = life.number;
    let seed = Rng::new(world.plan.seed ^ number as u64).any();
    let noted = |world: Arc<World>| {
        move |open| world.state().log.circuits.push((world.now(), number, open))
    };
    let (note, note_too) = (noted(world.clone()), noted(world.clone()));
    world.mutation.as_the_breaker(engine, note, |engine| {
        Arc::new(Breaker::new(engine).test_seed(seed).watched_by(move |event| {
            note_too(matches!(event, BreakerEvent::Opened { .. }));
        }))
    })
}

impl World {
    /// Somebody asks a process for something; unless there is no such process just now.
    pub(crate) fn begin(self: &Arc<Self>, request: Request) {
        let Some(node) = self.state().nodes[request.node].clone() else { return };
        let now = self.now();
        let row = {
            let mut state = self.state();
            state.log.rows.push(Row {
                request: request.clone(),
                life: node.life.number,
                start: now,
                end: None,
                outcome: None,
                given_up: false,
                local: 0,
                hold: None,
                would_be_granted: false,
            });
            state.log.rows.len() - 1
        };
        let gives_up_after = request.gives_up_after;
        let asking = ask(self.clone(), node.clone(), row, request);
        let task = tokio::spawn(OnBehalf { row, future: Box::pin(asking), world: self.clone() });
        self.timeline.act();
        let task = task.abort_handle();
        if let Some(after) = gives_up_after {
            let task = task.clone();
            self.timeline.plan(now + after, move |world| {
                let mut state = world.state();
                let row = &mut state.log.rows[row];
                row.given_up = row.end.is_none();
                drop(state);
                task.abort();
                world.timeline.act();
            });
        }
        node.tasks.lock().unwrap().push(task);
    }

    fn finish(&self, node: &Node, number: usize, answer: &Result<Decision, EngineError>) {
        use tidegate::Clock;
        let (now, state) = (self.now(), &mut *self.state());
        let outcome = Outcome::of(answer);
        let server = &state.servers[state.routes[node.life.node]];
        let row = &mut state.log.rows[number];
        if outcome.source() == Some(Source::DenyCache) {
            row.would_be_granted =
                server.would_grant(&row.request.charges, now, &self.plan.subjects);
        }
        row.hold = answer.as_ref().ok().and_then(Decision::hold);
        row.end = Some(now);
        row.local = node.life.clock.now().get();
        row.outcome = Some(outcome);
    }
}

async fn ask(world: Arc<World>, node: Arc<Node>, row: usize, request: Request) {
    let subjects = &world.plan.subjects;
    let charges: Vec<Charge<'_>> = request
        .charges
        .iter()
        .map(|&(subject, cost)| subjects[subject].charge(Cost::total(cost)))
        .collect();
    let id = HoldId::from(u128::from(request.salt) << 64 | row as u128);
    let mut call = Call { op: Op::Check, charges: &charges, once: None };
    match &request.kind {
        Kind::Check | Kind::Quick | Kind::Probe => {}
        Kind::Peek => call.op = Op::Peek,
        Kind::Record => call.op = Op::Record,
        Kind::Refund => call.op = Op::Refund,
        Kind::Reset => call.op = Op::Reset,
        Kind::Once(name) => call.once = Some(CallId::new(name).unwrap()),
        Kind::Enter { .. } => call.op = Op::Enter { id, ttl: HOLD },
        Kind::Reserve { .. } => {
            call.op = Op::Hold { id, ttl: HOLD, expiry: Expiry::Release };
        }
        Kind::Settle { hold, used, .. } => {
            let cost = Some(Cost::total(*used));
            call = Call { op: Op::Settle { id: *hold, cost }, charges: &[], once: None };
        }
        Kind::Renew { hold } => {
            let op = Op::Renew { id: *hold, ttl: HOLD };
            call = Call { op, charges: &[], once: None };
        }
        Kind::All | Kind::AllAlone if subjects[request.charges[0].0].counts_holders() => {
            call.op = Op::Hold { id, ttl: HOLD, expiry: Expiry::Release };
        }
        Kind::All | Kind::AllAlone => {}
    }
    let quick = match request.kind {
        Kind::Quick => node.engine.check_one(&charges[0]),
        _ => None,
    };
    let answer = match quick {
        Some((source, verdict)) => Ok(Decision::of_one(source, verdict)),
        None => node.engine.decide(call).await,
    };
    world.finish(&node, row, &answer);
    follow_up(&world, request, answer);
}

/// What a caller does next.
fn follow_up(world: &Arc<World>, request: Request, answer: Result<Decision, EngineError>) {
    let source = answer.as_ref().ok().map(|decision| decision.source);
    let hold = answer.as_ref().ok().and_then(Decision::hold);
    let next = |after: u64, kind: Kind| {
        let next =
            Request { kind, gives_up_after: None, salt: request.salt + 1, ..request.clone() };
        world.timeline.plan(world.now() + after, move |world| world.begin(next));
    };
    match (&request.kind, hold) {
        // The store has not said anything: it is asked again under the same name, three times at most.
        (Kind::Once(name), _) if source != Some(Source::Redis) && request.salt % 4 != 3 => {
            next(30_000, Kind::Once(name.clone()));
        }
        (Kind::Enter { stay, leaves }, Some(hold)) => {
            if *stay > HOLD.get() / 2 {
                next(HOLD.get() / 2, Kind::Renew { hold });
            }
            if *leaves {
                next(*stay, Kind::Settle { hold, used: 0, tries: 3 });
            }
        }
        (Kind::Reserve { after, used }, Some(hold)) => {
            next(*after, Kind::Settle { hold, used: *used, tries: 3 });
        }
        (Kind::Settle { hold, used, tries: 1.. }, _) if answer.is_err() => {
            let Kind::Settle { tries, .. } = request.kind else { return };
            next(50_000, Kind::Settle { hold: *hold, used: *used, tries: tries - 1 });
        }
        _ => {}
    }
}
