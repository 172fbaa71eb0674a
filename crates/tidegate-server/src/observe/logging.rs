//! Log format and level: lines on standard error, text for a terminal, JSON otherwise.
//!
//! An event is one line whatever its fields contain. Control characters of callers are escaped. On
//! a terminal, line breaks are kept: lines after the first are indented, so that none looks like an
//! event.

use std::error::Error;
use std::ffi::OsStr;
use std::fmt::{self, Write};
use std::io::{self, IsTerminal};

use tidegate::{Clock, SystemClock};
use tracing::field::{Field, Visit};
use tracing::{Dispatch, Event, Level, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::{self, Json, JsonFields, Writer};
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

use crate::text::escape::is_hidden;

/// The environment variable for the level.
pub(crate) const LEVEL_VARIABLE: &str = "TIDEGATE_LOG";

/// The format of a log line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// Message and fields in plain text.
    Text,
    /// One object per line, with `timestamp`, `level`, `target` and `fields`.
    Json,
}

impl LogFormat {
    /// Text if standard error is a terminal, else JSON.
    pub fn for_stderr() -> Self {
        if io::stderr().is_terminal() { Self::Text } else { Self::Json }
    }
}

/// Writes events of the process to standard error, from the level in `LEVEL_VARIABLE` up; `info`
/// if that is unset or empty.
pub fn init(format: LogFormat) -> Result<(), LogError> {
    start(format, level(std::env::var_os(LEVEL_VARIABLE).as_deref())?)
}

/// The same from a given level up.
pub fn init_at(format: LogFormat, name: &str) -> Result<(), LogError> {
    start(format, level(Some(OsStr::new(name)))?)
}

fn start(format: LogFormat, level: Level) -> Result<(), LogError> {
    let colour = if io::stderr().is_terminal() { AnsiColours::Yes } else { AnsiColours::No };
    let dispatch = dispatch(format, level, colour, SystemClock, io::stderr);
    tracing::dispatcher::set_global_default(dispatch).map_err(|_| LogError::AlreadySet)
}

/// Why logging was not initialised.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LogError {
    /// [`LEVEL_VARIABLE`] has an unknown value.
    Level(Box<str>),
    /// Logging is already initialised.
    AlreadySet,
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Level(value) => {
                write!(f, "{LEVEL_VARIABLE} is {value:?}; use error, warn, info, debug or trace")
            }
            Self::AlreadySet => f.write_str("logging is already initialised"),
        }
    }
}

impl Error for LogError {}

/// The maximum number of characters of an unknown level that its error shows.
const MAX_SHOWN: usize = 32;

fn level(value: Option<&OsStr>) -> Result<Level, LogError> {
    let value = value.unwrap_or_default().to_string_lossy();
    match value.to_ascii_lowercase().as_str() {
        "error" => Ok(Level::ERROR),
        "warn" => Ok(Level::WARN),
        "info" | "" => Ok(Level::INFO),
        "debug" => Ok(Level::DEBUG),
        "trace" => Ok(Level::TRACE),
        _ => Err(LogError::Level(value.chars().take(MAX_SHOWN).collect::<String>().into())),
    }
}

#[derive(Clone, Copy)]
enum AnsiColours {
    /// Unless `NO_COLOR` is set.
    Yes,
    No,
}

fn dispatch<W>(
    format: LogFormat,
    level: Level,
    colour: AnsiColours,
    clock: impl Clock,
    to: W,
) -> Dispatch
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_timer(UtcTimer(clock))
        // It would report a closed standard error on standard error, and panic.
        .log_internal_errors(false)
        .with_writer(to);
    match (format, colour) {
        (LogFormat::Text, AnsiColours::Yes) => {
            Dispatch::new(lines.fmt_fields(TextFields { line_break: "\n    " }).finish())
        }
        (LogFormat::Text, AnsiColours::No) => {
            let fields = TextFields { line_break: "\\n" };
            Dispatch::new(lines.with_ansi(false).fmt_fields(fields).finish())
        }
        (LogFormat::Json, _) => {
            let lines = lines.fmt_fields(JsonFields::new());
            Dispatch::new(lines.map_event_format(|format| JsonLine(format.json())).finish())
        }
    }
}

/// Formats time as in `2023-11-14T22:13:20.000000Z`.
struct UtcTimer<C>(C);

impl<C: Clock> FormatTime for UtcTimer<C> {
    fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
        let micros = i64::try_from(self.0.now().get()).map_err(|_| fmt::Error)?;
        let now = jiff::Timestamp::from_microsecond(micros).map_err(|_| fmt::Error)?;
        write!(out, "{now:.6}")
    }
}

/// The message, then `name=value`, with hidden characters as `\u{1b}`.
struct TextFields {
    /// What is written for a line break.
    line_break: &'static str,
}

impl<'writer> FormatFields<'writer> for TextFields {
    fn format_fields<R: RecordFields>(&self, out: Writer<'writer>, fields: R) -> fmt::Result {
        let line_break = self.line_break;
        let mut visitor = TextVisitor { out, separator: "", line_break, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct TextVisitor<'writer> {
    out: Writer<'writer>,
    separator: &'static str,
    line_break: &'static str,
    result: fmt::Result,
}

/// Strings are formatted here too, in quotes unless they are the message.
impl Visit for TextVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.result.is_err() {
            return;
        }
        let separator = std::mem::replace(&mut self.separator, " ");
        let name = field.name().trim_start_matches("r#");
        self.result = match name {
            "message" => self.out.write_str(separator),
            name => write!(self.out, "{separator}{name}="),
        }
        .and_then(|()| write!(Escaping(&mut self.out, self.line_break), "{value:?}"));
    }
}

