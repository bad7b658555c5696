//! Two processes lock the same name in one file. One is killed; the other takes the lock.
//!
//! `cargo run --release -p latchwork --example two_processes`

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use latchwork::lockmgr::{Manager, Options, granular};
use latchwork::{machine::Shared, region, region::Region};

/// Opens the region, or creates it if the file is missing. Both processes call this.
fn open(file: &Path) -> Result<Manager<Shared>, Box<dyn Error>> {
    let region = Region::<Shared>::open_or_create(file, &region::Options::default())?;
    Ok(Manager::new(region, granular::modes(), Options::default())?)
}

/// The child locks the name, prints a line and sleeps.
fn child(file: &Path) -> Result<(), Box<dyn Error>> {
    let manager = open(file)?;
    let session = manager.session()?;
    let owner = session.owner()?;
    owner.lock(b"account 7", granular::X)?;
    println!("locked");
    std::thread::sleep(Duration::from_secs(60));
    owner.release_all()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(file) = std::env::args_os().nth(1) {
        return child(Path::new(&file));
    }
    let file = std::env::temp_dir().join(format!("latchwork-example-{}", std::process::id()));
    let manager = open(&file)?;
    let mut other =
        Command::new(std::env::current_exe()?).arg(&file).stdout(Stdio::piped()).spawn()?;
    let mut said = String::new();
    let out = other.stdout.take().expect("it is a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut said)?;
    assert_eq!(said, "locked\n");

    let session = manager.session()?;
    let owner = session.owner()?;
    let refused = owner.try_lock(b"account 7", granular::X);
    println!("while the other process holds the lock: {refused:?}");
    assert!(refused.is_err());
    other.kill()?;
    other.wait()?;
    // This wait finds the holder dead, releases the holder's locks and takes the lock.
    owner.lock(b"account 7", granular::X)?;
    println!("after it was killed: locked");
    owner.release_all()?;
    drop(owner);
    drop(session);
    std::fs::remove_file(&file)?;
    Ok(())
}
