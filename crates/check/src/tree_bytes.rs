//! Arbitrary words as a page of a tree for the fuzz target and the tests.

use latchwork_tree::{Change, Difference, Error, Fences, Header, Kind, Node, SplitAt, edit, split};

/// Calls every query and every change.
pub fn exercise(page: &[u64]) {
    if let Some(node) = Node::of(page) {
        let _ = node.verify();
        for key in [&b""[..], b"a", b"key 17", &[0xff; 40]] {
            let _ = (node.search(key), node.is_beyond(key), node.covers(key), node.child_of(key));
        }
        for index in 0..node.count().min(600) {
            let _ = (node.key(index), node.value(index), node.header(index), node.child(index));
        }
        let _ = (node.low(), node.high(), node.right(), node.room(), Change::image(page));
    }
    let with = |change: &dyn Fn(&mut Vec<u64>)| change(&mut page.to_vec());
    with(&|page| _ = edit::insert(page, b"key 17x", b"value", Header::NONE));
    with(&|page| _ = edit::insert(page, b"", &[1; 100], Header::NONE));
    with(&|page| _ = edit::insert_child(page, b"key 17x", 9));
    with(&|page| _ = edit::replace(page, b"key 17", &[1; 60], Header::NONE));
    with(&|page| _ = edit::replace(page, b"key 17", b"", Header::NONE));
    for (at, before, after) in [(0, &b"key"[..], &b"kee"[..]), (4, b"", b"longer"), (9, b"7", b"")]
    {
        let difference = Difference { at, before, after };
        with(&|page| _ = edit::update(page, b"key 17", difference, Header::NONE));
    }
    with(&|page| _ = edit::set_ghost(page, b"key 17", true, Header::NONE));
    with(&|page| _ = edit::remove(page, b"key 17"));
    with(&|page| _ = edit::compact(page));
    with(&|page| _ = split(page, &mut vec![0; page.len()], 9, SplitAt::Middle));
}

/// A full page whose keys have a common prefix.
pub fn sound(words: usize, kind: Kind) -> Vec<u64> {
    let mut page = vec![0; words];
    let fences = Fences { low: b"k", high: Some(b"l") };
    edit::format(&mut page, kind, u8::from(kind == Kind::Inner), fences, 77).unwrap();
    for number in 0u64.. {
        let key = format!("key {number}").into_bytes();
        let done = match kind {
            Kind::Inner => edit::insert_child(&mut page, &key, number),
            _ => edit::insert(&mut page, &key, &key, Header::new(3, number * 16)),
        };
        if done == Err(Error::Full) {
            break;
        }
        done.unwrap();
    }
    Node::of(&page).unwrap().verify().unwrap();
    page
}
