//! A real server for tests, and the plainest clients there are.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

/// How long anything in a test may take before it counts as hung.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// `tidegate serve` in a process of its own; killed when it is dropped.
pub struct Server {
    child: Child,
    pub http: SocketAddr,
    pub resp: SocketAddr,
    pub grpc: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// A server with this policy.
    pub fn with_policy(policy: &str) -> Self {
        let file = Folder::new().write("policy.yaml", policy);
        Self::start(&["--config", file.to_str().unwrap()], &[])
    }

    /// A server with these arguments and variables, on ports that the system chooses.
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
        let kept = log.clone();
        std::thread::spawn(move || lines.for_each(|line| kept.lock().unwrap().push(line)));
        Self { child, http, resp, grpc, log }
    }

    /// The command that starts a server, for tests in which it does not.
    pub fn command(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
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

    /// What it has logged so far, one JSON object a line.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Sends it a signal: `TERM`, `HUP`.
    pub fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Waits for its end; `None` if it does not come.
    pub fn wait(&mut self) -> Option<std::process::ExitStatus> {
        wait_until(|| self.child.try_wait().expect("the child can be asked"))
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the child can be asked").is_none()
    }

    /// One request over HTTP, on a connection of its own.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response {
        let mut client = Http::connect(self.http);
        client.send(method, path, headers, body);
        client.receive()
    }

    /// JSON to a call, and its answer.
    pub fn post(&self, path: &str, body: &Value) -> Response {
        let headers = [("content-type", "application/json")];
        self.request("POST", path, &headers, &body.to_string())
    }

    pub fn get(&self, path: &str) -> Response {
        self.request("GET", path, &[], "")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An HTTP/1.1 connection.
pub struct Http(BufReader<TcpStream>);

/// What came back.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Http {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the door is open");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() || method == "POST" || method == "PUT" {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        head.push_str(body);
        self.0.get_mut().write_all(head.as_bytes()).expect("the door takes a request");
    }

    /// Bytes as they are, at a door that may be shut.
    pub fn try_write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    pub fn receive(&mut self) -> Response {
        self.try_receive().expect("the door answers")
    }

    /// The next answer, unless the connection has ended.
    pub fn try_receive(&mut self) -> Option<Response> {
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
        Some(Response { status, headers, body: String::from_utf8(body).ok()? })
    }
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// A folder of the test's own, left for the system to clean up.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let nth = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-test-{}-{nth}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // One with this name may be left from long ago, of another process with this number.
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

/// Asks again and again, for as long as anything may take.
pub fn wait_until<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let step = Duration::from_millis(20);
    for _ in 0..PATIENCE.as_millis() / step.as_millis() {
        if let Some(found) = ask() {
            return Some(found);
        }
        pause(step);
    }
    None
}

/// Waits for other processes, whose clock nobody can turn.
#[expect(clippy::disallowed_methods, reason = "another process has to go on")]
pub fn pause(span: Duration) {
    std::thread::sleep(span);
}
