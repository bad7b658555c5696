//! Whose a store is.
//!
//! The files of a store, and its memory, belong to one user: what another one makes there, as root
//! may, the first could not open any more. Or a group shares them: where members of the folder's
//! group may write the folder, and what is made there gets its group (mode 2770), all files are
//! made so that members can read and write them. The memory of such a store lies in its folder, for
//! only the owner of a folder in `/dev/shm` can remove it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::group::is_shared;
use super::identity::random;
use super::text_file::create_new;
use crate::error::refused;
use crate::{Error, Refusal};

/// The user that this process is.
fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The other user whose a file or folder is; none if it is this one's, or not there. A link is
/// looked at itself.
pub(crate) fn another(path: &Path) -> Option<u32> {
    let owner = fs::symlink_metadata(path).ok()?.uid();
    (owner != me()).then_some(owner)
}

/// Whether this process is a member of the group that shares a folder.
fn is_member(folder: &Path) -> bool {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let may = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    is_shared(folder) && accessat(CWD, folder, may, AtFlags::EACCESS).is_ok()
}

/// Refuses a store that is another user's, and that this one does not share.
pub(super) fn is_own(path: &Path) -> Result<(), Error> {
    match another(&path.join("identity")) {
        Some(_) if is_member(path) => Ok(()),
        Some(owner) if !makes_files_of(path, owner) => {
            Err(refused(path, Refusal::ForeignOwner { owner }))
        }
        _ => Ok(()),
    }
}

/// Whether what this process makes in a folder is that user's: on some file systems all is one's.
/// The name is one that nobody can have made before, as a link to another file.
fn makes_files_of(path: &Path, owner: u32) -> bool {
    let Ok(name) = random() else { return false };
    let probe = path.join(format!("owner-{name}"));
    let Ok(made) = create_new(&probe) else { return false };
    let of = made.metadata().map(|about| about.uid());
    let _ = fs::remove_file(&probe);
    of.is_ok_and(|of| of == owner)
}

/// What the system said of shared memory; or whose it is, if that is why.
pub(crate) fn of_memory(at: &Path, why: std::io::Error) -> Error {
    match another(at) {
        Some(owner) if why.kind() == ErrorKind::PermissionDenied => {
            refused(at, Refusal::ForeignOwner { owner })
        }
        _ => refused(at, why),
    }
}
