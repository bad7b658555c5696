//! Small text files that describe a store's folder.

use std::fs::{self, File};
use std::io::{Error, ErrorKind, Read, Write};
use std::path::Path;

use latchwork_disk::within_limit;
use rustix::fs::{Mode, OFlags};

use super::group::share;

/// Opens a file with a descriptor other than the standard ones. A new file is readable and writable
/// for all users that the process's umask allows.
pub(crate) fn open_with(path: &Path, flags: OFlags) -> std::io::Result<File> {
    Ok(latchwork_machine::open(path, flags, Mode::from_raw_mode(0o666))?.into())
}

/// Opens a folder, to keep or sync it.
pub(crate) fn open_folder(path: &Path) -> std::io::Result<File> {
    open_with(path, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Creates a file. Fails if the name exists.
pub(crate) fn create_new(path: &Path) -> std::io::Result<File> {
    open_with(path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
}

/// Opens a file for reading. Anything but a regular file is an error: opening a pipe could block
/// forever.
pub(crate) fn open_file(path: &Path) -> std::io::Result<File> {
    let file = open_with(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => {
            let name = path.file_name().unwrap_or_default().display();
            Err(Error::new(ErrorKind::InvalidData, format!("its `{name}` is not a file")))
        }
    }
}

/// Reads a file.
pub(crate) fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let (mut file, mut bytes) = (open_file(path)?, Vec::new());
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Replaces the contents of a file. After a crash of the machine the file has either the old or the
/// new contents. The new name is durable after the folder is synced.
pub(super) fn replace_file(folder: &Path, name: &str, text: &str) -> std::io::Result<()> {
    let fresh = folder.join(format!("{name}-new"));
    // Otherwise a crash of the machine could leave an empty file under the name.
    write_file(&fresh, text)?.sync_all()?;
    fs::rename(fresh, folder.join(name))
}

/// Writes a file with this text.
pub(super) fn write_file(path: &Path, text: &str) -> std::io::Result<File> {
    let mut file = open_with(path, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
    path.parent().map_or(Ok(()), |folder| share(folder, &file))?;
    within_limit(text.len() as u64, || file.write_all(text.as_bytes()))?;
    Ok(file)
}
