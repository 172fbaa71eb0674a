//! Figures that are easy to read.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use tidegate::Micros;

pub(super) use crate::plot::words::number as grouped;

/// A block for each count, as high as it is beside the largest. Only none at all has none.
pub(super) fn blocks(counts: &[u64]) -> String {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let height = |count: &u64| (u128::from(*count) * 8).div_ceil(u128::from(most)) as usize;
    counts.iter().map(|count| BLOCKS[height(count).min(8)]).collect()
}

/// Columns as wide as they need to be; numbers to the right.
pub(super) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(super) fn new(names: [&str; N]) -> Self {
        Self { rows: vec![names.map(str::to_string)] }
    }

    pub(super) fn push(&mut self, row: [String; N]) {
        self.rows.push(row);
    }

    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let widths: [usize; N] = std::array::from_fn(|i| {
            self.rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0)
        });
        let is_number =
            |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b",.%+<".contains(&b));
        let to_right: [bool; N] =
            std::array::from_fn(|i| self.rows.iter().skip(1).all(|row| is_number(&row[i])));
        for row in &self.rows {
            let mut line = String::new();
            for (i, cell) in row.iter().enumerate() {
                let width = widths[i];
                // Writing to a string cannot fail.
                let _ = if to_right[i] {
                    write!(line, "{cell:>width$}  ")
                } else {
                    write!(line, "{cell:<width$}  ")
                };
            }
            writeln!(to, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Nothing where there is none.
pub(super) fn number(count: u64) -> String {
    if count == 0 { String::new() } else { grouped(count) }
}

pub(super) fn percent(part: u64, of: u64) -> String {
    let thousandths = u128::from(part) * 100_000 / u128::from(of.max(1));
    match (part, thousandths) {
        (0, _) => "0%".into(),
        (_, 0..10) => "<0.01%".into(),
        _ => format!("{}.{:02}%", thousandths / 1_000, thousandths % 1_000 / 10),
    }
}

/// `1d 2h`, `5m 3s`, `250ms`: the two largest parts.
pub(super) fn span_text(span: Micros) -> String {
    let seconds = span.get() / 1_000_000;
    if seconds < 60 {
        return format!("{:?}", Duration::from(span));
    }
    let parts = [
        (seconds / 86_400, "d"),
        (seconds / 3_600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ];
    let parts =
        parts.iter().skip_while(|(count, _)| *count == 0).take(2).filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts.map(|(count, unit)| format!("{count}{unit}")).collect();
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_easy_to_read() {
        for (count, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(count), text);
        }
        for (part, of, text) in [
            (0, 0, "0%"),
            (0, 5, "0%"),
            (1, 3, "33.33%"),
            (5, 5, "100.00%"),
            (1, 1_000_000, "<0.01%"),
        ] {
            assert_eq!(percent(part, of), text);
        }
        for (micros, text) in [
            (0, "0ns"),
            (1_500_000, "1.5s"),
            (60_000_000, "1m"),
            (3_661_000_000, "1h 1m"),
            (86_401_000_000, "1d"),
            (93_600_000_000, "1d 2h"),
        ] {
            assert_eq!(span_text(Micros::new(micros)), text);
        }
    }

    #[test]
    fn a_chart_shows_the_least_that_there_is() {
        assert_eq!(blocks(&[0, 1, 500, 1_000]), " ▁▄█");
        assert_eq!(blocks(&[]), "");
        assert_eq!(blocks(&[u64::MAX, 1]), "█▁");
    }
}
