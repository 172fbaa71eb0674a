//! `tidegate bench --target URL`

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::Args;
use tidegate::{Limit, Micros, Span};

use super::serve::StopSignals;
use crate::bench::{
    BenchTarget, Benchmark, Credentials, DescriptorTemplate, LoadModel, LoadPlan, RequestRate,
    TargetUrl, Workload, WorkloadTarget,
};
use crate::endpoint::{ServerUrl, TargetProtocol};
use crate::error::{CliError, ExitStatus};
use crate::number_args;
use crate::output::{escape_control, print};
use crate::progress::ProgressLine;
use crate::tls_args::TlsArgs;
use tidegate_server::internal::transport::auth::AuthTokens;
use tidegate_server::internal::transport::listener::open_files::max_connections;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  As fast as a server on this machine responds, over each of its listeners:
    tidegate bench --target http://127.0.0.1:8080
    tidegate bench --target resp://127.0.0.1:6380 --pipeline 16
    tidegate bench --target grpc://127.0.0.1:8081 --domain edge --descriptor 'user={key}'
  Latency at 5,000 requests per second, corrected for queueing (open loop):
    tidegate bench --target http://127.0.0.1:8080 --rate 5000/s --duration 1min
  A rule of the policy, with a skewed key distribution:
    tidegate bench --target resp://127.0.0.1:6380 --rule api --keys 10000 --zipf 1.1
  The library on a Redis, without a server:
    tidegate bench --target redis://127.0.0.1:6379 --limit '100/s burst 20' --json

Without --rate each connection sends the next request after the response (closed loop), which
hides queueing delay. With --rate requests are sent on schedule (open loop).

Environment:
  TIDEGATE_TOKEN   API token of the server, or TIDEGATE_TOKEN_FILE
  TIDEGATE_SECRET  With redis://: HMAC secret for hashing keys")]
pub(crate) struct Options {
    /// Target URL: http[s]://, resp[s]://, grpc[s]:// or redis://
    #[arg(long, value_name = "URL")]
    target: String,
    /// Number of connections
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = |text: &str| within(text, LoadPlan::CONNECTIONS))]
    connections: u32,
    /// Duration: 500ms, 10s, 1h
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = |text: &str| span(text, LoadPlan::DURATION))]
    duration: Micros,
    /// Request rate (open loop), for example 5000/s [default: closed loop]
    #[arg(long, value_name = "RATE")]
    rate: Option<RequestRate>,
    /// Number of distinct keys
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = |text: &str| within(text, LoadPlan::KEYS))]
    keys: u32,
    /// Zipf exponent of the key distribution [default: uniform]
    #[arg(long, value_name = "S", value_parser = zipf)]
    zipf: Option<u32>,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number_args::seed)]
    seed: u64,
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Cost of a request; 0 peeks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number_args::cost)]
    cost: u64,
    /// Pipelined requests per connection (resp only)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = |text: &str| within(text, LoadPlan::PIPELINE))]
    pipeline: u32,
    /// Warm-up time, not measured
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = |text: &str| span(text, LoadPlan::WARMUP))]
    warmup: Micros,
    /// Request timeout
    #[arg(long, value_name = "SPAN", default_value = "5s", value_parser = |text: &str| span(text, LoadPlan::TIMEOUT_RANGE))]
    timeout: Micros,
    #[command(flatten)]
    tls: TlsArgs,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
}

/// What each request checks.
#[derive(Args, Debug)]
struct WorkloadArgs {
    /// Rule of the server's policy
    #[arg(long, value_name = "NAME", conflicts_with = "limit")]
    rule: Option<String>,
    /// Ad-hoc limit [default: 1000000000/s, never denies]
    #[arg(long, value_name = "LIMIT")]
    limit: Option<String>,
    /// Envoy domain (grpc only) [default: bench]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["rule", "limit"])]
    domain: Option<String>,
    /// Envoy entries (grpc only): 'path=/a,user={key}' [default: key={key}]
    #[arg(long, value_name = "ENTRIES", conflicts_with_all = ["rule", "limit"])]
    descriptor: Option<String>,
}

impl WorkloadArgs {
    const DEFAULT_LIMIT: &'static str = "1000000000/s";

    fn target(&self, address: &TargetUrl) -> Result<WorkloadTarget, CliError> {
        if let Some(rule) = &self.rule {
            return Ok(WorkloadTarget::Rule(rule.clone()));
        }
        let is_grpc =
            matches!(address, TargetUrl::Server(ServerUrl { protocol: TargetProtocol::Grpc, .. }));
        let names_entries = self.domain.is_some() || self.descriptor.is_some();
        if names_entries || (is_grpc && self.limit.is_none()) {
            let domain = self.domain.clone().unwrap_or_else(|| "bench".into());
            let entries = self.descriptor.as_deref().unwrap_or("key={key}");
            return Ok(WorkloadTarget::Descriptor(DescriptorTemplate {
                domain,
                entries: parse_entries(entries)?,
            }));
        }
        let text = self.limit.as_deref().unwrap_or(Self::DEFAULT_LIMIT);
        let limit: Limit = text.parse().map_err(|error: tidegate::ParseLimitError| {
            let underlined = error.underline(text).replace('\n', "\n  ");
            format!("--limit: {error}\n  {underlined}")
        })?;
        Ok(WorkloadTarget::Limit(limit))
    }
}

