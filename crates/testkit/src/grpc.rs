//! A gRPC echo service and its client: what `tonic-build` would generate for
//!
//! ```proto
//! package demo;
//! service Echo { rpc Say (Text) returns (Text); }
//! ```
//!
//! except that the messages are plain text.

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

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The service. The function makes the reply.
#[derive(Clone, Copy)]
pub struct EchoService(pub fn(Request<String>) -> BoxFuture<String>);

impl Default for EchoService {
    fn default() -> Self {
        Self(|request| Box::pin(async move { request.into_inner() }))
    }
}

impl NamedService for EchoService {
    const NAME: &'static str = "demo.Echo";
}

impl Service<http::Request<Body>> for EchoService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = *self;
        Box::pin(
            async move { Ok(tonic::server::Grpc::new(TextCodec).unary(service, request).await) },
        )
    }
}

impl UnaryService<String> for EchoService {
    type Response = String;
    type Future = BoxFuture<Result<Response<String>, Status>>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let reply = (self.0)(request);
        Box::pin(async move { Ok(Response::new(reply.await)) })
    }
}

pub async fn echo_call(
    channel: &Channel,
    request: Request<String>,
) -> Result<Response<String>, Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
    client.unary(request, PathAndQuery::from_static("/demo.Echo/Say"), TextCodec).await
}

/// Codec for plain text.
#[derive(Clone, Copy)]
struct TextCodec;

impl Codec for TextCodec {
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

impl Encoder for TextCodec {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, text: String, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(text.as_bytes());
        Ok(())
    }
}

impl Decoder for TextCodec {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        let text = String::from_utf8(bytes.to_vec());
        text.map(Some).map_err(|_| Status::internal("the message is not UTF-8"))
    }
}
