//! Most limits remember two numbers about a key. Here these are kept as such, and a request is looked
//! at and charged in one step.

use crate::arithmetic::Arithmetic;
use crate::shape::Shape;
use crate::{Cost, Limit, Micros, Moment, State, Verdict, Wait};

/// A state as two numbers below 2^53.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packed([u64; 2]);

impl Packed {
    /// How many bits each number has at most.
    pub const BITS: u32 = 53;

    /// These numbers, unless one of them is too large.
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

/// Calls the same code with whatever algorithm keeps two numbers; `None` for the others.
macro_rules! with_packed {
    ($shape:expr, $algorithm:ident => $call:expr) => {
        match $shape {
            // A queue remembers its last turn as well.
            Shape::Bucket($algorithm) if !$algorithm.queue => $call,
            Shape::Steps($algorithm) => $call,
            Shape::Fixed($algorithm) => $call,
            Shape::Approximate($algorithm) => $call,
            Shape::Bucket(_) | Shape::Logged(_) | Shape::Concurrency(_) => None,
        }
    };
}

impl Limit {
    /// Does it remember two numbers about a key?
    pub fn packs(&self) -> bool {
        with_packed!(&self.shape, _a => Some(())).is_some()
    }

    /// The state as two numbers, if they can be.
    pub fn pack(&self, state: &State) -> Option<Packed> {
        with_packed!(&self.shape, a => pack(a, state))
    }

    /// The state that was packed by this limit.
    pub fn unpack(&self, packed: Packed) -> Option<State> {
        with_packed!(&self.shape, a => unpack(a, packed))
    }

    /// Looks at a state without holds and, if the limit allows `cost`, charges it: the verdict and
    /// what is left behind, as [`Limit::look`], [`Limit::charge`] and another look would say.
    /// `None` if what is left behind cannot be packed; then nothing was decided.
    ///
    /// What is left behind is to be kept even if it was denied: the clock may have stepped back.
    pub fn decide(
        &self,
        state: Option<Packed>,
        at: &Moment,
        cost: Cost,
    ) -> Option<(Verdict, Option<Packed>)> {
        let capacity = self.capacity();
        with_packed!(&self.shape, a => decide(a, capacity, state, at, cost.get()))
    }

    /// [`decide`](Self::decide) about a state that is there and a cost that is not nothing, by a bucket that
    /// counts microseconds: what most checks are, and small enough to be compiled into its caller. `None`
    /// where it is not that simple; then nothing was decided.
    #[inline(always)]
    pub fn decide_plainly(
        &self,
        state: Packed,
        now: Micros,
        cost: Cost,
    ) -> Option<(Verdict, Packed)> {
        let Shape::Bucket(bucket) = &self.shape else { return None };
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
    // What fits need not wait.
    let retry_after = match &state {
        _ if takes => Wait::NONE,
        _ if cost.max(1) > capacity => Wait::Never,
        Some(state) => Wait::For(algorithm.wait(state, at, cost.max(1))),
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
