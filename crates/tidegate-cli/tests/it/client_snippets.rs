//! The snippets of `docs/use/clients.md`, run with the real client libraries against a server.
//! Without a library, the tests print so and pass.
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use testkit::console_blocks::{ConsoleBlocks, has_programs, matches_output};
use testkit::server::{ServerProcess, TempFolder};

use crate::resp_clients::{FETCHED, python, skip};

const PAGE: &str = include_str!("../../../../docs/use/clients.md");

/// The snippets in a language, in the order of the page.
fn snippets(language: &str) -> Vec<&'static str> {
    let start = format!("\n```{language}\n");
    let after = PAGE.split(&*start).skip(1);
    after.map(|rest| rest.split_once("\n```").unwrap().0).collect()
}

/// Runs a snippet as a file of this name, and compares what it prints with the page.
fn prints_what_the_page_shows(snippet: &str, file: &str, folder: &TempFolder, run: &mut Command) {
    let server = ServerProcess::start(&[], &[]);
    let text = snippet
        .replace("8080", &server.http.port().to_string())
        .replace("6380", &server.resp.port().to_string());
    folder.write(file, &text);
    let output = run.current_dir(folder.path("")).arg(file).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let [expected] = snippets("text")[..] else { panic!("one block shows what they print") };
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{snippet}\n{printed}{error}");
    assert!(matches_output(expected, &printed), "{snippet}\nprints\n{printed}{error}");
}

/// Runs both snippets of a language, unless `has` fails: the test that their libraries exist.
fn run_both(language: &str, file: &str, mut run: impl FnMut() -> Command, has: &[&str]) {
    let found = run().args(has).output().is_ok_and(|output| output.status.success());
    if !found {
        skip(&format!("the client for {language}"), "./test full as root");
        return;
    }
    let both = snippets(language);
    assert_eq!(both.len(), 2, "one for RESP, one for HTTP");
    for snippet in both {
        prints_what_the_page_shows(snippet, file, &TempFolder::new(), &mut run());
    }
}

#[test]
fn the_commands_of_the_page_print_what_it_shows() {
    if has_programs(&["curl", "redis-cli"]) {
        ConsoleBlocks::new(&[8080, 6380]).run(PAGE);
    }
}

#[test]
fn redis_py_and_requests_see_when_to_retry() {
    run_both("python", "check.py", python, &["-c", "import redis, requests"]);
}

#[test]
fn redis_rb_and_net_http_see_when_to_retry() {
    run_both("ruby", "check.rb", || Command::new("ruby"), &["-e", "require 'redis'"]);
}

#[test]
fn phpredis_and_streams_see_when_to_retry() {
    let has = "exit(extension_loaded('redis') ? 0 : 1);";
    run_both("php", "check.php", || Command::new("php"), &["-r", has]);
}

#[test]
fn ioredis_and_fetch_see_when_to_retry() {
    let modules = Path::new(FETCHED).join("node/node_modules");
    if !modules.is_dir() || Command::new("node").arg("--version").output().is_err() {
        skip("ioredis", "interop/node/fetch");
        return;
    }
    for snippet in snippets("js") {
        let folder = TempFolder::new();
        symlink(&modules, folder.path("node_modules")).unwrap();
        prints_what_the_page_shows(snippet, "check.mjs", &folder, &mut Command::new("node"));
    }
}

#[test]
fn go_redis_and_net_http_see_when_to_retry() {
    if !Path::new(FETCHED).join("go/redis").is_file() {
        skip("go-redis", "interop/go/fetch");
        return;
    }
    for snippet in snippets("go") {
        let folder = TempFolder::new();
        folder.write("go.mod", include_str!("../../../../interop/go/go.mod"));
        folder.write("go.sum", include_str!("../../../../interop/go/go.sum"));
        // Everything was downloaded by the script.
        let mut go = Command::new("go");
        go.arg("run").env("GOPROXY", "off").env("GOFLAGS", "-mod=readonly");
        prints_what_the_page_shows(snippet, "check.go", &folder, &mut go);
    }
}

/// The snippet in Java that imports this package.
fn java_snippet(import: &str) -> &'static str {
    snippets("java").into_iter().find(|snippet| snippet.contains(import)).unwrap()
}

fn has_java() -> bool {
    Command::new("java").arg("--version").output().is_ok()
}

#[test]
fn java_net_http_sees_when_to_retry() {
    if !has_java() {
        return skip("Java", "your system's package of a JDK");
    }
    let (snippet, mut java) = (java_snippet("import java.net.http"), Command::new("java"));
    prints_what_the_page_shows(snippet, "Check.java", &TempFolder::new(), &mut java);
}

#[test]
fn lettuce_sees_when_to_retry() {
    let lettuce = Path::new(FETCHED).join("lettuce");
    if !lettuce.is_dir() || !has_java() {
        return skip("Lettuce", "interop/lettuce/fetch");
    }
    let mut java = Command::new("java");
    java.arg("-cp").arg(lettuce.join("*"));
    let snippet = java_snippet("import io.lettuce");
    prints_what_the_page_shows(snippet, "Check.java", &TempFolder::new(), &mut java);
}
