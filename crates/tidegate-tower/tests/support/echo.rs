//! A gRPC service that says what it is told, and its client: what `tonic-build` would write for
//!
//! ```proto
//! package demo;
//! service Echo { rpc Say (Text) returns (Text); }
//! ```
//!
//! but for the messages, which are plain text.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut};
use http::uri::PathAndQuery;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tower::Service;

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The service. What it says is made by this function.
#[derive(Clone, Copy)]
pub(crate) struct Echo(pub(crate) fn(Request<String>) -> Later<String>);

impl Default for Echo {
    fn default() -> Self {
        Self(|request| Box::pin(async move { request.into_inner() }))
    }
}

impl NamedService for Echo {
    const NAME: &'static str = "demo.Echo";
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Later<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let say = *self;
        Box::pin(async move { Ok(tonic::server::Grpc::new(Text).unary(say, request).await) })
    }
}

impl UnaryService<String> for Echo {
    type Response = String;
    type Future = Later<Result<Response<String>, Status>>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let saying = (self.0)(request);
        Box::pin(async move { Ok(Response::new(saying.await)) })
    }
}

/// Calls it.
pub(crate) async fn say(
    channel: &Channel,
    request: Request<String>,
) -> Result<Response<String>, Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
    client.unary(request, PathAndQuery::from_static("/demo.Echo/Say"), Text).await
}

/// Messages of plain text.
#[derive(Clone, Copy)]
struct Text;

impl Codec for Text {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Text {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, text: String, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(text.as_bytes());
        Ok(())
    }
}

impl Decoder for Text {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        let text = String::from_utf8(bytes.to_vec());
        text.map(Some).map_err(|_| Status::internal("the message is no text"))
    }
}