/// `path=/a,user={key}`
fn parse_entries(text: &str) -> Result<Vec<(String, String)>, &'static str> {
    let entry = |entry: &str| match entry.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_string(), value.to_string())),
        _ => Err("--descriptor: expected entries like 'path=/a,user={key}'"),
    };
    text.split(',').map(entry).collect()
}

fn within(text: &str, range: RangeInclusive<u32>) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("expected a number from {} to {}", range.start(), range.end()))
}

fn span(text: &str, range: RangeInclusive<Micros>) -> Result<Micros, String> {
    // `Span` is the notation of limits and does not allow 0.
    let zero = text.strip_prefix('0').is_some_and(|unit| unit.parse::<Span>().is_ok());
    let parsed = match zero {
        true => Some(Micros::ZERO),
        false => text.parse::<Span>().ok().and_then(Span::length),
    };
    let shown = |span: Micros| match span {
        Micros::ZERO => "0s".to_string(),
        span => Span::Plain(span).to_string(),
    };
    parsed.filter(|span| range.contains(span)).ok_or_else(|| {
        let (start, end) = (shown(*range.start()), shown(*range.end()));
        format!("expected a duration from {start} to {end}, for example 10s")
    })
}

/// In thousandths.
fn zipf(text: &str) -> Result<u32, &'static str> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_number = digits(whole) && digits(decimals) && decimals.len() <= 3;
    let exponent = format!("{whole}{decimals:0<3}").parse().ok().filter(|_| is_number);
    let exponent = exponent.filter(|exponent| LoadPlan::ZIPF.contains(exponent));
    exponent.ok_or("expected an exponent from 0.001 to 10, for example 1.1")
}

pub(crate) fn run(options: &Options) -> Result<ExitStatus, CliError> {
    let address: TargetUrl =
        options.target.parse().map_err(|error| format!("--target: {error}"))?;
    let target = options.workload.target(&address)?;
    let workload = Workload { target, cost: options.cost, keys: options.keys };
    // A store has its credentials in the URL.
    let token = match &address {
        TargetUrl::Server(_) => AuthTokens::from_env()?.to_show().map(Into::into),
        TargetUrl::Store(_) => None,
    };
    let credentials = Credentials { tls: options.tls.clone(), token };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let timeout = Duration::from(options.timeout);
        let target = BenchTarget::new(&address, &workload, credentials, timeout)?;
        let plan = options.plan(&target)?;
        let mut stops = StopSignals::new()?;
        let mut line = ProgressLine::new();
        let bench = Benchmark::new(target, workload, plan);
        let report = bench.run(async || stops.next().await, |progress| line.show(progress)).await;
        line.clear();
        Ok::<_, CliError>(report?)
    });
    // Does not wait for connections that are still open.
    runtime.shutdown_background();
    let text = match options.json {
        true => report?.object().to_string() + "\n",
        false => report?.to_text(),
    };
    print(escape_control(text).as_bytes())?;
    Ok(ExitStatus::Success)
}

impl Options {
    fn plan(&self, target: &BenchTarget) -> Result<LoadPlan, CliError> {
        if self.pipeline > 1 && !target.takes_pipelines() {
            return Err("--pipeline is only supported with resp://".into());
        }
        let allowed = max_connections();
        if target.has_connections() && allowed < self.connections as usize {
            return Err(format!(
                "--connections: the open file limit allows {allowed}; raise it (ulimit -n)"
            )
            .into());
        }
        Ok(LoadPlan {
            load: self.rate.map_or(LoadModel::Closed, LoadModel::Open),
            connections: self.connections,
            pipeline: self.pipeline,
            duration: self.duration,
            warmup: self.warmup,
            timeout: self.timeout,
            keys: self.keys,
            zipf: self.zipf,
            seed: self.seed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_exponents_have_bounds() {
        let micros = |text, range| span(text, range).map(Micros::get).ok();
        for (text, duration, warmup) in [
            ("1ms", Some(1_000), Some(1_000)),
            ("999us", None, Some(999)),
            ("0s", None, Some(0)),
            ("0ms", None, Some(0)),
            ("0", None, None),
            ("24h", Some(86_400_000_000), None),
            ("1d", Some(86_400_000_000), None),
            ("25h", None, None),
            ("month", None, None),
            ("10", None, None),
            ("-1s", None, None),
        ] {
            assert_eq!(micros(text, LoadPlan::DURATION), duration, "{text}");
            assert_eq!(micros(text, LoadPlan::WARMUP), warmup, "{text}");
        }
        let message = span("0s", LoadPlan::DURATION).unwrap_err();
        assert_eq!(message, "expected a duration from 1ms to 24h, for example 10s");
        for (text, exponent) in [
            ("1.1", Some(1_100)),
            ("1", Some(1_000)),
            ("0.001", Some(1)),
            ("10", Some(10_000)),
            ("0", None),
            ("10.001", None),
            ("1.2345", None),
            ("1.", None),
            ("-1", None),
            ("x", None),
        ] {
            assert_eq!(zipf(text).ok(), exponent, "{text}");
        }
    }

    #[test]
    fn entries_are_keys_and_values() {
        let entries = parse_entries("path=/a=b,user={key}").unwrap();
        let text = |(key, value): &(String, String)| format!("{key} {value}");
        assert_eq!(entries.iter().map(text).collect::<Vec<_>>(), ["path /a=b", "user {key}"]);
        for text in ["", "user", "=x", "a=b,"] {
            assert!(parse_entries(text).is_err(), "{text}");
        }
    }
}
