//! The process-wide limiter.

use std::fmt;
use std::sync::OnceLock;

use super::Limiter;
use crate::{Memory, Policy};

static GLOBAL: OnceLock<Limiter> = OnceLock::new();

impl Limiter {
    /// The process-wide limiter, set by [`set_global`](Self::set_global). Without `set_global`, an
    /// in-memory limiter with no rules is created on first use.
    pub fn global() -> &'static Self {
        GLOBAL.get_or_init(|| Self::with_policy(Memory::default(), Policy::default()))
    }

    /// Sets the process-wide limiter, permanently. Refused once it is initialized, also by the
    /// first use of [`global`](Self::global): its counts would be lost.
    ///
    /// ```
    /// use tidegate::{Limit, Limiter, Memory};
    /// let limiter = Limiter::new(Memory::default(), "100/s".parse::<Limit>()?);
    /// Limiter::set_global(limiter)?;
    /// assert!(Limiter::global().check_now("user-42")?.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_global(limiter: Self) -> Result<(), GlobalInUse> {
        GLOBAL.set(limiter).map_err(|_| GlobalInUse)
    }
}

/// The process-wide limiter is already initialized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GlobalInUse;

impl fmt::Display for GlobalInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the process-wide limiter is already initialized; call set_global once, at the start \
             of main",
        )
    }
}

impl std::error::Error for GlobalInUse {}
