//! How far a measurement is.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use tidegate::Micros;

use crate::bench::Progress;

/// How far it is, on a terminal.
pub(super) struct Line {
    is_seen: bool,
    is_shown: bool,
    /// What was told before.
    last: Option<Progress>,
}

impl Line {
    pub(super) fn new() -> Self {
        Self { is_seen: io::stderr().is_terminal(), is_shown: false, last: None }
    }

    pub(super) fn show(&mut self, progress: Progress) {
        if self.is_seen {
            self.is_shown = true;
            self.put(format_args!("\r\x1b[K{}", in_words(self.last, progress)));
        }
        self.last = Some(progress);
    }

    pub(super) fn clear(&self) {
        if self.is_shown {
            self.put("\r\x1b[K");
        }
    }

    fn put(&self, text: impl Display) {
        let mut stderr = io::stderr();
        let _ = write!(stderr, "{text}").and_then(|()| stderr.flush());
    }
}

/// `4 of 11 s, 150000 requests, 50000/s`
fn in_words(last: Option<Progress>, progress: Progress) -> String {
    let seconds = |span: Micros| span.get() / 1_000_000;
    let last = last.unwrap_or(Progress { taken: Micros::ZERO, requests: 0, ..progress });
    let since = u128::from(progress.taken.saturating_sub(last.taken).get());
    let more = u128::from(progress.requests.saturating_sub(last.requests));
    let now = (more * 1_000_000).checked_div(since).unwrap_or(0);
    let (taken, total) = (seconds(progress.taken), seconds(progress.total));
    format!("{taken} of {total} s, {} requests, {now}/s", progress.requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_fast_it_goes_now() {
        let at = |taken, requests| Progress {
            taken: Micros::from_secs(taken),
            total: Micros::from_secs(11),
            requests,
        };
        assert_eq!(in_words(None, at(1, 100)), "1 of 11 s, 100 requests, 100/s");
        assert_eq!(in_words(Some(at(1, 100)), at(3, 1_100)), "3 of 11 s, 1100 requests, 500/s");
        assert_eq!(in_words(Some(at(3, 7)), at(3, 7)), "3 of 11 s, 7 requests, 0/s");
    }
}
