//! A pseudo-terminal, and an emulated screen.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::server::wait_until;

/// A program in a terminal, killed on drop.
pub struct PtyTerminal {
    child: Child,
    master: File,
    /// Keeps the terminal open after the program has ended.
    slave: File,
    screen: Arc<Mutex<PtyScreen>>,
    before: Termios,
}

impl PtyTerminal {
    pub fn start(command: Command, columns: u16, rows: u16) -> Self {
        let master: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = OpenOptions::new().read(true).write(true).open(name).unwrap();
        let before = tcgetattr(&slave).unwrap();
        let screen = Arc::new(Mutex::new(PtyScreen::new(columns.into(), rows.into())));
        set_size(&slave, columns, rows);
        let end = || slave.try_clone().unwrap();
        // In a session of its own, so that `/dev/tty` is this terminal.
        let mut session = Command::new("setsid");
        session.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => session.env(name, value),
                None => session.env_remove(name),
            };
        }
        session.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm");
        let child = session.spawn().expect("the program starts");
        let master = File::from(master);
        let (mut output, seen) = (master.try_clone().unwrap(), screen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                seen.lock().unwrap().take(&bytes[..read]);
            }
        });
        Self { child, master, slave, screen, before }
    }

    pub fn screen(&self) -> MutexGuard<'_, PtyScreen> {
        self.screen.lock().unwrap()
    }

    /// Waits until the condition holds for the text on the screen, and returns the text.
    pub fn expect(&self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let seen = wait_until(|| Some(self.screen().text()).filter(|text| condition(text)));
        seen.unwrap_or_else(|| panic!("never {what}:\n{}", self.screen().text()))
    }

    pub fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Resizes and clears the screen.
    pub fn resize(&self, columns: u16, rows: u16) {
        let mut screen = self.screen();
        screen.resize(columns.into(), rows.into());
        set_size(&self.slave, columns, rows);
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &id]).status();
        assert!(status.unwrap().success());
    }

    /// Waits for the exit and asserts that the terminal is restored.
    pub fn expect_end(&mut self) -> ExitStatus {
        let status = wait_until(|| self.child.try_wait().unwrap()).expect("the program ends");
        let restored = wait_until(|| (!self.screen().is_alternate).then_some(()));
        assert!(restored.is_some() && self.screen().has_cursor, "the screen is restored");
        let (before, after) = (&self.before, tcgetattr(&self.slave).unwrap());
        assert_eq!(format!("{after:?}"), format!("{before:?}"));
        status
    }
}

impl Drop for PtyTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn set_size(terminal: &File, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}

/// The visible text. Panics on an unknown escape sequence.
pub struct PtyScreen {
    cells: Vec<Vec<char>>,
    row: usize,
    column: usize,
    pub is_alternate: bool,
    pub has_cursor: bool,
    /// Number of styles set; a reset is none.
    pub styles: usize,
    /// Bytes of an incomplete character or sequence.
    rest: Vec<u8>,
    /// All bytes received.
    pub raw: Vec<u8>,
}

impl PtyScreen {
    fn new(columns: usize, rows: usize) -> Self {
        Self {
            cells: vec![vec![' '; columns]; rows],
            row: 0,
            column: 0,
            is_alternate: false,
            has_cursor: true,
            styles: 0,
            rest: Vec::new(),
            raw: Vec::new(),
        }
    }

    /// Clears the cells; keeps an incomplete sequence.
    fn resize(&mut self, columns: usize, rows: usize) {
        self.cells = vec![vec![' '; columns]; rows];
        (self.row, self.column) = (0, 0);
    }

    pub fn text(&self) -> String {
        let line = |row: &Vec<char>| row.iter().collect::<String>().trim_end().to_string();
        self.cells.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn take(&mut self, bytes: &[u8]) {
        self.raw.extend_from_slice(bytes);
        self.rest.extend_from_slice(bytes);
        loop {
            let rest = std::mem::take(&mut self.rest);
            let used = self.take_one(&rest);
            self.rest = rest[used..].to_vec();
            if used == 0 {
                return;
            }
        }
    }

    /// Consumes a character or a sequence; 0 if it is incomplete.
    fn take_one(&mut self, bytes: &[u8]) -> usize {
        match bytes {
            [] | [0x1b] => 0,
            [b'\r', ..] => {
                self.column = 0;
                1
            }
            [b'\n', ..] => {
                self.row = (self.row + 1).min(self.cells.len() - 1);
                1
            }
            [0x1b, b'[', rest @ ..] => {
                let Some(end) = rest.iter().position(|byte| byte.is_ascii_alphabetic()) else {
                    return 0;
                };
                self.sequence(std::str::from_utf8(&rest[..end]).unwrap(), rest[end]);
                end + 3
            }
            [0x1b, ..] => panic!("an unknown sequence: {:?}", String::from_utf8_lossy(bytes)),
            _ => {
                let (whole, invalid) = match std::str::from_utf8(bytes) {
                    Ok(text) => (text, None),
                    Err(error) => {
                        let whole = std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap();
                        (whole, error.error_len())
                    }
                };
                // Invalid UTF-8 is skipped.
                let Some(c) = whole.chars().next() else { return invalid.unwrap_or(0) };
                let row = self.cells.get_mut(self.row);
                if let Some(cell) = row.and_then(|row| row.get_mut(self.column)) {
                    *cell = c;
                }
                self.column += 1;
                c.len_utf8()
            }
        }
    }

    fn sequence(&mut self, numbers: &str, kind: u8) {
        match (numbers, kind) {
            (_, b'H') => {
                let place = |text: &str| text.parse::<usize>().unwrap_or(1) - 1;
                let (row, column) = numbers.split_once(';').unwrap_or((numbers, ""));
                (self.row, self.column) = (place(row), place(column));
            }
            ("2", b'J') => self.cells.iter_mut().for_each(|row| row.fill(' ')),
            ("", b'K') => self.cells[self.row].iter_mut().skip(self.column).for_each(|c| *c = ' '),
            ("", b'J') => {
                self.cells[self.row].iter_mut().skip(self.column).for_each(|c| *c = ' ');
                self.cells.iter_mut().skip(self.row + 1).for_each(|row| row.fill(' '));
            }
            (_, b'm') => {
                let is_reset = |code: &str| ["", "0", "39", "49", "59"].contains(&code);
                self.styles += usize::from(!numbers.split(';').all(is_reset));
            }
            ("?1049", b'h') => self.is_alternate = true,
            ("?1049", b'l') => self.is_alternate = false,
            ("?25", b'h') => self.has_cursor = true,
            ("?25", b'l') => self.has_cursor = false,
            _ => panic!("an unknown sequence: {numbers:?} {:?}", char::from(kind)),
        }
    }
}
