//! One client: reads what has arrived, answers all of it in order, writes once.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tidegate::{Clock, Micros};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::coop::unconstrained;

use super::commands;
use super::frame::{Caps, Parser};
use super::reply::Encoder;
use super::session::Session;
use crate::doors::Deadlines;
use crate::doors::accept::tell_of_tls;
use crate::doors::panics::{Panicked, caught};
use crate::doors::stream::{Stream, begins_tls};
use crate::drain::{Drain, notice};
use crate::metrics::{Door, Refusal};
use crate::service::Service;
use crate::tokens::{Access, Tokens};
use crate::unfinished::{NoRoom, Unfinished};

/// Bytes read at once.
const CHUNK: usize = 16 << 10;
/// The same from a client that has yet to say who it is.
const FIRST_CHUNK: usize = 1 << 10;
/// Bytes of answers that are collected before they are written, whatever else has arrived.
const MAX_REPLY: usize = 256 << 10;
/// Bytes that are still read once the server drains, from a client that does not stop sending.
const MAX_LAST: usize = 1 << 20;
/// How long they are read.
const LAST_DEADLINE: Micros = Micros::from_secs(1);
/// How long a client has to take notice of the end of its connection.
const LINGER: Duration = Duration::from_secs(1);

/// What is said when a command ended in a mistake of ours. What else there may be to say is not known.
const MISTAKE: &str =
    "NOANSWER the server has made a mistake; it may have been charged, so retry with an ID";

/// What becomes of the connection after a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    Continue,
    /// It ends, and the client gets all its answers.
    Close,
    /// It ends, and there is nothing to say.
    CutOff,
}

/// Serves one client until it goes, or until the server drains and what has arrived is answered.
pub async fn serve(
    stream: impl Into<Stream>,
    service: Arc<Service>,
    tokens: Arc<Tokens>,
    deadlines: Deadlines,
    mut drain: Drain,
) -> io::Result<()> {
    let mut stream = stream.into();
    stream.set_nodelay();
    let _open = service.metrics().connect(Door::Resp);
    let mut client = Client::new(service, tokens, deadlines);
    match client.converse(&mut stream, &mut drain).await? {
        Next::Continue | Next::Close => hang_up(&mut stream).await,
        Next::CutOff => Ok(()),
    }
}

/// Says no more, and listens until the client has gone too. Closing with bytes unread would reset
/// the connection, and answers that are still on their way would be lost with it.
async fn hang_up(stream: &mut Stream) -> io::Result<()> {
    let mut unread = BytesMut::with_capacity(FIRST_CHUNK);
    let gone = async {
        stream.shutdown().await?;
        while stream.read_buf(&mut unread).await? > 0 {
            unread.clear();
        }
        Ok(())
    };
    tokio::time::timeout(LINGER, gone).await.unwrap_or(Ok(()))
}

