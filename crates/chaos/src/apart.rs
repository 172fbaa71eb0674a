//! A Redis in a network of its own, behind a link that can be taken down.

use std::env;
use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{self, Child, Command, Stdio};
use std::time::Duration;

use crate::server::{pause, program};

/// Dropped, everything is gone: the process, the link and the network.
pub(crate) struct Apart {
    child: Option<Child>,
    name: String,
    dir: PathBuf,
}

const PORT: u16 = 6379;

impl Apart {
    /// A server that answers; or why there cannot be one here.
    pub(crate) fn start() -> Result<Self, String> {
        let name = format!("tg{}", process::id());
        let dir = env::temp_dir().join(format!("tidegate-apart-{}", process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut apart = Self { child: None, name, dir };
        let (host, inner) = (apart.host(), apart.inner());
        ip(&["netns", "add", &apart.name])?;
        ip(&["link", "add", &host, "type", "veth", "peer", "name", &inner])?;
        ip(&["link", "set", &inner, "netns", &apart.name])?;
        ip(&["addr", "add", &format!("{}/30", apart.address(1)), "dev", &host])?;
        ip(&["link", "set", &host, "up"])?;
        let address = format!("{}/30", apart.address(2));
        ip(&["-n", &apart.name, "addr", "add", &address, "dev", &inner])?;
        apart.set(Link::Up)?;
        apart.launch()?;
        Ok(apart)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}:{PORT}/", self.address(2))
    }

    /// At the far end, as when somebody pulls the plug there: this side still has its route.
    pub(crate) fn set(&self, link: Link) -> Result<(), String> {
        let word = match link {
            Link::Up => "up",
            Link::Down => "down",
        };
        ip(&["-n", &self.name, "link", "set", &self.inner(), word])
    }

    fn launch(&mut self) -> Result<(), String> {
        let log = fs::File::create(self.dir.join("log")).unwrap();
        let child = Command::new("ip")
            .args(["netns", "exec", &self.name, &program(), "--port", &PORT.to_string()])
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
            pause();
        }
        Err("redis does not answer in a network of its own".to_owned())
    }

    /// The names of the two ends; a name may have 15 letters.
    fn host(&self) -> String {
        format!("{}h", self.name)
    }

    fn inner(&self) -> String {
        format!("{}i", self.name)
    }

    /// Of a network that two runs beside each other do not share, most likely.
    fn address(&self, host: u8) -> String {
        let [_, _, high, low] = process::id().to_be_bytes();
        format!("10.{}.{}.{}", 128 | high & 0x7f, low, 4 * 7 + host)
    }
}

/// Whether anything passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Link {
    Up,
    Down,
}

impl Drop for Apart {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // With the one end goes the other.
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
