//! When a shard is left alone, and when it is asked again. The time is an argument.

use tidegate_core::Micros;

use super::tally::Tally;
use crate::Circuit;

/// One shard, as it has answered so far.
#[derive(Debug)]
pub(super) struct Machine {
    state: State,
    /// When it was last found to answer again.
    closed_at: Option<Micros>,
    /// So many good probes in a row close it.
    needed: u32,
    /// So often in a row it was found to answer at once after it had been left alone: it breaks under
    /// what it is asked, and not otherwise.
    contradicted: u32,
    /// For jitter.
    random: u64,
}

#[derive(Debug)]
enum State {
    Closed(Tally),
    Open(Open),
}

#[derive(Debug)]
struct Open {
    since: Micros,
    /// Nobody looks before this.
    look_at: Micros,
    /// Nobody is let through before this, as long as the store says that it is there.
    quiet_until: Micros,
    /// After this somebody is let through though the store says that it is not there.
    blind_at: Micros,
    /// The pause after the next probe that fails.
    pause: Micros,
    /// The probe that is on its way, and since when.
    probe: Option<(Probe, Micros)>,
    /// When somebody last wanted to ask.
    wanted_at: Micros,
    /// Good probes in a row.
    good: u32,
    /// It was seen to be gone, by the store itself or by a probe.
    gone: bool,
}

/// One call that is let through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Probe {
    /// Of a store that says that it is there.
    Seeing,
    /// Of one that says that it is not.
    Blind,
}

/// What becomes of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    /// It goes to the store.
    Pass,
    /// It may, if [`Machine::begin`] says so. Until then, or until [`Machine::give_up`], nobody else may.
    Look,
    /// It does not.
    Refuse,
}

/// A transition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    Opened,
    Closed {
        after: Micros,
    },
    /// Nobody asks it any more, and nothing is known of it.
    Forgotten {
        after: Micros,
    },
}

impl Machine {
    /// From opening to the first probe: long enough for a hiccup to pass, and short against the second
    /// within which a store that is back has to be noticed.
    pub(super) const FIRST_PAUSE: Micros = Micros::from_millis(100);
    /// Between probes that fail, at most: a caller's deadline is lost for each of them, but where one of many
    /// servers was replaced nobody else tells that there is another now.
    pub(super) const LONGEST_PAUSE: Micros = Micros::from_millis(200);
    /// How often a store is looked at that says that it is not there. Looking costs no caller anything.
    pub(super) const LOOK_EVERY: Micros = Micros::from_millis(20);
    /// A store that says so is asked all the same after so long: it may only learn by being asked that
    /// it is back, as one does that has loaded its data since.
    pub(super) const BLIND_AFTER: Micros = Micros::from_millis(800);
    /// So many good probes in a row close it.
    pub(super) const GOOD_PROBES: u32 = 3;
    /// So many at most, after it has opened again and again.
    pub(super) const MOST_GOOD_PROBES: u32 = 48;
    /// Opening again within so long of closing means that it was closed too early.
    pub(super) const TOO_EARLY: Micros = Micros::from_secs(30);
    /// A probe that has taken so long may never end, if nobody polls it, and another may begin.
    pub(super) const LONGEST_PROBE: Micros = Micros::from_secs(2);
    /// A shard that nobody has wanted to ask for so long is as good as unknown: its slots may be another's.
    pub(super) const FORGOTTEN_AFTER: Micros = Micros::from_secs(10);
    /// The first pause is doubled so often at most for a store that breaks under its load: to 6.4 s.
    const MOST_DOUBLINGS: u32 = 6;

    pub(super) fn new(seed: u64) -> Self {
        Self {
            state: State::Closed(Tally::default()),
            closed_at: None,
            needed: Self::GOOD_PROBES,
            contradicted: 0,
            random: seed | 1,
        }
    }

    pub(super) fn circuit(&self) -> Circuit {
        match &self.state {
            State::Closed(_) => Circuit::Closed,
            State::Open(open) if open.probe.is_some() || open.good > 0 => Circuit::HalfOpen,
            State::Open(_) => Circuit::Open,
        }
    }

    /// May a call go to the store?
    pub(super) fn ask(&mut self, now: Micros) -> Ask {
        let State::Open(open) = &mut self.state else { return Ask::Pass };
        open.wanted_at = now;
        let is_new = |(_, since): (_, Micros)| now.saturating_sub(since) < Self::LONGEST_PROBE;
        if open.probe.is_some_and(is_new) || now < open.look_at {
            return Ask::Refuse;
        }
        open.probe = Some((Probe::Seeing, now));
        Ask::Look
    }

