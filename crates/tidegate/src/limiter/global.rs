//! The limiter of the whole process.

use std::fmt;
use std::sync::OnceLock;

use super::Limiter;
use crate::{Memory, Policy};

static GLOBAL: OnceLock<Limiter> = OnceLock::new();

impl Limiter {
    /// The limiter of the process: the one that [`set_global`](Self::set_global) was given. If nobody
    /// has set one by the first call, it counts in memory under no rules of its own.
    pub fn global() -> &'static Self {
        GLOBAL.get_or_init(|| Self::with_policy(Memory::default(), Policy::default()))
    }

    /// Makes this the limiter of the process, for good. Refused once there is one, and there is as
    /// soon as somebody has asked for it: what was counted so far would be forgotten.
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

/// The process has its limiter already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GlobalInUse;

impl fmt::Display for GlobalInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the process-wide limiter is in use already; set it once, first thing in main")
    }
}

impl std::error::Error for GlobalInUse {}
