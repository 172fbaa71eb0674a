//! `tidegate replay LOG --config FILE`

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::error::{CliError, ExitStatus};
use crate::output::{has_colours, print_error};
use crate::progress::ProgressBar;
use crate::replay;
use crate::replay::{DeniedRequest, LogInput, OutputStyle, Percentile, Replay, ReplayOptions};
use tidegate_config::PolicyLoader;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate replay /var/log/nginx/access.log --config policy.yaml
  tidegate replay access.log.2.gz --config today.yaml --config tomorrow.yaml
  tidegate replay access.log --config policy.yaml --suggest 99.9
  kubectl logs deploy/gateway | tidegate replay - --config policy.yaml --json")]
pub(crate) struct Options {
    /// Access log, plain or gzip; - for standard input
    #[arg(value_name = "LOG")]
    log: String,
    /// Policy file; two are compared
    #[arg(short, long, value_name = "FILE", required = true)]
    config: Vec<PathBuf>,
    /// Log format [default: detected]
    #[arg(long, value_enum)]
    format: Option<FormatArg>,
    /// Suggest limits at which this percentage of keys is never denied
    #[arg(long, value_name = "PERCENT")]
    suggest: Option<Percentile>,
    /// Print each denial before the report: line, time, rule, key and wait
    #[arg(long)]
    denials: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum FormatArg {
    /// nginx and Apache, common or combined
    Combined,
    /// One JSON object per line, as written by Envoy and Istio
    Json,
    /// CSV with a header row
    Csv,
}

pub(crate) fn run(options: &Options) -> Result<ExitStatus, CliError> {
    match replay(options) {
        // A reader that closes the pipe early is not an error.
        Err(error) if is_broken_pipe(&*error) => Ok(ExitStatus::Success),
        outcome => outcome,
    }
}

fn replay(options: &Options) -> Result<ExitStatus, CliError> {
    if options.config.len() > Replay::MAX_POLICIES {
        return Err("at most two policies can be compared; remove a --config".into());
    }
    let mut policies = Vec::new();
    for path in &options.config {
        let loaded = PolicyLoader::load(path)?;
        if loaded.rules.is_empty() {
            return Err(format!("{}: no rules; add at least one", path.display()).into());
        }
        policies.push((path.display().to_string(), loaded));
    }
    let format = options.format.map(|format| match format {
        FormatArg::Combined => replay::AccessLogFormat::Combined,
        FormatArg::Json => replay::AccessLogFormat::Json,
        FormatArg::Csv => replay::AccessLogFormat::Csv,
    });
    let input = LogInput::new(&options.log);
    let mut bar = ProgressBar::new(input.progress());
    let mut out = BufWriter::new(io::stdout().lock());
    let replay_options = ReplayOptions { suggest: options.suggest, denials: options.denials };
    let mut replay = Replay::new(policies, replay_options);
    let on_denial = |denied: DeniedRequest<'_>| match (options.denials, options.json) {
        (false, _) => Ok(()),
        (true, true) => writeln!(out, "{}", denied.object()),
        (true, false) => writeln!(out, "{denied}"),
    };
    let ran = replay.run(input, format, on_denial, |lines| bar.show(lines));
    bar.clear();
    ran?;
    if options.json {
        replay.write_json(&mut out)?;
    } else {
        if options.denials {
            writeln!(out)?;
        }
        replay.write(&mut out, output_style())?;
    }
    out.flush()?;
    if !options.json {
        replay.notes().iter().for_each(|note| print_error(format_args!("note: {note}")));
    }
    Ok(ExitStatus::Success)
}

fn output_style() -> OutputStyle {
    match io::stdout().is_terminal() {
        false => OutputStyle::Plain,
        true if has_colours() => OutputStyle::Colours,
        true => OutputStyle::Chart,
    }
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
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
