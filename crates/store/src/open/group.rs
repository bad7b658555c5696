//! Folders that the members of a group share, and the permissions of files in them.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// The bits of a folder that a group shares.
const SHARED: u32 = 0o2020;

/// Returns whether new files in a folder are shared with its group.
pub(super) fn is_shared(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|about| about.mode() & SHARED == SHARED)
}

/// Returns the permissions of a file in a store's folder.
pub(super) fn file_mode(folder: &Path) -> u32 {
    if is_shared(folder) { 0o660 } else { 0o600 }
}

/// Makes a file of this user readable and writable for the group, if the group shares the folder.
pub(super) fn share(folder: &Path, file: &File) -> std::io::Result<()> {
    let own = |about: fs::Metadata| {
        about.uid() == rustix::process::geteuid().as_raw() && about.mode() & 0o060 != 0o060
    };
    match is_shared(folder) && file.metadata().is_ok_and(own) {
        true => file.set_permissions(Permissions::from_mode(0o660)),
        false => Ok(()),
    }
}
