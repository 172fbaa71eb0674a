//! `tidegate top`, in a terminal and without one.

use std::io::{BufRead, BufReader, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use testkit::process::tidegate;
use testkit::pty::PtyTerminal;
use testkit::server::{ServerProcess, pause, wait_until};

const POLICY: &str = r#"
rules:
  - { name: login, limits: ["sliding-log 5/h"] }
  - { name: api, limits: ["1000/s"], shadow_limits: ["1/h"] }
"#;

/// Keys with terminal escape sequences.
const HOSTILE: &str = "\u{1b}[2Jmallory\u{7}";

fn url(server: &ServerProcess) -> String {
    format!("http://{}", server.http)
}

fn top(server: &ServerProcess, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["top", "--server", &url(server)]);
    command.env_remove("NO_COLOR").envs(variables.iter().copied());
    command
}

/// Sends checks to a server until dropped.
struct Traffic(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Traffic {
    fn start(server: &Arc<ServerProcess>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, server) = (stop.clone(), server.clone());
        let thread = std::thread::spawn(move || {
            for nth in 0_u64.. {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                // Slowly more checks, so that the numbers change.
                for _ in 0..=(nth / 20).min(8) {
                    server.post("/v1/check", &json!({ "rule": "api", "key": "alice" }));
                }
                server.post("/v1/check", &json!({ "rule": "login", "key": HOSTILE }));
                pause(std::time::Duration::from_millis(20));
            }
        });
        Self(stop, Some(thread))
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        let _ = self.1.take().map(std::thread::JoinHandle::join);
    }
}

/// A proxy that can be closed.
struct Relay {
    address: SocketAddr,
    is_open: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_open = Arc::new(AtomicBool::new(true));
        let streams = Arc::new(Mutex::new(Vec::new()));
        let (let_in, kept) = (is_open.clone(), streams.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if !let_in.load(Ordering::Relaxed) {
                    continue;
                }
                let upstream = TcpStream::connect(server).unwrap();
                let copy = |mut from: TcpStream, mut to: TcpStream| {
                    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                };
                copy(client.try_clone().unwrap(), upstream.try_clone().unwrap());
                copy(upstream.try_clone().unwrap(), client.try_clone().unwrap());
                kept.lock().unwrap().extend([client, upstream]);
            }
        });
        Self { address, is_open, streams }
    }

    fn shut(&self) {
        self.is_open.store(false, Ordering::Relaxed);
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }
}

/// The row with this prefix.
fn row<'t>(text: &'t str, begin: &str) -> Option<&'t str> {
    text.lines().find(|line| line.starts_with(begin))
}

#[test]
fn the_screen_shows_what_goes_on_and_the_terminal_is_given_back() {
    let server = Arc::new(ServerProcess::with_policy(POLICY));
    let _traffic = Traffic::start(&server);
    let mut terminal = PtyTerminal::start(top(&server, &[]), 120, 36);
    let seen = terminal.expect("all of it", |text| {
        let has = |part: &str| text.contains(part);
        row(text, "api ").is_some()
            && row(text, "login ").is_some()
            && has("HOTTEST")
            && has("retry after")
    });
    assert!(terminal.screen().is_alternate && !terminal.screen().has_cursor);
    assert!(seen.starts_with("tidegate top  127.0.0.1:") && seen.contains("store up"), "{seen}");
    // Remaining permits are requested for the hottest keys, except escaped ones.
    terminal.expect("what is left", |text| text.contains(" of 1,000"));
    // The key is shown as text, and the screen is not cleared.
    assert!(seen.contains(r"\u{1b}[2Jmallory\u{7}"), "{seen}");
    // Numbers change, and bars are drawn.
    let before = row(&seen, "api ").unwrap().to_string();
    terminal.expect("other numbers", |text| row(text, "api ").is_some_and(|row| row != before));
    terminal.expect("blocks", |text| row(text, "api ").is_some_and(|row| row.contains('█')));
    assert!(terminal.screen().styles > 0, "in colours");
    // Keys.
    let first = |text: &str| {
        let rules = text.lines().skip_while(|line| !line.starts_with("RULE")).nth(1);
        rules.unwrap_or_default().split(' ').next().unwrap_or_default().to_string()
    };
    terminal.expect("sorted by denied", |text| first(text) == "login");
    terminal.press("s");
    terminal.expect("sorted by allowed", |text| first(text) == "api" && text.contains("s allowed"));
    terminal.press("?");
    terminal.expect("help", |text| text.contains("Press ? to go back"));
    terminal.press("?p");
    terminal.expect("a pause", |text| text.contains("paused") && text.contains("RULE"));
    terminal.press("p");
    terminal.expect("no pause", |text| !text.contains("paused"));
    // Another size.
    assert!(terminal.screen().text().contains("ERRORS/S"));
    terminal.resize(50, 16);
    let seen = terminal
        .expect("a smaller screen", |text| text.contains("RULE") && text.contains("q quit"));
    assert!(
        !seen.contains("ERRORS/S") && seen.lines().nth(15).unwrap().starts_with("q quit"),
        "{seen}"
    );
    terminal.press("q");
    assert!(terminal.expect_end().success());
}

