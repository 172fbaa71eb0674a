//! Applies the faults, ends them, and checks for leftovers.

use std::sync::Arc;

use tidegate_model::TraceRng;

use crate::fault_simulation::faults::Fault;
use crate::fault_simulation::node::Node;
use crate::fault_simulation::plan::Plan;
use crate::fault_simulation::store::{Power, Server};
use crate::fault_simulation::traffic::{Kind, Request};
use crate::fault_simulation::world::World;

/// How soon every process has to use a recovered store.
pub(crate) const RECOVERED_WITHIN: u64 = 1_000_000;

/// After so long without traffic nothing may be left over: a debt of the longest window, and a
/// loan.
const QUIET_PERIOD: u64 = 12_000_000;

impl World {
    /// Schedules all requests and faults.
    pub(crate) fn schedule_all(self: &Arc<Self>) {
        (0..self.plan.nodes()).for_each(|node| Node::start(self, node));
        for (at, request) in self.plan.requests.clone() {
            self.timeline.plan(at, move |world| world.begin(request));
        }
        for (at, fault) in self.plan.faults.clone() {
            self.timeline.plan(at, move |world| world.apply(fault));
        }
        let faults_end = Plan::faults_end();
        self.timeline.plan(faults_end, Self::end_faults);
        self.timeline.plan(faults_end + QUIET_PERIOD, Self::look_for_leftovers);
        let mut rng = TraceRng::new(self.plan.seed);
        for node in 0..self.plan.nodes() {
            for step in 0..50 {
                let at = faults_end + step * 30_000 + rng.below(1_000);
                let kind =
                    if at > faults_end + RECOVERED_WITHIN { Kind::Probe } else { Kind::Check };
                let probe = self.request_until_result(node, kind, vec![(0, 1)]);
                self.timeline.plan(at, move |world| world.begin(probe));
            }
        }
        for (subject, of) in self.plan.subjects.iter().enumerate() {
            let node = subject % self.plan.nodes();
            let all = self.request_until_result(node, Kind::All, vec![(subject, of.capacity)]);
            // One after the other: a circuit without calls since the faults may admit one probe at
            // a time.
            let at = faults_end + QUIET_PERIOD + 1 + subject as u64 * 50_000;
            self.timeline.plan(at, move |world| world.begin(all));
        }
        if self.plan.layers.fallback {
            self.schedule_cut_off(faults_end + 2 * QUIET_PERIOD);
        }
    }

    /// Cuts all processes off and checks that each has its share.
    fn schedule_cut_off(self: &Arc<Self>, at: u64) {
        self.timeline.plan(at, |world| world.state().cuts.fill((u64::MAX, true)));
        for node in 0..self.plan.nodes() {
            for (subject, of) in self.plan.subjects.iter().enumerate() {
                let charges = vec![(subject, of.local.0.max(1))];
                let all = self.request_until_result(node, Kind::AllAlone, charges);
                self.timeline.plan(at + 1, move |world| world.begin(all));
            }
        }
    }

    fn request_until_result(&self, node: usize, kind: Kind, charges: Vec<(usize, u64)>) -> Request {
        Request { node, kind, charges, gives_up_after: None, salt: 0 }
    }

    fn apply(self: &Arc<Self>, fault: Fault) {
        self.timeline.note_activity();
        if self.begin_fault(fault) {
            *self.state().log.faults.entry(fault.name()).or_default() += 1;
        }
    }

