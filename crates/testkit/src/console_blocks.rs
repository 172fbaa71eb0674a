//! Runs the console blocks of a Markdown page, and compares what they print.
//!
//! In a `console` block, a line that begins with `$ ` is a command, continued while lines end with
//! `\` or a quotation by `'` is open. The lines up to the next command are its output: `..` stands
//! for any text in a line, a line `..` for any lines, and what follows `  # ` is a comment. All
//! commands of a page run in one bash. A command that ends with ` &` is a server: its output is not
//! compared, and the next command waits until it listens.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::redis::ReservedPort;
use crate::server::{TempFolder, tidegate_path, wait_until};

/// Line between the outputs of two commands.
const SEPARATOR: &str = "-- next command --";

/// Default ports of the listeners: HTTP, RESP and gRPC.
const TIDEGATE_PORTS: [u16; 3] = [8080, 6380, 8081];

/// Not in `PATH` of every user, and where nginx is installed.
const SYSTEM_FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// A folder in which the blocks of a page run. Ports in files, commands and outputs are replaced
/// by free ones, so that tests can run at the same time.
pub struct ConsoleBlocks {
    folder: TempFolder,
    /// As documented, and as used by this test.
    ports: Vec<(u16, u16)>,
    _reserved: Vec<ReservedPort>,
    /// Commands wait for these, once a server was started.
    awaited: Vec<u16>,
    path: String,
    variables: Vec<(String, String)>,
    skipped: Vec<String>,
}

impl ConsoleBlocks {
    /// `ports` are the documented ports of the servers that the page starts.
    pub fn new(ports: &[u16]) -> Self {
        let mut reserved = Vec::new();
        let mut any_port = || {
            reserved.push(ReservedPort::any());
            reserved[reserved.len() - 1].number
        };
        let mut all: Vec<_> = TIDEGATE_PORTS.map(|port| (port, any_port())).into();
        let awaited: Vec<u16> = ports
            .iter()
            .map(|port| match all.iter().find(|(documented, _)| documented == port) {
                Some((_, used)) => *used,
                None => {
                    all.push((*port, any_port()));
                    all[all.len() - 1].1
                }
            })
            .collect();
        let folder = TempFolder::new();
        for name in ["bin", "files"] {
            fs::create_dir_all(folder.path(name)).unwrap();
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let system = SYSTEM_FOLDERS.join(":");
        let path = format!("{}:{path}:{system}", folder.path("bin").display());
        let (variables, skipped) = (Vec::new(), Vec::new());
        Self { folder, ports: all, _reserved: reserved, awaited, path, variables, skipped }
    }

    /// Adds a program under the name that the page uses.
    #[must_use]
    pub fn program(self, name: &str, program: &Path) -> Self {
        std::os::unix::fs::symlink(program, self.folder.path("bin").join(name)).unwrap();
        self
    }

    /// Sets a variable for all commands; documented ports in it are replaced.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        let value = self.with_used_ports(value);
        self.variables.push((name.to_string(), value));
        self
    }

    /// Does not run these commands, which the page must have.
    #[must_use]
    pub fn skip(mut self, commands: &[&str]) -> Self {
        self.skipped = commands.iter().map(|command| self.with_used_ports(command)).collect();
        self
    }

    /// Copies files, which the commands find in the current folder.
    #[must_use]
    pub fn files(self, from: &Path) -> Self {
        copy(from, &self.folder.path("files"), &|text| self.with_used_ports(text));
        self
    }

    /// Replaces text of a file, for a time that is too short for a busy machine.
    #[must_use]
    pub fn replace(self, file: &str, from: &str, to: &str) -> Self {
        let name = format!("files/{file}");
        let text = fs::read_to_string(self.folder.path(&name)).unwrap();
        assert!(text.contains(from), "{file} does not contain {from}");
        self.folder.write(&name, &text.replace(from, to));
        self
    }