    /// Since when a probe has been on its way. Whoever looked at another time is not it.
    pub(super) fn probing_since(&self) -> Option<Micros> {
        let State::Open(open) = &self.state else { return None };
        open.probe.map(|(_, since)| since)
    }

    /// Closes what nobody has wanted to ask for long.
    pub(super) fn forget(&mut self, now: Micros) -> Option<Change> {
        let State::Open(open) = &self.state else { return None };
        if now.saturating_sub(open.wanted_at) < Self::FORGOTTEN_AFTER {
            return None;
        }
        let after = now.saturating_sub(open.since);
        (self.state, self.closed_at) = (State::Closed(Tally::default()), None);
        Some(Change::Forgotten { after })
    }

    /// Is whoever looked let through, now that the store has said whether it is there?
    pub(super) fn begin(&mut self, now: Micros, up: bool) -> bool {
        let State::Open(open) = &mut self.state else { return true };
        if up && now >= open.quiet_until {
            return true;
        }
        open.gone |= !up;
        if !up && now >= open.blind_at {
            open.probe = open.probe.map(|(_, since)| (Probe::Blind, since));
            return true;
        }
        open.probe = None;
        if !up {
            // It does not break under its load: it is gone, and the load with it.
            open.quiet_until = now;
        }
        let pause = if up { Self::FIRST_PAUSE } else { Self::LOOK_EVERY };
        open.look_at = now.saturating_add(pause);
        false
    }

    /// Nobody will know how the probe ended. The next may begin at once.
    pub(super) fn give_up(&mut self) {
        if let State::Open(open) = &mut self.state {
            open.probe = None;
        }
    }

    /// A call that passed was answered, or failed.
    pub(super) fn passed(&mut self, now: Micros, answered: bool) -> Option<Change> {
        let State::Closed(tally) = &mut self.state else { return None };
        tally.note(now, answered);
        if answered || !tally.is_enough(now) {
            return None;
        }
        self.open(now);
        Some(Change::Opened)
    }

    /// A probe was answered, or failed.
    pub(super) fn probed(&mut self, now: Micros, answered: bool) -> Option<Change> {
        let State::Open(open) = &mut self.state else { return None };
        let blind = open.probe.take().is_some_and(|(probe, _)| probe == Probe::Blind);
        if !answered {
            (open.good, open.gone) = (0, true);
            open.blind_at = now.saturating_add(jittered(Self::BLIND_AFTER, &mut self.random));
            // One that says itself that it is not there says as well when it is.
            let pause = if blind {
                Self::LOOK_EVERY
            } else {
                let pause = jittered(open.pause, &mut self.random);
                open.pause = Self::LONGEST_PAUSE.min(open.pause.saturating_add(open.pause));
                pause
            };
            open.look_at = now.saturating_add(pause);
            return None;
        }
        open.good += 1;
        // What it answers counts for more than what it says of itself.
        open.blind_at = now;
        if open.good < self.needed {
            return None;
        }
        let after = now.saturating_sub(open.since);
        let contradicted = if open.gone { 0 } else { self.contradicted + 1 };
        self.contradicted = contradicted.min(Self::MOST_DOUBLINGS);
        self.closed_at = Some(now);
        self.state = State::Closed(Tally::default());
        Some(Change::Closed { after })
    }

    fn open(&mut self, now: Micros) {
        let again = self.closed_at.is_some_and(|at| now.saturating_sub(at) < Self::TOO_EARLY);
        if again {
            self.needed = (self.needed * 2).min(Self::MOST_GOOD_PROBES);
        } else {
            (self.needed, self.contradicted) = (Self::GOOD_PROBES, 0);
        }
        let quiet = Micros::new(Self::FIRST_PAUSE.get() << self.contradicted);
        let mut jittered = |pause| now.saturating_add(jittered(pause, &mut self.random));
        let quiet_until = jittered(quiet);
        self.state = State::Open(Open {
            since: now,
            look_at: quiet_until.min(now.saturating_add(Self::FIRST_PAUSE)),
            quiet_until,
            blind_at: jittered(Self::BLIND_AFTER),
            // The first that fails has been preceded by a pause already.
            pause: Self::FIRST_PAUSE.saturating_add(Self::FIRST_PAUSE),
            probe: None,
            wanted_at: now,
            good: 0,
            gone: false,
        });
    }
}

/// Between a half of `pause` and all of it, so that a fleet does not ask in step.
fn jittered(pause: Micros, random: &mut u64) -> Micros {
    // Xorshift: nobody gains anything by knowing it.
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    let half = pause.get() / 2;
    Micros::new(half + *random % (half + 1))
}

#[cfg(test)]
mod tests;
