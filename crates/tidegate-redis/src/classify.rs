//! What an error of a server means: the one table of what is done about each.
//!
//! Two questions decide. Would another server, or this one in a moment, answer? And can anything have
//! been written before the error? A script of ours reads and checks everything before its first write,
//! and reckons all that it writes before that, too. So whatever a server says before a script begins,
//! or at its first write, says that nothing was charged. What nobody foresaw may have come later.
//!
//! | word | a server says it | meaning |
//! |---|---|---|
//! | `MOVED` | before it begins: the slot is another's | `Moved` |
//! | `ASK` | before it begins: these keys have left with their slot | `Ask` |
//! | `TRYAGAIN` | before it begins: the slot is on its way, and its keys are here and there | `Split` |
//! | `CLUSTERDOWN` | before it begins: the node is cut off, or slots are without a primary | `Down` |
//! | `LOADING` | before it begins: it has just started | `Loading` |
//! | `READONLY` | at the first write: it has become a replica | `Replica` |
//! | `MASTERDOWN` | before it begins, or at the first read: a replica that has lost its primary | `Replica` |
//! | `REDIRECT` | before it begins: a replica of Valkey names its primary | `Replica` |
//! | `NOSCRIPT` | before it begins: it has not seen the script, or has forgotten it | `NoScript` |
//! | `NOAUTH`, `DENIED` | before it begins: a password is wanted, or another network | `Shut` |
//! | `WRONGPASS` | to a login, never to a script | `Nothing` |
//! | `NOPERM` | before it begins: not this command, or not these keys | `Nothing` |
//! | `NOPERM` about another command than `EVAL` | in the midst: the user may do some of what a script does | `Perhaps` |
//! | `BUSY` | before it begins: another script has been running for long | `Nothing` |
//! | `OOM` | at the first write: no later one is refused for that | `Nothing` |
//! | `MISCONF`, `NOREPLICAS` | at the first write: the disk, or too few replicas. Neither changes while a script runs | `Nothing` |
//! | `WRONGTYPE` | while it reads: every key is looked at before the first write | `Misfit` |
//! | `CROSSSLOT` | before it begins: the keys lie in several slots | `Nothing` |
//! | `EXECABORT`, `NOPROTO`, `NOTBUSY`, `INPROG`, `BUSYKEY` | to a command that we do not send, which it did not do | `Nothing` |
//! | `UNKILLABLE` | of a script that has written | `Perhaps` |
//! | `UNBLOCKED` | to whoever waited behind a command that was done, for instance for replicas | `Perhaps` |
//! | `ERR TIDEGATE` | by the scripts themselves, before the first write | `Misfit` |
//! | `ERR .. data string too short` | by the scripts, of a value that is not theirs, while they read | `Misfit` |
//! | `ERR`, about a command that it does not know or a client too many | before it begins | `Nothing` |
//! | `ERR` | anything: an error inside a script, or the words of a proxy that has lost its server | `Perhaps` |
//! | anything else | a later version, or no Redis at all | `Perhaps` |
//!
//! None of them refuses a call: those that cannot be answered are told so by the scripts in an answer,
//! not in an error. Before version 7, an error inside a script comes as an `ERR` with the place in the
//! script and then the error itself, which is what counts.

use redis::{RedisError, Value};

/// What an error means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Meaning {
    /// Another node has the slot.
    Moved,
    /// Another node is about to have the slot, and has these keys.
    Ask,
    /// The slot is on its way, and some of the keys are here, some there.
    Split,
    /// The Cluster serves nobody here.
    Down,
    /// It is a replica, and another server is the primary.
    Replica,
    /// It will serve in a moment.
    Loading,
    /// It wants the text of the script.
    NoScript,
    /// It does not let us in.
    Shut,
    /// What lies there is not ours, or not of this version. Nothing was done, and the server is well.
    Misfit,
    /// There is no answer, and nothing was done.
    Nothing,
    /// There is no answer, and something may have been done.
    Perhaps,
}

/// Those that need no more than their first word.
pub(crate) const WORDS: [(&str, Meaning); 24] = [
    ("MOVED", Meaning::Moved),
    ("ASK", Meaning::Ask),
    ("TRYAGAIN", Meaning::Split),
    ("CLUSTERDOWN", Meaning::Down),
    ("LOADING", Meaning::Loading),
    ("READONLY", Meaning::Replica),
    ("MASTERDOWN", Meaning::Replica),
    ("REDIRECT", Meaning::Replica),
    ("NOSCRIPT", Meaning::NoScript),
    ("NOAUTH", Meaning::Shut),
    ("DENIED", Meaning::Shut),
    ("WRONGPASS", Meaning::Nothing),
    ("BUSY", Meaning::Nothing),
    ("OOM", Meaning::Nothing),
    ("MISCONF", Meaning::Nothing),
    ("NOREPLICAS", Meaning::Nothing),
    ("WRONGTYPE", Meaning::Misfit),
    ("CROSSSLOT", Meaning::Nothing),
    ("EXECABORT", Meaning::Nothing),
    ("NOPROTO", Meaning::Nothing),
    ("NOTBUSY", Meaning::Nothing),
    ("INPROG", Meaning::Nothing),
    ("BUSYKEY", Meaning::Nothing),
    ("TIDEGATE", Meaning::Misfit),
];

