//! `tidegate top`: live view of a server. Imports: nothing.

mod format;
mod screen;
mod stream;

use std::io::{self, IsTerminal, Write};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use tidegate::Span;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::error::{CliError, ExitStatus};
use crate::http_client::ServerClient;
use crate::output::{escape_control, has_colours, print_error};
use crate::tls_args::TlsArgs;
use screen::{KeyPress, Screen};
use stream::{SnapshotSource, StreamUpdate};
use tidegate_server::internal::observe::traffic::TrafficSnapshot;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate top                                        the server on this machine
  tidegate top --server https://limits.example:8080 --interval 5s
  tidegate top --count 1 | cat                        one snapshot on one line
  tidegate top --json | jq '.rules[] | {name, rates}'

Keys:
  q, Esc, Ctrl-C   quit                 s   sort rules by denied, allowed, name
  j, k, arrows     scroll rules         p   pause
  ?                help

Environment:
  TIDEGATE_TOKEN   API token of the server, or TIDEGATE_TOKEN_FILE
  NO_COLOR         Disables colours")]
pub(crate) struct Options {
    /// Server URL
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: String,
    #[command(flatten)]
    tls: TlsArgs,
    /// Print snapshots as JSON lines, as GET /v1/live returns them
    #[arg(long)]
    json: bool,
    /// Refresh interval, at least 1s
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Exit after this many refreshes
    #[arg(long, value_name = "N", value_parser = count)]
    count: Option<NonZeroU64>,
}

fn interval(text: &str) -> Result<Duration, &'static str> {
    let span = text.parse::<Span>().ok().and_then(Span::length).map(Duration::from);
    span.filter(|span| *span >= Duration::from_secs(1))
        .ok_or("expected a duration of at least 1s, for example 5s")
}

fn count(text: &str) -> Result<NonZeroU64, &'static str> {
    text.parse().map_err(|_| "expected a whole number above 0")
}

pub(crate) fn run(options: &Options) -> Result<ExitStatus, CliError> {
    let client = Arc::new(ServerClient::new(&options.server, &options.tls)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let watched = runtime.block_on(async {
        // An unreachable server is an error at the start; later the stream reconnects.
        let source = SnapshotSource::open(client.clone()).await?;
        let is_drawn = io::stdout().is_terminal() && !options.json;
        if is_drawn {
            draw(options, client.host(), source).await
        } else {
            print(options, source).await
        }
    });
    // The thread that reads keys may still be blocked.
    runtime.shutdown_background();
    watched.map(|()| ExitStatus::Success)
}

/// Selects the snapshots to show: interval and count.
struct RefreshTimer {
    interval: Duration,
    shown_at_ms: Option<u64>,
    left: Option<u64>,
}

impl RefreshTimer {
    fn new(options: &Options) -> Self {
        let left = options.count.map(NonZeroU64::get);
        Self { interval: options.interval, shown_at_ms: None, left }
    }

    /// Whether this snapshot is shown; counts it if so.
    fn is_due(&mut self, snapshot: &TrafficSnapshot) -> bool {
        // Snapshots arrive every second; half a second of slack covers jitter.
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

/// One line per snapshot.
async fn print(options: &Options, mut source: SnapshotSource) -> Result<(), CliError> {
    let mut timer = RefreshTimer::new(options);
    while !timer.is_over() {
        match source.next().await? {
            StreamUpdate::Snapshot { snapshot, json } => {
                if timer.is_due(&snapshot) {
                    let line = if options.json { json } else { format::line(&snapshot) };
                    match write_line(&line) {
                        // A reader that closes the pipe early is not an error.
                        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                        written => written?,
                    }
                }
            }
            StreamUpdate::Lost(why) => print_error(format_args!("{why}; reconnecting")),
        }
    }
    Ok(())
}

fn write_line(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", escape_control(line))?;
    out.flush()
}

/// Full screen, until a key or a signal quits.
async fn draw(options: &Options, host: &str, mut source: SnapshotSource) -> Result<(), CliError> {
    /// Interval at which the window size is checked.
    const RESIZE_INTERVAL: Duration = Duration::from_millis(250);
    let mut timer = RefreshTimer::new(options);
    let kinds = [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
        SignalKind::quit(),
    ];
    let mut signals = kinds.map(signal).into_iter().collect::<Result<Vec<_>, _>>()?;
    let [terminate, interrupt, hangup, quit] = &mut *signals else { return Ok(()) };
    let mut screen = Screen::new(host, has_colours());
    let _restore = RestoreTerminal;
    let mut terminal = ratatui::try_init()?;
    let mut keys = read_keys();
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        if timer.is_over() {
            return Ok(());
        }
        tokio::select! {
            update = source.next() => match update? {
                StreamUpdate::Snapshot { snapshot, .. } => {
                    screen.set_connected();
                    if !screen.is_paused() && timer.is_due(&snapshot) {
                        screen.show(*snapshot);
                    }
                }
                StreamUpdate::Lost(why) => screen.set_lost(why),
            },
            key = keys.recv() => match key {
                Some(KeyPress::Quit) => return Ok(()),
                Some(key) => screen.press(key),
                // Without keys there is no way to quit.
                None => return Err("cannot read keys from the terminal".into()),
            },
            () = tokio::time::sleep(RESIZE_INTERVAL) => {}
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
            _ = quit.recv() => return Ok(()),
        }
    }
}

/// Restores the terminal on drop. A panic restores it too, before its message.
struct RestoreTerminal;

impl Drop for RestoreTerminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Reads keys in a thread, until the terminal is closed.
fn read_keys() -> mpsc::Receiver<KeyPress> {
    let (sender, receiver) = mpsc::channel(8);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if key_press(&event).is_some_and(|key| sender.blocking_send(key).is_err()) {
                return;
            }
        }
    });
    receiver
}

fn key_press(event: &Event) -> Option<KeyPress> {
    let key = event.as_key_press_event()?;
    Some(match key.code {
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => KeyPress::Quit,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => KeyPress::Quit,
        KeyCode::Char('k') | KeyCode::Up => KeyPress::Up,
        KeyCode::Char('j') | KeyCode::Down => KeyPress::Down,
        KeyCode::Char('s') => KeyPress::Sort,
        KeyCode::Char('p') => KeyPress::Pause,
        KeyCode::Char('?' | 'h') => KeyPress::Help,
        _ => return None,
    })
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
    fn snapshots_are_shown_at_the_interval_and_up_to_the_count() {
        let mut timer =
            RefreshTimer { interval: Duration::from_secs(3), shown_at_ms: None, left: Some(3) };
        let mut shown = Vec::new();
        let mut snapshot = screen::tests::snapshot();
        for at_ms in (10_000..30_000).step_by(1_000) {
            snapshot.at_ms = at_ms;
            if !timer.is_over() && timer.is_due(&snapshot) {
                shown.push(at_ms);
            }
        }
        assert_eq!(shown, [10_000, 13_000, 16_000]);
        // Another server behind the same URL, with a slower clock.
        timer.left = None;
        snapshot.at_ms = 5_000;
        assert!(timer.is_due(&snapshot));
    }
}
