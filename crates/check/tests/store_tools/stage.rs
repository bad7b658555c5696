//! Stores in folders, and this test program run again as a process that is killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use latchwork_store::{Error, Options, Refusal, Store, Table};

pub(crate) const ACCOUNTS: Table<u64, i64> = Table::new("accounts");
pub(crate) const ROWS: Table<u64, &[u8]> = Table::new("rows");
pub(crate) const COUNT: u64 = 12;
pub(crate) const EACH: i64 = 1000;

/// A folder, removed by the process that created it when the value is dropped, together with shared
/// memory of stores in it whose processes were killed.
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    mine: bool,
}

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let name = format!("latchwork-tools-{}-{number}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self { path, mine: true }
    }

    /// The place that a child process works at, or None in the parent.
    pub(crate) fn told() -> Option<Self> {
        let path = std::env::var_os("LATCHWORK_TOOLS_PLACE")?;
        Some(Self { path: path.into(), mine: false })
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Starts this test program again in the test of this name, to be killed.
    pub(crate) fn start(&self, test: &str) -> Child {
        self.start_by("exec \"$0\" \"$@\"", test)
    }

    /// As [`start`](Self::start), by a shell command.
    pub(crate) fn start_by(&self, line: &str, test: &str) -> Child {
        Command::new("sh")
            .args(["-c", line])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--test-threads=1", "--nocapture"])
            .env("LATCHWORK_TOOLS_PLACE", &self.path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.mine {
            return;
        }
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let region = fs::read_to_string(entry.path().join("region"));
            if let Some(memory) = region.unwrap_or_default().lines().nth(1) {
                let _ = fs::remove_dir_all(memory);
            }
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The number of steps until this process is killed; 0: never.
static LEFT: AtomicU32 = AtomicU32::new(0);

fn at_step(_: &'static str) {
    let left = LEFT.load(Relaxed);
    if left != 0 && LEFT.fetch_sub(1, Relaxed) == 1 {
        // SAFETY: signals this process.
        unsafe { libc::kill(std::process::id() as i32, libc::SIGKILL) };
    }
}

/// Kills this process after this many steps of the log, the pool and the lock manager; never if 0.
pub(crate) fn die_after(steps: u32) {
    latchwork_log::set_point_hook(at_step);
    latchwork_lockmgr::set_point_hook(at_step);
    latchwork_pool::set_point_hook(at_step);
    LEFT.store(steps, Relaxed);
}

pub(crate) fn options() -> Options {
    let mut options = Options::default();
    options.sizes.cache = 2 << 20;
    options.sizes.log_buffer = 1 << 20;
    options.sizes.log_segment = 1 << 20;
    options.sizes.log_budget = 2 << 20;
    options.sizes.threads = 64;
    options
}

pub(crate) fn open(path: PathBuf) -> Store {
    Store::open_with(path, &options()).unwrap()
}

/// Bytes of a row's value. Some values are too long for a page.
pub(crate) fn length(row: u64) -> usize {
    if row % 90 == 7 { 3000 + 5 * row as usize } else { 300 }
}

pub(crate) fn fill(store: &Store, rows: u64) {
    store.write(|tx| (0..COUNT).try_for_each(|account| tx.put(&ACCOUNTS, account, EACH))).unwrap();
    for from in (0..rows).step_by(100) {
        let some = from..rows.min(from + 100);
        let put = store.write(|tx| {
            some.clone().try_for_each(|row| tx.put(&ROWS, row, &vec![row as u8; length(row)]))
        });
        put.unwrap();
    }
}

/// Moves money between two accounts.
pub(crate) fn transfer(store: &Store, from: u64, to: u64) {
    store
        .write(|tx| {
            let has = tx.get_for_update(&ACCOUNTS, from)?.unwrap();
            tx.put(&ACCOUNTS, from, has - 1)?;
            let has = tx.get_for_update(&ACCOUNTS, to)?.unwrap();
            tx.put(&ACCOUNTS, to, has + 1)
        })
        .unwrap();
}

pub(crate) fn sum(store: &Store) -> i64 {
    let sum = store
        .read(|tx| tx.range(&ACCOUNTS, ..)?.try_fold(0, |sum, row| Ok::<_, Error>(sum + row?.1)));
    sum.unwrap()
}

/// All records of a store, as in a dump without its first and last lines.
pub(crate) fn all(store: &Store) -> latchwork_check::dump_bytes::Tables {
    let (text, _) = store.dump(Vec::new(), None, &mut |_| {}).unwrap();
    latchwork_check::dump_bytes::read(&text).unwrap().0
}

/// Returns the reason of a refused open.
pub(crate) fn why(error: Error) -> Refusal {
    match error {
        Error::Open { why, .. } => why,
        other => panic!("{other}"),
    }
}

/// Copies a folder with its contents, as `cp -r` does.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}
