//! The one table of server errors: what each means, and what is done about it.
//!
//! Two properties matter: whether another server, or the same one a moment later, would serve the
//! call, and whether anything can have been written before the error. The scripts read and check
//! everything before their first write, and compute all values before it. So an error before a
//! script begins, or at its first write, proves that nothing was charged. An unknown error may have
//! come later.
//!
//! | error | sent | class |
//! |---|---|---|
//! | `MOVED` | before it begins: another node owns the slot | `Moved` |
//! | `ASK` | before it begins: these keys have been migrated with their slot | `Ask` |
//! | `TRYAGAIN` | before it begins: the slot is being migrated, and its keys are on two nodes | `TryAgain` |
//! | `CLUSTERDOWN` | before it begins: the node is partitioned, or slots are without a primary | `ClusterDown` |
//! | `LOADING` | before it begins: the server has just started | `Loading` |
//! | `READONLY` | at the first write: the server has become a replica | `Replica` |
//! | `MASTERDOWN` | before it begins, or at the first read: a replica that has lost its primary | `Replica` |
//! | `REDIRECT` | before it begins: a replica of Valkey names its primary | `Replica` |
//! | `NOSCRIPT`, `ERR Function not found` | before it begins: the server does not have the script | `NoScript` |
//! | `NOAUTH`, `DENIED` | before it begins: a password is required, or another network | `AuthRequired` |
//! | `WRONGPASS` | to a login, never to a script | `NotExecuted` |
//! | `NOPERM` | before it begins: no permission for this command or these keys | `NotExecuted` |
//! | `NOPERM` about a command other than `EVAL` and `FCALL` | inside a script: no permission for one of its commands | `MaybeExecuted` |
//! | `BUSY` | before it begins: another script has been running for long | `NotExecuted` |
//! | `OOM` | at the first write: later ones are not refused for that. To a function, before it begins | `NotExecuted` |
//! | `MISCONF`, `NOREPLICAS` | at the first write, or before a function begins: disk errors, or too few replicas. Neither changes while a script runs | `NotExecuted` |
//! | `WRONGTYPE` | while it reads: every key is read before the first write | `ForeignState` |
//! | `CROSSSLOT` | before it begins: the keys are in several slots | `NotExecuted` |
//! | `EXECABORT`, `NOPROTO`, `NOTBUSY`, `INPROG`, `BUSYKEY` | to commands that this client does not send | `NotExecuted` |
//! | `UNKILLABLE` | about a script that has written | `MaybeExecuted` |
//! | `UNBLOCKED` | to a client that was blocked after its command was executed, for example in `WAIT` | `MaybeExecuted` |
//! | `ERR TIDEGATE` | by the scripts themselves, before the first write | `ForeignState` |
//! | `ERR .. data string too short` | by the scripts, about a foreign value, while they read | `ForeignState` |
//! | `ERR` about an unknown command or too many clients | before it begins | `NotExecuted` |
//! | `ERR` | any time: an error inside a script, or of a proxy that has lost its server | `MaybeExecuted` |
//! | any other | a later version, or a server that is not Redis | `MaybeExecuted` |
//!
//! No error refuses a call: the scripts return a refusal as a reply, not as an error. Before
//! version 7, an error inside a script is an `ERR` with the position in the script, followed by the
//! original error, which is the one that is classified.

use redis::{RedisError, Value};

/// What an error means for the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ErrorClass {
    /// Another node owns the slot.
    Moved,
    /// Another node is importing the slot, and has these keys.
    Ask,
    /// The slot is being migrated, and its keys are on two nodes.
    TryAgain,
    /// The node serves no calls, because the Cluster is down.
    ClusterDown,
    /// The server is a replica.
    Replica,
    /// The server is still loading its data.
    Loading,
    /// The server does not have the script, or the function.
    NoScript,
    /// The server requires a login, or another network.
    AuthRequired,
    /// A key has a value of another program or version. Nothing was executed; the server is
    /// healthy.
    ForeignState,
    /// Failed, and nothing was executed.
    NotExecuted,
    /// Failed, and something may have been executed.
    MaybeExecuted,
}

