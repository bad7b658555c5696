//! Empty leaves: unlinked in step with a naive model, and while a reader is about to enter.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::thread;

use latchwork_check::random::Random;
use latchwork_check::stops::{at_step, is_waiting, stop_at};
use latchwork_pool::{Cause, FileId, Handle, PageView};
use latchwork_tree::{Batch, Change, Error, Journal, Kind, Node, Tree};

use crate::whole::{House, TreeJournal};

/// A journal all of whose ghosts are forgotten at once, and that can say of so many pages only
/// whether they may be unlinked.
struct Forgetful<'s, 'l>(&'s TreeJournal<'l>, Cell<u32>);

impl<'s, 'l> Forgetful<'s, 'l> {
    fn new(scribe: &'s TreeJournal<'l>) -> Self {
        Self(scribe, Cell::new(u32::MAX))
    }
}

impl Journal for Forgetful<'_, '_> {
    fn append(
        &self,
        page: u64,
        page_prev: u64,
        change: &Change<'_>,
        since: u64,
    ) -> Result<Option<u64>, Cause> {
        self.0.append(page, page_prev, change, since)
    }

    fn slot(&self) -> u16 {
        self.0.slot()
    }

    fn forgotten(&self) -> u64 {
        u64::MAX
    }

    fn unlink(&self, _: u64) -> Result<bool, Cause> {
        let left = self.1.get().checked_sub(1);
        self.1.set(left.ok_or_else(|| Cause::new("no hand free"))?);
        Ok(true)
    }
}

