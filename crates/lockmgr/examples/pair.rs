//! Measures a lock and its unlock in nanoseconds, in one thread without contention: the best and
//! the median of several runs. Arguments: `all`, `weak`, `strong`, `hot` or `thousand`; pairs per
//! run; runs.

use latchwork_lockmgr::{Error, Manager, Mode, Modes, Options, Session, granular, shared};
use latchwork_region::Region;

fn pair(
    session: &Session,
    (pairs, runs): (u32, u32),
    name: &[u8],
    mode: Mode,
) -> Result<(f64, f64), Error> {
    let owner = session.owner()?;
    let mut times = Vec::new();
    for _ in 0..runs {
        #[allow(clippy::disallowed_types, reason = "an example measures by the wall")]
        let began = std::time::Instant::now();
        for _ in 0..pairs {
            owner.lock(std::hint::black_box(name), mode)?;
            owner.unlock(std::hint::black_box(name))?;
        }
        times.push(began.elapsed().as_nanos() as f64 / f64::from(pairs));
    }
    times.sort_by(f64::total_cmp);
    Ok((times[0], times[times.len() / 2]))
}

/// Returns the microseconds to take a thousand locks, and to release them.
fn thousand(session: &Session) -> Result<(f64, f64), Error> {
    let owner = session.owner()?;
    #[allow(clippy::disallowed_types, reason = "an example measures by the wall")]
    let began = std::time::Instant::now();
    for at in 0..1000u64 {
        owner.lock(&[at, at].map(u64::to_le_bytes).concat(), shared::X)?;
    }
    let took = began.elapsed();
    owner.release_all()?;
    let all = began.elapsed();
    Ok((took.as_nanos() as f64 / 1000.0, (all - took).as_nanos() as f64 / 1000.0))
}

/// Creates a manager in a region small enough for a tool that counts instructions.
fn small(modes: Modes) -> Result<Manager, Error> {
    let options = latchwork_region::Options { limit: 1 << 28, ..Default::default() };
    Manager::new(Region::private(&options)?, modes, Options::default())
}

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_else(|| "all".into());
    let mut number = |other| args.next().and_then(|n| n.parse().ok()).unwrap_or(other);
    let size = (number(200_000), number(15));
    let wants = |name| what == "all" || what == name;
    let name = b"sixteen bytes ok";
    let manager = small(granular::modes())?;
    let session = manager.session()?;
    let say = |what, (best, median): (f64, f64), unit| {
        println!("{what:12} {best:7.1} {unit} at best, {median:7.1} in the median");
    };
    if wants("weak") {
        say("weak IS", pair(&session, size, name, granular::IS)?, "ns");
    }
    if wants("strong") {
        say("strong X", pair(&session, size, name, granular::X)?, "ns");
    }
    let readers = small(shared::modes())?;
    let session = readers.session()?;
    if wants("hot") {
        say("weak S", pair(&session, size, b"hot", shared::S)?, "ns");
    }
    if wants("thousand") {
        let mut runs = Vec::new();
        for _ in 0..size.1.max(1) {
            runs.push(thousand(&session)?);
        }
        println!("1,000 locks, the first time {:7.1} us", runs[0].0);
        let mut column = |which: fn(&(f64, f64)) -> f64| {
            runs.sort_by(|a, b| which(a).total_cmp(&which(b)));
            (which(&runs[0]), which(&runs[runs.len() / 2]))
        };
        say("1,000 locks", column(|run| run.0), "us");
        say("release_all", column(|run| run.1), "us");
    }
    Ok(())
}
