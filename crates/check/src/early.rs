//! A lock manager whose locks are weak from the first one on, so that a test needs few locks. By
//! default a name becomes weak after many locks.

use latchwork_lockmgr::{Error, Manager, Modes, Options};

/// The options of most tests.
pub fn early() -> Options {
    Options { opens_early: true, ..Options::default() }
}

/// As `Manager::private`, with those options.
///
/// # Errors
///
/// As for `Manager::private`.
pub fn private(modes: Modes) -> Result<Manager, Error> {
    let region = latchwork_region::Region::private(&latchwork_region::Options::default())?;
    Manager::new(region, modes, early())
}
