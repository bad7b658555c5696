//! Finds the program to run, and checks whether the loader would preload our library into it.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::elf::{self, Image};
use crate::launch::{FAILED, NOT_EXECUTABLE, NOT_FOUND, Refusal};
use crate::runtime;

/// Nested script interpreters: as many as the kernel follows.
const SCRIPTS_MAX: u32 = 5;

/// Returns the file that a name means, like `execvp`.
pub(crate) fn find(name: &OsStr) -> Result<PathBuf, Refusal> {
    let shown = name.display();
    if name.as_bytes().contains(&b'/') {
        return match Path::new(name).metadata() {
            Ok(file) if may_execute(Path::new(name), &file) => Ok(name.into()),
            Ok(_) => Err(Refusal::new(NOT_EXECUTABLE, format!("{shown}: not executable"))),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                Err(Refusal::new(NOT_EXECUTABLE, format!("{shown}: {error}")))
            }
            Err(_) => Err(Refusal::new(NOT_FOUND, format!("{shown}: not found"))),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut refusal = Refusal::new(NOT_FOUND, format!("{shown}: not found in PATH"));
    if name.is_empty() {
        return Err(refusal);
    }
    for folder in std::env::split_paths(&path) {
        let file = folder.join(name);
        match file.metadata() {
            Ok(found) if found.is_file() && may_execute(&file, &found) => return Ok(file),
            Ok(found) if found.is_file() => {
                let what = format!("{}: not executable", file.display());
                refusal = Refusal::new(NOT_EXECUTABLE, what);
            }
            _ => {}
        }
    }
    Err(refusal)
}

fn may_execute(path: &Path, file: &Metadata) -> bool {
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: `path` ends with a zero byte.
    file.is_file() && unsafe { libc::access(path.as_ptr(), libc::X_OK) } == 0
}

/// Refuses a program into which the loader would not preload our library.
pub(crate) fn check(path: &Path) -> Result<(), Refusal> {
    check_at(path, SCRIPTS_MAX)
}

fn check_at(path: &Path, scripts: u32) -> Result<(), Refusal> {
    let shown = path.display();
    let refuse = |code, what: &str| Err(Refusal::new(code, format!("{shown}: {what}")));
    if let Some(what) = gains_privileges(path) {
        return refuse(FAILED, what);
    }
    let mut bytes = Vec::new();
    // A program that is executable and not readable cannot be checked.
    let Ok(file) = File::open(path) else { return Ok(()) };
    if file.take(4096).read_to_end(&mut bytes).is_err() {
        return Ok(());
    }
    match elf::image(&bytes) {
        Image::Dynamic(loader) if is_musl(&loader) => refuse(
            FAILED,
            "built for musl: our library is built for glibc and has other mutexes; build the \
             program for a `gnu` target",
        ),
        Image::Dynamic(_) => match runtime::sanitizer(path) {
            Some(name) => refuse(
                FAILED,
                &format!(
                    "built with {name}, which has to see each mutex itself and would report errors \
                     that are none: build the program without it"
                ),
            ),
            None => Ok(()),
        },
        Image::Static if runtime::is_go(path) => refuse(
            FAILED,
            "a Go program, statically linked: the loader would ignore our library, and Go's locks \
             are no pthread mutexes",
        ),
        Image::Static => refuse(FAILED, "statically linked: the loader would ignore our library"),
        Image::Foreign(machine) => {
            let what =
                format!("built for another machine (ELF {machine}): cannot run on our latches");
            refuse(FAILED, &what)
        }
        Image::Script(interpreter) if scripts > 0 => {
            let interpreter = Path::new(OsStr::from_bytes(&interpreter));
            if !interpreter.exists() {
                let what = format!("its interpreter {} is not there", interpreter.display());
                return refuse(NOT_FOUND, &what);
            }
            check_at(interpreter, scripts - 1)
        }
        Image::Script(_) | Image::Unknown => refuse(NOT_EXECUTABLE, "not a program"),
    }
}

fn is_musl(loader: &[u8]) -> bool {
    let name = loader.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.starts_with(b"ld-musl")
}

/// The reason why the loader would not trust the environment for this program.
fn gains_privileges(path: &Path) -> Option<&'static str> {
    let file = path.metadata().ok()?;
    // SAFETY: it only returns a number.
    let user = unsafe { libc::geteuid() };
    // SAFETY: it only returns a number.
    let group = unsafe { libc::getegid() };
    if file.mode() & libc::S_ISUID != 0 && file.uid() != user {
        return Some("setuid: the loader would ignore our library");
    }
    if file.mode() & libc::S_ISGID != 0 && file.gid() != group {
        return Some("setgid: the loader would ignore our library");
    }
    (user != 0 && has_capabilities(path))
        .then_some("has file capabilities: the loader would ignore our library")
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    let name = c"security.capability".as_ptr();
    // SAFETY: both are strings that end with a zero byte; of length zero, nothing is written.
    unsafe { libc::getxattr(path.as_ptr(), name, std::ptr::null_mut(), 0) > 0 }
}
