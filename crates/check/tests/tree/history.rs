//! Pages rebuilt from the log: redone from any base, they equal the original ones.

use std::collections::BTreeMap;

use latchwork_check::random::Random;
use latchwork_tree::{
    Change, Difference, Error, Fences, Header, Kind, Link, Node, Role, SplitAt, chain, edit,
    rebuild, split,
};

const WORDS: usize = 128;

/// A few pages and their log: a tree with one level above the leaves.
#[derive(Default)]
struct History {
    pages: BTreeMap<u64, Vec<u64>>,
    log: BTreeMap<u64, Link>,
    /// Earlier versions of pages, with their numbers.
    bases: Vec<(u64, Vec<u64>)>,
}

impl History {
    fn lsn(&self, page: u64) -> u64 {
        self.pages.get(&page).map_or(0, |page| page[1])
    }

    /// Logs a change of `own` and applies it to all its pages.
    fn change(&mut self, own: u64, change: Change<'_>) -> Result<(), Error> {
        let lsn = self.log.len() as u64 * 16 + 16;
        let touched: Vec<(u64, Role)> =
            (0..100).filter_map(|page| change.role(own, page).map(|role| (page, role))).collect();
        let mut made = Vec::new();
        for (number, role) in touched {
            let mut page = self.pages.get(&number).cloned().unwrap_or(vec![0; WORDS]);
            change.apply(role, &mut page, Header::new(5, lsn))?;
            page[1] = lsn;
            Node::of(&page).unwrap().verify().unwrap();
            made.push((number, page));
        }
        let mut payload = Vec::new();
        change.encode(&mut payload);
        // Padded as in the log.
        payload.resize(payload.len().next_multiple_of(16), 0);
        let page_prev = self.lsn(own);
        self.log.insert(lsn, Link { lsn, slot: 5, page: own, page_prev, payload });
        self.pages.extend(made);
        Ok(())
    }

    /// Splits a page in two steps; `attach` says whether the second one is done.
    fn split(&mut self, left: u64, right: u64, parent: u64, attach: bool) {
        let (mut lower, mut upper) = (self.pages[&left].clone(), vec![0; WORDS]);
        let separator = split(&mut lower, &mut upper, right, SplitAt::Middle).unwrap().separator;
        let image = Change::image(&upper).unwrap();
        self.change(left, Change::Split { right, separator: &separator, image: &image }).unwrap();
        // Without word 5, which counts changes.
        let alike = |one: &[u64], other: &[u64]| one[2..5] == other[2..5] && one[6..] == other[6..];
        assert!(alike(&self.pages[&left], &lower), "a redone split differs from the split");
        assert_eq!(self.pages[&right][2..], upper[2..]);
        if attach {
            let left_prev = self.lsn(left);
            let change = Change::Attach { key: &separator, child: right, left, left_prev };
            self.change(parent, change).unwrap();
        }
    }

    fn rebuilt(&self, page: u64, base: Option<&[u64]>) -> Result<Vec<u64>, Error> {
        let from = base.map(|base| base[1]);
        let links = chain(page, self.lsn(page), from, |lsn| {
            self.log.get(&lsn).cloned().ok_or(Error::Malformed("no such record"))
        })?;
        let mut into = vec![0; WORDS];
        let lsn = rebuild(page, base, &links, &mut into)?;
        assert_eq!(lsn, self.lsn(page));
        Ok(into)
    }
}

/// A key, its header or child, its value, and whether it is a ghost.
type Said = (Vec<u8>, Option<u64>, Vec<u8>, bool);

/// The relevant contents of a page: free words may differ.
fn said(page: &[u64]) -> (Vec<u8>, Option<Vec<u8>>, Vec<Said>) {
    let node = Node::of(page).unwrap();
    node.verify().unwrap();
    let record = |index| {
        let first = match node.kind() {
            Kind::Inner => node.child(index),
            _ => node.header(index).map(Header::to_bits),
        };
        let value = node.value(index).unwrap_or_default();
        (node.key(index).unwrap(), first, value, node.is_ghost(index).unwrap())
    };
    (node.low().unwrap(), node.high().unwrap(), (0..node.count()).map(record).collect())
}

