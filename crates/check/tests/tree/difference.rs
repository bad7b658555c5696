//! Differences of values: each value from the other one, on their own, on a page, and in the bytes
//! of the log.

use latchwork_tree::{Change, Difference, Error, Fences, Header, Kind, Limits, Node, Role, edit};
use proptest::prelude::*;

const WORDS: usize = 512;
const WAS: Header = Header::new(3, 160);
const NOW: Header = Header::new(9, 4096);

/// Two values that begin and end alike, with any lengths; often equal, often empty.
fn pair() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let part = || {
        let short = proptest::collection::vec(0u8..3, 0..4);
        prop_oneof![2 => Just(Vec::new()), 3 => short, 2 => long(), 1 => longest()]
    };
    (part(), part(), part(), part(), any::<bool>()).prop_map(|(front, one, other, end, equal)| {
        let other = if equal { one.clone() } else { other };
        ([&front[..], &one, &end].concat(), [&front[..], &other, &end].concat())
    })
}

fn long() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 5..80)
}

/// The whole of a record, less the key.
fn longest() -> impl Strategy<Value = Vec<u8>> {
    let most = Limits::of(WORDS).record - KEY.len();
    (any::<u8>(), most / 2..most / 2 + 2).prop_map(|(byte, length)| vec![byte; length])
}

const KEY: &[u8] = b"key";

/// A page with the record and others around it; none if the record is too long.
fn page_with(value: &[u8]) -> Option<Vec<u64>> {
    let mut page = vec![0; WORDS];
    edit::format(&mut page, Kind::Leaf, 0, Fences::ALL, 0).unwrap();
    for other in [&b"a"[..], b"kex", b"kez", b"z"] {
        edit::insert(&mut page, other, other, Header::NONE).unwrap();
    }
    edit::insert(&mut page, KEY, value, WAS).ok()?;
    Some(page)
}

fn record(page: &Vec<u64>) -> (Vec<u8>, Header) {
    let node = Node::of(page).unwrap();
    node.verify().unwrap();
    let index = node.search(KEY).unwrap().unwrap();
    (node.value(index).unwrap(), node.header(index).unwrap())
}

