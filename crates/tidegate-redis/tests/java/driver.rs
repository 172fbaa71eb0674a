//! A real Redisson in a process of its own, asked line by line.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::lab::{PATIENCE, say};

/// One version of Redisson, as `interop/redisson/fetch` has left it.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) name: String,
    folder: PathBuf,
}

impl Version {
    /// The latest of 3.x and of 4.x; none, and a word about it, if they are not there.
    pub(crate) fn all() -> Vec<Self> {
        let found: Vec<Self> = ["3.", "4."].iter().filter_map(|major| Self::of(major)).collect();
        if found.len() < 2 {
            say("not beside a real Redisson; interop/redisson/fetch gets it, with mvn and java");
            return Vec::new();
        }
        found
    }

    /// The one of that major version.
    pub(crate) fn of(major: &str) -> Option<Self> {
        let prefix = format!("redisson-{major}");
        let entries = fs::read_dir(folder()).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let folder = entries.into_iter().find(|path| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|n| n.starts_with(&prefix))
        })?;
        let name = folder.file_name()?.to_str()?.strip_prefix("redisson-")?.to_owned();
        has_java().then_some(Self { name, folder })
    }

    /// What lies in its own jar: a file, or the texts of a class.
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
        let places = [self.folder.join("classes"), self.folder.join("lib").join("*")];
        java.arg(env::join_paths(places).unwrap()).arg(main).stdin(Stdio::null());
        java
    }
}

/// Where `interop/redisson/fetch` puts everything: beside what cargo builds.
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

/// How the servers are arranged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Servers {
    Single,
    Cluster,
}

/// A process with a `RedissonClient`. Dropped, it is killed.
pub(crate) struct Java {
    child: Child,
    stdin: Mutex<(ChildStdin, u64)>,
    answers: Arc<Mutex<HashMap<u64, Sender<Said>>>>,
    /// By what Redisson tells its clients apart.
    pub(crate) id: String,
}

/// A permit from a race, by Java's clock in us, or the answer behind them.
pub(crate) enum Said {
    Permit(u64, u64),
    Answer(Result<String, String>),
}

impl Java {
    pub(crate) fn start(version: &Version, servers: Servers, port: u16) -> Self {
        let mode = match servers {
            Servers::Single => "single",
            Servers::Cluster => "cluster",
        };
        let mut java = version.java("interop.Driver");
        java.arg(mode).arg(format!("redis://127.0.0.1:{port}"));
        let log = fs::File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join("redisson.log"));
        let pipes = java.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log.unwrap());
        let mut child = pipes.spawn().unwrap();
        let stdin = Mutex::new((child.stdin.take().unwrap(), 1));
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (hello, greeted) = channel();
        let answers = Arc::new(Mutex::new(HashMap::from([(0, hello)])));
        let waiting = Arc::clone(&answers);
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let words: Vec<&str> = line.split('\t').collect();
                let number: u64 = words[0].parse().unwrap();
                let said = match words[1] {
                    "permit" => Said::Permit(words[2].parse().unwrap(), words[3].parse().unwrap()),
                    "ok" => Said::Answer(Ok(words[2].to_owned())),
                    _ => Said::Answer(Err(words[2].to_owned())),
                };
                let sender: Sender<Said> = Sender::clone(&waiting.lock().unwrap()[&number]);
                let _ = sender.send(said);
            }
            // Nobody waits for a process that has ended.
            waiting.lock().unwrap().clear();
        });
        let mut java = Self { child, stdin, answers, id: String::new() };
        java.id = answer(&greeted).1.expect("Redisson starts");
        java
    }

    /// Begins an operation.
    pub(crate) fn begin(&self, words: &[&str]) -> Receiver<Said> {
        let (sender, receiver) = channel();
        let mut stdin = self.stdin.lock().unwrap();
        let number = stdin.1;
        stdin.1 += 1;
        self.answers.lock().unwrap().insert(number, sender);
        writeln!(stdin.0, "{number}\t{}", words.join("\t")).unwrap();
        receiver
    }

    /// What an operation answers, or what its exception says.
    pub(crate) fn ask(&self, words: &[&str]) -> Result<String, String> {
        answer(&self.begin(words)).1
    }

    /// What one answers that must.
    pub(crate) fn told(&self, words: &[&str]) -> String {
        self.ask(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }
}

/// The permits that come before an answer, and the answer.
pub(crate) fn answer(receiver: &Receiver<Said>) -> (Vec<(u64, u64)>, Result<String, String>) {
    let mut permits = Vec::new();
    loop {
        match receiver.recv_timeout(PATIENCE) {
            Ok(Said::Permit(start, end)) => permits.push((start, end)),
            Ok(Said::Answer(answer)) => return (permits, answer),
            Err(RecvTimeoutError::Timeout) => panic!("Java says nothing"),
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
