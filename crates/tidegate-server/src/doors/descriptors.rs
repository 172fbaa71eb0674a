//! How many files and connections the system lets this process have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Kept for the store, for files that are read again, for logs and the doors themselves.
const RESERVE: u64 = 128;
/// More than this is not asked for: some systems have no bound, and some take time for each that there could be.
const MOST: u64 = 1 << 20;

/// Asks for as many as are allowed, and tells how many clients there is room for.
pub fn room_for_clients() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let (current, wanted) = (current.unwrap_or(MOST), maximum.unwrap_or(MOST).min(MOST));
    let raised = Rlimit { current: Some(wanted), maximum };
    let has = match current < wanted && setrlimit(Resource::Nofile, raised).is_ok() {
        true => wanted,
        false => current,
    };
    usize::try_from(without_reserve(has)).unwrap_or(usize::MAX)
}

/// A small limit is shared evenly.
fn without_reserve(limit: u64) -> u64 {
    limit.saturating_sub(RESERVE.min(limit / 2)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_left_for_the_store() {
        for (limit, clients) in
            [(0, 1), (1, 1), (32, 16), (256, 128), (1_024, 896), (65_536, 65_408)]
        {
            assert_eq!(without_reserve(limit), clients, "{limit}");
        }
    }

    #[test]
    fn the_limit_is_raised_as_far_as_it_goes() {
        assert!(room_for_clients() > 0);
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current.unwrap_or(MOST).min(MOST), maximum.unwrap_or(MOST).min(MOST));
    }
}
