//! A budget of HTTP/2 control frames per connection, and its turns between other connections.
//!
//! A control frame takes a client a few bytes and no request, and the server a microsecond and
//! often a reply. Without a bound, a few connections that send nothing else delay all others.

use tokio::time::Instant;

/// Most control frames at once.
const MAX_CREDIT: u64 = 1_000;
/// Control frames that become available each second: a keepalive sends less than one.
const CREDIT_PER_SECOND: u64 = 100;
/// Control frames that a request earns: clients may update windows, send pings or reset it.
const CREDIT_PER_REQUEST: u64 = 16;
/// Bytes of responses that earn a control frame: clients update the windows as they read.
const RESPONSE_BYTES_PER_CREDIT: u64 = 1 << 10;
/// Bytes of a turn.
const MAX_TURN_BYTES: usize = 16 << 10;
/// Control frames of a turn.
const MAX_TURN_FRAMES: u64 = 64;

/// First bytes of an HTTP/2 client, before its frames.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length of a frame header.
pub(super) const FRAME_HEADER: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

/// Reads the frame headers of one connection. The payload is not looked at.
#[derive(Debug)]
pub(super) struct FrameBudget {
    /// Bytes before the next frame header: of the preface, then of payloads.
    skip: usize,
    header: [u8; FRAME_HEADER],
    /// Bytes of `header` that have arrived.
    filled: usize,
    /// Control frames that may still arrive.
    credit: u64,
    /// When the credit of past time was added.
    credited_at: Instant,
    /// Bytes of responses that have not earned a control frame yet.
    written: u64,
    turn_bytes: usize,
    turn_frames: u64,
}

/// The client has sent too many control frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TooManyControlFrames;

