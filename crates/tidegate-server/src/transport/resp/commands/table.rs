//! Command table: name, arity, access and key positions.

use crate::transport::auth::AccessLevel;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CommandId {
    Throttle,
    Check,
    Peek,
    Limit,
    CheckMany,
    Reserve,
    ReserveMany,
    Commit,
    Cancel,
    Renew,
    Extend,
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
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
    ResetConnection,
}

impl CommandId {
    /// Whether the command reads or changes the state of limits.
    pub(crate) fn uses_limits(self) -> bool {
        match self {
            Self::Throttle | Self::Check | Self::Peek | Self::Limit | Self::CheckMany => true,
            Self::Reserve | Self::ReserveMany | Self::Commit | Self::Cancel | Self::Renew => true,
            Self::Extend | Self::Record | Self::Refund | Self::Reset | Self::Del => true,
            Self::TideInfo | Self::Ping | Self::Echo | Self::Info | Self::Select => false,
            Self::Client | Self::Command | Self::Config => false,
            Self::Hello | Self::Auth | Self::Quit | Self::ResetConnection => false,
            Self::Multi | Self::Exec | Self::Discard | Self::Watch | Self::Unwatch => false,
        }
    }

    /// What becomes of the command between `MULTI` and `EXEC`.
    pub(crate) fn in_transaction(self) -> InTransaction {
        match self {
            Self::Multi | Self::Exec | Self::Discard | Self::Watch => InTransaction::Run,
            Self::Quit | Self::ResetConnection => InTransaction::Run,
            // Half of the replies of one array would be in the other protocol version.
            Self::Hello | Self::Auth => InTransaction::Refuse,
            _ => InTransaction::Queue,
        }
    }
}

/// What becomes of a command between `MULTI` and `EXEC`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InTransaction {
    Queue,
    Run,
    Refuse,
}

/// Properties of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandSpec {
    pub(crate) id: CommandId,
    pub(crate) name: &'static str,
    /// Number of words including the name, as in Redis: negative if it is a minimum.
    pub(crate) arity: i64,
    pub(crate) access: AccessLevel,
    pub(crate) keys: Option<KeyPositions>,
    /// The arguments, as the documentation writes them.
    arguments: &'static str,
}

/// Positions of the keys among the words, where the name is word 0. Clients that spread keys over
/// several servers read them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyPositions {
    pub(crate) first: i64,
    /// Negative counts from the end: -1 is the last word.
    pub(crate) last: i64,
    pub(crate) step: i64,
}

