//! A process: layers around its link, and the requests that it serves.

use std::sync::{Arc, Mutex};

use tidegate::{
    Breaker, BreakerEvent, Call, Charge, Cost, Costs, Decision, DenyCache, Engine, EngineError,
    Expiry, Fallback, HoldId, IdempotencyKey, Lease, Micros, Op, Refusal, Source,
};
use tidegate_model::TraceRng;
use tokio::task::AbortHandle;

use crate::fault_simulation::log::{IncarnationRow, Outcome, Row};
use crate::fault_simulation::network::{ForRequest, Incarnation, Wire};
use crate::fault_simulation::time::NodeClock;
use crate::fault_simulation::traffic::{Kind, Request};
use crate::fault_simulation::world::World;

/// How long a slot or a reservation lasts.
pub(crate) const HOLD: Micros = Micros::from_millis(800);

pub(crate) struct Node {
    pub(crate) incarnation: Arc<Incarnation>,
    engine: Arc<dyn Engine>,
    pub(crate) lease: Option<Arc<Lease<Arc<dyn Engine>>>>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Node {
    /// Starts a process.
    pub(crate) fn start(world: &Arc<World>, node: usize) {
        let number = world.state().log.incarnations.len();
        let pace = world.plan.paces[node];
        let mut rng = TraceRng::new(world.plan.seed ^ (number as u64) << 32);
        let clock = NodeClock::new(&world.timeline, pace, rng.below(3_600_000_000));
        let incarnation = Incarnation::new(node, number, clock);
        let new = Self::around(world, &incarnation);
        let mut state = world.state();
        state.log.incarnations.push(IncarnationRow { pace, died: None });
        state.nodes[node] = Some(Arc::new(new));
    }

    fn around(world: &Arc<World>, incarnation: &Arc<Incarnation>) -> Self {
        let (layers, mutation) = (world.plan.layers, world.mutation);
        let wire = Wire { world: world.clone(), incarnation: incarnation.clone() };
        let mut engine = mutation.above_the_wire(Arc::new(wire));
        if layers.breaker {
            engine = breaker(engine, world, incarnation);
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
        Self { incarnation: incarnation.clone(), engine, lease, tasks: Mutex::default() }
    }

    /// Kills the process at once, with all its tasks.
    pub(crate) fn kill(&self) {
        self.incarnation.mark_dead();
        self.tasks.lock().unwrap().drain(..).for_each(|task| task.abort());
    }
}

fn breaker(
    engine: Arc<dyn Engine>,
    world: &Arc<World>,
    incarnation: &Incarnation,
) -> Arc<dyn Engine> {
    let number = incarnation.number;
    let seed = TraceRng::new(world.plan.seed ^ number as u64).any();
    let log_circuit = |world: Arc<World>| {
        move |open| world.state().log.circuits.push((world.now(), number, open))
    };
    let (log_broken, log_working) = (log_circuit(world.clone()), log_circuit(world.clone()));
    world.mutation.as_the_breaker(engine, log_broken, |engine| {
        Arc::new(Breaker::new(engine).test_seed(seed).on_event(move |event| {
            log_working(matches!(event, BreakerEvent::Opened { .. }));
        }))
    })
}

impl World {
    /// Sends a request to a process, unless the process is down.
    pub(crate) fn begin(self: &Arc<Self>, request: Request) {
        let Some(node) = self.state().nodes[request.node].clone() else { return };
        let now = self.now();
        let row = {
            let mut state = self.state();
            state.log.rows.push(Row {
                request: request.clone(),
                incarnation: node.incarnation.number,
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
        let future = serve(self.clone(), node.clone(), row, request);
        let task = tokio::spawn(ForRequest { row, future: Box::pin(future), world: self.clone() });
        self.timeline.note_activity();
        let task = task.abort_handle();
        if let Some(after) = gives_up_after {
            let task = task.clone();
            self.timeline.plan(now + after, move |world| {
                let mut state = world.state();
                let row = &mut state.log.rows[row];
                row.given_up = row.end.is_none();
                drop(state);
                task.abort();
                world.timeline.note_activity();
            });
        }
        node.tasks.lock().unwrap().push(task);
    }

    fn finish(&self, node: &Node, number: usize, result: &Result<Decision, EngineError>) {
        use tidegate::Clock;
        let (now, state) = (self.now(), &mut *self.state());
        let outcome = Outcome::of(result);
        let server = &state.servers[state.routes[node.incarnation.node]];
        let row = &mut state.log.rows[number];
        if outcome.source() == Some(Source::DenyCache) {
            row.would_be_granted =
                server.would_grant(&row.request.charges, now, &self.plan.subjects);
        }
        row.hold = result.as_ref().ok().and_then(Decision::hold);
        row.end = Some(now);
        row.local = node.incarnation.clock.now().get();
        row.outcome = Some(outcome);
    }
}

async fn serve(world: Arc<World>, node: Arc<Node>, row: usize, request: Request) {
    let subjects = &world.plan.subjects;
    let charges: Vec<Charge<'_>> = request
        .charges
        .iter()
        .map(|&(subject, cost)| subjects[subject].charge(Cost::total(cost)))
        .collect();
    let id = HoldId::from(u128::from(request.salt) << 64 | row as u128);
    let mut call = Call { op: Op::Check, charges: &charges, idempotency_key: None };
    match &request.kind {
        Kind::Check | Kind::Quick | Kind::Probe => {}
        Kind::Peek => call.op = Op::Peek,
        Kind::Record => call.op = Op::Record,
        Kind::Refund => call.op = Op::Refund,
        Kind::Reset => call.op = Op::Reset,
        Kind::Once(name) => call.idempotency_key = Some(IdempotencyKey::new(name).unwrap()),
        Kind::Enter { .. } => call.op = Op::enter(id, HOLD),
        Kind::Reserve { .. } => {
            call.op = Op::hold(id, HOLD, Expiry::Release);
        }
        Kind::Settle { hold, used, .. } => {
            let op = Op::Settle { id: *hold, costs: Costs::All(Cost::total(*used)) };
            call = Call { op, charges: &[], idempotency_key: None };
        }
        Kind::Renew { hold } => {
            let op = Op::Renew { id: *hold, ttl: HOLD };
            call = Call { op, charges: &[], idempotency_key: None };
        }
        Kind::All | Kind::AllAlone if subjects[request.charges[0].0].counts_holders() => {
            call.op = Op::hold(id, HOLD, Expiry::Release);
        }
        Kind::All | Kind::AllAlone => {}
    }
    let at_once = match request.kind {
        Kind::Quick => node.engine.decide_now(&call),
        _ => Err(Refusal::NotImmediate.into()),
    };
    let result = match at_once {
        Err(EngineError::Refused(Refusal::NotImmediate)) => node.engine.decide(call).await,
        result => result,
    };
    world.finish(&node, row, &result);
    follow_up(&world, request, result);
}

/// The next request of the caller.
fn follow_up(world: &Arc<World>, request: Request, result: Result<Decision, EngineError>) {
    let source = result.as_ref().ok().map(|decision| decision.source);
    let hold = result.as_ref().ok().and_then(Decision::hold);
    let next = |after: u64, kind: Kind| {
        let next =
            Request { kind, gives_up_after: None, salt: request.salt + 1, ..request.clone() };
        world.timeline.plan(world.now() + after, move |world| world.begin(next));
    };
    match (&request.kind, hold) {
        // The store has not decided: the request is repeated under the same id, three times at
        // most.
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
        (Kind::Settle { hold, used, tries: 1.. }, _) if result.is_err() => {
            let Kind::Settle { tries, .. } = request.kind else { return };
            next(50_000, Kind::Settle { hold: *hold, used: *used, tries: tries - 1 });
        }
        _ => {}
    }
}
