//! The scripts, put together from the files in `lua/redisson/`.

use std::sync::OnceLock;

use crate::script::Script;

/// What can be asked of a limiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    Take,
    Release,
    Undo,
    Configure,
    Expire,
}

impl Ask {
    const ALL: [Self; 5] = [Self::Take, Self::Release, Self::Undo, Self::Configure, Self::Expire];

    pub(super) fn script(self) -> &'static Script {
        static SCRIPTS: OnceLock<[Script; 5]> = OnceLock::new();
        let scripts = SCRIPTS.get_or_init(|| Self::ALL.map(|ask| Script::of(&ask.files())));
        &scripts[self as usize]
    }

    fn files(self) -> Vec<&'static str> {
        const NUMBERS: &str = include_str!("../../lua/redisson/numbers.lua");
        const STATE: &str = include_str!("../../lua/redisson/state.lua");
        const MANY: &str = include_str!("../../lua/redisson/many.lua");
        const INITIALIZED: &str = include_str!("../../lua/redisson/initialized.lua");
        let initialized = |last| vec![NUMBERS, STATE, MANY, INITIALIZED, last];
        match self {
            Self::Take => initialized(include_str!("../../lua/redisson/take.lua")),
            Self::Release => initialized(include_str!("../../lua/redisson/release.lua")),
            Self::Undo => initialized(include_str!("../../lua/redisson/undo.lua")),
            Self::Configure => {
                vec![NUMBERS, STATE, MANY, include_str!("../../lua/redisson/configure.lua")]
            }
            Self::Expire => vec![include_str!("../../lua/redisson/expire.lua")],
        }
    }
}
