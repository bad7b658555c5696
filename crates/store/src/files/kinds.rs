//! The kinds of log records of a store.
//!
//! | record | kind | flags | `prev` |
//! |---|---|---|---|
//! | a change of a record | `CHANGE` | `LAST` if it commits | the transaction's previous record |
//! | the rollback of a change | `CHANGE` | `CLR`; `SYSTEM` by others | the next to roll back |
//! | a change of a page's structure | `CHANGE` | `SYSTEM` | none |
//! | a commit | `COMMIT` | `LAST` | the transaction's previous record |
//! | the end of a rollback | `END` | `SYSTEM` | none |
//! | locks of a prepared transaction | `LOCKS` | | the transaction's previous record |
//! | a transaction is prepared | `PREPARE` | | the transaction's previous record |
//!
//! `aux` is the tree. In a record that commits, `older` is the slot's previous commit.

/// A change of a page.
pub(crate) const CHANGE: u8 = 1;
/// The commit of a transaction.
pub(crate) const COMMIT: u8 = 2;
/// The end of the rollback of a transaction.
pub(crate) const END: u8 = 3;
/// A transaction is prepared: neither committed nor rolled back until it is decided.
pub(crate) const PREPARE: u8 = 4;
/// The locks of a transaction that is about to be prepared.
pub(crate) const LOCKS: u8 = 5;
