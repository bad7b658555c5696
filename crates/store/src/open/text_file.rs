//! Small files of text: what a store's folder says of itself.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use latchwork_disk::within_limit;

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
    let mut file = File::create(path)?;
    within_limit(text.len() as u64, || file.write_all(text.as_bytes()))?;
    Ok(file)
}
