//! Benchmark clients: one connection to the target, or the library on a store. Imports:
//! request_template.

pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod resp;
pub(crate) mod response;
pub(crate) mod store;
pub(crate) mod stream;

use self::response::{BenchResponse, RequestError};

/// Sends requests one after the other, or pipelined where the protocol allows it.
pub(crate) enum BenchClient {
    Http(http::HttpConnection),
    Resp(resp::RespClient),
    Grpc(grpc::GrpcClient),
    Store(store::StoreClient),
}

impl BenchClient {
    /// Checks these keys and appends the responses in the same order. An error is that of the
    /// first key without a response; the keys after it have none either, and the client is no
    /// longer usable.
    pub(crate) async fn check(
        &mut self,
        keys: &[u32],
        responses: &mut Vec<BenchResponse>,
    ) -> Result<(), RequestError> {
        match self {
            Self::Http(http) => http.check(keys, responses).await,
            Self::Resp(resp) => resp.check(keys, responses).await,
            Self::Grpc(grpc) => grpc.check(keys, responses).await,
            Self::Store(store) => {
                store.check(keys, responses).await;
                Ok(())
            }
        }
    }

    /// Whether the target has announced that it closes the connection.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Http(http) => http.is_closed(),
            Self::Resp(_) | Self::Grpc(_) | Self::Store(_) => false,
        }
    }

    /// A note for the report about the responses so far.
    pub(crate) fn note(&self) -> Option<&'static str> {
        match self {
            Self::Grpc(grpc) => grpc.note(),
            Self::Http(_) | Self::Resp(_) | Self::Store(_) => None,
        }
    }
}
