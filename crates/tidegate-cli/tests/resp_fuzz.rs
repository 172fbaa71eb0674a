//! The RESP codec on damaged pipelines and random bytes. Deterministic: each case has a seed, which
//! is printed when it fails.
#![expect(unsafe_code, reason = "an allocator that counts; the one of this test binary alone")]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;
use std::hint::black_box;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tidegate::{Clock, SystemClock};
use tidegate_server::internal::transport::resp::frame::{Caps, Command, Parser, ProtocolError};
use tidegate_server::internal::transport::resp::reply::{ReplyEncoder, RespVersion};

const PIPELINES: u64 = 300_000;
const LONG_PIPELINES: u64 = 2_000;
const BUFFERS: u64 = 50_000;

/// Positions and slices of 64 arguments while their lists grow: the memory that one call may take.
const MAX_MEMORY: usize = 8 * 1_024;

/// Small caps, so that a short pipeline reaches each of them.
const TIGHT: Caps = Caps { bulk: 24, words: 5, frame: 64, line: 40 };

// --- the claims --------------------------------------------------------------------------------

#[test]
fn no_bytes_break_the_parser_and_no_split_changes_the_result() {
    let mut seen = HashMap::<_, usize>::new();
    each_case(1, PIPELINES, |random| {
        let input = random.input(3, 40);
        let caps = random.pick(&[TIGHT, Caps::UNAUTHENTICATED, Caps::AUTHENTICATED]);
        let error = check(&input, caps, random);
        *seen.entry(error).or_default() += 1;
    });

    assert_eq!(seen.len(), 11, "every error and none at all: {seen:?}");
}

#[test]
fn long_requests_near_the_caps_give_the_same_result_however_they_arrive() {
    each_case(2, LONG_PIPELINES, |random| {
        let input = random.input(4, 70_000);
        let caps = random.pick(&[Caps::UNAUTHENTICATED, Caps::AUTHENTICATED]);
        check(&input, caps, random);
    });
}

/// The parser keeps a position in a buffer that it does not own.
#[test]
fn another_buffer_does_not_break_the_parser() {
    each_case(3, BUFFERS, |random| {
        let mut parser = Parser::new(TIGHT);
        for _ in 0..6 {
            let mut input = random.input(2, 40);
            input.truncate(random.below(40));
            let mut rest = input.as_mut_slice();
            while let Ok(Some(command)) = parser.parse(&mut rest) {
                black_box(command.arguments.len());
            }
        }
    });
}

#[test]
fn every_reply_is_one_line() {
    each_case(4, BUFFERS, |random| {
        let mut encoder = ReplyEncoder::default();
        encoder.set_protocol(random.pick(&[RespVersion::Resp2, RespVersion::Resp3]));
        let mut lines = 0;
        for _ in 0..random.below(10) {
            let number = random.next() >> random.below(64);
            match random.below(6) {
                0 => encoder.integer(number.cast_signed()),
                1 => encoder.array(random.below(100)),
                2 => encoder.map(random.below(100)),
                3 => encoder.simple("OK"),
                4 => encoder.error("ERR a\r\nb"),
                _ => encoder.null(),
            };
            lines += 1;
        }
        let text = str::from_utf8(encoder.as_bytes()).unwrap();
        assert_eq!(text.matches("\r\n").count(), lines, "{text:?}");
        assert_eq!(text.matches(['\r', '\n']).count(), 2 * lines, "{text:?}");
    });
}

/// The best of many rounds, printed and not asserted: the machine may be busy.
#[test]
fn read_and_write_times_are_printed() {
    const REQUEST: &[u8] = b"*6\r\n$11\r\nCL.THROTTLE\r\n$7\r\nuser-42\r\n$2\r\n15\r\n$2\r\n30\r\n\
        $2\r\n60\r\n$1\r\n1\r\n";
    const BATCH: usize = 1_000;
    const ROUNDS: usize = 200;
    let mut buffer = REQUEST.repeat(BATCH);
    let mut parser = Parser::new(Caps::AUTHENTICATED);
    let mut encoder = ReplyEncoder::default();
    let clock = SystemClock;
    let (mut parsing, mut writing) = (u64::MAX, u64::MAX);
    for _ in 0..ROUNDS {
        let start = clock.elapsed();
        let mut rest = buffer.as_mut_slice();
        let mut read = 0;
        while let Some(command) = parser.parse(&mut rest).unwrap() {
            read += black_box(&command).arguments.len();
        }
        let between = clock.elapsed();
        assert_eq!(read, 5 * BATCH);
        for _ in 0..BATCH {
            encoder.array(5).integer(0).integer(16).integer(15).integer(-1).integer(2);
        }
        black_box(encoder.as_bytes());
        encoder.clear(1 << 16);
        parsing = parsing.min(between.saturating_sub(start).get());
        writing = writing.min(clock.elapsed().saturating_sub(between).get());
    }
    let each = |micros: u64| micros * 1_000 / BATCH as u64;
    let mut stderr = std::io::stderr().lock();
    let (parsing, writing) = (each(parsing), each(writing));
    writeln!(stderr, "resp: {parsing} ns to read 6 words, {writing} ns to write 5 integers")
        .unwrap();
}

