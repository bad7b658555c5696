//! Reads what is left of a store that cannot be opened, and writes it into a new one.
//!
//! | step | action |
//! |---|---|
//! | log | the readable records from the redo point on are redone in memory, where they fit |
//! | pages | each valid page, from each table's root to its leaves, as far as links lead |
//! | orphans | leaves without a parent are assigned to the tree in the log, or to the torn tree |
//! | records | for transactions without a commit in the log: the old values |
//! | long values | complete, or omitted |
//!
//! Nothing is written to the damaged store, except the file `opening`, which is created for its
//! lock if it is missing. All rows of all tables, and all pages that the log changes, are kept in
//! the memory of this process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use latchwork_disk::{Disk, File, Open, System};
use latchwork_lockmgr::Wait;
use latchwork_log::{Entry, Error as LogError, Flags, LogFiles};
use latchwork_tree::{Change, Header, Kind as PageKind, Limits, Node, Role};

use crate::entry::{self, Wanted};
use crate::error::refused;
use crate::files::inner::Sizes;
use crate::files::kinds::{CHANGE, END};
use crate::files::prepare::Found;
use crate::files::space::{first_of, free_of};
use crate::long::{Fetch, PIECES, whole};
use crate::open::{at_rest, recorded_memory};
use crate::tables::{CATALOG, INNER, as_shown, root_of};
use crate::tools::records::{LogRead, entries};
use crate::tools::temporary::TemporaryFolder;
use crate::{Error, Refusal};

/// The result of a salvage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Salvaged {
    /// The tables, and the number of records of each in the new store.
    pub tables: Vec<(String, u64)>,
    /// The number of pages of the file.
    pub pages: u64,
    /// Pages that cannot be read and are not completely contained in the log.
    pub lost: Vec<u64>,
    /// Outdated pages: the log has later changes of them that could not be applied.
    pub old: Vec<u64>,
    /// Leaves without a parent. Their records were read.
    pub orphans: u64,
    /// Records that were rolled back because their transactions have no commit.
    pub undone: u64,
    /// The ids of prepared, undecided transactions. Their records are counted in `undone`.
    pub prepared: Vec<Vec<u8>>,
    /// Records that were omitted because pieces of their long values are lost, or because their
    /// values are not those that the log's changes made.
    pub cut: u64,
    /// Ranges of the log that cannot be read.
    pub gaps: Vec<(u64, u64)>,
    /// Why the log's control file could not be used. The log was read from its first record on, and
    /// its end may be missing.
    pub no_control: Option<String>,
    /// Why no part of the log could be read.
    pub no_log: Option<String>,
    /// Why it is unknown whether killed processes left shared memory with commits that the files
    /// lack.
    pub no_memory: Option<String>,
}

