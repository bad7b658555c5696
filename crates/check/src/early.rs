//! A lock manager whose weak locks are weak from the first one on, so that few locks suffice for a
//! test of them: by default a name comes there when many were taken.

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
