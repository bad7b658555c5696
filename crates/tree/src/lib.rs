//! B+trees on the pages of a pool, with every change logged.
//!
//! A page consists of words that are read one at a time through [`Page`], so an optimistic reader,
//! a holder of the page and a recovery that has the bytes to itself use the same code. The content
//! of a page is not trusted: each number is checked before it is used, a torn or damaged page gives
//! `None` or [`Error::Malformed`], and every loop is bounded by the size of the page.
//!
//! ```
//! use latchwork_tree::{Fences, Header, Kind, Node, edit};
//!
//! let mut page = vec![0u64; 1024];
//! edit::format(&mut page, Kind::Leaf, 0, Fences::ALL, 0)?;
//! edit::insert(&mut page, b"pear", b"yellow", Header::NONE)?;
//! edit::insert(&mut page, b"apple", b"red", Header::NONE)?;
//! let node = Node::of(&page).unwrap();
//! assert_eq!(node.search(b"apple"), Some(Ok(0)));
//! assert_eq!(node.value(1).as_deref(), Some(&b"yellow"[..]));
//! # Ok::<(), latchwork_tree::Error>(())
//! ```
//!
//! | file | content |
//! |---|---|
//! | `words` | the words of a page, and bytes on them |
//! | `layout` | the meaning of each word of a page |
//! | `node` | reading a page: search, keys, values, children, verifying |
//! | `edit` | changing a page: insert, replace, ghosts, compaction |
//! | `split` | dividing a page in two, the shortest separator between two keys |
//! | `difference` | the part in which two values differ |
//! | `change` | a change as recorded in the log, and its repetition |
//! | `encode` | the bytes of a change in a log record |
//! | `held` | a page of the pool as the page of a tree; a change that is logged and then applied |
//! | `root` | a tree and its root page |
//! | `operate` | operations on a key: get, insert, replace, delete, undo |
//! | `journal` | the log's interface to a tree |
//! | `walk` | from the root to a page, and along the leaves in both directions |
//! | `pass` | records of a copied leaf, in place |
//! | `batch` | records of one leaf, as they were at one moment |
//! | `structure` | splits in two steps, which any thread completes; a growing root |
//! | `unlink` | unlinking empty leaves and returning their pages |
//! | `verify` | consistency check of a tree, also during changes |
//! | `load` | building a tree from sorted records |
//! | `dismantle` | returning the pages of a tree that no other thread knows |
//! | `rebuild` | rebuilding a page from a base and its log records |

#![warn(clippy::all)]

mod batch;
mod change;
mod difference;
mod dismantle;
pub mod edit;
mod encode;
mod error;
mod held;
mod journal;
mod layout;
mod load;
mod node;
mod operate;
mod pass;
mod rebuild;
mod root;
mod split;
mod structure;
mod unlink;
mod verify;
mod walk;
mod words;

pub use crate::batch::{Batch, Row};
pub use crate::change::{Change, Role};
pub use crate::difference::Difference;
pub use crate::error::Error;
pub use crate::held::redo;
pub use crate::journal::Journal;
pub use crate::layout::{Header, Kind, Limits};
pub use crate::node::{Fences, Node};
pub use crate::operate::{Newest, Written};
pub use crate::pass::Each;
pub use crate::rebuild::{Link, chain, rebuild};
pub use crate::root::Tree;
pub use crate::split::{Split, SplitAt, make_root, separator, split};
pub use crate::words::{Page, PageMut};
