//! Leaves that are empty: unlinked, beside a naive model, and under a reader on its way there.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use latchwork_check::random::Random;
use latchwork_pool::{FileId, Handle};
use latchwork_tree::{Change, Journal, Kind, Node, Tree};

use crate::whole::{House, Scribe};

/// A journal all of whose ghosts are forgotten at once.
struct Forgetful<'s, 'l>(&'s Scribe<'l>);

impl Journal for Forgetful<'_, '_> {
    fn append(
        &self,
        page: u64,
        page_prev: u64,
        change: &Change<'_>,
        since: u64,
    ) -> Result<Option<u64>, String> {
        self.0.append(page, page_prev, change, since)
    }

    fn slot(&self) -> u16 {
        self.0.slot()
    }

    fn forgotten(&self) -> u64 {
        u64::MAX
    }
}

#[test]
fn a_tree_that_gives_pages_back_is_a_map() {
    let house = House::new("unlink", 400);
    house.with(1, |handle, file, scribe| {
        let journal = Forgetful(scribe);
        let tree = Tree::create(handle, file, &journal).unwrap();
        let (mut model, mut random) = (BTreeMap::new(), Random(5));
        let mut unlinked = 0;
        for round in 0..60u64 {
            let (from, rows) = (random.below(3000), 50 + random.below(900));
            for number in from..from + rows {
                let key = (number as u32).to_be_bytes();
                if round % 2 == 0 {
                    let value = vec![round as u8; random.below(60) as usize];
                    tree.put(&key, &value).unwrap();
                    model.insert(key, value);
                } else if model.remove(&key).is_some() && tree.delete(&key).unwrap().emptied {
                    unlinked += tree.unlink(&key, u64::MAX).unwrap();
                }
            }
            let used = tree.verify().unwrap();
            let free = house.pool.free_pages(file).unwrap();
            assert_eq!(used + free, house.pool.pages(file).unwrap(), "round {round}");
        }
        assert!(unlinked > 100, "{unlinked} pages were unlinked");
        for number in 0..4000u32 {
            let (key, mut value) = (number.to_be_bytes(), Vec::new());
            let found = tree.get(&key, &mut value).unwrap();
            assert_eq!(found.map(|_| &value), model.get(&key), "{number}");
        }
    });
}

thread_local! {
    static ARMED: Cell<bool> = const { Cell::new(false) };
}
/// Tells that the reader is there, and has it wait.
static GATE: Mutex<Option<(Sender<()>, Receiver<()>)>> = Mutex::new(None);

fn at_step(step: &'static str) {
    if step == "fault.tagged" && ARMED.take() {
        let (there, on) = GATE.lock().unwrap().take().unwrap();
        there.send(()).unwrap();
        on.recv().unwrap();
    }
}

/// The leaf of a key.
fn leaf_of(handle: &Handle<'_>, file: FileId, key: &[u8]) -> u64 {
    let covers = |page: &u64| {
        let covers = handle.read(file, *page, |view| {
            let node = Node::of(view)?;
            Some(node.kind() == Kind::Leaf && node.covers(key)?)
        });
        covers.is_ok_and(|covers| covers)
    };
    (0..handle.pool().pages(file).unwrap()).find(covers).unwrap()
}

/// A reader knows the leaf's number, and before it is there, the page is another tree's, which
/// has a record of this key.
#[test]
fn a_reader_on_its_way_does_not_read_another_tree() {
    latchwork_pool::set_point_hook(at_step);
    let house = House::new("way", 400);
    let key = 1000u32.to_be_bytes();
    let (there, is_there) = channel();
    let (on, is_on) = channel();
    house.with(1, |handle, file, scribe| {
        let journal = Forgetful(scribe);
        let tree = Tree::create(handle, file, &journal).unwrap();
        (0..2000u32).for_each(|n| drop(tree.put(&n.to_be_bytes(), &[1; 40]).unwrap()));
        (900..1100u32).for_each(|n| drop(tree.delete(&n.to_be_bytes()).unwrap()));
        let leaf = leaf_of(handle, file, &key);
        // The reader has to bring it in.
        handle.sync(u64::MAX, &mut |_| {}).unwrap();
        handle.discard(file, leaf).unwrap();
        *GATE.lock().unwrap() = Some((there, is_on));
        thread::scope(|scope| {
            let (root, house) = (tree.root(), &house);
            let reader = scope.spawn(move || {
                house.with(2, |handle, file, scribe| {
                    ARMED.set(true);
                    let mut value = Vec::new();
                    Tree::open(handle, file, root, scribe).get(&key, &mut value).map(|found| {
                        assert!(!ARMED.get(), "the leaf was in the pool");
                        found.is_some()
                    })
                })
            });
            is_there.recv().unwrap();
            let unlinked = tree.unlink(&key, u64::MAX).unwrap();
            let mut others = (0..unlinked).map(|_| Tree::create(handle, file, &journal).unwrap());
            let other = others.find(|other| other.root() == leaf);
            let other = other.expect("the page is used again");
            other.put(&key, b"another tree's").unwrap();
            on.send(()).unwrap();
            assert!(!reader.join().unwrap().unwrap(), "the key was removed");
        });
        tree.verify().unwrap();
    });
}
