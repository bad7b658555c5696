//! Sets of modes, as data: which modes conflict, which mode two of them combine to, which are weak.
//!
//! All tables are **held against wanted**: `conflicts(held, wanted)` means that a request for
//! `wanted` waits while another owner holds `held`. Most matrices are symmetric; Berkeley DB's is
//! not (a held WRITE blocks a wanted WAIT, a held WAIT blocks nothing).

use core::fmt;

use crate::set;

/// The largest number of modes in a set.
pub const MODES_MAX: usize = 16;

/// A mode: the number of its set, and its number in the set.
///
/// A mode of one [preset](crate::granular) belongs to no other preset and to no set that a program
/// defines: a manager of another set refuses it with [`Error::Mode`](crate::Error::Mode), although
/// it may have a mode of that number. Sets that programs define are not distinguished from each
/// other.
///
/// ```text
///  7    4 3      0
/// | set   | number |     set 0: defined by a program
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mode(pub(crate) u8);

impl Mode {
    /// Creates the mode of this number in a set that a program defines. A number beyond 15 gives a
    /// mode of no set.
    pub const fn new(number: u8) -> Self {
        Self(if number < 16 { number } else { u8::MAX })
    }

    /// Creates the mode of this number in a preset.
    pub(crate) const fn of(set: u8, number: u8) -> Self {
        Self(set | number)
    }

    /// Returns its number in its set.
    pub const fn number(self) -> u8 {
        self.0 & 15
    }

    /// Returns its preset and its name there, or `None` if a program defined its set.
    pub fn preset(self) -> Option<(&'static str, &'static str)> {
        let (preset, names) = set::names(self.0 & !15)?;
        Some((preset, names.get(self.at())?))
    }

    /// Returns its bit in a mask of modes.
    #[inline(always)]
    pub const fn bit(self) -> u16 {
        1 << (self.0 & 15)
    }

    #[inline(always)]
    pub(crate) const fn at(self) -> usize {
        (self.0 & 15) as usize
    }
}

/// Displays the name that its preset gives it, or its number.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.preset() {
            Some((_, name)) => f.pad(name),
            None => fmt::Display::fmt(&self.0, f),
        }
    }
}

/// Why [`Modes::new`] refused a set of modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModesError {
    /// The set has no modes, or more than 16. Holds the number.
    Count(usize),
    /// A table has the wrong size: its name, the number of entries that it needs, and the number
    /// that it has.
    NotTotal(&'static str, usize, usize),
    /// An entry of the conversion table names no mode: held, wanted.
    NoSuchMode(Mode, Mode),
    /// The conversion of these two modes, held and wanted, conflicts with less than they do.
    TooWeak(Mode, Mode),
    /// Without a conversion table: no mode conflicts with everything that these two conflict with.
    NoJoin(Mode, Mode),
    /// These two modes are declared weak, but conflict.
    WeakConflict(Mode, Mode),
    /// These two modes are declared weak, but convert to a mode that is not weak.
    WeakConvert(Mode, Mode),
    /// A mask names modes outside the set.
    Mask(u16),
}

impl fmt::Display for ModesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(n) => write!(f, "{n} modes: must be 1 to {MODES_MAX}"),
            Self::NotTotal(what, needed, found) => {
                write!(f, "the {what} table has {found} entries, it needs {needed}")
            }
            Self::NoSuchMode(a, b) => {
                write!(f, "modes {a} and {b} convert to no mode of the set")
            }
            Self::TooWeak(a, b) => {
                write!(f, "modes {a} and {b} convert to one that conflicts with less")
            }
            Self::NoJoin(a, b) => write!(f, "no mode covers both {a} and {b}"),
            Self::WeakConflict(a, b) => write!(f, "weak modes {a} and {b} conflict"),
            Self::WeakConvert(a, b) => {
                write!(f, "weak modes {a} and {b} convert to one that is not weak")
            }
            Self::Mask(mask) => write!(f, "mask {mask:#06x} names modes outside the set"),
        }
    }
}

impl core::error::Error for ModesError {}

