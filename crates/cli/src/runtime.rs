//! Programs whose own locks are no pthread mutexes: a profile of them shows little, and says why.

use std::fs;
use std::path::Path;

use latchwork_profile::Snapshot;
use object::{Object, ObjectSection};

/// Files larger than this are not looked into.
const FILE_MAX: u64 = 1 << 30;

/// What a process does besides what it was written in C for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// A Java machine.
    Jvm,
    /// A Go program.
    Go,
}

impl Runtime {
    /// What a process is; none for most.
    pub(crate) fn of(snapshot: &Snapshot) -> Option<Self> {
        let is_jvm = |path: &str| path.ends_with("/libjvm.so");
        if snapshot.exe.ends_with("/java") || snapshot.maps.iter().any(|m| is_jvm(&m.path)) {
            return Some(Self::Jvm);
        }
        is_go(Path::new(&snapshot.exe)).then_some(Self::Go)
    }

    /// What a reader of its profile should know.
    pub(crate) fn note(self) -> &'static str {
        match self {
            Self::Jvm => {
                "is a JVM: synchronized and java.util.concurrent do not use pthread mutexes.\n\
                 Only the JVM's own locks are seen."
            }
            Self::Go => {
                "is a Go program: sync.Mutex and channels do not use pthread mutexes.\n\
                 Only the locks of its C code are seen."
            }
        }
    }
}

/// Whether a file is a Go program: the linker leaves its tables.
pub(crate) fn is_go(path: &Path) -> bool {
    let small = fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= FILE_MAX);
    let Some(bytes) = small.then(|| fs::read(path).ok()).flatten() else { return false };
    let Ok(object) = object::File::parse(&*bytes) else { return false };
    object
        .sections()
        .filter_map(|section| section.name().ok().map(str::to_owned))
        .any(|name| matches!(name.as_str(), ".go.buildinfo" | ".gopclntab" | ".note.go.buildid"))
}
