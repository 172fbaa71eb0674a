//! One client: reads what has arrived, answers all of it in order, writes once.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tidegate::{Clock, Micros};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::commands;
use super::frame::{Caps, Parser};
use super::reply::Encoder;
use super::session::Session;
use crate::drain::Drain;
use crate::metrics::Door;
use crate::service::Service;
use crate::tokens::{Access, Tokens};
use crate::unfinished::{NoRoom, Unfinished};

/// How long a client may take to read its answers.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// Bytes read at once.
const CHUNK: usize = 16 << 10;
/// Bytes of answers that are collected before they are written, whatever else has arrived.
const MAX_REPLY: usize = 256 << 10;
/// Bytes that are still read once the server drains, from a client that does not stop sending.
const MAX_LAST: usize = 1 << 20;
/// How long they are read.
const LAST_DEADLINE: Micros = Micros::from_secs(1);
/// How long a client may take to say who it is, or to finish a request that it has begun. Between
/// two requests it may be silent for as long as it likes.
const REQUEST_DEADLINE: Micros = Micros::from_secs(10);
/// How long a client has to take notice of the end of its connection.
const LINGER: Duration = Duration::from_secs(1);

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
    mut stream: TcpStream,
    service: Arc<Service>,
    tokens: Arc<Tokens>,
    mut drain: Drain,
) -> io::Result<()> {
    // It matters for speed alone.
    let _ = stream.set_nodelay(true);
    let _open = service.metrics().connect(Door::Resp);
    let mut client = Client::new(service, tokens);
    match client.converse(&mut stream, &mut drain).await? {
        Next::Continue | Next::Close => hang_up(&mut stream).await,
        Next::CutOff => Ok(()),
    }
}

/// Says no more, and listens until the client has gone too. Closing with bytes unread would reset
/// the connection, and answers that are still on their way would be lost with it.
async fn hang_up(stream: &mut TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut unread = BytesMut::with_capacity(CHUNK);
    let gone = async {
        while stream.read_buf(&mut unread).await? > 0 {
            unread.clear();
        }
        Ok(())
    };
    tokio::time::timeout(LINGER, gone).await.unwrap_or(Ok(()))
}

struct Client {
    session: Session,
    parser: Parser,
    encoder: Encoder,
    service: Arc<Service>,
    clock: Arc<dyn Clock>,
    /// When the client must have said who it is, or finished its request.
    deadline: Option<Micros>,
}

impl Client {
    fn new(service: Arc<Service>, tokens: Arc<Tokens>) -> Self {
        let clock = service.clock().clone();
        let session = Session::new(tokens);
        let is_unknown = session.access() == Access::Nothing;
        Self {
            deadline: is_unknown.then(|| clock.elapsed().saturating_add(REQUEST_DEADLINE)),
            session,
            parser: Parser::new(Caps::UNAUTHENTICATED),
            encoder: Encoder::default(),
            service,
            clock,
        }
    }

    /// Answers until one of the two has had enough.
    async fn converse(&mut self, stream: &mut TcpStream, drain: &mut Drain) -> io::Result<Next> {
        let mut buffer = BytesMut::with_capacity(CHUNK);
        let mut unfinished = Unfinished::default();
        while !drain.has_begun() {
            buffer.reserve(CHUNK);
            let read = tokio::select! {
                biased;
                read = stream.read_buf(&mut buffer) => read?,
                () = drain.begun() => break,
                () = self.too_late() => return Ok(Next::CutOff),
            };
            if read == 0 {
                return Ok(Next::Close);
            }
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
        self.answer_what_has_arrived(&mut buffer, stream).await
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
        stream: &mut TcpStream,
    ) -> io::Result<Next> {
        let deadline = self.clock.elapsed().saturating_add(LAST_DEADLINE);
        let mut left = MAX_LAST;
        while left > 0 && self.clock.elapsed() < deadline {
            buffer.reserve(CHUNK);
            match stream.try_read_buf(buffer) {
                Ok(0) => break,
                Ok(read) => left = left.saturating_sub(read),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            let next = self.answer(buffer, stream).await?;
            if next != Next::Continue {
                return Ok(next);
            }
        }
        Ok(Next::Close)
    }

    /// Answers every whole command in the buffer.
    async fn answer(&mut self, buffer: &mut BytesMut, stream: &mut TcpStream) -> io::Result<Next> {
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
            next =
                commands::run(&command, &mut self.session, &self.service, &mut self.encoder).await;
            answered += 1;
            if self.encoder.len() >= MAX_REPLY {
                self.flush(stream).await?;
            }
        }
        let left = rest.len();
        buffer.advance(total - left);
        self.set_deadline(total, left, began);
        let took = self.clock.elapsed().saturating_sub(began);
        self.service.metrics().observe_each(Door::Resp, took.into(), answered);
        // Others who have asked are answered first, and then all of it is written in one go: a client
        // that is woken once has more to read than one that is woken for every answer.
        tokio::task::yield_now().await;
        self.flush(stream).await?;
        Ok(next)
    }

    /// A request that is left unfinished has its time from when its first bytes came.
    fn set_deadline(&mut self, total: usize, left: usize, now: Micros) {
        if self.session.access() == Access::Nothing {
            return;
        }
        let is_new = left < total || self.deadline.is_none();
        if left == 0 {
            self.deadline = None;
        } else if is_new {
            self.deadline = Some(now.saturating_add(REQUEST_DEADLINE));
        }
    }

    async fn flush(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        if !self.encoder.is_empty() {
            // Whoever does not read has had its time as well.
            let written = stream.write_all(self.encoder.as_bytes());
            tokio::time::timeout(WRITE_DEADLINE, written).await??;
            self.encoder.clear(CHUNK);
        }
        Ok(())
    }
}
