//! Standard output and standard error, with control characters escaped.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use tidegate_server::internal::text::escape::is_hidden;

pub(crate) fn print_line(line: impl fmt::Display) -> io::Result<()> {
    print(format!("{}\n", escape_control(line)).as_bytes())
}

/// Writes to standard output as is. A reader that closes the pipe early is not an error.
pub(crate) fn print(text: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

/// Whether standard output is a terminal with colours; respects `NO_COLOR` and `TERM=dumb`.
pub(crate) fn has_colours() -> bool {
    let unset = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && unset && !is_dumb
}

/// Prints a line on standard error. Write errors are ignored: there is no other place to report.
pub(crate) fn print_error(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{}", escape_control(line));
}

/// Escapes characters that control a terminal, since parts of the text come from servers and
/// files. The escapes are those of JSON, so that JSON stays valid.
pub(crate) fn escape_control(text: impl fmt::Display) -> String {
    let mut shown = String::new();
    for c in text.to_string().chars() {
        if is_hidden(c) && !matches!(c, '\n' | '\t') {
            for unit in c.encode_utf16(&mut [0; 2]) {
                shown.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_json_stays_json() {
        let value = serde_json::json!({
            "escape\u{1b}[2J": "del\u{7f} csi\u{9b} turned\u{202e} bom\u{feff}",
            "kept": "é ✓ 🌊 tab\t line\n",
        });
        let shown = escape_control(&value);
        assert!(!shown.contains(is_hidden), "{shown:?}");
        let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(read, value, "{shown}");
        assert_eq!(escape_control("a\u{7f}b\tc\n✓"), "a\\u007fb\tc\n✓");
    }
}