fn through_the_log<R>(change: &Change<'_>, work: impl FnOnce(&Change<'_>) -> R) -> R {
    let mut payload = Vec::new();
    change.encode(&mut payload);
    payload.extend_from_slice(&[0; 7]);
    let read = Change::decode(&payload).unwrap();
    assert_eq!(read, *change);
    work(&read)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn each_value_comes_from_the_other((before, after) in pair()) {
        let difference = Difference::of(&before, &after);
        let mut value = before.clone();
        prop_assert_eq!(difference.apply(&mut value), Some(()));
        prop_assert_eq!(&value, &after);
        prop_assert_eq!(difference.reversed().apply(&mut value), Some(()));
        prop_assert_eq!(&value, &before);
        // The part is the shortest.
        let (one, other) = (difference.before, difference.after);
        if let (Some(one), Some(other)) = (one.first(), other.first()) {
            prop_assert_ne!(one, other);
        }
        if let (Some(one), Some(other)) = (one.last(), other.last()) {
            prop_assert_ne!(one, other);
        }
        prop_assert_eq!(before == after, one.is_empty() && other.is_empty());
    }

    #[test]
    fn a_page_is_updated_and_reverted((before, after) in pair()) {
        let Some(mut page) = page_with(&before) else { return Ok(()) };
        let difference = Difference::of(&before, &after);
        let update = Change::Update { key: KEY, difference, was: WAS };
        let done = through_the_log(&update, |read| read.apply(Role::Own, &mut page, NOW));
        if KEY.len() + after.len() > Limits::of(WORDS).record {
            let too_long = matches!(done, Err(Error::RecordTooLong { .. }));
            prop_assert!(too_long, "{:?}", done);
            return Ok(());
        }
        prop_assert_eq!(done, Ok(()));
        prop_assert_eq!(record(&page), (after.clone(), NOW));
        let mut earlier = after.clone();
        prop_assert_eq!(update.earlier(&mut earlier), Some((WAS, true)));
        prop_assert_eq!(&earlier, &before);
        let revert = update.undo().unwrap();
        prop_assert_eq!(through_the_log(&revert, |read| read.apply(Role::Own, &mut page, NOW)), Ok(()));
        prop_assert_eq!(record(&page), (before, WAS));
    }

    /// Damage, or a record that is applied to a value of another state.
    #[test]
    fn a_part_of_another_value_is_refused(
        value in long(),
        at in prop_oneof![0usize..100, (1usize << 56) - 40..1 << 56],
        before in proptest::collection::vec(0u8..2, 0..40),
        after in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let difference = Difference { at, before: &before, after: &after };
        let fits = value.get(at..).is_some_and(|rest| rest.starts_with(&before));
        let mut other = value.clone();
        prop_assert_eq!(difference.apply(&mut other).is_some(), fits);
        prop_assert!(fits || other == value);
        let mut page = page_with(&value).unwrap();
        let update = Change::Update { key: KEY, difference, was: WAS };
        let done = through_the_log(&update, |read| read.apply(Role::Own, &mut page, NOW));
        prop_assert_eq!(done.is_ok(), fits);
        prop_assert!(fits || matches!(done, Err(Error::Malformed(_))));
        prop_assert_eq!(record(&page), if fits { (other, NOW) } else { (value.clone(), WAS) });
        let mut earlier = value.clone();
        let revert = Change::Update { key: KEY, difference: difference.reversed(), was: WAS };
        prop_assert_eq!(revert.earlier(&mut earlier).is_some(), fits);
    }

    /// Headers and lengths of all sizes.
    #[test]
    fn numbers_of_any_size_are_read_as_they_were_written(
        slot in any::<u16>(),
        shift in 0u32..48,
        bits in any::<u64>(),
        length in prop_oneof![0usize..300, 16_000usize..17_000],
    ) {
        let was = Header::new(slot >> (shift % 16), ((bits % (1 << 48)) >> shift) << 4);
        let value = vec![7; length];
        through_the_log(&Change::Insert { key: KEY, value: &value, was }, |_| {});
        through_the_log(&Change::Delete { key: &value, before: &value, was }, |_| {});
        let difference = Difference { at: length, before: &value, after: KEY };
        through_the_log(&Change::Update { key: KEY, difference, was }, |_| {});
    }
}

/// The encoding of formats 5 and 6, which a converted store has in its log.
#[test]
fn changes_of_older_formats_are_read() {
    fn wide(code: u8, was: Header, strings: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![code];
        bytes.extend_from_slice(&was.to_bits().to_le_bytes());
        for string in strings {
            bytes.extend_from_slice(&(string.len() as u32).to_le_bytes());
            bytes.extend_from_slice(string);
        }
        bytes
    }
    let (key, before, value, was) = (KEY, &b"old"[..], &b"newer"[..], WAS);
    let all = [
        (wide(1, was, &[key, value]), Change::Insert { key, value, was }),
        (wide(2, was, &[key, before, value]), Change::Replace { key, before, value, was }),
        (wide(3, was, &[key, before]), Change::Delete { key, before, was }),
        (wide(4, was, &[key]), Change::Ghost { key, was }),
        (wide(5, was, &[key, value]), Change::Restore { key, value, was }),
        ([&[6, 3, 0, 0, 0][..], key].concat(), Change::Purge { key }),
        ([&[7, 3, 0, 0, 0][..], key].concat(), Change::Image { image: key }),
        (vec![11], Change::Complete),
    ];
    for (bytes, change) in all {
        assert_eq!(Change::decode(&bytes), Some(change));
        assert!((0..bytes.len()).all(|end| Change::decode(&bytes[..end]).is_none()), "cut off");
    }
    // They had no differences.
    assert_eq!(Change::decode(&wide(16, was, &[key, value])), None);
}
