//! One file's bytes: the durable content, the changes since, and what a crash leaves.

use super::random::Random;

/// A change of a file since its last sync.
#[derive(Debug)]
pub(super) enum Change {
    Write { at: usize, bytes: Vec<u8> },
    Length(usize),
}

/// A file's bytes.
#[derive(Debug, Default)]
pub(super) struct Inode {
    /// The content that readers see.
    pub(super) now: Vec<u8>,
    /// The content that is certainly on the disk.
    pub(super) durable: Vec<u8>,
    /// The changes since the last sync, in order.
    pub(super) changes: Vec<Change>,
}

/// What a crash leaves of the changes of one file or folder.
#[derive(Clone, Copy, Debug)]
pub(super) enum Loss {
    /// No change is left.
    All,
    /// All changes are left.
    Nothing,
    /// The first so many are left.
    After(usize),
    /// Each is left or not.
    Some,
    /// Each sector of each is left or not.
    Sectors(usize),
}

impl Loss {
    /// Chooses a loss for `count` changes.
    pub(super) fn of(count: usize, random: &mut Random) -> Self {
        match random.below(6) {
            0 => Self::All,
            1 => Self::Nothing,
            2 => Self::After(random.below(count + 1)),
            3 => Self::Some,
            4 => Self::Sectors(4096),
            _ => Self::Sectors(512),
        }
    }
}

fn put(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if content.len() < at + bytes.len() {
        content.resize(at + bytes.len(), 0);
    }
    content[at..at + bytes.len()].copy_from_slice(bytes);
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write { at, bytes } => put(content, *at, bytes),
            Self::Length(length) => content.resize(*length, 0),
        }
    }

    /// Applies each sector of a write, or not.
    fn tear(&self, content: &mut Vec<u8>, sector: usize, random: &mut Random) {
        let Self::Write { at, bytes } = self else {
            if random.coin() {
                self.apply(content);
            }
            return;
        };
        let mut done = 0;
        while done < bytes.len() {
            let next = ((at + done) / sector + 1) * sector - at;
            let end = next.min(bytes.len());
            if random.coin() {
                put(content, at + done, &bytes[done..end]);
            }
            done = end;
        }
    }
}

/// Chooses one of the lengths that a file had, or one between two of them: a file system may grow a
/// file in steps of a sector.
fn torn_length(lengths: &[usize], sector: usize, random: &mut Random) -> usize {
    let at = random.below(lengths.len());
    let (before, after) = (lengths[at.saturating_sub(1)], lengths[at]);
    let steps = after.saturating_sub(before) / sector;
    if steps == 0 || random.coin() { after } else { before + random.below(steps + 1) * sector }
}

impl Inode {
    pub(super) fn change(&mut self, change: Change) {
        change.apply(&mut self.now);
        self.changes.push(change);
    }

    pub(super) fn sync(&mut self) {
        for change in self.changes.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    /// Applies a failed sync: any part of the unsynced changes is on the disk, by `random`, and the
    /// rest never is. Readers see all of it.
    pub(super) fn fail_sync(&mut self, random: &mut Random) {
        self.keep_some(random);
    }

    /// Makes readers see the disk's content, and changes that no sync has handled yet. The length
    /// is the system's own and stays.
    pub(super) fn drop_cache(&mut self) {
        let length = self.now.len();
        self.now.clone_from(&self.durable);
        self.changes.iter().for_each(|change| change.apply(&mut self.now));
        self.now.resize(length, 0);
    }

    /// Loses unsynced changes, by `random`.
    pub(super) fn crash(&mut self, random: &mut Random) {
        self.keep_some(random);
        self.now.clone_from(&self.durable);
    }

    /// Makes any part of the changes durable, by `random`, and drops the others.
    fn keep_some(&mut self, random: &mut Random) {
        let changes = core::mem::take(&mut self.changes);
        let mut content = core::mem::take(&mut self.durable);
        let mut lengths = vec![content.len()];
        let mut length = content.len();
        for change in &changes {
            length = match change {
                Change::Write { at, bytes } => length.max(at + bytes.len()),
                Change::Length(length) => *length,
            };
            lengths.push(length);
        }
        match Loss::of(changes.len(), random) {
            Loss::All => {}
            Loss::Nothing => changes.iter().for_each(|change| change.apply(&mut content)),
            Loss::After(count) => {
                changes[..count].iter().for_each(|change| change.apply(&mut content));
                if let Some(last) = changes.get(count) {
                    last.tear(&mut content, 512, random);
                }
            }
            Loss::Some => {
                changes.iter().filter(|_| random.coin()).for_each(|c| c.apply(&mut content));
                content.resize(lengths[random.below(lengths.len())], 0);
            }
            Loss::Sectors(sector) => {
                changes.iter().for_each(|change| change.tear(&mut content, sector, random));
                content.resize(torn_length(&lengths, sector, random), 0);
            }
        }
        self.durable = content;
    }
}
