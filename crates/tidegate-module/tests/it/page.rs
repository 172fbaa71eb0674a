//! The page of the manual prints what is shown.

use std::fs;

use testkit::console_blocks::{ConsoleBlocks, has_programs};

use crate::fixture::module_path;

const PAGE: &str = "docs/operate/module.md";

#[test]
fn the_page_shows_what_its_commands_print() {
    if !has_programs(&["redis-cli", "redis-server"]) {
        return;
    }
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let text = fs::read_to_string(format!("{root}/{PAGE}")).unwrap();
    let text = text.replace("./libtidegate_module.so", &module_path());
    ConsoleBlocks::new(&[6379]).skip(&["cargo build --release -p tidegate-module"]).run(&text);
}