/// Errors that are classified by their first word alone.
pub(crate) const BY_PREFIX: [(&str, ErrorClass); 24] = [
    ("MOVED", ErrorClass::Moved),
    ("ASK", ErrorClass::Ask),
    ("TRYAGAIN", ErrorClass::TryAgain),
    ("CLUSTERDOWN", ErrorClass::ClusterDown),
    ("LOADING", ErrorClass::Loading),
    ("READONLY", ErrorClass::Replica),
    ("MASTERDOWN", ErrorClass::Replica),
    ("REDIRECT", ErrorClass::Replica),
    ("NOSCRIPT", ErrorClass::NoScript),
    ("NOAUTH", ErrorClass::AuthRequired),
    ("DENIED", ErrorClass::AuthRequired),
    ("WRONGPASS", ErrorClass::NotExecuted),
    ("BUSY", ErrorClass::NotExecuted),
    ("OOM", ErrorClass::NotExecuted),
    ("MISCONF", ErrorClass::NotExecuted),
    ("NOREPLICAS", ErrorClass::NotExecuted),
    ("WRONGTYPE", ErrorClass::ForeignState),
    ("CROSSSLOT", ErrorClass::NotExecuted),
    ("EXECABORT", ErrorClass::NotExecuted),
    ("NOPROTO", ErrorClass::NotExecuted),
    ("NOTBUSY", ErrorClass::NotExecuted),
    ("INPROG", ErrorClass::NotExecuted),
    ("BUSYKEY", ErrorClass::NotExecuted),
    ("TIDEGATE", ErrorClass::ForeignState),
];

/// The beginnings of `ERR` texts that are sent before the execution.
const ERR_BEFORE_EXECUTION: [&str; 3] =
    ["unknown command", "wrong number of arguments", "max number of clients reached"];

/// The text of the `ERR` for a function that the server does not have.
const FUNCTION_NOT_FOUND: &str = "Function not found";

/// Lua's error for a value that is shorter than a state. The scripts unpack only stored values.
const LUA_UNPACK_TOO_SHORT: &str = "to 'unpack' (data string too short)";

impl ErrorClass {
    pub(crate) fn of(error: &RedisError) -> Self {
        Self::read(error.code().unwrap_or_default(), error.detail().unwrap_or_default())
    }

    /// None if the reply is not an error.
    pub(crate) fn of_reply(reply: &Value) -> Option<Self> {
        let Value::ServerError(error) = reply else { return None };
        Some(Self::read(error.code(), error.details().unwrap_or_default()))
    }

    fn read(word: &str, text: &str) -> Self {
        if let Some((_, class)) = BY_PREFIX.iter().find(|(other, _)| *other == word) {
            return *class;
        }
        match word {
            "NOPERM" if text.contains(" run the ") && !names_script(text) => Self::MaybeExecuted,
            "NOPERM" => Self::NotExecuted,
            "ERR" if text.starts_with(FUNCTION_NOT_FOUND) => Self::NoScript,
            "ERR" if ERR_BEFORE_EXECUTION.iter().any(|beginning| text.starts_with(beginning)) => {
                Self::NotExecuted
            }
            "ERR" if text.contains(LUA_UNPACK_TOO_SHORT) => Self::ForeignState,
            "ERR" => match error_inside(text) {
                Some((word, text)) => Self::read(word, text),
                None => Self::MaybeExecuted,
            },
            _ => Self::MaybeExecuted,
        }
    }

    /// Whether something may have been written, if the call writes.
    pub(crate) fn maybe_executed(self) -> bool {
        self == Self::MaybeExecuted
    }

    /// Whether the server rejects every command.
    pub(crate) fn rejects_all(self) -> bool {
        matches!(self, Self::Replica | Self::Loading | Self::AuthRequired)
    }

    /// Whether a retry may succeed once a failover is complete.
    pub(crate) fn is_retryable_in_failover(self) -> bool {
        matches!(self, Self::Replica | Self::Loading)
    }
}

