//! Outcomes of waits.

use crate::Reason;

/// The outcome of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted,
    Refused(Reason),
    TimedOut,
    Withdrawn,
}
