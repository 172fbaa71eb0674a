//! Asks a target as fast as it answers, or at a fixed rate, and measures how long answers take.
//!
//! # Layout
//!
//! - [`Bench`]: one measurement, and [`Report`] what comes of it; `json` and `words` write it.
//! - [`Address`]: where the target is. [`Target`]: how to get at it. [`Question`]: what is asked there. `ask`: asking it,
//!   each protocol in its own way; `template`: the bytes of questions.
//! - [`Plan`]: how much is asked. [`Rate`]: when each question is due. `run`: those who ask. `metronome`: wakes them.
//! - `tally`: what has come of questions.

mod address;
mod ask;
mod json;
mod metronome;
mod plan;
mod question;
mod rate;
mod report;
mod run;
mod tally;
mod target;
mod template;
mod words;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tidegate::Micros;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

pub use address::{Address, Door, InvalidAddress, Protocol, Security};
pub use ask::wire::Tls;
use ask::{Answer, Asker, Trouble};
use metronome::Metronome;
pub use plan::{Load, Plan};
pub use question::{About, Descriptor, Question};
pub use rate::{InvalidRate, Rate};
pub use report::{Ended, Errors, Report, Spread};
use run::{Driver, Run, now};
pub use target::{Access, InvalidTarget, Target};

/// One measurement.
#[derive(Debug)]
pub struct Bench {
    target: Arc<Target>,
    question: Question,
    plan: Plan,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// How long it has been asked, what does not count included.
    pub taken: Micros,
    /// How long it will have been asked.
    pub total: Micros,
    /// How many questions have come to an end that count.
    pub requests: u64,
}

impl Bench {
    /// How often progress is told.
    const TOLD_EVERY: Duration = Duration::from_millis(200);
    /// How many connections are made at once: more than that, and some systems drop them.
    const AT_ONCE: usize = 64;

    /// Asks `question` of `target` as planned.
    pub fn new(target: Target, question: Question, plan: Plan) -> Self {
        Self { target: Arc::new(target), question, plan }
    }

    /// Asks, until the end or until `stop` completes. If it completes twice, those who wait for an answer are not
    /// waited for. There is nothing to tell if not even the first question has an answer.
    pub async fn run(
        self,
        mut stop: impl AsyncFnMut(),
        mut tell: impl FnMut(Progress),
    ) -> Result<Report, NoAnswer> {
        let connected = async {
            let first = self.first().await?;
            let note = first.note();
            Ok((self.connected(first).await, note))
        };
        let (askers, note) = tokio::select! {
            connected = connected => connected?,
            () = stop() => return Err(NoAnswer::Stopped),
        };
        let run = Arc::new(Run::new(self.target.clone(), self.plan.clone()));
        let metronome = match self.plan.load {
            Load::Closed => None,
            Load::Open(rate) => {
                Some(Metronome::start(&run, rate).map_err(|e| NoAnswer::NoThread(e.kind()))?)
            }
        };
        let mut all = JoinSet::new();
        for (nth, asker) in askers.into_iter().enumerate() {
            all.spawn(Driver::new(run.clone(), nth, asker).drive());
        }
        let total = run.end().saturating_sub(run.begin);
        let mut ticks = tokio::time::interval(Self::TOLD_EVERY);
        let mut ended = Ended::Done;
        loop {
            tokio::select! {
                joined = all.join_next() => match joined {
                    None => break,
                    Some(Err(error)) if error.is_panic() => {
                        std::panic::resume_unwind(error.into_panic());
                    }
                    Some(_) => {}
                },
                () = stop() => match ended {
                    Ended::Done => {
                        ended = Ended::Stopped;
                        metronome.as_ref().map_or_else(|| run.stop(), Metronome::stop);
                    }
                    Ended::Stopped => all.abort_all(),
                },
                _ = ticks.tick() => {
                    let taken = now().saturating_sub(run.begin).min(total);
                    tell(Progress { taken, total, requests: run.requests() });
                }
            }
        }
        Ok(Report { note, ..Report::new(&self.target, self.question, &run, ended) })
    }

    /// Somebody to ask, who has had an answer.
    async fn first(&self) -> Result<Asker, NoAnswer> {
        let (mut asker, mut answers) = (None, Vec::new());
        let asked = run::exchange(&mut asker, &self.target, &[0], &mut answers);
        let patience = self.plan.patience;
        let asked = tokio::time::timeout(self.target.deadline(patience), asked).await;
        let trouble = match (asked.unwrap_or_else(|_| Err(run::too_late(patience))), answers.pop())
        {
            (Ok(()), Some(Answer::Allow | Answer::Deny)) => None,
            (Ok(()), Some(Answer::Trouble(trouble))) | (Err(trouble), _) => Some(trouble),
            (Ok(()), None) => None,
        };
        match (trouble, asker) {
            (None, Some(asker)) => Ok(asker),
            (trouble, _) => {
                let Trouble { kind, told } =
                    trouble.unwrap_or_else(|| Trouble::closed("no answer"));
                Err(NoAnswer::Trouble { target: self.target.to_string(), kind: kind.into(), told })
            }
        }
    }

    /// All who ask, with the connections that could be made.
    async fn connected(&self, first: Asker) -> Vec<Option<Asker>> {
        let room = Arc::new(Semaphore::new(Self::AT_ONCE));
        let mut connecting = JoinSet::new();
        for _ in 1..self.plan.connections {
            let (target, room) = (self.target.clone(), room.clone());
            let patience = Duration::from(self.plan.patience);
            connecting.spawn(async move {
                let _place = room.acquire().await.ok()?;
                // Whoever has none tries again, and then it counts.
                tokio::time::timeout(patience, target.connect()).await.ok()?.ok()
            });
        }
        let mut askers = vec![Some(first)];
        while let Some(asker) = connecting.join_next().await {
            askers.push(asker.ok().flatten());
        }
        askers
    }
}

/// Why there is nothing to tell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoAnswer {
    /// The target has not decided even once.
    Trouble {
        /// The target.
        target: String,
        /// What kind of trouble it is.
        kind: String,
        /// What is said about it.
        told: String,
    },
    /// It was stopped before anything was asked.
    Stopped,
    /// The system has no thread to keep time with.
    NoThread(io::ErrorKind),
}

/// What to do about trouble of this kind.
fn advice(kind: &str) -> &'static str {
    match kind {
        "connect" => {
            "start it, with tidegate serve if it is a server, or name another with --target"
        }
        "tls" => "is TLS spoken there, and --ca the right file?",
        "timeout" => "does it answer at all? if it is slow, raise --timeout",
        "http 401" | "resp NOAUTH" | "resp WRONGPASS" | "grpc 16" => {
            "set TIDEGATE_TOKEN to the server's token"
        }
        "http 404" | "resp NORULE" => "name a rule of its policy with --rule, or use --limit",
        "http 403" => "name a rule of its policy with --rule",
        "http 503" | "resp NOANSWER" | "grpc 14" => "does its store answer? /healthz tells",
        "store unavailable" | "store ambiguous" => "start it, or name another with --target",
        _ => "is that what is spoken there? with TLS it is https, resps or grpcs",
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trouble { target, kind, told } => {
                write!(f, "no decision from {target} ({kind}: {told}); {}", advice(kind))
            }
            Self::Stopped => f.write_str("stopped before anything was asked"),
            Self::NoThread(kind) => {
                write!(f, "no thread to keep time with ({kind}); leave out --rate")
            }
        }
    }
}

impl std::error::Error for NoAnswer {}
