//! The limit notation.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| tidegate_fuzz::check_notation(text));
