//! Trees on a pool: compared with a model, with threads, with a journal that fails between any two
//! steps of a split, and with pages that are rebuilt from the log.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::thread;

use latchwork_check::random::Random;
use latchwork_disk::System;
use latchwork_machine::Native;
use latchwork_pool::{Cause, FileId, FileSpec, Handle, Lost, Options, Pool, Rebuild};
use latchwork_region::{Options as RegionOptions, Region};
use latchwork_tree::{Batch, Change, Error, Header, Journal, Link, Row, Tree, chain, rebuild};

/// A log in memory.
#[derive(Default)]
pub(crate) struct Log {
    records: Mutex<BTreeMap<u64, Link>>,
    /// How many more records it takes before it refuses one; zero: no limit.
    left: AtomicU64,
}

impl Log {
    fn read(&self, lsn: u64) -> Result<Link, Error> {
        let found = self.records.lock().unwrap().get(&lsn).cloned();
        found.ok_or(Error::Malformed("no such record"))
    }
}

/// The log as one thread writes it.
pub(crate) struct TreeJournal<'l>(&'l Log, u16);

impl Journal for TreeJournal<'_> {
    fn append(
        &self,
        page: u64,
        page_prev: u64,
        change: &Change<'_>,
        _: u64,
    ) -> Result<Option<u64>, Cause> {
        if self.0.left.load(Relaxed) != 0 && self.0.left.fetch_sub(1, Relaxed) == 1 {
            return Err(Cause::new("as planned"));
        }
        let mut payload = Vec::new();
        change.encode(&mut payload);
        let mut records = self.0.records.lock().unwrap();
        let lsn = records.len() as u64 * 16 + 16;
        records.insert(lsn, Link { lsn, slot: self.1, page, page_prev, payload });
        Ok(Some(lsn))
    }

    fn slot(&self) -> u16 {
        self.1
    }
}

impl Rebuild for Log {
    fn rebuild(&self, lost: &Lost, base: Option<&[u64]>, into: &mut [u64]) -> Result<u64, String> {
        let say = |error: Error| error.to_string();
        let from = base.map(|base| base[1]);
        let newest = if lost.lsn == 0 { lost.lsn_before } else { lost.lsn };
        let links = chain(lost.page, newest, from, |lsn| self.read(lsn)).map_err(say)?;
        rebuild(lost.page, base, &links, into).map_err(say)
    }
}

/// A pool with one file, which is removed with it.
pub(crate) struct House {
    path: PathBuf,
    region: Region<Native>,
    pub(crate) pool: Pool,
    log: Arc<Log>,
}

