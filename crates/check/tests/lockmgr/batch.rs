//! Batches, in the situations that Berkeley DB's test lock006 names.

use latchwork_lockmgr::{BatchError, BatchOp, Error, Mode, Wait, berkeley};

const NAMES: [&[u8]; 10] = [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9"];

fn get(name: &[u8], mode: Mode) -> BatchOp<'_> {
    BatchOp::Lock(name, mode, Wait::Never)
}

#[test]
fn lock_coupling_holds_one_lock_and_releases_the_previous() {
    let manager = latchwork_check::early::private(berkeley::modes()).unwrap();
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    let modes = [berkeley::READ, berkeley::WRITE, berkeley::IWRITE, berkeley::IREAD, berkeley::IWR];
    for mode in modes.into_iter().cycle().take(3 * modes.len()) {
        owner.batch(&[get(NAMES[0], mode)]).unwrap();
        for pair in NAMES.windows(2) {
            owner.batch(&[get(pair[1], mode), BatchOp::Unlock(pair[0])]).unwrap();
            assert_eq!(owner.held(), Ok(1));
            assert_eq!(other.try_lock(pair[1], berkeley::WRITE), Err(Error::NotGranted));
            other.batch(&[get(pair[0], berkeley::WRITE), BatchOp::ReleaseAll]).unwrap();
        }
        owner.batch(&[BatchOp::ReleaseAll]).unwrap();
    }
}

#[test]
fn releasing_all_or_an_object_ends_every_count() {
    let manager = latchwork_check::early::private(berkeley::modes()).unwrap();
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    let six: Vec<BatchOp<'_>> =
        manager.modes().each().take(7).skip(1).map(|mode| get(NAMES[0], mode)).collect();
    owner.batch(&six).unwrap();
    assert_eq!(owner.holds(NAMES[0]).unwrap().map(|(_, count)| count), Some(6));
    owner.batch(&[get(NAMES[1], berkeley::WRITE), BatchOp::ReleaseObject(NAMES[0])]).unwrap();
    assert_eq!((owner.held(), owner.holds(NAMES[0])), (Ok(1), Ok(None)));
    other.batch(&[get(NAMES[0], berkeley::WRITE), BatchOp::ReleaseAll]).unwrap();
    owner.batch(&[get(NAMES[2], berkeley::READ), BatchOp::ReleaseReads]).unwrap();
    assert_eq!(owner.held(), Ok(1));
    owner.batch(&[BatchOp::ReleaseAll]).unwrap();
    assert_eq!(owner.held(), Ok(0));
}

#[test]
fn a_batch_stops_at_the_first_error_and_says_where() {
    let manager = latchwork_check::early::private(berkeley::modes()).unwrap();
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    other.lock(NAMES[1], berkeley::WRITE).unwrap();
    let operations = [
        get(NAMES[0], berkeley::WRITE),
        get(NAMES[1], berkeley::READ),
        get(NAMES[2], berkeley::READ),
    ];
    assert_eq!(owner.batch(&operations), Err(BatchError { done: 1, error: Error::NotGranted }));
    assert_eq!((owner.held(), owner.holds(NAMES[2])), (Ok(1), Ok(None)));
    assert_eq!(
        owner.batch(&[BatchOp::Unlock(NAMES[5])]),
        Err(BatchError { done: 0, error: Error::NotHeld })
    );
}