    /// Whether the fault could be applied.
    fn begin_fault(self: &Arc<Self>, fault: Fault) -> bool {
        let (now, mut state) = (self.now(), self.state());
        let primary = state.servers.len() - 1;
        let is_on = state.servers[primary].power == Power::On;
        match fault {
            Fault::Cut { node, span, refuses } => state.cuts[node] = (now + span, refuses),
            Fault::Slow { latency, span } => state.slow = (now + span, latency),
            Fault::Step { by } => state.servers[primary].step(now, by),
            Fault::Kill { node, span } => {
                let Some(old) = state.nodes[node].take() else { return false };
                state.log.incarnations[old.incarnation.number].died = Some(now);
                drop(state);
                old.kill();
                self.timeline.plan(now + span, move |world| Node::start(world, node));
            }
            Fault::Close { node } => {
                let Some(old) = state.nodes[node].take() else { return false };
                drop(state);
                tokio::spawn(async move {
                    if let Some(lease) = &old.lease {
                        lease.close().await;
                    }
                });
                Node::start(self, node);
            }
            Fault::Freeze { .. }
            | Fault::Crash { .. }
            | Fault::Promote { .. }
            | Fault::Split { .. }
                if !is_on =>
            {
                return false;
            }
            Fault::Freeze { span } => {
                state.servers[primary].power = Power::Frozen;
                self.timeline.plan(now + span, move |world| world.thaw(primary));
            }
            Fault::Crash { span, keeps } => {
                state.servers[primary].power = Power::Off;
                self.timeline.plan(now + span, move |world| {
                    if keeps {
                        world.state().servers[primary].power = Power::On;
                    } else {
                        world.replace(primary, usize::MAX, 0);
                    }
                });
            }
            Fault::Promote { span, forgets, step } => {
                state.servers[primary].power = Power::Off;
                let forgets = usize::try_from(forgets).unwrap();
                self.timeline.plan(now + span, move |world| world.replace(primary, forgets, step));
            }
            Fault::Split { span, forgets, stay } => {
                drop(state);
                self.replace(primary, usize::try_from(forgets).unwrap(), 0);
                let mut state = self.state();
                for (node, route) in state.routes.iter_mut().enumerate() {
                    if stay >> node & 1 == 1 {
                        *route = primary;
                    }
                }
                state.servers[primary].power = Power::On;
                state.servers[primary].until = u64::MAX;
                self.timeline.plan(now + span, move |world| world.reunite(primary));
            }
        }
        true
    }

    /// Another store replaces `old`. It has lost the last `forgets` calls.
    fn replace(&self, old: usize, forgets: usize, step: i64) {
        let (now, state) = (self.now(), &mut *self.state());
        let of = &state.servers[old];
        let known = of.log.len().saturating_sub(forgets);
        let clock = (now, of.ahead + step);
        let new = Server::promoted(of, known, clock, &state.log.executions, &self.plan.subjects);
        state.servers.push(new);
        state.routes.fill(state.servers.len() - 1);
        state.servers[old].power = Power::Off;
        state.servers[old].until = now;
    }

    /// Processes that still call `old` call the primary from now on.
    fn reunite(&self, old: usize) {
        let (now, state) = (self.now(), &mut *self.state());
        let primary = state.servers.len() - 1;
        state.routes.iter_mut().filter(|route| **route == old).for_each(|route| *route = primary);
        state.servers[old].power = Power::Off;
        state.servers[old].until = now;
    }

    fn thaw(self: &Arc<Self>, server: usize) {
        let mut state = self.state();
        let server = &mut state.servers[server];
        if server.power != Power::Frozen {
            return;
        }
        server.power = Power::On;
        let backlog = std::mem::take(&mut server.backlog);
        drop(state);
        backlog.into_iter().for_each(|arrive| arrive(self));
    }

    fn end_faults(self: &Arc<Self>) {
        let missing: Vec<usize> = {
            let mut state = self.state();
            state.faults_ended = true;
            state.slow = (0, 0);
            state.cuts.fill((0, false));
            (0..state.nodes.len()).filter(|node| state.nodes[*node].is_none()).collect()
        };
        missing.into_iter().for_each(|node| Node::start(self, node));
    }

    fn look_for_leftovers(self: &Arc<Self>) {
        let (now, state) = (self.now(), &mut *self.state());
        let mut left = Vec::new();
        let server = state.servers.last().unwrap();
        for subject in &self.plan.subjects {
            let (used, held) = server.used_and_held(subject, now);
            if (used, held) != (0, 0) {
                left.push(format!("{} used and {held} held of {}", used, subject.limit.limit()));
            }
        }
        for node in state.nodes.iter().flatten() {
            let lent = node.lease.as_ref().map_or(0, |lease| lease.outstanding().values().sum());
            if lent > 0 {
                left.push(format!(
                    "process {} still has {lent} borrowed permits",
                    node.incarnation.node
                ));
            }
        }
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        if tasks > 0 {
            left.push(format!("{tasks} tasks have not ended"));
        }
        state.log.leftovers = left;
    }
}
