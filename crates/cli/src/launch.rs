//! `latchwork run`, and its common code with `profile`: the library and the environment.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::{output, program};

/// latchwork failed.
pub(crate) const FAILED: u8 = 125;
/// The program cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// The arguments of `--latch`.
pub(crate) const LATCHES: [(&str, &str); 4] = [
    ("shfl", "sleeps when waiting takes long; the default"),
    ("shfl-spin", "mutexes never sleep"),
    ("lw", "PostgreSQL's LWLock"),
    ("glibc", "the C library's own, to compare with"),
];

/// The name of the library's file.
const LIBRARY: &str = "liblatchwork_interpose.so";

/// The reason why a program is not started: an exit code and one line.
#[derive(Debug)]
pub(crate) struct Refusal {
    code: u8,
    what: String,
}

impl Refusal {
    pub(crate) fn new(code: u8, what: String) -> Self {
        Self { code, what }
    }

    /// Prints the line and returns the code.
    pub(crate) fn say(&self) -> ExitCode {
        output::complain(&self.what);
        ExitCode::from(self.code)
    }
}

/// Run a program on our latches, in this process
///
/// Exits with the program's code; 125 if latchwork fails (an unknown latch, a program into which
/// the loader would not preload the library), 126 if the program cannot be executed, 127 if it is
/// not found.
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    latch: LatchArg,
    #[command(flatten)]
    target: Target,
}

/// The choice of a latch.
#[derive(clap::Args)]
pub(crate) struct LatchArg {
    /// The latch: shfl, shfl-spin, lw, or glibc for comparison
    #[arg(long, value_name = "NAME", default_value = "shfl")]
    pub(crate) latch: String,
}

/// The program and its arguments.
#[derive(clap::Args)]
pub(crate) struct Target {
    /// The program and its arguments
    #[arg(trailing_var_arg = true, value_name = "PROGRAM ARGS",
          num_args = 1.., required = true)]
    pub(crate) command: Vec<OsString>,
}

/// Replaces this process by the program.
pub(crate) fn run(args: RunArgs) -> ExitCode {
    match prepare(&args.target.command, &args.latch.latch) {
        Ok(mut command) => not_started(&args.target.command[0], &command.exec()).say(),
        Err(refusal) => refusal.say(),
    }
}

/// The message if the kernel refuses a program that passed the checks.
pub(crate) fn not_started(name: &OsStr, error: &std::io::Error) -> Refusal {
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => NOT_FOUND,
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => NOT_EXECUTABLE,
        std::io::ErrorKind::PermissionDenied => NOT_EXECUTABLE,
        _ => FAILED,
    };
    Refusal::new(code, format!("{}: {error}", name.display()))
}

/// Returns the command that starts a program on a latch.
pub(crate) fn prepare(command: &[OsString], latch: &str) -> Result<Command, Refusal> {
    if !LATCHES.iter().any(|(name, _)| *name == latch) {
        let names = LATCHES.map(|(name, _)| name).join(", ");
        return Err(Refusal::new(FAILED, format!("no latch is called {latch}; there are {names}")));
    }
    let [name, args @ ..] = command else {
        return Err(Refusal::new(FAILED, "no program given".to_owned()));
    };
    let path = program::find(name)?;
    program::check(&path)?;
    let library = library()?;
    let mut command = Command::new(path);
    command.arg0(name).args(args);
    command.env("LD_PRELOAD", preload(std::env::var_os("LD_PRELOAD"), library.as_os_str()));
    command.env("LATCHWORK_LATCH", latch);
    for variable in ["LATCHWORK_PROFILE", "LATCHWORK_ONLY", "LATCHWORK_DEPTH"] {
        command.env_remove(variable);
    }
    Ok(command)
}

/// Appends our library to the existing preload list.
fn preload(present: Option<OsString>, library: &OsStr) -> OsString {
    let mut list = present.unwrap_or_default();
    if !list.is_empty() {
        list.push(":");
    }
    list.push(library);
    list
}

/// Finds our library: next to this program, in `deps` there, or where `LATCHWORK_LIBRARY` says.
fn library() -> Result<PathBuf, Refusal> {
    let refuse = |what| Err(Refusal::new(FAILED, what));
    let file = if let Some(path) = std::env::var_os("LATCHWORK_LIBRARY") {
        PathBuf::from(path)
    } else {
        let exe = std::env::current_exe().unwrap_or_default();
        let folder = exe.parent().unwrap_or(std::path::Path::new("."));
        // Next to an installed program; in `deps` where cargo builds. Cargo also builds the first
        // one with the whole workspace, which may be older: the newer one is used.
        let places = [folder.join(LIBRARY), folder.join("deps").join(LIBRARY)];
        let built = |place: &PathBuf| place.metadata().and_then(|data| data.modified()).ok();
        match places.into_iter().filter(|place| place.is_file()).max_by_key(built) {
            Some(place) => place,
            None => {
                let what = format!("{LIBRARY} is not in {}, nor below it", folder.display());
                return refuse(what + "; set LATCHWORK_LIBRARY to its path");
            }
        }
    };
    let file = match file.canonicalize() {
        Ok(file) => file,
        Err(error) => return refuse(format!("the library {}: {error}", file.display())),
    };
    // The loader splits its list at both characters.
    let splits = file.as_os_str().as_encoded_bytes().iter().any(|b| matches!(b, b' ' | b':'));
    if splits {
        return refuse(format!(
            "the library's path may not have a space or colon: {}",
            file.display()
        ));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_preloaded_stays() {
        assert_eq!(preload(None, OsStr::new("/l.so")), "/l.so");
        assert_eq!(preload(Some("".into()), OsStr::new("/l.so")), "/l.so");
        assert_eq!(preload(Some("/a.so b.so".into()), OsStr::new("/l.so")), "/a.so b.so:/l.so");
    }
}
