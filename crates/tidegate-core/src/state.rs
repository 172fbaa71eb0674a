//! The state of a limit for one key.

use crate::bucket::BucketLevel;
use crate::fixed_window::WindowCount;
use crate::sliding_counter::CounterPair;
use crate::sliding_log::Log;
use crate::stepped_bucket::SteppedLevel;

/// What a limit stores for one key. No state means an unused key.
///
/// A state belongs to the limit that made it. When the limit changes, it has to be
/// [carried](crate::Limit::carry) over. The state of another algorithm counts as none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State(pub(crate) Kind);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Level(BucketLevel),
    Stepped(SteppedLevel),
    Count(WindowCount),
    Pair(CounterPair),
    Log(Log),
}

impl State {
    /// Bytes on the heap, beyond the size of the value itself.
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Kind::Log(log) => log.heap_bytes(),
            Kind::Level(_) | Kind::Stepped(_) | Kind::Count(_) | Kind::Pair(_) => 0,
        }
    }
}

/// Maps the state of an algorithm to its variant of [`Kind`].
macro_rules! state_is {
    ($state:ident as $kind:ident) => {
        type State = $state;

        fn read(state: &crate::state::State) -> Option<&$state> {
            match &state.0 {
                crate::state::Kind::$kind(state) => Some(state),
                _ => None,
            }
        }

        fn take(state: crate::state::State) -> Option<$state> {
            match state.0 {
                crate::state::Kind::$kind(state) => Some(state),
                _ => None,
            }
        }

        fn wrap(state: $state) -> crate::state::State {
            crate::state::State(crate::state::Kind::$kind(state))
        }
    };
}
pub(crate) use state_is;

#[cfg(test)]
mod tests {
    use crate::{Cost, Limit, Micros, Moment};

    #[test]
    fn only_a_log_uses_the_heap() {
        for (limit, is_log) in [
            ("5/s", false),
            ("5/s every 1s", false),
            ("fixed-window 5/s", false),
            ("sliding-window 5/s approximate", false),
            ("sliding-window 5/s", true),
            ("sliding-log 5/s", true),
        ] {
            let mut state = None;
            let now = Moment::new(Micros::from_secs(1));
            limit.parse::<Limit>().unwrap().charge(&mut state, &now, Cost::ONE, None);
            assert_eq!(state.unwrap().heap_bytes() > 0, is_log, "{limit}");
        }
    }
}
