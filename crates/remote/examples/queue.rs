//! A queue of jobs, in a folder or on a server: only the address differs.
//!
//! ```text
//! cargo run -p latchwork-remote --example queue -- /tmp/jobs put "send a letter"
//! cargo run -p latchwork-remote --example queue -- /tmp/jobs work
//! latchwork store copy /tmp/jobs postgres://ann@db.example.com/jobs
//! cargo run -p latchwork-remote --example queue -- postgres://ann@db.example.com/jobs work
//! ```
//!
//! A job that a worker takes is afterwards in the list of done jobs or in the queue again, even if
//! the worker is killed.

use latchwork_remote::Database;
use latchwork_store::{Error, ReadOps, Sequence, Table, WriteOps};

const JOBS: Table<u64, String> = Table::new("jobs");
const DONE: Table<u64, String> = Table::new("done");
const JOB: Sequence = Sequence::new("job");

/// Takes the first job and does it; none if there is no job.
fn work(tx: &mut impl WriteOps) -> Result<Option<String>, Error> {
    let Some((number, job)) = tx.pop_first(&JOBS)? else { return Ok(None) };
    tx.insert(&DONE, number, &job)?;
    Ok(Some(job))
}

fn main() -> Result<(), Error> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = args.iter().map(String::as_str).collect();
    let [address, what @ ..] = &words[..] else {
        eprintln!("usage: queue ADDRESS [put JOB | work]");
        std::process::exit(2);
    };
    let db = Database::open(address)?;
    match what {
        ["put", job] => {
            let number = db.next_number(&JOB)?;
            db.write(|tx| tx.insert(&JOBS, number, job))?;
        }
        ["work"] => {
            while let Some(job) = db.write(|tx| work(tx))? {
                println!("did: {job}");
            }
        }
        _ => {}
    }
    let [left, done] = db.read(|tx| Ok([tx.count(&JOBS, ..)?, tx.count(&DONE, ..)?]))?;
    println!("{left} jobs left, {done} done");
    Ok(())
}
