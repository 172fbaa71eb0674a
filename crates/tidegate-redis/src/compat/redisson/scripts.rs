//! The scripts, assembled from the files in `lua/redisson/`.

use std::sync::OnceLock;

use crate::protocol::scripts::Script;

/// The scripts of a limiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RedissonScript {
    Take,
    Release,
    Undo,
    Configure,
    Expire,
}

impl RedissonScript {
    const ALL: [Self; 5] = [Self::Take, Self::Release, Self::Undo, Self::Configure, Self::Expire];

    pub(crate) fn script(self) -> &'static Script {
        static SCRIPTS: OnceLock<[Script; 5]> = OnceLock::new();
        let scripts = SCRIPTS.get_or_init(|| Self::ALL.map(|script| Script::of(&script.files())));
        &scripts[self as usize]
    }

    fn files(self) -> Vec<&'static str> {
        const NUMBERS: &str = include_str!("../../../lua/redisson/numbers.lua");
        const STATE: &str = include_str!("../../../lua/redisson/state.lua");
        const CHUNKED_COUNT: &str = include_str!("../../../lua/redisson/chunked_count.lua");
        const INITIALIZED: &str = include_str!("../../../lua/redisson/initialized.lua");
        let initialized = |last| vec![NUMBERS, STATE, CHUNKED_COUNT, INITIALIZED, last];
        match self {
            Self::Take => initialized(include_str!("../../../lua/redisson/take.lua")),
            Self::Release => initialized(include_str!("../../../lua/redisson/release.lua")),
            Self::Undo => initialized(include_str!("../../../lua/redisson/undo.lua")),
            Self::Configure => {
                vec![
                    NUMBERS,
                    STATE,
                    CHUNKED_COUNT,
                    include_str!("../../../lua/redisson/configure.lua"),
                ]
            }
            Self::Expire => vec![include_str!("../../../lua/redisson/expire.lua")],
        }
    }
}
