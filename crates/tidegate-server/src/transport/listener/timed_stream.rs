//! The byte stream of one HTTP connection: a timeout for request heads, and a budget of control
//! frames.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use tracing::warn;

use super::frame_budget::{FrameBudget, TooManyControlFrames};
use super::log_throttle::LogThrottle;
use super::request_activity::RequestActivity;
use super::stream::ClientStream;
use super::timeouts::Timeouts;
use crate::observe::metrics::{OpenConnection, RejectReason};

/// The byte stream of one connection. Reading fails when the head of a request takes too long, and
/// when an HTTP/2 client sends too many control frames.
///
/// A stalled write is noted in the [`RequestActivity`]: hyper does not always write again to find
/// out.
#[derive(Debug)]
pub(crate) struct TimedStream {
    stream: ClientStream,
    /// Bytes that were read to detect the protocol.
    first: Bytes,
    version: HttpVersion,
    activity: Arc<RequestActivity>,
    deadlines: Timeouts,
    /// Number of requests begun when the bytes of the next head arrived. They are part of the
    /// head until that request has begun too.
    head_after: Option<u64>,
    head_deadline: Option<Pin<Box<Sleep>>>,
    /// HTTP/2 only.
    frames: Option<FrameBudget>,
    open: Arc<OpenConnection>,
}

/// Protocol version of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HttpVersion {
    /// Each request head has its timeout.
    Http1,
    /// Frames, in a budget; hyper and the monitor of the connection detect dead clients.
    Http2,
}

impl TimedStream {
    pub(crate) fn new(
        stream: ClientStream,
        first: Bytes,
        version: HttpVersion,
        activity: Arc<RequestActivity>,
        deadlines: Timeouts,
        open: Arc<OpenConnection>,
    ) -> Self {
        // The timeout of the first head starts now, even if none of it has arrived.
        let head_after = (version == HttpVersion::Http1).then_some(0);
        let frames = (version == HttpVersion::Http2).then(|| FrameBudget::new(Instant::now()));
        let head_deadline = None;
        Self {
            stream,
            first,
            version,
            activity,
            deadlines,
            head_after,
            head_deadline,
            frames,
            open,
        }
    }

    /// Counts the frames that the client has sent. Fails if there are too many.
    fn count_frames(&mut self, bytes: &[u8]) -> io::Result<()> {
        static THROTTLE: LogThrottle = LogThrottle::new();
        let counted =
            self.frames.as_mut().map_or(Ok(()), |frames| frames.read(bytes, Instant::now));
        counted.map_err(|TooManyControlFrames| {
            self.open.count_refused(RejectReason::ControlFrames);
            if let Some(suppressed) = THROTTLE.allow() {
                let listener = self.open.listener().name();
                warn!(listener, suppressed, "connection closed: too many HTTP/2 control frames");
            }
            io::Error::other("too many HTTP/2 control frames")
        })
    }

    /// Called when bytes have arrived.
    fn note_bytes(&mut self) {
        let begun = Some(self.activity.begun());
        if self.version == HttpVersion::Http1 && self.activity.is_idle() && self.head_after != begun
        {
            (self.head_after, self.head_deadline) = (begun, None);
        }
    }

    /// Called when no bytes are available: fails if the head of a request is overdue.
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.head_after != Some(self.activity.begun()) {
            (self.head_after, self.head_deadline) = (None, None);
            return Poll::Pending;
        }
        let allowed = self.deadlines.request;
        let deadline = self.head_deadline.get_or_insert_with(|| Box::pin(sleep(allowed)));
        ready!(deadline.as_mut().poll(context));
        let detail = "request header timeout";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, detail)))
    }

    fn record_bytes(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let (Some(frames), Poll::Ready(Ok(bytes))) = (&mut self.frames, &written) {
            frames.wrote(*bytes);
        }
        self.record_write(written)
    }

    fn record_write<T>(&self, written: Poll<T>) -> Poll<T> {
        if written.is_pending() {
            self.activity.note_stall();
        }
        written
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.first.has_remaining() {
            let len = this.first.len().min(buffer.remaining());
            let first = this.first.split_to(len);
            buffer.put_slice(&first);
            return Poll::Ready(this.count_frames(&first));
        }
        if this.frames.as_mut().is_some_and(FrameBudget::ends_turn) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(context, buffer) {
            Poll::Pending => {
                if let Some(frames) = &mut this.frames {
                    frames.begin_turn();
                }
                this.poll_head(context)
            }
            Poll::Ready(read) => {
                if buffer.filled().len() > before {
                    this.note_bytes();
                }
                Poll::Ready(read.and_then(|()| this.count_frames(&buffer.filled()[before..])))
            }
        }
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.record_bytes(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, slices);
        this.record_bytes(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(context);
        // Flushed: everything was written.
        if flushed.is_ready() {
            this.activity.note_flush();
        }
        this.record_write(flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let shut = Pin::new(&mut this.stream).poll_shutdown(context);
        this.record_write(shut)
    }
}
