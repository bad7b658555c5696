//! Modes are data: which conflict, what two of them make together, which are weak.
//!
//! Orientation, everywhere: **held against wanted**. `conflicts(held, wanted)` says that a request
//! for `wanted` waits while another owner holds `held`. Most matrices are symmetric; Berkeley DB's
//! is not (a held WRITE stops a wanted WAIT, a held WAIT stops nobody).

use core::fmt;

use crate::set;

/// The most modes of one set.
pub const MODES_MAX: usize = 16;

/// A mode, by its set and its number there.
///
/// A mode of one [preset](crate::granular) is none of another, nor of a set of one's own: a manager
/// refuses it with [`Error::Mode`](crate::Error::Mode), although it may have a mode of that number.
/// Sets that programs make themselves are not told apart.
///
/// ```text
///  7    4 3      0
/// | set   | number |     set 0: of a program's own
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mode(pub(crate) u8);

impl Mode {
    /// The mode of this number in a set of one's own. A number beyond 15 makes a mode of no set.
    pub const fn new(number: u8) -> Self {
        Self(if number < 16 { number } else { u8::MAX })
    }

    /// The mode of this number in a preset.
    pub(crate) const fn of(set: u8, number: u8) -> Self {
        Self(set | number)
    }

    /// Its number in its set.
    pub const fn number(self) -> u8 {
        self.0 & 15
    }

    /// The preset that it is of, and its name there; none if it is of a set of one's own.
    pub fn preset(self) -> Option<(&'static str, &'static str)> {
        let (preset, names) = set::names(self.0 & !15)?;
        Some((preset, names.get(self.at())?))
    }

    /// The bit that stands for it in a mask of modes.
    #[inline(always)]
    pub const fn bit(self) -> u16 {
        1 << (self.0 & 15)
    }

    #[inline(always)]
    pub(crate) const fn at(self) -> usize {
        (self.0 & 15) as usize
    }
}

/// The name that its preset gives it, or its number.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.preset() {
            Some((_, name)) => f.pad(name),
            None => fmt::Display::fmt(&self.0, f),
        }
    }
}

/// Why a set of modes is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModesError {
    /// None, or more than 16: this many.
    Count(usize),
    /// A table is not total: its name, the entries that it needs, and those that it has.
    NotTotal(&'static str, usize, usize),
    /// An entry of the conversion table names no mode: held, wanted.
    NoSuchMode(Mode, Mode),
    /// What the conversion table makes of these two, held and wanted, conflicts with less than
    /// they do.
    TooWeak(Mode, Mode),
    /// No table was given, and no mode conflicts with all that these two conflict with.
    NoJoin(Mode, Mode),
    /// These two are declared weak and conflict.
    WeakConflict(Mode, Mode),
    /// These two are declared weak, and what they convert to is not.
    WeakConvert(Mode, Mode),
    /// A mask names modes that are not there.
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
            Self::Mask(mask) => write!(f, "mask {mask:#06x} names modes that are not there"),
        }
    }
}

impl core::error::Error for ModesError {}

/// What a set of modes is made from. Tables are row by row: row held, column wanted.
#[derive(Clone, Copy, Debug)]
pub struct ModesSpec<'a> {
    /// A name for each mode; their count is the count of modes.
    pub names: &'a [&'static str],
    /// Not zero where the held mode (row) stops the wanted one (column).
    pub conflicts: &'a [u8],
    /// The mode that an owner of `held` (row) has after it was granted `wanted` (column). Without
    /// it, the one with the fewest conflicts that has all conflicts of both.
    pub convert: Option<&'a [u8]>,
    /// A mask of modes none of which conflicts with another or itself, and of which each two
    /// convert to one of them: the ones that are taken in the owner's own memory. Zero for none.
    pub weak: u16,
    /// A mask of modes that write: those that `release_reads` keeps, and that victims are counted
    /// by.
    pub writes: u16,
}

/// A checked set of up to 16 modes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modes {
    /// Its number: see `set.rs`.
    set: u8,
    names: Vec<&'static str>,
    /// By held mode: the wanted ones that it stops.
    stops: [u16; MODES_MAX],
    /// By wanted mode: the held ones that stop it.
    stopped_by: [u16; MODES_MAX],
    convert: [[u8; MODES_MAX]; MODES_MAX],
    weak: u16,
    writes: u16,
}

