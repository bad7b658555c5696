//! Names of addresses: the function of code, with file and line where available, and the variable
//! of data.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::rc::Rc;

use addr2line::Loader;
use latchwork_profile::{Mapping, Snapshot};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

use crate::output::{head, tail};
use crate::wrappers::is_wrapper;

/// Larger files are not read for names.
const FILE_MAX: u64 = 2 << 30;

/// The name of an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    /// The function, if known.
    pub(crate) function: Option<String>,
    /// `file:line`, if known.
    pub(crate) line: Option<String>,
    /// The program's or library's file, and the offset in it.
    pub(crate) module: Option<String>,
    /// Whether it is only a way to lock, see `wrappers.rs`.
    pub(crate) wrapper: bool,
}

impl Name {
    /// Formats the function and its place in at most `width` columns.
    pub(crate) fn text(&self, width: usize) -> String {
        let Some(function) = &self.function else {
            return tail(self.module.as_deref().unwrap_or("?"), width);
        };
        let file = self.module.as_ref().and_then(|module| module.split('+').next());
        let place = self.line.as_deref().or(file).unwrap_or_default();
        if width == usize::MAX {
            return format!("{function} {place}");
        }
        // The function has precedence over its place, down to a third of the width.
        let left = width.saturating_sub(function.chars().count() + 1).max(width / 3);
        let place = tail(place, left);
        let function = head(function, width.saturating_sub(place.chars().count() + 1).max(8));
        format!("{function} {place}")
    }
}

/// The opened code files.
#[derive(Default)]
pub(crate) struct Symbols {
    modules: HashMap<String, Option<Module>>,
}

/// A section that is used unchanged.
pub(crate) struct Section {
    pub(crate) range: Range<u64>,
    pub(crate) bytes: Rc<[u8]>,
}

/// A symbol: address, size, name.
type Symbol = (u64, u64, String);

/// The content of a code file.
pub(crate) struct Module {
    loader: Option<Loader>,
    segments: Vec<Segment>,
    /// Functions that the file exports, by address: all that a stripped file has.
    exports: Vec<Symbol>,
    /// Variables, by address.
    variables: Vec<Symbol>,
    /// The unwind tables and their index.
    pub(crate) eh_frame: Option<Section>,
    pub(crate) eh_frame_hdr: Option<Section>,
}

/// A loaded segment: its position in the file and in memory.
struct Segment {
    offset: u64,
    size: u64,
    memory: Range<u64>,
    is_code: bool,
}

impl Symbols {
    /// Returns the names of a return address: the functions inlined there, innermost first, then
    /// the function that contains them. Never empty.
    pub(crate) fn frames(&mut self, snapshot: &Snapshot, address: u64) -> Vec<Name> {
        // The call precedes its return address.
        let Some((mapping, offset)) = snapshot.place(address.saturating_sub(1)) else {
            return vec![Name::default()];
        };
        let module = format!("{}+{offset:#x}", file_of(&mapping.path));
        let wrapper = is_wrapper(None, None, &mapping.path);
        let bare = Name { module: Some(module), wrapper, ..Name::default() };
        let Some((found, _)) = self.module(mapping) else { return vec![bare] };
        let Some(probe) = found.address(offset) else { return vec![bare] };
        found.frames(probe, &mapping.path, &bare)
    }

    /// Returns the variable at an address, and its file: `lock in prog`, or `queue+8 in prog`. None
    /// if the address is in no file's data.
    pub(crate) fn variable(&mut self, snapshot: &Snapshot, address: u64) -> Option<String> {
        for mapping in &snapshot.maps {
            let Some((module, base)) = self.module(mapping) else { continue };
            let at = address.wrapping_sub(base);
            if !module.segments.iter().any(|segment| segment.memory.contains(&at)) {
                continue;
            }
            let file = file_of(&mapping.path);
            let name = match covering(&module.variables, at) {
                Some((start, _, name)) if *start == at => printable(&demangled(name)),
                Some((start, _, name)) => {
                    format!("{}+{}", printable(&demangled(name)), at - start)
                }
                None => format!("data+{at:#x}"),
            };
            return Some(format!("{name} in {file}"));
        }
        None
    }

    /// Returns the file of a mapping, and its load offset.
    pub(crate) fn module(&mut self, mapping: &Mapping) -> Option<(&Module, u64)> {
        let opened = self.modules.entry(mapping.path.clone()).or_insert_with_key(|path| open(path));
        let module = opened.as_ref()?;
        let base = mapping.start.wrapping_sub(module.address(mapping.offset)?);
        Some((module, base))
    }
}

