//! Unlinking empty leaves, by the threads that emptied or visited them, and by threads that make
//! checkpoints.
//!
//! A removed record stays as a ghost while a snapshot may see it, so the thread that removes the
//! last record of a leaf cannot unlink the leaf yet. It notes the leaf's key in its own memory, and
//! checks it again after later commits, when every snapshot sees the removal. A thread that scans a
//! leaf of old ghosts notes it as well; this also finds the leaves that a dead thread had noted. A
//! thread that rolls back, or ends, passes its notes to its process, because it may not commit
//! again for long. The next checkpoint checks the notes of the process.
//!
//! Correctness does not depend on the notes: a lost or wrong note costs a page or a check.

use core::ops::Bound;
use std::sync::PoisonError;

use latchwork_machine::ConstMachine;
use latchwork_tree::{Batch, Row};

use crate::engine::Engine;
use crate::files::empty::EmptyLeaf;
use crate::files::session::StoreSession;
use crate::files::tree_journal::ChangeOrigin;
use crate::long::PIECES;

/// Maximum number of notes of a thread.
const NOTES: usize = 1 << 14;
/// How many leaves of pieces a checkpoint scans.
const LOOKS: usize = 256;
/// How many more for each empty one. The total is at most the number of notes, which exceeds what
/// 256 MiB of log, an interval of checkpoints, can have filled and emptied.
const EACH: usize = 4;
/// Maximum number of leaves checked and pages unlinked after a commit; at least twice as many as
/// the thread has emptied itself, so that the notes do not accumulate.
const FEW: usize = 4;
/// A leaf that begins with this many ghosts is cleared, because a scan from the end of a queue
/// passes over them.
const MANY: usize = 32;

impl<M: ConstMachine> StoreSession<M> {
    /// Notes that a leaf has no records.
    pub(crate) fn is_empty_at(&self, tree: u32, key: &[u8], at: u64) {
        let mut empty = self.empty.borrow_mut();
        // Beyond this number the last note stays: unlinking continues to its left, at least to the
        // next inner page. A scan finds the rest, or the check of the pieces.
        if empty.len() >= NOTES {
            empty.pop_back();
        }
        empty.push_back(EmptyLeaf { tree, key: key.to_vec(), at });
        self.emptied.set(self.emptied.get() + 1);
    }

    /// Notes a leaf that a scan visited, if it contains only ghosts or begins with many.
    #[inline]
    pub(crate) fn passed(&self, tree: u32, batch: &Batch) {
        // Usually the first record excludes it; so do records that are passed directly.
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
            // They may have become old.
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

    /// Checks all noted leaves, including those noted by ended threads of this process, and unlinks
    /// empty ones; see [`tidy`](Self::tidy).
    pub(crate) fn tidy_all(&self) {
        let mut left = self.home.empty.lock().unwrap_or_else(PoisonError::into_inner);
        self.empty.borrow_mut().append(&mut left);
        drop(left);
        let _ = self.home.shared.look_again();
        self.tidy_some(usize::MAX);
    }

    /// Checks some noted leaves and unlinks empty ones. The caller has no page intents, and no lock
    /// for which others wait.
    #[inline]
    pub(crate) fn tidy(&self) {
        if !self.empty.borrow().is_empty() {
            self.tidy_some(FEW.max(2 * self.emptied.take()));
        }
        // A page that could not be freed: it retains the log, and a slot has few intents.
        if let Ok(Some(_)) = self.home.shared.held_since(u32::from(self.slot())) {
            let _ = self.settle_all(self.slot(), self.roots_left.get());
        }
    }

    #[cold]
    fn tidy_some(&self, count: usize) {
        // A failure has no effect: the leaf stays as it was.
        let Ok(forgotten) = self.home.shared.forgotten() else { return };
        let mut left = count as u64;
        while left > 0 {
            let next = self.empty.borrow_mut().pop_front_if(|leaf| leaf.at < forgotten);
            let Some(leaf) = next else { return };
            let unlinked = self
                .with(leaf.tree, ChangeOrigin::System, |tree| tree.unlink(&leaf.key, left))
                .unwrap_or(0);
            if unlinked == 0 {
                let _ = self.with(leaf.tree, ChangeOrigin::System, |tree| tree.clear(&leaf.key));
            }
            left = left.saturating_sub(unlinked.max(1));
            // If everything is empty, one check could continue to the left without limit: the next
            // commit continues there.
            if left == 0 && unlinked > 0 {
                self.empty.borrow_mut().push_front(leaf);
            }
        }
    }

    /// Scans some leaves of the tree of pieces, to note leaves that a dead thread emptied, because
    /// no other thread scans there. Scans more if it finds some. Called by a checkpoint.
    pub(crate) fn look_at_pieces(&self) {
        let shared = &self.home.shared;
        let Ok(mut from) = shared.looked() else { return };
        // Recompute the position, so that leaves that became old are not skipped.
        let _ = shared.look_again();
        let (mut batch, noted) = (self.spare(), self.empty.borrow().len());
        let mut looks = 0;
        while looks < NOTES.min(LOOKS + EACH * self.empty.borrow().len().saturating_sub(noted)) {
            looks += 1;
            let scanned = self.scan(PIECES, Bound::Included(&from), false, usize::MAX, &mut batch);
            from.clear();
            match (scanned, batch.next()) {
                (Ok(()), Some(next)) => from.extend_from_slice(next),
                // The next check begins with the first piece.
                _ => {
                    from.extend_from_slice(&1u64.to_be_bytes());
                    break;
                }
            }
        }
        let _ = shared.looked_upto(&from);
        self.keep(batch);
    }

    /// Passes the notes to the process.
    pub(crate) fn leave_notes(&self) {
        // In the child of a fork, a thread that does not exist may hold the mutex.
        if self.home.manager.region().check().is_err() {
            return;
        }
        let mut left = self.home.empty.lock().unwrap_or_else(PoisonError::into_inner);
        if left.len() < NOTES {
            left.append(&mut self.empty.borrow_mut());
        }
    }
}
