//! Leaves that have become empty are unlinked, by the threads that emptied them or came by, and by
//! those that make checkpoints.
//!
//! A record that was removed stays as a ghost while a snapshot may see it, so the thread that
//! removes the last one of a leaf cannot unlink it yet. It notes the leaf's key in its own memory,
//! and looks again after later commits, when everybody sees that the ghost is one. A thread that
//! scans over a leaf of old ghosts notes it, too: so the leaves that a thread had noted which is
//! dead are found by the next that comes by. One that undoes leaves what it notes to its process,
//! as one does that ends: it may not commit again for long. What is left to the process is looked
//! at by the next checkpoint.
//!
//! Nothing depends on it: a note that is lost, or wrong, costs a page or a look.

use core::ops::Bound;
use std::sync::PoisonError;

use latchwork_machine::ConstMachine;
use latchwork_tree::{Batch, Row};

use crate::engine::Engine;
use crate::files::empty::EmptyLeaf;
use crate::files::session::StoreSession;
use crate::files::tree_journal::Part;
use crate::long::PIECES;

/// How many leaves a thread notes at most.
const NOTES: usize = 1 << 14;
/// How many leaves of pieces are scanned in a checkpoint.
const LOOKS: usize = 256;
/// How many more for each that is empty; in all at most as many as can be noted, which is more than
/// 256 MiB of log, an interval of checkpoints, can have filled and emptied.
const EACH: usize = 4;
/// How many leaves are looked at after a commit, and how many pages unlinked, at most; but for
/// twice as many as it has emptied itself, or they would become ever more.
const FEW: usize = 4;
/// A leaf that begins with so many ghosts is cleared: a scan from the end of a queue passes them.
const MANY: usize = 32;

impl<M: ConstMachine> StoreSession<M> {
    /// Notes that a leaf has no record any more.
    pub(crate) fn is_empty_at(&self, tree: u32, key: &[u8], at: u64) {
        let mut empty = self.empty.borrow_mut();
        // Of more than these the last one stays: from there unlinking goes on to the left, to the
        // next inner page at least. A scan finds the rest, or a look at the pieces.
        if empty.len() >= NOTES {
            empty.pop_back();
        }
        empty.push_back(EmptyLeaf { tree, key: key.to_vec(), at });
        self.emptied.set(self.emptied.get() + 1);
    }

    /// Notes a leaf that a scan came by, if it had nothing but ghosts, or many of them first.
    #[inline]
    pub(crate) fn passed(&self, tree: u32, batch: &Batch) {
        // Nearly always the first record says no, as it does of those that are to be passed.
        if !batch.is_to_pass() && batch.get(0).is_none_or(|row| row.ghost) {
            self.passed_ghosts(tree, batch);
        }
    }

    #[cold]
    fn passed_ghosts(&self, tree: u32, batch: &Batch) {
        let shared = &self.home.shared;
        let old = |forgotten: u64| move |row: &Row<'_>| row.ghost && row.header.lsn() < forgotten;
        let leading = |forgotten| batch.iter().take_while(old(forgotten)).count();
        let mut count = leading(shared.forgotten_before().unwrap_or(0));
        if count < MANY.min(batch.len())
            && batch.iter().take(MANY).filter(|row| row.ghost).count() == MANY
        {
            // They may be old by now.
            count = leading(shared.forgotten_soon().unwrap_or(0));
        }
        if count < MANY && !(batch.is_to_the_end() && count == batch.len()) {
            return;
        }
        let Some(row) = batch.get(0) else { return };
        let mut empty = self.empty.borrow_mut();
        let known = empty.iter().take(FEW * 4).any(|leaf| leaf.tree == tree && leaf.key == row.key);
        if !known && empty.len() < NOTES {
            empty.push_front(EmptyLeaf { tree, key: row.key.to_vec(), at: 0 });
        }
    }

    /// Looks at all leaves that were noted, by ended threads of this process, too, and unlinks
    /// those that are empty. As [`tidy`](Self::tidy).
    pub(crate) fn tidy_all(&self) {
        let mut left = self.home.empty.lock().unwrap_or_else(PoisonError::into_inner);
        self.empty.borrow_mut().append(&mut left);
        drop(left);
        let _ = self.home.shared.look_again();
        self.tidy_some(usize::MAX);
    }

    /// Looks at some of the leaves that were noted, and unlinks those that are empty. Called with
    /// no page in hand and no lock that others wait for.
    #[inline]
    pub(crate) fn tidy(&self) {
        if !self.empty.borrow().is_empty() {
            self.tidy_some(FEW.max(2 * self.emptied.take()));
        }
        // A page that could not be given back: it keeps the log, and a slot has room for few.
        if let Ok(Some(_)) = self.home.shared.held_since(u32::from(self.slot())) {
            let _ = self.settle_all(self.slot(), self.roots_left.get());
        }
    }

    #[cold]
    fn tidy_some(&self, count: usize) {
        // What fails here concerns nobody: the leaf is as it was.
        let Ok(forgotten) = self.home.shared.forgotten() else { return };
        let mut left = count as u64;
        while left > 0 {
            let next = self.empty.borrow_mut().pop_front_if(|leaf| leaf.at < forgotten);
            let Some(leaf) = next else { return };
            let unlinked = self
                .with(leaf.tree, Part::System, |tree| tree.unlink(&leaf.key, left))
                .unwrap_or(0);
            if unlinked == 0 {
                let _ = self.with(leaf.tree, Part::System, |tree| tree.clear(&leaf.key));
            }
            left = left.saturating_sub(unlinked.max(1));
            // One look may go on to the left without an end where all is empty: the next commit
            // takes it up there.
            if left == 0 && unlinked > 0 {
                self.empty.borrow_mut().push_front(leaf);
            }
        }
    }

    /// Scans some leaves of the tree of pieces, so that those are noted which a thread emptied that
    /// died: nobody else scans there. More of them, where it finds some. Called in a checkpoint.
    pub(crate) fn look_at_pieces(&self) {
        let shared = &self.home.shared;
        let Ok(mut from) = shared.looked() else { return };
        // What became old since is not passed over as young.
        let _ = shared.look_again();
        let (mut batch, noted) = (self.spare(), self.empty.borrow().len());
        let mut looks = 0;
        while looks < NOTES.min(LOOKS + EACH * self.empty.borrow().len().saturating_sub(noted)) {
            looks += 1;
            let scanned = self.scan(PIECES, Bound::Included(&from), false, usize::MAX, &mut batch);
            from.clear();
            match (scanned, batch.next()) {
                (Ok(()), Some(next)) => from.extend_from_slice(next),
                // The next look begins in front.
                _ => {
                    from.extend_from_slice(&1u64.to_be_bytes());
                    break;
                }
            }
        }
        let _ = shared.looked_upto(&from);
        self.keep(batch);
    }

    /// Leaves what was noted to the process.
    pub(crate) fn leave_notes(&self) {
        // In the child of a fork a thread that is not there may have the mutex.
        if self.home.manager.region().check().is_err() {
            return;
        }
        let mut left = self.home.empty.lock().unwrap_or_else(PoisonError::into_inner);
        if left.len() < NOTES {
            left.append(&mut self.empty.borrow_mut());
        }
    }
}
