//! `tidegate top`
//!
//! # Layout
//!
//! - `source`: what a server tells every second, and whether it is there. `left`: what is left to the hottest keys.
//! - `view`: what is to be seen of it, as lines; `line`, `words`: their parts. `terminal`: where it is drawn, and keys.

mod left;
mod line;
mod source;
mod terminal;
mod view;
mod words;

use std::io::{self, IsTerminal, Write};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tidegate::Span;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use self::left::Left;
use self::line::Colours;
use self::source::{News, Source};
use self::terminal::{Key, Terminal};
use self::view::View;
use super::client::Client;
use super::secure::Secure;
use super::{Failure, Outcome, complain, has_colours, visible};
use crate::live::Snapshot;

/// Watches a server.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate top                                        the server on this machine
  tidegate top --server https://limits.example:8080 --interval 5s
  tidegate top --count 1 | cat                        once, in one line
  tidegate top --json | jq '.rules[] | {name, rates}'

Keys:
  q, Esc, Ctrl-C   quit                 s   sort rules by denied, allowed, name
  j, k, arrows     scroll rules         p   pause
  ?                help

Variables:
  TIDEGATE_TOKEN   The server's token, or TIDEGATE_TOKEN_FILE: a file with it
  NO_COLOR         No colours")]
pub(super) struct Options {
    /// The server to watch
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: String,
    #[command(flatten)]
    secure: Secure,
    /// Print what is seen as lines of JSON, as GET /v1/live answers it
    #[arg(long)]
    json: bool,
    /// How often, from 1s up
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// End after so many times
    #[arg(long, value_name = "N")]
    count: Option<NonZeroU64>,
}

fn interval(text: &str) -> Result<Duration, &'static str> {
    let span = text.parse::<Span>().ok().and_then(Span::length).map(Duration::from);
    span.filter(|span| *span >= Duration::from_secs(1)).ok_or("write a span from 1s up, like 5s")
}

pub(super) fn run(options: &Options) -> Result<Outcome, Failure> {
    let client = Arc::new(Client::new(&options.server, &options.secure)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let watched = runtime.block_on(async {
        // A server that was never there is a mistake; one that goes away may come back.
        let source = Source::open(client.clone()).await?;
        let is_drawn = io::stdout().is_terminal() && !options.json;
        if is_drawn { draw(options, client, source).await } else { print(options, source).await }
    });
    // Somebody may be waiting for a key still.
    runtime.shutdown_background();
    watched.map(|()| Outcome::Good)
}

/// Which snapshots are shown.
struct Pace {
    interval: Duration,
    shown_at_ms: Option<u64>,
    left: Option<u64>,
}

impl Pace {
    fn new(options: &Options) -> Self {
        let left = options.count.map(NonZeroU64::get);
        Self { interval: options.interval, shown_at_ms: None, left }
    }

    /// Is it time for another?
    fn is_due(&mut self, snapshot: &Snapshot) -> bool {
        // Snapshots come every second; half of one is for those that are late.
        let interval = (self.interval.as_millis() as u64).saturating_sub(500);
        let due = |at: u64| snapshot.at_ms >= at.saturating_add(interval) || snapshot.at_ms < at;
        let is_due = self.shown_at_ms.is_none_or(due);
        if is_due {
            self.shown_at_ms = Some(snapshot.at_ms);
            self.left = self.left.map(|left| left - 1);
        }
        is_due
    }

    fn is_over(&self) -> bool {
        self.left == Some(0)
    }
}

/// One line every second.
async fn print(options: &Options, mut source: Source) -> Result<(), Failure> {
    let mut pace = Pace::new(options);
    while !pace.is_over() {
        match source.next().await? {
            News::Seen { snapshot, json } => {
                if pace.is_due(&snapshot) {
                    let line = if options.json { json } else { words::line(&snapshot) };
                    match write_line(&line) {
                        // Whoever has read enough may go.
                        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                        written => written?,
                    }
                }
            }
            News::Gone(why) => complain(format_args!("{why}; trying again")),
        }
    }
    Ok(())
}

fn write_line(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", visible(line))?;
    out.flush()
}

/// The whole screen, until somebody has seen enough.
async fn draw(options: &Options, client: Arc<Client>, mut source: Source) -> Result<(), Failure> {
    /// How often it is looked whether the window has another size.
    const LOOK: Duration = Duration::from_millis(250);
    let mut pace = Pace::new(options);
    let kinds = [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
        SignalKind::quit(),
    ];
    let mut signals = kinds.map(signal).into_iter().collect::<Result<Vec<_>, _>>()?;
    let [terminate, interrupt, hangup, quit] = &mut *signals else { return Ok(()) };
    let mut view = View::new(client.host());
    let (asking, mut left) = mpsc::channel::<Left>(1);
    let colours = if has_colours() { Colours::Some } else { Colours::None };
    let mut terminal = Terminal::open(colours)?;
    let mut keys = terminal.keys();
    loop {
        let size = terminal.size()?;
        terminal.draw(&view.lines(size), size)?;
        if pace.is_over() {
            return Ok(());
        }
        tokio::select! {
            news = source.next() => match news? {
                News::Seen { snapshot, .. } => {
                    view.find();
                    if !view.is_paused() && pace.is_due(&snapshot) {
                        Left::ask(client.clone(), &snapshot, asking.clone());
                        view.show(*snapshot);
                    }
                }
                News::Gone(why) => view.lose(why),
            },
            key = keys.recv() => match key {
                Some(Key::Quit) => return Ok(()),
                Some(key) => view.press(key),
                // Nobody could quit any more.
                None => return Err("no keys can be read from the terminal any more".into()),
            },
            Some(left) = left.recv() => view.know(left),
            () = tokio::time::sleep(LOOK) => {}
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
            _ = quit.recv() => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_second_or_longer() {
        for (text, expected) in [
            ("1s", Some(1)),
            ("5s", Some(5)),
            ("1min", Some(60)),
            ("999ms", None),
            ("0s", None),
            ("1month", None),
            ("often", None),
        ] {
            assert_eq!(interval(text).ok().map(|span| span.as_secs()), expected, "{text}");
        }
    }

    #[test]
    fn snapshots_are_shown_at_the_pace_that_was_asked_for_and_so_often() {
        let mut pace = Pace { interval: Duration::from_secs(3), shown_at_ms: None, left: Some(3) };
        let mut shown = Vec::new();
        let mut snapshot = view::tests::snapshot();
        for at_ms in (10_000..30_000).step_by(1_000) {
            snapshot.at_ms = at_ms;
            if !pace.is_over() && pace.is_due(&snapshot) {
                shown.push(at_ms);
            }
        }
        assert_eq!(shown, [10_000, 13_000, 16_000]);
        // Another server, whose clock is behind.
        pace.left = None;
        snapshot.at_ms = 5_000;
        assert!(pace.is_due(&snapshot));
    }
}