struct Escaping<'a, 'writer>(&'a mut Writer<'writer>, &'static str);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| match c {
            '\n' => self.0.write_str(self.1),
            c if is_hidden(c) => write!(self.0, "{}", c.escape_default()),
            c => self.0.write_char(c),
        })
    }
}

/// Escapes the hidden characters that JSON allows. They occur only inside of strings.
struct JsonLine<C>(format::Format<Json, UtcTimer<C>>);

impl<S, N, C> FormatEvent<S, N> for JsonLine<C>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    C: Clock,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        for c in line.trim_end_matches('\n').chars() {
            if is_hidden(c) {
                write!(out, "\\u{:04x}", u32::from(c))?;
            } else {
                out.write_char(c)?;
            }
        }
        writeln!(out)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::{Value, json};
    use tidegate::ManualClock;
    use tracing::{debug, info, info_span, warn};

    use super::*;

    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, log: impl FnOnce()) -> String {
        logged_in(AnsiColours::No, format, log)
    }

    fn logged_in(colours: AnsiColours, format: LogFormat, log: impl FnOnce()) -> String {
        let output = Output::default();
        let to = output.clone();
        let clock = ManualClock::default();
        let dispatch = dispatch(format, Level::INFO, colours, clock, move || to.clone());
        tracing::dispatcher::with_default(&dispatch, log);
        let bytes = output.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    const NASTY: &str = "a\nb\r\t\0\u{1b}[31m\u{7f}\u{9b}2J\u{85}\u{2028}\u{202e}\u{2066}\"\\z";

    fn log_nasty_values() {
        let _span = info_span!("request", peer = %NASTY).entered();
        let error = io::Error::other(NASTY);
        warn!(key = NASTY, shown = %NASTY, debugged = ?NASTY, error = %error, "{NASTY}");
        let error: &(dyn Error + 'static) = &error;
        info!(error, "second");
    }

    fn assert_each_event_is_one_clean_line(text: &str) {
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.ends_with('\n') && !text.replace('\n', "").contains(is_hidden), "{text:?}");
    }

    #[test]
    fn a_text_line_has_the_message_then_fields() {
        let log = || {
            warn!(engine = "redis", error = %"timed out", r#type = 5, "check failed, using fallback");
            debug!("not shown");
        };
        let line = "2023-11-14T22:13:20.000000Z  WARN tidegate_server::observe::logging::tests: \
                    check failed, using fallback engine=\"redis\" error=timed out type=5\n";
        assert_eq!(logged(LogFormat::Text, log), line);
    }

    #[test]
    fn json_is_one_object_per_line() {
        let text = logged(LogFormat::Json, || {
            warn!(engine = "redis", tries = 3, "check failed");
            info!("second");
            debug!("not shown");
        });
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let expected = json!({
            "timestamp": "2023-11-14T22:13:20.000000Z",
            "level": "WARN",
            "target": "tidegate_server::observe::logging::tests",
            "fields": { "message": "check failed", "engine": "redis", "tries": 3 },
        });
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0], expected);
        assert_eq!(lines[1]["fields"], json!({ "message": "second" }));
    }

    #[test]
    fn a_text_line_contains_no_control_character() {
        let text = logged(LogFormat::Text, log_nasty_values);
        assert_each_event_is_one_clean_line(&text);
        assert!(text.contains(r"shown=a\nb\r\t\u{0}\u{1b}[31m\u{7f}\u{9b}2J\u{85}\u{2028}"));
    }

    #[test]
    fn a_terminal_gets_line_breaks_and_no_line_that_looks_like_an_event() {
        let text = logged_in(AnsiColours::Yes, LogFormat::Text, || {
            warn!("policy.yaml:3:16: unknown unit\n  limits: [5/parsec]\n             ^^^^^^");
            warn!(key = %"a\n2023-11-14T22:13:20Z  WARN forged", "denied");
        });
        let indented = text.lines().filter(|line| line.starts_with("    ")).count();
        assert_eq!((text.lines().count(), indented), (5, 3), "{text}");
        assert!(text.contains("\n      limits: [5/parsec]\n"), "{text}");
    }

    #[test]
    fn a_json_line_contains_no_control_character_and_loses_none() {
        let text = logged(LogFormat::Json, log_nasty_values);
        assert_each_event_is_one_clean_line(&text);
        let line: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        for field in ["message", "key", "shown", "error"] {
            assert_eq!(line["fields"][field], NASTY, "{field}");
        }
        assert_eq!(line["span"]["peer"], NASTY);
    }

    #[test]
    fn a_level_is_one_of_five_words() {
        let of = |value: &str| level(Some(OsStr::new(value)));
        assert_eq!(level(None), Ok(Level::INFO));
        let cases = [
            ("", Level::INFO),
            ("error", Level::ERROR),
            ("warn", Level::WARN),
            ("info", Level::INFO),
            ("DEBUG", Level::DEBUG),
            ("trace", Level::TRACE),
        ];
        for (value, level) in cases {
            assert_eq!(of(value), Ok(level), "{value}");
        }
        let message = of("verb\nose").unwrap_err().to_string();
        let expected = r#"TIDEGATE_LOG is "verb\nose"; use error, warn, info, debug or trace"#;
        assert_eq!(message, expected);
        assert!(of(&"x".repeat(10_000)).unwrap_err().to_string().len() < 200);
    }

    #[test]
    fn logging_is_initialised_once() {
        assert_eq!(init(LogFormat::for_stderr()), Ok(()));
        assert_eq!(init(LogFormat::Json), Err(LogError::AlreadySet));
    }
}
