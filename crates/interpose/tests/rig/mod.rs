//! Compiles the test programs and runs them, with our library or without.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longer than the longest takes on a slow machine; past it, it hangs.
const PATIENCE: Duration = Duration::from_secs(90);

/// How to run a program.
#[derive(Default)]
pub(crate) struct Run<'a> {
    pub(crate) args: &'a [&'a str],
    /// On our library, with this latch.
    pub(crate) latch: Option<&'a str>,
    pub(crate) profile: bool,
    /// A library to preload before ours.
    pub(crate) before: Option<&'a Path>,
}

/// A place for programs.
pub(crate) struct Rig {
    folder: PathBuf,
    library: PathBuf,
}

/// The result of a program.
pub(crate) struct Done {
    output: Output,
    hung: bool,
}

impl Done {
    pub(crate) fn succeeded(&self) -> bool {
        !self.hung && self.output.status.success()
    }

    /// It ended well, and printed what it prints and nothing more.
    #[track_caller]
    pub(crate) fn ok(&self, program: &str, how: &str) {
        let stderr = String::from_utf8_lossy(&self.output.stderr);
        assert!(!self.hung, "{program} ({how}) hangs: {stderr}");
        assert!(
            self.output.status.success(),
            "{program} ({how}): {}: {stderr}",
            self.output.status
        );
        assert_eq!(self.output.stdout, b"ok\n", "{program} ({how})");
        assert_eq!(stderr, "", "{program} ({how})");
    }
}

impl Rig {
    pub(crate) fn new() -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let exe = std::env::current_exe().unwrap();
        let library = exe.parent().unwrap().join("liblatchwork_interpose.so");
        assert!(library.exists(), "{} is not built", library.display());
        Self { folder, library }
    }

    pub(crate) fn compile(&self, source: &str) -> PathBuf {
        self.build(source, &["-pthread"])
    }

    pub(crate) fn compile_library(&self, source: &str) -> PathBuf {
        self.build(source, &["-shared", "-fPIC", "-pthread"])
    }

    /// Compiles under a name of its own: tests run side by side.
    fn build(&self, source: &str, flags: &[&str]) -> PathBuf {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
        let to = self.folder.join(format!("{source}.{}.{number}", std::process::id()));
        let compiler = if source.ends_with(".cpp") { "c++" } else { "cc" };
        let mut command = Command::new(compiler);
        command.args(["-O2", "-g", "-Wall", "-Wextra", "-Wno-nonnull"]).args(flags);
        let status = command.arg("-o").arg(&to).arg(&path).status().expect("a C compiler");
        assert!(status.success(), "{source} does not compile");
        to
    }

    pub(crate) fn run(&self, program: &Path, run: &Run<'_>) -> Done {
        let mut command = Command::new(program);
        command.args(run.args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut preload: Vec<String> = Vec::new();
        preload.extend(run.before.map(|path| path.display().to_string()));
        if let Some(latch) = run.latch {
            preload.push(self.library.display().to_string());
            command.env("LATCHWORK_LATCH", latch);
        }
        let folder = run.profile.then(|| self.profiles(program));
        if let Some(folder) = &folder {
            command.env("LATCHWORK_PROFILE", folder);
        }
        if !preload.is_empty() {
            command.env("LD_PRELOAD", preload.join(":"));
        }
        let done = finish(command);
        if let Some(folder) = folder {
            let written = std::fs::read_dir(&folder).unwrap().count();
            std::fs::remove_dir_all(&folder).unwrap();
            assert!(written > 0, "{}: no profile was written", program.display());
        }
        done
    }

    fn profiles(&self, program: &Path) -> PathBuf {
        let folder = self.folder.join(format!("{}.profiles", program.display()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// The kinds of the library's relocations that name `symbol`.
    pub(crate) fn relocations(&self, symbol: &str) -> Vec<String> {
        let output = Command::new("readelf").arg("-rW").arg(&self.library).output();
        let text = String::from_utf8(output.expect("readelf").stdout).unwrap();
        let named = |name: &str| name.split('@').next() == Some(symbol);
        let fields = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        fields
            .filter(|fields| fields.len() > 4 && named(fields[4]))
            .map(|fields| fields[2].to_owned())
            .collect()
    }

    /// The names that the library defines.
    pub(crate) fn exports(&self) -> Vec<String> {
        let output = Command::new("nm").arg("-D").arg("--defined-only").arg(&self.library).output();
        let text = String::from_utf8(output.expect("nm").stdout).unwrap();
        text.lines().filter_map(|line| line.rsplit(' ').next()).map(str::to_owned).collect()
    }
}

/// Waits for a program, but not for ever.
fn finish(mut command: Command) -> Done {
    let mut child = command.spawn().unwrap();
    let (began, mut hung) = (Instant::now(), false);
    while child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
        if began.elapsed() > PATIENCE {
            hung = true;
            child.kill().unwrap();
            break;
        }
    }
    Done { output: child.wait_with_output().unwrap(), hung }
}
