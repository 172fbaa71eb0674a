//! YAML and JSON as a tree with positions, checked against the schema. Imports: errors, schema.

pub(crate) mod check;
pub(crate) mod expected;
pub(crate) mod json;
pub(crate) mod locate;
pub(crate) mod tree;
pub(crate) mod yaml;
