//! Holders of a lock are found wherever they are in its queue.

use latchwork_lockmgr::granular::{IS, IX, S, X};
use latchwork_lockmgr::{Manager, Mode, Owner, Step, Wait, granular};
use latchwork_region::Region;

const NAME: &[u8] = b"the one";

fn manager() -> Manager {
    let region = Region::private(&latchwork_region::Options::default()).unwrap();
    Manager::new(region, granular::modes(), latchwork_check::early::early()).unwrap()
}

fn requests(owner: &Owner<'_>, mode: Mode) -> Step {
    owner.request(NAME, mode, Wait::Detect).unwrap()
}

#[test]
fn a_release_grants_one_of_two_writers() {
    let manager = manager();
    let session = manager.session().unwrap();
    let [one, two, three] = [(); 3].map(|()| session.owner().unwrap());
    one.lock(NAME, X).unwrap();
    assert_eq!((requests(&two, X), requests(&three, X)), (Step::Waiting, Step::Waiting));
    one.release_all().unwrap();
    assert_eq!((two.poll(), three.poll()), (Ok(Some(Ok(()))), Ok(None)));
    two.release_all().unwrap();
    assert_eq!(three.poll(), Ok(Some(Ok(()))));
}

/// `late` gets its lock while `reader`, which requested before it, still waits.
#[test]
fn a_conversion_waits_for_a_holder_behind_a_waiter() {
    let manager = manager();
    let session = manager.session().unwrap();
    let [writer, converts, gives_up, reader, late] = [(); 5].map(|()| session.owner().unwrap());
    writer.lock(NAME, IX).unwrap();
    converts.lock(NAME, IS).unwrap();
    for (owner, mode) in [(&gives_up, X), (&reader, S), (&late, IS)] {
        assert_eq!(requests(owner, mode), Step::Waiting);
    }
    assert_eq!(gives_up.cancel(), Ok(true));
    assert_eq!((reader.poll(), late.poll()), (Ok(None), Ok(Some(Ok(())))));
    assert_eq!(requests(&converts, X), Step::Waiting);
    writer.release_all().unwrap();
    assert_eq!(converts.poll(), Ok(None), "late holds the lock");
    late.release_all().unwrap();
    assert_eq!(converts.poll(), Ok(Some(Ok(()))));
    converts.release_all().unwrap();
    assert_eq!(reader.poll(), Ok(Some(Ok(()))));
}
