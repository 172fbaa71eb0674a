//! The commands of the README, and of pages that begin as it does, print what is shown.

use std::fs;
use std::path::Path;

use testkit::console_blocks::ConsoleBlocks;
use testkit::server::TempFolder;

/// A build of several minutes is not repeated here.
const INSTALL: &str = "$ cargo install --locked --path crates/tidegate-cli\n";

/// Waits that are shown, and depend on the time since the last command.
const WAITS: [&str; 2] = ["59.9s", "29.9s"];

#[test]
fn the_readme_shows_what_its_commands_print() {
    run("README.md", true);
}

#[test]
fn the_server_guide_shows_what_its_commands_print() {
    run("docs/start/server.md", true);
}

#[test]
fn the_first_examples_of_other_pages_show_what_their_commands_print() {
    for page in ["limits", "versioning"] {
        run(&format!("docs/reference/{page}.md"), false);
    }
    for page in ["algorithms", "limitations", "performance"] {
        run(&format!("docs/understand/{page}.md"), false);
    }
}

/// Runs the console blocks of a page. A `yaml` block that begins with `# name.yaml` is that file.
fn run(page: &str, is_installed: bool) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut text = fs::read_to_string(root.join(page)).unwrap();
    let files = TempFolder::new();
    for block in text.split("```yaml\n# ").skip(1) {
        let (name, rest) = block.split_once('\n').unwrap();
        files.write(name, rest.split("\n```").next().unwrap());
    }
    assert_eq!(text.contains(INSTALL), is_installed, "{page}");
    assert!(root.join("crates/tidegate-cli/Cargo.toml").is_file());
    text = text.replace(INSTALL, "");
    for wait in WAITS {
        text = text.replace(wait, "..");
    }
    ConsoleBlocks::new(&[8080]).files(&files.path("")).run(&text);
}
