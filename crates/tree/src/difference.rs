//! The part in which two values of a record differ.
//!
//! The change of a record logs this part instead of both values. Each value is then computed from
//! the other one:
//!
//! ```text
//! before   │ common beginning │ before │ common end │
//! after    │ common beginning │ after  │ common end │
//!          0                  at
//! ```
//!
//! The common end needs no length: it is the rest of the value that the difference is applied to.
//! That value has the other part at this place, or the difference is not applied.

/// The part in which two values differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference<'b> {
    /// Where the part begins.
    pub at: usize,
    /// The part of the value before.
    pub before: &'b [u8],
    /// The part of the value after.
    pub after: &'b [u8],
}

impl<'b> Difference<'b> {
    /// Returns the difference between two values. O(bytes), eight at a time.
    pub fn of(before: &'b [u8], after: &'b [u8]) -> Self {
        let at = alike(before, after);
        let (before, after) = (&before[at..], &after[at..]);
        let one_is_empty = before.is_empty() || after.is_empty();
        let end = if one_is_empty { 0 } else { alike_at_end(before, after) };
        let part = |value: &'b [u8]| &value[..value.len() - end];
        Self { at, before: part(before), after: part(after) }
    }

    /// Returns the difference that turns the value after into the value before.
    pub fn reversed(self) -> Self {
        Self { at: self.at, before: self.after, after: self.before }
    }

    /// Returns the length of the value after, if the value before has `length` bytes. None if that
    /// does not contain the part.
    pub(crate) fn length(&self, length: usize) -> Option<usize> {
        let rest = length.checked_sub(self.at)?.checked_sub(self.before.len())?;
        Some(self.at + rest + self.after.len())
    }

    /// Turns the value before into the value after. None, without an effect, if `value` is not a
    /// value before.
    pub fn apply(&self, value: &mut Vec<u8>) -> Option<()> {
        if !value.get(self.at..)?.starts_with(self.before) {
            return None;
        }
        let end = self.at + self.before.len();
        if self.before.len() == self.after.len() {
            value[self.at..end].copy_from_slice(self.after);
        } else {
            value.splice(self.at..end, self.after.iter().copied());
        }
        Some(())
    }
}

/// How many bytes are compared at a time as long as they are equal.
const MANY: usize = 32;

/// The number of bytes with which both begin.
fn alike(one: &[u8], other: &[u8]) -> usize {
    let most = one.len().min(other.len());
    let (one, other) = (&one[..most], &other[..most]);
    let mut alike = 0;
    let many = one.as_chunks::<MANY>().0.iter().zip(other.as_chunks().0);
    alike += MANY * many.take_while(|(one, other)| one == other).count();
    for (one, other) in one[alike..].as_chunks().0.iter().zip(other[alike..].as_chunks().0) {
        let differ = u64::from_le_bytes(*one) ^ u64::from_le_bytes(*other);
        if differ != 0 {
            return alike + differ.trailing_zeros() as usize / 8;
        }
        alike += 8;
    }
    let rest = one[alike..].iter().zip(&other[alike..]);
    alike + rest.take_while(|(one, other)| one == other).count()
}

/// The number of bytes with which both end.
fn alike_at_end(one: &[u8], other: &[u8]) -> usize {
    let most = one.len().min(other.len());
    let (one, other) = (&one[one.len() - most..], &other[other.len() - most..]);
    let many = one.as_rchunks::<MANY>().1.iter().rev().zip(other.as_rchunks().1.iter().rev());
    let mut left = most - MANY * many.take_while(|(one, other)| one == other).count();
    let words =
        one[..left].as_rchunks().1.iter().rev().zip(other[..left].as_rchunks().1.iter().rev());
    for (one, other) in words {
        let differ = u64::from_le_bytes(*one) ^ u64::from_le_bytes(*other);
        if differ != 0 {
            return most - left + differ.leading_zeros() as usize / 8;
        }
        left -= 8;
    }
    let rest = one[..left].iter().rev().zip(other[..left].iter().rev());
    most - left + rest.take_while(|(one, other)| one == other).count()
}
