//! Rebuilds a page from a base and its log records.
//!
//! Each record of the log has the LSN that its page had before, so the records of one page form a
//! chain that is walked backwards. It ends at a record that contains the page whole, or at the
//! base: the page on disk, whose own LSN says up to which change it goes.

use crate::Error;
use crate::change::Change;
use crate::layout::Header;

/// The parts of a log record that concern pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its position.
    pub lsn: u64,
    /// The thread slot that wrote it.
    pub slot: u16,
    /// The page that it names.
    pub page: u64,
    /// The LSN that this page had before.
    pub page_prev: u64,
    /// The change.
    pub payload: Vec<u8>,
}

/// Returns the records of `page` from `newest` back to the last that contains it whole, or to
/// `base`, the LSN of a page that the caller has; oldest first.
///
/// `read` reads the record at an LSN. O(records) reads.
///
/// # Errors
///
/// Errors of `read`; [`Error::UnknownChange`]; [`Error::Malformed`] if a record does not affect the
/// page, or the chain does not lead backwards or does not end.
pub fn chain<E: From<Error>>(
    page: u64,
    newest: u64,
    base: Option<u64>,
    mut read: impl FnMut(u64) -> Result<Link, E>,
) -> Result<Vec<Link>, E> {
    let mut links = Vec::new();
    let mut lsn = newest;
    while base.is_none_or(|base| lsn > base) {
        if lsn == 0 {
            return Err(Error::Malformed("the chain of the page has no beginning").into());
        }
        let link = read(lsn)?;
        let before = step(&link, page)?;
        links.push(link);
        match before {
            None => break,
            Some(before) if before < lsn => lsn = before,
            Some(_) => return Err(Error::Malformed("the chain leads forwards").into()),
        }
    }
    links.reverse();
    Ok(links)
}

/// The LSN that `page` had before this record; none if the record contains it whole.
fn step(link: &Link, page: u64) -> Result<Option<u64>, Error> {
    let change = Change::decode(&link.payload).ok_or(Error::UnknownChange)?;
    let role = change.role(link.page, page);
    let role = role.ok_or(Error::Malformed("a record of the chain is of another page"))?;
    Ok(change.before(role, link.page_prev))
}

/// Builds `page` in `into`: copies the words of `base`, if given, then applies each newer record of
/// `links`, oldest first. Returns the page's LSN, which is also in its second word.
///
/// # Errors
///
/// The errors of [`Change::apply`]; `into` is then invalid.
pub fn rebuild(
    page: u64,
    base: Option<&[u64]>,
    links: &[Link],
    into: &mut [u64],
) -> Result<u64, Error> {
    if let Some(base) = base {
        if base.len() != into.len() {
            return Err(Error::Malformed("the size of the page"));
        }
        into.copy_from_slice(base);
    } else {
        into.fill(0);
    }
    let mut lsn = base.and_then(|base| base.get(1)).copied().unwrap_or(0);
    for link in links.iter().filter(|link| base.is_none() || link.lsn > base_lsn(base)) {
        let change = Change::decode(&link.payload).ok_or(Error::UnknownChange)?;
        let role = change.role(link.page, page);
        let role = role.ok_or(Error::Malformed("a record of the chain is of another page"))?;
        change.apply(role, into, Header::new(link.slot, link.lsn))?;
        lsn = link.lsn;
    }
    if let Some(word) = into.get_mut(1) {
        *word = lsn;
    }
    Ok(lsn)
}

fn base_lsn(base: Option<&[u64]>) -> u64 {
    base.and_then(|base| base.get(1)).copied().unwrap_or(0)
}
