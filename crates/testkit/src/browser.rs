//! A real headless Chromium, controlled by chromedriver over WebDriver.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::server::{TempFolder, wait_until};

/// A browser with an empty profile, closed on drop.
pub struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
}

/// A busy machine takes long to start a browser.
const TIMEOUT: Duration = Duration::from_secs(180);

impl Browser {
    /// `None`, and a line on stderr, if no browser is installed.
    pub fn start() -> Option<Self> {
        let (chromium, driver) = (find_program("chromium"), find_program("chromedriver"));
        let Some((chromium, driver)) = chromium.zip(driver) else {
            print_skipped("chromium and chromium-driver are not installed");
            return None;
        };
        let mut command = Command::new(driver);
        command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut driver = command.spawn().expect("chromedriver starts");
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.ok()?;
            line.split_once("successfully on port ")?.1.trim_end_matches('.').parse::<u16>().ok()
        });
        let address =
            SocketAddr::from(([127, 0, 0, 1], port.expect("chromedriver prints its port")));
        let mut browser = Self { driver, address, session: String::new() };
        let profile = TempFolder::new().path("profile");
        // The browser loads only pages of this test, so it may run as root.
        let arguments = json!([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            format!("--user-data-dir={}", profile.display()),
        ]);
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "args": arguments, "binary": chromium },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        // An installed browser may fail to start, without memory or a library: that is no failure
        // of the pages.
        let reply = browser.try_call("POST", "/session", &wanted);
        let session = reply.as_ref().and_then(|(_, reply)| reply["value"]["sessionId"].as_str());
        let Some(session) = session else {
            print_skipped(&format!("chromium does not start: {reply:?}"));
            return None;
        };
        browser.session = session.to_string();
        Some(browser)
    }

    pub fn open(&self, url: &str) {
        self.command("/url", &json!({ "url": url }));
    }

    /// Runs a script on the page and returns its result.
    pub fn run(&self, script: &str) -> Value {
        self.command("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until a script returns `true`.
    pub fn wait_for(&self, script: &str) {
        let found = wait_until(|| self.run(script).as_bool().filter(|found| *found));
        assert!(found.is_some(), "{script}: {}", self.run("return document.body.innerText"));
    }

    /// Console messages of the page since the last call.
    pub fn console_log(&self) -> Vec<Value> {
        let log = self.command("/se/log", &json!({ "type": "browser" }));
        log.as_array().cloned().unwrap_or_default()
    }

    /// Sends a command of the Chrome DevTools Protocol.
    pub fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.command("/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    /// Sets the preferred colour scheme: `light` or `dark`.
    pub fn prefer(&self, scheme: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": [feature] }));
    }

    /// Sets the size of the window.
    pub fn resize(&self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    fn command(&self, path: &str, body: &Value) -> Value {
        self.call("POST", &format!("/session/{}{path}", self.session), body)
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, reply) = self.try_call(method, path, body).expect("chromedriver replies");
        assert_eq!(status, "200", "{path}: {reply}");
        reply["value"].clone()
    }

    fn try_call(&self, method: &str, path: &str, body: &Value) -> Option<(String, Value)> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).ok()?;
        let (host, body) = (self.address, body.to_string());
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all((head + &body).as_bytes()).ok()?;
        let mut reader = BufReader::new(stream);
        let (mut status, mut length) = (String::new(), 0);
        for line in reader.by_ref().lines() {
            let line = line.ok()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line.starts_with("http/") {
                status = line.split(' ').nth(1)?.to_string();
            }
        }
        // chromedriver keeps the connection open in spite of `connection: close`.
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        Some((status, serde_json::from_slice(&body).ok()?))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            self.try_call("DELETE", &format!("/session/{}", self.session), &json!({}));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

fn print_skipped(why: &str) {
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "skipped: in a real browser: {why}").expect("standard error");
}

/// Path of an installed program.
fn find_program(name: &str) -> Option<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut found = path.split(':').map(|folder| format!("{folder}/{name}"));
    found.find(|path| Path::new(path).is_file())
}
