//! Raises the limit of open files, and derives the most connections from it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// File descriptors kept for the store, policy files, logs and the listeners.
const RESERVE: u64 = 128;
/// Highest limit requested: some systems have none, and some need time for each possible file.
const MAX_OPEN_FILES: u64 = 1 << 20;

/// Raises RLIMIT_NOFILE as far as allowed, and returns the most connections that fit.
pub fn max_connections() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let (current, target) =
        (current.unwrap_or(MAX_OPEN_FILES), maximum.unwrap_or(MAX_OPEN_FILES).min(MAX_OPEN_FILES));
    let raised = Rlimit { current: Some(target), maximum };
    let limit = match current < target && setrlimit(Resource::Nofile, raised).is_ok() {
        true => target,
        false => current,
    };
    usize::try_from(without_reserve(limit)).unwrap_or(usize::MAX)
}

/// Of a small limit, half is kept.
fn without_reserve(limit: u64) -> u64 {
    limit.saturating_sub(RESERVE.min(limit / 2)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_descriptors_are_kept_for_the_store() {
        for (limit, connections) in
            [(0, 1), (1, 1), (32, 16), (256, 128), (1_024, 896), (65_536, 65_408)]
        {
            assert_eq!(without_reserve(limit), connections, "{limit}");
        }
    }

    #[test]
    fn the_limit_is_raised_to_the_maximum() {
        assert!(max_connections() > 0);
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(
            current.unwrap_or(MAX_OPEN_FILES).min(MAX_OPEN_FILES),
            maximum.unwrap_or(MAX_OPEN_FILES).min(MAX_OPEN_FILES)
        );
    }
}
