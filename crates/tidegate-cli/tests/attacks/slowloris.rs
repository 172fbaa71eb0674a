//! Thousands of sockets with requests that never complete.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::{Clock, SystemClock};
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;

use crate::http2_frames::{SETTINGS, frame};
use crate::monitor::{
    Alone, MAX_GROWTH, MeasuringClient, Mebibytes, Memory, Waits, allow_files, assert_serves,
    connect, survive, victim,
};
use testkit::process::print_figure;
use testkit::resp::command;
use testkit::server::{ServerProcess, pause, wait_until};
use testkit::timing::compare_with_goal;

const SOCKETS: usize = 1_000;
/// Pause between two sockets: each sends one byte per second.
const BETWEEN: Duration = Duration::from_millis(1);

/// Sent byte by byte; nothing follows.
const HEAD: &[u8] = b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 60000\r\nx-slow: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const FRAME: &[u8] = b"*3\r\n$8\r\nTG.CHECK\r\n$4\r\nopen\r\n$1024\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const HELLO: &[u8] =
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r";

/// One slow client. It reconnects when it is disconnected.
struct SlowClient {
    listener: SocketAddr,
    attack: SlowAttack,
    stream: TcpStream,
    sent: usize,
}

#[derive(Clone)]
enum SlowAttack {
    /// Sends one byte at a time.
    Drip(&'static [u8]),
    /// Sends as much as the listener reads, and never reads. Its buffers are full before measuring.
    NeverRead(Vec<u8>),
}

impl SlowClient {
    fn new(listener: SocketAddr, attack: SlowAttack, runtime: &Runtime) -> Self {
        let stream = match &attack {
            SlowAttack::Drip(_) => TcpStream::connect(listener),
            SlowAttack::NeverRead(_) => runtime.block_on(connect_with_small_buffers(listener)),
        };
        let stream = stream.expect("the listener accepts");
        stream.set_nonblocking(true).unwrap();
        Self { listener, attack, stream, sent: 0 }
    }

    /// Sends a little more. False if the connection was closed.
    fn step(&mut self) -> bool {
        let alive = match &self.attack {
            SlowAttack::Drip(bytes) => {
                let next = bytes.get(self.sent..).and_then(|rest| rest.first());
                self.sent += 1;
                is_open(next.map(|byte| self.stream.write(&[*byte])))
                    && is_open(Some(self.stream.read(&mut [0; 64])))
            }
            SlowAttack::NeverRead(bytes) => {
                let _ = self.stream.write(bytes);
                true
            }
        };
        if !alive && let Ok(stream) = TcpStream::connect(self.listener) {
            let _ = stream.set_nonblocking(true);
            (self.stream, self.sent) = (stream, 0);
        }
        alive
    }
}

/// A connection with small socket buffers, which fill quickly.
async fn connect_with_small_buffers(listener: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4 << 10)?;
    socket.set_send_buffer_size(4 << 10)?;
    socket.connect(listener).await?.into_std()
}

/// Whether the result of a read or write shows an open connection.
fn is_open(result: Option<io::Result<usize>>) -> bool {
    match result {
        None => true,
        Some(Ok(count)) => count > 0,
        Some(Err(error)) => error.kind() == ErrorKind::WouldBlock,
    }
}

