//! What the compiler says about a mistake. The `.stderr` files are what the stable compiler prints;
//! `TRYBUILD=overwrite` writes them anew. A nightly one underlines less than a whole text.

#[test]
fn a_mistake_is_told_where_it_is_and_with_what_to_do() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
