//! The bytes of one connection, and how long a client may take to send and to take them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::activity::Activity;
use crate::doors::Deadlines;
use crate::doors::stream::Stream;

/// The bytes of one connection. Reading fails once the client has had its time for the head of a request. Whether it takes
/// what is written is noted for whoever watches: what speaks HTTP here does not always write again to find out.
#[derive(Debug)]
pub(super) struct Patient {
    stream: Stream,
    /// What was read already, to see what is spoken.
    first: Bytes,
    spoken: Spoken,
    activity: Arc<Activity>,
    deadlines: Deadlines,
    /// How many requests had begun when bytes of the next one came. They are its head until it has begun too.
    head_after: Option<u64>,
    head_deadline: Option<Pin<Box<Sleep>>>,
}

/// What the bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spoken {
    /// One request after the other: each head has its time.
    Http1,
    /// Frames, which the protocol itself looks after.
    Http2,
}

impl Patient {
    pub(super) fn new(
        stream: Stream,
        first: Bytes,
        spoken: Spoken,
        activity: Arc<Activity>,
        deadlines: Deadlines,
    ) -> Self {
        // The first head has its time from now on, even if nothing of it is here.
        let head_after = (spoken == Spoken::Http1).then_some(0);
        Self { stream, first, spoken, activity, deadlines, head_after, head_deadline: None }
    }

    /// Bytes have come.
    fn note_bytes(&mut self) {
        let begun = Some(self.activity.begun());
        if self.spoken == Spoken::Http1 && self.activity.is_idle() && self.head_after != begun {
            (self.head_after, self.head_deadline) = (begun, None);
        }
    }

    /// No more bytes have come. Is it too late for the rest of a head?
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.head_after != Some(self.activity.begun()) {
            (self.head_after, self.head_deadline) = (None, None);
            return Poll::Pending;
        }
        let allowed = self.deadlines.request;
        let deadline = self.head_deadline.get_or_insert_with(|| Box::pin(sleep(allowed)));
        ready!(deadline.as_mut().poll(context));
        let told = "the head of a request was too long in coming";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, told)))
    }

    fn noted<T>(&self, written: Poll<T>) -> Poll<T> {
        if written.is_pending() {
            self.activity.note_stall();
        }
        written
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.first.has_remaining() {
            let len = this.first.len().min(buffer.remaining());
            buffer.put_slice(&this.first.split_to(len));
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(context, buffer) {
            Poll::Pending => this.poll_head(context),
            Poll::Ready(read) => {
                if buffer.filled().len() > before {
                    this.note_bytes();
                }
                Poll::Ready(read)
            }
        }
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.noted(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, slices);
        this.noted(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(context);
        // It is flushed when all of it was written.
        if flushed.is_ready() {
            this.activity.note_flush();
        }
        this.noted(flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let shut = Pin::new(&mut this.stream).poll_shutdown(context);
        this.noted(shut)
    }
}