#[test]
fn a_tree_that_frees_pages_is_a_map() {
    let house = House::new("unlink", 400);
    house.with(1, |handle, file, scribe| {
        let journal = Forgetful::new(scribe);
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

/// Values that have become short leave their room to other records of the leaf.
#[test]
fn room_of_removed_values_is_reused() {
    let house = House::new("trims", 400);
    house.with(1, |handle, file, scribe| {
        let journal = Forgetful::new(scribe);
        let tree = Tree::create(handle, file, &journal).unwrap();
        let key = |row: u32, part: u32| [row.to_be_bytes(), part.to_be_bytes()].concat();
        let put = |row, part, bytes| drop(tree.put(&key(row, part), &vec![7; bytes]).unwrap());
        (0..300).for_each(|row| put(row, 0, 200));
        let pages = tree.verify().unwrap();
        (0..300).for_each(|row| put(row, 0, 10));
        (0..300).for_each(|row| (1..4).for_each(|part| put(row, part, 10)));
        assert!(tree.verify().unwrap() <= pages, "{pages} pages had room for all");
        // And back: each is as long as it was once.
        (0..300).for_each(|row| put(row, 0, 200));
        for (row, part) in (0..300).flat_map(|row| (0..4).map(move |part| (row, part))) {
            let mut value = Vec::new();
            assert!(tree.get(&key(row, part), &mut value).unwrap().is_some());
            assert_eq!(value, vec![7; if part == 0 { 200 } else { 10 }], "{row}, {part}");
        }
        tree.verify().unwrap();
    });
}

/// As at the end of a queue: the first leaf has no left sibling that could take its range.
#[test]
fn ghosts_are_cleared_where_a_leaf_stays() {
    let house = House::new("clear", 400);
    house.with(1, |handle, file, scribe| {
        let journal = Forgetful::new(scribe);
        let tree = Tree::create(handle, file, &journal).unwrap();
        let key = |number: u32| number.to_be_bytes();
        (0..900).for_each(|number| drop(tree.put(&key(number), &[7; 20]).unwrap()));
        let mut batch = Batch::default();
        tree.scan(&[], usize::MAX, &mut batch).unwrap();
        let first = batch.len() as u32;
        assert!((10..450).contains(&first), "{first} records in the first leaf");
        let rows = |batch: &mut Batch| {
            tree.scan(&[], usize::MAX, batch).unwrap();
            batch.len() as u32
        };
        // One ghost is not worth a record of the log.
        tree.delete(&key(0)).unwrap();
        assert!(!tree.clear(&key(0)).unwrap() && rows(&mut batch) == first);
        (1..first - 3).for_each(|number| drop(tree.delete(&key(number)).unwrap()));
        assert!(tree.clear(&key(0)).unwrap() && rows(&mut batch) == 3);
        // All of the first leaf, which cannot be unlinked.
        (first - 3..first).for_each(|number| drop(tree.delete(&key(number)).unwrap()));
        (0..first).for_each(|number| drop(tree.put(&key(number), &[7; 20]).unwrap()));
        (0..first).for_each(|number| drop(tree.delete(&key(number)).unwrap()));
        assert_eq!(tree.unlink(&key(0), u64::MAX).unwrap(), 0);
        assert!(tree.clear(&key(0)).unwrap() && rows(&mut batch) == 0);
        // A leaf that can be unlinked is left to that.
        (first..900).for_each(|number| drop(tree.delete(&key(number)).unwrap()));
        assert!(!tree.clear(&key(first)).unwrap());
        assert!(
            tree.unlink(&key(899), u64::MAX).unwrap() > 0
                || tree.unlink(&key(first), 99).unwrap() > 0
        );
        tree.verify().unwrap();
        tree.put(&key(5), b"again").unwrap();
        assert_eq!(rows(&mut batch), 1);
    });
}

/// A page that is not asked for is not forgotten: no other thread would return it.
#[test]
fn a_dismantled_tree_keeps_pages_its_journal_refused() {
    let house = House::new("dismantle", 400);
    house.with(1, |handle, file, scribe| {
        let journal = Forgetful(scribe, Cell::new(0));
        let tree = Tree::create(handle, file, &journal).unwrap();
        (0..2000u32).for_each(|n| drop(tree.put(&n.to_be_bytes(), &[1; 40]).unwrap()));
        let pages = tree.verify().unwrap();
        assert!(pages > 20, "{pages}");
        let (mut gone, mut tries) = (0, 0);
        loop {
            let free = house.pool.free_pages(file).unwrap();
            assert_eq!(free, gone, "of {pages} pages, in the try {tries}");
            journal.1.set(3);
            tries += 1;
            match tree.dismantle() {
                Ok(rest) => break gone += rest,
                Err(Error::Journal(_)) => gone += 3,
                Err(other) => panic!("{other}"),
            }
        }
        assert!(tries > 5, "{tries}");
        // All but the root.
        assert_eq!((gone, house.pool.free_pages(file).unwrap()), (pages - 1, pages - 1));
        assert_eq!(tree.verify().unwrap(), 1);
    });
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

/// A reader knows the leaf's number. Before it reads the leaf, the page is reused by another tree,
/// which has a record with this key.
#[test]
fn a_reader_does_not_follow_a_reused_page_into_another_tree() {
    latchwork_pool::set_point_hook(at_step);
    let house = House::new("way", 400);
    let key = 1000u32.to_be_bytes();
    house.with(1, |handle, file, scribe| {
        let journal = Forgetful::new(scribe);
        let tree = Tree::create(handle, file, &journal).unwrap();
        (0..2000u32).for_each(|n| drop(tree.put(&n.to_be_bytes(), &[1; 40]).unwrap()));
        (900..1100u32).for_each(|n| drop(tree.delete(&n.to_be_bytes()).unwrap()));
        let leaf = leaf_of(handle, file, &key);
        // The reader has to bring it in.
        handle.sync(u64::MAX, &mut |_| {}).unwrap();
        handle.discard(file, leaf).unwrap();
        thread::scope(|scope| {
            let (armed, stopped) = stop_at("fault.tagged");
            let (root, house) = (tree.root(), &house);
            let reader = scope.spawn(move || {
                house.with(2, |handle, file, scribe| {
                    armed.here();
                    let mut value = Vec::new();
                    Tree::open(handle, file, root, scribe).get(&key, &mut value).map(|found| {
                        assert!(!is_waiting(), "the leaf was in the pool");
                        found.is_some()
                    })
                })
            });
            stopped.wait();
            let unlinked = tree.unlink(&key, u64::MAX).unwrap();
            let mut others = (0..unlinked).map(|_| Tree::create(handle, file, &journal).unwrap());
            let other = others.find(|other| other.root() == leaf);
            let other = other.expect("the page is used again");
            other.put(&key, b"another tree's").unwrap();
            stopped.go_on();
            assert!(!reader.join().unwrap().unwrap(), "the key was removed");
        });
        tree.verify().unwrap();
    });
}

/// A writer has found its place in a leaf, and before it has the leaf, another writer puts a record
/// before that place.
#[test]
fn a_writer_looks_again_where_a_leaf_was_changed() {
    latchwork_pool::set_point_hook(at_step);
    let house = House::new("again", 400);
    house.with(1, |handle, file, scribe| {
        let tree = Tree::create(handle, file, scribe).unwrap();
        (0..10u32).for_each(|n| drop(tree.put(&(100 * n).to_be_bytes(), &[1; 40]).unwrap()));
        thread::scope(|scope| {
            let (armed, stopped) = stop_at("page.wanted");
            let (root, house) = (tree.root(), &house);
            let writer = scope.spawn(move || {
                house.with(2, |handle, file, scribe| {
                    armed.here();
                    let tree = Tree::open(handle, file, root, scribe);
                    tree.put(&550u32.to_be_bytes(), &[2; 40]).map(drop)
                })
            });
            stopped.wait();
            tree.put(&50u32.to_be_bytes(), &[3; 40]).unwrap();
            stopped.go_on();
            writer.join().unwrap().unwrap();
        });
        tree.verify().unwrap();
        let mut batch = Batch::default();
        tree.scan(&[], 20, &mut batch).unwrap();
        let keys: Vec<_> = batch.iter().map(|row| row.key.to_vec()).collect();
        let mut expected: Vec<_> = (0..10u32).map(|n| 100 * n).chain([50, 550]).collect();
        expected.sort_unstable();
        assert_eq!(keys, expected.iter().map(|n| n.to_be_bytes()).collect::<Vec<_>>());
    });
}

/// A page of damaged memory that says it was split, into another than its parent knows.
#[test]
fn a_split_that_never_ends_is_an_error() {
    let house = House::new("endless", 200);
    house.with(2, |handle, file, scribe| {
        let journal = Forgetful::new(scribe);
        let tree = Tree::create(handle, file, &journal).unwrap();
        for number in 0..2_000u32 {
            tree.insert(&number.to_be_bytes(), b"value").unwrap();
        }
        let right_of = |page: u64| {
            let ask = |view: &latchwork_pool::PageView<'_>| {
                let node = Node::of(view)?;
                Some((node.level(), node.right()?))
            };
            handle.read(file, page, ask).unwrap()
        };
        let (leaf, beyond) = (0..house.pool.pages(file).unwrap())
            .find_map(|page| match right_of(page) {
                (0, Some(right)) => Some((page, right_of(right).1?)),
                _ => None,
            })
            .unwrap();
        let first = |view: &latchwork_pool::PageView<'_>| Node::of(view)?.key(0);
        let key = handle.read(file, leaf, first).unwrap();
        let mut held = handle.write(file, leaf).unwrap();
        let (kind, right) = (held.word(2).unwrap(), held.word(3).unwrap());
        held.begin(held.lsn() + 8);
        assert!(held.set(2, kind | 1 << 16));
        assert!(held.set(3, right & !0xffff_ffff_ffff | beyond));
        held.commit();
        assert_eq!(tree.unlink(&key, 9), Err(Error::Level { page: beyond }));
    });
}

/// A tree of three levels, and the pages of its middle one, from left to right.
fn of_three_levels<'h, 't, J: Journal>(
    handle: &'h Handle<'t>,
    file: FileId,
    journal: &'h J,
) -> (Tree<'h, 't, J>, Vec<u64>) {
    let tree = Tree::create(handle, file, journal).unwrap();
    (0..2_000u32).for_each(|n| drop(tree.put(&n.to_be_bytes(), b"value").unwrap()));
    let (level, first) = look(handle, file, tree.root(), |node| Some((node.level(), child(node)?)));
    assert_eq!(level, 2);
    let right = |page: &u64| look(handle, file, *page, |node| node.right());
    (tree, std::iter::successors(Some(first), right).collect())
}

/// The child of an inner page to which the lowest keys belong.
fn child(node: &Node<'_, PageView<'_>>) -> Option<u64> {
    node.child_of(&node.low()?)
}

fn look<R>(
    handle: &Handle<'_>,
    file: FileId,
    page: u64,
    ask: impl Fn(&Node<'_, PageView<'_>>) -> Option<R>,
) -> R {
    handle.read(file, page, |view| ask(&Node::of(view)?)).unwrap()
}

/// Changes a word of a page behind the journal's back.
fn damage(handle: &Handle<'_>, file: FileId, page: u64, index: usize, to: impl Fn(u64) -> u64) {
    let mut held = handle.write(file, page).unwrap();
    let word = held.word(index).unwrap();
    held.begin(held.lsn());
    assert!(held.set(index, to(word)));
    held.commit();
}

/// A split whose page is missing in a parent that says it is a leaf.
#[test]
fn a_split_below_a_damaged_page_is_an_error() {
    let house = House::new("parent", 200);
    house.with(2, |handle, file, scribe| {
        let (tree, middle) = of_three_levels(handle, file, scribe);
        // The last leaf below one of them, whose right sibling is the next one's first.
        let next = look(handle, file, middle[1], |node| node.low());
        let key = look(handle, file, middle[0], |node| node.key(node.count().checked_sub(1)?));
        assert!(key < next);
        damage(handle, file, leaf_of(handle, file, &key), 2, |kind| kind | 1 << 16);
        damage(handle, file, middle[1], 2, |kind| kind & !0xff | 1);
        assert_eq!(tree.put(&key, b"another").map(drop), Err(Error::Level { page: middle[1] }));
    });
}

/// A number in a parent that is not of the level below is not waited for: the page's holder may
/// wait for the parent.
#[test]
fn a_child_that_is_above_its_parent_is_an_error() {
    let house = House::new("above", 200);
    house.with(2, |handle, file, scribe| {
        let journal = Forgetful::new(scribe);
        let (tree, middle) = of_three_levels(handle, file, &journal);
        let (low, high) = look(handle, file, middle[0], |node| Some((node.key(1)?, node.key(2)?)));
        let number = |key: Vec<u8>| u32::from_be_bytes(key.try_into().unwrap());
        for number in number(low.clone())..number(high) {
            tree.delete(&number.to_be_bytes()).unwrap();
        }
        // The record of the separator before has the number of the page to the left.
        let left = leaf_of(handle, file, &look(handle, file, middle[0], |node| node.key(0)));
        let at = (8..128).rev().find(|index| {
            let word = handle.read(file, middle[0], |view| view.word(*index)).unwrap();
            word & 0xffff_ffff_ffff == left
        });
        damage(handle, file, middle[0], at.unwrap(), |_| tree.root());
        assert_eq!(tree.unlink(&low, 9), Err(Error::Level { page: tree.root() }));
    });
}

/// A journal in whose hand all pages are.
struct Full<'s, 'l>(&'s TreeJournal<'l>);

impl Journal for Full<'_, '_> {
    fn append(
        &self,
        page: u64,
        page_prev: u64,
        change: &Change<'_>,
        since: u64,
    ) -> Result<Option<u64>, Cause> {
        self.0.append(page, page_prev, change, since)
    }

    fn slot(&self) -> u16 {
        self.0.slot()
    }

    fn unlink(&self, _: u64) -> Result<bool, Cause> {
        Ok(false)
    }
}

/// A page that leads to itself, and two that lead to each other.
#[test]
fn a_tree_with_circular_links_is_dismantled() {
    for apart in [0, 1] {
        let house = House::new("circle", 200);
        house.with(2, |handle, file, scribe| {
            let journal = Full(scribe);
            let (tree, middle) = of_three_levels(handle, file, &journal);
            let first = look(handle, file, middle[0], child);
            let second = look(handle, file, first, |node| node.right()?);
            let (page, to) = [(first, first), (second, first)][apart];
            damage(handle, file, page, 3, |right| right & !0xffff_ffff_ffff | to);
            match (apart, tree.dismantle()) {
                (0, Ok(gone)) => assert!(gone > middle.len() as u64, "{gone}"),
                (1, Err(Error::Level { page })) => assert!([first, second].contains(&page)),
                (_, other) => panic!("{other:?}"),
            }
        });
    }
}