/// The definition of a set of modes. Tables are row by row: row held, column wanted.
#[derive(Clone, Copy, Debug)]
pub struct ModesSpec<'a> {
    /// A name for each mode; their number is the number of modes.
    pub names: &'a [&'static str],
    /// Not zero where the held mode (row) blocks the wanted one (column).
    pub conflicts: &'a [u8],
    /// The mode that an owner of `held` (row) has after it was granted `wanted` (column). Without a
    /// table: the mode with the fewest conflicts that has all conflicts of both.
    pub convert: Option<&'a [u8]>,
    /// A mask of the modes that are locked in the owner's own memory. No two of them may conflict,
    /// nor one with itself, and any two of them must convert to one of them. Zero for none.
    pub weak: u16,
    /// A mask of the modes that write: `release_reads` keeps them, and two deadlock policies count
    /// them.
    pub writes: u16,
}

/// A checked set of up to 16 modes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modes {
    /// The number of the set: see `set.rs`.
    set: u8,
    names: Vec<&'static str>,
    /// By held mode: the wanted modes that it blocks.
    stops: [u16; MODES_MAX],
    /// By wanted mode: the held modes that block it.
    stopped_by: [u16; MODES_MAX],
    convert: [[u8; MODES_MAX]; MODES_MAX],
    weak: u16,
    writes: u16,
}

/// Must change when the layout of the manager in its region or the hash changes, or when the
/// manager relies on behavior that processes of an older build do not have.
const LAYOUT: u64 = 12;

impl Modes {
    /// Checks and builds a set of modes.
    ///
    /// # Errors
    ///
    /// [`ModesError`], which names the wrong entry.
    pub fn new(spec: &ModesSpec<'_>) -> Result<Self, ModesError> {
        let n = spec.names.len();
        if n == 0 || n > MODES_MAX {
            return Err(ModesError::Count(n));
        }
        if spec.conflicts.len() != n * n {
            return Err(ModesError::NotTotal("conflict", n * n, spec.conflicts.len()));
        }
        let all = (((1u32 << n) - 1) & 0xffff) as u16;
        if let Some(mask) = [spec.weak, spec.writes].into_iter().find(|mask| mask & !all != 0) {
            return Err(ModesError::Mask(mask));
        }
        let mut modes = Self {
            set: set::OWN,
            names: spec.names.to_vec(),
            stops: [0; MODES_MAX],
            stopped_by: [0; MODES_MAX],
            convert: [[0; MODES_MAX]; MODES_MAX],
            weak: spec.weak,
            writes: spec.writes,
        };
        for held in 0..n {
            for wanted in (0..n).filter(|wanted| spec.conflicts[held * n + wanted] != 0) {
                modes.stops[held] |= 1 << wanted;
                modes.stopped_by[wanted] |= 1 << held;
            }
        }
        for a in modes.each() {
            for b in modes.each() {
                modes.convert[a.at()][b.at()] = modes.made_of(a, b, spec.convert)?;
            }
        }
        modes.with_weak(spec.weak)
    }

    /// Returns the same modes as the modes of a preset.
    pub(crate) fn of_set(mut self, set: u8) -> Self {
        self.set = set;
        self
    }

    fn made_of(&self, a: Mode, b: Mode, table: Option<&[u8]>) -> Result<u8, ModesError> {
        let n = self.len();
        let Some(table) = table else {
            let joins = self.each().filter(|c| self.covers(*c, a) && self.covers(*c, b));
            // Prefer one of the two, then the mode with the fewest conflicts.
            let least =
                joins.min_by_key(|c| (*c != a && *c != b, self.stops[c.at()].count_ones(), c.0));
            return least.map(Mode::number).ok_or(ModesError::NoJoin(a, b));
        };
        if table.len() != n * n {
            return Err(ModesError::NotTotal("conversion", n * n, table.len()));
        }
        let made = Mode::new(table[a.at() * n + b.at()]);
        if usize::from(made.0) >= n {
            return Err(ModesError::NoSuchMode(a, b));
        }
        if !self.covers(made, a) || !self.covers(made, b) {
            return Err(ModesError::TooWeak(a, b));
        }
        Ok(made.0)
    }

    /// Returns whether `strong` conflicts with everything that `other` conflicts with, held and
    /// wanted.
    pub fn covers(&self, strong: Mode, other: Mode) -> bool {
        let (strong, other) = (strong.at(), other.at());
        self.stops[other] & !self.stops[strong] == 0
            && self.stopped_by[other] & !self.stopped_by[strong] == 0
    }