/// A thousand clients of every kind on every listener.
fn crowd(server: &ServerProcess) -> Vec<SlowClient> {
    let echoes = command(&["ECHO", &"x".repeat(1_000)]).repeat(16);
    let gets = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(16);
    let kinds = [
        (server.http, SlowAttack::Drip(HEAD)),
        (server.resp, SlowAttack::Drip(FRAME)),
        (server.http, SlowAttack::Drip(HELLO)),
        (server.resp, SlowAttack::Drip(HELLO)),
        (server.grpc, SlowAttack::Drip(HELLO)),
        (server.grpc, SlowAttack::Drip(PREFACE)),
        (server.http, SlowAttack::Drip(PREFACE)),
        (server.grpc, SlowAttack::Drip(HEAD)),
        (server.resp, SlowAttack::NeverRead(echoes)),
        (server.http, SlowAttack::NeverRead(gets)),
    ];
    let runtime = Runtime::new().unwrap();
    let kind = |nth: usize| kinds[nth % kinds.len()].clone();
    let new = |(listener, attack)| SlowClient::new(listener, attack, &runtime);
    let mut crowd: Vec<SlowClient> = (0..SOCKETS).map(kind).map(new).collect();
    // One second fills the buffers of the clients that never read.
    for _ in 0..200 {
        for slow in crowd.iter_mut().filter(|slow| matches!(slow.attack, SlowAttack::NeverRead(_)))
        {
            slow.step();
        }
        pause(5 * BETWEEN);
    }
    crowd
}

/// Runs the clients until `over`, and counts disconnections.
fn drip(crowd: &mut [SlowClient], over: &AtomicBool) -> usize {
    let mut disconnected = 0;
    while !over.load(Ordering::Relaxed) {
        for slow in &mut *crowd {
            disconnected += usize::from(!slow.step());
            pause(BETWEEN);
        }
    }
    disconnected
}

#[test]
fn other_clients_are_served_beside_a_thousand_slow_sockets() {
    let _alone = Alone::wait();
    let server = &mut victim();
    let mut client = MeasuringClient::of(server);
    client.measure();
    let before = client.measure();
    let (during, disconnected) = survive("1,000 slow sockets", server, |server| {
        let mut crowd = crowd(server);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let crowd = scope.spawn(|| drip(&mut crowd, &over));
            // Until every client has started.
            pause(Duration::from_millis(1_500));
            // New connections: the others were idle while the clients connected.
            let during = MeasuringClient::of(server).measure();
            over.store(true, Ordering::Relaxed);
            (during, crowd.join().unwrap())
        })
    });
    print_figure(format_args!(
        "attack: 1,000 slow sockets: p99 in us, before -> during: http {} -> {}, resp {} -> {}, \
         a bare echo {} -> {}; disconnected {disconnected} times",
        before.http, during.http, before.resp, during.resp, before.echo, during.echo
    ));
    compare_p99(&before, &during);
}

/// Sockets on one listener: more than it may have.
const MANY: usize = 9_000;
/// Most that the process may keep after the sockets are closed, in KiB.
const MAX_KEPT: u64 = 32 << 10;
/// Goal for the time until a slow socket is closed: the timeout is 10 s.
const CLOSED_AFTER: Duration = Duration::from_secs(11);
/// Time between two looks at the sockets. They send a byte at every tenth.
const LOOK: Duration = Duration::from_millis(100);

/// Sends bytes one per second on every socket until the server has closed all of them. Returns the
/// ages at which they were closed.
fn drip_until_closed(listener: SocketAddr, sockets: usize, bytes: &[u8]) -> Vec<Duration> {
    let now = || Duration::from(SystemClock.elapsed());
    let open = |_| {
        let opened = now();
        let stream = TcpStream::connect(listener).expect("the backlog has room");
        stream.set_nonblocking(true).unwrap();
        (stream, opened)
    };
    let mut open: Vec<(TcpStream, Duration)> = (0..sockets).map(open).collect();
    let mut ages = Vec::new();
    for look in 0..400 {
        let byte = bytes.get(look / 10).filter(|_| look % 10 == 0);
        open.retain_mut(|(stream, opened)| {
            let alive = is_open(Some(stream.read(&mut [0; 64])))
                && is_open(byte.map(|byte| stream.write(&[*byte])));
            ages.extend((!alive).then(|| now().saturating_sub(*opened)));
            alive
        });
        if open.is_empty() {
            break;
        }
        pause(LOOK);
    }
    assert_eq!(open.len(), 0, "every slow socket is closed");
    ages
}

