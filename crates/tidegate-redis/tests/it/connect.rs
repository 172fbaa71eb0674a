//! Connections to one server by name, Unix socket, login and database; and which server versions
//! are accepted.

use testkit::engine::{TEST_TIMEOUT, assert_admits, connect_error, engine, wait_until};
use testkit::redis::RedisServer;
use tidegate::{Engine, Fallback};
use tidegate_redis::Redis;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn over_a_unix_socket_redis_passes_the_conformance_suite() {
    let (_server, url) = with_socket(&[]);
    tidegate::conformance::run(|clock| {
        Redis::builder(&url).deadline(TEST_TIMEOUT).test_clock(clock).build().unwrap()
    })
    .await;
}

#[tokio::test]
async fn a_unix_socket_url_takes_a_login_and_a_database() {
    let (server, url) = with_socket(&["--requirepass", "p&w"]);
    let error = connect_error(&url).await;
    assert!(error.contains("NOAUTH"), "{error}");
    assert_admits(&format!("{url}?password=p%26w&db=3")).await;
    assert!(server.cli(&["-a", "p&w", "INFO", "keyspace"]).contains("db3:"));
    let error = connect_error(&format!("{url}.gone")).await;
    assert!(error.contains(".gone"), "{error}");
}

#[tokio::test]
async fn a_name_is_resolved_and_all_its_addresses_are_tried() {
    // The server listens on 127.0.0.1 only, and the name may resolve to ::1 first.
    let server = RedisServer::start();
    assert_admits(&format!("redis://localhost:{}", server.port())).await;
    let error = connect_error("redis://name.invalid:6379").await;
    assert!(error.contains("cannot connect to redis at name.invalid:6379"), "{error}");
}

#[tokio::test]
async fn each_database_counts_separately() {
    let server = RedisServer::start();
    for db in [0, 5] {
        assert_admits(&format!("redis://127.0.0.1:{}/{db}", server.port())).await;
    }
    let keyspace = server.cli(&["INFO", "keyspace"]);
    assert!(keyspace.contains("db0:keys=2") && keyspace.contains("db5:keys=2"), "{keyspace}");
    let error = connect_error(&format!("redis://127.0.0.1:{}/99", server.port())).await;
    assert!(error.contains("database"), "{error}");
}

#[tokio::test]
async fn a_password_is_accepted_and_a_wrong_one_is_not() {
    let server = RedisServer::start_with(&["--requirepass", "p@s:s/w?o%rd"]);
    let port = server.port();
    assert_admits(&format!("redis://:p@s:s%2Fw%3Fo%25rd@127.0.0.1:{port}")).await;
    assert_admits(&format!("redis://default:p%40s:s%2Fw%3Fo%25rd@127.0.0.1:{port}")).await;
    for login in ["", ":hunter2@", "default:hunter2@", "unknown:hunter2@"] {
        let error = connect_error(&format!("redis://{login}127.0.0.1:{port}")).await;
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[tokio::test]
async fn a_user_logs_in_with_name_and_password() {
    let server = RedisServer::start();
    server.cli(&["ACL", "SETUSER", "ann@x", "on", ">hunter2", "~*", "+@all"]);
    assert_admits(&format!("redis://ann%40x:hunter2@127.0.0.1:{}", server.port())).await;
    let error =
        connect_error(&format!("redis://ann%40x:hunter3@127.0.0.1:{}", server.port())).await;
    assert!(error.contains("authentication failed") && !error.contains("hunter"), "{error}");
}

#[tokio::test]
async fn a_server_older_than_6_2_is_refused_with_its_version() {
    for (hello, info, version) in [
        (hello("redis", "6.0.16"), "-NOPERM no\r\n".to_owned(), "6.0.16"),
        ("-ERR unknown command `HELLO`\r\n".into(), info("redis_version:5.0.7"), "5.0.7"),
    ] {
        let error = connect_error(&fake_server(hello, info).await).await;
        let expected = format!("redis {version} is too old; use 6.2 or newer");
        assert!(error.contains(&expected), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_report_its_version_is_accepted() {
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
        let engine = engine(&fake_server(hello, info).await);
        wait_until(|| engine.health().up).await;
        assert_eq!(engine.health().warning, None);
    }
}

#[tokio::test]
async fn a_server_that_evicts_causes_a_warning_while_it_is_connected() {
    let mut server = RedisServer::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    let engine = Fallback::new(engine(&server.url()));
    wait_until(|| engine.health().up).await;
    let warning = engine.health().warning.expect("a warning");
    assert!(warning.contains("allkeys-lru") && warning.contains("noeviction"), "{warning}");

    // A user without permission for INFO gets no warning, and is served.
    server.cli(&["ACL", "SETUSER", "blind", "on", ">pw", "~*", "+@all", "-info", "-ping"]);
    let blind = format!("redis://blind:pw@127.0.0.1:{}", server.port());
    assert_admits(&blind).await;

    server.kill();
    wait_until(|| !engine.health().up).await;
    assert_eq!(engine.health().warning, None);
    let quiet = RedisServer::start();
    let engine = testkit::engine::engine(&quiet.url());
    wait_until(|| engine.health().up).await;
    assert_eq!(engine.health().warning, None);
}

/// A server with a Unix socket, and the URL of the socket.
fn with_socket(args: &[&str]) -> (RedisServer, String) {
    // A relative path, in the server's own folder: the kernel does not accept long socket paths.
    let server = RedisServer::start_with(&[&["--unixsocket", "redis.sock"], args].concat());
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

/// URL of a server that sends these replies to HELLO and INFO, and serves no other command.
async fn fake_server(hello: String, info: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(send_replies(stream, hello.clone(), info.clone()));
        }
    });
    url
}

async fn send_replies(mut stream: TcpStream, hello: String, info: String) {
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
