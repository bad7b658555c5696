//! Checks that no file of a store has a second hard link.
//!
//! Backup tools make copies with hard links (`cp -al`, `rsync --link-dest`). A store writes its
//! files in place, so each of two such folders would change the other. If a file has other names,
//! the folder is refused, and no file of either is written.
//!
//! A copy that is made with hard links while the store is open is refused in the same way. The
//! processes that have the store open continue to write into the files that the copy shares. The
//! only exception is a spare log segment: it is not reused if it has another name.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::refused;
use crate::{Error, Refusal};

/// The files of a store, except those of its log.
const FILES: [&str; 5] = ["identity", "data", "region", "live", "opening"];

/// Refuses a folder if a file of the store in it has another name. Other files in the folder are
/// not checked.
pub(super) fn has_own_files(path: &Path) -> Result<(), Error> {
    let log = fs::read_dir(path.join("log")).into_iter().flatten().flatten();
    let log = log.map(|entry| Path::new("log").join(entry.file_name()));
    for file in FILES.iter().map(|name| Path::new(name).to_owned()).chain(log) {
        // A file that cannot be inspected is reported when it is opened.
        let Ok(about) = fs::symlink_metadata(path.join(&file)) else { continue };
        if about.is_file() && about.nlink() > 1 {
            return Err(refused(path, Refusal::HardLinked { file, names: about.nlink() }));
        }
    }
    Ok(())
}