/// New clients that send `request` and expect `reply`, until `over`: their number, and how many did
/// not get it.
fn new_clients(
    listener: SocketAddr,
    request: &[u8],
    reply: &[u8],
    over: &AtomicBool,
) -> (usize, usize) {
    let (mut clients, mut refused) = (0, 0);
    while !over.load(Ordering::Relaxed) {
        let mut stream = connect(listener);
        let mut received = vec![0; reply.len()];
        let read = stream.write_all(request).and_then(|()| stream.read_exact(&mut received));
        clients += 1;
        refused += usize::from(read.is_err() || received != reply);
        pause(LOOK);
    }
    (clients, refused)
}

#[test]
fn nine_thousand_slow_sockets_are_closed_take_little_memory_and_keep_no_client_out() {
    let _alone = Alone::wait();
    // A socket needs a file here, and another one in the server.
    let sockets = if allow_files(MANY + 1_000) { MANY } else { 3_000 };
    let ping = command(&["PING"]);
    let settings = [PREFACE, b"\n", &frame(SETTINGS, 0, 0, &[])].concat();
    let probe: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for name in ["resp", "http", "grpc"] {
        let mut server = victim();
        let (listener, bytes, request, reply): (_, _, &[u8], &[u8]) = match name {
            "resp" => (server.resp, FRAME, &ping, b"+PONG\r\n"),
            "http" => (server.http, HEAD, probe, b"HTTP/1.1 200 "),
            // The length of a SETTINGS frame.
            _ => (server.grpc, PREFACE, &settings, b"\0\0"),
        };
        let mut client = MeasuringClient::of(&server);
        client.measure();
        let before = client.measure();
        let (memory, over) = (Memory::of(server.id()), AtomicBool::new(false));
        let (mut ages, during, (clients, refused)) = std::thread::scope(|scope| {
            let new = scope.spawn(|| new_clients(listener, request, reply, &over));
            let slow = scope.spawn(|| drip_until_closed(listener, sockets, bytes));
            // Until most sockets are open.
            pause(Duration::from_secs(3));
            let during = client.measure();
            let ages = slow.join().unwrap();
            over.store(true, Ordering::Relaxed);
            (ages, during, new.join().unwrap())
        });
        let grown = memory.grown();
        ages.sort_unstable();
        let returned = wait_until(|| (memory.kept() <= MAX_KEPT).then_some(()));
        print_figure(format_args!(
            "attack: {sockets} slow sockets on {name}: memory grew by {}, {} kept; closed after \
             {:?} (p50), {:?} (longest); {refused} of {clients} new clients refused; p99 in us, \
             before -> during: http {} -> {}, resp {} -> {}, a bare echo {} -> {}",
            Mebibytes(grown),
            Mebibytes(memory.kept()),
            ages[ages.len() / 2],
            ages[ages.len() - 1],
            before.http,
            during.http,
            before.resp,
            during.resp,
            before.echo,
            during.echo
        ));
        assert_serves(&mut server);
        assert!(grown <= MAX_GROWTH, "{name}: {}", Mebibytes(grown));
        assert!(returned.is_some(), "{name}: {} kept", Mebibytes(memory.kept()));
        assert_eq!(refused, 0, "{name}: of {clients} new clients");
        let longest = ages[ages.len() - 1];
        compare_with_goal(format_args!("slow sockets of {name} closed"), longest, CLOSED_AFTER);
        compare_p99(&before, &during);
    }
}

/// The latency of a bare echo is the machine's.
fn compare_p99(before: &Waits, during: &Waits) {
    for (name, before, took) in
        [("http", before.http, during.http), ("resp", before.resp, during.resp)]
    {
        let [took, goal] = [took, 2 * before.max(during.echo)].map(Duration::from_micros);
        compare_with_goal(format_args!("p99 of {name} beside slow sockets"), took, goal);
    }
}
