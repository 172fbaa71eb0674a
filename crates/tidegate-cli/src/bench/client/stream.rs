//! Buffered byte stream to the target.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::response::RequestError;
use crate::endpoint::ByteStream;

/// A stream with its received and unconsumed bytes.
pub(crate) struct BufferedStream {
    stream: Box<dyn ByteStream>,
    received: BytesMut,
}

impl BufferedStream {
    /// Bound for unconsumed bytes: all responses of a pipeline.
    const MAX_BYTES: usize = 4 << 20;
    const READ_SIZE: usize = 4 << 10;

    pub(crate) fn new(stream: Box<dyn ByteStream>) -> Self {
        Self { stream, received: BytesMut::with_capacity(Self::READ_SIZE) }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), RequestError> {
        let sent = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        sent.await.map_err(RequestError::closed)
    }

    /// Received bytes that are not consumed yet.
    pub(crate) fn received(&self) -> &[u8] {
        &self.received
    }

    /// Waits for more bytes.
    pub(crate) async fn receive(&mut self) -> Result<(), RequestError> {
        if self.received.len() > Self::MAX_BYTES {
            return Err(RequestError::garbled("response too large"));
        }
        self.received.reserve(Self::READ_SIZE);
        match self.stream.read_buf(&mut self.received).await {
            Ok(0) => Err(RequestError::closed(io::Error::from(io::ErrorKind::UnexpectedEof))),
            Ok(_) => Ok(()),
            Err(error) => Err(RequestError::closed(error)),
        }
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        self.received.advance(bytes);
    }
}