// --- one case ----------------------------------------------------------------------------------

/// A mutation run repeats the whole suite hundreds of times.
fn fewer_for_mutants(count: u64) -> u64 {
    if std::env::var_os("TIDEGATE_MUTANTS").is_some() { count / 50 } else { count }
}

fn each_case(stream: u64, count: u64, mut case: impl FnMut(&mut Random)) {
    for number in 0..fewer_for_mutants(count) {
        let seed = (stream << 32) | number;
        let outcome = catch_unwind(AssertUnwindSafe(|| case(&mut Random::new(seed))));
        if let Err(panic) = outcome {
            eprintln!("seed {seed:#x}");
            resume_unwind(panic);
        }
    }
}

/// The error that ended the input, the same for every split.
fn check(input: &[u8], caps: Caps, random: &mut Random) -> Option<ProtocolError> {
    let whole = read(input, caps, |left| left);
    let shown = || input[..input.len().min(300)].escape_ascii();
    let pieces = read(input, caps, |left| 1 + random.below(left.min(1 + input.len() / 3)));
    assert_eq!(pieces, whole, "in pieces: {}", shown());
    if input.len() < 200 {
        let bytewise = read(input, caps, |_| 1);
        assert_eq!(bytewise, whole, "byte by byte: {}", shown());
    }
    if whole.error.is_none() {
        assert_eq!(whole.taken + whole.left, input.len(), "{}", shown());
    }
    whole.error
}

/// Everything read of an input.
#[derive(PartialEq, Eq, Debug, Default)]
struct Read {
    /// Every argument after its length; a command begins with its number of arguments.
    words: Vec<u8>,
    /// Bytes read or skipped.
    taken: usize,
    /// Bytes of an incomplete command. `None` after an error.
    left: usize,
    error: Option<ProtocolError>,
}

/// Feeds `input` in pieces; `piece` chooses the length from what is left.
fn read(input: &[u8], caps: Caps, mut piece: impl FnMut(usize) -> usize) -> Read {
    let mut parser = Parser::new(caps);
    let mut read = Read::default();
    let mut buffer = Vec::with_capacity(input.len());
    let mut handed = 0;
    while handed < input.len() && read.error.is_none() {
        let end = handed + piece(input.len() - handed);
        buffer.extend_from_slice(&input[handed..end]);
        handed = end;
        let mut rest = buffer.as_mut_slice();
        loop {
            let before = rest.len();
            match measured(|| parser.parse(&mut rest)) {
                Ok(Some(command)) => {
                    assert!(rest.len() < before, "a command of no bytes");
                    read.add(&command, before - rest.len(), caps);
                }
                Ok(None) => {
                    assert!(rest.len() < caps.longest(), "waits beyond the caps");
                    break;
                }
                Err(error) => {
                    assert_eq!(parser.parse(&mut rest), Err(error));
                    read.error = Some(error);
                    break;
                }
            }
        }
        let left = rest.len();
        read.taken += buffer.len() - left;
        buffer.drain(..buffer.len() - left);
        read.left = if read.error.is_some() { 0 } else { left };
    }
    read
}

impl Read {
    fn add(&mut self, command: &Command<'_>, taken: usize, caps: Caps) {
        assert!(command.arguments.len() < caps.words);
        let mut len = 0;
        self.words.push(u8::try_from(command.arguments.len()).unwrap());
        for word in [command.name].iter().chain(&command.arguments) {
            assert!(word.len() <= caps.bulk);
            len += word.len();
            self.words.extend_from_slice(&word.len().to_le_bytes());
            self.words.extend_from_slice(word);
        }
        assert!(len < taken && len < caps.longest());
    }
}

/// Result of `call`; asserts that it uses little memory.
fn measured<T>(call: impl FnOnce() -> T) -> T {
    let before = LIVE.get();
    PEAK.set(before);
    let value = call();
    let taken = PEAK.get() - before;
    assert!(taken <= MAX_MEMORY.cast_signed(), "{taken} bytes allocated");
    value
}

