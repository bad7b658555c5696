//! Nanoseconds for a lock and its unlock: median of 15 runs, in one thread and nobody else about.

use latchwork_lockmgr::{Error, Manager, Mode, Session, granular, shared};

fn pair(session: &Session, name: &[u8], mode: Mode) -> Result<f64, Error> {
    const PAIRS: u32 = 200_000;
    let owner = session.owner()?;
    let mut runs = Vec::new();
    for _ in 0..15 {
        #[allow(clippy::disallowed_types, reason = "an example measures by the wall")]
        let began = std::time::Instant::now();
        for _ in 0..PAIRS {
            owner.lock(std::hint::black_box(name), mode)?;
            owner.unlock(std::hint::black_box(name))?;
        }
        runs.push(began.elapsed().as_nanos() as f64 / f64::from(PAIRS));
    }
    runs.sort_by(f64::total_cmp);
    Ok(runs[runs.len() / 2])
}

fn main() -> Result<(), Error> {
    let name = b"sixteen bytes ok";
    let manager = Manager::private(granular::modes())?;
    let session = manager.session()?;
    println!("weak IS    {:6.1} ns a pair", pair(&session, name, granular::IS)?);
    println!("strong X   {:6.1} ns a pair", pair(&session, name, granular::X)?);
    let readers = Manager::private(shared::modes())?;
    let session = readers.session()?;
    println!("weak S     {:6.1} ns a pair", pair(&session, b"hot", shared::S)?);
    let owner = session.owner()?;
    #[allow(clippy::disallowed_types, reason = "an example measures by the wall")]
    let began = std::time::Instant::now();
    for at in 0..1000u64 {
        owner.lock(&[at, at].map(u64::to_le_bytes).concat(), shared::X)?;
    }
    println!("1,000 locks       {:6.1} us", began.elapsed().as_nanos() as f64 / 1000.0);
    #[allow(clippy::disallowed_types, reason = "an example measures by the wall")]
    let began = std::time::Instant::now();
    owner.release_all()?;
    println!("release_all       {:6.1} us", began.elapsed().as_nanos() as f64 / 1000.0);
    Ok(())
}
