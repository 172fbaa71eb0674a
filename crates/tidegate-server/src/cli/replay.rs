//! `tidegate replay LOG --config FILE`

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tidegate::{Clock, Micros, SystemClock};

use super::{Failure, Outcome, complain, has_colours};
use crate::config::Config;
use crate::replay::{self, Denied, Look, Percentile, Replay, Source, Wanted};

/// Sends an access log through a policy.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate replay /var/log/nginx/access.log --config policy.yaml
  tidegate replay access.log.2.gz --config today.yaml --config tomorrow.yaml
  tidegate replay access.log --config policy.yaml --suggest 99.9
  kubectl logs deploy/gateway | tidegate replay - --config policy.yaml --json")]
pub(super) struct Options {
    /// The log, packed with gzip or not; - for standard input
    #[arg(value_name = "LOG")]
    log: String,
    /// The policy to go by; two of them are compared
    #[arg(long, value_name = "FILE", required = true)]
    config: Vec<PathBuf>,
    /// How the log is written, if that cannot be told from its first lines
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Say at which limits so many percent of the keys would never have been denied
    #[arg(long, value_name = "PERCENT")]
    suggest: Option<Percentile>,
    /// Print every denial before the report: its line, time, rule, key and wait
    #[arg(long)]
    denials: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum Format {
    /// nginx and Apache, common or combined
    Combined,
    /// A JSON object per line, as Envoy and Istio write
    Json,
    /// A table with a header row
    Csv,
}

pub(super) fn run(options: &Options) -> Result<Outcome, Failure> {
    match replay(options) {
        // Nobody reads on, and that is fine.
        Err(failure) if is_broken_pipe(&*failure) => Ok(Outcome::Good),
        outcome => outcome,
    }
}

fn replay(options: &Options) -> Result<Outcome, Failure> {
    if options.config.len() > Replay::MAX_POLICIES {
        return Err("at most two policies are compared; leave out a --config".into());
    }
    let mut policies = Vec::new();
    for path in &options.config {
        let loaded = Config::load(path)?;
        if loaded.rules.is_empty() {
            return Err(format!("{}: there are no rules to go by; add one", path.display()).into());
        }
        policies.push((path.display().to_string(), loaded));
    }
    let format = options.format.map(|format| match format {
        Format::Combined => replay::Format::Combined,
        Format::Json => replay::Format::Json,
        Format::Csv => replay::Format::Csv,
    });
    let source = Source::new(&options.log);
    let mut bar = Bar::new(&source);
    let mut out = BufWriter::new(io::stdout().lock());
    let wanted = Wanted { suggest: options.suggest, denials: options.denials };
    let mut replay = Replay::new(policies, wanted);
    let on_denial = |denied: Denied<'_>| match (options.denials, options.json) {
        (false, _) => Ok(()),
        (true, true) => writeln!(out, "{}", denied.object()),
        (true, false) => writeln!(out, "{denied}"),
    };
    let ran = replay.run(source, format, on_denial, |lines| bar.show(lines));
    bar.clear();
    ran?;
    if options.json {
        replay.write_json(&mut out)?;
    } else {
        if options.denials {
            writeln!(out)?;
        }
        replay.write(&mut out, look())?;
    }
    out.flush()?;
    if !options.json {
        replay.notes().iter().for_each(|note| complain(format_args!("note: {note}")));
    }
    Ok(Outcome::Good)
}

/// What standard output can show.
fn look() -> Look {
    match io::stdout().is_terminal() {
        false => Look::Plain,
        true if has_colours() => Look::Colours,
        true => Look::Chart,
    }
}

fn is_broken_pipe(failure: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(failure);
    while let Some(error) = cause {
        if error
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        {
            return true;
        }
        cause = error.source();
    }
    false
}

/// How far it is, on a terminal.
struct Bar {
    progress: replay::Progress,
    begun: Micros,
    shown: Option<Micros>,
    is_seen: bool,
}

impl Bar {
    const EVERY: Micros = Micros::from_millis(200);

    fn new(source: &Source) -> Self {
        let is_seen = io::stderr().is_terminal();
        Self { progress: source.progress(), begun: SystemClock.elapsed(), shown: None, is_seen }
    }

    fn show(&mut self, lines: u64) {
        if !self.is_seen {
            return;
        }
        let now = SystemClock.elapsed();
        if now.saturating_sub(self.shown.unwrap_or(self.begun)) < Self::EVERY {
            return;
        }
        self.shown = Some(now);
        let taken = now.saturating_sub(self.begun);
        let _ = write!(
            io::stderr(),
            "\r\x1b[K{}",
            bar_text(lines, taken, self.progress.read(), self.progress.total())
        );
    }

    fn clear(&self) {
        if self.shown.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// `[#####.....] 50%, 1000000 lines, 12 s left`
fn bar_text(lines: u64, taken: Micros, read: u64, total: Option<u64>) -> String {
    const WIDTH: usize = 30;
    let Some(total) = total.filter(|total| *total > 0) else { return format!("{lines} lines") };
    let read = read.clamp(1, total);
    let done = (u128::from(read) * WIDTH as u128 / u128::from(total)) as usize;
    let left = u128::from(taken.get()) * u128::from(total - read) / u128::from(read) / 1_000_000;
    let percent = u128::from(read) * 100 / u128::from(total);
    let bar = "#".repeat(done) + &".".repeat(WIDTH - done);
    format!("[{bar}] {percent}%, {lines} lines, {left} s left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_how_much_is_left() {
        let text = bar_text(1_000, Micros::from_secs(5), 250, Some(1_000));
        assert_eq!(
            text,
            format!("[{}{}] 25%, 1000 lines, 15 s left", "#".repeat(7), ".".repeat(23))
        );
        assert_eq!(bar_text(7, Micros::ZERO, 5, None), "7 lines");
        assert_eq!(bar_text(7, Micros::ZERO, 5, Some(0)), "7 lines");
        // A file that grows meanwhile.
        assert!(bar_text(7, Micros::from_secs(1), 50, Some(10)).contains("100%"));
    }
}