impl Salvaged {
    /// Returns whether nothing is missing.
    pub fn is_whole(&self) -> bool {
        let log = self.gaps.is_empty() && self.no_log.is_none() && self.no_control.is_none();
        log && self.prepared.is_empty()
            && self.no_memory.is_none()
            && self.lost.is_empty()
            && self.old.is_empty()
            && self.cut == 0
    }
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// The rows of all tables by name; the pieces of long values have no name.
type Tables = BTreeMap<Option<String>, Rows>;

/// The writes of transactions without an end, by their positions in the log.
type Changes<'c> = BTreeMap<u64, &'c [u8]>;

/// A damaged store in memory: its file, and the pages that the log changes.
struct DamagedStore {
    data: Box<dyn File>,
    page: usize,
    pages: u64,
    changed: BTreeMap<u64, Vec<u64>>,
    /// The tree of a page, according to the log.
    tree: BTreeMap<u64, u32>,
    /// The writes of each slot's transaction, until its end is found.
    open: BTreeMap<u16, Vec<(u64, Vec<u8>)>>,
    /// The ids of transactions that are prepared so far.
    prepared: BTreeMap<u16, Vec<u8>>,
    old: BTreeSet<u64>,
}

/// Reads what is left of a store with any kind of damage, and writes it into a new one.
///
/// # Errors
///
/// [`Error::Open`] if `to` exists, or processes have the store open; [`Error::Disk`] if the file of
/// pages is missing. Damage is not an error; the result describes it.
///
/// # Examples
///
/// ```
/// use latchwork_store::{Store, Table, salvage};
///
/// const FRUIT: Table<&str, u64> = Table::new("fruit");
/// # let path = std::env::temp_dir().join(format!("store-salvage-{}", std::process::id()));
/// # std::fs::create_dir(&path).unwrap();
/// let store = Store::open(path.join("shop"))?;
/// store.write(|tx| tx.put(&FRUIT, "pear", 3))?;
/// drop(store);
/// let log = std::fs::read_dir(path.join("shop/log")).unwrap();
/// log.for_each(|file| std::fs::remove_file(file.unwrap().path()).unwrap());
/// assert!(Store::open(path.join("shop")).is_err());
///
/// let found = salvage(path.join("shop"), path.join("again"))?;
/// assert!(found.no_log.is_some() && found.lost.is_empty());
/// let again = Store::open(path.join("again"))?;
/// assert_eq!(again.read(|tx| tx.get(&FRUIT, "pear"))?, Some(3));
/// # drop(again);
/// # std::fs::remove_dir_all(&path).unwrap();
/// # Ok::<(), latchwork_store::Error>(())
/// ```
pub fn salvage(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Salvaged, Error> {
    let (from, mut sizes) = (from.as_ref(), Sizes::default());
    let mut found = Salvaged::default();
    // A store without an identity, or with that of another store, may still have its pages.
    let held = match at_rest(from, &mut sizes) {
        Ok(held) => {
            match held.left() {
                Ok(Some(_)) => return Err(refused(from, Refusal::LeftOpen)),
                Ok(None) => found.no_memory = not_read(&held.path),
                Err(why) => found.no_memory = Some(why.to_string()),
            }
            Some(held)
        }
        Err(Error::Open { why: Refusal::Damaged { .. } | Refusal::NoStore, .. }) => {
            // The store cannot be opened with its memory, so do not ask the user to do so first.
            found.no_memory = not_read(from);
            None
        }
        Err(other) => return Err(other),
    };
    let disk: Arc<dyn Disk> = Arc::new(System::new());
    let data = disk.open(&from.join("data"), Open::READ)?;
    if held.is_none() {
        sizes.page = guess(&*data)?;
    }
    let target = TemporaryFolder::new(to.as_ref())?;
    let page = sizes.page as usize;
    let pages = data.length()? / page as u64;
    let mut damaged = DamagedStore {
        data,
        page,
        pages,
        changed: BTreeMap::new(),
        tree: BTreeMap::new(),
        open: BTreeMap::new(),
        prepared: BTreeMap::new(),
        old: BTreeSet::new(),
    };
    let mut read = LogRead::default();
    let log = log_files(disk, &from.join("log"), &mut found).and_then(|files| {
        entries(&files, (files.redo().0, true), &mut read, &mut |entry| {
            damaged.redo(entry);
            (None, true)
        })
    });
    found.no_log = log.err().map(|why| why.to_string());
    found.gaps = read.gaps;
    let (tables, types) = damaged.tables(&mut found);
    found.pages = damaged.pages;
    found.prepared = damaged.prepared.values().cloned().collect();
    found.old = damaged.old.iter().copied().filter(|page| !found.lost.contains(page)).collect();
    target.fill(&sizes, |store| {
        for (name, rows) in &tables {
            let Some(name) = name else { continue };
            let wanted = types.get(name).cloned().unwrap_or_default();
            let shown = as_shown(name);
            if shown.is_some() && rows.is_empty() {
                continue;
            }
            let name = shown.as_ref().unwrap_or(name);
            let tree = store.catalog().make(name, &wanted, Wait::Detect)?.tree;
            let rows: Vec<_> = rows.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
            rows.chunks(500).try_for_each(|some| store.put_all(tree, some))?;
            found.tables.push((name.clone(), rows.len() as u64));
        }
        Ok(())
    })?;
    target.name(&sizes)?;
    Ok(found)
}

/// Opens the log's files, also without a valid control file.
fn log_files(disk: Arc<dyn Disk>, folder: &Path, found: &mut Salvaged) -> Result<LogFiles, Error> {
    match LogFiles::open(disk.clone(), folder) {
        Err(why @ (LogError::NoControl | LogError::Corrupt { .. })) => {
            // Report the first error, which names what is missing.
            let said = why.to_string();
            let files = LogFiles::without_control(disk, folder).map_err(|_| why)?;
            found.no_control = Some(said);
            Ok(files)
        }
        opened => Ok(opened?),
    }
}

/// Describes shared memory of the store's processes, which is not read here.
fn not_read(path: &Path) -> Option<String> {
    let recorded = match recorded_memory(path) {
        Ok(recorded) => recorded.filter(|recorded| recorded.now)?,
        Err(why) => return Some(why.to_string()),
    };
    let state = match recorded.at.join("region").try_exists() {
        Ok(false) => "it is missing",
        _ => "the store cannot be opened with it",
    };
    Some(format!("{}: its processes had it, and {state}", recorded.at.display()))
}

/// Guesses the page size, by the number of valid pages at the beginning of the file for each size.
fn guess(data: &dyn File) -> Result<u32, Error> {
    let length = data.length()?;
    let sound = |size: u32| {
        let mut page = vec![0; size as usize];
        let all = (0..64.min(length / u64::from(size))).filter(|number| {
            let read = data.read(number * u64::from(size), &mut page);
            read.is_ok() && latchwork_pool::sound(*number, &page).is_ok()
        });
        all.count()
    };
    // With equal counts, `max_by_key` takes the last, so if no page is valid, the default size.
    let sizes = [65_536, 32_768, 16_384, 4096, 8192];
    Ok(sizes.into_iter().max_by_key(|size| sound(*size)).unwrap_or(8192))
}

impl DamagedStore {
    /// Returns the words of a page; `None` if it cannot be read.
    fn words(&self, number: u64) -> Option<Vec<u64>> {
        if let Some(words) = self.changed.get(&number) {
            return Some(words.clone());
        }
        let mut bytes = vec![0; self.page];
        self.data.read(number.checked_mul(self.page as u64)?, &mut bytes).ok()?;
        latchwork_pool::sound(number, &bytes).ok()?;
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        Some(bytes.chunks_exact(8).map(word).collect())
    }

    /// Returns whether a page was never written: the file is extended before its space is needed.
    fn is_blank(&self, number: u64) -> bool {
        let mut bytes = vec![0; self.page];
        let at = number.saturating_mul(self.page as u64);
        self.data.read(at, &mut bytes).is_ok() && bytes.iter().all(|byte| *byte == 0)
    }

    /// Redoes a log record, if its page is in the state that the record expects.
    fn redo(&mut self, entry: &Entry) {
        let (head, number) = (entry.head, entry.head.page);
        let goes_on = !head.flags.has(Flags::SYSTEM) || head.flags.has(Flags::CLR);
        if goes_on || head.kind == END {
            self.prepared.remove(&entry.slot);
        }
        self.prepared.extend(Found::of(entry.lsn, entry).map(|found| (found.slot, found.gid)));
        if head.flags.has(Flags::LAST) || head.kind == END {
            self.open.remove(&entry.slot);
        }
        let Some(change) = Change::decode(&entry.payload).filter(|_| head.kind == CHANGE) else {
            return;
        };
        if !head.flags.has(Flags::SYSTEM) && !head.flags.has(Flags::LAST) {
            let open = self.open.entry(entry.slot).or_default();
            open.extend(change.undo().map(|_| (entry.lsn.0, entry.payload.clone())));
        }
        self.pages = self.pages.max(number + 1);
        self.tree.insert(number, head.aux);
        let whole = change.before(Role::Own, head.page_prev.0).is_none();
        let there = self.words(number);
        let mut words = there.unwrap_or_else(|| vec![0; self.page / 8]);
        if words[1] >= entry.lsn.0 {
            return;
        }
        let header = Header::new(entry.slot, entry.lsn.0);
        let fits = whole || words[1] == head.page_prev.0;
        if !fits || change.apply(Role::Own, &mut words[..], header).is_err() {
            self.old.insert(number);
            return;
        }
        words[1] = entry.lsn.0;
        self.old.remove(&number);
        self.changed.insert(number, words);
    }

    /// Returns the rows of all tables, by name, and the types of tables with recorded types.
    fn tables(&self, found: &mut Salvaged) -> (Tables, BTreeMap<String, Wanted>) {
        let undone: Changes<'_> =
            self.open.values().flatten().map(|(at, change)| (*at, &change[..])).collect();
        let mut seen = BTreeSet::new();
        let mut tables = BTreeMap::new();
        let mut whole = true;
        let names = self.walk(CATALOG, &mut seen, &undone, &mut whole, found);
        let mut roots: BTreeMap<u32, Option<String>> = names
            .iter()
            .filter(|(name, _)| !name.starts_with(INNER))
            .filter_map(|(name, root)| Some((root_of(root).ok()?, Some(text(name)))))
            .collect();
        let types = names.iter().filter(|(name, _)| !name.starts_with(INNER));
        let types = types.filter_map(|(name, bytes)| {
            let entry = entry::Entry::of(bytes).ok()?;
            Some((text(name), (entry.types, entry.version)))
        });
        let types = types.collect();
        roots.insert(PIECES, None);
        let mut torn = BTreeSet::new();
        for (root, name) in &roots {
            let mut whole = true;
            let rows = self.walk(*root, &mut seen, &undone, &mut whole, found);
            tables.insert(name.clone(), rows);
            if !whole {
                torn.insert(*root);
            }
        }
        if !whole || !torn.is_empty() {
            // The contents of a free page were moved or removed long ago.
            seen.extend(
                names
                    .iter()
                    .filter_map(|(key, bits)| Some((first_of(key)?, bits)))
                    .flat_map(|(first, bits)| free_of(first, bits)),
            );
            self.adopt(&roots, &torn, &seen, &undone, &mut tables, found);
        }
        found.lost.sort_unstable();
        found.lost.dedup();
        let pieces = tables.remove(&None).unwrap_or_default();
        tables.values_mut().for_each(|rows| found.cut += self.make_whole(rows, &pieces));
        (tables, types)
    }

    /// Completes the long values of records. Returns the number of records omitted because pieces
    /// are missing.
    fn make_whole(&self, rows: &mut Rows, pieces: &Rows) -> u64 {
        let (max, before) = (Limits::of(self.page / 8).record, rows.len());
        rows.retain(|key, value| {
            let fetch: &mut Fetch<'_> = &mut |key, to| {
                let piece = pieces.get(key);
                piece.map_or(&[][..], Vec::as_slice).clone_into(to);
                Ok(piece.is_some())
            };
            whole(max, (0, key), value, fetch).is_ok()
        });
        (before - rows.len()) as u64
    }

    /// Returns the rows below a root, as far as links lead.
    fn walk(
        &self,
        root: u32,
        seen: &mut BTreeSet<u64>,
        undone: &Changes<'_>,
        whole: &mut bool,
        found: &mut Salvaged,
    ) -> Rows {
        let (mut rows, mut next) = (Rows::new(), vec![u64::from(root)]);
        while let Some(number) = next.pop() {
            if !seen.insert(number) {
                continue;
            }
            let words = self.words(number);
            let node = words.as_ref().and_then(|words| Node::of(&words[..]));
            let Some(node) = node.filter(|node| node.verify().is_ok()) else {
                *whole = false;
                found.lost.push(number);
                continue;
            };
            next.extend(node.right().flatten());
            match node.kind() {
                PageKind::Inner => {
                    next.extend((0..node.count()).filter_map(|index| node.child(index)));
                    next.extend(node.first_child());
                }
                _ => take(&node, undone, &mut rows, found),
            }
        }
        rows
    }

    /// Assigns each leaf without a parent to its table, or to a table of its own.
    fn adopt(
        &self,
        roots: &BTreeMap<u32, Option<String>>,
        torn: &BTreeSet<u32>,
        seen: &BTreeSet<u64>,
        undone: &Changes<'_>,
        tables: &mut Tables,
        found: &mut Salvaged,
    ) {
        let only = torn.first().filter(|_| torn.len() == 1).and_then(|root| roots.get(root));
        for number in (0..self.pages).filter(|number| !seen.contains(number)) {
            let words = self.words(number);
            let node = words.as_ref().and_then(|words| Node::of(&words[..]));
            let Some(node) = node.filter(|node| node.verify().is_ok()) else {
                let lost = words.is_none() && !self.is_blank(number);
                found.lost.extend(lost.then_some(number));
                continue;
            };
            if node.kind() != PageKind::Leaf || node.count() == 0 {
                continue;
            }
            let by_log = self.tree.get(&number);
            let name = match by_log {
                Some(tree) => {
                    roots.get(tree).cloned().or(Some(Some(format!("salvaged-tree-{tree}"))))
                }
                None => only.cloned(),
            };
            let name = name.unwrap_or_else(|| Some(format!("salvaged-page-{number}")));
            let mut rows = Rows::new();
            take(&node, undone, &mut rows, found);
            let table = tables.entry(name).or_default();
            // A record of a linked page is newer than one of an orphan.
            rows.into_iter().for_each(|(key, value)| _ = table.entry(key).or_insert(value));
            found.orphans += 1;
        }
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Reads the records of a leaf, with the old values where the transaction has no commit.
fn take(node: &Node<'_, [u64]>, undone: &Changes<'_>, rows: &mut Rows, found: &mut Salvaged) {
    for index in 0..node.count() {
        let (Some(key), Some(ghost), Some(mut header)) =
            (node.key(index), node.is_ghost(index), node.header(index))
        else {
            continue;
        };
        let Some(mut value) = node.value(index) else { continue };
        let (mut there, mut undo) = (!ghost, false);
        while let Some(change) = undone.get(&header.lsn()).and_then(|change| Change::decode(change))
        {
            let mut older = value.clone();
            let Some((was, had)) = change.earlier(&mut older) else {
                // The value is not the one that this change made.
                there = false;
                found.cut += 1;
                break;
            };
            // A record must lead to an older one, or to none.
            if was.lsn() >= header.lsn() {
                break;
            }
            (value, header, there, undo) = (older, was, had, true);
        }
        found.undone += u64::from(undo);
        if there {
            rows.insert(key, value);
        }
    }
}
