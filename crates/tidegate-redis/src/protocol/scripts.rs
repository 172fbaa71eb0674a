//! The scripts, assembled from the files in `lua/`.
//!
//! `lean.lua` decides plain checks, and `lean_log.lua` those of logs. For all else there is one
//! script for each algorithm, and one with all of them for calls that mix algorithms. Each exists
//! twice: for many checks at once, and for one call of any kind. Redis parses a script once, but
//! executes all of it on every call, so a short one is faster.
//!
//! A server that has functions defines all of that once: there, one library has the two scripts
//! with all algorithms as functions.

use std::sync::{LazyLock, OnceLock};

use tidegate::Algorithm;

use crate::protocol::request::LimitCharge;

/// The script that decides a call over limits of these algorithms: protocol version 1, for clients
/// in other languages. `docs/reference/redis-scripts.md` describes how to call it.
///
/// Each algorithm has its own script; for several, or none, this is the script with all of them.
/// [`Redis`](crate::Redis) runs the same text, byte for byte.
///
/// ```
/// use tidegate::Algorithm;
/// let text = tidegate_redis::decide_script(&[Algorithm::TokenBucket]);
/// assert!(text.len() < tidegate_redis::decide_script(&[]).len());
/// ```
pub fn decide_script(algorithms: &[Algorithm]) -> &'static str {
    &ScriptVariant::of(algorithms.iter().copied()).script().text
}

/// The script that decides many checks over limits of these algorithms in one call.
/// `docs/reference/redis-scripts.md` describes how to call it.
///
/// ```
/// use tidegate::Algorithm;
/// let text = tidegate_redis::checks_script(&[Algorithm::TokenBucket]);
/// assert!(text.len() < tidegate_redis::decide_script(&[Algorithm::TokenBucket]).len());
/// ```
pub fn checks_script(algorithms: &[Algorithm]) -> &'static str {
    &ScriptVariant::of(algorithms.iter().copied()).checks().text
}

/// The script that decides plain checks: buckets, fixed and approximate windows, without holds.
/// [`checks_script`] decides what it leaves undecided. `docs/reference/redis-scripts.md` describes
/// how to call it.
///
/// ```
/// let text = tidegate_redis::lean_script();
/// assert!(text.len() < tidegate_redis::checks_script(&[]).len() / 4);
/// ```
pub fn lean_script() -> &'static str {
    &lean().text
}

/// The script that decides plain checks of one `sliding-log` or `sliding-window` each, without
/// holds. [`checks_script`] decides what it leaves undecided. `docs/reference/redis-scripts.md`
/// describes how to call it.
///
/// ```
/// let text = tidegate_redis::lean_log_script();
/// assert!(text.len() < tidegate_redis::checks_script(&[]).len() / 4);
/// ```
pub fn lean_log_script() -> &'static str {
    &lean_log().text
}

/// The library with [`decide_script`] and [`checks_script`] as functions, for `FUNCTION LOAD`. Its
/// name and those of its functions contain its digest, so two versions can share a server.
///
/// ```
/// let text = tidegate_redis::function_library();
/// assert!(text.starts_with("#!lua name=tidegate_"));
/// ```
pub fn function_library() -> &'static str {
    &LIBRARY.text
}

pub(crate) static LIBRARY: LazyLock<Library> = LazyLock::new(Library::compose);

/// The general scripts as functions.
pub(crate) struct Library {
    pub(crate) text: String,
    decide: String,
    checks: String,
}

impl Library {
    /// While a library is loaded, Lua's own libraries are missing. So the first call defines what
    /// all calls use.
    fn compose() -> Self {
        let files = [&[PRELUDE], ALL_ALGORITHMS, SHARED].concat().join("\n");
        let body = format!(
            "local KEYS, ARGV, calls\nlocal function define()\n{files}\nlocal made = {{}}\n\
             function made.decide()\n{DECIDE}\nend\nfunction made.checks()\n{CHECKS}\nend\n\
             return made\nend\n"
        );
        let digest = sha1_smol::Sha1::from(&body).digest().to_string();
        let name = |call: &str| format!("tidegate_{call}_{}", &digest[..16]);
        let register = |call: &str| {
            let name = name(call);
            format!(
                "redis.register_function('{name}', function(keys, args)\n  KEYS, ARGV = keys, args\n  \
                 calls = calls or define()\n  return calls.{call}()\nend)\n"
            )
        };
        let functions = register("decide") + &register("checks");
        let text = format!("#!lua name=tidegate_{}\n{body}{functions}", &digest[..16]);
        Self { text, decide: name("decide"), checks: name("checks") }
    }
}

pub(crate) fn lean() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new(LEAN.into()))
}

pub(crate) fn lean_log() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new(LEAN_LOG.into()))
}

