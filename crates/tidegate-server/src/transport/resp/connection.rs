//! Connection loop: reads, runs all complete commands in order, writes the replies once.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use std::{io, mem};

use bytes::{Buf, BytesMut};
use tidegate::{Clock, Micros};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::coop::unconstrained;

use super::commands::{self, pipeline};
use super::frame::{Caps, Command, Parser, ProtocolError};
use super::reply::ReplyEncoder;
use super::session::{AfterCommand, RespSession};
use crate::check::CheckService;
use crate::observe::metrics::{ListenerKind, RejectReason};
use crate::shutdown::{Shutdown, poll_grace};
use crate::transport::auth::{AccessLevel, AuthTokens};
use crate::transport::listener::Timeouts;
use crate::transport::listener::accept::log_unexpected_tls;
use crate::transport::listener::panics::{Panicked, catch_panics};
use crate::transport::listener::partial_requests::{
    self, PartialRequestBudget, RequestBudgetExhausted,
};
use crate::transport::listener::stream::{ClientStream, begins_tls};

/// Bytes per read of a busy connection.
const CHUNK: usize = 16 << 10;
/// Bytes per read at first, and always before authentication.
const FIRST_CHUNK: usize = 1 << 10;
/// Idle time after which larger buffers are freed.
const SHRINK_AFTER: Duration = Duration::from_secs(1);
/// Bytes of replies that are buffered before they are written, even if more commands have arrived.
const MAX_REPLY: usize = 256 << 10;
/// Commands of a transaction that run before other connections have their turn.
const TURN: u64 = 64;
/// Most bytes read after the drain has begun.
const MAX_LAST: usize = 1 << 20;
/// Time for reading them.
const LAST_DEADLINE: Micros = Micros::from_secs(1);
/// Time for a client to close its side after the server has closed its own.
const LINGER: Duration = Duration::from_secs(1);

/// Reply to a command that panicked.
const INTERNAL_ERROR: &str =
    "NOANSWER internal error; the request may have been charged: retry with an ID";

/// Serves one connection until the client closes it or times out, or until the server drains and
/// has replied to the commands that have arrived.
pub async fn serve(
    stream: impl Into<ClientStream>,
    service: Arc<CheckService>,
    tokens: Arc<AuthTokens>,
    deadlines: Timeouts,
    mut drain: Shutdown,
) -> io::Result<()> {
    let mut stream = stream.into();
    stream.set_nodelay();
    let _open = service.metrics().connect(ListenerKind::Resp);
    let mut connection = ConnectionLoop::new(service, tokens, deadlines);
    connection.session.address = stream.peer();
    match connection.run(&mut stream, &mut drain).await? {
        AfterCommand::Continue | AfterCommand::Close => close(&mut stream).await,
        AfterCommand::CutOff | AfterCommand::Execute => Ok(()),
    }
}

/// Closes the write side and discards input until the client closes too. Closing with unread bytes
/// would reset the connection, and replies in flight would be lost.
async fn close(stream: &mut ClientStream) -> io::Result<()> {
    let mut unread = BytesMut::with_capacity(FIRST_CHUNK);
    let drained = async {
        stream.shutdown().await?;
        while stream.read_buf(&mut unread).await? > 0 {
            unread.clear();
        }
        Ok(())
    };
    tokio::time::timeout(LINGER, drained).await.unwrap_or(Ok(()))
}