impl FrameBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            skip: PREFACE.len(),
            header: [0; FRAME_HEADER],
            filled: 0,
            credit: MAX_CREDIT,
            credited_at: now,
            written: 0,
            turn_bytes: 0,
            turn_frames: 0,
        }
    }

    /// Counts the frames that begin in these bytes of the client. The clock is read if there is no
    /// credit.
    pub(super) fn read(
        &mut self,
        mut bytes: &[u8],
        now: impl Fn() -> Instant,
    ) -> Result<(), TooManyControlFrames> {
        self.turn_bytes += bytes.len();
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            (self.skip, bytes) = (self.skip - skipped, &bytes[skipped..]);
            let taken = (FRAME_HEADER - self.filled).min(bytes.len());
            self.header[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            (self.filled, bytes) = (self.filled + taken, &bytes[taken..]);
            if self.filled == FRAME_HEADER {
                let [a, b, c, kind, ..] = self.header;
                self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
                self.filled = 0;
                self.count(kind, self.skip, &now)?;
            }
        }
        Ok(())
    }

    /// Counts bytes of responses.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.written += bytes as u64;
        self.earn(self.written / RESPONSE_BYTES_PER_CREDIT);
        self.written %= RESPONSE_BYTES_PER_CREDIT;
    }

    /// Whether other connections are due. The next call begins another turn.
    pub(super) fn ends_turn(&mut self) -> bool {
        let is_over = self.turn_bytes >= MAX_TURN_BYTES || self.turn_frames >= MAX_TURN_FRAMES;
        if is_over {
            self.begin_turn();
        }
        is_over
    }

    /// Called when the client has sent no more.
    pub(super) fn begin_turn(&mut self) {
        (self.turn_bytes, self.turn_frames) = (0, 0);
    }

    fn count(
        &mut self,
        kind: u8,
        length: usize,
        now: impl Fn() -> Instant,
    ) -> Result<(), TooManyControlFrames> {
        match (kind, length) {
            (HEADERS, _) => self.earn(CREDIT_PER_REQUEST),
            (DATA, 1..) => self.earn(1),
            // Part of the headers before it, whose size is limited.
            (CONTINUATION, 1..) => {}
            _ => {
                self.turn_frames += 1;
                if self.credit == 0 {
                    self.add_past_time(now());
                }
                self.credit = self.credit.checked_sub(1).ok_or(TooManyControlFrames)?;
            }
        }
        Ok(())
    }

    fn earn(&mut self, credit: u64) {
        self.credit = (self.credit + credit).min(MAX_CREDIT);
    }

    fn add_past_time(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.credited_at).as_millis() as u64;
        let earned = passed * CREDIT_PER_SECOND / 1_000;
        if earned > 0 {
            self.earn(earned);
            self.credited_at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PING: u8 = 6;

    fn frame(kind: u8, length: usize) -> Vec<u8> {
        let size = u32::try_from(length).unwrap().to_be_bytes();
        let mut frame = vec![size[1], size[2], size[3], kind, 0, 0, 0, 0, 1];
        // Payloads that look like frames are not read as such.
        frame.extend([PING].repeat(length));
        frame
    }

    /// A budget with a clock that the test sets.
    struct TimedBudget {
        budget: FrameBudget,
        now: Instant,
    }

    impl TimedBudget {
        fn new() -> Self {
            let now = Instant::now();
            Self { budget: FrameBudget::new(now), now }
        }

        fn read(&mut self, bytes: &[u8]) -> Result<(), TooManyControlFrames> {
            self.budget.read(bytes, || self.now)
        }

        fn advance(&mut self, span: Duration) {
            self.now += span;
        }
    }

    fn budget() -> TimedBudget {
        let mut budget = TimedBudget::new();
        budget.read(PREFACE).unwrap();
        budget
    }

    /// How many of these frames are accepted, of at most `times`.
    fn accepted(budget: &mut TimedBudget, frame: &[u8], times: usize) -> usize {
        (0..times).take_while(|_| budget.read(frame).is_ok()).count()
    }

    #[test]
    fn a_flood_of_any_control_frame_exhausts_the_budget() {
        // PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, unknown; empty
        // DATA and CONTINUATION.
        let frames = [(2, 5), (3, 4), (4, 0), (5, 4), (6, 8), (7, 8), (8, 4), (254, 100)];
        for (kind, length) in frames.into_iter().chain([(DATA, 0), (CONTINUATION, 0)]) {
            let sent = accepted(&mut budget(), &frame(kind, length), 2_000);
            assert_eq!(sent, MAX_CREDIT as usize, "{kind}");
        }
    }

    #[test]
    fn requests_bodies_and_responses_earn_control_frames() {
        for (kind, length, earned) in [(HEADERS, 20, 16), (DATA, 100, 1), (CONTINUATION, 9, 0)] {
            let mut budget = budget();
            assert_eq!(accepted(&mut budget, &frame(PING, 8), 1_000), 1_000);
            budget.read(&frame(kind, length)).unwrap();
            assert_eq!(accepted(&mut budget, &frame(PING, 8), 100), earned, "{kind}");
        }
        let mut budget = budget();
        assert_eq!(accepted(&mut budget, &frame(PING, 8), 1_000), 1_000);
        (0..4).for_each(|_| budget.budget.wrote(1_000));
        assert_eq!(accepted(&mut budget, &frame(PING, 8), 100), 3);
    }

    #[test]
    fn a_large_upload_stays_connected() {
        let mut budget = budget();
        // With a ping for each of its frames.
        let upload = [frame(DATA, 16_384), frame(PING, 8)].concat();
        assert_eq!(accepted(&mut budget, &upload, 100_000), 100_000);
    }

    #[test]
    fn a_keepalive_stays_connected_for_a_day() {
        let mut budget = budget();
        for _ in 0..8_640 {
            assert_eq!(budget.read(&frame(PING, 8)), Ok(()));
            budget.advance(Duration::from_secs(10));
        }
    }

    #[test]
    fn time_earns_no_more_than_the_maximum() {
        let mut budget = budget();
        budget.advance(Duration::from_secs(3_600));
        // The first thousand, and those of the time that has passed.
        assert_eq!(accepted(&mut budget, &frame(PING, 8), 2_000), 2_000);
        budget.advance(Duration::from_millis(50));
        assert_eq!(accepted(&mut budget, &frame(PING, 8), 5_000), 5);
    }

    #[test]
    fn frames_are_found_wherever_reads_are_cut() {
        let mut all = PREFACE.to_vec();
        for length in [0, 1, 8, 9, 300] {
            all.extend([frame(PING, length), frame(DATA, length)].concat());
        }
        for size in [1, 2, 5, 9, 10, 33, all.len()] {
            let mut budget = TimedBudget::new();
            all.chunks(size).for_each(|part| budget.read(part).unwrap());
            // Five pings and one empty frame; at most the maximum is earned.
            let FrameBudget { turn_frames, skip, filled, .. } = budget.budget;
            assert_eq!((turn_frames, skip, filled), (6, 0, 0), "{size}");
            assert_eq!(budget.budget.turn_bytes, all.len());
        }
    }

    #[test]
    fn a_turn_ends_after_some_bytes_or_control_frames() {
        let mut budget = budget();
        assert_eq!(accepted(&mut budget, &frame(PING, 8), 63), 63);
        assert!(!budget.budget.ends_turn());
        budget.read(&frame(PING, 8)).unwrap();
        assert!(budget.budget.ends_turn() && !budget.budget.ends_turn());
        budget.read(&frame(DATA, MAX_TURN_BYTES)).unwrap();
        assert!(budget.budget.ends_turn() && !budget.budget.ends_turn());
        budget.read(&frame(DATA, 10_000)).unwrap();
        budget.budget.begin_turn();
        budget.read(&frame(DATA, 10_000)).unwrap();
        assert!(!budget.budget.ends_turn());
    }
}