    /// The documented port becomes the port that this test uses.
    pub fn with_used_ports(&self, text: &str) -> String {
        let mut replaced = String::new();
        let mut rest = text;
        while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
            let (before, number) = rest.split_at(start);
            let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
            let (number, after) = number.split_at(end);
            let used = self.ports.iter().find(|(documented, _)| documented.to_string() == number);
            replaced += before;
            replaced += &used.map_or(number.to_string(), |(_, used)| used.to_string());
            rest = after;
        }
        replaced + rest
    }

    /// Runs all blocks of the page. Panics if a command prints something else than documented.
    pub fn run(&self, page: &str) {
        let mut examples = examples(&self.with_used_ports(page));
        for skipped in &self.skipped {
            assert!(examples.iter().any(|e| e.command == *skipped), "not on the page: {skipped}");
        }
        examples.retain(|example| !self.skipped.contains(&example.command));
        assert!(!examples.is_empty(), "the page has no command to run");
        if examples.iter().any(|example| example.command.contains("tidegate ")) {
            let ports = TIDEGATE_PORTS.map(|port| self.with_used_ports(&port.to_string()));
            let file = self.folder.write("bin/tidegate", &tidegate_on(&ports));
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let script = self.folder.write("script", &self.script(&examples));
        let output = fs::File::create(self.folder.path("output")).unwrap();
        let mut shell = Command::new("bash");
        shell.arg(script).current_dir(self.folder.path("files")).process_group(0);
        shell.env("PATH", &self.path).envs(self.variables.iter().cloned());
        // redis-cli prints as in a terminal.
        shell.env("FAKETTY", "1");
        shell.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        let mut shell = ProcessGroup(shell.spawn().expect("bash runs"));
        let ended = wait_until(|| shell.0.try_wait().unwrap());
        let read = |name: &str| fs::read(self.folder.path(name)).unwrap_or_default();
        let output = String::from_utf8_lossy(&read("output")).replace('\r', "");
        let log = String::from_utf8_lossy(&read("log")).into_owned();
        assert!(ended.is_some(), "the commands do not end:\n{output}\n{log}");
        let separator = format!("{SEPARATOR}\n");
        let mut outputs = output.split(&separator).skip(1);
        for example in &examples {
            let Example { command, expected } = example;
            let printed = outputs.next().unwrap_or_else(|| panic!("not run: {command}\n{output}"));
            let expected = expected.join("\n");
            assert!(
                matches_output(&expected, printed),
                "$ {command}\nprints\n{printed}\ninstead of\n{expected}\nservers:\n{log}",
            );
        }
    }

    fn script(&self, examples: &[Example]) -> String {
        let log = self.folder.path("log");
        let ports: Vec<String> = self.awaited.iter().map(u16::to_string).collect();
        // 600 times 0.1 s; an open port ends it.
        let mut script = format!(
            "listening() {{ for port in {}; do for i in {{1..600}}; do\n\
             (exec 3<>/dev/tcp/127.0.0.1/$port) 2>/dev/null && continue 2; sleep 0.1; done\n\
             echo \"nothing listens on port $port\"; exit 1; done; }}\n",
            ports.join(" ")
        );
        let mut is_started = false;
        for Example { command, .. } in examples {
            if let Some(server) = command.strip_suffix('&') {
                script += &format!("echo '{SEPARATOR}'\n{server} >>{} 2>&1 &\n", log.display());
                is_started = true;
            } else {
                let wait = if is_started { "listening\n" } else { "" };
                script += &format!("{wait}echo '{SEPARATOR}'\n{command}\n");
                is_started = false;
            }
        }
        script + if is_started { "listening\n" } else { "" }
    }
}

/// Whether all programs are installed. Prints a line on stderr for each that is not.
pub fn has_programs(names: &[&str]) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders: Vec<&str> = path.split(':').chain(SYSTEM_FOLDERS).collect();
    let is_missing = |name: &&&str| !folders.iter().any(|at| Path::new(at).join(name).is_file());
    let missing: Vec<_> = names.iter().filter(is_missing).collect();
    for name in &missing {
        let _ = writeln!(std::io::stderr(), "skipped: {name} is not installed");
    }
    missing.is_empty()
}

/// A script that runs `tidegate` with these ports instead of the default ones.
fn tidegate_on([http, resp, grpc]: &[String; 3]) -> String {
    let program = tidegate_path().display();
    format!(
        "#!/usr/bin/env bash\n\
         add() {{ case \" ${{all[*]}} \" in *\" $1 \"*) ;; *) all+=(\"$@\") ;; esac; }}\n\
         all=(\"$@\")\n\
         case $1 in\n\
         serve) add --http 127.0.0.1:{http}; add --resp 127.0.0.1:{resp}; \
         add --grpc 127.0.0.1:{grpc} ;;\n\
         check | explain | inspect | reset | override | health | top)\n    \
         case \" $* \" in *\" --store \"*) ;; *) add --server http://127.0.0.1:{http} ;; esac ;;\n\
         esac\n\
         exec {program} \"${{all[@]}}\"\n"
    )
}