    /// Returns the number of modes.
    #[allow(clippy::len_without_is_empty, reason = "a set of modes is never empty")]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns all modes, by number.
    pub fn each(&self) -> impl Iterator<Item = Mode> + use<> {
        let set = self.set;
        (0..self.names.len() as u8).map(move |number| Mode::of(set, number))
    }

    /// Returns whether a mode is in the set.
    #[inline(always)]
    pub fn has(&self, mode: Mode) -> bool {
        // A mode of a higher set has other high bits, and the subtraction wraps for a mode of a
        // lower set.
        usize::from(mode.0.wrapping_sub(self.set)) < self.names.len()
    }

    /// Returns a mode's name, or `?` if it is not in the set.
    pub fn name(&self, mode: Mode) -> &'static str {
        if self.has(mode) { self.names[mode.at()] } else { "?" }
    }

    /// Returns the mode with this name.
    pub fn by_name(&self, name: &str) -> Option<Mode> {
        self.names.iter().position(|known| *known == name).map(|at| Mode::of(self.set, at as u8))
    }

    /// Returns whether a request for `wanted` waits while another owner holds `held`.
    #[inline(always)]
    pub fn conflicts(&self, held: Mode, wanted: Mode) -> bool {
        self.stops[held.at()] & wanted.bit() != 0
    }

    /// Returns the held modes that block `wanted`, as a mask.
    #[inline(always)]
    pub fn stopped_by(&self, wanted: Mode) -> u16 {
        self.stopped_by[wanted.at()]
    }

    /// Returns the modes that conflict with this one in either orientation, as a mask. A request
    /// stays behind an earlier waiter for one of these modes.
    #[inline(always)]
    pub fn clash(&self, mode: Mode) -> u16 {
        self.stopped_by[mode.at()] | self.stops[mode.at()]
    }

    /// Returns the mode that an owner of `held` has after it was granted `wanted`.
    #[inline(always)]
    pub fn convert(&self, held: Mode, wanted: Mode) -> Mode {
        Mode::of(self.set, self.convert[held.at()][wanted.at()])
    }

    /// Returns whether this mode is locked in the owner's own memory.
    #[inline(always)]
    pub fn is_weak(&self, mode: Mode) -> bool {
        self.weak & mode.bit() != 0
    }

    /// Returns the weak modes, as a mask.
    pub(crate) fn weak_mask(&self) -> u16 {
        self.weak
    }

    /// Returns whether all modes of a mask are weak.
    #[inline(always)]
    pub(crate) fn all_weak(&self, mask: u16) -> bool {
        mask & !self.weak == 0
    }

    /// Returns whether this mode writes.
    #[inline(always)]
    pub fn is_write(&self, mode: Mode) -> bool {
        self.writes & mode.bit() != 0
    }

    /// Returns the same modes with other weak modes. For granular locks, for example, IS and S
    /// instead of IS and IX pay off if whole objects are mostly read.
    ///
    /// # Errors
    ///
    /// [`ModesError::WeakConflict`], [`ModesError::WeakConvert`], [`ModesError::Mask`].
    pub fn with_weak(mut self, weak: u16) -> Result<Self, ModesError> {
        let all = (((1u32 << self.len()) - 1) & 0xffff) as u16;
        if weak & !all != 0 {
            return Err(ModesError::Mask(weak));
        }
        for a in self.each().filter(|m| weak & m.bit() != 0) {
            for b in self.each().filter(|m| weak & m.bit() != 0) {
                if self.conflicts(a, b) {
                    return Err(ModesError::WeakConflict(a, b));
                }
                if weak & self.convert(a, b).bit() == 0 {
                    return Err(ModesError::WeakConvert(a, b));
                }
            }
        }
        self.weak = weak;
        Ok(self)
    }

    /// Returns a number that identifies the modes and the layout, so that processes with different
    /// ones do not share a region. Never zero.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut sum = LAYOUT.rotate_left(48)
            ^ self.len() as u64
            ^ (u64::from(self.set) << 24)
            ^ (u64::from(self.weak) << 32)
            ^ (u64::from(self.writes) << 8);
        let rows = self.stops.iter().map(|row| u64::from(*row));
        let converts = self.convert.iter().flatten().map(|mode| u64::from(*mode));
        for part in rows.chain(converts) {
            sum = (sum ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        }
        sum | 1
    }
}
