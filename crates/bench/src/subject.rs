//! The measured latches.

use crate::latch::{Exclusive, Shared};
use crate::measure::{self, Case, Sample};
use crate::{Cell, Fault, Role};

/// The capability of a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Exclusive only.
    Exclusive,
    /// Shared and exclusive.
    Shared,
}

/// A latch that can be measured, by name.
#[derive(Clone, Copy)]
pub struct Subject {
    /// The name in rows and on the command line.
    pub name: &'static str,
    /// Whether it is a rival.
    pub rival: bool,
    /// The capability.
    pub kind: Kind,
    /// Size in bytes, without memory that it points to.
    pub size: usize,
    pub(crate) measure: fn(&Case<'_>) -> Result<Sample, Fault>,
}

impl Subject {
    /// An exclusive latch.
    pub const fn exclusive<L: Exclusive>(name: &'static str, rival: bool) -> Self {
        let (kind, size) = (Kind::Exclusive, size_of::<L>());
        Self { name, rival, kind, size, measure: measure::exclusive::<L> }
    }

    /// A reader-writer latch.
    pub const fn shared<L: Shared>(name: &'static str, rival: bool) -> Self {
        let (kind, size) = (Kind::Shared, size_of::<L>());
        Self { name, rival, kind, size, measure: measure::shared::<L> }
    }

    /// Whether the cell fits this kind of latch.
    pub fn takes_part(&self, cell: &Cell) -> bool {
        (self.kind == Kind::Exclusive) == (cell.side == Role::Exclusive)
    }

    /// Measures the latch once.
    pub fn measure(&self, case: &Case<'_>) -> Result<Sample, Fault> {
        (self.measure)(case)
    }

    /// All subjects, ours first.
    pub fn all() -> Vec<Self> {
        use latchwork_latch as our;
        use latchwork_rivals as their;
        vec![
            Self::exclusive::<our::ShflMutex>("shfl-mutex", false),
            Self::exclusive::<our::ShflSpin>("shfl-spin", false),
            Self::exclusive::<their::StdMutex>("std-mutex", true),
            Self::exclusive::<their::ParkingLotMutex>("parking-lot-mutex", true),
            Self::exclusive::<their::PthreadMutex>("pthread-mutex", true),
            Self::exclusive::<their::PthreadAdaptive>("pthread-adaptive", true),
            Self::shared::<our::ShflRwLock>("shfl-rwlock", false),
            Self::shared::<our::LwLatch<our::FetchAdd>>("lw-latch", false),
            Self::shared::<our::LwLatch<our::CompareExchange>>("lw-latch-cas", false),
            Self::shared::<our::Biased<our::ShflRwLock>>("biased-rwlock", false),
            Self::shared::<their::StdRwLock>("std-rwlock", true),
            Self::shared::<their::ParkingLotRwLock>("parking-lot-rwlock", true),
            Self::shared::<their::PthreadRwLock>("pthread-rwlock", true),
        ]
    }

    /// Selects the subjects of `all` named by `names`: by the full name or by its first words
    /// (`shfl`, `pthread`). All rivals are included unless a rival is named.
    ///
    /// # Errors
    ///
    /// The first unknown name.
    pub fn select(all: Vec<Self>, names: &[String]) -> Result<Vec<Self>, &str> {
        let calls = |name: &str, subject: &Self| {
            subject
                .name
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        let unknown = |name: &&String| !all.iter().any(|subject| calls(name, subject));
        if let Some(name) = names.iter().find(unknown) {
            return Err(name);
        }
        let called = |subject: &Self| names.iter().any(|name| calls(name, subject));
        let any_rival = all.iter().any(|s| s.rival && called(s));
        let wanted = |s: &Self| names.is_empty() || called(s) || (s.rival && !any_rival);
        Ok(all.into_iter().filter(wanted).collect())
    }
}