/// Kills a shell and the servers it has started, on drop.
struct ProcessGroup(Child);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

fn copy(from: &Path, to: &Path, change: &dyn Fn(&str) -> String) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target, change);
        } else {
            fs::write(&target, change(&fs::read_to_string(entry.path()).unwrap())).unwrap();
            fs::set_permissions(&target, entry.metadata().unwrap().permissions()).unwrap();
        }
    }
}

/// A command and what it prints.
#[derive(Debug, PartialEq)]
struct Example {
    command: String,
    expected: Vec<String>,
}

/// The commands of a page.
pub fn commands(page: &str) -> Vec<String> {
    examples(page).into_iter().map(|example| example.command).collect()
}

fn examples(page: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let (mut is_console, mut is_continued) = (false, false);
    for line in page.lines() {
        if line.starts_with("```") {
            is_console = line == "```console";
            continue;
        }
        if !is_console {
            continue;
        }
        if let Some(command) = line.strip_prefix("$ ") {
            examples.push(Example { command: command.to_string(), expected: Vec::new() });
            is_continued = is_unfinished(command);
        } else if let Some(last) = examples.last_mut() {
            if is_continued {
                last.command += &format!("\n{line}");
                is_continued = is_unfinished(&last.command);
            } else {
                let output = line.split_once("  # ").map_or(line, |(output, _)| output);
                last.expected.push(output.to_string());
            }
        }
    }
    examples
}

/// Whether the next line belongs to the command.
fn is_unfinished(command: &str) -> bool {
    command.ends_with('\\') || command.matches('\'').count() % 2 == 1
}

/// Whether a program has printed what a page shows, spaces at the ends of lines apart.
pub fn matches_output(expected: &str, printed: &str) -> bool {
    let lines = |text| str::lines(text).map(str::trim_end).collect::<Vec<_>>();
    matches_lines(&lines(expected), &lines(printed))
}

fn matches_lines(expected: &[&str], printed: &[&str]) -> bool {
    match (expected, printed) {
        ([], _) => printed.is_empty(),
        (["..", rest @ ..], _) => {
            (0..=printed.len()).any(|skipped| matches_lines(rest, &printed[skipped..]))
        }
        ([line, rest @ ..], [first, others @ ..]) => {
            matches_line(line, first) && matches_lines(rest, others)
        }
        (_, []) => false,
    }
}

fn matches_line(expected: &str, printed: &str) -> bool {
    let Some((start, rest)) = expected.split_once("..") else { return expected == printed };
    let Some(printed) = printed.strip_prefix(start) else { return false };
    let mut ends = printed.char_indices().map(|(at, _)| at).chain([printed.len()]);
    ends.any(|at| matches_line(rest, &printed[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_outputs_are_found() {
        let page = "text\n```sh\n$ no\n```\n```console\n$ a \\\n    b\none\n$ c &\n$ d\n\n\
                    $ e '{\n}'\n1  # first\n```\n";
        assert_eq!(commands(page), ["a \\\n    b", "c &", "d", "e '{\n}'"]);
        let found = examples(page);
        let outputs: Vec<_> = found.iter().map(|example| example.expected.join("\n")).collect();
        assert_eq!(outputs, ["one", "", "", "1"]);
    }

    #[test]
    fn two_dots_stand_for_text_or_lines_and_nothing_else_does() {
        for (expected, printed, matches) in [
            ("a", "a", true),
            ("a", "b", false),
            ("a", "a\nb", false),
            ("", "a", false),
            ("a ..", "a b", true),
            ("a .. c", "a b", false),
            ("{..}..x", "{1}2x", true),
            ("..", "", true),
            ("a\n..\nd", "a\nb\nc\nd", true),
            ("a\n..\nd", "a\nb\nc", false),
        ] {
            assert_eq!(matches_output(expected, printed), matches, "{expected} | {printed}");
        }
    }

    #[test]
    fn only_whole_numbers_are_replaced() {
        let blocks = ConsoleBlocks {
            folder: TempFolder::new(),
            ports: vec![(8080, 1), (9000, 2)],
            _reserved: Vec::new(),
            awaited: vec![],
            path: String::new(),
            variables: vec![],
            skipped: vec![],
        };
        assert_eq!(blocks.with_used_ports("8080 80801 :9000/18080"), "1 80801 :2/18080");
    }
}
