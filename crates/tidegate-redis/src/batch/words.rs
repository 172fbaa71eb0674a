//! A batch in the words of the script.

use std::sync::Arc;

use redis::Cmd;
use tidegate::{Micros, RuleLimit};

use super::form::Batch;
use crate::request::{Beside, Part};

/// When it is asked.
pub(super) struct Moment {
    /// What Redis is to take for its own clock; for tests.
    pub(super) instant: Option<Micros>,
    /// What its clock says, more or less: around that, a calendar's windows are sent.
    pub(super) guess: Micros,
}

/// The limits of a batch, each of which is sent once.
struct Limits<'a>(Vec<(&'a Arc<RuleLimit>, Micros)>);

impl Batch {
    /// `EVALSHA` or `EVAL`, with the keys and arguments of all checks.
    pub(super) fn command(&self, name: &str, script: &str, moment: &Moment) -> Cmd {
        let mut cmd = redis::cmd(name);
        let states = || {
            self.groups.iter().flat_map(|group| {
                let check = &group.check;
                check.states.iter().zip(&check.beside)
            })
        };
        cmd.arg(script).arg(states().map(|(_, beside)| beside.keys()).sum::<usize>());
        for (state, beside) in states() {
            cmd.arg(state);
            if beside.has(Beside::LOG) {
                cmd.arg(format!("{state}:log"));
            }
            if beside.has(Beside::HOLDS) {
                cmd.arg(format!("{state}:holds"));
            }
        }
        let mut limits = Limits(Vec::new());
        let guess = |of_check: Option<Micros>| of_check.unwrap_or(moment.guess);
        let number_of: Vec<usize> = self
            .groups
            .iter()
            .flat_map(|group| {
                let check = &group.check;
                check.parts.iter().map(|part| (part, guess(check.guess)))
            })
            .map(|(part, guess)| limits.number(part, guess))
            .collect();

        cmd.arg(1).arg("checks");
        match moment.instant {
            Some(instant) => cmd.arg(instant.get()),
            None => cmd.arg(""),
        };
        limits.write(&mut cmd);
        cmd.arg(self.groups.len());
        let mut number_of = number_of.into_iter();
        for group in &self.groups {
            let check = &group.check;
            cmd.arg(group.times()).arg(check.parts.len());
            for ((part, beside), number) in
                check.parts.iter().zip(&check.beside).zip(&mut number_of)
            {
                cmd.arg(number).arg(beside.number()).arg(part.cost.get()).arg(&part.who);
            }
        }
        cmd
    }
}

impl<'a> Limits<'a> {
    /// The number by which a part names its limit, from 1.
    fn number(&mut self, part: &'a Part, guess: Micros) -> usize {
        let same = |(limit, at): &(&Arc<RuleLimit>, Micros)| {
            Arc::ptr_eq(limit, &part.limit) && *at == guess
        };
        let place = self.0.iter().position(same).unwrap_or_else(|| {
            self.0.push((&part.limit, guess));
            self.0.len() - 1
        });
        place + 1
    }

    fn write(&self, cmd: &mut Cmd) {
        cmd.arg(self.0.len());
        for (limit, guess) in &self.0 {
            let (algorithm, numbers) = limit.limit().numbers();
            cmd.arg(algorithm).arg(numbers);
            let boundaries = limit.boundaries(*guess);
            cmd.arg(boundaries.len());
            for bound in boundaries {
                cmd.arg(bound.get());
            }
            cmd.arg(if limit.is_shadow() { "shadow" } else { "" });
        }
    }
}