/// A script and its digest for `EVALSHA`.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) digest: String,
    /// The function of [`LIBRARY`] with the same arguments and the same reply, if there is one.
    pub(crate) function: Option<&'static str>,
}

const PRELUDE: &str = include_str!("../../lua/prelude.lua");
const BUCKET: &str = include_str!("../../lua/bucket.lua");
const STEPPED_BUCKET: &str = include_str!("../../lua/stepped_bucket.lua");
const FIXED_WINDOW: &str = include_str!("../../lua/fixed_window.lua");
const SLIDING_LOG: &str = include_str!("../../lua/sliding_log.lua");
const SLIDING_COUNTER: &str = include_str!("../../lua/sliding_counter.lua");
const CONCURRENCY: &str = include_str!("../../lua/concurrency.lua");
const HOLDS: &str = include_str!("../../lua/holds.lua");
const FORECAST: &str = include_str!("../../lua/forecast.lua");
const ENTRIES: &str = include_str!("../../lua/entries.lua");
const PARTS: &str = include_str!("../../lua/parts.lua");
const DECIDE: &str = include_str!("../../lua/decide.lua");
const LEAN: &str = include_str!("../../lua/lean.lua");
const LEAN_LOG: &str = include_str!("../../lua/lean_log.lua");
const CHECKS: &str = include_str!("../../lua/checks.lua");

const ALL_ALGORITHMS: &[&str] =
    &[BUCKET, STEPPED_BUCKET, FIXED_WINDOW, SLIDING_LOG, SLIDING_COUNTER, CONCURRENCY];
/// Between the algorithms and the last file.
const SHARED: &[&str] = &[HOLDS, FORECAST, ENTRIES, PARTS];

/// Which algorithms a script contains: one, or all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ScriptVariant {
    One(Algorithm),
    All,
}

impl Script {
    pub(crate) fn of(files: &[&str]) -> Self {
        // Replicate the effects and not the script, which reads the clock. Redis 7 always does.
        Self::new(format!("redis.replicate_commands()\n{}", files.join("\n")))
    }

    fn new(text: String) -> Self {
        let digest = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, digest, function: None }
    }
}

impl ScriptVariant {
    /// The variant for a call over these algorithms.
    fn of(mut algorithms: impl Iterator<Item = Algorithm>) -> Self {
        match algorithms.next() {
            Some(first) if algorithms.all(|other| other == first) => Self::One(first),
            _ => Self::All,
        }
    }

    /// The variant for a call over these parts.
    pub(crate) fn of_parts<'a>(parts: impl IntoIterator<Item = &'a LimitCharge>) -> Self {
        Self::of(parts.into_iter().map(|part| part.limit.limit().algorithm()))
    }

    /// The script for a call of any kind.
    pub(crate) fn script(self) -> &'static Script {
        static SCRIPTS: OnceLock<Vec<(ScriptVariant, Script)>> = OnceLock::new();
        self.find(SCRIPTS.get_or_init(|| Self::all(DECIDE, &LIBRARY.decide)))
    }

    /// The script for many checks, which is shorter.
    pub(crate) fn checks(self) -> &'static Script {
        static SCRIPTS: OnceLock<Vec<(ScriptVariant, Script)>> = OnceLock::new();
        self.find(SCRIPTS.get_or_init(|| Self::all(CHECKS, &LIBRARY.checks)))
    }

    fn find(self, scripts: &[(Self, Script)]) -> &Script {
        let found = scripts.iter().find(|(variant, _)| *variant == self);
        // The last one contains all algorithms.
        let (_, script) = found.unwrap_or(&scripts[scripts.len() - 1]);
        script
    }

    fn all(last: &str, function: &'static str) -> Vec<(Self, Script)> {
        let one = Algorithm::ALL.into_iter().map(Self::One);
        one.chain([Self::All]).map(|variant| (variant, variant.compose(last, function))).collect()
    }

    fn compose(self, last: &str, function: &'static str) -> Script {
        let algorithms: &[&str] = match self {
            Self::One(Algorithm::TokenBucket) => &[BUCKET, STEPPED_BUCKET],
            Self::One(Algorithm::LeakyBucket) => &[BUCKET],
            Self::One(Algorithm::FixedWindow) => &[FIXED_WINDOW],
            Self::One(Algorithm::SlidingLog) => &[SLIDING_LOG],
            Self::One(Algorithm::SlidingWindow) => &[SLIDING_LOG, SLIDING_COUNTER],
            Self::One(Algorithm::Concurrency) => &[CONCURRENCY],
            Self::All => ALL_ALGORITHMS,
        };
        let script = Script::of(&[&[PRELUDE], algorithms, SHARED, &[last]].concat());
        Script { function: Some(function), ..script }
    }
}