/// Why `FCALL` was refused, if the script may be accepted. Nothing was executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FunctionRefusal {
    /// The server does not have the function.
    NotLoaded,
    /// The server has no functions, or this user may not call them.
    NotAvailable,
    /// The server takes no writes, for example because it is full. It refuses a function before it
    /// begins, and a script only when it writes: denials can still be decided.
    ThisCall,
}

impl FunctionRefusal {
    pub(crate) fn of(error: &RedisError) -> Option<Self> {
        let text = error.detail().unwrap_or_default().to_ascii_lowercase();
        match (ErrorClass::of(error), error.code()) {
            (ErrorClass::NoScript, Some("ERR")) => Some(Self::NotLoaded),
            (ErrorClass::NotExecuted, Some("OOM" | "MISCONF" | "NOREPLICAS")) => {
                Some(Self::ThisCall)
            }
            (ErrorClass::NotExecuted, Some("ERR" | "NOPERM")) if text.contains("fcall") => {
                Some(Self::NotAvailable)
            }
            _ => None,
        }
    }
}

/// Whether `FUNCTION LOAD` failed because the server has the library.
pub(crate) fn is_loaded_already(error: &RedisError) -> bool {
    error.detail().is_some_and(|text| text.starts_with("Library '") && text.contains("exists"))
}

/// Whether this user may not run the command.
pub(crate) fn lacks_permission(error: &RedisError) -> bool {
    error.code() == Some("NOPERM")
}

/// Why the native module refused a call, if the script may accept it. Nothing was executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ModuleRefusal {
    /// The module is not loaded. It may be again.
    Gone,
    /// The module is of another version, or this user may not call it. Each attempt costs a round
    /// trip, and may be an entry of `ACL LOG`.
    NotUsable,
    /// The server takes no writes, for example because it is full. It refuses the module before it
    /// begins, and a script only when it writes: denials can still be decided.
    ThisCall,
}

impl ModuleRefusal {
    pub(crate) fn of(error: &RedisError) -> Option<Self> {
        let text = error.detail().unwrap_or_default().to_ascii_lowercase();
        match error.code()? {
            "OOM" | "MISCONF" | "NOREPLICAS" => Some(Self::ThisCall),
            "ERR" if text.contains("tg.decide") => Some(Self::Gone),
            "NOPERM" if text.contains("tg.decide") => Some(Self::NotUsable),
            "ERR" if text.contains("use a module of your version") => Some(Self::NotUsable),
            _ => None,
        }
    }
}

/// What to do about an error that every call gets.
pub(crate) fn remedy(error: &RedisError) -> Option<&'static str> {
    let (word, text) = (error.code()?, error.detail().unwrap_or_default());
    // Before version 7, an error inside a script is an `ERR`.
    let word = if word == "ERR" { error_inside(text)?.0 } else { word };
    Some(match word {
        "OOM" => "raise maxmemory, or remove keys of other programs",
        "NOPERM" => "grant the permissions of the ACL recipe in the documentation",
        "NOAUTH" | "WRONGPASS" => "check user and password",
        "NOREPLICAS" => "connect replicas, or lower min-replicas-to-write",
        "READONLY" => "the server is a replica; use its primary",
        "MASTERDOWN" => "the server is a replica without its primary; use a primary",
        "MISCONF" => "the server cannot save its data; see its log",
        "LOADING" => "the server is loading its data; wait",
        "CLUSTERDOWN" => "see CLUSTER INFO",
        _ => return None,
    })
}

fn names_script(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["'eval", "'fcall"].iter().any(|command| text.contains(command))
}

/// The error inside a script, after `ERR` and possibly the position in the script.
fn error_inside(text: &str) -> Option<(&str, &str)> {
    // From version 7 on, the position comes last.
    let position = ["user_script:", "user_function:"].into_iter().find(|word| text.contains(word));
    let after = position.and_then(|word| text.rsplit_once(word)).and_then(|(_, rest)| {
        rest.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix(':')
    });
    let found = after.unwrap_or(text).trim_start().trim_start_matches('-');
    let (word, rest) = found.split_once(' ').unwrap_or((found, ""));
    let is_word = word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    (is_word && word != "ERR").then_some((word, rest))
}

