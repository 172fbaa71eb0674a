//! The notation of limits.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| tidegate_fuzz::read_limit(text));
