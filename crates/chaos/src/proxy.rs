//! A way to a server that can be spoilt: slow, silent, broken off.
//!
//! It has a thread and a runtime of its own, so that the load beside it does not make it late.

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

/// Dropped, it closes everything.
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    _stop: oneshot::Sender<()>,
}

/// What becomes of what comes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// It goes on.
    Open,
    /// It stays here, both ways, and connections stay open.
    BlackHole,
    /// Questions go on, answers are thrown away.
    Swallow,
}

struct Shared {
    target: AtomicU16,
    /// Microseconds that an answer is held back.
    latency: AtomicU64,
    orders: watch::Sender<Orders>,
    accepts: Mutex<Vec<Instant>>,
    open: AtomicU64,
    most_open: AtomicU64,
}

#[derive(Clone, Copy)]
struct Orders {
    way: Way,
    /// How often all connections were reset, and closed for answers.
    resets: u64,
    half_closes: u64,
}

impl Proxy {
    /// A way to this port on the same machine.
    pub(crate) fn to(target: u16) -> Self {
        let orders = Orders { way: Way::Open, resets: 0, half_closes: 0 };
        let shared = Arc::new(Shared {
            target: AtomicU16::new(target),
            latency: AtomicU64::new(0),
            orders: watch::Sender::new(orders),
            accepts: Mutex::default(),
            open: AtomicU64::new(0),
            most_open: AtomicU64::new(0),
        });
        let (stop, stopped) = oneshot::channel();
        let (tell_port, port) = std::sync::mpsc::channel();
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
                tell_port.send(listener.local_addr().unwrap().port()).unwrap();
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

    /// Leads somewhere else from now on. Whoever is connected is reset.
    pub(crate) fn aim(&self, target: u16) {
        self.shared.target.store(target, Ordering::Relaxed);
        self.reset();
    }

    /// Holds every answer back for so long.
    pub(crate) fn delay(&self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap();
        self.shared.latency.store(micros, Ordering::Relaxed);
    }

    /// A connection of which answers were thrown away could only confuse, so it ends then.
    pub(crate) fn set(&self, way: Way) {
        self.shared.orders.send_modify(|orders| {
            orders.resets += u64::from(orders.way == Way::Swallow);
            orders.way = way;
        });
    }

    /// Every connection ends without a goodbye.
    pub(crate) fn reset(&self) {
        self.shared.orders.send_modify(|orders| orders.resets += 1);
    }

    /// On every connection, no more answers come, which its client is told; questions are still taken.
    pub(crate) fn half_close(&self) {
        self.shared.orders.send_modify(|orders| orders.half_closes += 1);
    }

    /// When connections were made.
    pub(crate) fn accepts(&self) -> Vec<Instant> {
        self.shared.accepts.lock().unwrap().clone()
    }

    /// The most connections that were open at a time.
    pub(crate) fn most_open(&self) -> u64 {
        self.shared.most_open.load(Ordering::Relaxed)
    }
}

impl Shared {
    async fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            let Ok((client, _)) = listener.accept().await else { continue };
            self.accepts.lock().unwrap().push(Instant::now());
            let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
            self.most_open.fetch_max(open, Ordering::Relaxed);
            let shared = Arc::clone(&self);
            tokio::spawn(async move {
                // A client that is cut off is what this is for.
                let _ = shared.carry(client).await;
                shared.open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    async fn carry(&self, mut client: TcpStream) -> io::Result<()> {
        let mut orders = self.orders.subscribe();
        let before = *orders.borrow();
        let target = self.target.load(Ordering::Relaxed);
        let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let reset = async {
            let _ = orders.wait_for(|orders| orders.resets != before.resets).await;
        };
        let was_reset = {
            let (questions, answers) = client.split();
            let (from_server, to_server) = server.split();
            tokio::select! {
                () = reset => true,
                _ = self.ask(questions, to_server) => false,
                _ = self.answer(from_server, answers, before) => false,
            }
        };
        if was_reset {
            client.set_zero_linger()?;
        }
        Ok(())
    }

    async fn ask(&self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let len = from.read(&mut buffer).await?;
            if len == 0 {
                return Ok(());
            }
            self.passable().await;
            to.write_all(&buffer[..len]).await?;
        }
    }

    async fn answer(
        &self,
        mut from: ReadHalf<'_>,
        mut to: WriteHalf<'_>,
        before: Orders,
    ) -> io::Result<()> {
        let (line, mut delayed) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
        let read = async {
            let mut buffer = vec![0; 1 << 16];
            loop {
                let len = from.read(&mut buffer).await?;
                if len == 0 {
                    return io::Result::Ok(());
                }
                let latency = Duration::from_micros(self.latency.load(Ordering::Relaxed));
                let _ = line.send((Instant::now() + latency, buffer[..len].to_vec()));
            }
        };
        let write = async {
            while let Some((due, bytes)) = delayed.recv().await {
                sleep_until(due).await;
                self.passable().await;
                if self.orders.borrow().way != Way::Swallow {
                    to.write_all(&bytes).await?;
                }
            }
            io::Result::Ok(())
        };
        let mut orders = self.orders.subscribe();
        let half_closed = async {
            let _ = orders.wait_for(|orders| orders.half_closes != before.half_closes).await;
        };
        tokio::select! {
            done = read => return done,
            done = write => return done,
            () = half_closed => {}
        }
        to.shutdown().await?;
        std::future::pending().await
    }

    /// Completes when something may go on.
    async fn passable(&self) {
        let mut orders = self.orders.subscribe();
        let _ = orders.wait_for(|orders| orders.way != Way::BlackHole).await;
    }
}
