//! Names for return addresses: function, and file and line where a program has them.

use std::collections::HashMap;
use std::fs;

use addr2line::Loader;
use latchwork_profile::Snapshot;

use crate::output::{head, tail};
use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};

/// Files larger than this are not read for names.
const FILE_MAX: u64 = 2 << 30;

/// What an address is called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Name {
    /// The function, if known.
    pub(crate) function: Option<String>,
    /// `file:line`, if known.
    pub(crate) line: Option<String>,
    /// The program's or library's file, and the place in it.
    pub(crate) module: Option<String>,
}

impl Name {
    /// The function and where that is, in at most `width` columns.
    pub(crate) fn text(&self, width: usize) -> String {
        let Some(function) = &self.function else {
            return tail(self.module.as_deref().unwrap_or("?"), width);
        };
        let file = self.module.as_ref().and_then(|module| module.split('+').next());
        let place = self.line.as_deref().or(file).unwrap_or_default();
        // The function is worth more than its place, down to a third of the room.
        let left = width.saturating_sub(function.chars().count() + 1).max(width / 3);
        let place = tail(place, left);
        let function = head(function, width.saturating_sub(place.chars().count() + 1).max(8));
        format!("{function} {place}")
    }
}

/// The code files that were opened.
#[derive(Default)]
pub(crate) struct Symbols {
    modules: HashMap<String, Option<Module>>,
}

struct Module {
    loader: Option<Loader>,
    /// File offset, size, address: what is loaded.
    segments: Vec<(u64, u64, u64)>,
    /// Functions that the file exports, by address: all that a stripped file has.
    exports: Vec<(u64, u64, String)>,
}

impl Symbols {
    /// The name of a return address.
    pub(crate) fn name(&mut self, snapshot: &Snapshot, address: u64) -> Name {
        // The call is before what it returns to.
        let Some((mapping, offset)) = snapshot.place(address.saturating_sub(1)) else {
            return Name::default();
        };
        let file = mapping.path.rsplit('/').next().unwrap_or_default();
        let module = Some(format!("{file}+{offset:#x}"));
        let opened = self.modules.entry(mapping.path.clone()).or_insert_with_key(|path| open(path));
        let Some(found) = opened else { return Name { module, ..Name::default() } };
        let Some(probe) = found.address(offset) else { return Name { module, ..Name::default() } };
        let (function, line) = found.look_up(probe);
        Name { function, line, module }
    }
}

fn open(path: &str) -> Option<Module> {
    let file = fs::metadata(path).ok()?;
    if !file.is_file() || file.len() > FILE_MAX {
        return None;
    }
    let bytes = fs::read(path).ok()?;
    let object = object::File::parse(&*bytes).ok()?;
    let segments = object
        .segments()
        .map(|segment| {
            let (offset, size) = segment.file_range();
            (offset, size, segment.address())
        })
        .collect();
    let mut exports: Vec<_> = object
        .dynamic_symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
        .filter_map(|symbol| {
            Some((symbol.address(), symbol.size(), symbol.name().ok()?.to_owned()))
        })
        .collect();
    exports.sort();
    Some(Module { loader: Loader::new(path).ok(), segments, exports })
}

impl Module {
    /// The address that the file gives to the byte at `offset`.
    fn address(&self, offset: u64) -> Option<u64> {
        let (from, _, address) =
            self.segments.iter().find(|(from, size, _)| offset.wrapping_sub(*from) < *size)?;
        (offset - from).checked_add(*address)
    }

    fn look_up(&self, probe: u64) -> (Option<String>, Option<String>) {
        let loader = self.loader.as_ref();
        let line = loader.and_then(|loader| loader.find_location(probe).ok().flatten());
        let line = line.and_then(|at| {
            let file = at.file?.rsplit('/').next()?.to_owned();
            Some(format!("{file}:{}", at.line?))
        });
        let symbol = loader.and_then(|loader| loader.find_symbol(probe)).or_else(|| {
            let after = self.exports.partition_point(|(address, _, _)| *address <= probe);
            let (address, size, name) = self.exports.get(after.checked_sub(1)?)?;
            (probe - address < *size).then_some(name.as_str())
        });
        let function = symbol.map(|name| addr2line::demangle_auto(name.into(), None).into_owned());
        (function.map(|name| printable(&name)), line.map(|name| printable(&name)))
    }
}

/// A file's own words, without what would steer a terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}
