//! The files without a region: a new log, or where an old one ends.
//!
//! The end of a log is the first place, from the redo point on, where no record is: its length,
//! its own LSN or its checksum is wrong, or its segment is missing. Zero is never asked for. If
//! that is below what was durable it is not an end but damage, and nothing is changed. The control
//! file and the headers of segments say what was, and each record behind that place: what was
//! durable when it was built. So damage passes for the end only among the records of the
//! last two flushes, or where all behind it is gone; when the control file is written: `pins.rs`.
//!
//! Behind the end there may be records that the crash kept without those before them. They are
//! overwritten with zeros, durably, before anything is appended: or else a later end could be
//! followed by an old record that fits. That this has begun is in the control file until the next
//! checkpoint, for zeros that are read after a recovery whose sync failed may not be on the disk.
//! Then all up to the end is made durable, for it counts as durable from here on: what is not
//! known to be is written once more, for a sync that failed leaves bytes that can be read and that
//! no later sync writes. Each step may be done again after another crash.

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

/// Bytes of zeros in one write.
const FILL: u64 = 1 << 16;

/// Opens the files, by the one thread that has the claim, and fills in what is shared.
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
        // Before what it does not need is removed.
        control.write_again(disk, folder)?;
        segments.tidy(spans.number(control.redo.0), last)?;
        // A log that ends where a segment does may not have the next one yet. The names of all are
        // made durable by this: a process may have died before it did that.
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

/// Makes the files of a new log. The control file is named last.
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
    // What a crash left of an attempt to make a log is one segment without a record.
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

/// Whether a segment has nothing behind its header: a copy's log may begin anywhere in it.
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

/// Up to where the log is known to be durable, and where it ends.
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
            // What a crash left of two renames.
            Some(_) => {}
            // It had one before it had its name.
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
    // What is behind the redo point may all be in the segment of that.
    let gone = limit == first && control.redo.0 != spans.start(first);
    if at < flushed || gone {
        return Err(Error::LogDamaged { at, flushed });
    }
    Ok((flushed, at))
}

/// Up to where the records behind a log's end say that it was durable. Those that a crash kept
/// without the ones before them were built when no more than that was.
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

/// Writes zeros from the end of the log to that of its segment, where there is something else; or
/// where there may be, though zeros are read: the control file says so before any are written. For
/// if the sync of them fails, and the machine runs on, the next recovery reads what is on no disk.
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
            // In the other block, for this one is durable, and perhaps the only one that is.
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

/// What is shared, before it is said to be ready.
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
        // What recovery itself changes is logged whole first, too: it is written into pages of
        // which the log may have nothing.
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
        (&shared.append.oldest, recovered.redo.0),
    ] {
        word.store(value, Relaxed);
    }
}
