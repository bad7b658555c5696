//! How waits end.

use crate::Reason;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted,
    Refused(Reason),
    TimedOut,
    Withdrawn,
}
