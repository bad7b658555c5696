//! Recovery of the files without a region: creates a new log, or finds the end of an existing one.
//!
//! The end of a log is the first place, from the redo point on, that has no valid record: its
//! length, its own LSN or its checksum is wrong, or its segment is missing. The bytes there need
//! not be zero. An end below the durable place is damage, and recovery changes nothing. The durable
//! place is stated by the control file, by the headers of segments, and by each record after the
//! end, which states the place that was durable when it was built. Recovery can therefore mistake
//! damage for the end only among the records of the last two flushes, or if everything after it is
//! missing. `pins.rs` describes when the control file is written.
//!
//! After the end there may be records that survived a crash without the records before them. They
//! are durably overwritten with zeros before anything is appended. Otherwise a later end could be
//! followed by an old record that fits. The control file notes the start of this step until the
//! next checkpoint, because zeros that are read after a recovery whose sync failed may not be on
//! the disk.
//!
//! Then everything up to the end is made durable, because it counts as durable from here on. Bytes
//! that are not known to be durable are written once more: a failed sync leaves bytes that can be
//! read but that no later sync writes. Each step can be repeated after another crash.

use core::sync::atomic::Ordering::Relaxed;
use std::path::Path;
use std::sync::Arc;

use latchwork_disk::{Buffer, Disk, Error as DiskError, File, Open};
use latchwork_machine::{ConstMachine, Word};

use crate::buffer::Size;
use crate::control::{BLOCK, Control};
use crate::files::Files;
use crate::layout::Shared;
use crate::options::{Options, Recovered};
use crate::segment::Segments;
use crate::spans::Spans;
use crate::{Error, Lsn, UNIT};

/// Bytes of zeros per write.
const FILL: u64 = 1 << 16;

/// Opens the files and initializes the shared words. Only the thread that has the claim calls this.
pub(crate) fn open<M: ConstMachine>(
    shared: &Shared<M>,
    disk: &Arc<dyn Disk>,
    folder: &Path,
    options: &Options,
    creation: u128,
) -> Result<Recovered, Error> {
    disk.make_folder(folder)?;
    let (mut control, new) = match read_control(disk, folder)? {
        Some(control) => (control, false),
        None => (make(disk, folder, options, creation)?, true),
    };
    let spans = control.spans;
    if spans.size() < options.buffer {
        return Err(Error::Options("segment"));
    }
    if control.redo < Lsn::FIRST || !control.redo.0.is_multiple_of(crate::UNIT) {
        return Err(Error::Corrupt { what: "control file" });
    }
    let segments = Segments::new(disk.clone(), folder, control.id, spans);
    let (durable, end) =
        if new { (Lsn::FIRST, Lsn::FIRST) } else { find_end(&segments, &control)? };
    let last = spans.number(end.0);
    if !new {
        // Before files that this control file does not need are removed.
        control.write_again(disk, folder)?;
        segments.tidy(spans.number(control.redo.0), last)?;
        // A log that ends at the end of a segment may not have the next segment yet. This call also
        // makes all names durable, because a process may have died before it did so.
        segments.make(last, Lsn(0))?;
        sync_around(disk, folder)?;
        clear(&segments, &mut control, end)?;
        segments.write_again(durable.0, end.0, end.0)?;
        segments.sync(control.redo.0, end.0 + 1)?;
    }
    let recovered = Recovered {
        warm: false,
        redo: control.redo,
        checkpoint: control.checkpoint,
        end,
        clean: control.clean && control.redo == end,
    };
    fill(shared, options, &control, &recovered, spans.end(last));
    Ok(recovered)
}

pub(crate) fn read_control(disk: &Arc<dyn Disk>, folder: &Path) -> Result<Option<Control>, Error> {
    let file = match disk.open(&folder.join("control"), Open::READ) {
        Err(DiskError::NotFound(_)) => return Ok(None),
        other => other?,
    };
    let mut bytes = vec![0; 2 * BLOCK];
    match file.read(0, &mut bytes) {
        Err(DiskError::ShortRead { .. }) => Err(Error::Corrupt { what: "control file" }),
        other => {
            other?;
            Control::decode(&bytes).map(Some)
        }
    }
}

/// Creates the files of a new log. The control file is named last.
fn make(
    disk: &Arc<dyn Disk>,
    folder: &Path,
    options: &Options,
    creation: u128,
) -> Result<Control, Error> {
    let id = if options.id == 0 { creation } else { options.id };
    let first = options.segment_first.min(options.segment);
    let spans = Spans::new(first, options.segment).ok_or(Error::Options("segment"))?;
    let segments = Segments::new(disk.clone(), folder, id, spans);
    // A crash while a log was created leaves one segment without a record.
    for number in segments.numbers()? {
        let file = disk.open(&folder.join(format!("{number:016x}")), Open::READ)?;
        if number != 0 || !is_zero(&*file)? {
            return Err(Error::NoControl);
        }
    }
    segments.tidy(1, 0)?;
    segments.make(0, Lsn(0))?;
    let control = Control {
        id,
        sequence: 2,
        spans,
        checkpoint: Lsn::NEVER,
        redo: Lsn::FIRST,
        flushed: Lsn::FIRST,
        clean: true,
        clearing: false,
    };
    control.write_new(disk, folder)?;
    sync_around(disk, folder)?;
    Ok(control)
}

/// Returns whether a segment has only zeros after its header. All of it is read, because a copied
/// log may begin anywhere in a segment.
fn is_zero(file: &dyn File) -> Result<bool, Error> {
    let length = file.length()?;
    let mut bytes = vec![0; FILL as usize];
    let mut at = BLOCK as u64;
    while at < length {
        let part = &mut bytes[..FILL.min(length - at) as usize];
        file.read(at, part)?;
        if part.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += FILL;
    }
    Ok(true)
}