#[test]
fn without_colours_there_are_none_and_a_signal_gives_the_terminal_back() {
    let server = Arc::new(ServerProcess::with_policy(POLICY));
    let _traffic = Traffic::start(&server);
    for (signal, key) in [
        (Some("TERM"), ""),
        (Some("INT"), ""),
        (Some("QUIT"), ""),
        (None, "\u{3}"),
        (None, "\u{1b}"),
    ] {
        let mut terminal = PtyTerminal::start(top(&server, &[("NO_COLOR", "1")]), 80, 24);
        terminal.expect("a rule", |text| row(text, "login ").is_some());
        match signal {
            Some(signal) => terminal.signal(signal),
            None => terminal.press(key),
        }
        assert!(terminal.expect_end().success(), "{signal:?} {key:?}");
        assert_eq!(terminal.screen().styles, 0);
        let raw = String::from_utf8_lossy(&terminal.screen().raw).into_owned();
        assert!(!raw.contains('\u{7}') && !raw.contains("\u{1b}[2Jmallory"), "{raw:?}");
    }
}

#[test]
fn a_lost_server_is_reported_and_a_restarted_one_is_shown_again() {
    let server = ServerProcess::with_policy(POLICY);
    let relay = Relay::to(server.http);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["top", "--server", &format!("http://{}", relay.address)]);
    let mut terminal = PtyTerminal::start(command, 100, 24);
    terminal.expect("a store", |text| text.contains("store up"));
    relay.shut();
    terminal.expect("that it is gone", |text| {
        text.contains("no connection") && text.contains("reconnecting")
    });
    relay.open();
    terminal.expect("that it is back", |text| {
        !text.contains("no connection") && text.contains("store up")
    });
    // While paused, too.
    terminal.press("p");
    terminal.expect("a pause", |text| text.contains("paused"));
    relay.shut();
    terminal.expect("that it is gone again", |text| text.contains("no connection"));
    relay.open();
    terminal.expect("that it is back, and paused", |text| {
        !text.contains("no connection") && text.contains("paused")
    });
    terminal.press("q");
    assert!(terminal.expect_end().success());
}

#[test]
fn without_a_terminal_one_line_is_printed_per_second() {
    let server = ServerProcess::with_policy(POLICY);
    for _ in 0..7 {
        server.post("/v1/check", &json!({ "rule": "login", "key": HOSTILE }));
    }
    wait_until(|| (server.get("/v1/live").json()["total"]["totals"]["denied"] == 2).then_some(()))
        .expect("it is seen");
    let ran = tidegate(&["top", "--server", &url(&server), "--count", "2"], &[]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{}", ran.stdout);
    assert_eq!(ran.stdout.lines().count(), 2, "{}", ran.stdout);
    for line in ran.stdout.lines() {
        assert!(line.starts_with("allowed=") && line.contains(" store=up "), "{line}");
    }
    let ran = tidegate(&["top", "--server", &url(&server), "--json", "--count", "1"], &[]);
    let seen: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(seen["rules"][0]["name"], "login");
    assert_eq!(seen["denials"].as_array().unwrap().len(), 2);
    // A closed output ends the command.
    let mut child =
        top(&server, &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    lines.read_line(&mut String::new()).unwrap();
    drop(lines);
    let status = wait_until(|| child.try_wait().unwrap()).expect("it ends");
    let mut message = String::new();
    child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    assert_eq!((status.code(), &*message), (Some(0), ""));
}

#[test]
fn an_unreachable_server_a_missing_token_and_bad_flags_are_reported() {
    let missing = "http://127.0.0.1:1";
    let ran = tidegate(&["top", "--server", missing], &[]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("cannot reach 127.0.0.1:1"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("--store"), "which it does not have: {}", ran.stderr);
    let server = ServerProcess::start(&[], &[("TIDEGATE_TOKEN", "check-me")]);
    let ran = tidegate(&["top", "--server", &url(&server), "--count", "1"], &[]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("set TIDEGATE_TOKEN to the server's token"), "{}", ran.stderr);
    let token = [("TIDEGATE_TOKEN", "check-me")];
    let ran = tidegate(&["top", "--server", &url(&server), "--count", "1"], &token);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for arguments in [["--interval", "0s"], ["--interval", "soon"], ["--count", "0"]] {
        let ran = tidegate(&["top", arguments[0], arguments[1]], &[]);
        assert_eq!(ran.code, Some(2), "{arguments:?}");
    }
}
