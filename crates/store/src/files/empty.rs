//! A leaf that a thread has noted, to check it later: `empty_pages.rs`.

/// A leaf that may be empty.
#[derive(Clone, Debug)]
pub(crate) struct EmptyLeaf {
    pub(crate) tree: u32,
    /// A key that belongs there.
    pub(crate) key: Vec<u8>,
    /// Where in the log it became empty.
    pub(crate) at: u64,
}