/// Makes the name of the log's folder durable.
fn sync_around(disk: &Arc<dyn Disk>, folder: &Path) -> Result<(), Error> {
    match folder.parent().filter(|around| !around.as_os_str().is_empty()) {
        Some(around) => Ok(disk.sync_folder(around)?),
        None => Ok(()),
    }
}

/// Returns the place up to which the log is known to be durable, and the end of the log.
fn find_end(segments: &Segments, control: &Control) -> Result<(Lsn, Lsn), Error> {
    let spans = segments.spans;
    let first = spans.number(control.redo.0);
    let (mut limit, mut flushed) = (first, control.flushed.max(control.redo));
    let mut numbers = segments.numbers()?;
    numbers.retain(|number| *number >= first && spans.has(*number));
    // Segments follow each other without a gap, each with its own header.
    for &number in &numbers {
        match segments.header(number)? {
            Some(header) if header.id != segments.id => return Err(Error::Foreign),
            Some(header) if header.number == number => {
                if segments.is_short(number)? {
                    return Err(Error::Corrupt { what: "length of a segment" });
                }
                limit += u64::from(number == limit);
                flushed = flushed.max(header.flushed);
            }
            // A crash between two renames leaves such a file.
            Some(_) => {}
            // A segment gets its header before its name.
            None => return Err(Error::Corrupt { what: "header of a segment" }),
        }
    }
    let mut files = Files::new(segments, spans.start(limit));
    let mut at = control.redo;
    while let Some(entry) = files.at(at)? {
        flushed = flushed.max(entry.durable);
        at = entry.next();
    }
    let flushed = flushed.max(durable_behind(segments, at, &numbers)?);
    // The records after the redo point may all be in that point's segment.
    let gone = limit == first && control.redo.0 != spans.start(first);
    if at < flushed || gone {
        return Err(Error::LogDamaged { at, flushed });
    }
    Ok((flushed, at))
}

/// Returns the highest durable place that the records after the log's end state. Records that
/// survived a crash without the records before them were built when no more than that was durable.
fn durable_behind(segments: &Segments, end: Lsn, numbers: &[u64]) -> Result<Lsn, Error> {
    let (mut at, mut durable) = (end, Lsn::NEVER);
    let limit = numbers.last().map_or(0, |last| segments.spans.end(*last));
    let mut files = Files::new(segments, limit);
    while let Some(found) = files.next_behind(at, numbers)? {
        at = found;
        if let Some(entry) = files.at(found)? {
            durable = durable.max(entry.durable);
            at = Lsn(entry.next().0 - UNIT);
        }
    }
    Ok(durable)
}

/// Writes zeros from the end of the log to the end of its segment, where the bytes are not zero, or
/// everywhere if an earlier recovery began to do so. The control file notes this before the first
/// write: if the sync of the zeros fails and the machine does not restart, the next recovery reads
/// zeros that are not on the disk.
fn clear(segments: &Segments, control: &mut Control, end: Lsn) -> Result<(), Error> {
    let stop = segments.spans.end(segments.spans.number(end.0));
    let zeros = Buffer::new(FILL as usize);
    let mut bytes = vec![0; FILL as usize];
    let (doubt, mut at) = (control.clearing, end.0);
    while at < stop {
        let count = (stop - at).min(FILL) as usize;
        segments.read(at, &mut bytes[..count])?;
        let is_zero = bytes[..count].iter().all(|byte| *byte == 0);
        if !is_zero && !control.clearing {
            // Write the other block: this block is durable, and may be the only durable one.
            (control.sequence, control.clearing) = (control.sequence + 1, true);
            control.write_again(&segments.disk, &segments.folder)?;
        }
        if doubt || !is_zero {
            segments.write(at, &zeros[..count])?;
        }
        at += count as u64;
    }
    Ok(())
}

/// Initializes the shared words. `ready` is set later.
fn fill<M: ConstMachine>(
    shared: &Shared<M>,
    options: &Options,
    control: &Control,
    recovered: &Recovered,
    prepared: u64,
) {
    // Relaxed, all: the Release of `ready` comes after them.
    let end = recovered.end.0;
    for (word, value) in [
        (&shared.buffer, options.buffer),
        (&shared.segment, control.spans.size()),
        (&shared.first_segment, control.spans.first()),
        (&shared.threads, u64::from(options.threads)),
        (&shared.id[0], control.id as u64),
        (&shared.id[1], (control.id >> 64) as u64),
        (&shared.buffer_from, end),
        (&shared.buffer_size, Size::first(options).word()),
        (&shared.found.end, end),
        // The changes of recovery itself are also logged with whole pages, because the log may have
        // no earlier record of these pages.
        (&shared.found.marked, end),
        (&shared.found.redo, recovered.redo.0),
        (&shared.found.checkpoint, recovered.checkpoint.0),
        (&shared.found.clean, u64::from(recovered.clean)),
        (&shared.found.sequence, control.sequence),
        (&shared.found.said, control.flushed.0),
        (&shared.end.0, end),
        (&shared.written.0, end),
        (&shared.flushed.0, end),
        (&shared.prepared.0, prepared),
        (&shared.append.reserved, end),
        (&shared.append.promised, end),
        (&shared.append.base, end),
        (&shared.append.oldest, recovered.redo.0),
    ] {
        word.store(value, Relaxed);
    }
}
