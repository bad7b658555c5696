//! Consistency checks of a pool and of the pages in its files.
//!
//! The check reads and stores nothing. Concurrent changes may look wrong for a moment: a caller
//! that finds a flaw in a pool in use checks again.

use core::sync::atomic::Ordering::Relaxed;
use std::collections::HashMap;

use latchwork_disk::{Buffer, Open};
use latchwork_machine::{ConstMachine, Word};

use crate::layout::{DIRTY, MODIFYING, kind, untag};
use crate::{Error, FileId, Pool};

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The flaws, one sentence each.
    pub flaws: Vec<String>,
    /// Frames that contain pages.
    pub pages: u32,
    /// Frames skipped because their latch is held.
    pub latched: u32,
    /// Pages that were left half changed and not rebuilt.
    pub poisoned: u32,
}

impl<M: ConstMachine> Pool<M> {
    /// Compares frames, translation and the table of files.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    pub fn verify(&self) -> Result<Found, Error> {
        let (mut found, mut seen) = (Found::default(), HashMap::new());
        let active = self.active()?;
        match self.target() {
            Ok(target) if target <= active => {}
            Ok(target) => {
                found.flaws.push(format!("the clock may use {target} of {active} frames"));
            }
            Err(Error::Corrupt(_)) => {
                found.flaws.push("the clock may use fewer frames than a pool has, or more".into());
            }
            Err(other) => return Err(other),
        }
        for frame in 0..self.inner.config.frames_max {
            let Some(desc) = self.reached(frame)? else { break };
            let Some(version) = desc.latch.try_read() else {
                found.latched += 1;
                continue;
            };
            // Relaxed, all: validated below.
            let (tag, state) = (desc.tag.load(Relaxed), desc.state.load(Relaxed));
            let page = untag(tag);
            let file = page.and_then(|(file, _)| self.file_id(file).ok());
            let entry = file.zip(page).and_then(|(file, (_, page))| self.entry(file, page).ok());
            if !desc.latch.validate(version) {
                found.latched += 1;
                continue;
            }
            let mut flaw = |what: String| found.flaws.push(format!("frame {frame}: {what}"));
            let Some((file, page)) = page else {
                if tag != 0 || state != kind::FREE {
                    flaw(format!("state {state:#x} of no page"));
                }
                continue;
            };
            found.pages += 1;
            found.poisoned += u32::from(state & kind::MASK == kind::POISONED);
            let known = self.file_id(file).and_then(|file| self.pages(file));
            if known.as_ref().map_or(true, |pages| page >= *pages) {
                flaw(format!("page {page} of file {file}, which has {known:?}"));
            }
            if entry != Some(u64::from(frame) + 1) {
                flaw(format!("page {page} of file {file} is looked for elsewhere"));
            }
            let kinds = [kind::VALID, kind::POISONED].contains(&(state & kind::MASK));
            if !kinds || state & !(kind::MASK | DIRTY) != 0 {
                let mark = if state & MODIFYING != 0 { ", half changed" } else { "" };
                flaw(format!("state {state:#x}{mark}, and nobody holds it"));
            }
            if frame >= active {
                flaw(format!("beyond the pool's {active} frames"));
            }
            if let Some(other) = seen.insert((file, page), frame) {
                flaw(format!("page {page} of file {file} is in frame {other}, too"));
            }
        }
        for (file, path) in self.files()? {
            if let Err(error) = self.free_pages(file) {
                found.flaws.push(format!("{}: {error}", path.display()));
            }
        }
        Ok(found)
    }

    /// Reads a file's pages directly from disk and calls `told` with each invalid one. Pages that
    /// are dirty in the pool and holes of a sparse file are skipped. Returns how many were
    /// examined.
    ///
    /// # Errors
    ///
    /// [`Error::Disk`] if the file cannot be opened; [`Error::NoFile`].
    pub fn verify_file(
        &self,
        file: FileId,
        told: &mut dyn FnMut(u64, &Error),
    ) -> Result<u64, Error> {
        let path = self.files()?.into_iter().find(|(id, _)| *id == file);
        let (_, path) = path.ok_or(Error::NoFile(file.number))?;
        let opened = self.inner.disk.open(&path, Open::READ)?;
        let mut bytes = Buffer::new(file.page_bytes() as usize);
        let mut looked = 0;
        let (pages, size) = (self.pages(file)?, u64::from(file.page_bytes()));
        let mut next = 0;
        while next < pages {
            let mut page = next;
            if file.is_sparse() {
                let Some(at) = opened.next_data(page * size)? else { break };
                page = page.max(at / size);
            }
            next = page + 1;
            if page >= pages || self.is_unwritten(file, page) {
                continue;
            }
            let read = opened.read(page * size, &mut bytes);
            if file.is_sparse() && read.is_ok() && bytes.iter().all(|byte| *byte == 0) {
                // A hole, in a block of the disk that has other pages.
                continue;
            }
            looked += 1;
            let sound = read.map_err(Error::from);
            if let Err(error) = sound.and_then(|()| self.believe(file, page, &bytes))
                // It may have just been written.
                && !self.is_unwritten(file, page)
            {
                told(page, &error);
            }
        }
        Ok(looked)
    }

    /// Returns whether the pool has a newer state than the disk, or the page never existed on disk.
    fn is_unwritten(&self, file: FileId, page: u64) -> bool {
        let entry = self.entry(file, page).unwrap_or(0);
        let frame = entry.checked_sub(1).and_then(|frame| u32::try_from(frame).ok());
        match frame.and_then(|frame| self.desc(frame).ok()) {
            Some(desc) => desc.state.load(Relaxed) & (DIRTY | MODIFYING) != 0,
            None => entry != 0,
        }
    }
}
