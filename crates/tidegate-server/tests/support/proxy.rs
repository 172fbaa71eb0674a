//! Real proxies in front of the server, as the documentation configures them.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::support::{Folder, PATIENCE, Response, Server, wait_until};
use crate::wire;

/// A proxy, killed when it is dropped.
pub struct Proxy {
    child: Child,
    pub address: SocketAddr,
}

/// The programs that tests know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    Nginx,
    Caddy,
}

impl Program {
    pub fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Caddy => "caddy",
        }
    }

    /// How to get it.
    pub fn install(self) -> &'static str {
        match self {
            Self::Nginx => "apt-get install --yes --no-install-recommends nginx-light",
            Self::Caddy => "apt-get install --yes --no-install-recommends caddy",
        }
    }

    /// The language of its block in the documentation.
    fn language(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Caddy => "caddyfile",
        }
    }

    /// Where it is, if it is there.
    fn path(self) -> Option<String> {
        let folders = ["/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin", "/sbin"];
        let path = std::env::var("PATH").unwrap_or_default();
        let all = path.split(':').chain(folders);
        let mut found = all.map(|folder| format!("{folder}/{}", self.name()));
        found.find(|path| Path::new(path).is_file())
    }
}

impl Proxy {
    /// The proxy with its block of the documentation, in which only ports are replaced. `None` and a
    /// line about it if the program is missing or not wanted.
    pub fn start(
        program: Program,
        documentation: &str,
        server: &Server,
        upstream: &Upstream,
    ) -> Option<Self> {
        let name = program.name();
        let path = match (std::env::var("TIDEGATE_SKIP_PROXIES").as_deref(), program.path()) {
            (Ok("1"), _) => return skip(name, "TIDEGATE_SKIP_PROXIES is set"),
            (_, None) => return skip(name, &format!("not installed; {}", program.install())),
            (_, Some(path)) => path,
        };
        let address = free_address();
        let block = block(documentation, program.language()).expect("a block in the documentation");
        let replaced = block
            .replace("8000", &address.port().to_string())
            .replace("127.0.0.1:8080", &server.http.to_string())
            .replace("127.0.0.1:9000", &upstream.address.to_string());
        let folder = Folder::new();
        let mut command = Command::new(path);
        match program {
            Program::Nginx => {
                let around = around_nginx(&folder.path(""), &replaced);
                let file = folder.write("nginx.conf", &around);
                command.arg("-p").arg(folder.path("")).arg("-c").arg(file).args(["-e", "stderr"]);
            }
            Program::Caddy => {
                let text = format!("{{\n    admin off\n}}\n{replaced}");
                let file = folder.write("Caddyfile", &text);
                command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file);
                command.env("HOME", folder.path("")).env("XDG_DATA_HOME", folder.path("data"));
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the proxy starts");
        let log = kept(child.stderr.take().expect("standard error is piped"));
        let proxy = Self { child, address };
        let up = wait_until(|| TcpStream::connect(address).ok());
        assert!(up.is_some(), "{name} does not listen: {:?}", log.lock().expect("a log"));
        Some(proxy)
    }

    /// One request from this address of the machine itself.
    pub fn request(
        &self,
        from: Ipv4Addr,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response {
        let fields = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
        let fields: String = fields.collect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: shop.example\r\nconnection: close\r\n\
             content-length: {}\r\n{fields}\r\n{body}",
            body.len()
        );
        let answered = wire::exchange_from(from, self.address, head.as_bytes());
        wire::answer(&answered).expect("the proxy answers")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn skip(name: &str, reason: &str) -> Option<Proxy> {
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "skipped: {name}: {reason}").expect("standard error");
    None
}

/// What is logged until the end.
fn kept(stderr: impl Read + Send + 'static) -> Arc<Mutex<Vec<String>>> {
    let log = Arc::new(Mutex::new(Vec::new()));
    let kept = log.clone();
    std::thread::spawn(move || {
        let lines = BufReader::new(stderr).lines().map_while(Result::ok);
        lines.for_each(|line| kept.lock().expect("a log").push(line));
    });
    log
}

/// What must be around a `server` block for nginx to run in the foreground, in a folder of its own.
fn around_nginx(folder: &Path, block: &str) -> String {
    let folder = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("    {name}_temp_path {folder}/{name};\n"))
        .concat();
    format!(
        "daemon off;\nmaster_process off;\npid {folder}/nginx.pid;\nerror_log stderr;\n\
         events {{}}\nhttp {{\n    access_log off;\n{temporary}{block}\n}}\n"
    )
}

/// The first block in this language.
pub fn block<'a>(documentation: &'a str, language: &str) -> Option<&'a str> {
    let start = format!("```{language}\n");
    let (_, rest) = documentation.split_once(&*start)?;
    Some(rest.split_once("\n```")?.0)
}

/// An address at which nobody listened just now.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address")
}

/// The service behind the proxy: answers with what it was asked, and remembers it.
pub struct Upstream {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let kept = kept.clone();
                std::thread::spawn(move || serve(stream, &kept));
            }
        });
        Self { address, seen }
    }

    /// The requests so far: method, path and body.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("the requests").clone()
    }
}

fn serve(stream: TcpStream, seen: &Mutex<Vec<String>>) -> Option<()> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut request = String::new();
        reader.read_line(&mut request).ok().filter(|length| *length > 0)?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            match line.trim_end().to_ascii_lowercase().split_once(": ") {
                Some(("content-length", value)) => length = value.parse().ok()?,
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let target = request.rsplit_once(' ')?.0;
        let told = format!("{target} {}", String::from_utf8_lossy(&body)).trim_end().to_string();
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{told}", told.len());
        seen.lock().ok()?.push(told);
        reader.get_mut().write_all(answer.as_bytes()).ok()?;
    }
}
