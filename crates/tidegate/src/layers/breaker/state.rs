//! State machine of one circuit. The time is an argument.

use tidegate_core::Micros;

use super::failure_rate::{CallWait, FailureRate};
use super::reply_time::ReplyTime;
use crate::Circuit;

/// The circuit of one shard.
#[derive(Debug)]
pub(crate) struct CircuitMachine {
    phase: CircuitPhase,
    /// When the circuit last closed.
    closed_at: Option<Micros>,
    /// Successful probes in a row that close the circuit.
    needed: u32,
    /// How often in a row the store recovered while the circuit was open without having been down:
    /// it fails under load only.
    overload_count: u32,
    reply_time: ReplyTime,
    /// For jitter.
    random: u64,
}

#[derive(Debug)]
enum CircuitPhase {
    Closed(FailureRate),
    Open(OpenCircuit),
}

#[derive(Debug)]
struct OpenCircuit {
    since: Micros,
    /// No probe is considered before this.
    probe_at: Micros,
    /// No probe is sent before this while the store reports that it is up.
    quiet_until: Micros,
    /// After this a probe is sent even if the store reports that it is down.
    probe_down_at: Micros,
    /// The pause after the next failed probe.
    pause: Micros,
    /// The probe in flight and its start.
    probe: Option<(Probe, Micros)>,
    /// Time of the last call for this shard.
    last_call_at: Micros,
    /// Successful probes in a row.
    successes: u32,
    /// The store was down, by its own report or by a failed probe.
    was_down: bool,
}

/// A probe, sent while the circuit is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Probe {
    /// The store reports that it is up.
    Up,
    /// The store reports that it is down.
    Down,
}

/// What a call finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CircuitAdmission {
    /// Closed: the call is sent.
    Send,
    /// Not closed, and a probe may be sent, if [`CircuitMachine::begin`] admits it. Until then, or
    /// until [`CircuitMachine::cancel_probe`], no other probe may.
    MayProbe,
    /// Not closed.
    Refuse,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CircuitTransition {
    Opened,
    Closed {
        after: Micros,
    },
    /// No calls for [`CircuitMachine::FORGET_AFTER`]; the state is unknown.
    IdleReset {
        after: Micros,
    },
}

impl CircuitMachine {
    /// Pause between opening and the first probe: long enough for a short hiccup, and short
    /// compared to the second within which a recovered store must be noticed.
    pub(crate) const FIRST_PAUSE: Micros = Micros::from_millis(100);
    /// Longest pause between failed probes: if one of many servers was replaced, only a probe finds
    /// out.
    pub(crate) const MAX_PAUSE: Micros = Micros::from_millis(200);
    /// Poll interval while the store reports that it is down. Polling costs no caller anything.
    pub(crate) const HEALTH_POLL_INTERVAL: Micros = Micros::from_millis(20);
    /// Such a store is probed after this time anyway: it may learn only from a call that it is up
    /// again, for example after loading its data.
    pub(crate) const PROBE_DOWN_AFTER: Micros = Micros::from_millis(800);
    /// Successful probes in a row that close the circuit.
    pub(crate) const GOOD_PROBES: u32 = 3;
    /// Upper bound of that number after repeated opening.
    pub(crate) const MAX_GOOD_PROBES: u32 = 48;
    /// Opening again within this time of closing means that the circuit closed too early.
    pub(crate) const REOPEN_WINDOW: Micros = Micros::from_secs(30);
    /// A probe that takes longer may never end, because its future is not polled; another may
    /// begin.
    pub(crate) const MAX_PROBE_TIME: Micros = Micros::from_secs(2);
    /// A shard without calls for this long is unknown: another server may own its slots.
    pub(crate) const FORGET_AFTER: Micros = Micros::from_secs(10);
    /// The first pause is doubled at most this often for a store that fails under load: up to 6.4
    /// s.
    const MAX_DOUBLINGS: u32 = 6;

