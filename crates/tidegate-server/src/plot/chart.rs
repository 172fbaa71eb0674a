//! Offered and admitted over time, in characters.

use tidegate::simulate::{Report, Run};

use super::words::{number, shortened, span};

/// What the charts are printed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terminal {
    /// How many characters fit into a line.
    pub width: usize,
    /// Does it show colours, and are they wanted?
    pub colours: Colours,
}

/// Are colours shown?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Colours {
    /// Yes.
    On,
    /// No: only letters.
    Off,
}

impl Colours {
    const GREEN: &'static str = "\u{1b}[32m";
    const RED: &'static str = "\u{1b}[31m";
    const BOLD: &'static str = "\u{1b}[1m";

    fn paint(self, code: &str, text: &str) -> String {
        match self {
            Self::On if !text.is_empty() => format!("{code}{text}\u{1b}[0m"),
            _ => text.into(),
        }
    }
}

const HEIGHT: usize = 8;
const EIGHTHS: [char; 8] =
    [' ', '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}'];
const FULL: char = '\u{2588}';
const OFFERED: char = '\u{2591}';
const DENIED: char = '\u{25bc}';

/// A chart: columns of what passed, above them what was offered and did not, below them where somebody was denied.
pub(super) fn chart(report: &Report, run: &Run, terminal: &Terminal) -> String {
    let colours = terminal.colours;
    // One scale for all, or they could not be compared.
    let room = terminal.width.saturating_sub(MARGIN + 1).clamp(16, 240);
    let columns = columns_of(report.axis.steps, room);
    let offered = joined(&report.offered_series, columns);
    let most = report.runs.iter().flat_map(|run| joined(&run.passed_series, columns));
    let most = most.chain(offered.iter().copied()).max().unwrap_or(0).max(1);
    let (passed, denied) =
        (joined(&run.passed_series, columns), joined(&run.denied_series, columns));
    let name = shortened(&run.candidate.to_string(), terminal.width.max(20));
    let mut text = format!("{}\n", colours.paint(Colours::BOLD, &name));
    for row in (0..HEIGHT).rev() {
        let label = match row {
            _ if row == HEIGHT - 1 => number(most),
            0 => "0".into(),
            _ => String::new(),
        };
        text += &format!("{label:>LABEL$} \u{2502}");
        let cells =
            offered.iter().zip(&passed).map(|(offered, passed)| cell(row, *offered, *passed, most));
        text += &painted(cells, colours);
        text.push('\n');
    }
    let marks = denied
        .iter()
        .map(|denied| if *denied > 0 { (DENIED, Ink::Denied) } else { ('\u{2500}', Ink::Plain) });
    text += &format!("{:>LABEL$} \u{2514}{}\n", "", painted(marks, colours));
    let end = span(report.axis.span);
    let room = columns.saturating_sub(end.len() + 1);
    text += &format!("{:>LABEL$}  0{:>room$}{end}\n", "", "");
    text
}

/// The numbers on the left, a space and a line.
const LABEL: usize = 10;
const MARGIN: usize = LABEL + 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ink {
    Plain,
    Passed,
    Denied,
}

/// What stands in one row of one column.
fn cell(row: usize, offered: u64, passed: u64, most: u64) -> (char, Ink) {
    let floor = row * 8;
    let filled = eighths(passed, most).saturating_sub(floor).min(8);
    if filled == 8 {
        return (FULL, Ink::Passed);
    }
    if filled > 0 {
        return (EIGHTHS[filled], Ink::Passed);
    }
    if eighths(offered, most) > floor { (OFFERED, Ink::Denied) } else { (' ', Ink::Plain) }
}

/// How high it stands in eighths of a row; what is there is seen, however little it is.
fn eighths(count: u64, most: u64) -> usize {
    let all = (HEIGHT * 8) as u128;
    usize::try_from((u128::from(count) * all).div_ceil(u128::from(most))).unwrap_or(0)
}

fn painted(cells: impl Iterator<Item = (char, Ink)>, colours: Colours) -> String {
    let cells: Vec<(char, Ink)> = cells.collect();
    let runs = cells.chunk_by(|(_, a), (_, b)| a == b);
    let paint = |run: &[(char, Ink)]| {
        let text: String = run.iter().map(|(letter, _)| *letter).collect();
        match run[0].1 {
            Ink::Plain => text,
            Ink::Passed => colours.paint(Colours::GREEN, &text),
            Ink::Denied => colours.paint(Colours::RED, &text),
        }
    };
    runs.map(paint).collect()
}

/// How many columns there are: each has the same number of steps, but for the last.
fn columns_of(steps: usize, room: usize) -> usize {
    steps.div_ceil(steps.div_ceil(room).max(1))
}

/// The series in so many columns.
fn joined(series: &[u64], columns: usize) -> Vec<u64> {
    let each = series.len().div_ceil(columns.max(1)).max(1);
    series.chunks(each).map(|steps| steps.iter().sum()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_as_high_as_its_number_and_little_is_not_nothing() {
        assert_eq!(
            [eighths(0, 100), eighths(1, 100), eighths(50, 100), eighths(100, 100)],
            [0, 1, 32, 64]
        );
        let column = |offered, passed| {
            (0..HEIGHT).map(|row| cell(row, offered, passed, 8).0).collect::<String>()
        };
        assert_eq!(
            column(8, 4),
            "\u{2588}\u{2588}\u{2588}\u{2588}\u{2591}\u{2591}\u{2591}\u{2591}"
        );
        assert_eq!(column(0, 0), "        ");
    }

    #[test]
    fn columns_hold_every_step_once() {
        for (steps, room) in [(240, 67), (1, 67), (100, 100), (101, 100), (240, 16)] {
            let columns = columns_of(steps, room);
            let all = joined(&vec![1; steps], columns);
            assert!(
                all.len() <= room && all.iter().sum::<u64>() == steps as u64,
                "{steps} in {room}"
            );
        }
    }
}
