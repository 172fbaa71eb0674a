//! A TCP proxy to a server that can delay, drop and close.
//!
//! It runs on its own thread and runtime, so that the load does not delay it.

use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

/// Closes all connections on drop.
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<ProxyInner>,
    _stop: oneshot::Sender<()>,
}

/// What happens to received bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProxyMode {
    /// Forwarded.
    Open,
    /// Held in both directions; connections stay open.
    BlackHole,
    /// Requests are forwarded, replies are discarded.
    DropReplies,
}

struct ProxyInner {
    target: AtomicU16,
    /// Delay of each reply in microseconds.
    latency: AtomicU64,
    commands: watch::Sender<ProxyCommands>,
    accepts: Mutex<Vec<Instant>>,
    open: AtomicU64,
    max_open: AtomicU64,
}

#[derive(Clone, Copy)]
struct ProxyCommands {
    mode: ProxyMode,
    /// Number of resets, and of half-closes, of all connections.
    resets: u64,
    half_closes: u64,
}

impl Proxy {
    /// A proxy to this port of the same machine.
    pub(crate) fn to(target: u16) -> Self {
        let commands = ProxyCommands { mode: ProxyMode::Open, resets: 0, half_closes: 0 };
        let shared = Arc::new(ProxyInner {
            target: AtomicU16::new(target),
            latency: AtomicU64::new(0),
            commands: watch::Sender::new(commands),
            accepts: Mutex::default(),
            open: AtomicU64::new(0),
            max_open: AtomicU64::new(0),
        });
        let (stop, stopped) = oneshot::channel();
        let (port_sender, port) = std::sync::mpsc::channel();
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
                port_sender.send(listener.local_addr().unwrap().port()).unwrap();
                tokio::select! {
                    () = serving.accept(listener) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { port: port.recv().unwrap(), shared, _stop: stop }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Connects to another port from now on, and resets all connections.
    pub(crate) fn aim(&self, target: u16) {
        self.shared.target.store(target, Ordering::Relaxed);
        self.reset();
    }

    pub(crate) fn delay(&self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap();
        self.shared.latency.store(micros, Ordering::Relaxed);
    }

    /// Leaving [`ProxyMode::DropReplies`] resets all connections: later replies would not match.
    pub(crate) fn set(&self, mode: ProxyMode) {
        self.shared.commands.send_modify(|commands| {
            commands.resets += u64::from(commands.mode == ProxyMode::DropReplies);
            commands.mode = mode;
        });
    }

    /// Closes every connection with RST.
    pub(crate) fn reset(&self) {
        self.shared.commands.send_modify(|commands| commands.resets += 1);
    }

    /// Shuts down the reply direction of every connection; requests are still read.
    pub(crate) fn half_close(&self) {
        self.shared.commands.send_modify(|commands| commands.half_closes += 1);
    }

    /// Times at which connections were accepted.
    pub(crate) fn accepts(&self) -> Vec<Instant> {
        self.shared.accepts.lock().unwrap().clone()
    }

    /// Maximum of connections open at a time.
    pub(crate) fn max_open(&self) -> u64 {
        self.shared.max_open.load(Ordering::Relaxed)
    }
}

impl ProxyInner {
    async fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            let Ok((client, _)) = listener.accept().await else { continue };
            self.accepts.lock().unwrap().push(Instant::now());
            let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
            self.max_open.fetch_max(open, Ordering::Relaxed);
            let shared = Arc::clone(&self);
            tokio::spawn(async move {
                // Errors of closed connections are expected.
                let _ = shared.forward(client).await;
                shared.open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    async fn forward(&self, mut client: TcpStream) -> io::Result<()> {
        let mut commands = self.commands.subscribe();
        let before = *commands.borrow();
        let target = self.target.load(Ordering::Relaxed);
        let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let reset = async {
            let _ = commands.wait_for(|commands| commands.resets != before.resets).await;
        };
        let was_reset = {
            let (requests, replies) = client.split();
            let (from_server, to_server) = server.split();
            tokio::select! {
                () = reset => true,
                _ = self.forward_requests(requests, to_server) => false,
                _ = self.forward_replies(from_server, replies, before) => false,
            }
        };
        if was_reset {
            client.set_zero_linger()?;
        }
        Ok(())
    }

    async fn forward_requests(
        &self,
        mut from: ReadHalf<'_>,
        mut to: WriteHalf<'_>,
    ) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let len = from.read(&mut buffer).await?;
            if len == 0 {
                return Ok(());
            }
            self.until_open().await;
            to.write_all(&buffer[..len]).await?;
        }
    }

    async fn forward_replies(
        &self,
        mut from: ReadHalf<'_>,
        mut to: WriteHalf<'_>,
        before: ProxyCommands,
    ) -> io::Result<()> {
        let (queue, mut delayed) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
        let read = async {
            let mut buffer = vec![0; 1 << 16];
            loop {
                let len = from.read(&mut buffer).await?;
                if len == 0 {
                    return io::Result::Ok(());
                }
                let latency = Duration::from_micros(self.latency.load(Ordering::Relaxed));
                let _ = queue.send((Instant::now() + latency, buffer[..len].to_vec()));
            }
        };
        let write = async {
            while let Some((due, bytes)) = delayed.recv().await {
                sleep_until(due).await;
                self.until_open().await;
                if self.commands.borrow().mode != ProxyMode::DropReplies {
                    to.write_all(&bytes).await?;
                }
            }
            io::Result::Ok(())
        };
        let mut commands = self.commands.subscribe();
        let half_closed = async {
            let _ = commands.wait_for(|commands| commands.half_closes != before.half_closes).await;
        };
        tokio::select! {
            done = read => return done,
            done = write => return done,
            () = half_closed => {}
        }
        to.shutdown().await?;
        std::future::pending().await
    }

    /// Completes once bytes may be forwarded.
    async fn until_open(&self) {
        let mut commands = self.commands.subscribe();
        let _ = commands.wait_for(|commands| commands.mode != ProxyMode::BlackHole).await;
    }
}