    pub(crate) fn new(seed: u64) -> Self {
        Self {
            phase: CircuitPhase::Closed(FailureRate::default()),
            closed_at: None,
            needed: Self::GOOD_PROBES,
            overload_count: 0,
            reply_time: ReplyTime::default(),
            random: seed | 1,
        }
    }

    pub(crate) fn circuit(&self) -> Circuit {
        match &self.phase {
            CircuitPhase::Closed(_) => Circuit::Closed,
            CircuitPhase::Open(open) if open.probe.is_some() || open.successes > 0 => {
                Circuit::HalfOpen
            }
            CircuitPhase::Open(_) => Circuit::Open,
        }
    }

    /// Whether a call may be sent, or a probe.
    pub(crate) fn admit(&mut self, now: Micros) -> CircuitAdmission {
        let CircuitPhase::Open(open) = &mut self.phase else { return CircuitAdmission::Send };
        open.last_call_at = now;
        let is_new = |(_, since): (_, Micros)| now.saturating_sub(since) < Self::MAX_PROBE_TIME;
        if open.probe.is_some_and(is_new) || now < open.probe_at {
            return CircuitAdmission::Refuse;
        }
        open.probe = Some((Probe::Up, now));
        CircuitAdmission::MayProbe
    }

    /// Start of the probe in flight. It identifies the probe.
    pub(crate) fn probing_since(&self) -> Option<Micros> {
        let CircuitPhase::Open(open) = &self.phase else { return None };
        open.probe.map(|(_, since)| since)
    }

    /// Closes the circuit if the shard had no calls for long.
    pub(crate) fn reset_if_idle(&mut self, now: Micros) -> Option<CircuitTransition> {
        let CircuitPhase::Open(open) = &self.phase else { return None };
        if now.saturating_sub(open.last_call_at) < Self::FORGET_AFTER {
            return None;
        }
        self.reset(now)
    }

    /// Closes the circuit, whatever the state of the store.
    pub(crate) fn reset(&mut self, now: Micros) -> Option<CircuitTransition> {
        let CircuitPhase::Open(open) = &self.phase else { return None };
        let after = now.saturating_sub(open.since);
        (self.phase, self.closed_at) = (CircuitPhase::Closed(FailureRate::default()), None);
        Some(CircuitTransition::IdleReset { after })
    }

    /// Whether the admitted probe is sent, given the store's report about itself.
    pub(crate) fn begin(&mut self, now: Micros, up: bool) -> bool {
        let CircuitPhase::Open(open) = &mut self.phase else { return true };
        if up && now >= open.quiet_until {
            return true;
        }
        open.was_down |= !up;
        if !up && now >= open.probe_down_at {
            open.probe = open.probe.map(|(_, since)| (Probe::Down, since));
            return true;
        }
        open.probe = None;
        if !up {
            // The store is down rather than overloaded: a longer pause is not needed.
            open.quiet_until = now;
        }
        let pause = if up { Self::FIRST_PAUSE } else { Self::HEALTH_POLL_INTERVAL };
        open.probe_at = now.saturating_add(pause);
        false
    }

    /// The outcome of the probe will not be known. The next may begin at once.
    pub(crate) fn cancel_probe(&mut self) {
        if let CircuitPhase::Open(open) = &mut self.phase {
            open.probe = None;
        }
    }

    /// Records the outcome of a call that was sent while closed.
    pub(crate) fn on_call(
        &mut self,
        now: Micros,
        wait: CallWait,
        succeeded: bool,
    ) -> Option<CircuitTransition> {
        if succeeded {
            self.reply_time.record(now, now.saturating_sub(wait.began));
        }
        let no_reply_for = self.no_reply_for();
        let CircuitPhase::Closed(rate) = &mut self.phase else { return None };
        rate.record(now, wait, succeeded);
        if succeeded || !rate.should_open(now, no_reply_for) {
            return None;
        }
        self.open(now);
        Some(CircuitTransition::Opened)
    }

    /// A call that began then has missed the soft deadline, and is still in flight.
    pub(crate) fn on_late(&mut self, began: Micros) {
        if let CircuitPhase::Closed(rate) = &mut self.phase {
            rate.record_late(began);
        }
    }

