//! A viewed region, and the meaning of its names.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail};
use latchwork_lockmgr::{
    Edge, LockInfo, Manager, Mode, Modes, OwnerId, RangeInfo, RangeKind, Snapshot, View, berkeley,
    granular, postgres, shared,
};
use latchwork_machine::Shared;
use latchwork_region::{Options, Region};
use latchwork_store::{LockNames, StoreView};
use serde::Serialize;
use serde_json::{Value, json};

use crate::store::region_of;

/// The file's permissions decide which users may look.
fn options() -> Options {
    Options { mode: 0o777, ..Options::default() }
}

/// A view of a manager in a file.
pub(super) struct Scene {
    pub(super) view: View<Shared>,
    /// Its modes and their names, if this program knows them.
    pub(super) modes: Option<(&'static str, Modes)>,
    /// By thread slot: pid, and whether it is alive.
    people: HashMap<u32, Person>,
    /// Retained thread slots, of prepared transactions.
    retained: HashSet<u32>,
    /// The region's file.
    path: PathBuf,
    /// The names of a store's locks, if the region belongs to a store.
    names: Option<LockNames>,
}

/// The process of a thread slot.
#[derive(Clone, Copy)]
pub(super) struct Person {
    pub(super) pid: u32,
    pub(super) alive: bool,
}

impl Scene {
    /// Opens a view.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let path = &region_of(path)?;
        let name = || path.display().to_string();
        let region = Region::<Shared>::view(path, &options()).with_context(name)?;
        let Some(view) = View::new(region).with_context(name)? else {
            bail!("{}: a region, but no lock manager lies in it", name());
        };
        let modes = known(&view);
        let (people, path) = (HashMap::new(), path.clone());
        let retained = HashSet::new();
        let mut scene = Self { view, modes, people, retained, path, names: None };
        scene.greet()?;
        Ok(scene)
    }

    /// Reads the processes again.
    pub(super) fn greet(&mut self) -> anyhow::Result<()> {
        let region = self.view.region();
        region.refresh()?;
        let processes = region.processes();
        let person = |slot: u32, generation: u32| {
            let here = processes.iter().find(|process| process.slot == slot);
            let same = here.filter(|process| process.generation == generation);
            same.map_or(Person { pid: 0, alive: false }, |p| Person { pid: p.pid, alive: p.alive })
        };
        let retained = region.threads().filter(|thread| thread.retained);
        self.retained = retained.map(|thread| thread.slot).collect();
        let threads = region.threads();
        self.people = threads.map(|t| (t.slot, person(t.process, t.process_generation))).collect();
        let folder = latchwork_store::store_of_region(&self.path);
        let store = StoreView::of_region(region, folder.as_deref()).ok().flatten();
        self.names = store.map(|store| store.lock_names()).transpose()?;
        Ok(())
    }

    /// Describes a lock's object: in a store `table/key`.
    pub(super) fn of(&self, row: &LockInfo) -> String {
        self.object(&row.object, row.range.as_ref())
    }

    /// Describes an object by its name.
    pub(super) fn object(&self, name: &[u8], range: Option<&RangeInfo>) -> String {
        let Some(names) = &self.names else { return seen_by(name) };
        // The description of a range that has ended: its keyspace, and the rest as text.
        if let (None, Some((tree, rest))) = (range, name.split_at_checked(4))
            && RangeKind::ALL
                .iter()
                .any(|kind| rest.starts_with(format!(" {} ", kind.name()).as_bytes()))
        {
            return format!("{}/{}", clean(&names.of(tree, None).0), seen_by(rest).trim_start());
        }
        let (table, key) = names.of(name, range);
        clean(&format!("{table}/{key}"))
    }

    /// Returns whether a row belongs to the object with this name.
    pub(super) fn is_called(&self, row: &LockInfo, name: &ObjectName) -> bool {
        let called = || seen_by(&name.0);
        let by_key = |names: &LockNames| names.of(&row.object, row.range.as_ref()).1 == called();
        row.object == name.0 || self.of(row) == called() || self.names.as_ref().is_some_and(by_key)
    }

    /// Reads the content.
    pub(super) fn look(&self) -> anyhow::Result<Snapshot> {
        Ok(self.view.look()?)
    }

    /// Returns the edges of waits.
    pub(super) fn edges(&self, picture: &Snapshot) -> Vec<Edge> {
        picture.edges(self.modes.as_ref().map(|(_, modes)| modes))
    }

    /// Returns a mode's name, or its number if the manager's modes are unknown.
    pub(super) fn mode(&self, mode: Mode) -> String {
        match &self.modes {
            Some((_, modes)) => modes.name(mode).to_owned(),
            None => mode.to_string(),
        }
    }

