//! Records of a copied leaf, from one to the next, as they lie there.

use crate::Header;
use crate::layout::{LEAF_WORDS, Slot};

/// What a scan calls with each key and value; it goes on while that returns `true`.
pub type Each<'e, E> = dyn FnMut(&[u8], &[u8]) -> Result<bool, E> + 'e;

/// Bytes of a record before its suffix.
pub(crate) const HEADER: usize = 8 * LEAF_WORDS;

/// Records that are passed as they lie on a page.
pub(crate) struct Pass<'b> {
    /// The copy of the leaf.
    pub(crate) page: &'b [u8],
    /// How many bytes the page's keys have in common, with which `key` begins.
    pub(crate) prefix: usize,
    /// The records were written before this position of the log.
    pub(crate) low: u64,
    /// None has as many bytes of key and value.
    pub(crate) max: usize,
    pub(crate) key: &'b mut Vec<u8>,
}

impl Pass<'_> {
    /// See [`crate::Batch::pass`]; calls `passed` for each that was passed, before `each` has it.
    #[inline(always)]
    pub(crate) fn all<'s, E>(
        &mut self,
        slots: impl Iterator<Item = &'s [u8; 8]>,
        mut passed: impl FnMut(),
        each: &mut Each<'_, E>,
    ) -> Result<bool, E> {
        for slot in slots {
            let slot = Slot::of(u64::from_le_bytes(*slot));
            let Some((lsn, rest)) = record(self.page, slot) else { break };
            let end = self.prefix + slot.suffix;
            if slot.ghost || lsn >= self.low || self.prefix + rest.bytes.len() == self.max {
                break;
            }
            let (suffix, value) = rest.bytes.split_at(slot.suffix);
            if self.key.len() < end + HEADER {
                self.key.resize(end + HEADER, 0);
            }
            let behind = &mut self.key[self.prefix..];
            match (rest.short, behind.first_chunk_mut()) {
                (Some(short), Some(to)) if slot.suffix <= HEADER => *to = *short,
                _ => behind[..slot.suffix].copy_from_slice(suffix),
            }
            passed();
            if !each(&self.key[..end], value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A record's suffix and value, and as many bytes as its header has, if the page is that long.
struct Rest<'b> {
    bytes: &'b [u8],
    short: Option<&'b [u8; HEADER]>,
}

/// Where the record of a slot was written, and what lies behind its header.
#[inline(always)]
fn record(page: &[u8], slot: Slot) -> Option<(u64, Rest<'_>)> {
    let (head, rest) = page.get(8 * slot.at..)?.split_first_chunk::<HEADER>()?;
    let [first, second] = *head.as_chunks::<8>().0 else { return None };
    let length = usize::from(u64::from_le_bytes(second) as u16);
    let bytes = rest.get(..slot.suffix + length)?;
    let lsn = Header::from_bits(u64::from_le_bytes(first)).lsn();
    Some((lsn, Rest { bytes, short: rest.first_chunk() }))
}
