//! What records of the log are to a store.
//!
//! | record | kind | marks | `prev` |
//! |---|---|---|---|
//! | a change of a record | `CHANGE` | `LAST` if it commits | the transaction's record before |
//! | what undoes one | `CHANGE` | `CLR`; `SYSTEM` for a dead thread | what is undone next |
//! | a change of a page's form | `CHANGE` | `SYSTEM` | none |
//! | a commit | `COMMIT` | `LAST` | the transaction's record before |
//! | the end of what was undone | `END` | `SYSTEM` | none |
//! | locks of one that is prepared | `LOCKS` | | the transaction's record before |
//! | a transaction is prepared | `PREPARE` | | the transaction's record before |
//!
//! `aux` is the tree. What commits leads by `older` to the slot's commit before.

/// A change of a page.
pub(crate) const CHANGE: u8 = 1;
/// A transaction is committed.
pub(crate) const COMMIT: u8 = 2;
/// All of a transaction is undone.
pub(crate) const END: u8 = 3;
/// A transaction is prepared: it is neither committed nor undone until it is decided.
pub(crate) const PREPARE: u8 = 4;
/// What a transaction has locked that is about to be prepared.
pub(crate) const LOCKS: u8 = 5;
