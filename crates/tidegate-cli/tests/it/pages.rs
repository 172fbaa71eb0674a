//! The commands of README and manual print what is shown. Recipes have tests of their own.

use std::fs;
use std::path::Path;

use testkit::console_blocks::{ConsoleBlocks, commands, has_programs};
use testkit::server::TempFolder;
use tidegate::Algorithm;
use tidegate_redis::{decide_script, lean_script};

const INSTALL: &str = "cargo install --locked --path crates/tidegate-cli";
const SERVERS_ON_OTHER_HOSTS: &str =
    "other hosts; sentinel_failover and cluster_failover of tidegate-redis have real ones";
const JAVA: &str = "is a test itself, and needs Java";
const ROOT: &str = "needs root and systemd; the operations tests check the unit";
/// The policy of a server that names none.
const SAMPLE: &str = "crates/tidegate-server/src/policy/sample.yaml";
const MODULE: &str = "docs/operate/module.md";
const SCRIPTS: &str = "docs/reference/redis-scripts.md";

/// Pages that are run here, the programs and the ports that they need.
const RUN: [(&str, &[&str], &[u16]); 23] = [
    ("README.md", &["curl"], &[8080]),
    ("docs/operate/bench.md", &[], &[8080]),
    ("docs/operate/console.md", &[], &[8080]),
    ("docs/operate/operations.md", &[], &[8080]),
    ("docs/operate/redis.md", &["redis-server"], &[6379]),
    ("docs/operate/runbook.md", &["curl"], &[8080]),
    ("docs/operate/top.md", &["curl", "jq"], &[8080]),
    ("docs/reference/limits.md", &[], &[]),
    (SCRIPTS, &["python3", "redis-cli", "redis-server"], &[6379]),
    ("docs/reference/versioning.md", &[], &[]),
    ("docs/start/server.md", &["curl"], &[8080]),
    ("docs/understand/algorithms.md", &[], &[]),
    ("docs/understand/limitations.md", &[], &[8080]),
    ("docs/understand/performance.md", &[], &[8080]),
    ("docs/use/budgets.md", &["curl", "jq"], &[8080]),
    ("docs/use/envoy.md", &["curl"], &[8080]),
    ("docs/use/forward-auth.md", &["curl"], &[8080]),
    ("docs/use/http.md", &["curl", "jq", "openssl"], &[8080]),
    ("docs/use/redis-cell.md", &["redis-cli"], &[8080, 6380]),
    ("docs/use/replay.md", &["awk"], &[]),
    ("docs/use/resp.md", &["redis-cli"], &[8080, 6380]),
    ("docs/zh-CN/migrate-from-lua.md", &["curl", "redis-cli"], &[8080, 6380]),
    ("docs/zh-CN/migrate-from-redisson.md", &["redis-server"], &[6379, 8080]),
];

/// Commands that no test runs: page, start of the command, reason.
const NOT_RUN: [(&str, &str, &str); 24] = [
    ("README.md", INSTALL, "a build of minutes"),
    ("README.zh-CN.md", INSTALL, "a build of minutes"),
    ("COMPARE.md", "bench/peers/", "downloads and builds other rate limiters, and measures them"),
    ("docs/start/server.md", INSTALL, "a build of minutes"),
    ("docs/operate/capacity.md", "bench/capacity", "a benchmark"),
    ("docs/operate/console.md", "xdg-open", "`console_browser` opens the pages in Chromium"),
    ("docs/operate/console.md", "TIDEGATE_TOKEN_FILE=", "all interfaces; see `console`"),
    (MODULE, "cargo build", "the test has the library of its own build"),
    ("docs/operate/operations.md", "sudo dpkg", ROOT),
    ("docs/operate/operations.md", "sudo editor", ROOT),
    ("docs/operate/operations.md", "sudo systemctl enable", ROOT),
    ("docs/operate/operations.md", "sudo systemctl reload", ROOT),
    ("docs/operate/operations.md", "tidegate serve --config policy.yaml --otlp", "`traces` does"),
    ("docs/operate/redis-cluster.md", "tidegate serve --store redis-sent", SERVERS_ON_OTHER_HOSTS),
    ("docs/operate/redis-cluster.md", "tidegate serve --store redis-clus", SERVERS_ON_OTHER_HOSTS),
    ("docs/operate/security.md", "cargo test", "is a test itself"),
    ("docs/operate/top.md", "tidegate top --server", "another host"),
    ("docs/operate/top.md", "tidegate top\n", "fills a terminal; `top` runs it in one"),
    (SCRIPTS, "cargo run", "a build; the test writes both files itself"),
    ("docs/use/redisson.md", "cargo test", JAVA),
    ("docs/use/redisson.md", "interop/redisson/fetch", JAVA),
    ("docs/zh-CN/migrate-from-lua.md", "bench/peers/run", "a benchmark"),
    ("docs/zh-CN/migrate-from-redisson.md", "interop/redisson/fetch", JAVA),
    ("docs/zh-CN/migrate-from-spring-cloud-gateway.md", "interop/redisson/fetch", JAVA),
];