fn run(seed: u64) -> History {
    let mut random = Random(seed);
    let mut history = History::default();
    let mut first = vec![0; WORDS];
    edit::format(&mut first, Kind::Leaf, 0, Fences::ALL, 0).unwrap();
    let image = Change::image(&first).unwrap();
    history.change(2, Change::Image { image: &image }).unwrap();
    let mut root = vec![0; WORDS];
    edit::format(&mut root, Kind::Inner, 1, Fences::ALL, 0).unwrap();
    edit::set_first_child(&mut root, 2).unwrap();
    let image = Change::image(&root).unwrap();
    history.change(1, Change::Image { image: &image }).unwrap();
    let mut next = 3;
    for _ in 0..250 {
        let key = format!("key {:03}", random.below(u64::MAX) % 120).into_bytes();
        let value = vec![random.below(u64::MAX) as u8; (random.below(u64::MAX) % 40) as usize];
        let root = Node::of(&history.pages[&1]).unwrap();
        let mut number = root.child_of(&key).unwrap();
        while Node::of(&history.pages[&number]).unwrap().is_beyond(&key).unwrap() {
            number = Node::of(&history.pages[&number]).unwrap().right().unwrap().unwrap();
        }
        let page = history.pages[&number].clone();
        let node = Node::of(&page).unwrap();
        let found = node.search(&key).unwrap();
        let (was, before, ghost) = match found {
            Ok(at) => {
                (node.header(at).unwrap(), node.value(at).unwrap(), node.is_ghost(at).unwrap())
            }
            Err(_) => (Header::NONE, Vec::new(), true),
        };
        let change = match (found, random.below(u64::MAX) % 4) {
            (Ok(_), 0) if ghost => Change::Purge { key: &key },
            (_, _) if ghost => Change::Insert { key: &key, value: &value, was },
            (_, 0) => Change::Delete { key: &key, before: &before, was },
            (_, 1) => Change::Replace { key: &key, before: &before, value: &value, was },
            (_, _) => {
                let difference = Difference::of(&before, &value);
                Change::Update { key: &key, difference, was }
            }
        };
        match history.change(number, change) {
            Ok(()) => {}
            Err(Error::Full) => {
                history.split(number, next, 1, !random.below(u64::MAX).is_multiple_of(4));
                next += 1;
                continue;
            }
            Err(error) => panic!("{error}"),
        }
        if random.below(u64::MAX).is_multiple_of(10) {
            let base = history.pages[&number].clone();
            history.bases.push((number, base));
        }
        // Half of the changes are undone at once: in place, whatever room there is.
        if random.below(u64::MAX).is_multiple_of(2)
            && let Some(undo) = change.undo()
        {
            history.change(number, undo).unwrap();
            let after = &history.pages[&number];
            let node = Node::of(after).unwrap();
            let at = node.search(&key).unwrap().unwrap();
            assert_eq!((node.header(at), node.is_ghost(at)), (Some(was), Some(ghost)));
            assert!(ghost || node.value(at) == Some(before), "the old value is not restored");
        }
    }
    history
}

#[test]
fn a_page_is_rebuilt_from_the_log() {
    for seed in 1..40 {
        let history = run(seed);
        assert!(history.pages.len() > 4, "there were no splits");
        for (number, page) in &history.pages {
            let again = history.rebuilt(*number, None).unwrap();
            assert_eq!(said(&again), said(page), "page {number} of seed {seed}");
            assert_eq!(again[1..4], page[1..4], "its LSN, kind, flags and sibling");
        }
        for (number, base) in &history.bases {
            let again = history.rebuilt(*number, Some(base)).unwrap();
            assert_eq!(said(&again), said(&history.pages[number]));
        }
    }
}

/// The controls: a log that lacks a record, and a damaged one, are detected.
#[test]
fn a_broken_chain_is_an_error() {
    let mut history = run(3);
    let page = *history
        .pages
        .keys()
        .find(|page| {
            chain(**page, history.lsn(**page), None, |lsn| {
                Ok::<_, Error>(history.log[&lsn].clone())
            })
            .is_ok_and(|links| links.len() > 3)
        })
        .unwrap();
    let newest = history.lsn(page);
    let before = history.rebuilt(page, None).unwrap();
    let prev = history.log[&newest].page_prev;
    let skipped = history.log.get_mut(&newest).unwrap();
    skipped.page_prev = newest;
    let forwards = Err(Error::Malformed("the chain leads forwards"));
    assert_eq!(history.rebuilt(page, None), forwards);
    history.log.get_mut(&newest).unwrap().page_prev = 0;
    let endless = Err(Error::Malformed("the chain of the page has no beginning"));
    assert_eq!(history.rebuilt(page, None), endless);
    history.log.get_mut(&newest).unwrap().page_prev = prev;
    history.log.get_mut(&prev).unwrap().payload[0] = 99;
    assert_eq!(history.rebuilt(page, None), Err(Error::UnknownChange));
    assert_eq!(before[1], newest);
}

/// A root that grows keeps its number, and its two children have its records.
#[test]
fn a_root_grows_in_place() {
    let mut history = History::default();
    let mut page = vec![0; WORDS];
    edit::format(&mut page, Kind::Leaf, 0, Fences::ALL, 0).unwrap();
    let mut number = 0u8;
    while edit::insert(&mut page, &[number], b"v", Header::NONE) != Err(Error::Full) {
        number += 1;
    }
    let all = said(&page).2;
    history.pages.insert(1, page.clone());
    let (mut left, mut right) = (page, vec![0; WORDS]);
    let separator = split(&mut left, &mut right, 8, SplitAt::Middle).unwrap().separator;
    edit::set_incomplete(&mut left, false).unwrap();
    let (left_image, right_image) = (Change::image(&left).unwrap(), Change::image(&right).unwrap());
    let (left_image, right_image) = (&left_image[..], &right_image[..]);
    let grow = Change::Grow {
        level: 1,
        left: 7,
        right: 8,
        separator: &separator,
        left_image,
        right_image,
    };
    history.change(1, grow).unwrap();
    let root = Node::of(&history.pages[&1]).unwrap();
    assert_eq!((root.kind(), root.level(), root.count()), (Kind::Inner, 1, 1));
    let mut below = Vec::new();
    for number in [7, 8] {
        below.extend(said(&history.pages[&number]).2);
        assert_eq!(said(&history.rebuilt(number, None).unwrap()), said(&history.pages[&number]));
    }
    assert_eq!(below, all);
    for (key, ..) in &all {
        let child = root.child_of(key).unwrap();
        assert!(matches!(Node::of(&history.pages[&child]).unwrap().search(key), Some(Ok(_))));
    }
}
