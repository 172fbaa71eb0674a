//! `tidegate bench --target URL`

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::Args;
use tidegate::{Limit, Micros, Span};

use super::progress::Line;
use super::secure::Secure;
use super::serve::Stops;
use super::{Failure, Outcome, print, visible};
use crate::bench::{
    About, Access, Address, Bench, Descriptor, Door, Load, Plan, Protocol, Question, Rate,
    Security, Target, Tls,
};
use crate::doors::descriptors::room_for_clients;
use crate::tokens::Tokens;

/// Measures how fast a target answers.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  As fast as a server on this machine answers, over each of its doors:
    tidegate bench --target http://127.0.0.1:8080
    tidegate bench --target resp://127.0.0.1:6380 --pipeline 16
    tidegate bench --target grpc://127.0.0.1:8081 --domain edge --descriptor 'user={key}'
  How long answers take at 5,000 a second, with every wait counted (open loop):
    tidegate bench --target http://127.0.0.1:8080 --rate 5000/s --duration 1min
  A rule of the policy, with a few keys that ask most:
    tidegate bench --target resp://127.0.0.1:6380 --rule api --keys 10000 --zipf 1.1
  The library on a Redis, without a server:
    tidegate bench --target redis://127.0.0.1:6379 --limit '100/s burst 20' --json

Without --rate each connection asks again when it is answered; a slow answer then also delays
the questions behind it, which nobody measures. With --rate they are due by the clock.

Environment:
  TIDEGATE_TOKEN   What the server wants to see, or TIDEGATE_TOKEN_FILE
  TIDEGATE_SECRET  With a Redis: keys the hash of subjects")]
pub(super) struct Options {
    /// A server (http[s]://, resp[s]://, grpc[s]://) or a Redis (redis://..)
    #[arg(long, value_name = "URL")]
    target: String,
    /// How many ask at once, each over a connection of its own
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = |text: &str| within(text, Plan::CONNECTIONS))]
    connections: u32,
    /// How long: 500ms, 10s, 1h
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = |text: &str| span(text, Plan::DURATION))]
    duration: Micros,
    /// Ask so often, like 5000/s or 5000, whether or not answers come
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// How many different keys
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = |text: &str| within(text, Plan::KEYS))]
    keys: u32,
    /// The k-th key comes 1/k^S as often as the first [default: all alike]
    #[arg(long, value_name = "S", value_parser = zipf)]
    zipf: Option<u32>,
    /// What chance begins with
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    asked: Asked,
    /// How much to ask for; 0 only looks
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u64,
    /// With resp: how many questions to send at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = |text: &str| within(text, Plan::PIPELINE))]
    pipeline: u32,
    /// How long to ask before anything counts
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = |text: &str| span(text, Plan::WARMUP))]
    warmup: Micros,
    /// How long an answer may take
    #[arg(long, value_name = "SPAN", default_value = "5s", value_parser = |text: &str| span(text, Plan::PATIENCE))]
    timeout: Micros,
    #[command(flatten)]
    secure: Secure,
    /// Print everything as one line of JSON
    #[arg(long)]
    json: bool,
}

/// What is asked.
#[derive(Args, Debug)]
struct Asked {
    /// A rule of the server's policy
    #[arg(long, value_name = "NAME", conflicts_with = "limit")]
    rule: Option<String>,
    /// A limit of your own [default: 1000000000/s, which denies nobody]
    #[arg(long, value_name = "LIMIT")]
    limit: Option<String>,
    /// With grpc: the domain of Envoy's limits [default: bench]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["rule", "limit"])]
    domain: Option<String>,
    /// With grpc: entries like 'path=/a,user={key}' [default: key={key}]
    #[arg(long, value_name = "ENTRIES", conflicts_with_all = ["rule", "limit"])]
    descriptor: Option<String>,
}

impl Asked {
    const LIMIT: &'static str = "1000000000/s";

    fn about(&self, address: &Address) -> Result<About, Failure> {
        if let Some(rule) = &self.rule {
            return Ok(About::Rule(rule.clone()));
        }
        let is_grpc = matches!(address, Address::Door(Door { protocol: Protocol::Grpc, .. }));
        let names_entries = self.domain.is_some() || self.descriptor.is_some();
        if names_entries || (is_grpc && self.limit.is_none()) {
            let domain = self.domain.clone().unwrap_or_else(|| "bench".into());
            let entries = self.descriptor.as_deref().unwrap_or("key={key}");
            return Ok(About::Descriptor(Descriptor { domain, entries: parse_entries(entries)? }));
        }
        let text = self.limit.as_deref().unwrap_or(Self::LIMIT);
        let limit: Limit = text.parse().map_err(|error: tidegate::ParseLimitError| {
            let underlined = error.underline(text).replace('\n', "\n  ");
            format!("--limit: {error}\n  {underlined}")
        })?;
        Ok(About::Limit(limit))
    }
}

