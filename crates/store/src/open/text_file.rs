//! Small files of text: what a store's folder says of itself.

use std::fs::{self, File};
use std::io::{Error, ErrorKind, Read, Write};
use std::path::Path;

use latchwork_disk::within_limit;
use rustix::fs::{Mode, OFlags};

use super::group::share;

/// Opens a file with a descriptor that is none of the standard ones. One that is made may be read
/// and written by all whom the process's mask lets.
pub(crate) fn open_with(path: &Path, flags: OFlags) -> std::io::Result<File> {
    Ok(latchwork_machine::open(path, flags, Mode::from_raw_mode(0o666))?.into())
}

/// Opens a folder, to hold it or to sync it.
pub(crate) fn open_folder(path: &Path) -> std::io::Result<File> {
    open_with(path, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Creates a file, and fails if its name is taken.
pub(crate) fn create_new(path: &Path) -> std::io::Result<File> {
    open_with(path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
}

/// Opens a file to read it. What is no file is an error, and nothing that waits: the one that made
/// a pipe may never write to it.
pub(crate) fn open_file(path: &Path) -> std::io::Result<File> {
    let file = open_with(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => {
            let name = path.file_name().unwrap_or_default().display();
            Err(Error::new(ErrorKind::InvalidData, format!("its `{name}` is no file")))
        }
    }
}

/// The bytes of a file.
pub(crate) fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let (mut file, mut bytes) = (open_file(path)?, Vec::new());
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Has a file of a folder be this text, also if the machine crashes meanwhile: then the file is
/// what it was before. The name is durable when the folder is synced.
pub(super) fn replace_file(folder: &Path, name: &str, text: &str) -> std::io::Result<()> {
    let fresh = folder.join(format!("{name}-new"));
    // Else a crash of the machine could leave the name with nothing in the file.
    write_file(&fresh, text)?.sync_all()?;
    fs::rename(fresh, folder.join(name))
}

/// Makes a file of this text.
pub(super) fn write_file(path: &Path, text: &str) -> std::io::Result<File> {
    let mut file = open_with(path, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
    path.parent().map_or(Ok(()), |folder| share(folder, &file))?;
    within_limit(text.len() as u64, || file.write_all(text.as_bytes()))?;
    Ok(file)
}
