//! A line of the screen.

use unicode_width::UnicodeWidthChar;

use crate::logs::is_hidden;

/// How a part of a line looks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Style {
    #[default]
    Plain,
    Dim,
    Bold,
    Good,
    Warn,
    Bad,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Dim => "\x1b[2m",
            Self::Bold => "\x1b[1m",
            Self::Good => "\x1b[32m",
            Self::Warn => "\x1b[33m",
            Self::Bad => "\x1b[31m",
        }
    }
}

/// A line that is no wider than the screen. Whatever is put on it cannot act on the terminal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Line {
    parts: Vec<(Style, String)>,
    width: usize,
    max: usize,
}

impl Line {
    pub(super) fn new(max: usize) -> Self {
        Self { parts: Vec::new(), width: 0, max }
    }

    /// With a text behind it, as far as there is room.
    pub(super) fn and(mut self, style: Style, text: impl AsRef<str>) -> Self {
        let mut shown = String::new();
        for c in text.as_ref().chars() {
            if is_hidden(c) {
                let escaped: Vec<char> = c.escape_default().collect();
                if self.width + escaped.len() > self.max {
                    break;
                }
                self.width += escaped.len();
                shown.extend(escaped);
                continue;
            }
            let wide = c.width().unwrap_or(0);
            if self.width + wide > self.max {
                break;
            }
            self.width += wide;
            shown.push(c);
        }
        self.parts.push((style, shown));
        self
    }

    /// With a text in a column of this width: cut with `…` if it is too long.
    pub(super) fn column(self, style: Style, text: &str, width: usize) -> Self {
        let (max, end) = (self.max, (self.width + width).min(self.max));
        let all = Self { max: end, ..self.clone() }.and(style, text);
        let is_cut = all.text().chars().count() < self.text().chars().count() + shown_len(text);
        let mut line = if is_cut && width > 1 {
            let cut = Self { max: end.saturating_sub(1), ..self }.and(style, text);
            Self { max: end, ..cut }.and(style, "…")
        } else {
            all
        };
        let room = end.saturating_sub(line.width);
        line = line.and(Style::Plain, " ".repeat(room));
        Self { max, ..line }
    }

    /// With a text at the right of a column of this width.
    pub(super) fn number(self, style: Style, text: &str, width: usize) -> Self {
        let room = width.saturating_sub(text.chars().count());
        self.and(Style::Plain, " ".repeat(room)).and(style, text)
    }

    /// Is there no room for more?
    pub(super) fn is_full(&self) -> bool {
        self.width >= self.max
    }

    /// What can be read.
    pub(super) fn text(&self) -> String {
        self.parts.iter().map(|(_, text)| text.as_str()).collect()
    }

    /// With what a terminal needs to show it.
    pub(super) fn drawn(&self, colours: Colours) -> String {
        if colours == Colours::None {
            return self.text();
        }
        let draw = |(style, text): &(Style, String)| match style {
            Style::Plain => text.clone(),
            style => format!("{}{text}\x1b[0m", style.code()),
        };
        self.parts.iter().map(draw).collect()
    }
}

/// Are there colours?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Colours {
    Some,
    None,
}

fn shown_len(text: &str) -> usize {
    let len = |c: char| if is_hidden(c) { c.escape_default().count() } else { 1 };
    text.chars().map(len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_no_wider_than_the_screen_and_nothing_on_it_acts() {
        let line = |text: &str| Line::new(8).and(Style::Plain, text).text();
        assert_eq!(line("12345678"), "12345678");
        assert_eq!(line("123456789"), "12345678");
        assert_eq!(line("日本語日本語"), "日本語日", "two columns each");
        assert_eq!(line("日本語1日"), "日本語1");
        assert_eq!(line("a\nb"), r"a\nb");
        assert_eq!(line("\u{1b}[2J"), r"\u{1b}[2");
        assert_eq!(line("e\u{301}e"), "e\u{301}e", "an accent takes no room");
    }

    #[test]
    fn columns_are_filled_or_cut() {
        let column = |text: &str| Line::new(20).column(Style::Bold, text, 6).and(Style::Plain, "|");
        for (text, shown) in [
            ("ab", "ab    |"),
            ("abcdef", "abcdef|"),
            ("abcdefg", "abcde…|"),
            ("日本語日", "日本… |"),
            ("", "      |"),
        ] {
            assert_eq!(column(text).text(), shown, "{text}");
        }
        let narrow = Line::new(4).column(Style::Plain, "abcdef", 6).number(Style::Plain, "12", 5);
        assert_eq!(narrow.text(), "abc…");
        assert_eq!(Line::new(9).number(Style::Plain, "12", 5).text(), "   12");
    }

    #[test]
    fn without_colours_there_is_not_a_single_sequence() {
        let line = Line::new(9).and(Style::Bad, "no").and(Style::Plain, " yes");
        assert_eq!(line.drawn(Colours::Some), "\u{1b}[31mno\u{1b}[0m yes");
        assert_eq!(line.drawn(Colours::None), "no yes");
    }
}
