//! How long the store takes to reply.

use tidegate_core::Micros;

/// The shortest time to a reply, of the last two half seconds that had replies. The shortest one,
/// because it contains the least time in queues and in stalls of the store.
#[derive(Default, Debug)]
pub(crate) struct ReplyTime {
    /// Number of the present half second.
    half: u64,
    present: Option<Micros>,
    before: Option<Micros>,
}

impl ReplyTime {
    const HALF: Micros = Micros::from_millis(500);

    pub(crate) fn record(&mut self, now: Micros, took: Micros) {
        let half = now.get() / Self::HALF.get();
        if half > self.half {
            (self.half, self.before) = (half, self.present.take());
        }
        self.present = Some(self.present.map_or(took, |present| present.min(took)));
    }

    /// Zero if it is not known.
    pub(crate) fn shortest(&self) -> Micros {
        self.present.into_iter().chain(self.before).min().unwrap_or(Micros::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_reply_time_follows_the_store_and_not_its_stalls() {
        let mut time = ReplyTime::default();
        assert_eq!(time.shortest(), Micros::ZERO);
        for (at, took, expected) in [
            (10_000, 90, 90),
            (10_100, 60, 60),
            (10_300, 300, 60),
            // Closer now.
            (10_400, 1, 1),
            (10_600, 300, 1),
            // No calls for long: the last replies still count.
            (99_000, 40, 40),
            (99_600, 50, 40),
            (99_999, 45, 40),
            (100_100, 45, 45),
        ] {
            time.record(Micros::from_millis(at), Micros::from_millis(took));
            assert_eq!(time.shortest(), Micros::from_millis(expected), "at {at} ms");
        }
    }
}
