//! `tidegate serve` as a process, and a minimal HTTP client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde_json::Value;

use crate::timing::HANG;

/// Upper bound for any event in a test.
pub const TEST_TIMEOUT: Duration = HANG;

/// Path of the `tidegate` binary under test.
///
/// Cargo sets `CARGO_BIN_EXE_tidegate` only for the tests of `tidegate-cli`, so the path is derived
/// from the running test: `target/debug/deps/it-..` -> `target/debug/tidegate`.
pub fn tidegate_path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let test = std::env::current_exe().expect("the path of the test program");
        let folder = test.ancestors().nth(2).expect("the test program lies in a target folder");
        let path = folder.join(format!("tidegate{}", std::env::consts::EXE_SUFFIX));
        let advice = "run `cargo test -p tidegate-cli`, which builds it";
        assert!(path.is_file(), "{} does not exist; {advice}", path.display());
        path
    })
}

/// A `tidegate serve` process, killed on drop.
pub struct ServerProcess {
    child: Child,
    pub http: SocketAddr,
    pub resp: SocketAddr,
    pub grpc: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
}

impl ServerProcess {
    /// Starts a server with this policy.
    pub fn with_policy(policy: &str) -> Self {
        let file = TempFolder::new().write("policy.yaml", policy);
        Self::start(&["--config", file.to_str().unwrap()], &[])
    }

    /// The same on a Redis, once it is connected. A busy machine must not look like an outage, so
    /// the deadline is long.
    pub fn with_policy_on(store: &str, policy: &str) -> Self {
        let policy = format!("store_deadline: 5s\n{policy}");
        let file = TempFolder::new().write("policy.yaml", &policy);
        let server = Self::start(&["--store", store, "--config", file.to_str().unwrap()], &[]);
        let up = || server.store_is_up().then_some(());
        assert!(wait_until(up).is_some(), "{:?}", server.log());
        server
    }

    /// Starts a server with these arguments and environment variables, on free ports.
    pub fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Self::command(arguments, variables);
        let mut child = command.spawn().expect("the server starts");
        let stderr = child.stderr.take().expect("standard error is piped");
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut addresses = None;
        for line in lines.by_ref() {
            let entry: Value = serde_json::from_str(&line).unwrap_or_default();
            let fields = entry["fields"].clone();
            log.lock().unwrap().push(line);
            if fields["message"] == "listening" {
                let address = |name: &str| fields[name].as_str()?.parse::<SocketAddr>().ok();
                addresses = address("http").zip(address("resp")).zip(address("grpc"));
                break;
            }
        }
        let Some(((http, resp), grpc)) = addresses else {
            panic!("the server did not start: {:?}", log.lock().unwrap());
        };
        let rest = log.clone();
        std::thread::spawn(move || lines.for_each(|line| rest.lock().unwrap().push(line)));
        Self { child, http, resp, grpc, log }
    }

    /// The command that starts a server, for tests in which starting fails.
    pub fn command(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
        let mut command = Command::new(tidegate_path());
        command.args(["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
        if !arguments.contains(&"--grpc") {
            command.args(["--grpc", "127.0.0.1:0"]);
        }
        command.args(arguments).envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Log lines so far, one JSON object each.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Sends a signal: `TERM`, `HUP`.
    pub fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Waits for the exit; `None` if the server still runs after [`TEST_TIMEOUT`].
    pub fn wait(&mut self) -> Option<std::process::ExitStatus> {
        wait_until(|| self.child.try_wait().expect("the child has a status"))
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the child has a status").is_none()
    }

    /// Sends one HTTP request on a new connection.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> ServerResponse {
        let mut client = RawHttpConnection::connect(self.http);
        client.send(method, path, headers, body);
        client.receive()
    }

    pub fn post(&self, path: &str, body: &Value) -> ServerResponse {
        let headers = [("content-type", "application/json")];
        self.request("POST", path, &headers, &body.to_string())
    }

    pub fn get(&self, path: &str) -> ServerResponse {
        self.request("GET", path, &[], "")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An HTTP/1.1 connection.
pub struct RawHttpConnection(BufReader<TcpStream>);

/// A response with its whole body.
#[derive(Debug)]
pub struct ServerResponse {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl RawHttpConnection {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the listener accepts");
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() || method == "POST" || method == "PUT" {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        head.push_str(body);
        self.0.get_mut().write_all(head.as_bytes()).expect("the listener reads a request");
    }

    /// Writes raw bytes; fails if the connection is closed.
    pub fn try_write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    /// The next line of any protocol.
    pub fn first_line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the listener replies");
        line
    }

    pub fn receive(&mut self) -> ServerResponse {
        self.try_receive().expect("the listener responds")
    }

    /// The next response; `None` if the connection has ended.
    pub fn try_receive(&mut self) -> Option<ServerResponse> {
        let mut line = String::new();
        if self.0.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let status = line.split(' ').nth(1)?.parse().ok()?;
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.push((name.to_ascii_lowercase(), value.to_string()));
        }
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let length = length.map_or(0, |(_, value)| value.parse().unwrap_or(0));
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).ok()?;
        Some(ServerResponse { status, headers, body: String::from_utf8(body).ok()? })
    }
}

impl ServerResponse {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// A new temporary folder. It is not deleted.
pub struct TempFolder(PathBuf);

impl TempFolder {
    #[expect(clippy::new_without_default, reason = "it creates a folder")]
    pub fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let nth = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-test-{}-{nth}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // An earlier process with the same id may have left one.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder for the test");
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a file for the test");
        path
    }
}

/// Polls until the result is `Some`, at most for [`TEST_TIMEOUT`].
pub fn wait_until<T>(mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let step = Duration::from_millis(20);
    for _ in 0..TEST_TIMEOUT.as_millis() / step.as_millis() {
        if let Some(found) = poll() {
            return Some(found);
        }
        pause(step);
    }
    None
}

/// Blocks the thread while other processes run: their clock cannot be set.
#[expect(clippy::disallowed_methods, reason = "waits for another process")]
pub fn pause(span: Duration) {
    std::thread::sleep(span);
}
