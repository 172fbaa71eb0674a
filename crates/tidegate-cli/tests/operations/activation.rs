//! Sockets of the service manager: a restart drops no request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use testkit::server::{TEST_TIMEOUT, TempFolder, pause, tidegate_path, wait_until};

/// Passes two sockets as file descriptors 3 and 4, and the program of this shell gets its process
/// id: the protocol of `sd_listen_fds`.
const PASS_SOCKETS: &str = r#"exec 3<&0 4<&1 </dev/null >/dev/null
LISTEN_PID=$$ LISTEN_FDS=2 exec "$0" "$@""#;

const RESTARTS: usize = 4;
/// Requests between two restarts, over each protocol.
const REQUESTS: u64 = 150;
const CLIENTS: usize = 3;

/// The sockets of HTTP and RESP, open as long as the test runs.
struct Manager {
    sockets: [TcpListener; 2],
    folder: TempFolder,
}

impl Manager {
    fn new() -> Self {
        let folder = TempFolder::new();
        folder.write("policy.yaml", "rules: [{ name: a, limits: [1000000/s] }]\n");
        Self { sockets: [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap()), folder }
    }

    fn addresses(&self) -> [SocketAddr; 2] {
        [0, 1].map(|nth: usize| self.sockets[nth].local_addr().unwrap())
    }

    /// Starts a server that listens on these addresses.
    fn start(&self, program: &Path, [http, resp]: [SocketAddr; 2]) -> Child {
        let [first, second] = [0, 1].map(|nth: usize| {
            let socket = self.sockets[nth].try_clone().unwrap();
            Stdio::from(OwnedFd::from(socket))
        });
        let mut command = Command::new("sh");
        command.arg("-c").arg(PASS_SOCKETS).arg(program).arg("serve");
        command.arg("--config").arg(self.folder.path("policy.yaml"));
        command.args(["--grpc", "off", "--http", &http.to_string(), "--resp", &resp.to_string()]);
        command.stdin(first).stdout(second).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// Everything the process has logged, after its end.
fn log(child: &mut Child) -> String {
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

fn stop(mut child: Child) {
    let status = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(status.unwrap().success());
    let ended = wait_until(|| child.try_wait().unwrap());
    assert!(ended.is_some_and(|status| status.success()), "{}", log(&mut child));
}

/// Sends one request on a new connection and returns the first line of the reply.
fn exchange(address: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TEST_TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line)
}

/// What a client sends, and how the reply to it begins.
const EXCHANGES: [(&str, &str); 2] = [
    (
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: 22\r\n\r\n{\"rule\":\"a\",\"key\":\"k\"}",
        "HTTP/1.1 200 ",
    ),
    ("*3\r\n$8\r\nTG.CHECK\r\n$1\r\na\r\n$1\r\nk\r\n", "*"),
];

/// Sends requests until `done`, and counts those with the expected reply.
fn send_requests(manager: &Manager, nth: usize, done: &AtomicBool, replies: &AtomicU64) {
    let (request, expected) = EXCHANGES[nth];
    while !done.load(Ordering::Relaxed) {
        let reply = exchange(manager.addresses()[nth], request);
        assert!(reply.as_ref().is_ok_and(|line| line.starts_with(expected)), "{reply:?}");
        replies.fetch_add(1, Ordering::Relaxed);
        pause(std::time::Duration::from_millis(1));
    }
}

/// `TIDEGATE_UPGRADE_FROM` is the path of another build: then every other process is of that one.
#[test]
fn a_restart_on_sockets_of_the_service_manager_drops_no_request() {
    let own = tidegate_path().to_path_buf();
    let other =
        std::env::var_os("TIDEGATE_UPGRADE_FROM").map_or_else(|| own.clone(), PathBuf::from);
    let manager = &Manager::new();
    let (done, replies) = (&AtomicBool::new(false), &[AtomicU64::new(0), AtomicU64::new(0)]);
    thread::scope(|threads| {
        let clients: Vec<_> = (0..2 * CLIENTS)
            .map(|nth| {
                threads.spawn(move || send_requests(manager, nth % 2, done, &replies[nth % 2]))
            })
            .collect();
        let count = || replies.each_ref().map(|count| count.load(Ordering::Relaxed));
        for nth in 0..=RESTARTS {
            let program = if nth % 2 == 0 { &other } else { &own };
            let server = manager.start(program, manager.addresses());
            let before = count();
            let served = wait_until(|| {
                let failed = clients.iter().any(|client| client.is_finished());
                let now = count();
                let enough = (0..2).all(|nth| now[nth] >= before[nth] + REQUESTS);
                (failed || enough).then_some(enough)
            });
            if nth == RESTARTS || served != Some(true) {
                done.store(true, Ordering::Relaxed);
                assert_eq!(served, Some(true), "{:?} replies", count());
                clients.into_iter().for_each(|client| client.join().unwrap());
                stop(server);
                break;
            }
            stop(server);
        }
    });
    let [http, resp] = replies.each_ref().map(|count| count.load(Ordering::Relaxed));
    println!("{RESTARTS} restarts: {http} replies over HTTP, {resp} over RESP, 0 dropped");
}

#[test]
fn a_socket_that_no_listener_has_is_refused() {
    let manager = Manager::new();
    let [http, resp] = manager.addresses();
    let other = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut server = manager.start(tidegate_path(), [http, other]);
    let status = wait_until(|| server.try_wait().unwrap()).expect("it does not start");
    assert_eq!(status.code(), Some(2));
    let log = log(&mut server);
    assert!(log.contains(&format!("passed a socket on {resp}, but no listener")), "{log}");
}
