//! B+trees on the pages of a pool, every change of which is logged.
//!
//! A page is words, read one at a time through [`Page`], so that an optimistic reader, a holder of
//! the page and a recovery that has the bytes to itself use the same code. Nothing that a page says
//! is believed: each number is checked before it is used, a torn or damaged page gives `None` or
//! [`Error::Malformed`], and every loop is bounded by the size of the page.
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
//! | file | what |
//! |---|---|
//! | `words` | the words of a page, and bytes on them |
//! | `layout` | what each word of a page means |
//! | `node` | reading a page: search, keys, values, children, verifying |
//! | `edit` | changing a page: insert, replace, ghosts, compaction |
//! | `split` | dividing a page in two, the shortest separator between two keys |
//! | `change` | a change as it stands in the log, and doing it again |
//! | `held` | a page of the pool as the page of a tree; a change that is logged and then done |
//! | `root` | a tree, and where it begins |
//! | `operate` | what is done to a key: get, insert, replace, delete, undo |
//! | `journal` | the log, as a tree sees it |
//! | `walk` | from the root to a page, and along the leaves in either direction |
//! | `pass` | records of a copied leaf, as they lie there |
//! | `batch` | some records of one leaf, as they were at one moment |
//! | `structure` | splits in two steps, which any thread finishes; a root that grows |
//! | `unlink` | leaves that are empty go, and give their pages back |
//! | `verify` | whether a tree is whole, also while others change it |
//! | `load` | a tree of records that come in order |
//! | `dismantle` | a tree that nobody knows gives its pages back |
//! | `rebuild` | a page made anew from a base and the log's records of it |

#![warn(clippy::all)]

mod batch;
mod change;
mod dismantle;
pub mod edit;
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