impl House {
    pub(crate) fn new(name: &str, frames: u32) -> Self {
        let path = std::env::temp_dir().join(format!("tree-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let limit = 64 << 20;
        let region = RegionOptions { limit, ..RegionOptions::default() };
        let region = Region::private(&region).unwrap();
        let log = Arc::new(Log::default());
        let rebuild = Some(log.clone() as Arc<dyn Rebuild>);
        let options = Options {
            frames,
            frames_max: frames,
            frame_bytes: 1024,
            rebuild,
            ..Options::default()
        };
        let pool = Pool::open(&region, Arc::new(System::new()), &options).unwrap();
        Self { path, region, pool, log }
    }

    /// Runs `work` as a thread of the pool.
    pub(crate) fn with<R>(
        &self,
        slot: u16,
        work: impl FnOnce(&Handle<'_>, FileId, &TreeJournal<'_>) -> R,
    ) -> R {
        let thread = self.region.thread().unwrap();
        let handle = self.pool.handle(&thread).unwrap();
        let spec = FileSpec { page_bytes: 1024, ..FileSpec::new(&self.path) };
        let file = handle.file(&spec).unwrap();
        work(&handle, file, &TreeJournal(&self.log, slot))
    }
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// The contents of the tree by scans in both directions, which must agree.
fn contents(tree: &Tree<'_, '_, TreeJournal<'_>>, limit: usize) -> Model {
    let owned = |row: Row<'_>| (row.key.to_vec(), row.value.to_vec(), row.header);
    let (mut forwards, mut next) = (Vec::new(), Some(Vec::new()));
    let mut batch = Batch::default();
    while let Some(from) = next {
        tree.scan(&from, limit, &mut batch).unwrap();
        assert!(batch.len() <= limit);
        forwards.extend(batch.iter().filter(|row| !row.ghost).map(owned));
        while batch.go_on(false, limit / 2 + 1) {
            assert!(!batch.is_empty());
            forwards.extend(batch.iter().filter(|row| !row.ghost).map(owned));
        }
        next = batch.next().map(<[u8]>::to_vec);
    }
    let mut backwards = Vec::new();
    let mut next = None::<Vec<u8>>;
    loop {
        tree.scan_back(next.as_deref(), limit, &mut batch).unwrap();
        backwards.extend(batch.iter().filter(|row| !row.ghost).map(owned));
        next = batch.next().map(<[u8]>::to_vec);
        if next.is_none() {
            break;
        }
    }
    backwards.reverse();
    assert_eq!(forwards, backwards);
    assert!(forwards.is_sorted_by(|a, b| a.0 < b.0));
    forwards.into_iter().map(|row| (row.0, row.1)).collect()
}

fn key(random: &mut Random, range: u64) -> Vec<u8> {
    let number = random.below(range);
    let long = if number.is_multiple_of(7) { "a longer key that others are like " } else { "k" };
    format!("{long}{number:05}").into_bytes()
}

/// Runs a random operation on both.
fn both(
    tree: &Tree<'_, '_, TreeJournal<'_>>,
    model: &mut Model,
    random: &mut Random,
    key: Vec<u8>,
) {
    let mut value = vec![random.below(256) as u8; random.below(60) as usize];
    let known = model.get(&key).cloned();
    if let Some(known) = known.as_ref().filter(|_| random.below(2) == 0) {
        // Often only a part of the value differs.
        let (begin, end) = (random.below(30) as usize, random.below(30) as usize);
        let end = known.len().saturating_sub(end).max(begin);
        value =
            [known.get(..begin).unwrap_or(known), &value, known.get(end..).unwrap_or(&[])].concat();
        value.truncate(60);
    }
    let done = match random.below(5) {
        0 => tree.delete(&key),
        1 => tree.insert(&key, &value),
        2 => tree.replace(&key, &value),
        _ => tree.put(&key, &value),
    };
    match done {
        Ok(written) => {
            assert_eq!(written.before, known);
            let mut now = Vec::new();
            match tree.get(&key, &mut now).unwrap() {
                Some(header) => {
                    assert_eq!((header.lsn(), &now), (written.lsn, &value));
                    model.insert(key, value);
                }
                None => drop(model.remove(&key).unwrap()),
            }
        }
        Err(Error::Exists) => assert!(known.is_some()),
        Err(Error::Missing) => assert!(known.is_none()),
        Err(error) => panic!("{error}"),
    }
}

/// A tree larger than its pool equals a map, and each page can be rebuilt from the log.
#[test]
fn a_tree_is_a_map() {
    let house = House::new("map", 48);
    house.with(3, |handle, file, scribe| {
        let tree = Tree::create(handle, file, scribe).unwrap();
        let (mut model, mut random) = (Model::new(), Random(7));
        for round in 0..12_000 {
            let key = key(&mut random, 3_000);
            both(&tree, &mut model, &mut random, key);
            if round % 1_500 == 0 {
                tree.verify().unwrap();
                assert_eq!(contents(&tree, 5), model);
            }
        }
        let pages = tree.verify().unwrap();
        assert!(pages > 100, "{pages} pages");
        assert_eq!(contents(&tree, 1_000), model);
        for page in 0..house.pool.pages(file).unwrap() {
            let words = |index| handle.read(file, page, |view| view.word(index)).unwrap();
            let lsn = words(1);
            let links = chain(page, lsn, None, |lsn| house.log.read(lsn)).unwrap();
            let mut again = vec![0; 128];
            assert_eq!(rebuild(page, None, &links, &mut again), Ok(lsn));
            let there: Vec<_> = (1..128).map(words).collect();
            let node = latchwork_tree::Node::of(&again).unwrap();
            node.verify().unwrap();
            assert_eq!(again[1..8], there[..7], "page {page}");
            for index in 0..node.count() {
                assert_eq!(again[8 + index] >> 16, there[7 + index] >> 16);
            }
        }
    });
}

/// Ascending keys fill pages completely.
#[test]
fn ascending_keys_leave_full_pages() {
    let house = House::new("ascending", 400);
    house.with(1, |handle, file, scribe| {
        let tree = Tree::create(handle, file, scribe).unwrap();
        for number in 0..2_000u32 {
            tree.insert(&number.to_be_bytes(), &[7; 20]).unwrap();
        }
        // A record takes 16 bytes, 3 to 4 for its key, 20 for its value, and 8 for its slot.
        let pages = tree.verify().unwrap();
        assert!(pages < 2_000 * 48 / 960 + 20, "{pages} pages");
        assert_eq!(contents(&tree, 7).len(), 2_000);
    });
}

/// Threads write their own keys into the same leaves and read them back while another thread scans.
#[test]
fn threads_lose_no_record() {
    let house = House::new("threads", 300);
    let root =
        house.with(9, |handle, file, scribe| Tree::create(handle, file, scribe).unwrap().root());
    let writing = AtomicU64::new(4);
    let models: Vec<Model> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u16)
            .map(|slot| {
                let (house, writing) = (&house, &writing);
                scope.spawn(move || {
                    house.with(slot, |handle, file, scribe| {
                        let tree = Tree::open(handle, file, root, scribe);
                        let (mut model, mut random) = (Model::new(), Random(u64::from(slot) + 20));
                        for _ in 0..4_000 {
                            let mut key = key(&mut random, 1_500);
                            key.push(slot as u8);
                            both(&tree, &mut model, &mut random, key);
                        }
                        writing.fetch_sub(1, Relaxed);
                        model
                    })
                })
            })
            .collect();
        house.with(8, |handle, file, scribe| {
            let tree = Tree::open(handle, file, root, scribe);
            let (mut scans, mut batch) = (0, Batch::default());
            while writing.load(Relaxed) != 0 || scans == 0 {
                let (mut next, mut last) = (Some(Vec::new()), None::<Vec<u8>>);
                while let Some(from) = next {
                    tree.scan(&from, 10, &mut batch).unwrap();
                    for row in batch.iter() {
                        assert!(
                            last.is_none_or(|last| &last[..] < row.key),
                            "a scan moved backwards"
                        );
                        last = Some(row.key.to_vec());
                    }
                    next = batch.next().map(<[u8]>::to_vec);
                }
                scans += 1;
            }
        });
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    house.with(9, |handle, file, scribe| {
        let tree = Tree::open(handle, file, root, scribe);
        tree.verify().unwrap();
        let all: Model = models.into_iter().flatten().collect();
        assert_eq!(contents(&tree, 9), all);
    });
}

/// The journal refuses records, so a split ends after any of its steps. The tree stays correct, and
/// the next thread that visits it completes the split.
#[test]
fn an_interrupted_split_is_finished() {
    let (mut stopped, mut unfinished) = (0, 0);
    for step in 1..40 {
        let house = House::new("steps", 200);
        house.with(1, |handle, file, scribe| {
            let tree = Tree::create(handle, file, scribe).unwrap();
            let (mut model, mut random) = (Model::new(), Random(step));
            for round in 0..400u64 {
                let key = key(&mut random, 100_000);
                if round % 3 == 0 {
                    house.log.left.store(1 + (step + round) % 6, Relaxed);
                }
                match tree.put(&key, &[1; 40]) {
                    Ok(_) => drop(model.insert(key, vec![1; 40])),
                    Err(Error::Journal(why)) => {
                        assert_eq!(why.to_string(), "as planned");
                        stopped += 1;
                        unfinished += u64::from(incomplete(handle, file));
                        tree.verify().unwrap();
                        // A reader finds records on a page that the parent does not list.
                        for (key, value) in &model {
                            let mut read = Vec::new();
                            assert!(tree.get(key, &mut read).unwrap().is_some(), "{key:?}");
                            assert_eq!(&read, value);
                        }
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(contents(&tree, 3), model);
            house.log.left.store(0, Relaxed);
            for (key, value) in &model {
                tree.put(key, value).unwrap();
            }
            tree.verify().unwrap();
            assert_eq!(contents(&tree, 3), model);
            assert!(!incomplete(handle, file), "a write to each leaf must complete all splits");
        });
    }
    assert!(stopped > 1_000 && unfinished > 100, "{stopped} stopped, {unfinished} unfinished");
}

/// Returns whether any page is incomplete.
fn incomplete(handle: &Handle<'_>, file: FileId) -> bool {
    (0..handle.pool().pages(file).unwrap()).any(|page| {
        let ask = |view: &latchwork_pool::PageView<'_>| {
            Some(latchwork_tree::Node::of(view).is_some_and(|node| node.is_incomplete()))
        };
        handle.read(file, page, ask).is_ok_and(|incomplete| incomplete)
    })
}

/// Changes are undone in reverse order, wherever splits have moved the keys in the meantime.
#[test]
fn undo_finds_its_keys_again() {
    let house = House::new("undo", 300);
    house.with(2, |handle, file, scribe| {
        let tree = Tree::create(handle, file, scribe).unwrap();
        let (mut model, mut random) = (Model::new(), Random(5));
        for _ in 0..600 {
            let key = key(&mut random, 500);
            both(&tree, &mut model, &mut random, key);
        }
        let mut headers = BTreeMap::new();
        for key in model.keys() {
            headers.insert(key.clone(), tree.get(key, &mut Vec::new()).unwrap());
        }
        let begun = house.log.records.lock().unwrap().len() as u64 * 16;
        let mut after = model.clone();
        for _ in 0..1_500 {
            let key = key(&mut random, 900);
            both(&tree, &mut after, &mut random, key);
        }
        assert_ne!(after, model);
        let pages = house.pool.pages(file).unwrap();
        let records = house.log.records.lock().unwrap().clone();
        for (_, link) in records.range(begun + 16..).rev() {
            let change = Change::decode(&link.payload).unwrap();
            if change.undo().is_some() {
                let made = Header::new(link.slot, link.lsn);
                assert_ne!(tree.undo(&change, made).unwrap().lsn, 0);
                // A sweeper that died may have done it before.
                let again = tree.undo(&change, made).unwrap().lsn;
                assert_eq!(again == 0, matches!(change, Change::Update { .. }), "{change:?}");
            }
        }
        tree.verify().unwrap();
        assert_eq!(contents(&tree, 50), model);
        assert_eq!(house.pool.pages(file).unwrap(), pages, "undo has allocated a page");
        for (key, header) in headers {
            assert_eq!(tree.get(&key, &mut Vec::new()).unwrap(), header, "a wrong header");
        }
    });
}

/// A part of a value is undone only if it is the last change of its record.
#[test]
fn undo_refuses_a_part_of_another_value() {
    let house = House::new("other-value", 20);
    house.with(2, |handle, file, scribe| {
        let tree = Tree::create(handle, file, scribe).unwrap();
        let made = |lsn| Header::new(2, lsn);
        tree.put(b"key", b"one value").unwrap();
        let first = tree.put(b"key", b"two value").unwrap().lsn;
        // Another part, so the first one is still there.
        let second = tree.put(b"key", b"two valve").unwrap().lsn;
        let record = |lsn| house.log.read(lsn).unwrap().payload;
        let (one, two) = (record(first), record(second));
        let (one, two) = (Change::decode(&one).unwrap(), Change::decode(&two).unwrap());
        assert!(matches!(tree.undo(&one, made(first)), Err(Error::Malformed(_))));
        tree.undo(&two, made(second)).unwrap();
        tree.undo(&one, made(first)).unwrap();
        let mut value = Vec::new();
        tree.get(b"key", &mut value).unwrap();
        assert_eq!(value, b"one value");
        assert_eq!(tree.undo(&one, made(first)).unwrap().lsn, 0, "it was undone");
        assert!(matches!(tree.undo(&two, made(second)), Err(Error::Malformed(_))));
    });
}

/// A half-changed page is rebuilt from the log, and the tree can be used.
#[test]
fn a_half_changed_page_is_rebuilt() {
    let house = House::new("rebuilt", 200);
    house.with(2, |handle, file, scribe| {
        let tree = Tree::create(handle, file, scribe).unwrap();
        let (mut model, mut random) = (Model::new(), Random(11));
        for _ in 0..1_500 {
            let key = key(&mut random, 900);
            both(&tree, &mut model, &mut random, key);
        }
        for page in 0..house.pool.pages(file).unwrap() {
            let mut held = handle.write(file, page).unwrap();
            held.begin(held.lsn());
            for index in 2..60 {
                assert!(held.set(index, random.below(u64::MAX)));
            }
        }
        tree.verify().unwrap();
        assert_eq!(contents(&tree, 50), model);
    });
}

/// A leaf whose damaged memory says that it is an inner page: an impossible change is not logged.
#[test]
fn an_impossible_change_is_not_logged() {
    let house = House::new("kind", 200);
    house.with(2, |handle, file, scribe| {
        let tree = Tree::create(handle, file, scribe).unwrap();
        tree.put(b"key", b"value").unwrap();
        let mut held = handle.write(file, tree.root()).unwrap();
        let kind = held.word(2).unwrap();
        held.begin(held.lsn());
        assert!(held.set(2, kind & !0xff | 2));
        held.commit();
        let logged = || house.log.records.lock().unwrap().len();
        let before = logged();
        let refused = tree.put(b"another", b"value").map(drop);
        assert!(matches!(refused, Err(Error::Malformed(_))), "{refused:?}");
        assert_eq!(logged(), before);
    });
}

/// The controls: a tree with a missing page, or with two pages exchanged, does not verify.
#[test]
fn a_wrong_tree_does_not_verify() {
    let house = House::new("wrong", 200);
    house.with(2, |handle, file, scribe| {
        let tree = Tree::create(handle, file, scribe).unwrap();
        for number in 0..600u32 {
            tree.insert(&number.to_be_bytes(), b"value").unwrap();
        }
        tree.verify().unwrap();
        let leaf = (0..house.pool.pages(file).unwrap()).find(|page| {
            let ask = |view: &latchwork_pool::PageView<'_>| {
                let node = latchwork_tree::Node::of(view)?;
                Some(node.level() == 0 && node.right()?.is_some())
            };
            handle.read(file, *page, ask).unwrap()
        });
        let mut held = handle.write(file, leaf.unwrap()).unwrap();
        let right = held.word(3).unwrap();
        held.begin(16);
        assert!(held.set(3, right & !0xffff_ffff_ffff | tree.root()));
        held.commit();
        assert!(tree.verify().is_err(), "a leaf whose sibling is the root");
        // The same while other threads change other pages of the tree.
        let (stop, changed, root) = (AtomicBool::new(false), AtomicU64::new(0), tree.root());
        thread::scope(|scope| {
            scope.spawn(|| {
                house.with(3, |handle, file, scribe| {
                    let tree = Tree::open(handle, file, root, scribe);
                    for number in (0..).take_while(|_| !stop.load(Relaxed)) {
                        tree.put(&(5000 + number % 3000u32).to_be_bytes(), b"another").unwrap();
                        changed.store(u64::from(number), Relaxed);
                    }
                });
            });
            while changed.load(Relaxed) < 1000 {
                thread::yield_now();
            }
            let found: Vec<_> = (0..20).map(|_| tree.verify()).collect();
            stop.store(true, Relaxed);
            let wrong = |found: &Result<u64, Error>| matches!(found, Err(Error::Malformed(_)));
            assert!(found.iter().all(wrong), "{found:?}");
        });
    });
}
