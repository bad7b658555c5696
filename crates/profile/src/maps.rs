//! The addresses of code, read from `/proc/self/maps`, so that a reader can name a return address
//! after the process has ended.
//!
//! Only code with a file is kept, and the first thread's stack, a line each: `START-END OFFSET
//! PATH`, in hexadecimal. The text is read again when a call site is in none of the files seen so
//! far, because programs load code as they run; at most 64 times, because some programs generate
//! code.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use rustix::fd::{IntoRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};

use crate::layout::{Segment, store_bytes};

const RANGES: usize = 512;
static KNOWN: [(AtomicUsize, AtomicUsize); RANGES] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; RANGES];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicU32 = AtomicU32::new(0);
static BUSY: AtomicBool = AtomicBool::new(false);

const TAKES_MAX: u32 = 64;

/// The kernel's name for the first thread's stack.
pub(crate) const STACK: &[u8] = b"[stack]";

/// Forgets the ranges: a new segment has no text yet.
pub(crate) fn forget() {
    TAKEN.store(1, Relaxed);
}

/// Reads the text again if `address` lies in no file of it.
pub(crate) fn see(segment: &Segment, address: usize) {
    let count = COUNT.load(Acquire).min(RANGES);
    // Relaxed: a torn pair causes one more or one fewer read of the text.
    let known = |(start, end): &(AtomicUsize, AtomicUsize)| {
        (start.load(Relaxed)..end.load(Relaxed)).contains(&address)
    };
    if !KNOWN[..count].iter().any(known) && TAKEN.load(Relaxed) < TAKES_MAX {
        write(segment);
    }
}

/// Returns whether `address` lies in code of a file. Unaware of code that was loaded after the text
/// was read.
pub(crate) fn is_code(address: usize) -> bool {
    let known = &KNOWN[..COUNT.load(Acquire).min(RANGES)];
    // Relaxed: as above. The ranges are in the order of addresses, like the text.
    let after = known.partition_point(|(start, _)| start.load(Relaxed) <= address);
    after > 0 && address < known[after - 1].1.load(Relaxed)
}

/// Resets the lock in the child of a fork: another thread of the parent may have held it, and does
/// not exist here.
pub(crate) fn forked() {
    // Relaxed: there is one thread.
    BUSY.store(false, Relaxed);
}

/// Reads the text.
pub(crate) fn write(segment: &Segment) {
    // Acquire, and Release below: one writer's text comes after another's.
    if BUSY.swap(true, Acquire) {
        return;
    }
    TAKEN.fetch_add(1, Relaxed);
    let header = &segment.header;
    header.maps_sequence.fetch_add(1, Relaxed);
    let mut text = Text { segment, length: 0, ranges: 0 };
    text.take();
    header.maps_length.store(text.length as u32, Relaxed);
    header.maps_sequence.fetch_add(1, Relaxed);
    // Release: synchronizes with the Acquire in `see`.
    COUNT.store(text.ranges, Release);
    BUSY.store(false, Release);
}

struct Text<'a> {
    segment: &'a Segment,
    length: usize,
    ranges: usize,
}

impl Text<'_> {
    fn take(&mut self) {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let Ok(file) = latchwork_machine::open(c"/proc/self/maps", flags, Mode::empty()) else {
            return;
        };
        self.read(&file);
        // The system call itself, because the C library's `close` is a cancellation point. SAFETY:
        // no other value owns the descriptor, which is given up here.
        unsafe { rustix::io::close(file.into_raw_fd()) };
    }

    fn read(&mut self, file: &OwnedFd) {
        let mut buffer = [0; 8192];
        let mut filled = 0;
        while let Ok(read @ 1..) = rustix::io::read(file, &mut buffer[filled..]) {
            filled += read;
            let mut used = 0;
            while let Some(length) = buffer[used..filled].iter().position(|b| *b == b'\n') {
                self.line(&buffer[used..used + length]);
                used += length + 1;
            }
            if used == 0 && filled == buffer.len() {
                return;
            }
            buffer.copy_within(used..filled, 0);
            filled -= used;
        }
    }

    /// `START-END PERMISSIONS OFFSET DEVICE INODE      PATH`
    fn line(&mut self, line: &[u8]) {
        let mut words = line.split(|b| *b == b' ').filter(|word| !word.is_empty());
        let (Some(range), Some(access), Some(offset)) = (words.next(), words.next(), words.next())
        else {
            return;
        };
        let path = if line.ends_with(STACK) {
            STACK
        } else {
            let Some(slash) = line.iter().position(|b| *b == b'/') else { return };
            if access.get(2) != Some(&b'x') {
                return;
            }
            self.remember(range);
            &line[slash..]
        };
        let needed = range.len() + offset.len() + path.len() + 3;
        if needed > self.segment.maps.len() - self.length {
            return;
        }
        for part in [range, b" ", offset, b" ", path, b"\n"] {
            store_bytes(&self.segment.maps[self.length..], part);
            self.length += part.len();
        }
    }

    fn remember(&mut self, range: &[u8]) {
        let text = core::str::from_utf8(range).unwrap_or_default();
        let Some((start, end)) = text.split_once('-') else { return };
        let number = |text| usize::from_str_radix(text, 16);
        if let (Ok(start), Ok(end), Some(known)) =
            (number(start), number(end), KNOWN.get(self.ranges))
        {
            known.0.store(start, Relaxed);
            known.1.store(end, Relaxed);
            self.ranges += 1;
        }
    }
}

/// A path assembled on the stack; an overflow makes it empty.
pub(crate) struct Line {
    bytes: [u8; 1024],
    length: usize,
}

impl Line {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; 1024], length: 0 }
    }

    pub(crate) fn push(&mut self, text: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.length..self.length + text.len()) {
            room.copy_from_slice(text);
            self.length += text.len();
        }
    }

    pub(crate) fn push_number(&mut self, number: u64, base: u64) {
        if number >= base {
            self.push_number(number / base, base);
        }
        self.push(&[b"0123456789abcdef"[(number % base) as usize]]);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_does_not_wait_for_a_writer_of_its_parents() {
        // SAFETY: zero is a value of all its fields.
        let segment = unsafe { Box::<Segment>::new_zeroed().assume_init() };
        BUSY.store(true, Relaxed);
        write(&segment);
        assert_eq!(segment.header.maps_length.load(Relaxed), 0, "another thread is at it");
        crate::forked();
        write(&segment);
        assert_ne!(segment.header.maps_length.load(Relaxed), 0);
    }
}
