//! Queue of the commands between `MULTI` and `EXEC`. Imports: frame, reply.

use super::frame::{Caps, Command, Parser};
use super::reply::ReplyEncoder;

/// Commands that wait for `EXEC`.
#[derive(Default, Debug)]
pub(crate) struct Transaction {
    /// Arrays of bulk strings, as clients send them.
    queued: ReplyEncoder,
    len: usize,
    is_aborted: bool,
}

/// The transaction has no room for another command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TransactionFull;

impl Transaction {
    const MAX_COMMANDS: usize = 1_024;
    /// The longest single command fits.
    const MAX_BYTES: usize = Caps::AUTHENTICATED.frame;

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.queued.len()
    }

    /// A command was refused: none of them runs.
    pub(crate) fn is_aborted(&self) -> bool {
        self.is_aborted
    }

    /// Refuses the transaction, and frees its memory.
    pub(crate) fn abort(&mut self) {
        *self = Self { is_aborted: true, ..Self::default() };
    }

    /// Appends a command, unless the transaction is aborted.
    pub(crate) fn push(&mut self, command: &Command<'_>) -> Result<(), TransactionFull> {
        if self.is_aborted {
            return Ok(());
        }
        self.queued.array(1 + command.arguments.len()).bulk(command.name);
        for argument in &command.arguments {
            self.queued.bulk(argument);
        }
        self.len += 1;
        let fits = self.len <= Self::MAX_COMMANDS && self.bytes() <= Self::MAX_BYTES;
        fits.then_some(()).ok_or(TransactionFull)
    }

    /// The commands, in order.
    pub(crate) fn into_commands(self) -> QueuedCommands {
        QueuedCommands { bytes: self.queued.into_bytes(), at: 0 }
    }
}

/// The commands of a transaction that did not run yet.
pub(crate) struct QueuedCommands {
    bytes: Vec<u8>,
    at: usize,
}

impl QueuedCommands {
    /// Takes the next command.
    pub(crate) fn next(&mut self) -> Option<Command<'_>> {
        let mut rest = &mut self.bytes[self.at..];
        let before = rest.len();
        let command = Parser::new(Caps::AUTHENTICATED).parse(&mut rest).ok().flatten()?;
        self.at += before - rest.len();
        Some(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command<'a>(words: &[&'a [u8]]) -> Command<'a> {
        Command { name: words[0], arguments: words[1..].iter().copied().collect() }
    }

    #[test]
    fn commands_come_back_as_they_were_queued() {
        let longest = vec![b'x'; Caps::AUTHENTICATED.bulk];
        let many = [&b"DEL"[..]; 64];
        let all = [
            command(&[b"TG.CHECK", b"login", b"a\r\nb $5\r\n"]),
            command(&[b"ECHO", b""]),
            command(&[b"ECHO", &longest]),
            command(&many),
        ];
        let mut transaction = Transaction::default();
        for command in &all {
            assert_eq!(transaction.push(command), Ok(()));
        }
        assert_eq!(transaction.len(), all.len());
        let mut queued = transaction.into_commands();
        let words =
            |command: &Command<'_>| [&[command.name], &command.arguments[..]].concat().concat();
        for command in &all {
            assert_eq!(queued.next().map(|next| words(&next)), Some(words(command)));
        }
        assert!(queued.next().is_none());
    }

    #[test]
    fn a_transaction_has_at_most_1024_commands_and_128_kib() {
        for (command, most) in [
            (command(&[b"PING"]), 1_024),
            // 14 bytes for the length and the name, 10 and 1,024 for the argument.
            (command(&[b"ECHO", &[0; 1_024]]), (128 << 10) / 1_048),
        ] {
            let mut transaction = Transaction::default();
            for nth in 0..most {
                assert_eq!(transaction.push(&command), Ok(()), "{nth}");
            }
            assert_eq!(transaction.push(&command), Err(TransactionFull), "{most}");
            transaction.abort();
            assert_eq!((transaction.len(), transaction.bytes()), (0, 0));
            assert_eq!(transaction.push(&command), Ok(()), "nothing is stored any more");
            assert_eq!((transaction.len(), transaction.bytes()), (0, 0));
            assert!(transaction.is_aborted());
        }
    }
}
