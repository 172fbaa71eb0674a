//! The terminal: its screen, its size, its keys, and how it was before.

use std::io::{self, IsTerminal, Read, Write};
use std::sync::{Mutex, Once, PoisonError};

use rustix::termios::{
    OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::sync::mpsc;

use super::line::{Colours, Line};

/// A key that means something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    Quit,
    Up,
    Down,
    Sort,
    Pause,
    Help,
}

/// How many columns and rows there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// A screen of our own. Dropped, the terminal is as it was before; so it is after a panic.
pub(super) struct Terminal {
    colours: Colours,
    drawn: String,
    has_keys: bool,
}

/// How the terminal was, while it is ours; without modes if keys come from elsewhere.
static BEFORE: Mutex<Option<Option<Termios>>> = Mutex::new(None);

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

impl Terminal {
    pub(super) fn open(colours: Colours) -> io::Result<Self> {
        let stdin = io::stdin();
        let modes = if stdin.is_terminal() { Some(tcgetattr(&stdin)?) } else { None };
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(modes.clone());
        restore_on_panic();
        let terminal = Self { colours, drawn: String::new(), has_keys: modes.is_some() };
        if let Some(mut raw) = modes {
            raw.make_raw();
            // A read ends after a tenth of a second, so that Esc can be told from the start of an arrow.
            raw.special_codes[SpecialCodeIndex::VMIN] = 0;
            raw.special_codes[SpecialCodeIndex::VTIME] = 1;
            tcsetattr(&stdin, OptionalActions::Now, &raw)?;
        }
        write(ENTER)?;
        Ok(terminal)
    }

    /// How large it is now; a terminal that is gone is an error.
    pub(super) fn size(&self) -> io::Result<Size> {
        let size = tcgetwinsize(io::stdout())?;
        let or = |given: u16, usual: usize| if given == 0 { usual } else { given.into() };
        Ok(Size { columns: or(size.ws_col, 80), rows: or(size.ws_row, 24) })
    }

    /// Draws a screenful, unless it is there already.
    pub(super) fn draw(&mut self, lines: &[Line], size: Size) -> io::Result<()> {
        let mut text = String::from("\x1b[H");
        for (row, line) in lines.iter().take(size.rows).enumerate() {
            if row > 0 {
                text.push_str("\r\n");
            }
            text.push_str(&line.drawn(self.colours));
            // Behind the last column there is nothing to clear, and some terminals clear the column itself.
            if !line.is_full() {
                text.push_str("\x1b[K");
            }
        }
        if lines.len() < size.rows {
            text.push_str("\x1b[J");
        }
        let all = format!("{size:?}{text}");
        if all != self.drawn {
            write(&text)?;
            self.drawn = all;
        }
        Ok(())
    }

    /// Keys as they are pressed.
    pub(super) fn keys(&self) -> mpsc::Receiver<Key> {
        let (sender, receiver) = mpsc::channel(8);
        if self.has_keys {
            std::thread::spawn(move || {
                read_keys(io::stdin().lock(), |key| sender.blocking_send(key).is_ok())
            });
        } else {
            // Nobody presses any, and nobody ever will.
            std::mem::forget(sender);
        }
        receiver
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(modes) = before else { return };
    let _ = write(LEAVE);
    if let Some(modes) = modes {
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &modes);
    }
}

/// What is told about a panic would be gone with our screen.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
    });
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Reads keys until nobody wants them, or there is nobody to press any.
fn read_keys(mut from: impl Read, mut take: impl FnMut(Key) -> bool) {
    let mut decoder = Decoder::default();
    let mut bytes = [0; 64];
    loop {
        let read = match from.read(&mut bytes) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => {
                take(Key::Quit);
                return;
            }
        };
        // Nothing for a while: what has begun is all there is.
        let ended = (read == 0).then(|| decoder.end()).flatten();
        let keys: Vec<Key> = bytes[..read].iter().filter_map(|byte| decoder.take(*byte)).collect();
        if !ended.into_iter().chain(keys).all(&mut take) {
            return;
        }
    }
}

/// Makes keys of bytes.
#[derive(Default)]
enum Decoder {
    #[default]
    Start,
    Escape,
    Sequence,
}

impl Decoder {
    fn take(&mut self, byte: u8) -> Option<Key> {
        const ESCAPE: u8 = 0x1b;
        match (std::mem::take(self), byte) {
            (Self::Escape, b'[' | b'O') => *self = Self::Sequence,
            (Self::Sequence, b'A') => return Some(Key::Up),
            (Self::Sequence, b'B') => return Some(Key::Down),
            (Self::Sequence, b'0'..=b'9' | b';') => *self = Self::Sequence,
            (Self::Sequence, _) => {}
            (Self::Escape, _) => return Some(Key::Quit),
            (Self::Start, ESCAPE) => *self = Self::Escape,
            (Self::Start, b'q' | b'Q' | 0x03) => return Some(Key::Quit),
            (Self::Start, b'k') => return Some(Key::Up),
            (Self::Start, b'j') => return Some(Key::Down),
            (Self::Start, b's') => return Some(Key::Sort),
            (Self::Start, b'p') => return Some(Key::Pause),
            (Self::Start, b'?' | b'h') => return Some(Key::Help),
            (Self::Start, _) => {}
        }
        None
    }

    fn end(&mut self) -> Option<Key> {
        matches!(std::mem::take(self), Self::Escape).then_some(Key::Quit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart_however_their_bytes_come() {
        use Key::{Down, Help, Pause, Quit, Sort, Up};
        for (chunks, expected) in [
            (&["q"][..], &[Quit][..]),
            (&["\u{3}"], &[Quit]),
            (&["\u{1b}", ""], &[Quit]),
            (&["\u{1b}"], &[]),
            (&["\u{1b}[A"], &[Up]),
            (&["\u{1b}", "[B"], &[Down]),
            (&["\u{1b}[", "", "x"], &[]),
            (&["\u{1b}OA\u{1b}[5~j"], &[Up, Down]),
            (&["jks", "p?"], &[Down, Up, Sort, Pause, Help]),
            (&["xyz\n é"], &[]),
        ] {
            let mut decoder = Decoder::default();
            let mut keys = Vec::new();
            for chunk in chunks {
                if chunk.is_empty() {
                    keys.extend(decoder.end());
                }
                keys.extend(chunk.bytes().filter_map(|byte| decoder.take(byte)));
            }
            assert_eq!(keys, expected, "{chunks:?}");
        }
    }

    #[test]
    fn a_terminal_that_is_gone_is_left() {
        struct Gone;
        impl Read for Gone {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::Other.into())
            }
        }
        let mut keys = Vec::new();
        read_keys(Gone, |key| {
            keys.push(key);
            true
        });
        assert_eq!(keys, [Key::Quit]);
    }
}