fn file_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn open(path: &str) -> Option<Module> {
    let file = fs::metadata(path).ok()?;
    if !file.is_file() || file.len() > FILE_MAX {
        return None;
    }
    let bytes = fs::read(path).ok()?;
    let object = object::File::parse(&*bytes).ok()?;
    let segments = object.segments().map(|segment| {
        let (offset, size) = segment.file_range();
        let end = segment.address().saturating_add(segment.size());
        let object::SegmentFlags::Elf { p_flags } = segment.flags() else {
            return Segment { offset, size, memory: 0..0, is_code: false };
        };
        let is_code = p_flags & object::elf::PF_X != 0;
        Segment { offset, size, memory: segment.address()..end, is_code }
    });
    let section = |name| {
        let section = object.section_by_name(name)?;
        let end = section.address().checked_add(section.size())?;
        Some(Section { range: section.address()..end, bytes: section.data().ok()?.into() })
    };
    Some(Module {
        loader: Loader::new(path).ok(),
        segments: segments.collect(),
        exports: symbols(object.dynamic_symbols(), SymbolKind::Text),
        variables: symbols(object.symbols().chain(object.dynamic_symbols()), SymbolKind::Data),
        eh_frame: section(".eh_frame"),
        eh_frame_hdr: section(".eh_frame_hdr"),
    })
}

/// The defined symbols of a kind, by address.
fn symbols<'a>(all: impl Iterator<Item = object::Symbol<'a, 'a>>, kind: SymbolKind) -> Vec<Symbol> {
    let mut found: Vec<_> = all
        .filter(|symbol| symbol.kind() == kind && symbol.is_definition())
        .filter_map(|symbol| {
            Some((symbol.address(), symbol.size(), symbol.name().ok()?.to_owned()))
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// The symbol that contains an address.
fn covering(symbols: &[Symbol], at: u64) -> Option<&Symbol> {
    let after = symbols.partition_point(|(address, _, _)| *address <= at);
    symbols.get(after.checked_sub(1)?).filter(|(address, size, _)| at - address < *size)
}

impl Module {
    /// The file's address of the code at `offset`. A segment's first page may begin with bytes that
    /// precede it in the file.
    fn address(&self, offset: u64) -> Option<u64> {
        const PAGE: u64 = 4096;
        let segment = self.segments.iter().filter(|segment| segment.is_code).find(|segment| {
            let before = segment.offset % PAGE;
            offset.wrapping_sub(segment.offset - before) < segment.size.saturating_add(before)
        })?;
        Some(segment.memory.start.wrapping_add(offset.wrapping_sub(segment.offset)))
    }

    /// The function at `probe`, after the functions inlined there.
    fn frames(&self, probe: u64, path: &str, bare: &Name) -> Vec<Name> {
        let mut names = Vec::new();
        if let Some(Ok(mut frames)) = self.loader.as_ref().map(|loader| loader.find_frames(probe)) {
            while let Ok(Some(frame)) = frames.next() {
                let function = frame.function.as_ref().and_then(|name| name.raw_name().ok());
                let function = function.map(|name| demangled(&name));
                let at = frame.location.as_ref();
                let source = at.and_then(|at| at.file);
                let line = source.zip(at.and_then(|at| at.line));
                let line = line.map(|(path, line)| format!("{}:{line}", file_of(path)));
                names.push(Name {
                    wrapper: is_wrapper(function.as_deref(), source, path),
                    function: function.map(|name| printable(&name)),
                    line: line.map(|line| printable(&line)),
                    module: bare.module.clone(),
                });
            }
        }
        if names.is_empty() {
            names.push(bare.clone());
        }
        // The function is also known by its symbol, where there are no lines.
        if let Some(outermost) = names.last_mut()
            && outermost.function.is_none()
            && let Some(symbol) = self.symbol(probe)
        {
            let name = demangled(symbol);
            outermost.wrapper |= is_wrapper(Some(&name), None, path);
            outermost.function = Some(printable(&name));
        }
        names
    }

    fn symbol(&self, probe: u64) -> Option<&str> {
        let known = self.loader.as_ref().and_then(|loader| loader.find_symbol(probe));
        known.or_else(|| covering(&self.exports, probe).map(|(_, _, name)| name.as_str()))
    }
}

/// Demangles a name. A short C name can also be the mangled name of a C++ type: `m` would be
/// `unsigned long`.
fn demangled(name: &str) -> String {
    if name.starts_with("_Z") || name.starts_with("_R") {
        return addr2line::demangle_auto(name.into(), None).into_owned();
    }
    name.to_owned()
}

/// A file's text without terminal control characters.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}
