//! Limits of every algorithm, each with its guaranteed bound.

/// Upper bound of admissions in any interval; `span` is from the first admission to the last.
#[derive(Clone, Copy, Debug)]
pub enum GuaranteedBound {
    /// The capacity and `count * span / period`.
    Rate { count: u64, period: u64 },
    /// The capacity and `amount * (floor(span / every) + 1)`; at one instant, the capacity.
    Steps { amount: u64, every: u64 },
    /// `times` the capacity, less `less`, if `span < length`.
    Window { times: u64, less: u64, length: u64 },
    /// The capacity in every window that begins at a multiple of `length`, and twice that in any
    /// interval.
    Aligned { length: u64 },
}

/// Name of a family, and a function of capacity and length in microseconds that makes a limit.
pub type LimitFamily = (&'static str, fn(u64, u64) -> (String, GuaranteedBound));

/// Every algorithm that charges and decides in one step.
pub const LIMIT_FAMILIES: [LimitFamily; 8] = [
    ("token-bucket", |size, length| {
        let (count, period) = (size * 2, length);
        (format!("{count}/{period}us burst {size}"), GuaranteedBound::Rate { count, period })
    }),
    ("token-bucket every", |size, length| {
        let (amount, every) = (size.div_ceil(3), length / 4);
        let notation = format!("{amount}/{every}us burst {size} every {every}us");
        (notation, GuaranteedBound::Steps { amount, every })
    }),
    ("leaky-bucket", |size, length| {
        let (count, period) = (size, length);
        let notation = format!("leaky-bucket {count}/{period}us capacity {size}");
        (notation, GuaranteedBound::Rate { count, period })
    }),
    ("fixed-window", |size, length| {
        (format!("fixed-window {size}/{length}us"), GuaranteedBound::Aligned { length })
    }),
    ("fixed-window first-hit", |size, length| {
        let notation = format!("fixed-window {size}/{length}us first-hit");
        (notation, GuaranteedBound::Window { times: 2, less: 1, length })
    }),
    ("sliding-log", |size, length| {
        let notation = format!("sliding-log {size}/{length}us");
        (notation, GuaranteedBound::Window { times: 1, less: 0, length })
    }),
    ("sliding-window", |size, length| {
        let precision = length / 13;
        let notation = format!("sliding-window {size}/{length}us precision {precision}us");
        (notation, GuaranteedBound::Window { times: 1, less: 0, length })
    }),
    ("sliding-window approximate", |size, length| {
        let notation = format!("sliding-window {size}/{length}us approximate");
        (notation, GuaranteedBound::Window { times: 2, less: 1, length })
    }),
];

impl GuaranteedBound {
    /// Whether a limit of this capacity may admit so much from `start` to `end`, if `more` permits
    /// were refunded or lost meanwhile.
    pub fn allows(
        &self,
        admitted: u64,
        capacity: u64,
        (start, end): (u64, u64),
        more: u64,
    ) -> bool {
        let span = end - start;
        let admitted = u128::from(admitted.saturating_sub(more));
        let capacity = u128::from(capacity);
        match *self {
            Self::Rate { count, period } => {
                let drained = u128::from(count) * u128::from(span);
                admitted.saturating_sub(capacity) * u128::from(period) <= drained
            }
            Self::Steps { amount, every } => {
                let steps = if span == 0 { 0 } else { span / every + 1 };
                admitted <= capacity + u128::from(amount) * u128::from(steps)
            }
            Self::Window { times, less, length } => {
                span >= length || admitted <= u128::from(times) * capacity - u128::from(less)
            }
            Self::Aligned { length } if start / length == end / length => admitted <= capacity,
            Self::Aligned { length } => span >= length || admitted <= 2 * capacity,
        }
    }

    /// Longest interval worth checking: longer ones follow from shorter ones.
    pub fn max_interval(&self) -> u64 {
        match *self {
            Self::Rate { period, .. } => 3 * period,
            Self::Steps { every, .. } => 12 * every,
            Self::Window { length, .. } | Self::Aligned { length } => length,
        }
    }
}