#[cfg(test)]
mod tests {
    use redis::parse_redis_value;
    use testkit::fake_redis::{ERRORS_BEFORE_WRITE, NOSCRIPT_ERROR};

    use super::*;

    fn class(line: &str) -> ErrorClass {
        let reply = parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let class = ErrorClass::of_reply(&reply);
        let error = reply.extract_error().unwrap_err();
        assert_eq!(class, Some(ErrorClass::of(&error)), "{line}");
        class.unwrap()
    }

    /// The integration test `server_errors` sends these replies to every operation.
    #[test]
    fn every_prefix_with_a_meaning_is_among_the_replies_of_the_fake_server() {
        for (prefix, _) in BY_PREFIX {
            let mut replies = ERRORS_BEFORE_WRITE.iter().chain([&NOSCRIPT_ERROR]);
            assert!(replies.any(|line| line.split(' ').next() == Some(prefix)), "{prefix}");
        }
    }

    #[test]
    fn errors_before_the_first_write_prove_that_nothing_was_executed() {
        const SHA: &str = "f_ef3a0e0e1a4a8b1d6e1c";
        let old = |error: &str| {
            format!("ERR Error running script (call to {SHA}): @user_script:86: {error}")
        };
        let new = |error: &str| format!("{error} script: {SHA}, on @user_script:86.");
        for (line, expected) in [
            ("BUSY Redis is busy running a script.".to_owned(), ErrorClass::NotExecuted),
            (
                "NOPERM this user has no permissions to run the 'evalsha' command".into(),
                ErrorClass::NotExecuted,
            ),
            (
                "NOPERM User tg has no permissions to run the 'eval' command".into(),
                ErrorClass::NotExecuted,
            ),
            ("NOPERM No permissions to access a key".into(), ErrorClass::NotExecuted),
            (
                "ERR unknown command 'EVALSHA', with args beginning with:".into(),
                ErrorClass::NotExecuted,
            ),
            ("ERR max number of clients reached".into(), ErrorClass::NotExecuted),
            (
                new("ERR TIDEGATE the state was written by a newer version"),
                ErrorClass::ForeignState,
            ),
            (
                new("OOM command not allowed when used memory > 'maxmemory'."),
                ErrorClass::NotExecuted,
            ),
            (new("READONLY You can't write against a read only replica."), ErrorClass::Replica),
            (
                new("ERR user_script:9: bad argument #2 to 'unpack' (data string too short)"),
                ErrorClass::ForeignState,
            ),
            (old("bad argument #2 to 'unpack' (data string too short)"), ErrorClass::ForeignState),
            (old("TIDEGATE bad number for cost"), ErrorClass::ForeignState),
            (
                old("@user_script: 86: -OOM command not allowed when used memory"),
                ErrorClass::NotExecuted,
            ),
            (old("@user_script: 86: -READONLY You can't write"), ErrorClass::Replica),
            (old("@user_script: 86: WRONGTYPE Operation against a key"), ErrorClass::ForeignState),
        ] {
            assert_eq!(class(&line), expected, "{line}");
        }
    }

    #[test]
    fn errors_that_may_come_after_a_write_and_unknown_errors_are_ambiguous() {
        for line in [
            "ERR",
            "ERR Error running script (call to f_1): @user_script:9: attempt to index a nil value",
            "ERR Error running script (call to f_1): @user_script:9: @user_script: 9: Unknown Redis \
             command called from Lua script",
            "ERR invalid expire time in 'set' command script: f_1, on @user_script:9.",
            "ERR The user executing the script can't run this command or subcommand script: f_1",
            "NOPERM this user has no permissions to run the 'zadd' command",
            "ERR ERR ERR",
            "ERR @user_script:",
            "ERR \u{e9}user_script:1:\u{e9}",
            "UNKILLABLE The busy script has made writes.",
            "UNBLOCKED force unblock from blocking operation, instance state changed",
            "WHATEVER comes after this version",
            "upstream failure",
            "lower case",
            "",
            " ",
        ] {
            assert_eq!(class(line), ErrorClass::MaybeExecuted, "{line:?}");
        }
    }
}
