//! Compiler errors of the macros. The `.stderr` files are the output of the stable compiler;
//! `TRYBUILD=overwrite` rewrites them. A nightly compiler underlines less than a whole literal.

#[test]
fn an_error_is_reported_at_its_position_with_a_remedy() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
