//! Short locks: 8 to 16 bytes each, all zero when free.
