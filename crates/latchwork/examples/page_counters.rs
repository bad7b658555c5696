//! Counters in a file, one per page, incremented by several processes. One process is killed in the
//! middle of a change; the others find the page half changed, rebuild it and continue.
//!
//! `cargo run --release -p latchwork --example page_counters`
//!
//! A page is valid if all its words are equal. The log is the smallest possible: shared memory
//! holds the next value of each page. A change writes that value before it touches the page. The
//! thread that meets a half-changed page reads it.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use latchwork::disk::System;
use latchwork::machine::Shared;
use latchwork::pool::{FileId, FileSpec, Handle, Lost, Options, Pool, Rebuild};
use latchwork::region::{self, Area, AreaOptions, Region};

const PAGES: u64 = 8;
const ROUNDS: u64 = 20_000;

/// The next value of each page.
struct Log(Area<Shared>);

impl Rebuild for Log {
    /// Rebuilds a page whose writer died between `begin` and `commit`.
    fn rebuild(&self, lost: &Lost, _: Option<&[u64]>, into: &mut [u64]) -> Result<u64, String> {
        let value = self.0.word(lost.page).map_err(|error| error.to_string())?.load(Relaxed);
        into.fill(value);
        // The page's LSN. This log has no positions.
        Ok(0)
    }
}

/// The objects that every process opens.
struct Place {
    region: Region<Shared>,
    pool: Pool<Shared>,
    log: Area<Shared>,
}

impl Place {
    fn open(folder: &Path) -> Result<Self, Box<dyn Error>> {
        let options = region::Options::default();
        let region = Region::open_or_create(folder.join("region"), &options)?;
        let words = AreaOptions { first: PAGES * 8, limit: PAGES * 8, huge: false };
        let log = region.area("counters", &words)?;
        let options = Options {
            frames: 16,
            frames_max: 16,
            frame_bytes: 4096,
            rebuild: Some(Arc::new(Log(log.clone()))),
            ..Options::default()
        };
        let pool = Pool::open(&region, Arc::new(System::new()), &options)?;
        Ok(Self { region, pool, log })
    }
}

fn spec(folder: &Path) -> FileSpec {
    FileSpec { page_bytes: 4096, ..FileSpec::new(folder.join("pages")) }
}

/// Increments the counter of a page. Calls `half` in the middle of the change.
fn count(
    place: &Place,
    handle: &Handle<'_, Shared>,
    file: FileId,
    page: u64,
    half: &dyn Fn(),
) -> Result<(), Box<dyn Error>> {
    // Exclusive access to the page, until `commit`.
    let mut held = handle.write(file, page)?;
    let next = held.word(2).expect("a page has more words") + 1;
    // Announce the change, log it, make it.
    held.intend();
    place.log.word(page)?.store(next, Release);
    held.begin(0);
    for word in 2..held.len() {
        assert!(held.set(word, next));
        if word == held.len() / 2 {
            half();
        }
    }
    held.commit();
    Ok(())
}

/// Reads a counter. The read stores nothing and takes no latch; the closure runs again if a change
/// came in between.
fn value(handle: &Handle<'_, Shared>, file: FileId, page: u64) -> Result<u64, Box<dyn Error>> {
    let seen = handle.read(file, page, |page| {
        let first = page.word(2)?;
        (3..page.len()).all(|word| page.word(word) == Some(first)).then_some(first)
    });
    Ok(seen?)
}

/// A child increments counters. If it must die, it stops in the middle of a change and prints a
/// line.
fn child(folder: &Path, dies: bool) -> Result<(), Box<dyn Error>> {
    let place = Place::open(folder)?;
    let thread = place.region.thread()?;
    let handle = place.pool.handle(&thread)?;
    let file = handle.file(&spec(folder))?;
    for round in 0..ROUNDS {
        let stop = || {
            println!("half");
            std::thread::sleep(std::time::Duration::from_secs(600));
        };
        let now = dies && round == ROUNDS / 4;
        count(&place, &handle, file, round % PAGES, if now { &stop } else { &|| () })?;
        value(&handle, file, (round * 5) % PAGES)?;
    }
    println!("done");
    Ok(())
}

fn start(
    folder: &Path,
    how: &str,
) -> Result<(Child, BufReader<impl std::io::Read>), Box<dyn Error>> {
    let program = std::env::current_exe()?;
    let mut child = Command::new(program).arg(folder).arg(how).stdout(Stdio::piped()).spawn()?;
    let out = BufReader::new(child.stdout.take().expect("it is a pipe"));
    Ok((child, out))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut told = std::env::args_os().skip(1);
    if let (Some(folder), Some(how)) = (told.next(), told.next()) {
        return child(Path::new(&folder), how == "dies");
    }
    let folder = std::env::temp_dir().join(format!("latchwork-counters-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let place = Place::open(&folder)?;
    let thread = place.region.thread()?;
    let handle = place.pool.handle(&thread)?;
    let file = handle.file(&spec(&folder))?;
    for _ in 0..PAGES {
        let mut page = handle.new_page(file)?;
        page.begin(0);
        page.commit();
    }

    let (mut victim, mut said) = start(&folder, "dies")?;
    let others = [start(&folder, "lives")?, start(&folder, "lives")?];
    let mut line = String::new();
    said.read_line(&mut line)?;
    assert_eq!(line, "half\n");
    victim.kill()?;
    victim.wait()?;
    println!("one of three processes was killed, half of a page changed");

    for (mut other, _) in others {
        assert!(other.wait()?.success(), "a survivor failed");
    }
    // A reader has rebuilt the page. A sweep frees the slot of the killed thread.
    println!("dead threads swept: {}", place.region.sweep()?);
    let mut sum = 0;
    for page in 0..PAGES {
        sum += value(&handle, file, page)?;
    }
    // The logged change counts although its writer did not finish it.
    assert_eq!(sum, 2 * ROUNDS + ROUNDS / 4 + 1);
    println!("{PAGES} pages are whole, and no count is missing: {sum}");
    handle.sync(u64::MAX, &mut |_| {})?;
    drop(handle);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
