//! A target for `tidegate bench` that replies late or not at all. It serves the HTTP that `bench`
//! sends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::server::pause;

/// What happens to a request.
#[derive(Clone, Copy, Debug)]
pub enum TargetReply {
    Status(u16),
    /// 200 after this time.
    Late(Duration),
    Never,
    /// Closes the connection.
    Close,
}

/// Runs until the test program ends.
pub struct SlowTarget {
    pub address: SocketAddr,
    requests: Arc<AtomicU64>,
}

impl SlowTarget {
    /// Calls `reply` for every request, with its number from 0.
    pub fn start(reply: impl Fn(u64) -> TargetReply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, requests) = (listener.local_addr().unwrap(), Arc::new(AtomicU64::new(0)));
        let (count, reply) = (requests.clone(), Arc::new(reply));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (count, reply) = (count.clone(), reply.clone());
                std::thread::spawn(move || serve(stream, &count, &*reply));
            }
        });
        Self { address, requests }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Number of requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Replies until the client closes the connection.
fn serve(mut stream: TcpStream, count: &AtomicU64, reply: &dyn Fn(u64) -> TargetReply) {
    stream.set_nodelay(true).unwrap();
    while read_request(&mut stream).is_some() {
        let status = match reply(count.fetch_add(1, Ordering::SeqCst)) {
            TargetReply::Status(status) => status,
            TargetReply::Late(span) => {
                pause(span);
                200
            }
            TargetReply::Never => continue,
            TargetReply::Close => return,
        };
        let body = r#"{"detail":"as the test wants it"}"#;
        let length = body.len();
        let response =
            format!("HTTP/1.1 {status} Status\r\ncontent-length: {length}\r\n\r\n{body}");
        if stream.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}

/// Reads one request up to the end of its JSON.
fn read_request(stream: &mut TcpStream) -> Option<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"}") {
        let mut some = [0; 1_024];
        let len = stream.read(&mut some).ok().filter(|len| *len > 0)?;
        request.extend_from_slice(&some[..len]);
    }
    Some(())
}
