//! A target that is late, or worse, when the test says so. It speaks as much HTTP as `tidegate bench` does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::pause;

/// What becomes of a question.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Becomes {
    /// It is answered with this status.
    Answered(u16),
    /// It is allowed, so much later.
    Late(Duration),
    /// It is never answered.
    Forgotten,
    /// The connection is closed instead.
    HungUp,
}

/// It is there until the test program ends.
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    asked: Arc<AtomicU64>,
}

impl Target {
    /// Asks `becomes` about every question, by its number from 0.
    pub(crate) fn start(becomes: impl Fn(u64) -> Becomes + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, asked) = (listener.local_addr().unwrap(), Arc::new(AtomicU64::new(0)));
        let (count, becomes) = (asked.clone(), Arc::new(becomes));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (count, becomes) = (count.clone(), becomes.clone());
                std::thread::spawn(move || serve(stream, &count, &*becomes));
            }
        });
        Self { address, asked }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many questions have come.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

/// Answers until the client has gone.
fn serve(mut stream: TcpStream, count: &AtomicU64, becomes: &dyn Fn(u64) -> Becomes) {
    stream.set_nodelay(true).unwrap();
    while read_question(&mut stream).is_some() {
        let status = match becomes(count.fetch_add(1, Ordering::SeqCst)) {
            Becomes::Answered(status) => status,
            Becomes::Late(span) => {
                pause(span);
                200
            }
            Becomes::Forgotten => continue,
            Becomes::HungUp => return,
        };
        let body = r#"{"detail":"as the test wants it"}"#;
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} Status\r\ncontent-length: {length}\r\n\r\n{body}");
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Reads one question to its end, which is that of its JSON.
fn read_question(stream: &mut TcpStream) -> Option<()> {
    let mut question = Vec::new();
    while !question.ends_with(b"}") {
        let mut some = [0; 1_024];
        let len = stream.read(&mut some).ok().filter(|len| *len > 0)?;
        question.extend_from_slice(&some[..len]);
    }
    Some(())
}
