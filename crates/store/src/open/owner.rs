//! The owner of a store.
//!
//! The files of a store and its shared memory belong to one user. Root could create files in a
//! store of another user, and that user could then not open them. A group can share a store: if the
//! members of the folder's group may write the folder and new files inherit its group (mode 2770),
//! all files are created readable and writable for the group. The shared memory of such a store
//! lies in its folder, because only the owner can remove a folder in `/dev/shm`.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::group::is_shared;
use super::identity::random;
use super::text_file::create_new;
use crate::error::refused;
use crate::{Error, Refusal};

/// Returns the effective user of this process.
fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the owner of a file or folder if that is another user; `None` if it is this user or the
/// path does not exist. Does not follow a symbolic link.
pub(crate) fn another(path: &Path) -> Option<u32> {
    let owner = fs::symlink_metadata(path).ok()?.uid();
    (owner != me()).then_some(owner)
}

/// Returns whether this process is a member of the group that shares a folder.
fn is_member(folder: &Path) -> bool {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let may = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    is_shared(folder) && accessat(CWD, folder, may, AtFlags::EACCESS).is_ok()
}

/// Refuses a store of another user, unless this process shares it.
pub(super) fn is_own(path: &Path) -> Result<(), Error> {
    match another(&path.join("identity")) {
        Some(_) if is_member(path) => Ok(()),
        Some(owner) if !makes_files_of(path, owner) => {
            Err(refused(path, Refusal::ForeignOwner { owner }))
        }
        _ => Ok(()),
    }
}

/// Returns whether files that this process creates in a folder belong to that user: some file
/// systems assign all files to one user. The random name prevents another user from placing a link
/// there first.
fn makes_files_of(path: &Path, owner: u32) -> bool {
    let Ok(name) = random() else { return false };
    let probe = path.join(format!("owner-{name}"));
    let Ok(made) = create_new(&probe) else { return false };
    let of = made.metadata().map(|about| about.uid());
    let _ = fs::remove_file(&probe);
    of.is_ok_and(|of| of == owner)
}

/// Converts a system error about shared memory; on a permission error, names the owner.
pub(crate) fn of_memory(at: &Path, why: std::io::Error) -> Error {
    match another(at) {
        Some(owner) if why.kind() == ErrorKind::PermissionDenied => {
            refused(at, Refusal::ForeignOwner { owner })
        }
        _ => refused(at, why),
    }
}