/// All commands, the most frequent first.
pub(crate) const COMMANDS: [CommandSpec; 34] = [
    entry(
        CommandId::Throttle,
        "cl.throttle",
        -5,
        AccessLevel::Check,
        "key max_burst count period [quantity]",
    )
    .keys(1, 1, 1),
    // As Redis has it in its sources, and in whole seconds.
    entry(
        CommandId::Throttle,
        "gcra",
        -5,
        AccessLevel::Check,
        "key max_burst count period [TOKENS quantity]",
    )
    .keys(1, 1, 1),
    entry(
        CommandId::Throttle,
        "rl.throttle",
        -5,
        AccessLevel::Check,
        "key max_burst count period [quantity]",
    )
    .keys(1, 1, 1),
    entry(
        CommandId::Check,
        "tg.check",
        -3,
        AccessLevel::Check,
        "rule key [COST n] [ID id] [NAMED]",
    )
    .keys(2, 2, 1),
    entry(CommandId::Peek, "tg.peek", -3, AccessLevel::Check, "rule key [NAMED]").keys(2, 2, 1),
    entry(
        CommandId::Limit,
        "tg.limit",
        -3,
        AccessLevel::Check,
        "limit key [COST n] [ID id] [NAMED]",
    )
    .keys(2, 2, 1),
    entry(CommandId::CheckMany, "tg.mcheck", -5, AccessLevel::Check, "n rule key cost ..")
        .keys(3, -2, 3),
    entry(
        CommandId::Reserve,
        "tg.reserve",
        -4,
        AccessLevel::Check,
        "rule key cost [TTL ms] [ID id] [EXPIRY CHARGE] [MIN cost]",
    )
    .keys(2, 2, 1),
    // The options at the end do not allow to name the keys after the first.
    entry(
        CommandId::ReserveMany,
        "tg.mreserve",
        -5,
        AccessLevel::Check,
        "n rule key cost .. [TTL ms] [ID id] [EXPIRY CHARGE] [MIN cost]",
    )
    .keys(3, 3, 1),
    entry(
        CommandId::Commit,
        "tg.commit",
        -2,
        AccessLevel::Check,
        "id [cost | COSTS n rule key cost ..]",
    ),
    entry(CommandId::Cancel, "tg.cancel", 2, AccessLevel::Check, "id"),
    entry(CommandId::Renew, "tg.renew", 3, AccessLevel::Check, "id ms"),
    // As for tg.mreserve.
    entry(
        CommandId::Extend,
        "tg.extend",
        -6,
        AccessLevel::Check,
        "id n rule key total .. [TTL ms] [MIN total]",
    )
    .keys(4, 4, 1),
    entry(CommandId::Record, "tg.record", 4, AccessLevel::Check, "rule key cost").keys(2, 2, 1),
    entry(CommandId::Refund, "tg.refund", 4, AccessLevel::Check, "rule key cost").keys(2, 2, 1),
    entry(CommandId::Reset, "tg.reset", 3, AccessLevel::Admin, "rule key").keys(2, 2, 1),
    entry(CommandId::TideInfo, "tg.info", 1, AccessLevel::Check, ""),
    entry(CommandId::Del, "del", -2, AccessLevel::Check, "key ..").keys(1, -1, 1),
    entry(CommandId::Ping, "ping", -1, AccessLevel::Check, "[message]"),
    entry(CommandId::Echo, "echo", 2, AccessLevel::Check, "message"),
    entry(CommandId::Info, "info", -1, AccessLevel::Check, "[section]"),
    entry(CommandId::Select, "select", 2, AccessLevel::Check, "0"),
    entry(
        CommandId::Client,
        "client",
        -2,
        AccessLevel::Check,
        "SETNAME name | GETNAME | ID | SETINFO name value | INFO",
    ),
    entry(
        CommandId::Command,
        "command",
        -1,
        AccessLevel::Check,
        "[COUNT | DOCS | INFO name .. | LIST]",
    ),
    entry(CommandId::Config, "config", -3, AccessLevel::Check, "GET name"),
    entry(
        CommandId::Hello,
        "hello",
        -1,
        AccessLevel::Nothing,
        "[2 | 3 [AUTH user token] [SETNAME name]]",
    ),
    entry(CommandId::Auth, "auth", -2, AccessLevel::Nothing, "[user] token"),
    entry(CommandId::Quit, "quit", -1, AccessLevel::Nothing, ""),
    entry(CommandId::Multi, "multi", 1, AccessLevel::Check, ""),
    entry(CommandId::Exec, "exec", 1, AccessLevel::Check, ""),
    entry(CommandId::Discard, "discard", 1, AccessLevel::Check, ""),
    entry(CommandId::Watch, "watch", -2, AccessLevel::Check, "key ..").keys(1, -1, 1),
    entry(CommandId::Unwatch, "unwatch", 1, AccessLevel::Check, ""),
    entry(CommandId::ResetConnection, "reset", 1, AccessLevel::Nothing, ""),
];

const fn entry(
    id: CommandId,
    name: &'static str,
    arity: i64,
    access: AccessLevel,
    arguments: &'static str,
) -> CommandSpec {
    CommandSpec { id, name, arity, access, keys: None, arguments }
}

impl CommandSpec {
    const fn keys(mut self, first: i64, last: i64, step: i64) -> Self {
        self.keys = Some(KeyPositions { first, last, step });
        self
    }

    /// How the command is written: `TG.PEEK rule key [NAMED]`.
    pub(crate) fn usage(&self) -> String {
        format!("{} {}", self.name.to_ascii_uppercase(), self.arguments).trim_end().to_owned()
    }

    /// The command of this name, in any case.
    pub(crate) fn find(name: &[u8]) -> Option<&'static Self> {
        COMMANDS.iter().find(|entry| entry.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Whether `words`, including the name, match the arity.
    pub(crate) fn takes(&self, words: usize) -> bool {
        let min = usize::try_from(self.arity.unsigned_abs()).unwrap_or(usize::MAX);
        if self.arity < 0 { words >= min } else { words == min }
    }
}
