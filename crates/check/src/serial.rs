//! The serial replay oracle. Transactions that ran concurrently are replayed one after the other,
//! in the order of their commit records, on a map. Every read must return what it returned in the
//! run.
//!
//! A transaction without writes is placed at the end of the log at a time when it held all its
//! locks. A snapshot is placed at its position.

use std::collections::BTreeMap;
use std::fmt;

/// A record's name: tree and key.
pub type Name = (u32, Vec<u8>);

/// An operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read a record.
    Read(Name, Option<Vec<u8>>),
    /// Read all records of a tree between two keys, without the second.
    Scan(u32, Vec<u8>, Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>),
    /// Wrote or removed a record.
    Write(Name, Option<Vec<u8>>),
}

/// A transaction or a snapshot that ended successfully.
#[derive(Clone, Debug)]
pub struct Done {
    /// Its position in the log.
    pub at: u64,
    /// Whether its commit record is at this position: it precedes all others of the position.
    pub wrote: bool,
    /// Its operations in order.
    pub steps: Vec<Step>,
}

/// A read that no serial order explains.
#[derive(Debug)]
pub struct Wrong {
    /// The position of its transaction in the log.
    pub at: u64,
    /// The operation.
    pub step: Step,
    /// The result of the serial run.
    pub instead: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}: {:?}, and a serial run shows {}", self.at, self.step, self.instead)
    }
}

/// Replays all transactions in order. Returns the number of compared reads.
///
/// # Errors
///
/// [`Wrong`] for the first read that differs.
pub fn replay(mut all: Vec<Done>) -> Result<usize, Box<Wrong>> {
    all.sort_by_key(|done| (done.at, !done.wrote));
    let mut model: BTreeMap<Name, Vec<u8>> = BTreeMap::new();
    let mut reads = 0;
    for done in all {
        for step in done.steps {
            let seen = match &step {
                Step::Write(name, Some(value)) => {
                    model.insert(name.clone(), value.clone());
                    continue;
                }
                Step::Write(name, None) => {
                    model.remove(name);
                    continue;
                }
                Step::Read(name, found) => {
                    let there = model.get(name).cloned();
                    (there != *found).then(|| format!("{there:?}"))
                }
                Step::Scan(tree, from, to, found) => {
                    let range = (*tree, from.clone())..(*tree, to.clone());
                    let there: Vec<_> =
                        model.range(range).map(|((_, key), v)| (key.clone(), v.clone())).collect();
                    (there != *found).then(|| format!("{there:?}"))
                }
            };
            reads += 1;
            if let Some(instead) = seen {
                return Err(Box::new(Wrong { at: done.at, step, instead }));
            }
        }
    }
    Ok(reads)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: &[u8]) -> Name {
        (1, key.to_vec())
    }

    #[test]
    fn a_read_of_the_future_or_the_past_is_found() {
        let value = |v: &[u8]| Some(v.to_vec());
        let write =
            |at, v: &[u8]| Done { at, wrote: true, steps: vec![Step::Write(name(b"a"), value(v))] };
        let read = |at, v| Done { at, wrote: false, steps: vec![Step::Read(name(b"a"), v)] };
        let all = |read| vec![write(32, b"2"), read, write(16, b"1")];
        assert_eq!(replay(all(read(16, value(b"1")))).unwrap(), 1);
        assert_eq!(replay(all(read(0, None))).unwrap(), 1);
        assert!(replay(all(read(16, value(b"2")))).is_err(), "the future");
        assert!(replay(all(read(32, value(b"1")))).is_err(), "the past");
        let scan = Step::Scan(1, b"a".to_vec(), b"b".to_vec(), vec![]);
        assert!(
            replay(all(Done { at: 32, wrote: false, steps: vec![scan] })).is_err(),
            "a phantom"
        );
    }
}