    /// The outcome of a late call will not be known.
    pub(crate) fn forget_late(&mut self) {
        if let CircuitPhase::Closed(rate) = &mut self.phase {
            rate.forget_late();
        }
    }

    /// Opens the circuit if enough calls are late and the store has sent no reply for long. Also
    /// returns for how long.
    pub(crate) fn open_if_silent(&mut self, now: Micros) -> Option<(CircuitTransition, Micros)> {
        let no_reply_for = self.no_reply_for();
        let CircuitPhase::Closed(rate) = &self.phase else { return None };
        if !rate.is_silent(now, no_reply_for) {
            return None;
        }
        let silence = rate.silence(now);
        self.open(now);
        Some((CircuitTransition::Opened, silence))
    }

    /// Without a reply for this long, the store is silent. Twice the usual time of a reply for a
    /// store far away, or the first calls after a pause would open its circuit.
    fn no_reply_for(&self) -> Micros {
        let shortest = self.reply_time.shortest();
        FailureRate::NO_REPLY_FOR.max(shortest.saturating_add(shortest))
    }

    /// Records the outcome of a probe.
    pub(crate) fn on_probe(&mut self, now: Micros, succeeded: bool) -> Option<CircuitTransition> {
        let CircuitPhase::Open(open) = &mut self.phase else { return None };
        let probe = open.probe.take();
        let while_down = probe.is_some_and(|(probe, _)| probe == Probe::Down);
        if !succeeded {
            (open.successes, open.was_down) = (0, true);
            open.probe_down_at =
                now.saturating_add(jittered(Self::PROBE_DOWN_AFTER, &mut self.random));
            // A store that reports that it is down also reports when it is up.
            let pause = if while_down {
                Self::HEALTH_POLL_INTERVAL
            } else {
                let pause = jittered(open.pause, &mut self.random);
                open.pause = Self::MAX_PAUSE.min(open.pause.saturating_add(open.pause));
                pause
            };
            open.probe_at = now.saturating_add(pause);
            return None;
        }
        open.successes += 1;
        if let Some((_, since)) = probe {
            self.reply_time.record(now, now.saturating_sub(since));
        }
        // A reply outweighs the store's report about itself.
        open.probe_down_at = now;
        if open.successes < self.needed {
            return None;
        }
        let after = now.saturating_sub(open.since);
        let overload_count = if open.was_down { 0 } else { self.overload_count + 1 };
        self.overload_count = overload_count.min(Self::MAX_DOUBLINGS);
        self.closed_at = Some(now);
        self.phase = CircuitPhase::Closed(FailureRate::default());
        Some(CircuitTransition::Closed { after })
    }

    fn open(&mut self, now: Micros) {
        let again = self.closed_at.is_some_and(|at| now.saturating_sub(at) < Self::REOPEN_WINDOW);
        if again {
            self.needed = (self.needed * 2).min(Self::MAX_GOOD_PROBES);
        } else {
            (self.needed, self.overload_count) = (Self::GOOD_PROBES, 0);
        }
        let quiet = Micros::new(Self::FIRST_PAUSE.get() << self.overload_count);
        let mut jittered = |pause| now.saturating_add(jittered(pause, &mut self.random));
        let quiet_until = jittered(quiet);
        self.phase = CircuitPhase::Open(OpenCircuit {
            since: now,
            probe_at: quiet_until.min(now.saturating_add(Self::FIRST_PAUSE)),
            quiet_until,
            probe_down_at: jittered(Self::PROBE_DOWN_AFTER),
            // The first failed probe came after a pause already.
            pause: Self::FIRST_PAUSE.saturating_add(Self::FIRST_PAUSE),
            probe: None,
            last_call_at: now,
            successes: 0,
            was_down: false,
        });
    }
}

/// Between half of `pause` and all of it, so that many processes do not probe in step.
fn jittered(pause: Micros, random: &mut u64) -> Micros {
    // Xorshift: predictability does no harm here.
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    let half = pause.get() / 2;
    Micros::new(half + *random % (half + 1))
}

#[cfg(test)]
mod tests;
