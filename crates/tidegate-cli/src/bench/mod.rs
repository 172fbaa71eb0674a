//! Load generator: sends requests to a target, open or closed loop, and measures latency. Imports:
//! endpoint, table, tls_args.

mod address;
mod client;
mod load;
mod measurements;
mod pacer;
mod rate;
mod report;
mod report_json;
mod report_text;
mod request_template;
mod run;
mod target;
mod workload;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tidegate::Micros;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

pub(crate) use self::address::TargetUrl;
use self::client::BenchClient;
use self::client::response::{BenchResponse, RequestError};
pub(crate) use self::load::{LoadModel, LoadPlan};
use self::pacer::Pacer;
pub(crate) use self::rate::RequestRate;
use self::report::{BenchReport, EndReason};
use self::run::{BenchRun, Worker, now};
pub(crate) use self::target::{BenchTarget, Credentials};
pub(crate) use self::workload::{DescriptorTemplate, Workload, WorkloadTarget};

#[derive(Debug)]
pub(crate) struct Benchmark {
    target: Arc<BenchTarget>,
    workload: Workload,
    plan: LoadPlan,
}

/// Reported while a benchmark runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BenchProgress {
    /// Time since the start, warm-up included.
    pub(crate) taken: Micros,
    /// Planned time, warm-up included.
    pub(crate) total: Micros,
    /// Requests done, warm-up excluded.
    pub(crate) requests: u64,
}

impl Benchmark {
    const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
    /// Connections opened at the same time; some systems drop connections beyond that.
    const MAX_CONNECTING: usize = 64;

    pub(crate) fn new(target: BenchTarget, workload: Workload, plan: LoadPlan) -> Self {
        Self { target: Arc::new(target), workload, plan }
    }

    /// Runs to the end of the plan or until `stop` completes. When `stop` completes a second time,
    /// requests in flight are aborted. Fails if the very first request gets no decision.
    pub(crate) async fn run(
        self,
        mut stop: impl AsyncFnMut(),
        mut on_progress: impl FnMut(BenchProgress),
    ) -> Result<BenchReport, BenchError> {
        let connected = async {
            let first = self.first().await?;
            let note = first.note();
            Ok((self.connect_all(first).await, note))
        };
        let (clients, note) = tokio::select! {
            connected = connected => connected?,
            () = stop() => return Err(BenchError::Stopped),
        };
        let run = Arc::new(BenchRun::new(self.target.clone(), self.plan.clone()));
        let pacer = match self.plan.load {
            LoadModel::Closed => None,
            LoadModel::Open(rate) => {
                Some(Pacer::start(&run, rate).map_err(|e| BenchError::NoThread(e.kind()))?)
            }
        };
        let mut workers = JoinSet::new();
        for (nth, client) in clients.into_iter().enumerate() {
            workers.spawn(Worker::new(run.clone(), nth, client).drive());
        }
        let total = run.end().saturating_sub(run.begin);
        let mut ticks = tokio::time::interval(Self::PROGRESS_INTERVAL);
        let mut ended = EndReason::Done;
        loop {
            tokio::select! {
                joined = workers.join_next() => match joined {
                    None => break,
                    Some(Err(error)) if error.is_panic() => {
                        std::panic::resume_unwind(error.into_panic());
                    }
                    Some(_) => {}
                },
                () = stop() => match ended {
                    EndReason::Done => {
                        ended = EndReason::Stopped;
                        pacer.as_ref().map_or_else(|| run.stop(), Pacer::stop);
                    }
                    EndReason::Stopped => workers.abort_all(),
                },
                _ = ticks.tick() => {
                    let taken = now().saturating_sub(run.begin).min(total);
                    on_progress(BenchProgress { taken, total, requests: run.requests() });
                }
            }
        }
        Ok(BenchReport { note, ..BenchReport::new(&self.target, self.workload, &run, ended) })
    }

    /// A client whose first request got a decision.
    async fn first(&self) -> Result<BenchClient, BenchError> {
        let (mut client, mut responses) = (None, Vec::new());
        let sent = run::send(&mut client, &self.target, &[0], &mut responses);
        let timeout = self.plan.timeout;
        let sent = tokio::time::timeout(self.target.deadline(timeout), sent).await;
        let error =
            match (sent.unwrap_or_else(|_| Err(run::timeout_error(timeout))), responses.pop()) {
                (Ok(()), Some(BenchResponse::Allow | BenchResponse::Deny)) => None,
                (Ok(()), Some(BenchResponse::Error(error))) | (Err(error), _) => Some(error),
                (Ok(()), None) => None,
            };
        match (error, client) {
            (None, Some(client)) => Ok(client),
            (error, _) => {
                let RequestError { kind, message } =
                    error.unwrap_or_else(|| RequestError::closed("no response"));
                Err(BenchError::NoDecision {
                    target: self.target.to_string(),
                    kind: kind.into(),
                    message,
                })
            }
        }
    }

    /// One entry per worker; `None` where the connection failed.
    async fn connect_all(&self, first: BenchClient) -> Vec<Option<BenchClient>> {
        let permits = Arc::new(Semaphore::new(Self::MAX_CONNECTING));
        let mut connecting = JoinSet::new();
        for _ in 1..self.plan.connections {
            let (target, permits) = (self.target.clone(), permits.clone());
            let timeout = Duration::from(self.plan.timeout);
            connecting.spawn(async move {
                let _permit = permits.acquire().await.ok()?;
                // A worker without a connection reconnects, and then a failure is counted.
                tokio::time::timeout(timeout, target.connect()).await.ok()?.ok()
            });
        }
        let mut clients = vec![Some(first)];
        while let Some(client) = connecting.join_next().await {
            clients.push(client.ok().flatten());
        }
        clients
    }
}

/// Why there is no report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum BenchError {
    /// The first request got no decision.
    NoDecision {
        target: String,
        /// See [`RequestError::kind`].
        kind: String,
        message: String,
    },
    /// Stopped before the first request was done.
    Stopped,
    /// The pacing thread could not be started.
    NoThread(io::ErrorKind),
}

/// Remedy for an error of this kind.
fn advice(kind: &str) -> &'static str {
    match kind {
        "connect" => "start it (a server: tidegate serve), or set another URL with --target",
        "tls" => "does the target use TLS, and is --ca correct?",
        "timeout" => "if the target is slow, raise --timeout",
        "http 401" | "resp NOAUTH" | "resp WRONGPASS" | "grpc 16" => {
            "set TIDEGATE_TOKEN to the server's token"
        }
        "http 404" | "resp NORULE" => {
            "name a rule of the server's policy with --rule, or use --limit"
        }
        "http 403" => "name a rule of the server's policy with --rule",
        "http 503" | "resp NOANSWER" | "resp BUSY" | "grpc 14" => {
            "is the store available, or memory full? see /healthz"
        }
        "store unavailable" | "store ambiguous" => "start it, or set another URL with --target",
        _ => "does the scheme match? with TLS use https, resps or grpcs",
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDecision { target, kind, message } => {
                write!(f, "{target}: no successful request ({kind}: {message}); {}", advice(kind))
            }
            Self::Stopped => f.write_str("stopped before the first request"),
            Self::NoThread(kind) => {
                write!(f, "cannot start the pacing thread ({kind}); run without --rate")
            }
        }
    }
}

impl std::error::Error for BenchError {}
