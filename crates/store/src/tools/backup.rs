//! Copying an open store, and creating a store from a copy.
//!
//! | step | action | effect |
//! |---|---|---|
//! | 1 | a checkpoint; the log is pinned from its redo point on | later changes stay in the log |
//! | 2 | the pages are copied, and their checksums verified | no page is older than step 1 |
//! | 3 | the log is flushed, and copied from the redo point to its end | it covers all pages |
//!
//! So the copy is in the state that a crash of the machine after step 3 would have left, and it is
//! opened in the same way. A page that is read during a write fails its checksum and is read again.
//!
//! A copy is written to a temporary folder, which is renamed when all of it is durable:
//! `temporary.rs`.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use latchwork_disk::{Buffer, Disk, Open, System};
use latchwork_log::{Error as LogError, Lsn};
use latchwork_machine::{ConstMachine, Deadline, Shared as Machine};

use crate::error::refused;
use crate::files::inner::Sizes;
use crate::files::session::StoreSession;
use crate::open::at_rest;
use crate::tools::temporary::TemporaryFolder;
use crate::{Error, Refusal, Store};

/// Pages per read call.
const CHUNK: u64 = 64;
/// How long an invalid page is read again: a concurrent write of it ends earlier.
const PATIENCE: Duration = Duration::from_secs(1);

/// The amount copied so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied {
    /// Pages.
    pub pages: u64,
    /// Bytes of pages.
    pub page_bytes: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// The position of the log that the copy is of; zero until it is known.
    pub end: u64,
}

/// A callback that is called from time to time with the progress so far.
pub type Copying<'t> = dyn FnMut(&Copied) + 't;

impl Store<Machine> {
    /// Copies the store into a new folder while other transactions write. The copy contains all
    /// transactions that had committed when this was called, and later ones that committed before
    /// its log was copied. It is an independent store, which opens as after a crash.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] if `to` exists; [`Error::Pool`] for a page that cannot be read; errors of
    /// the [store's parts](Error). After an error `to` does not exist.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table, restore};
    ///
    /// const FRUIT: Table<&str, u64> = Table::new("fruit");
    /// # let path = std::env::temp_dir().join(format!("store-backup-{}", std::process::id()));
    /// # std::fs::create_dir(&path).unwrap();
    /// let store = Store::open(path.join("shop"))?;
    /// store.write(|tx| tx.put(&FRUIT, "pear", 3))?;
    /// store.backup(path.join("copy"), &mut |_| {})?;
    /// store.write(|tx| tx.put(&FRUIT, "pear", 0))?;
    ///
    /// restore(path.join("copy"), path.join("again"), &mut |_| {})?;
    /// let again = Store::open(path.join("again"))?;
    /// assert_eq!(again.read(|tx| tx.get(&FRUIT, "pear"))?, Some(3));
    /// # drop((store, again));
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn backup(
        &self,
        to: impl AsRef<Path>,
        progress: &mut Copying<'_>,
    ) -> Result<Copied, Error> {
        let target = TemporaryFolder::new(to.as_ref())?;
        let disk: Arc<dyn Disk> = Arc::new(System::new());
        let copied = self.backup_on(&disk, &target.fresh, progress)?;
        target.name(&self.home().sizes)?;
        Ok(copied)
    }
}

impl<M: ConstMachine> Store<M> {
    /// Writes the files of a copy into an existing empty folder and makes them durable, as
    /// [`backup`](Store::backup) does, on any disk. The copy gets no identity.
    ///
    /// # Errors
    ///
    /// Those of [`backup`](Store::backup). After an error the folder does not contain a store.
    pub fn backup_on(
        &self,
        disk: &Arc<dyn Disk>,
        folder: &Path,
        progress: &mut Copying<'_>,
    ) -> Result<Copied, Error> {
        let session = self.session()?;
        let worker = &session.worker;
        let pin = Pinned { worker, pin: pin(worker)? };
        self.copy_pinned(worker, pin.pin, disk, folder, progress)
    }

