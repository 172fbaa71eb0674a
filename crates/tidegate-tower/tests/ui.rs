//! Compiler errors of the layer. The `.stderr` files are the output of the stable compiler;
//! `TRYBUILD=overwrite` rewrites them.

#[test]
fn a_key_that_is_no_extractor_is_reported_with_a_remedy() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
