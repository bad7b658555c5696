//! Passes records of a copied leaf in place.

use crate::Header;
use crate::layout::{LEAF_WORDS, Slot};

/// The callback of a scan for each key and value; the scan continues while it returns `true`.
pub type Each<'e, E> = dyn FnMut(&[u8], &[u8]) -> Result<bool, E> + 'e;

/// Bytes of a record before its suffix.
pub(crate) const HEADER: usize = 8 * LEAF_WORDS;

/// Records of a page that are passed in place.
pub(crate) struct Pass<'b> {
    /// The copy of the leaf.
    pub(crate) page: &'b [u8],
    /// The length of the keys' common beginning, which `key` begins with.
    pub(crate) prefix: usize,
    /// The records were written before this position of the log.
    pub(crate) low: u64,
    /// None has this many bytes of key and value.
    pub(crate) max: usize,
    pub(crate) key: &'b mut Vec<u8>,
}

impl Pass<'_> {
    /// See [`crate::Batch::pass`]; calls `passed` for each record, before `each`.
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

/// The position of a slot's record's last change, and the bytes behind its header.
#[inline(always)]
fn record(page: &[u8], slot: Slot) -> Option<(u64, Rest<'_>)> {
    let (head, rest) = page.get(8 * slot.at..)?.split_first_chunk::<HEADER>()?;
    let [first, second] = *head.as_chunks::<8>().0 else { return None };
    let length = usize::from(u64::from_le_bytes(second) as u16);
    let bytes = rest.get(..slot.suffix + length)?;
    let lsn = Header::from_bits(u64::from_le_bytes(first)).lsn();
    Some((lsn, Rest { bytes, short: rest.first_chunk() }))
}
