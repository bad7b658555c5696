//! A copy of a store that others write meanwhile, and a store of a copy.
//!
//! | step | what | so that |
//! |---|---|---|
//! | 1 | a checkpoint; the log is pinned from its redo point on | later changes stay in the log |
//! | 2 | the pages are copied, each looked at by its checksum | none is older than step 1 |
//! | 3 | the log is flushed, and copied from there to its end | it has all that a page has |
//!
//! So the copy is what a crash of the machine would have left after step 3, and opens as after one.
//! A page that is read while it is written fails its checksum, and is read again.
//!
//! A copy is made in a folder beside, and gets its name when all of it is durable: `beside.rs`.

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

/// Pages that are read in one call.
const CHUNK: u64 = 64;
/// How long a page that is not sound is read again: a write of it ends before.
const PATIENCE: Duration = Duration::from_secs(1);

/// What was copied, so far or in all.
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

/// What is called now and then with what is copied so far.
pub type Copying<'t> = dyn FnMut(&Copied) + 't;

impl Store<Machine> {
    /// Copies the store into a folder that is not there yet, while others write. The copy has all
    /// that was committed when this was called, and what was committed until its log was copied. It
    /// is a store of its own, and opens as one does after a crash.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] if there is something at `to`; [`Error::Pool`] for a page that cannot be
    /// read; those of the parts. Nothing is at `to` then.
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
    pub fn backup(&self, to: impl AsRef<Path>, told: &mut Copying<'_>) -> Result<Copied, Error> {
        let beside = TemporaryFolder::new(to.as_ref())?;
        let disk: Arc<dyn Disk> = Arc::new(System::new());
        let copied = self.backup_on(&disk, &beside.fresh, told)?;
        beside.name(&self.home().sizes)?;
        Ok(copied)
    }
}

impl<M: ConstMachine> Store<M> {
    /// Writes the files of a copy into a folder that is there and empty, all of them durable: what
    /// [`backup`](Store::backup) does, on any disk. It gives the copy no identity.
    ///
    /// # Errors
    ///
    /// As there. What is in the folder then is no store.
    pub fn backup_on(
        &self,
        disk: &Arc<dyn Disk>,
        folder: &Path,
        told: &mut Copying<'_>,
    ) -> Result<Copied, Error> {
        let session = self.session()?;
        let worker = &session.worker;
        let pin = Pinned { worker, pin: pin(worker)? };
        self.copy_pinned(worker, pin.pin, disk, folder, told)
    }

    fn copy_pinned(
        &self,
        worker: &StoreSession<M>,
        pin: u32,
        disk: &Arc<dyn Disk>,
        folder: &Path,
        told: &mut Copying<'_>,
    ) -> Result<Copied, Error> {
        let home = self.home();
        home.checkpoint_anew(worker)?;
        // All that are copied from now on are signed for this one.
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
                    // A crash, or a kill, may have left half of one that was freed then.
                    if !worker.is_free_page(number)? {
                        return Err(why);
                    }
                    page.fill(0);
                }
            }
            to.write(copied.pages * size, chunk)?;
            copied.pages += count;
            copied.page_bytes += count * size;
            told(&copied);
        }
        // The copy is as long as its catalog may say that it was.
        if from.length()? > pages * size {
            to.truncate(from.length()?)?;
        }
        to.sync()?;
        // What the pages have is in the log, and flushed before they were written.
        let end = home.log.end();
        worker.log.flush(Lsn(end.0.saturating_sub(1)))?;
        let log = folder.join("log");
        disk.make_folder(&log)?;
        disk.sync_folder(folder)?;
        let end = worker.log.copy_to(disk, &log, &since, &mut |count| {
            copied.log_bytes += count;
            told(&copied);
        })?;
        copied.end = end.0;
        Ok(copied)
    }
}

/// What keeps the log for a copy, until it is dropped: by a panic of the caller's closure, too.
struct Pinned<'w, M: ConstMachine> {
    worker: &'w StoreSession<M>,
    pin: u32,
}

impl<M: ConstMachine> Drop for Pinned<'_, M> {
    fn drop(&mut self) {
        // It fails in the child of a fork alone, which has no pin.
        let _ = self.worker.log.unpin(self.pin);
    }
}

/// Keeps all of the log that there is.
fn pin<M: ConstMachine>(worker: &StoreSession<M>) -> Result<u32, Error> {
    loop {
        match worker.log.pin("backup", worker.log.log().oldest()) {
            // It was recycled just now.
            Err(LogError::Gone { .. }) => {}
            other => return Ok(other?),
        }
    }
}

/// Reads a page again until it is sound. One that was never written is zeros, and made by the log.
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

/// Makes a store of a copy, in a folder that is not there yet: the files are copied, recovered and
/// looked at, and get their name when all is well. The copy stays as it is. It may be any store
/// that nobody has open.
///
/// # Errors
///
/// [`Error::Open`] if there is something at `to`, or `from` is no store or in use; what is wrong
/// with the copy. Nothing is at `to` then.
///
/// # Examples
///
/// See [`Store::backup`].
pub fn restore(
    from: impl AsRef<Path>,
    to: impl AsRef<Path>,
    told: &mut Copying<'_>,
) -> Result<Copied, Error> {
    let mut sizes = Sizes::default();
    let from = at_rest(from.as_ref(), &mut sizes)?;
    if from.left()?.is_some() {
        return Err(refused(&from.path, Refusal::LeftOpen));
    }
    let beside = TemporaryFolder::new(to.as_ref())?;
    let mut copied = Copied::default();
    copy_file(&from.path.join("data"), &beside.fresh.join("data"), &mut |bytes| {
        copied.page_bytes += bytes;
        copied.pages = copied.page_bytes / u64::from(sizes.page);
        told(&copied);
    })?;
    let (log, into) = (from.path.join("log"), beside.fresh.join("log"));
    fs::create_dir(&into).map_err(|why| refused(&into, why))?;
    for entry in fs::read_dir(&log).map_err(|why| refused(&log, why))? {
        let name = entry.map_err(|why| refused(&log, why))?.file_name();
        copy_file(&log.join(&name), &into.join(&name), &mut |bytes| {
            copied.log_bytes += bytes;
            told(&copied);
        })?;
    }
    copied.end = beside.recover(&sizes)?;
    beside.name(&sizes)?;
    Ok(copied)
}

/// Copies a file and makes it durable.
fn copy_file(from: &Path, to: &Path, told: &mut dyn FnMut(u64)) -> Result<(), Error> {
    let disk = System::new();
    let (from, to) = (disk.open(from, Open::READ)?, disk.open(to, Open::FRESH)?);
    let (mut at, length) = (0, from.length()?);
    let mut bytes = vec![0; 1 << 20];
    while at < length {
        let count = (length - at).min(bytes.len() as u64);
        let chunk = &mut bytes[..count as usize];
        from.read(at, chunk)?;
        to.write(at, chunk)?;
        told(count);
        at += count;
    }
    Ok(to.sync()?)
}
