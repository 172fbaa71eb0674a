//! A server process with any command and any listeners.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::server::{RawHttpConnection, ServerResponse};

/// A process that logs JSON and has logged its addresses; killed on drop.
pub struct ListeningProcess {
    child: Child,
    fields: Value,
    log: Arc<Mutex<Vec<String>>>,
}

impl ListeningProcess {
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let log = Arc::<Mutex<Vec<String>>>::default();
        let listening = lines.by_ref().find_map(|line| {
            let entry: Value = serde_json::from_str(&line).unwrap_or_default();
            log.lock().unwrap().push(line);
            (entry["fields"]["message"] == "listening").then(|| entry["fields"].clone())
        });
        let fields = listening.unwrap_or_else(|| panic!("{:?}", log.lock().unwrap()));
        let rest = log.clone();
        std::thread::spawn(move || lines.for_each(|line| rest.lock().unwrap().push(line)));
        Self { child, fields, log }
    }

    /// The address of a listener on loopback, if it is on.
    pub fn address(&self, listener: &str) -> Option<SocketAddr> {
        let address: SocketAddr = self.fields[listener].as_str()?.parse().ok()?;
        Some(SocketAddr::from(([127, 0, 0, 1], address.port())))
    }

    pub fn request(&self, listener: &str, method: &str, path: &str, body: &str) -> ServerResponse {
        let mut client = RawHttpConnection::connect(self.address(listener).unwrap());
        client.send(method, path, &[("content-type", "application/json")], body);
        client.receive()
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }
}

impl Drop for ListeningProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
