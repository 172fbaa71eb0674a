//! The scripts, put together from the files in `lua/`.
//!
//! One for each algorithm, and one with all of them for calls that mix; and each of them twice, for
//! many checks at once and for one call of any kind. A script's text is parsed once, but run from top
//! to bottom on every call, and a short one runs faster.

use std::sync::OnceLock;

use tidegate::Algorithm;

/// The script that decides a call over limits of these algorithms: protocol version 1, for clients
/// in other languages. `docs/scripts.md` says how to call it.
///
/// One algorithm has a script of its own; several, or none, are answered with the script of all. It
/// is the same text, byte for byte, that [`Redis`](crate::Redis) runs.
///
/// ```
/// use tidegate::Algorithm;
/// let text = tidegate_redis::script_text(&[Algorithm::TokenBucket]);
/// assert!(text.len() < tidegate_redis::script_text(&[]).len());
/// ```
pub fn script_text(algorithms: &[Algorithm]) -> &'static str {
    &Covers::of(algorithms.iter().copied()).script().text
}

/// The script that decides many checks over limits of these algorithms in one call; `docs/scripts.md` says
/// how to call this one, too.
///
/// ```
/// use tidegate::Algorithm;
/// let text = tidegate_redis::checks_text(&[Algorithm::TokenBucket]);
/// assert!(text.len() < tidegate_redis::script_text(&[Algorithm::TokenBucket]).len());
/// ```
pub fn checks_text(algorithms: &[Algorithm]) -> &'static str {
    &Covers::of(algorithms.iter().copied()).checks().text
}

/// A script and its digest, with which a server that has seen it can be asked to run it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) digest: String,
}

const PRELUDE: &str = include_str!("../lua/prelude.lua");
const BUCKET: &str = include_str!("../lua/bucket.lua");
const STEPS: &str = include_str!("../lua/steps.lua");
const FIXED: &str = include_str!("../lua/fixed.lua");
const LOG: &str = include_str!("../lua/log.lua");
const APPROXIMATE: &str = include_str!("../lua/approximate.lua");
const CONCURRENCY: &str = include_str!("../lua/concurrency.lua");
const HOLDS: &str = include_str!("../lua/holds.lua");
const FORECAST: &str = include_str!("../lua/forecast.lua");
const PARTS: &str = include_str!("../lua/parts.lua");
const DECIDE: &str = include_str!("../lua/decide.lua");
const CHECKS: &str = include_str!("../lua/checks.lua");

/// Which algorithms a script contains: one, or all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Covers {
    One(Algorithm),
    All,
}

impl Script {
    /// Of these files, one behind the other.
    pub(crate) fn of(files: &[&str]) -> Self {
        // Effects are replicated, not the script: it reads the clock. Redis 7 does so anyway.
        let text = format!("redis.replicate_commands()\n{}", files.join("\n"));
        let digest = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, digest }
    }
}

impl Covers {
    /// What a call over these algorithms needs.
    pub(crate) fn of(mut algorithms: impl Iterator<Item = Algorithm>) -> Self {
        match algorithms.next() {
            Some(first) if algorithms.all(|other| other == first) => Self::One(first),
            _ => Self::All,
        }
    }

    /// The script for a call of any kind.
    pub(crate) fn script(self) -> &'static Script {
        static SCRIPTS: OnceLock<Vec<(Covers, Script)>> = OnceLock::new();
        self.find(SCRIPTS.get_or_init(|| Self::all(DECIDE)))
    }

    /// The script for many checks: shorter, since it does nothing else.
    pub(crate) fn checks(self) -> &'static Script {
        static SCRIPTS: OnceLock<Vec<(Covers, Script)>> = OnceLock::new();
        self.find(SCRIPTS.get_or_init(|| Self::all(CHECKS)))
    }

    fn find(self, scripts: &[(Self, Script)]) -> &Script {
        let found = scripts.iter().find(|(covers, _)| *covers == self);
        // The last covers everything.
        let (_, script) = found.unwrap_or(&scripts[scripts.len() - 1]);
        script
    }

    fn all(last: &str) -> Vec<(Self, Script)> {
        let one = Algorithm::ALL.into_iter().map(Self::One);
        one.chain([Self::All]).map(|covers| (covers, covers.compose(last))).collect()
    }

    fn compose(self, last: &str) -> Script {
        let algorithms: &[&str] = match self {
            Self::One(Algorithm::TokenBucket) => &[BUCKET, STEPS],
            Self::One(Algorithm::LeakyBucket) => &[BUCKET],
            Self::One(Algorithm::FixedWindow) => &[FIXED],
            Self::One(Algorithm::SlidingLog) => &[LOG],
            Self::One(Algorithm::SlidingWindow) => &[LOG, APPROXIMATE],
            Self::One(Algorithm::Concurrency) => &[CONCURRENCY],
            Self::All => &[BUCKET, STEPS, FIXED, LOG, APPROXIMATE, CONCURRENCY],
        };
        Script::of(&[&[PRELUDE], algorithms, &[HOLDS, FORECAST, PARTS, last]].concat())
    }
}