/// How an `ERR` goes on that comes before anything begins.
const BEFORE: [&str; 3] =
    ["unknown command", "wrong number of arguments", "max number of clients reached"];

/// What Lua says of a value with fewer bytes than a state has. Only what is stored is taken apart.
const TOO_SHORT: &str = "to 'unpack' (data string too short)";

impl Meaning {
    pub(crate) fn of(error: &RedisError) -> Self {
        Self::read(error.code().unwrap_or_default(), error.detail().unwrap_or_default())
    }

    /// None if it is no error.
    pub(crate) fn of_answer(answer: &Value) -> Option<Self> {
        let Value::ServerError(error) = answer else { return None };
        Some(Self::read(error.code(), error.details().unwrap_or_default()))
    }

    fn read(word: &str, text: &str) -> Self {
        if let Some((_, meaning)) = WORDS.iter().find(|(other, _)| *other == word) {
            return *meaning;
        }
        match word {
            "NOPERM" if text.contains(" run the ") && !names_eval(text) => Self::Perhaps,
            "NOPERM" => Self::Nothing,
            "ERR" if BEFORE.iter().any(|beginning| text.starts_with(beginning)) => Self::Nothing,
            "ERR" if text.contains(TOO_SHORT) => Self::Misfit,
            "ERR" => match error_inside(text) {
                Some((word, text)) => Self::read(word, text),
                None => Self::Perhaps,
            },
            _ => Self::Perhaps,
        }
    }

    /// Something may have been written, if what was asked writes.
    pub(crate) fn perhaps_done(self) -> bool {
        self == Self::Perhaps
    }

    /// The server serves nobody, whatever it is asked.
    pub(crate) fn turns_away(self) -> bool {
        matches!(self, Self::Replica | Self::Loading | Self::Shut)
    }

    /// Where a replica takes the place of a primary, it is worth asking again.
    pub(crate) fn passes(self) -> bool {
        matches!(self, Self::Replica | Self::Loading)
    }
}

fn names_eval(text: &str) -> bool {
    text.to_ascii_lowercase().contains("'eval")
}

/// The error that a script met or raised, behind `ERR` and perhaps the place where it did.
fn error_inside(text: &str) -> Option<(&str, &str)> {
    // From version 7 on, the place comes last.
    let behind = text.rsplit_once("user_script:").and_then(|(_, rest)| {
        rest.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix(':')
    });
    let found = behind.unwrap_or(text).trim_start().trim_start_matches('-');
    let (word, rest) = found.split_once(' ').unwrap_or((found, ""));
    let is_word = word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    (is_word && word != "ERR").then_some((word, rest))
}

#[cfg(test)]
mod tests {
    use redis::parse_redis_value;

    use super::*;

    fn meaning(line: &str) -> Meaning {
        let answer = parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let meaning = Meaning::of_answer(&answer);
        let error = answer.extract_error().unwrap_err();
        assert_eq!(meaning, Some(Meaning::of(&error)), "{line}");
        meaning.unwrap()
    }

    #[test]
    fn what_was_said_before_the_first_write_says_that_nothing_was_done() {
        const SHA: &str = "f_ef3a0e0e1a4a8b1d6e1c";
        let old = |error: &str| {
            format!("ERR Error running script (call to {SHA}): @user_script:86: {error}")
        };
        let new = |error: &str| format!("{error} script: {SHA}, on @user_script:86.");
        for (line, expected) in [
            ("BUSY Redis is busy running a script.".to_owned(), Meaning::Nothing),
            (
                "NOPERM this user has no permissions to run the 'evalsha' command".into(),
                Meaning::Nothing,
            ),
            (
                "NOPERM User tg has no permissions to run the 'eval' command".into(),
                Meaning::Nothing,
            ),
            ("NOPERM No permissions to access a key".into(), Meaning::Nothing),
            ("ERR unknown command 'EVALSHA', with args beginning with:".into(), Meaning::Nothing),
            ("ERR max number of clients reached".into(), Meaning::Nothing),
            (new("ERR TIDEGATE the state was written by a newer version"), Meaning::Misfit),
            (new("OOM command not allowed when used memory > 'maxmemory'."), Meaning::Nothing),
            (new("READONLY You can't write against a read only replica."), Meaning::Replica),
            (
                new("ERR user_script:9: bad argument #2 to 'unpack' (data string too short)"),
                Meaning::Misfit,
            ),
            (old("bad argument #2 to 'unpack' (data string too short)"), Meaning::Misfit),
            (old("TIDEGATE bad number for cost"), Meaning::Misfit),
            (old("@user_script: 86: -OOM command not allowed when used memory"), Meaning::Nothing),
            (old("@user_script: 86: -READONLY You can't write"), Meaning::Replica),
            (old("@user_script: 86: WRONGTYPE Operation against a key"), Meaning::Misfit),
        ] {
            assert_eq!(meaning(&line), expected, "{line}");
        }
    }

    #[test]
    fn what_may_have_come_after_a_write_and_what_nobody_knows_is_a_doubt() {
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
            assert_eq!(meaning(line), Meaning::Perhaps, "{line:?}");
        }
    }
}