    /// Returns the usual name of the modes.
    pub(super) fn modes_name(&self) -> &'static str {
        self.modes.as_ref().map_or("of its own", |(name, _)| name)
    }

    /// Returns the process of a row's thread; none for orphans.
    pub(super) fn person(&self, thread: Option<u32>) -> Option<Person> {
        thread.and_then(|thread| self.people.get(&thread)).copied().filter(|person| person.pid != 0)
    }

    /// Describes a process and thread for display.
    pub(super) fn place(&self, thread: Option<u32>) -> String {
        match (thread, self.person(thread)) {
            (None, _) => "orphaned".to_owned(),
            (Some(thread), Some(Person { pid, alive: true })) => format!("{pid}/{thread}"),
            (Some(thread), Some(Person { pid, alive: false })) => format!("{pid}/{thread} dead"),
            (Some(thread), None) if self.retained.contains(&thread) => format!("kept/{thread}"),
            (Some(thread), None) => format!("?/{thread} dead"),
        }
    }

    /// Returns a row for programs.
    pub(super) fn line<'a>(&self, row: &'a LockInfo) -> Line<'a> {
        let person = self.person(row.thread);
        Line {
            object: self.of(row),
            owner: row.owner.to_string(),
            label: &row.label,
            pid: person.map(|person| person.pid),
            thread: row.thread,
            alive: person.is_some_and(|person| person.alive),
            orphaned: row.thread.is_none(),
            held: row.held.map(|mode| self.mode(mode)),
            wanted: row.wanted.map(|mode| self.mode(mode)),
            count: row.count,
            weak: row.weak,
            waited_ns: row.wanted.map(|_| row.waited_ns),
        }
    }
}

/// A held or requested lock, for programs.
#[derive(Serialize)]
pub(super) struct Line<'a> {
    object: String,
    owner: String,
    label: &'a str,
    pid: Option<u32>,
    thread: Option<u32>,
    alive: bool,
    orphaned: bool,
    held: Option<String>,
    wanted: Option<String>,
    count: u32,
    weak: bool,
    waited_ns: Option<u64>,
}

/// The sets of modes that have names here, with any of their modes weak.
fn known(view: &View<Shared>) -> Option<(&'static str, Modes)> {
    let sets = [
        ("granular", granular::modes()),
        ("shared", shared::modes()),
        ("berkeley", berkeley::modes()),
        ("berkeley concurrent", berkeley::concurrent()),
        ("postgres", postgres::modes()),
    ];
    sets.into_iter().find_map(|(name, modes)| {
        let mut weak = (0..1u16 << modes.len()).filter_map(|m| modes.clone().with_weak(m).ok());
        weak.find(|modes| view.has(modes)).map(|modes| (name, modes))
    })
}

/// Aborts an owner.
///
/// The manager is opened without a recovery callback: the region would remember one, and from then
/// on keep the locks of each process that dies. A thread that takes a latch may first have to sweep
/// dead processes, which is not this program's task, so it fails if a dead process holds a latch.
pub(super) fn kill(scene: &Scene, owner: OwnerId) -> anyhow::Result<()> {
    let path = &scene.path;
    let name = || path.display().to_string();
    let Some((_, modes)) = &scene.modes else {
        bail!("{}: its modes are of its own; only a program that has them can do this", name());
    };
    for (partition, thread) in scene.view.latched()? {
        if !scene.person(Some(thread)).is_some_and(|person| person.alive) {
            bail!(
                "{}: a dead process holds the latch of partition {partition}; \
                 those who use the region must meet it first",
                name()
            );
        }
    }
    let region = Region::<Shared>::open(path, &options()).with_context(name)?;
    let options = latchwork_lockmgr::Options::default();
    let manager = Manager::new(region, modes.clone(), options).with_context(name)?;
    manager.session().with_context(name)?.kill(owner).with_context(name)
}

/// An owner, as written by people.
#[derive(Clone, Copy)]
pub(super) struct OwnerName(pub(super) OwnerId);

impl FromStr for OwnerName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once('.');
        let number = |text: &str| text.parse().map_err(|_| "an owner is two numbers, as in 12.1");
        let (index, generation) = parts.ok_or("an owner is two numbers, as in 12.1")?;
        Ok(Self(OwnerId { index: number(index)?, generation: number(generation)? }))
    }
}

/// Formats a name, with unprintable bytes as `\xNN`.
pub(super) fn seen_by(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '\\' => text.push_str("\\\\"),
                char if char.is_control() => {
                    let mut bytes = [0; 4];
                    for byte in char.encode_utf8(&mut bytes).bytes() {
                        text.push_str(&format!("\\x{byte:02x}"));
                    }
                }
                char => text.push(char),
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

/// A name in the format of `seen_by`.
#[derive(Clone)]
pub(super) struct ObjectName(pub(super) Vec<u8>);

impl FromStr for ObjectName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "after \\ comes \\ or x and two digits, as in \\x07";
        let mut name = Vec::new();
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            if byte != b'\\' {
                name.push(byte);
                continue;
            }
            match rest.next() {
                Some(b'\\') => name.push(b'\\'),
                Some(b'x') => {
                    let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                    let (high, low) = (digit(rest.next()), digit(rest.next()));
                    let (Some(high), Some(low)) = (high, low) else { return Err(WRONG) };
                    name.push((high * 16 + low) as u8);
                }
                _ => return Err(WRONG),
            }
        }
        if name.is_empty() { Err("a name is not empty") } else { Ok(Self(name)) }
    }
}

/// Describes a row's owner.
pub(super) fn named(row: &LockInfo) -> String {
    if row.label.is_empty() {
        row.owner.to_string()
    } else {
        format!("{} {}", row.owner, clean(&row.label))
    }
}

/// Removes terminal control characters from a label.
pub(super) fn clean(label: &str) -> String {
    seen_by(label.as_bytes())
}

/// Returns one end of an edge, for programs.
pub(super) fn end(row: &LockInfo) -> Value {
    json!({"owner": row.owner.to_string(), "label": row.label})
}
