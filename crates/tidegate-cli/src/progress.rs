//! Progress on standard error, for `bench` and `replay`. Nothing is written unless standard error
//! is a terminal.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use tidegate::{Clock, Micros, SystemClock};

use crate::bench::BenchProgress;
use crate::replay::ReadProgress;

/// One line that is rewritten in place.
struct TerminalLine {
    is_terminal: bool,
    is_shown: bool,
}

impl TerminalLine {
    const CLEAR: &'static str = "\r\x1b[K";

    fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), is_shown: false }
    }

    fn show(&mut self, text: impl Display) {
        if self.is_terminal {
            self.is_shown = true;
            Self::write(format_args!("{}{text}", Self::CLEAR));
        }
    }

    fn clear(&self) {
        if self.is_shown {
            Self::write(Self::CLEAR);
        }
    }

    fn write(text: impl Display) {
        let mut stderr = io::stderr();
        let _ = write!(stderr, "{text}").and_then(|()| stderr.flush());
    }
}

/// Progress of a benchmark.
pub(crate) struct ProgressLine {
    line: TerminalLine,
    last: Option<BenchProgress>,
}

impl ProgressLine {
    pub(crate) fn new() -> Self {
        Self { line: TerminalLine::new(), last: None }
    }

    pub(crate) fn show(&mut self, progress: BenchProgress) {
        self.line.show(bench_text(self.last, progress));
        self.last = Some(progress);
    }

    pub(crate) fn clear(&self) {
        self.line.clear();
    }
}

/// Progress of a replay.
pub(crate) struct ProgressBar {
    line: TerminalLine,
    progress: ReadProgress,
    begun: Micros,
    shown: Option<Micros>,
}

impl ProgressBar {
    const INTERVAL: Micros = Micros::from_millis(200);

    pub(crate) fn new(progress: ReadProgress) -> Self {
        Self { line: TerminalLine::new(), progress, begun: SystemClock.elapsed(), shown: None }
    }

    /// Redraws the bar, at most once per interval.
    pub(crate) fn show(&mut self, lines: u64) {
        if !self.line.is_terminal {
            return;
        }
        let now = SystemClock.elapsed();
        if now.saturating_sub(self.shown.unwrap_or(self.begun)) < Self::INTERVAL {
            return;
        }
        self.shown = Some(now);
        let taken = now.saturating_sub(self.begun);
        self.line.show(bar_text(lines, taken, self.progress.read(), self.progress.total()));
    }

    pub(crate) fn clear(&self) {
        self.line.clear();
    }
}

/// `4s of 11s, 150000 requests, 50000/s`
fn bench_text(last: Option<BenchProgress>, progress: BenchProgress) -> String {
    let seconds = |span: Micros| Micros::from_secs(span.get() / 1_000_000);
    let last = last.unwrap_or(BenchProgress { taken: Micros::ZERO, requests: 0, ..progress });
    let since = u128::from(progress.taken.saturating_sub(last.taken).get());
    let more = u128::from(progress.requests.saturating_sub(last.requests));
    let now = (more * 1_000_000).checked_div(since).unwrap_or(0);
    let (taken, total) = (seconds(progress.taken), seconds(progress.total));
    format!("{taken} of {total}, {} requests, {now}/s", progress.requests)
}

/// `[#####.....] 50%, 1000000 lines, 12s left`
fn bar_text(lines: u64, taken: Micros, read: u64, total: Option<u64>) -> String {
    const WIDTH: usize = 30;
    let Some(total) = total.filter(|total| *total > 0) else { return format!("{lines} lines") };
    let read = read.clamp(1, total);
    let done = (u128::from(read) * WIDTH as u128 / u128::from(total)) as usize;
    let left = u128::from(taken.get()) * u128::from(total - read) / u128::from(read) / 1_000_000;
    let left = Micros::from_secs(left.try_into().unwrap_or(u64::MAX));
    let percent = u128::from(read) * 100 / u128::from(total);
    let bar = "#".repeat(done) + &".".repeat(WIDTH - done);
    format!("[{bar}] {percent}%, {lines} lines, {left} left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bench_progress_shows_the_rate_since_the_last_update() {
        let at = |taken, requests| BenchProgress {
            taken: Micros::from_secs(taken),
            total: Micros::from_secs(11),
            requests,
        };
        assert_eq!(bench_text(None, at(1, 100)), "1s of 11s, 100 requests, 100/s");
        assert_eq!(bench_text(Some(at(1, 100)), at(3, 1_100)), "3s of 11s, 1100 requests, 500/s");
        assert_eq!(bench_text(Some(at(3, 7)), at(3, 7)), "3s of 11s, 7 requests, 0/s");
    }

    #[test]
    fn a_bar_shows_the_share_read_and_the_time_left() {
        let text = bar_text(1_000, Micros::from_secs(5), 250, Some(1_000));
        assert_eq!(
            text,
            format!("[{}{}] 25%, 1000 lines, 15s left", "#".repeat(7), ".".repeat(23))
        );
        assert_eq!(bar_text(7, Micros::ZERO, 5, None), "7 lines");
        assert_eq!(bar_text(7, Micros::ZERO, 5, Some(0)), "7 lines");
        // The file grew after its size was read.
        assert!(bar_text(7, Micros::from_secs(1), 50, Some(10)).contains("100%"));
    }
}
