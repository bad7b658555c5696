//! One page compared with a `BTreeMap`: every change, every size, and both sides of a split.

use std::collections::BTreeMap;

use latchwork_tree::{
    Difference, Error, Fences, Header, Kind, Limits, Node, SplitAt, edit, separator, split,
};
use proptest::prelude::*;

/// The expected records of a page: by key the value, and whether it is a ghost.
type Model = BTreeMap<Vec<u8>, (Vec<u8>, bool)>;

#[derive(Clone, Debug)]
enum Step {
    Insert(Vec<u8>, Vec<u8>),
    Replace(Vec<u8>, Vec<u8>),
    /// Replaces the part that differs.
    Update(Vec<u8>, Vec<u8>),
    Ghost(Vec<u8>, bool),
    Remove(Vec<u8>),
    Compact,
}

/// Keys that often begin alike, and often are equal.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let short = proptest::collection::vec(0u8..4, 0..7);
    let alike = proptest::collection::vec(any::<u8>(), 0..3)
        .prop_map(|end| [&b"the same beginning"[..], &end].concat());
    prop_oneof![short, alike]
}

fn step() -> impl Strategy<Value = Step> {
    let value = || proptest::collection::vec(any::<u8>(), 0..30);
    prop_oneof![
        4 => (key(), value()).prop_map(|(key, value)| Step::Insert(key, value)),
        2 => (key(), value()).prop_map(|(key, value)| Step::Replace(key, value)),
        2 => (key(), value()).prop_map(|(key, value)| Step::Update(key, value)),
        2 => (key(), any::<bool>()).prop_map(|(key, ghost)| Step::Ghost(key, ghost)),
        1 => key().prop_map(Step::Remove),
        1 => Just(Step::Compact),
    ]
}

/// Everything that the page says, through every way to ask.
fn contents(page: &Vec<u64>) -> Model {
    let node = Node::of(page).unwrap();
    node.verify().unwrap();
    let mut all = Model::new();
    for index in 0..node.count() {
        let key = node.key(index).unwrap();
        assert_eq!(node.search(&key), Some(Ok(index)));
        assert_eq!(node.covers(&key), Some(true));
        all.insert(key, (node.value(index).unwrap(), node.is_ghost(index).unwrap()));
    }
    all
}

