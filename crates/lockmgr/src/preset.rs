//! Presets: the sets of modes of several systems.

use crate::mode::{Mode, Modes, ModesSpec};
use crate::set;

/// Builds a preset. Its tables are constants; the tests build each preset.
fn build(set: u8, spec: &ModesSpec<'_>) -> Modes {
    let modes = Modes::new(spec).unwrap_or_else(|e| panic!("latchwork: a preset is wrong: {e}"));
    modes.of_set(set)
}

/// Multi-granularity locking (Gray, Lorie, Putzolu and Traiger, 1976), with U for transactions that
/// read and may write later. IS and IX are weak.
pub mod granular {
    use super::{Mode, Modes, ModesSpec, build, set};

    #[allow(missing_docs)]
    pub const IS: Mode = Mode::of(set::GRANULAR, 0);
    #[allow(missing_docs)]
    pub const IX: Mode = Mode::of(set::GRANULAR, 1);
    #[allow(missing_docs)]
    pub const S: Mode = Mode::of(set::GRANULAR, 2);
    #[allow(missing_docs)]
    pub const SIX: Mode = Mode::of(set::GRANULAR, 3);
    #[allow(missing_docs)]
    pub const U: Mode = Mode::of(set::GRANULAR, 4);
    #[allow(missing_docs)]
    pub const X: Mode = Mode::of(set::GRANULAR, 5);

    /// Returns IS, IX, S, SIX, U, X. U is compatible with S in both orientations, and conflicts
    /// with itself.
    pub fn modes() -> Modes {
        #[rustfmt::skip]
        let conflicts = [
            // IS IX  S SIX U  X
            0, 0, 0, 0, 0, 1, // IS
            0, 0, 1, 1, 1, 1, // IX
            0, 1, 0, 1, 0, 1, // S
            0, 1, 1, 1, 1, 1, // SIX
            0, 1, 0, 1, 1, 1, // U
            1, 1, 1, 1, 1, 1, // X
        ];
        build(
            set::GRANULAR,
            &ModesSpec {
                names: &set::GRANULAR_NAMES,
                conflicts: &conflicts,
                convert: None,
                weak: IS.bit() | IX.bit(),
                writes: IX.bit() | SIX.bit() | X.bit(),
            },
        )
    }
}

/// Readers and writers. S is weak.
pub mod shared {
    use super::{Mode, Modes, ModesSpec, build, set};

    /// Shared.
    pub const S: Mode = Mode::of(set::SHARED, 0);
    /// Exclusive.
    pub const X: Mode = Mode::of(set::SHARED, 1);

    /// Returns S and X.
    pub fn modes() -> Modes {
        build(
            set::SHARED,
            &ModesSpec {
                names: &set::SHARED_NAMES,
                conflicts: &[0, 1, 1, 1],
                convert: None,
                weak: S.bit(),
                writes: X.bit(),
            },
        )
    }
}

/// Berkeley DB's nine modes, from its published conflict matrix (release 5.3). Only WAIT is
/// asymmetric.
pub mod berkeley {
    use super::{Mode, Modes, ModesSpec, build, set};

    /// Not granted: conflicts with no mode.
    pub const NG: Mode = Mode::of(set::BERKELEY, 0);
    #[allow(missing_docs)]
    pub const READ: Mode = Mode::of(set::BERKELEY, 1);
    #[allow(missing_docs)]
    pub const WRITE: Mode = Mode::of(set::BERKELEY, 2);
    /// Waits for a writer and blocks no mode.
    pub const WAIT: Mode = Mode::of(set::BERKELEY, 3);
    #[allow(missing_docs)]
    pub const IWRITE: Mode = Mode::of(set::BERKELEY, 4);
    #[allow(missing_docs)]
    pub const IREAD: Mode = Mode::of(set::BERKELEY, 5);
    /// Intent to read and write.
    pub const IWR: Mode = Mode::of(set::BERKELEY, 6);
    /// Reads uncommitted data.
    pub const DIRTY: Mode = Mode::of(set::BERKELEY, 7);
    /// Was written, and dirty readers may read it.
    pub const WWRITE: Mode = Mode::of(set::BERKELEY, 8);

