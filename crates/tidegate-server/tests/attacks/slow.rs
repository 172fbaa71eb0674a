//! A thousand sockets that never finish what they have begun.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::TcpSocket;
use tokio::runtime::Runtime;

use crate::life::print_figure;
use crate::resp::command;
use crate::support::{Server, pause};
use crate::witness::{Alone, Customer, survive, victim};

const SOCKETS: usize = 1_000;
/// How long it is from the byte of one to the byte of the next: each sends one a second.
const BETWEEN: Duration = Duration::from_millis(1);

/// What a slow client sends, a byte at a time, and then nothing more.
const HEAD: &[u8] = b"POST /v1/check HTTP/1.1\r\nhost: slow\r\ncontent-length: 60000\r\nx-slow: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const FRAME: &[u8] = b"*3\r\n$8\r\nTG.CHECK\r\n$4\r\nopen\r\n$1024\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const HELLO: &[u8] =
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r";

/// One of them. It comes back when it is thrown out.
struct Slow {
    door: SocketAddr,
    way: Way,
    stream: TcpStream,
    sent: usize,
}

#[derive(Clone)]
enum Way {
    /// Sends a byte now and then.
    Drips(&'static [u8]),
    /// Asks as much as the door takes, and reads no answer. It is full before anybody measures.
    NeverReads(Vec<u8>),
}

impl Slow {
    fn new(door: SocketAddr, way: Way, runtime: &Runtime) -> Self {
        let stream = match &way {
            Way::Drips(_) => TcpStream::connect(door),
            Way::NeverReads(_) => runtime.block_on(connect_with_little_room(door)),
        };
        let stream = stream.expect("the door is open");
        stream.set_nonblocking(true).unwrap();
        Self { door, way, stream, sent: 0 }
    }

    /// Does a little more. Was it still let in?
    fn go_on(&mut self) -> bool {
        let alive = match &self.way {
            Way::Drips(bytes) => {
                let next = bytes.get(self.sent..).and_then(|rest| rest.first());
                self.sent += 1;
                is_open(next.map(|byte| self.stream.write(&[*byte])))
                    && is_open(Some(self.stream.read(&mut [0; 64])))
            }
            Way::NeverReads(bytes) => {
                let _ = self.stream.write(bytes);
                true
            }
        };
        if !alive && let Ok(stream) = TcpStream::connect(self.door) {
            let _ = stream.set_nonblocking(true);
            (self.stream, self.sent) = (stream, 0);
        }
        alive
    }
}

/// The system keeps little for it in either direction, so that little fills it.
async fn connect_with_little_room(door: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4 << 10)?;
    socket.set_send_buffer_size(4 << 10)?;
    socket.connect(door).await?.into_std()
}

/// What was read or written, if anything was to be, does not say that the connection has ended.
fn is_open(result: Option<io::Result<usize>>) -> bool {
    match result {
        None => true,
        Some(Ok(count)) => count > 0,
        Some(Err(error)) => error.kind() == ErrorKind::WouldBlock,
    }
}

/// A thousand, of every kind and on every door.
fn crowd(server: &Server) -> Vec<Slow> {
    let asks = command(&["ECHO", &"x".repeat(1_000)]).repeat(16);
    let gets = b"GET /openapi.json HTTP/1.1\r\nhost: slow\r\n\r\n".repeat(16);
    let kinds = [
        (server.http, Way::Drips(HEAD)),
        (server.resp, Way::Drips(FRAME)),
        (server.http, Way::Drips(HELLO)),
        (server.resp, Way::Drips(HELLO)),
        (server.grpc, Way::Drips(HELLO)),
        (server.grpc, Way::Drips(PREFACE)),
        (server.http, Way::Drips(PREFACE)),
        (server.grpc, Way::Drips(HEAD)),
        (server.resp, Way::NeverReads(asks)),
        (server.http, Way::NeverReads(gets)),
    ];
    let runtime = Runtime::new().unwrap();
    let kind = |nth: usize| kinds[nth % kinds.len()].clone();
    let new = |(door, way)| Slow::new(door, way, &runtime);
    let mut crowd: Vec<Slow> = (0..SOCKETS).map(kind).map(new).collect();
    // A second is enough for those who never read to fill all there is.
    for _ in 0..200 {
        for slow in crowd.iter_mut().filter(|slow| matches!(slow.way, Way::NeverReads(_))) {
            slow.go_on();
        }
        pause(5 * BETWEEN);
    }
    crowd
}

/// Lets them go on until it is over, and counts how often one was thrown out.
fn drip(crowd: &mut [Slow], over: &AtomicBool) -> usize {
    let mut thrown_out = 0;
    while !over.load(Ordering::Relaxed) {
        for slow in &mut *crowd {
            thrown_out += usize::from(!slow.go_on());
            pause(BETWEEN);
        }
    }
    thrown_out
}

#[test]
fn a_thousand_slow_sockets_do_not_double_how_long_others_wait() {
    let _alone = Alone::wait();
    let mut server = victim();
    // Whoever else uses the machine may spoil one measurement; what an attack does, it does each time.
    let doubled = (0..3).all(|_| is_doubled(&mut server));
    assert!(!doubled, "three times out of three");
}

/// Measures before and during, and tells whether others wait for more than twice as long.
fn is_doubled(server: &mut Server) -> bool {
    let mut customer = Customer::of(server);
    customer.measure();
    let before = customer.measure();
    let (during, thrown_out) = survive("1,000 slow sockets", server, |server| {
        let mut crowd = crowd(server);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let crowd = scope.spawn(|| drip(&mut crowd, &over));
            // Until each of them has begun.
            pause(Duration::from_millis(1_500));
            // On connections of their own: the others have been idle for as long as the crowd took to come.
            let during = Customer::of(server).measure();
            over.store(true, Ordering::Relaxed);
            (during, crowd.join().unwrap())
        })
    });
    print_figure(format_args!(
        "attack: 1,000 slow sockets: p99 in us, before -> during: http {} -> {}, resp {} -> {}, \
         a bare echo {} -> {}; thrown out {thrown_out} times",
        before.http, during.http, before.resp, during.resp, before.echo, during.echo
    ));
    // What the machine takes for a bare echo, it takes from everybody.
    let is_more = |before: u64, now: u64| now > 2 * before.max(during.echo);
    is_more(before.http, during.http) || is_more(before.resp, during.resp)
}
