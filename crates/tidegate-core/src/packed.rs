//! Packed states: most limits store two numbers per key. They are checked and charged in one step.

use crate::algorithm_params::AlgorithmParams;
use crate::arithmetic::Arithmetic;
use crate::{Cost, Limit, Micros, Moment, State, Verdict, Wait};

/// A state as two numbers below 2^53.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packed([u64; 2]);

impl Packed {
    /// Maximum number of bits of each number.
    pub const BITS: u32 = 53;

    /// A pair of numbers; `None` if one of them is too large.
    #[inline]
    pub fn new(numbers: [u64; 2]) -> Option<Self> {
        ((numbers[0] | numbers[1]) >> Self::BITS == 0).then_some(Self(numbers))
    }

    /// The numbers.
    #[inline]
    pub const fn numbers(self) -> [u64; 2] {
        self.0
    }
}

/// Evaluates an expression with the algorithm, if its state packs; otherwise `None`.
macro_rules! with_packed {
    ($params:expr, $algorithm:ident => $call:expr) => {
        match $params {
            // A queue also stores its last charge.
            AlgorithmParams::Bucket($algorithm) if !$algorithm.queue => $call,
            AlgorithmParams::Steps($algorithm) => $call,
            AlgorithmParams::Fixed($algorithm) => $call,
            AlgorithmParams::Approximate($algorithm) => $call,
            AlgorithmParams::Bucket(_)
            | AlgorithmParams::Logged(_)
            | AlgorithmParams::Concurrency(_) => None,
        }
    };
}

impl Limit {
    /// Does its state fit into two numbers?
    pub fn packs(&self) -> bool {
        with_packed!(&self.params, _a => Some(())).is_some()
    }

    /// The state as two numbers, if they fit.
    pub fn pack(&self, state: &State) -> Option<Packed> {
        with_packed!(&self.params, a => pack(a, state))
    }

    /// The state that this limit packed.
    pub fn unpack(&self, packed: Packed) -> Option<State> {
        with_packed!(&self.params, a => unpack(a, packed))
    }

    /// Checks a state without holds and, if the limit allows `cost`, charges it. Returns the
    /// verdict and the new state, as [`Limit::look`], [`Limit::charge`] and another look would give
    /// them. `None` if the new state cannot be packed; nothing is decided then.
    ///
    /// Store the new state even if the request was denied: the clock may have stepped back.
    pub fn decide(
        &self,
        state: Option<Packed>,
        at: &Moment,
        cost: Cost,
    ) -> Option<(Verdict, Option<Packed>)> {
        let capacity = self.capacity();
        with_packed!(&self.params, a => decide(a, capacity, state, at, cost.get()))
    }

    /// Fast path of [`decide`](Self::decide) for an existing state, a cost above zero and a bucket
    /// that counts microseconds. This covers most checks and is small enough to be inlined. `None`
    /// in all other cases; nothing is decided then.
    #[inline(always)]
    pub fn decide_plainly(
        &self,
        state: Packed,
        now: Micros,
        cost: Cost,
    ) -> Option<(Verdict, Packed)> {
        let AlgorithmParams::Bucket(bucket) = &self.params else { return None };
        let (verdict, left) = bucket.decide_plainly(state.numbers(), now, cost.get())?;
        Some((verdict, Packed::new(left)?))
    }
}

fn pack<A: Arithmetic>(algorithm: &A, state: &State) -> Option<Packed> {
    A::read(state).and_then(|state| algorithm.pack(state))
}

fn unpack<A: Arithmetic>(algorithm: &A, packed: Packed) -> Option<State> {
    algorithm.unpack(packed).map(A::wrap)
}

fn decide<A: Arithmetic>(
    algorithm: &A,
    capacity: u64,
    packed: Option<Packed>,
    at: &Moment,
    cost: u64,
) -> Option<(Verdict, Option<Packed>)> {
    let mut state = packed.and_then(|packed| algorithm.unpack(packed));
    if let Some(state) = state.as_mut().filter(|state| algorithm.ahead(state, at)) {
        algorithm.rebase(state, at);
    }
    let fits = match &state {
        Some(state) => algorithm.fits(state, at, cost, capacity),
        None => cost <= capacity,
    };
    let takes = fits && cost > 0;
    // A cost that fits need not wait.
    let retry_after = match &state {
        _ if takes => Wait::NONE,
        _ if cost.max(1) > capacity => Wait::Never,
        Some(state) => Wait::For(algorithm.wait(state, at, capacity - cost.max(1))),
        None => Wait::NONE,
    };
    let mut delay = Micros::ZERO;
    if takes {
        delay = state.as_ref().map_or(Micros::ZERO, |state| algorithm.delay(state, at));
        state = algorithm.charge(state.take(), at, cost, None);
    }
    let (used, reset_after) = match &state {
        Some(state) => (algorithm.used(state, at), algorithm.reset_after(state, at)),
        None => (0, Micros::ZERO),
    };
    let verdict = Verdict {
        allowed: if cost == 0 { used <= capacity } else { fits },
        retry_after,
        delay,
        limit: capacity,
        remaining: capacity.saturating_sub(used),
        reset_after,
    };
    let left = match &state {
        Some(state) => Some(algorithm.pack(state)?),
        None => None,
    };
    Some((verdict, left))
}