    /// Returns NG, READ, WRITE, WAIT, IWRITE, IREAD, IWR, READ_UNCOMMITTED, WWRITE. READ and IREAD
    /// are weak.
    pub fn modes() -> Modes {
        #[rustfmt::skip]
        let conflicts = [
            //NG R  W WAIT IW IR IWR D WW
            0, 0, 0, 0, 0, 0, 0, 0, 0, // NG
            0, 0, 1, 0, 1, 0, 1, 0, 1, // READ
            0, 1, 1, 1, 1, 1, 1, 1, 1, // WRITE
            0, 0, 0, 0, 0, 0, 0, 0, 0, // WAIT
            0, 1, 1, 0, 0, 0, 0, 1, 1, // IWRITE
            0, 0, 1, 0, 0, 0, 0, 0, 1, // IREAD
            0, 1, 1, 0, 0, 0, 0, 1, 1, // IWR
            0, 0, 1, 0, 1, 0, 1, 0, 0, // READ_UNCOMMITTED
            0, 1, 1, 0, 1, 1, 1, 0, 1, // WWRITE
        ];
        build(
            set::BERKELEY,
            &ModesSpec {
                names: &set::BERKELEY_NAMES,
                conflicts: &conflicts,
                convert: None,
                weak: READ.bit() | IREAD.bit(),
                writes: WRITE.bit() | IWRITE.bit() | IWR.bit() | WWRITE.bit(),
            },
        )
    }

    /// Returns the modes of the concurrent data store: NG, READ, WRITE, WAIT, IWRITE, with the same
    /// numbers. One owner at a time holds IWRITE, concurrently with readers, and converts it to
    /// WRITE when it writes.
    pub fn concurrent() -> Modes {
        #[rustfmt::skip]
        let conflicts = [
            //NG R  W WAIT IW
            0, 0, 0, 0, 0, // NG
            0, 0, 1, 0, 0, // READ
            0, 1, 1, 1, 1, // WRITE
            0, 0, 0, 0, 0, // WAIT
            0, 0, 1, 0, 1, // IWRITE
        ];
        build(
            set::BERKELEY,
            &ModesSpec {
                names: &set::BERKELEY_NAMES[..5],
                conflicts: &conflicts,
                convert: None,
                weak: READ.bit(),
                writes: WRITE.bit() | IWRITE.bit(),
            },
        )
    }
}

/// PostgreSQL's eight table modes, from its manual (chapter "Explicit Locking").
pub mod postgres {
    use super::{Mode, Modes, ModesSpec, build, set};

    #[allow(missing_docs)]
    pub const ACCESS_SHARE: Mode = Mode::of(set::POSTGRES, 0);
    #[allow(missing_docs)]
    pub const ROW_SHARE: Mode = Mode::of(set::POSTGRES, 1);
    #[allow(missing_docs)]
    pub const ROW_EXCLUSIVE: Mode = Mode::of(set::POSTGRES, 2);
    #[allow(missing_docs)]
    pub const SHARE_UPDATE_EXCLUSIVE: Mode = Mode::of(set::POSTGRES, 3);
    #[allow(missing_docs)]
    pub const SHARE: Mode = Mode::of(set::POSTGRES, 4);
    #[allow(missing_docs)]
    pub const SHARE_ROW_EXCLUSIVE: Mode = Mode::of(set::POSTGRES, 5);
    #[allow(missing_docs)]
    pub const EXCLUSIVE: Mode = Mode::of(set::POSTGRES, 6);
    #[allow(missing_docs)]
    pub const ACCESS_EXCLUSIVE: Mode = Mode::of(set::POSTGRES, 7);

    /// Returns the eight modes, weakest first. The first three are weak.
    ///
    /// PostgreSQL lets an owner hold several modes at once. Here the owner holds one mode that
    /// covers them.
    pub fn modes() -> Modes {
        // By mode, counted from 1: the modes that it conflicts with.
        const WITH: [&[usize]; 8] = [
            &[8],
            &[7, 8],
            &[5, 6, 7, 8],
            &[4, 5, 6, 7, 8],
            &[3, 4, 6, 7, 8],
            &[3, 4, 5, 6, 7, 8],
            &[2, 3, 4, 5, 6, 7, 8],
            &[1, 2, 3, 4, 5, 6, 7, 8],
        ];
        let mut conflicts = [0; 64];
        for (held, with) in WITH.iter().enumerate() {
            with.iter().for_each(|wanted| conflicts[held * 8 + wanted - 1] = 1);
        }
        build(
            set::POSTGRES,
            &ModesSpec {
                names: &set::POSTGRES_NAMES,
                conflicts: &conflicts,
                convert: None,
                weak: ACCESS_SHARE.bit() | ROW_SHARE.bit() | ROW_EXCLUSIVE.bit(),
                writes: 0b1110_1100,
            },
        )
    }
}