/// Pages that other tests run.
const RUN_ELSEWHERE: [(&str, &str); 5] = [
    ("README.zh-CN.md", "crates/testkit/tests/tree/chinese.rs"),
    (MODULE, "crates/tidegate-module/tests/it/page.rs"),
    ("docs/use/choosing-a-limit.md", "crates/tidegate-cli/tests/it/simulate.rs"),
    ("docs/use/clients.md", "crates/tidegate-cli/tests/it/client_snippets.rs"),
    ("docs/zh-CN/choosing-a-limit.md", "crates/testkit/tests/tree/chinese.rs"),
];

/// Starts of lines of output that depend on the machine: what `bench` measures, and whether Redis
/// replies in time to a server that was started with it.
const VARIES: [&str; 6] =
    ["1,000 ", "mean ", "latency ", "sent late ", "kept up with ", "allowed by orders"];

/// Waits that are shown, and depend on the time since the last command.
const WAITS: [&str; 2] = ["59.9s", "29.9s"];

#[test]
fn the_readme_shows_what_its_commands_print() {
    run_all("README.md");
}

#[test]
fn pages_to_start_with_show_what_their_commands_print() {
    run_all("docs/start/");
}

#[test]
fn pages_about_use_show_what_their_commands_print() {
    run_all("docs/use/");
}

#[test]
fn pages_about_operation_show_what_their_commands_print() {
    run_all("docs/operate/");
}

#[test]
fn pages_to_understand_it_show_what_their_commands_print() {
    run_all("docs/understand/");
}

#[test]
fn reference_pages_show_what_their_commands_print() {
    run_all("docs/reference/");
}

#[test]
fn chinese_pages_show_what_their_commands_print() {
    run_all("docs/zh-CN/");
}

#[test]
fn every_command_is_run_or_there_is_a_reason() {
    for page in markdown(root()) {
        let all = commands(&read(&page));
        let not_run = not_run(&page, &all);
        let elsewhere = RUN_ELSEWHERE.iter().find(|(other, _)| *other == page);
        let is_elsewhere = elsewhere.is_some_and(|(_, test)| read(test).contains(&page));
        let is_run = is_elsewhere || RUN.iter().any(|(here, ..)| *here == page);
        assert_eq!(is_run, all.len() > not_run.len(), "{page}");
    }
}

fn root() -> &'static Path {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../..").as_ref()
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap()
}

/// The Markdown files of the root and below `docs`.
fn markdown(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found = entries.flat_map(|path| match path.extension() {
        Some(extension) if extension == "md" => {
            vec![path.strip_prefix(root()).unwrap().to_str().unwrap().to_string()]
        }
        None if path.starts_with(root().join("docs")) && path.is_dir() => markdown(&path),
        _ => Vec::new(),
    });
    found.collect()
}

/// The commands of a page that no test runs. Each entry of the list is one of them.
fn not_run<'a>(page: &str, commands: &'a [String]) -> Vec<&'a str> {
    let starts = NOT_RUN.iter().filter(|(other, ..)| *other == page).map(|(_, start, _)| start);
    let found = starts.flat_map(|start| {
        let is_meant = |command: &&str| format!("{command}\n").starts_with(start);
        let found: Vec<&str> = commands.iter().map(|c| &**c).filter(is_meant).collect();
        assert!(!found.is_empty(), "{page} does not have {start}");
        found
    });
    found.collect()
}

fn run_all(folder: &str) {
    for (page, programs, ports) in RUN.iter().filter(|(page, ..)| page.starts_with(folder)) {
        if has_programs(programs) {
            run(page, ports);
        }
    }
}

/// Runs the console blocks of a page. A `yaml` block that begins with `# name.yaml` is that file.
fn run(page: &str, ports: &[u16]) {
    let mut text = read(page);
    let files = TempFolder::new();
    let write = |name: &str, text: &str| {
        fs::create_dir_all(files.path(name).parent().unwrap()).unwrap();
        // On a busy machine, 100 ms may be too short.
        let deadline = if name == "policy.yaml" { "store_deadline: 20s\n" } else { "" };
        files.write(name, &format!("{deadline}{text}"));
    };
    write("policy.yaml", &read(SAMPLE));
    for block in text.split("```yaml\n# ").skip(1) {
        let (name, rest) = block.split_once('\n').unwrap();
        write(name, rest.split("\n```").next().unwrap());
    }
    if page == SCRIPTS {
        let program = text.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
        write("check.py", program);
        write("token-bucket.lua", decide_script(&[Algorithm::TokenBucket]));
        write("lean.lua", lean_script());
    }
    for wait in WAITS {
        text = text.replace(wait, "..");
    }
    let varies = |line: &str| VARIES.iter().any(|start| line.trim_start().starts_with(start));
    let lines = text.lines().map(|line| if varies(line) { ".." } else { line });
    let text = lines.collect::<Vec<_>>().join("\n");
    let all = commands(&text);
    let blocks = ConsoleBlocks::new(ports).files(&files.path(""));
    blocks.skip(&not_run(page, &all)).run(&text);
}
