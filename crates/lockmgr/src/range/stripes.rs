//! Stripes of a keyspace: several latches for one order of keys.
//!
//! A keyspace has one latch. If many owners lock ranges of one table concurrently, the table's keys
//! are divided into stripes. Each stripe is a keyspace with its own claims and its own latch. A
//! range within one stripe is one claim there; a longer range is a claim in each stripe that it
//! meets. Two ranges with a common key meet in the stripe of that key, so they always find each
//! other.

use crate::Error;
use crate::range::cells::KEYSPACE_MAX;
use crate::range::kinds::{KEY_MAX, Span};

/// The division of a keyspace into stripes, for
/// [`Owner::lock_striped`](crate::Owner::lock_striped).
///
/// The keys are divided at *bounds*, which are the first keys of stripes: for example the first
/// keys of a tree's subtrees when the table is opened, or the tenants. All threads and processes
/// must divide a keyspace at the same bounds while any owner holds locks in it: with different
/// bounds they do not see each other's claims. The choice of bounds affects only how evenly the
/// latches are used.
///
/// A stripe is a keyspace of its own. Reports call the first stripe of `orders` `orders#0`; no
/// other keyspace may have these names. Memory: the bounds and a name for each stripe in the
/// process, and 256 bytes in the region for each stripe with a claim. Claims of a dead owner are
/// released or kept as all its locks are.
///
/// # Examples
///
/// ```
/// use latchwork_lockmgr::{KeyRange, Manager, RangeKind, Stripes, Wait, granular};
///
/// let orders = Stripes::new(b"orders", [b"g", b"n", b"t"])?;
/// assert_eq!(orders.count(), 4);
/// assert_eq!(orders.keyspace(b"hammer"), b"orders#1");
///
/// let manager = Manager::private(granular::modes())?;
/// let session = manager.session()?;
/// let (reader, writer) = (session.owner()?, session.owner()?);
/// // A scan over two stripes, and an insert that it blocks.
/// let scanned = KeyRange::half_open(b"hammer", b"pliers");
/// reader.lock_striped(&orders, scanned, RangeKind::ReadNext, Wait::Detect)?;
/// let insert = KeyRange::key(b"nail");
/// assert!(writer.lock_striped(&orders, insert, RangeKind::Insert, Wait::Never).is_err());
/// reader.release_all()?;
/// writer.lock_striped(&orders, insert, RangeKind::Insert, Wait::Never)?;
/// # Ok::<(), latchwork_lockmgr::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripes {
    /// The keyspaces, in the order of their keys.
    names: Vec<Vec<u8>>,
    /// The lower bounds of all stripes but the first.
    bounds: Vec<Vec<u8>>,
}

impl Stripes {
    /// Divides a keyspace at these ascending keys. O(bounds).
    ///
    /// # Errors
    ///
    /// [`Error::EmptyRange`] if a bound is not greater than the one before it, or is the empty key;
    /// [`Error::Key`] if a bound is too long; [`Error::Keyspace`] if the name with a `#` and a
    /// number is too long.
    pub fn new<B: AsRef<[u8]>>(
        keyspace: &[u8],
        bounds: impl IntoIterator<Item = B>,
    ) -> Result<Self, Error> {
        let bounds: Vec<_> = bounds.into_iter().map(|bound| bound.as_ref().to_vec()).collect();
        if let Some(long) = bounds.iter().find(|bound| bound.len() > KEY_MAX) {
            return Err(Error::Key(long.len()));
        }
        if bounds.first().is_some_and(Vec::is_empty) || !bounds.is_sorted_by(|a, b| a < b) {
            return Err(Error::EmptyRange);
        }
        let name = |number| [keyspace, b"#", format!("{number}").as_bytes()].concat();
        let names: Vec<_> = (0..=bounds.len()).map(name).collect();
        let longest = names.last().map_or(0, Vec::len);
        if keyspace.is_empty() || longest > KEYSPACE_MAX {
            return Err(Error::Keyspace(if keyspace.is_empty() { 0 } else { longest }));
        }
        Ok(Self { names, bounds })
    }

    /// Returns the number of stripes: one more than the number of bounds.
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// Returns the keyspace that has the claims on a key, for
    /// [`Session::keyspace_claims`](crate::Session::keyspace_claims). O(log stripes).
    pub fn keyspace(&self, key: &[u8]) -> &[u8] {
        &self.names[self.bounds.partition_point(|bound| bound.as_slice() <= key)]
    }

    /// Returns the parts of a range, each with its keyspace, in the order of keys: at least one.
    pub(crate) fn parts<'s>(&'s self, span: &'s Span) -> impl Iterator<Item = (&'s [u8], Span)> {
        let bounds = &self.bounds;
        let first = bounds.partition_point(|bound| *bound <= span.from);
        let last = match &span.to {
            Some(to) => bounds.partition_point(|bound| bound < to),
            None => bounds.len(),
        };
        (first..=last).map(move |at| {
            let from = if at == first { &span.from } else { &bounds[at - 1] };
            let to = if at == last { span.to.as_ref() } else { Some(&bounds[at]) };
            (&self.names[at][..], Span { from: from.clone(), to: to.cloned() })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyRange;

    fn parts(bounds: &[&str], range: KeyRange<'_>) -> Vec<String> {
        let stripes = Stripes::new(b"t", bounds).unwrap();
        let span = Span::of(range).unwrap();
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let told = |(name, part): (&[u8], Span)| {
            let to = part.to.map_or("..".to_owned(), |to| text(&to));
            format!("{} {} {to}", text(name), text(&part.from))
        };
        stripes.parts(&span).map(told).collect()
    }

    #[test]
    fn a_range_is_cut_at_bounds() {
        let cut = |range| parts(&["g", "n"], range);
        assert_eq!(cut(KeyRange::all()), ["t#0  g", "t#1 g n", "t#2 n .."]);
        assert_eq!(
            cut(KeyRange::half_open(b"a", b"g")),
            ["t#0 a g"],
            "the bound is the next one's"
        );
        assert_eq!(cut(KeyRange::key(b"g")), ["t#1 g g\\x00"]);
        assert_eq!(cut(KeyRange::next_key(b"a", b"g")), ["t#0 a\\x00 g", "t#1 g g\\x00"]);
        assert_eq!(cut(KeyRange::at_least(b"n")), ["t#2 n .."]);
        assert_eq!(parts(&[], KeyRange::all()), ["t#0  .."]);
    }

    #[test]
    fn bounds_ascend_and_names_fit() {
        let new = |name: &[u8], bounds: &[&[u8]]| Stripes::new(name, bounds).map(|s| s.count());
        assert_eq!(new(b"t", &[b"a", b"b"]), Ok(3));
        assert_eq!(new(b"t", &[b"b", b"a"]), Err(Error::EmptyRange));
        assert_eq!(new(b"t", &[b"a", b"a"]), Err(Error::EmptyRange));
        assert_eq!(new(b"t", &[b""]), Err(Error::EmptyRange));
        assert_eq!(new(b"t", &[&[1; KEY_MAX + 1]]), Err(Error::Key(KEY_MAX + 1)));
        assert_eq!(new(b"", &[]), Err(Error::Keyspace(0)));
        assert_eq!(new(&[b't'; KEYSPACE_MAX - 2], &[]), Ok(1));
        assert_eq!(new(&[b't'; KEYSPACE_MAX - 1], &[]), Err(Error::Keyspace(KEYSPACE_MAX + 1)));
    }
}
