//! Whether the files of a folder are its own.
//!
//! Backup tools make copies of hard links (`cp -al`, `rsync --link-dest`). A store writes its
//! files in place, so each of two such folders would change the other one. Where a file has other
//! names the folder is refused, and no file of either is written.
//!
//! A copy that is made of links while the store is open is refused in the same way. The processes
//! that have the store open go on, and write into files that the copy has as well, except for
//! segments of the log: a spare one with another name is not used again.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::refused;
use crate::{Error, Refusal};

/// The files of a store beside those of its log.
const FILES: [&str; 5] = ["identity", "data", "region", "live", "opening"];

/// Refuses a folder one of whose files has another name. Files that are not a store's may have
/// any.
pub(super) fn has_own_files(path: &Path) -> Result<(), Error> {
    let log = fs::read_dir(path.join("log")).into_iter().flatten().flatten();
    let log = log.map(|entry| Path::new("log").join(entry.file_name()));
    for file in FILES.iter().map(|name| Path::new(name).to_owned()).chain(log) {
        // What cannot be looked at is named where it is opened.
        let Ok(about) = fs::symlink_metadata(path.join(&file)) else { continue };
        if about.is_file() && about.nlink() > 1 {
            return Err(refused(path, Refusal::HardLinked { file, names: about.nlink() }));
        }
    }
    Ok(())
}
