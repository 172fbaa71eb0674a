//! Entries of a descriptor of a request.

/// One entry of a descriptor of a request; the server implements it for its protobuf type.
pub trait DescriptorEntry {
    /// The key.
    fn key(&self) -> &str;
    /// The value; may be empty.
    fn value(&self) -> &str;
}

impl DescriptorEntry for (&str, &str) {
    fn key(&self) -> &str {
        self.0
    }

    fn value(&self) -> &str {
        self.1
    }
}