// --- what is read ------------------------------------------------------------------------------

/// Valid requests and similar ones.
const CORPUS: [&[u8]; 20] = [
    b"*1\r\n$4\r\nPING\r\n",
    b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n",
    b"*6\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n$1\r\n1\r\n",
    b"*3\r\n$8\r\nTG.CHECK\r\n$5\r\nlogin\r\n$6\r\na\r\nb\0c\r\n",
    b"*5\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n",
    b"*7\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$1\r\np\r\n$7\r\nSETNAME\r\n$1\r\nn\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"\r\n",
    b"PING\r\n",
    b"ECHO \"a b\\n\\x41\\\"\" 'c \\' d' e\"f\"\r\n",
    b"TG.CHECK login user-42 COST 2 ID x\n",
    b"GET key\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST / HTTP/1.1\r\n\r\n*1\r\n$4\r\nPING\r\n",
    b"*1\r\n*1\r\n$1\r\na\r\n",
    b"*1\r\n:1\r\n",
    b"*1\r\n$-1\r\n",
    b"*2147483647\r\n$2147483647\r\n",
    b"+OK\r\n",
];

/// Pieces to put into a pipeline.
const PIECES: [&[u8]; 22] = [
    b"\r\n",
    b"\r",
    b"\n",
    b"*",
    b"$",
    b"-1",
    b"0",
    b"9",
    b"64",
    b"65",
    b"65536",
    b"65537",
    b"\"",
    b"'",
    b"\\",
    b"\\x4",
    b" ",
    b"\0",
    b"*1\r\n",
    b"$1\r\n",
    b" HTTP/1.1",
    b"Host:",
];

/// Lengths around the caps.
const LENGTHS: [usize; 12] = [0, 1, 9, 10, 24, 25, 1_000, 1_024, 1_025, 60_000, 65_536, 65_537];

/// xorshift64*.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 32).unwrap() % end.max(1)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A pipeline of at most `requests` with arguments of up to `longest` bytes, mostly damaged; or
    /// random bytes.
    fn input(&mut self, requests: usize, longest: usize) -> Vec<u8> {
        if self.below(16) == 0 {
            return (0..self.below(120)).map(|_| self.byte()).collect();
        }
        let mut input = Vec::new();
        for _ in 0..=self.below(requests) {
            if self.below(3) > 0 {
                input.extend_from_slice(self.pick(&CORPUS));
            } else {
                self.array(&mut input, longest);
            }
        }
        for _ in 0..self.below(4) {
            self.damage(&mut input);
        }
        input
    }

    /// A random byte; bytes with a meaning in RESP are more frequent.
    fn byte(&mut self) -> u8 {
        if self.below(2) == 0 { self.pick(b"*$\r\n0123 \"'\\x-") } else { self.next() as u8 }
    }

    fn array(&mut self, input: &mut Vec<u8>, longest: usize) {
        let most = self.pick(&[2, 4, 6, 6, 6, 66]);
        let words = 1 + self.below(most);
        input.extend_from_slice(format!("*{words}\r\n").as_bytes());
        for _ in 0..words {
            let len = self.pick(&LENGTHS);
            let len = if len > longest || words > 6 { self.below(12) } else { len };
            input.extend_from_slice(format!("${len}\r\n").as_bytes());
            let filling = self.byte();
            input.resize(input.len() + len, filling);
            input.extend_from_slice(b"\r\n");
        }
    }

    fn damage(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        match self.below(6) {
            0 => input.truncate(at),
            1 if at < input.len() => drop(input.remove(at)),
            2 if at < input.len() => input[at] = self.byte(),
            3 if at < input.len() => {
                let other = self.below(input.len());
                input.swap(at, other);
            }
            4 => {
                let other = self.pick(&CORPUS);
                let from = self.below(other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => drop(input.splice(at..at, self.pick(&PIECES).iter().copied())),
        }
    }
}

// --- memory ------------------------------------------------------------------------------------

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Counts allocated bytes per thread.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

impl Counting {
    fn count(change: isize) {
        let live = LIVE.get() + change;
        LIVE.set(live);
        PEAK.set(PEAK.get().max(live));
    }
}

// SAFETY: every call goes to the system's allocator as it is; counting neither allocates nor drops.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size().cast_signed());
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        Self::count(-layout.size().cast_signed());
        // SAFETY: as above; the block came from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both blocks exist for a moment.
        Self::count(size.cast_signed());
        Self::count(-layout.size().cast_signed());
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, size) }
    }
}