/// `path=/a,user={key}`
fn parse_entries(text: &str) -> Result<Vec<(String, String)>, &'static str> {
    let entry = |entry: &str| match entry.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_string(), value.to_string())),
        _ => Err("--descriptor: write entries like 'path=/a,user={key}'"),
    };
    text.split(',').map(entry).collect()
}

fn within(text: &str, range: RangeInclusive<u32>) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("write a number from {} to {}", range.start(), range.end()))
}

fn span(text: &str, range: RangeInclusive<Micros>) -> Result<Micros, String> {
    // No time at all is no span of a limit.
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
        format!("write a span from {} to {}, like 10s", shown(*range.start()), shown(*range.end()))
    })
}

/// In thousandths.
fn zipf(text: &str) -> Result<u32, &'static str> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_written = digits(whole) && digits(decimals) && decimals.len() <= 3;
    let exponent = format!("{whole}{decimals:0<3}").parse().ok().filter(|_| is_written);
    let exponent = exponent.filter(|exponent| Plan::ZIPF.contains(exponent));
    exponent.ok_or("write an exponent from 0.001 to 10, like 1.1")
}

pub(super) fn run(options: &Options) -> Result<Outcome, Failure> {
    let address: Address = options.target.parse().map_err(|error| format!("--target: {error}"))?;
    let question =
        Question { about: options.asked.about(&address)?, cost: options.cost, keys: options.keys };
    let access = access(&address, &options.secure)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let patience = Duration::from(options.timeout);
        let target = Target::new(&address, &question, access, patience)?;
        let plan = options.plan(&target)?;
        let mut stops = Stops::new()?;
        let mut line = Line::new();
        let bench = Bench::new(target, question, plan);
        let report = bench.run(async || stops.next().await, |progress| line.show(progress)).await;
        line.clear();
        Ok::<_, Failure>(report?)
    });
    // Connections that nobody waits for do not keep the process.
    runtime.shutdown_background();
    let text = match options.json {
        true => report?.object().to_string() + "\n",
        false => report?.in_words(),
    };
    print(visible(text).as_bytes())?;
    Ok(Outcome::Good)
}

impl Options {
    fn plan(&self, target: &Target) -> Result<Plan, Failure> {
        if self.pipeline > 1 && !target.takes_pipelines() {
            return Err("--pipeline: only resp:// takes several questions at once".into());
        }
        let room = room_for_clients();
        if target.has_connections() && room < self.connections as usize {
            return Err(format!(
                "--connections: the system has room for {room}; raise the limit of open files \
                 (ulimit -n)"
            )
            .into());
        }
        Ok(Plan {
            load: self.rate.map_or(Load::Closed, Load::Open),
            connections: self.connections,
            pipeline: self.pipeline,
            duration: self.duration,
            warmup: self.warmup,
            patience: self.timeout,
            keys: self.keys,
            zipf: self.zipf,
            seed: self.seed,
        })
    }
}

/// What opens the door at this address.
fn access(address: &Address, secure: &Secure) -> Result<Access, Failure> {
    let Address::Door(door) = address else { return Ok(Access::default()) };
    let protocols: &[&str] = match door.protocol {
        Protocol::Http => &["http/1.1"],
        Protocol::Resp => &[],
        Protocol::Grpc => &["h2"],
    };
    let tls = match door.security {
        Security::Plain => None,
        Security::Tls => {
            Some(Tls { connector: secure.connector(protocols)?, name: Secure::name(&door.host)? })
        }
    };
    Ok(Access { tls, token: Tokens::from_env()?.to_show().map(Into::into) })
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
            assert_eq!(micros(text, Plan::DURATION), duration, "{text}");
            assert_eq!(micros(text, Plan::WARMUP), warmup, "{text}");
        }
        let told = span("0s", Plan::DURATION).unwrap_err();
        assert_eq!(told, "write a span from 1ms to 24h, like 10s");
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