    fn copy_pinned(
        &self,
        worker: &StoreSession<M>,
        pin: u32,
        disk: &Arc<dyn Disk>,
        folder: &Path,
        progress: &mut Copying<'_>,
    ) -> Result<Copied, Error> {
        let home = self.home();
        home.checkpoint_now(worker)?;
        // All segments that are copied from now on belong to this checkpoint.
        let since = home.log.last_checkpoint();
        worker.log.move_pin(pin, since.redo)?;
        let mut copied = Copied::default();
        let from = home.disk.open(&home.folder.join("data"), Open::READ)?;
        let to = disk.open(&folder.join("data"), Open::FRESH)?;
        let size = u64::from(home.file.page_bytes());
        let pages = from.length()? / size;
        let mut bytes = Buffer::new((CHUNK * size) as usize);
        while copied.pages < pages {
            let count = (pages - copied.pages).min(CHUNK);
            let chunk = &mut bytes[..(count * size) as usize];
            from.read(copied.pages * size, chunk)?;
            for (number, page) in (copied.pages..).zip(chunk.chunks_exact_mut(size as usize)) {
                if let Err(why) = look::<M>(&*from, number, page) {
                    // A crash or a kill may have left half of a page that was being freed.
                    if !worker.is_free_page(number)? {
                        return Err(why);
                    }
                    page.fill(0);
                }
            }
            to.write(copied.pages * size, chunk)?;
            copied.pages += count;
            copied.page_bytes += count * size;
            progress(&copied);
        }
        // The copy must be as long as its catalog may record.
        if from.length()? > pages * size {
            to.truncate(from.length()?)?;
        }
        to.sync()?;
        // All changes in the pages are in the log, which was flushed before the pages were written.
        let end = home.log.end();
        worker.log.flush(Lsn(end.0.saturating_sub(1)))?;
        let log = folder.join("log");
        disk.make_folder(&log)?;
        disk.sync_folder(folder)?;
        let end = worker.log.copy_to(disk, &log, &since, &mut |count| {
            copied.log_bytes += count;
            progress(&copied);
        })?;
        copied.end = end.0;
        Ok(copied)
    }
}

/// The pin that retains the log for a copy, until it is dropped, also by a panic of the caller's
/// closure.
struct Pinned<'w, M: ConstMachine> {
    worker: &'w StoreSession<M>,
    pin: u32,
}

impl<M: ConstMachine> Drop for Pinned<'_, M> {
    fn drop(&mut self) {
        // It fails only in the child of a fork, which has no pin.
        let _ = self.worker.log.unpin(self.pin);
    }
}

/// Pins the log from its beginning.
fn pin<M: ConstMachine>(worker: &StoreSession<M>) -> Result<u32, Error> {
    loop {
        match worker.log.pin("backup", worker.log.log().oldest()) {
            // The beginning was recycled concurrently; try again.
            Err(LogError::Gone { .. }) => {}
            other => return Ok(other?),
        }
    }
}

/// Reads a page again until it is valid. A page of zeros was never written; the log contains it.
fn look<M: ConstMachine>(
    from: &dyn latchwork_disk::File,
    number: u64,
    page: &mut [u8],
) -> Result<(), Error> {
    let deadline = Deadline::after::<M>(PATIENCE);
    while let Err(why) = latchwork_pool::sound(number, page) {
        if page.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        if deadline.passed::<M>() {
            return Err(why.into());
        }
        M::yield_now();
        from.read(number * page.len() as u64, page)?;
    }
    Ok(())
}

/// Creates a store from a copy in a new folder: the files are copied, recovered and verified, and
/// the folder then gets its name. The copy is not changed. It may be any store that no process has
/// open.
///
/// # Errors
///
/// [`Error::Open`] if `to` exists, or if `from` is not a store or is in use; errors about damage of
/// the copy. After an error `to` does not exist.
///
/// # Examples
///
/// See [`Store::backup`].
pub fn restore(
    from: impl AsRef<Path>,
    to: impl AsRef<Path>,
    progress: &mut Copying<'_>,
) -> Result<Copied, Error> {
    let mut sizes = Sizes::default();
    let from = at_rest(from.as_ref(), &mut sizes)?;
    if from.left()?.is_some() {
        return Err(refused(&from.path, Refusal::LeftOpen));
    }
    let target = TemporaryFolder::new(to.as_ref())?;
    let mut copied = Copied::default();
    copy_file(&from.path.join("data"), &target.fresh.join("data"), &mut |bytes| {
        copied.page_bytes += bytes;
        copied.pages = copied.page_bytes / u64::from(sizes.page);
        progress(&copied);
    })?;
    let (log, into) = (from.path.join("log"), target.fresh.join("log"));
    fs::create_dir(&into).map_err(|why| refused(&into, why))?;
    for entry in fs::read_dir(&log).map_err(|why| refused(&log, why))? {
        let name = entry.map_err(|why| refused(&log, why))?.file_name();
        copy_file(&log.join(&name), &into.join(&name), &mut |bytes| {
            copied.log_bytes += bytes;
            progress(&copied);
        })?;
    }
    copied.end = target.recover(&sizes)?;
    target.name(&sizes)?;
    Ok(copied)
}

/// Copies a file and makes it durable.
fn copy_file(from: &Path, to: &Path, progress: &mut dyn FnMut(u64)) -> Result<(), Error> {
    let disk = System::new();
    let (from, to) = (disk.open(from, Open::READ)?, disk.open(to, Open::FRESH)?);
    let (mut at, length) = (0, from.length()?);
    let mut bytes = vec![0; 1 << 20];
    while at < length {
        let count = (length - at).min(bytes.len() as u64);
        let chunk = &mut bytes[..count as usize];
        from.read(at, chunk)?;
        to.write(at, chunk)?;
        progress(count);
        at += count;
    }
    Ok(to.sync()?)
}