/// Does a step to both; false if the page was full.
fn both(step: &Step, page: &mut Vec<u64>, model: &mut Model) -> bool {
    let before = contents(page);
    let header = Header::new(7, 4096);
    let done = match step {
        Step::Insert(key, value) => edit::insert(page, key, value, header),
        Step::Replace(key, value) => edit::replace(page, key, value, header),
        Step::Update(key, value) => {
            let known = before.get(key).map_or(&[][..], |(value, _)| value);
            edit::update(page, key, Difference::of(known, value), header)
        }
        Step::Ghost(key, ghost) => edit::set_ghost(page, key, *ghost, header),
        Step::Remove(key) => edit::remove(page, key),
        Step::Compact => edit::compact(page),
    };
    let known = |key: &Vec<u8>| model.get(key).cloned();
    match (step, done) {
        (_, Err(Error::Full)) => {
            assert_eq!(contents(page), before, "a full page is as it was");
            return false;
        }
        (_, Err(Error::OutOfRange)) => {}
        (Step::Insert(key, value), Ok(())) => {
            assert!(known(key).is_none_or(|(_, ghost)| ghost));
            model.insert(key.clone(), (value.clone(), false));
        }
        (Step::Insert(key, _), Err(Error::Exists)) => assert!(!known(key).unwrap().1),
        (Step::Replace(key, value) | Step::Update(key, value), Ok(())) => {
            assert!(known(key).is_some());
            model.insert(key.clone(), (value.clone(), false));
        }
        (Step::Ghost(key, ghost), Ok(())) => model.get_mut(key).unwrap().1 = *ghost,
        (Step::Remove(key), Ok(())) => assert!(model.remove(key).is_some()),
        (Step::Compact, Ok(())) => {}
        (
            Step::Replace(key, _) | Step::Update(key, _) | Step::Ghost(key, _) | Step::Remove(key),
            Err(Error::Missing),
        ) => assert!(known(key).is_none()),
        (step, done) => panic!("{step:?} ended in {done:?}"),
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// A page equals a map. When it is full it is split, and the test continues with one half.
    #[test]
    fn a_page_is_a_map(
        steps in proptest::collection::vec(step(), 1..300),
        words in prop_oneof![Just(64usize), Just(128), Just(512)],
        sides in proptest::collection::vec(any::<(bool, bool)>(), 300),
    ) {
        let mut page = vec![0; words];
        edit::format(&mut page, Kind::Leaf, 0, Fences::ALL, 0).unwrap();
        let mut model = Model::new();
        for (step, (keep_left, at_end)) in steps.iter().zip(sides) {
            let mut splits = 0;
            while !both(step, &mut page, &mut model) {
                splits += 1;
                prop_assert!(splits < 20, "a page that is split again and again has room");
                let mut right = vec![0; words];
                let last = model.keys().next_back().unwrap().clone();
                let at = match step {
                    Step::Insert(key, _) if at_end && *key > last => SplitAt::Before(key),
                    _ => SplitAt::Middle,
                };
                let cut = split(&mut page, &mut right, 99, at).unwrap().separator;
                let upper = model.split_off(&cut);
                let before = matches!(at, SplitAt::Before(_));
                let divided = if before { upper.len() < 2 } else { !upper.is_empty() };
                prop_assert!(!model.is_empty() && divided);
                prop_assert_eq!(contents(&page), model.clone());
                prop_assert_eq!(contents(&right), upper.clone());
                let left = Node::of(&page).unwrap();
                prop_assert!(left.is_incomplete() && !Node::of(&right).unwrap().is_incomplete());
                prop_assert_eq!(left.right(), Some(Some(99)));
                prop_assert_eq!(left.is_beyond(&cut), Some(true));
                prop_assert_eq!(left.high(), Some(Some(cut.clone())));
                prop_assert_eq!(Node::of(&right).unwrap().low(), Some(cut));
                edit::set_incomplete(&mut page, false).unwrap();
                if !keep_left {
                    (page, model) = (right, upper);
                }
            }
            prop_assert_eq!(contents(&page), model.clone());
        }
    }

    /// The separator is above the left key, not above the right one, and no key is both and
    /// shorter.
    #[test]
    fn a_separator_is_the_shortest(a in key(), b in key()) {
        prop_assume!(a != b);
        let (left, right) = if a < b { (a, b) } else { (b, a) };
        let cut = separator(&left, &right);
        prop_assert!(left.as_slice() < cut && cut <= right.as_slice());
        let shorter = &cut[..cut.len() - 1];
        prop_assert!(shorter <= left.as_slice(), "a shorter prefix of the right key also divides");
    }

    /// An inner page leads each key to the child whose keys begin at or below it.
    #[test]
    fn an_inner_page_leads_to_the_child(
        keys in proptest::collection::btree_set(key(), 2..40),
        asked in proptest::collection::vec(key(), 20),
    ) {
        let mut page = vec![0; 512];
        edit::format(&mut page, Kind::Inner, 1, Fences::ALL, 0).unwrap();
        edit::set_first_child(&mut page, 1000).unwrap();
        let mut children = BTreeMap::from([(Vec::new(), 1000)]);
        for (number, key) in keys.iter().filter(|key| !key.is_empty()).enumerate() {
            edit::insert_child(&mut page, key, number as u64).unwrap();
            children.insert(key.clone(), number as u64);
        }
        let mut right = vec![0; 512];
        let whole = page.clone();
        let done = split(&mut page, &mut right, 5, SplitAt::Middle);
        for key in &asked {
            let wanted = children.range(..=key.clone()).next_back().map(|(_, child)| *child);
            prop_assert_eq!(Node::of(&whole).unwrap().child_of(key), wanted);
            if let Ok(done) = &done {
                let half = if key < &done.separator { &page } else { &right };
                Node::of(half).unwrap().verify().unwrap();
                prop_assert_eq!(Node::of(half).unwrap().child_of(key), wanted);
            }
        }
    }
}

/// The longest keys and records that are promised, in each size of page: a full page can be split.
#[test]
fn two_records_of_the_greatest_length_fit() {
    for words in [64, 128, 256, 512, 1024, 2048, 8192] {
        let limits = Limits::of(words);
        let long = |front: u8| [&[front][..], &vec![b'x'; limits.key - 1]].concat();
        let (low, high) = (long(b'a'), long(b'z'));
        let mut page = vec![0; words];
        let fences = Fences { low: &low, high: Some(&high) };
        edit::format(&mut page, Kind::Leaf, 0, fences, 0).unwrap();
        let value = vec![7; limits.record - limits.key];
        for front in [b'f', b'm'] {
            edit::insert(&mut page, &long(front), &value, Header::NONE).unwrap();
        }
        let mut count = 2;
        while edit::insert(&mut page, &long(b'n' + count), &value, Header::NONE).is_ok() {
            count += 1;
        }
        let mut right = vec![0; words];
        let done = split(&mut page, &mut right, 3, SplitAt::Middle).unwrap();
        assert!(done.separator.len() <= limits.key);
        contents(&page);
        contents(&right);
        let (key, limit) = (limits.key + 1, limits.key);
        let long = edit::insert(&mut page, &vec![b'b'; key], b"", Header::NONE);
        assert_eq!(long, Err(Error::KeyTooLong { length: key, limit }));
        let big = edit::insert(&mut page, b"b", &vec![0; limits.record], Header::NONE);
        let (length, limit) = (limits.record + 1, limits.record);
        assert_eq!(big, Err(Error::RecordTooLong { length, limit }));
    }
    assert_eq!(Limits::of(1024), Limits { key: 1890, record: 2016 });
}

/// A record that becomes shorter and longer again stays where it is: undo needs no room.
#[test]
fn a_value_is_restored_in_place() {
    let mut page = vec![0; 64];
    edit::format(&mut page, Kind::Leaf, 0, Fences::ALL, 0).unwrap();
    for number in 0..3 {
        edit::insert(&mut page, &[number], &[number; 88], Header::NONE).unwrap();
    }
    assert_eq!(edit::insert(&mut page, b"more", &[0; 88], Header::NONE), Err(Error::Full));
    let before = contents(&page);
    for number in 0..3 {
        edit::replace(&mut page, &[number], b"", Header::NONE).unwrap();
    }
    edit::compact(&mut page).unwrap();
    for number in 0..3 {
        edit::set_ghost(&mut page, &[number], true, Header::NONE).unwrap();
        edit::replace(&mut page, &[number], &[number; 88], Header::NONE).unwrap();
    }
    assert_eq!(contents(&page), before);
}
