//! Every way to one server: by name, by socket, with a login, to a database; and which servers will
//! do.

use crate::{asking, server};
use asking::{PATIENCE, admitted, engine, refused, until};
use server::Server;
use tidegate::{Engine, Fallback};
use tidegate_redis::Redis;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn over_a_socket_redis_keeps_every_claim() {
    let (_server, url) = with_socket(&[]);
    tidegate::conformance::run(|clock| {
        Redis::builder(&url).deadline(PATIENCE).test_clock(clock).build().unwrap()
    })
    .await;
}

#[tokio::test]
async fn a_socket_takes_a_login_and_a_database() {
    let (server, url) = with_socket(&["--requirepass", "p&w"]);
    let told = refused(&url).await;
    assert!(told.contains("NOAUTH"), "{told}");
    admitted(&format!("{url}?password=p%26w&db=3")).await;
    assert!(server.cli(&["-a", "p&w", "INFO", "keyspace"]).contains("db3:"));
    let told = refused(&format!("{url}.gone")).await;
    assert!(told.contains(".gone"), "the place is named: {told}");
}

#[tokio::test]
async fn a_name_is_looked_up_and_all_its_addresses_are_tried() {
    // It listens on 127.0.0.1 only, and the name may have ::1 before it.
    let server = Server::start();
    admitted(&format!("redis://localhost:{}", server.port())).await;
    let told = refused("redis://name.invalid:6379").await;
    assert!(told.contains("cannot reach redis at name.invalid:6379"), "{told}");
}

#[tokio::test]
async fn each_database_counts_for_itself() {
    let server = Server::start();
    for db in [0, 5] {
        admitted(&format!("redis://127.0.0.1:{}/{db}", server.port())).await;
    }
    let keyspace = server.cli(&["INFO", "keyspace"]);
    assert!(keyspace.contains("db0:keys=2") && keyspace.contains("db5:keys=2"), "{keyspace}");
    let told = refused(&format!("redis://127.0.0.1:{}/99", server.port())).await;
    assert!(told.contains("database"), "{told}");
}

#[tokio::test]
async fn a_password_opens_the_door_and_a_wrong_one_does_not() {
    let server = Server::start_with(&["--requirepass", "p@s:s/w?o%rd"]);
    let port = server.port();
    admitted(&format!("redis://:p@s:s%2Fw%3Fo%25rd@127.0.0.1:{port}")).await;
    admitted(&format!("redis://default:p%40s:s%2Fw%3Fo%25rd@127.0.0.1:{port}")).await;
    for login in ["", ":hunter2@", "default:hunter2@", "nobody:hunter2@"] {
        let told = refused(&format!("redis://{login}127.0.0.1:{port}")).await;
        assert!(!told.contains("hunter2"), "{told}");
    }
}

#[tokio::test]
async fn a_user_enters_with_name_and_password() {
    let server = Server::start();
    server.cli(&["ACL", "SETUSER", "ann@x", "on", ">hunter2", "~*", "+@all"]);
    admitted(&format!("redis://ann%40x:hunter2@127.0.0.1:{}", server.port())).await;
    let told = refused(&format!("redis://ann%40x:hunter3@127.0.0.1:{}", server.port())).await;
    assert!(told.contains("authentication failed") && !told.contains("hunter"), "{told}");
}

#[tokio::test]
async fn a_server_older_than_6_2_is_refused_with_its_version() {
    for (hello, info, version) in [
        (hello("redis", "6.0.16"), "-NOPERM no\r\n".to_owned(), "6.0.16"),
        ("-ERR unknown command `HELLO`\r\n".into(), info("redis_version:5.0.7"), "5.0.7"),
    ] {
        let told = refused(&pretending(hello, info).await).await;
        let expected = format!("redis {version} is older than 6.2");
        assert!(told.contains(&expected), "{told}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_tell_its_age_is_taken_as_it_is() {
    let denied = || "-NOPERM this user may not\r\n".to_owned();
    for (hello, info) in [
        (hello("redis", "6.2.0"), denied()),
        (hello("redis", "255.255.255"), denied()),
        (hello("valkey", "1.0.0"), denied()),
        (hello("redis", "unknown"), denied()),
        (denied(), denied()),
        ("*0\r\n".into(), "$0\r\n\r\n".into()),
        (":1\r\n".into(), "$-1\r\n".into()),
    ] {
        let engine = engine(&pretending(hello, info).await);
        until(|| engine.health().up).await;
        assert_eq!(engine.health().warning, None);
    }
}

#[tokio::test]
async fn a_server_that_evicts_is_warned_of_for_as_long_as_it_does() {
    let mut server = Server::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    let engine = Fallback::new(engine(&server.url()));
    until(|| engine.health().up).await;
    let warning = engine.health().warning.expect("a warning");
    assert!(warning.contains("allkeys-lru") && warning.contains("noeviction"), "{warning}");

    // A user who may not ask is told nothing, and served.
    server.cli(&["ACL", "SETUSER", "blind", "on", ">pw", "~*", "+@all", "-info", "-ping"]);
    let blind = format!("redis://blind:pw@127.0.0.1:{}", server.port());
    admitted(&blind).await;

    server.kill();
    until(|| !engine.health().up).await;
    assert_eq!(engine.health().warning, None);
    let quiet = Server::start();
    let engine = asking::engine(&quiet.url());
    until(|| engine.health().up).await;
    assert_eq!(engine.health().warning, None);
}

/// A server with a socket, and the address of that.
fn with_socket(args: &[&str]) -> (Server, String) {
    // Relative, so that it lies in the server's own folder: the kernel takes no long paths.
    let server = Server::start_with(&[&["--unixsocket", "redis.sock"], args].concat());
    let dir = std::fs::read_link(format!("/proc/{}/cwd", server.pid())).unwrap();
    let url = format!("unix://{}/redis.sock", dir.display());
    (server, url)
}

fn hello(server: &str, version: &str) -> String {
    let words = ["server", server, "version", version];
    let words = words.map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*4\r\n{}", words.concat())
}

fn info(line: &str) -> String {
    format!("${}\r\n{line}\r\n\r\n", line.len() + 2)
}

/// The address of a server that says so about itself, and nothing else.
async fn pretending(hello: String, info: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(pretend(stream, hello.clone(), info.clone()));
        }
    });
    url
}

async fn pretend(mut stream: TcpStream, hello: String, info: String) {
    let mut buffer = [0; 4096];
    while let Ok(len @ 1..) = stream.read(&mut buffer).await {
        let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
        for word in text.split("\r\n") {
            let reply = match word {
                "PING" => "+PONG\r\n",
                "CLIENT" => "+OK\r\n",
                "HELLO" => &hello,
                "INFO" => &info,
                _ => continue,
            };
            if stream.write_all(reply.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}