/// Reads bytes that have arrived already; `None` if there are none.
async fn read_now(stream: &mut ClientStream, buffer: &mut BytesMut) -> Option<io::Result<usize>> {
    let mut read = pin!(unconstrained(stream.read_buf(buffer)));
    poll_fn(|context| match Pin::as_mut(&mut read).poll(context) {
        Poll::Ready(read) => Poll::Ready(Some(read)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

struct ConnectionLoop {
    session: RespSession,
    parser: Parser,
    encoder: ReplyEncoder,
    service: Arc<CheckService>,
    clock: Arc<dyn Clock>,
    deadlines: Timeouts,
    /// Time by which the client must have authenticated, completed its command, or sent another.
    deadline: Option<Micros>,
    /// The client has sent a whole command. From then on, the idle timeout applies.
    has_sent: bool,
    /// The last whole command left the client with access.
    is_authenticated: bool,
    /// A command has begun and is not complete.
    is_partial: bool,
    /// Bytes per read: doubled by each read that fills the buffer.
    chunk: usize,
}

/// Bytes that are not part of a command that has run.
struct PendingInput {
    buffer: BytesMut,
    is_first: bool,
    budget: PartialRequestBudget,
}

impl Default for PendingInput {
    fn default() -> Self {
        let budget = PartialRequestBudget::new(ListenerKind::Resp);
        Self { buffer: BytesMut::new(), is_first: true, budget }
    }
}

/// Why nothing more is read.
enum EndOfInput {
    Drain,
    Connection(AfterCommand),
}

impl ConnectionLoop {
    fn new(service: Arc<CheckService>, tokens: Arc<AuthTokens>, deadlines: Timeouts) -> Self {
        let clock = service.clock().clone();
        Self {
            deadline: Some(clock.elapsed().saturating_add(deadlines.request.into())),
            has_sent: false,
            is_authenticated: false,
            is_partial: false,
            chunk: FIRST_CHUNK,
            deadlines,
            session: RespSession::new(tokens),
            parser: Parser::new(Caps::UNAUTHENTICATED),
            encoder: ReplyEncoder::default(),
            service,
            clock,
        }
    }

    /// Reads and replies until the connection ends.
    async fn run(
        &mut self,
        stream: &mut ClientStream,
        drain: &mut Shutdown,
    ) -> io::Result<AfterCommand> {
        let mut input = PendingInput::default();
        // Boxed: a client without a whole command does not take the memory of one that runs some.
        while !self.has_sent {
            if let Some(end) = self.read(&mut input, stream, drain).await? {
                return Box::pin(self.end(end, input, stream)).await;
            }
            let next = Box::pin(self.run_input(&mut input, stream)).await?;
            if next != AfterCommand::Continue {
                return Ok(next);
            }
        }
        Box::pin(self.run_busy(input, stream, drain)).await
    }

    /// The same for a client that has sent a whole command.
    async fn run_busy(
        &mut self,
        mut input: PendingInput,
        stream: &mut ClientStream,
        drain: &mut Shutdown,
    ) -> io::Result<AfterCommand> {
        loop {
            if let Some(end) = self.read(&mut input, stream, drain).await? {
                return self.end(end, input, stream).await;
            }
            let next = self.run_input(&mut input, stream).await?;
            if next != AfterCommand::Continue {
                return Ok(next);
            }
        }
    }

    /// Waits for bytes; `Some` if the connection ends instead.
    async fn read(
        &mut self,
        PendingInput { buffer, is_first, .. }: &mut PendingInput,
        stream: &mut ClientStream,
        drain: &mut Shutdown,
    ) -> io::Result<Option<EndOfInput>> {
        let read = loop {
            if drain.has_begun() {
                return Ok(Some(EndOfInput::Drain));
            }
            self.make_room(buffer);
            let has_large_buffers = buffer.is_empty()
                && (self.chunk > FIRST_CHUNK || self.encoder.capacity() > FIRST_CHUNK);
            tokio::select! {
                biased;
                read = stream.read_buf(buffer) => break read?,
                () = drain.begun() => return Ok(Some(EndOfInput::Drain)),
                () = self.timed_out() => {
                    // Often a connection that a pool opened early; the client reconnects.
                    if !self.has_sent {
                        self.service.metrics().count_refused(ListenerKind::Resp, RejectReason::Silent);
                    }
                    return Ok(Some(EndOfInput::Connection(AfterCommand::CutOff)));
                }
                () = async { tokio::time::sleep(SHRINK_AFTER).await }, if has_large_buffers => {
                    (*buffer, self.chunk) = (BytesMut::new(), FIRST_CHUNK);
                    self.encoder.clear(FIRST_CHUNK);
                }
            }
        };
        if read == 0 {
            return Ok(Some(EndOfInput::Connection(AfterCommand::Close)));
        }
        self.note_read(buffer);
        // No command begins like this; the parser would wait for its end.
        if mem::take(is_first) && begins_tls(buffer) {
            log_unexpected_tls(ListenerKind::Resp);
            return Ok(Some(EndOfInput::Connection(AfterCommand::CutOff)));
        }
        Ok(None)
    }

    /// Runs the whole commands that have arrived.
    async fn run_input(
        &mut self,
        input: &mut PendingInput,
        stream: &mut ClientStream,
    ) -> io::Result<AfterCommand> {
        let next = self.run_commands(&mut input.buffer, stream).await?;
        if next != AfterCommand::Continue {
            return Ok(next);
        }
        if input.budget.set_len(input.buffer.len() + self.session.queued_bytes()).is_err() {
            self.encoder.error(RequestBudgetExhausted::REPLY);
            self.flush(stream).await?;
            return Ok(AfterCommand::Close);
        }
        Ok(AfterCommand::Continue)
    }

    async fn end(
        &mut self,
        end: EndOfInput,
        mut input: PendingInput,
        stream: &mut ClientStream,
    ) -> io::Result<AfterCommand> {
        match end {
            EndOfInput::Connection(next) => Ok(next),
            EndOfInput::Drain => {
                poll_grace().await;
                self.run_remaining(&mut input.buffer, stream).await
            }
        }
    }

    /// Makes room for the next read. A client that sends a few bytes at a time, and one that sends
    /// nothing, has a small buffer.
    fn make_room(&mut self, buffer: &mut BytesMut) {
        if self.session.access() == AccessLevel::Nothing {
            self.chunk = FIRST_CHUNK;
        }
        if buffer.capacity() - buffer.len() < self.chunk / 2 {
            buffer.reserve(self.chunk);
        }
    }

    /// Called after a read.
    fn note_read(&mut self, buffer: &BytesMut) {
        if buffer.len() == buffer.capacity() {
            self.chunk = CHUNK.min(2 * self.chunk);
        }
    }

    /// Completes at the deadline.
    async fn timed_out(&self) {
        match self.deadline {
            Some(deadline) => self.clock.sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    }

    /// After the drain has begun: runs the commands that have arrived.
    async fn run_remaining(
        &mut self,
        buffer: &mut BytesMut,
        stream: &mut ClientStream,
    ) -> io::Result<AfterCommand> {
        let deadline = self.clock.elapsed().saturating_add(LAST_DEADLINE);
        let mut left = MAX_LAST;
        while left > 0 && self.clock.elapsed() < deadline {
            self.make_room(buffer);
            match read_now(stream, buffer).await {
                None | Some(Ok(0)) => break,
                Some(Ok(read)) => left = left.saturating_sub(read),
                Some(Err(error)) => return Err(error),
            }
            self.note_read(buffer);
            let next = self.run_commands(buffer, stream).await?;
            if next != AfterCommand::Continue {
                return Ok(next);
            }
        }
        Ok(AfterCommand::Close)
    }

    /// Runs every complete command in the buffer, and writes the replies.
    async fn run_commands(
        &mut self,
        buffer: &mut BytesMut,
        stream: &mut ClientStream,
    ) -> io::Result<AfterCommand> {
        let total = buffer.len();
        let mut rest = &mut buffer[..];
        let mut next = AfterCommand::Continue;
        let began = self.clock.elapsed();
        let mut count = 0;
        let mut pipeline = Vec::new();
        while next == AfterCommand::Continue {
            let parsed = self.parse(&mut rest);
            let is_pipelined = !rest.is_empty() || !pipeline.is_empty();
            let joins =
                is_pipelined && matches!(&parsed, Ok(Some(command)) if self.may_join(command));
            if !pipeline.is_empty() && (!joins || pipeline.len() == pipeline::MAX_CHECKS) {
                // Boxed: most connections never need the room.
                next = Box::pin(self.run_pipeline(&mut pipeline, stream)).await?;
                if next != AfterCommand::Continue {
                    break;
                }
            }
            let command = match parsed {
                Ok(Some(command)) => command,
                Ok(None) => break,
                Err(error) => {
                    next = match error.reply() {
                        Some(text) => {
                            self.encoder.error(text);
                            AfterCommand::Close
                        }
                        None => AfterCommand::CutOff,
                    };
                    break;
                }
            };
            // Without access, a command only authenticates.
            if self.session.access() != AccessLevel::Nothing
                && stream.permit.as_ref().is_some_and(|permit| !permit.note_request())
            {
                return Ok(AfterCommand::CutOff);
            }
            count += 1;
            if joins {
                pipeline.push(command);
                continue;
            }
            next = self.run_command(&command, stream).await?;
            if next == AfterCommand::Execute {
                next = Box::pin(self.execute(stream, &mut count)).await?;
            }
        }
        drop(pipeline);
        let left = rest.len();
        buffer.advance(total - left);
        self.has_sent |= count > 0;
        self.set_deadline(total, left, began);
        let took = self.clock.elapsed().saturating_sub(began);
        self.service.metrics().observe_each(ListenerKind::Resp, took.into(), count);
        // Other connections run first, and then all replies are written at once: fewer wakeups of
        // clients with more to read each.
        tokio::task::yield_now().await;
        self.flush(stream).await?;
        Ok(next)
    }

    fn parse<'a>(&mut self, rest: &mut &'a mut [u8]) -> Result<Option<Command<'a>>, ProtocolError> {
        self.parser.set_caps(match self.session.access() {
            AccessLevel::Nothing => Caps::UNAUTHENTICATED,
            AccessLevel::Check | AccessLevel::Admin => Caps::AUTHENTICATED,
        });
        self.parser.parse(rest)
    }

    fn may_join(&self, command: &Command<'_>) -> bool {
        pipeline::may_join(command, &self.session, &self.service)
    }

    /// Runs checks that were sent one after the other: together if they can be.
    async fn run_pipeline(
        &mut self,
        pipeline: &mut Vec<Command<'_>>,
        stream: &mut ClientStream,
    ) -> io::Result<AfterCommand> {
        let mut next = AfterCommand::Continue;
        if pipeline.len() > 1 {
            let before = self.encoder.len();
            let (session, service) = (&self.session, &self.service);
            let run = pipeline::run_together(pipeline, session, service, &mut self.encoder);
            match catch_panics(run).await {
                Ok(true) => pipeline.clear(),
                Ok(false) => {}
                Err(Panicked) => {
                    next = self.after_panic(before);
                    pipeline.clear();
                }
            }
        }
        for command in pipeline.drain(..) {
            next = self.run_command(&command, stream).await?;
            if next != AfterCommand::Continue {
                break;
            }
        }
        self.flush_many(stream).await?;
        Ok(next)
    }

    /// Replies to commands that panicked, instead of what they have encoded.
    fn after_panic(&mut self, before: usize) -> AfterCommand {
        self.service.metrics().count_panic(ListenerKind::Resp);
        self.encoder.truncate(before);
        self.encoder.error(INTERNAL_ERROR);
        AfterCommand::Close
    }

    /// Writes the replies if they are many.
    async fn flush_many(&mut self, stream: &mut ClientStream) -> io::Result<()> {
        if self.encoder.len() >= MAX_REPLY {
            self.flush(stream).await?;
        }
        Ok(())
    }

    /// Runs one command, and writes the replies if they are many.
    async fn run_command(
        &mut self,
        command: &Command<'_>,
        stream: &mut ClientStream,
    ) -> io::Result<AfterCommand> {
        let before = self.encoder.len();
        let run = commands::run(command, &mut self.session, &self.service, &mut self.encoder);
        let next = match catch_panics(run).await {
            Ok(next) => next,
            Err(Panicked) => self.after_panic(before),
        };
        self.flush_many(stream).await?;
        Ok(next)
    }

    /// Runs the commands of the transaction, and adds their number to `count`.
    async fn execute(
        &mut self,
        stream: &mut ClientStream,
        count: &mut u64,
    ) -> io::Result<AfterCommand> {
        let transaction = self.session.transaction.take().unwrap_or_default();
        let mut commands = transaction.into_commands();
        let mut next = AfterCommand::Continue;
        while next == AfterCommand::Continue
            && let Some(command) = commands.next()
        {
            next = self.run_command(&command, stream).await?;
            *count += 1;
            if count.is_multiple_of(TURN) {
                tokio::task::yield_now().await;
            }
        }
        Ok(next)
    }

    /// The deadline of the first command runs from the start of the connection. That of a later
    /// partial command runs from its first bytes, and the idle timeout from the last command. A
    /// transaction that takes part of the budget is one partial command, or it could keep it from
    /// others for ever. After `RESET`, the client has to authenticate again.
    fn set_deadline(&mut self, total: usize, left: usize, now: Micros) {
        let after = |allowed: Duration| now.saturating_add(allowed.into());
        if self.session.access() == AccessLevel::Nothing || !self.has_sent {
            if mem::take(&mut self.is_authenticated) {
                self.deadline = Some(after(self.deadlines.request));
            }
            return;
        }
        self.is_authenticated = true;
        let is_queueing = self.session.queued_bytes() > partial_requests::FREE;
        let is_new = !self.is_partial || (left < total && !is_queueing);
        self.is_partial = left > 0 || is_queueing;
        if !self.is_partial {
            self.deadline = self.deadlines.resp_idle.map(after);
        } else if is_new {
            self.deadline = Some(after(self.deadlines.request));
        }
    }

    async fn flush(&mut self, stream: &mut ClientStream) -> io::Result<()> {
        if !self.encoder.is_empty() {
            // A client that does not read its replies times out too.
            let written = async {
                stream.write_all(self.encoder.as_bytes()).await?;
                stream.flush().await
            };
            tokio::time::timeout(self.deadlines.response, written).await??;
            self.encoder.clear(CHUNK);
        }
        Ok(())
    }
}
