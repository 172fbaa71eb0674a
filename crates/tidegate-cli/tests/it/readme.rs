//! The commands of the README, and of pages that begin as it does, print what is shown.
//!
//! In a `console` block, a line that starts with `$ ` is a command, and the lines up to the next
//! one are its output. `..` stands for any text, alone in a line for any lines. A `yaml` block that
//! starts with `# name.yaml` is the content of that file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::server::{ServerProcess, TempFolder, tidegate_path, wait_until};

/// A build of several minutes; that the folder exists is checked.
const INSTALL: &str = "cargo install --locked --path crates/tidegate-cli";

/// Passes the address of the server to the commands that call one.
const SHELL: &str = r#"tidegate() {
    case $1 in
    check | explain | health) command tidegate "$@" --server "$SERVER" ;;
    *) command tidegate "$@" ;;
    esac
}
"#;

#[test]
fn the_readme_shows_what_its_commands_print() {
    assert_eq!(run_page("README.md"), 6);
}

#[test]
fn the_first_examples_of_pages_show_what_their_commands_print() {
    let pages = [
        ("docs/start/server.md", 7),
        ("docs/reference/limits.md", 1),
        ("docs/reference/versioning.md", 1),
        ("docs/understand/algorithms.md", 1),
        ("docs/understand/limitations.md", 2),
        ("docs/understand/performance.md", 2),
    ];
    for (page, commands) in pages {
        assert_eq!(run_page(page), commands, "{page}");
    }
}

/// Runs all commands of a page in order, and returns their number.
fn run_page(page: &str) -> usize {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join(page)).unwrap();
    let mut session = Session { folder: TempFolder::new(), server: None };
    let mut count = 0;
    for block in text.split("\n```").collect::<Vec<_>>().chunks_exact(2).map(|pair| pair[1]) {
        let (kind, body) = block.split_once('\n').unwrap();
        if kind == "yaml"
            && let Some(name) = body.strip_prefix("# ").and_then(|rest| rest.lines().next())
        {
            session.folder.write(name, body);
        }
        for (command, shown) in commands(kind, body) {
            count += 1;
            if command == INSTALL {
                assert!(root.join("crates/tidegate-cli/Cargo.toml").is_file());
                continue;
            }
            let printed = session.run(&command, !shown.is_empty());
            let printed: Vec<&str> = printed.lines().map(str::trim_end).collect();
            let is_shown = shown.is_empty() || matches(&shown, &printed);
            assert!(is_shown, "{page}: {command}\n{shown:#?} is shown, printed is\n{printed:#?}");
        }
    }
    count
}

/// The commands of a block and their outputs.
fn commands<'a>(kind: &str, body: &'a str) -> Vec<(String, Vec<&'a str>)> {
    let mut commands: Vec<(String, Vec<&str>)> = Vec::new();
    if kind != "console" {
        return commands;
    }
    for line in body.lines() {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command.to_string(), Vec::new())),
            (None, Some((command, _))) if command.ends_with('\\') => {
                command.pop();
                command.push_str(line.trim_start());
            }
            (None, Some((_, shown))) => shown.push(line),
            (None, None) => panic!("the block does not start with a command: {line}"),
        }
    }
    commands
}

/// A terminal in a folder of its own, with at most one server in the background.
struct Session {
    folder: TempFolder,
    server: Option<ServerProcess>,
}

impl Session {
    fn run(&mut self, command: &str, prints: bool) -> String {
        if let Some(arguments) = command.strip_prefix("tidegate serve") {
            return self.serve(arguments.strip_suffix(" &").unwrap(), prints);
        }
        let addresses = self.server.as_ref().map(|server| (server.http, server.resp));
        let (http, command) = match addresses {
            Some((http, resp)) => {
                let command = command.replace("127.0.0.1:8080", &http.to_string());
                (http.to_string(), command.replace("-p 6380", &format!("-p {}", resp.port())))
            }
            None => (String::new(), command.to_string()),
        };
        let folder = tidegate_path().parent().unwrap();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("{SHELL}{command}")]).current_dir(self.folder.path(""));
        let output =
            shell.env("PATH", path).env("SERVER", format!("http://{http}")).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || prints, "{command}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts a server on free ports. Returns what it prints at the start, if it prints.
    fn serve(&mut self, arguments: &str, prints: bool) -> String {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let printed: PathBuf = self.folder.path("printed");
        let mut command = ServerProcess::command(&arguments, &[]);
        command.current_dir(self.folder.path("")).stdout(File::create(&printed).unwrap());
        self.server = Some(ServerProcess::spawn(command));
        let read = || fs::read_to_string(&printed).ok().filter(|text| !prints || !text.is_empty());
        wait_until(read).unwrap()
    }
}

/// Whether the lines are those that are shown.
fn matches(shown: &[&str], printed: &[&str]) -> bool {
    match (shown, printed) {
        ([], []) => true,
        ([".."], _) => true,
        (["..", rest @ ..], _) => (0..=printed.len()).any(|skip| matches(rest, &printed[skip..])),
        ([first, shown @ ..], [line, printed @ ..]) => {
            matches_line(first, line) && matches(shown, printed)
        }
        _ => false,
    }
}

fn matches_line(shown: &str, printed: &str) -> bool {
    if shown.contains("retry after ") && !shown.contains("..") {
        return without_spans(shown) == without_spans(printed);
    }
    let mut parts = shown.split("..");
    let Some(mut rest) = parts.next().and_then(|first| printed.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, parts)) = parts.split_last() else { return rest.is_empty() };
    for part in parts {
        let Some(position) = rest.find(part) else { return false };
        rest = &rest[position + part.len()..];
    }
    rest.ends_with(last)
}

/// Replaces spans such as `59.8s` and `1m`, which depend on the time since the last command.
fn without_spans(line: &str) -> String {
    let is_span = |word: &str| {
        let word = word.trim_end_matches([';', '.', ',']);
        word.strip_suffix(['s', 'm']).is_some_and(|number| number.parse::<f64>().is_ok())
    };
    let words = line.split(' ').map(|word| if is_span(word) { "SPAN" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn outputs_that_differ_are_found() {
    let shown = ["a", "..", "limit .. of 5", "denied, retry after 59.8s (memory)"];
    let printed = ["a", "b", "", "limit 3 of 5", "denied, retry after 58s (memory)"];
    assert!(matches(&shown, &printed));
    assert!(!matches(&shown, &printed[..4]));
    assert!(!matches(&shown, &["a", "limit 3 of 6", "denied, retry after 58s (memory)"]));
    assert!(!matches(&shown, &["a", "limit 3 of 5", "denied, retry after x (memory)"]));
    assert!(!matches(&shown, &["a", "limit 3 of 5", "allowed, retry after 58s (memory)"]));
}