/// Changes when the manager comes to lie otherwise in its region, to hash otherwise, or to rely on
/// what processes of an older build do not do.
const LAYOUT: u64 = 11;

impl Modes {
    /// Checks and builds a set.
    ///
    /// # Errors
    ///
    /// [`ModesError`], which names the entry.
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

    /// The same modes, as those of a preset.
    pub(crate) fn of_set(mut self, set: u8) -> Self {
        self.set = set;
        self
    }

    fn made_of(&self, a: Mode, b: Mode, table: Option<&[u8]>) -> Result<u8, ModesError> {
        let n = self.len();
        let Some(table) = table else {
            let joins = self.each().filter(|c| self.covers(*c, a) && self.covers(*c, b));
            // Prefer one of the two, then the one with the fewest conflicts.
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

    /// Whether `strong` conflicts with all that `other` conflicts with, held and wanted.
    pub fn covers(&self, strong: Mode, other: Mode) -> bool {
        let (strong, other) = (strong.at(), other.at());
        self.stops[other] & !self.stops[strong] == 0
            && self.stopped_by[other] & !self.stopped_by[strong] == 0
    }

    /// How many modes there are.
    #[allow(clippy::len_without_is_empty, reason = "a set of modes is never empty")]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// All modes, by number.
    pub fn each(&self) -> impl Iterator<Item = Mode> + use<> {
        let set = self.set;
        (0..self.names.len() as u8).map(move |number| Mode::of(set, number))
    }

    /// Whether a mode is in the set.
    #[inline(always)]
    pub fn has(&self, mode: Mode) -> bool {
        // One of another set has other high bits, and one of a lower set wraps.
        usize::from(mode.0.wrapping_sub(self.set)) < self.names.len()
    }

    /// A mode's name; `?` for one that is not in the set.
    pub fn name(&self, mode: Mode) -> &'static str {
        if self.has(mode) { self.names[mode.at()] } else { "?" }
    }

    /// The mode with this name.
    pub fn by_name(&self, name: &str) -> Option<Mode> {
        self.names.iter().position(|known| *known == name).map(|at| Mode::of(self.set, at as u8))
    }

    /// Whether a request for `wanted` waits while another holds `held`.
    #[inline(always)]
    pub fn conflicts(&self, held: Mode, wanted: Mode) -> bool {
        self.stops[held.at()] & wanted.bit() != 0
    }

    /// The held modes that stop `wanted`, as a mask.
    #[inline(always)]
    pub fn stopped_by(&self, wanted: Mode) -> u16 {
        self.stopped_by[wanted.at()]
    }

    /// The modes of which one of two requests waits for the other, as a mask: conflict in either
    /// orientation. By this a request stays behind an earlier one.
    #[inline(always)]
    pub fn clash(&self, mode: Mode) -> u16 {
        self.stopped_by[mode.at()] | self.stops[mode.at()]
    }

    /// What an owner of `held` has after it was granted `wanted`.
    #[inline(always)]
    pub fn convert(&self, held: Mode, wanted: Mode) -> Mode {
        Mode::of(self.set, self.convert[held.at()][wanted.at()])
    }

    /// Whether this mode is taken in the owner's own memory.
    #[inline(always)]
    pub fn is_weak(&self, mode: Mode) -> bool {
        self.weak & mode.bit() != 0
    }

    /// The weak modes.
    pub(crate) fn weak_mask(&self) -> u16 {
        self.weak
    }

    /// Whether all modes of a mask are weak.
    #[inline(always)]
    pub(crate) fn all_weak(&self, mask: u16) -> bool {
        mask & !self.weak == 0
    }

    /// Whether this mode writes.
    #[inline(always)]
    pub fn is_write(&self, mode: Mode) -> bool {
        self.writes & mode.bit() != 0
    }

    /// The same modes, of which others are weak: for multi-granularity locks, say, IS and S where
    /// whole objects are mostly read, in place of IS and IX.
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

    /// A number that differs for sets that differ and for layouts that do, so that processes with
    /// different ones do not share a region. Never zero.
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
