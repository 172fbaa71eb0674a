//! Every command: its name, how many words it has, and who may send it.

use crate::tokens::Access;

/// Which command it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Which {
    Throttle,
    Check,
    Peek,
    Limit,
    CheckMany,
    Reserve,
    Commit,
    Cancel,
    Renew,
    Record,
    Refund,
    Reset,
    TideInfo,
    Del,
    Ping,
    Echo,
    Info,
    Select,
    Client,
    Command,
    Config,
    Hello,
    Auth,
    Quit,
}

impl Which {
    /// Does it ask about a limit, or change what is counted?
    pub(super) fn asks(self) -> bool {
        match self {
            Self::Throttle | Self::Check | Self::Peek | Self::Limit | Self::CheckMany => true,
            Self::Reserve | Self::Commit | Self::Cancel | Self::Renew => true,
            Self::Record | Self::Refund | Self::Reset | Self::Del => true,
            Self::TideInfo | Self::Ping | Self::Echo | Self::Info | Self::Select => false,
            Self::Client | Self::Command | Self::Config => false,
            Self::Hello | Self::Auth | Self::Quit => false,
        }
    }
}

/// One command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) which: Which,
    pub(super) name: &'static str,
    /// Its number of words with its name, as Redis tells it: negative if there may be more.
    pub(super) arity: i64,
    pub(super) access: Access,
}

/// Those that are asked most come first.
pub(super) const COMMANDS: [Entry; 24] = [
    entry(Which::Throttle, "cl.throttle", -5, Access::Check),
    entry(Which::Check, "tg.check", -3, Access::Check),
    entry(Which::Peek, "tg.peek", 3, Access::Check),
    entry(Which::Limit, "tg.limit", -3, Access::Check),
    entry(Which::CheckMany, "tg.mcheck", -5, Access::Check),
    entry(Which::Reserve, "tg.reserve", -4, Access::Check),
    entry(Which::Commit, "tg.commit", -2, Access::Check),
    entry(Which::Cancel, "tg.cancel", 2, Access::Check),
    entry(Which::Renew, "tg.renew", 3, Access::Check),
    entry(Which::Record, "tg.record", 4, Access::Check),
    entry(Which::Refund, "tg.refund", 4, Access::Check),
    entry(Which::Reset, "tg.reset", 3, Access::Admin),
    entry(Which::TideInfo, "tg.info", 1, Access::Check),
    entry(Which::Del, "del", -2, Access::Check),
    entry(Which::Ping, "ping", -1, Access::Check),
    entry(Which::Echo, "echo", 2, Access::Check),
    entry(Which::Info, "info", -1, Access::Check),
    entry(Which::Select, "select", 2, Access::Check),
    entry(Which::Client, "client", -2, Access::Check),
    entry(Which::Command, "command", -1, Access::Check),
    entry(Which::Config, "config", -3, Access::Check),
    entry(Which::Hello, "hello", -1, Access::Nothing),
    entry(Which::Auth, "auth", -2, Access::Nothing),
    entry(Which::Quit, "quit", -1, Access::Nothing),
];

const fn entry(which: Which, name: &'static str, arity: i64, access: Access) -> Entry {
    Entry { which, name, arity, access }
}

impl Entry {
    /// The command of this name, in capitals or not.
    pub(super) fn find(name: &[u8]) -> Option<&'static Self> {
        COMMANDS.iter().find(|entry| entry.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// May it have so many words, with its name?
    pub(super) fn takes(&self, words: usize) -> bool {
        let least = usize::try_from(self.arity.unsigned_abs()).unwrap_or(usize::MAX);
        if self.arity < 0 { words >= least } else { words == least }
    }
}
