//! Runtimes whose locks are no pthread mutexes: a profile of them shows little and says why.

use std::fs;
use std::path::Path;

use latchwork_profile::Snapshot;
use object::{Object, ObjectSection, ObjectSymbol};

/// Larger files are not examined.
const FILE_MAX: u64 = 1 << 30;

/// A runtime with locks of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// A Java virtual machine.
    Jvm,
    /// A Go program.
    Go,
}

impl Runtime {
    /// Detects the runtime of a process; none for most.
    pub(crate) fn of(snapshot: &Snapshot) -> Option<Self> {
        let is_jvm = |path: &str| path.ends_with("/libjvm.so");
        if snapshot.exe.ends_with("/java") || snapshot.maps.iter().any(|m| is_jvm(&m.path)) {
            return Some(Self::Jvm);
        }
        is_go(Path::new(&snapshot.exe)).then_some(Self::Go)
    }

    /// Returns the note for readers of the profile.
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

/// The sanitizers that interpose on the same calls, by the function that starts each.
const SANITIZERS: [(&str, &str); 4] = [
    ("__tsan_init", "ThreadSanitizer"),
    ("__asan_init", "AddressSanitizer"),
    ("__msan_init", "MemorySanitizer"),
    ("__hwasan_init", "HWAddressSanitizer"),
];

/// Returns the sanitizer that a program was built with: its library, or a copy in the program, has
/// such a function.
pub(crate) fn sanitizer(path: &Path) -> Option<&'static str> {
    let bytes = whole(path)?;
    let object = object::File::parse(&*bytes).ok()?;
    object.dynamic_symbols().chain(object.symbols()).find_map(|symbol| {
        let name = symbol.name().ok()?;
        SANITIZERS.iter().find(|(start, _)| *start == name).map(|(_, sanitizer)| *sanitizer)
    })
}

/// The bytes of a file that is not too large.
fn whole(path: &Path) -> Option<Vec<u8>> {
    let small = fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= FILE_MAX);
    small.then(|| fs::read(path).ok()).flatten()
}

/// Returns whether a file is a Go program, by the linker's tables.
pub(crate) fn is_go(path: &Path) -> bool {
    let Some(bytes) = whole(path) else { return false };
    let Ok(object) = object::File::parse(&*bytes) else { return false };
    object
        .sections()
        .filter_map(|section| section.name().ok().map(str::to_owned))
        .any(|name| matches!(name.as_str(), ".go.buildinfo" | ".gopclntab" | ".note.go.buildid"))
}
