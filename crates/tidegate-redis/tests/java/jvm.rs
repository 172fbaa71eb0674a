//! A real Redisson in a JVM process, controlled by one line per command.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::fixture::{TIMEOUT, print_line};

/// One version of Redisson, as `interop/redisson/fetch` installed it.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) name: String,
    folder: PathBuf,
}

impl Version {
    /// The installed 3.x and 4.x. Prints a line and returns none if one of them is missing.
    pub(crate) fn all() -> Vec<Self> {
        let found: Vec<Self> = ["3.", "4."].iter().filter_map(|major| Self::of(major)).collect();
        if found.len() < 2 {
            print_line(
                "skipped: no real Redisson; interop/redisson/fetch installs it, with mvn and java",
            );
            return Vec::new();
        }
        found
    }

    /// The installed version with this prefix.
    pub(crate) fn of(major: &str) -> Option<Self> {
        let prefix = format!("redisson-{major}");
        let entries = fs::read_dir(folder()).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let folder = entries.into_iter().find(|path| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|n| n.starts_with(&prefix))
        })?;
        let name = folder.file_name()?.to_str()?.strip_prefix("redisson-")?.to_owned();
        has_java().then_some(Self { name, folder })
    }

    /// A file of Redisson's own jar, or the string constants of a class in it.
    pub(crate) fn read(&self, name: &str) -> Vec<String> {
        let jar = self.folder.join("lib").join(format!("redisson-{}.jar", self.name));
        self.read_in(&jar, name)
    }

    pub(crate) fn read_in(&self, jar: &Path, name: &str) -> Vec<String> {
        let mut java = self.java("interop.Constants");
        let output = java.arg(jar).arg(name).stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "{name} in {}", jar.display());
        let text = |line: &str| {
            let byte =
                |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            let bytes: Vec<u8> = line.as_bytes().chunks(2).map(byte).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        String::from_utf8(output.stdout).unwrap().lines().map(text).collect()
    }

    fn java(&self, main: &str) -> Command {
        let mut java = Command::new("java");
        java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", "-cp"]);
        let class_path = [self.folder.join("classes"), self.folder.join("lib").join("*")];
        java.arg(env::join_paths(class_path).unwrap()).arg(main).stdin(Stdio::null());
        java
    }
}

/// Output folder of `interop/redisson/fetch`, next to the build output of cargo.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("interop")
}

fn has_java() -> bool {
    let quiet = |command: &mut Command| {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    quiet(Command::new("java").arg("-version"))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JvmTopology {
    Single,
    Cluster,
}

/// A process with a `RedissonClient`, killed on drop.
pub(crate) struct Java {
    child: Child,
    stdin: Mutex<(ChildStdin, u64)>,
    replies: Arc<Mutex<HashMap<u64, Sender<JavaMessage>>>>,
    /// Client id of Redisson.
    pub(crate) id: String,
}

/// A permit of a race, with start and end by Java's clock in us, or the reply that follows them.
pub(crate) enum JavaMessage {
    Permit(u64, u64),
    Reply(Result<String, String>),
}

impl Java {
    pub(crate) fn start(version: &Version, topology: JvmTopology, port: u16) -> Self {
        let mode = match topology {
            JvmTopology::Single => "single",
            JvmTopology::Cluster => "cluster",
        };
        let mut java = version.java("interop.Driver");
        java.arg(mode).arg(format!("redis://127.0.0.1:{port}"));
        let log = fs::File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join("redisson.log"));
        let pipes = java.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log.unwrap());
        let mut child = pipes.spawn().unwrap();
        let stdin = Mutex::new((child.stdin.take().unwrap(), 1));
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, started) = channel();
        let replies = Arc::new(Mutex::new(HashMap::from([(0, sender)])));
        let waiting = Arc::clone(&replies);
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let words: Vec<&str> = line.split('\t').collect();
                let number: u64 = words[0].parse().unwrap();
                let message = match words[1] {
                    "permit" => {
                        JavaMessage::Permit(words[2].parse().unwrap(), words[3].parse().unwrap())
                    }
                    "ok" => JavaMessage::Reply(Ok(words[2].to_owned())),
                    _ => JavaMessage::Reply(Err(words[2].to_owned())),
                };
                let sender: Sender<JavaMessage> = Sender::clone(&waiting.lock().unwrap()[&number]);
                let _ = sender.send(message);
            }
            // The process has ended: drops the senders, so that receivers return an error.
            waiting.lock().unwrap().clear();
        });
        let mut java = Self { child, stdin, replies, id: String::new() };
        java.id = receive_reply(&started).1.expect("Redisson starts");
        java
    }

    /// Sends a command without waiting for its reply.
    pub(crate) fn begin(&self, words: &[&str]) -> Receiver<JavaMessage> {
        let (sender, receiver) = channel();
        let mut stdin = self.stdin.lock().unwrap();
        let number = stdin.1;
        stdin.1 += 1;
        self.replies.lock().unwrap().insert(number, sender);
        writeln!(stdin.0, "{number}\t{}", words.join("\t")).unwrap();
        receiver
    }

    /// The reply to a command, or the message of its exception.
    pub(crate) fn try_command(&self, words: &[&str]) -> Result<String, String> {
        receive_reply(&self.begin(words)).1
    }

    /// The reply to a command. Panics on an exception.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        self.try_command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }
}

/// The permits that come before a reply, and the reply.
pub(crate) fn receive_reply(
    receiver: &Receiver<JavaMessage>,
) -> (Vec<(u64, u64)>, Result<String, String>) {
    let mut permits = Vec::new();
    loop {
        match receiver.recv_timeout(TIMEOUT) {
            Ok(JavaMessage::Permit(start, end)) => permits.push((start, end)),
            Ok(JavaMessage::Reply(reply)) => return (permits, reply),
            Err(RecvTimeoutError::Timeout) => panic!("no reply from Java"),
            Err(RecvTimeoutError::Disconnected) => panic!("Java has ended; see redisson.log"),
        }
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