/// What has arrived already, or nothing.
async fn read_now(stream: &mut Stream, buffer: &mut BytesMut) -> Option<io::Result<usize>> {
    let mut read = pin!(unconstrained(stream.read_buf(buffer)));
    poll_fn(|context| match Pin::as_mut(&mut read).poll(context) {
        Poll::Ready(read) => Poll::Ready(Some(read)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

struct Client {
    session: Session,
    parser: Parser,
    encoder: Encoder,
    service: Arc<Service>,
    clock: Arc<dyn Clock>,
    deadlines: Deadlines,
    /// When the client must have said who it is, finished its request, or asked again.
    deadline: Option<Micros>,
    /// It has sent a whole command, so that it is a client, and may be silent as one.
    has_asked: bool,
    /// A request has begun and not ended.
    is_unfinished: bool,
}

impl Client {
    fn new(service: Arc<Service>, tokens: Arc<Tokens>, deadlines: Deadlines) -> Self {
        let clock = service.clock().clone();
        Self {
            deadline: Some(clock.elapsed().saturating_add(deadlines.request.into())),
            has_asked: false,
            is_unfinished: false,
            deadlines,
            session: Session::new(tokens),
            parser: Parser::new(Caps::UNAUTHENTICATED),
            encoder: Encoder::default(),
            service,
            clock,
        }
    }

    /// Answers until one of the two has had enough.
    async fn converse(&mut self, stream: &mut Stream, drain: &mut Drain) -> io::Result<Next> {
        let mut buffer = BytesMut::new();
        let mut is_first = true;
        let mut unfinished = Unfinished::new(Door::Resp);
        while !drain.has_begun() {
            buffer.reserve(self.chunk());
            let read = tokio::select! {
                biased;
                read = stream.read_buf(&mut buffer) => read?,
                () = drain.begun() => break,
                () = self.too_late() => {
                    // Often the connection of a pool that was opened early. Its client finds out when it needs it.
                    if !self.has_asked {
                        self.service.metrics().count_refused(Door::Resp, Refusal::Silent);
                    }
                    return Ok(Next::CutOff);
                }
            };
            if read == 0 {
                return Ok(Next::Close);
            }
            // No command begins like this, so that it would be waited for in vain.
            if is_first && begins_tls(&buffer) {
                tell_of_tls(Door::Resp);
                return Ok(Next::CutOff);
            }
            is_first = false;
            let next = self.answer(&mut buffer, stream).await?;
            if next != Next::Continue {
                return Ok(next);
            }
            if unfinished.has(buffer.len()).is_err() {
                self.encoder.error(NoRoom::REPLY);
                self.flush(stream).await?;
                return Ok(Next::Close);
            }
        }
        notice().await;
        self.answer_what_has_arrived(&mut buffer, stream).await
    }

    /// How much is read at once.
    fn chunk(&self) -> usize {
        if self.session.access() == Access::Nothing { FIRST_CHUNK } else { CHUNK }
    }

    /// Completes when the client has had its time.
    async fn too_late(&self) {
        match self.deadline {
            Some(deadline) => self.clock.sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    }

    async fn answer_what_has_arrived(
        &mut self,
        buffer: &mut BytesMut,
        stream: &mut Stream,
    ) -> io::Result<Next> {
        let deadline = self.clock.elapsed().saturating_add(LAST_DEADLINE);
        let mut left = MAX_LAST;
        while left > 0 && self.clock.elapsed() < deadline {
            buffer.reserve(self.chunk());
            match read_now(stream, buffer).await {
                None | Some(Ok(0)) => break,
                Some(Ok(read)) => left = left.saturating_sub(read),
                Some(Err(error)) => return Err(error),
            }
            let next = self.answer(buffer, stream).await?;
            if next != Next::Continue {
                return Ok(next);
            }
        }
        Ok(Next::Close)
    }

    /// Answers every whole command in the buffer.
    async fn answer(&mut self, buffer: &mut BytesMut, stream: &mut Stream) -> io::Result<Next> {
        let total = buffer.len();
        let mut rest = &mut buffer[..];
        let mut next = Next::Continue;
        let began = self.clock.elapsed();
        let mut answered = 0;
        while next == Next::Continue {
            self.parser.set_caps(match self.session.access() {
                Access::Nothing => Caps::UNAUTHENTICATED,
                Access::Check | Access::Admin => Caps::AUTHENTICATED,
            });
            let command = match self.parser.parse(&mut rest) {
                Ok(Some(command)) => command,
                Ok(None) => break,
                Err(error) => {
                    next = match error.reply() {
                        Some(text) => {
                            self.encoder.error(text);
                            Next::Close
                        }
                        None => Next::CutOff,
                    };
                    break;
                }
            };
            let before = self.encoder.len();
            let run = commands::run(&command, &mut self.session, &self.service, &mut self.encoder);
            next = match caught(run).await {
                Ok(next) => next,
                Err(Panicked) => {
                    self.service.metrics().count_panic(Door::Resp);
                    self.encoder.truncate(before);
                    self.encoder.error(MISTAKE);
                    Next::Close
                }
            };
            answered += 1;
            if self.encoder.len() >= MAX_REPLY {
                self.flush(stream).await?;
            }
        }
        let left = rest.len();
        buffer.advance(total - left);
        self.has_asked |= answered > 0;
        self.set_deadline(total, left, began);
        let took = self.clock.elapsed().saturating_sub(began);
        self.service.metrics().observe_each(Door::Resp, took.into(), answered);
        // Others who have asked are answered first, and then all of it is written in one go: a client
        // that is woken once has more to read than one that is woken for every answer.
        tokio::task::yield_now().await;
        self.flush(stream).await?;
        Ok(next)
    }

    /// The first request has its time from the beginning. A later one that is left unfinished has it from when its first
    /// bytes came; the next one from the end of the last.
    fn set_deadline(&mut self, total: usize, left: usize, now: Micros) {
        if self.session.access() == Access::Nothing || !self.has_asked {
            return;
        }
        let is_new = left < total || !self.is_unfinished;
        self.is_unfinished = left > 0;
        let after = |allowed: Duration| now.saturating_add(allowed.into());
        if left == 0 {
            self.deadline = self.deadlines.resp_idle.map(after);
        } else if is_new {
            self.deadline = Some(after(self.deadlines.request));
        }
    }

    async fn flush(&mut self, stream: &mut Stream) -> io::Result<()> {
        if !self.encoder.is_empty() {
            // Whoever does not read has had its time as well.
            let written = async {
                stream.write_all(self.encoder.as_bytes()).await?;
                stream.flush().await
            };
            tokio::time::timeout(self.deadlines.answer, written).await??;
            self.encoder.clear(CHUNK);
        }
        Ok(())
    }
}
