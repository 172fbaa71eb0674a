//! A Redis in its own network namespace, behind a link that a test can take down.

use std::env;
use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{self, Child, Command, Stdio};
use std::time::Duration;

use testkit::redis::{redis_server_path, wait_poll_interval};

/// Removes the process, the link and the namespace on drop.
pub(crate) struct IsolatedRedis {
    child: Option<Child>,
    name: String,
    dir: PathBuf,
}

const PORT: u16 = 6379;

impl IsolatedRedis {
    /// Returns once the server accepts connections, or the reason why it cannot be started here.
    pub(crate) fn start() -> Result<Self, String> {
        let name = format!("tg{}", process::id());
        let dir = env::temp_dir().join(format!("tidegate-isolated-{}", process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut redis = Self { child: None, name, dir };
        let (host, inner) = (redis.host(), redis.inner());
        ip(&["netns", "add", &redis.name])?;
        ip(&["link", "add", &host, "type", "veth", "peer", "name", &inner])?;
        ip(&["link", "set", &inner, "netns", &redis.name])?;
        ip(&["addr", "add", &format!("{}/30", redis.address(1)), "dev", &host])?;
        ip(&["link", "set", &host, "up"])?;
        let address = format!("{}/30", redis.address(2));
        ip(&["-n", &redis.name, "addr", "add", &address, "dev", &inner])?;
        redis.set(LinkState::Up)?;
        redis.launch()?;
        Ok(redis)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}:{PORT}/", self.address(2))
    }

    /// Sets the link at the server's end, as an unplugged cable there: this side keeps its route.
    pub(crate) fn set(&self, link: LinkState) -> Result<(), String> {
        let word = match link {
            LinkState::Up => "up",
            LinkState::Down => "down",
        };
        ip(&["-n", &self.name, "link", "set", &self.inner(), word])
    }

    fn launch(&mut self) -> Result<(), String> {
        let log = fs::File::create(self.dir.join("log")).unwrap();
        let child = Command::new("ip")
            .args(["netns", "exec", &self.name, &redis_server_path(), "--port", &PORT.to_string()])
            .args(["--bind", &self.address(2), "--protected-mode", "no"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(&self.dir)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot run ip ({error})"))?;
        self.child = Some(child);
        let address = format!("{}:{PORT}", self.address(2)).parse().unwrap();
        for _ in 0..500 {
            if TcpStream::connect_timeout(&address, Duration::from_millis(100)).is_ok() {
                return Ok(());
            }
            wait_poll_interval();
        }
        Err("redis does not reply in its network namespace".to_owned())
    }

    /// Names of the two ends of the link; at most 15 characters.
    fn host(&self) -> String {
        format!("{}h", self.name)
    }

    fn inner(&self) -> String {
        format!("{}i", self.name)
    }

    /// An address in a network that parallel runs most likely do not share.
    fn address(&self, host: u8) -> String {
        let [_, _, high, low] = process::id().to_be_bytes();
        format!("10.{}.{}.{}", 128 | high & 0x7f, low, 4 * 7 + host)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkState {
    Up,
    Down,
}

impl Drop for IsolatedRedis {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Deleting one end deletes the other.
        let _ = ip(&["link", "del", &self.host()]);
        let _ = ip(&["netns", "del", &self.name]);
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn ip(args: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(args).output();
    let output = output.map_err(|error| format!("no ip command ({error})"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let why = String::from_utf8_lossy(&output.stderr);
            Err(format!("ip {}: {}; run it as root", args.join(" "), why.trim()))
        }
    }
}
