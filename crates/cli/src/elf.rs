//! The parts of ELF that determine whether the loader will preload our library.
//!
//! Nothing in the file is trusted: every offset is checked against the bytes read.

/// The kind of a program, from the beginning of its file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Image {
    /// A program with a loader for this machine: the loader's path.
    Dynamic(Vec<u8>),
    /// A program without a loader.
    Static,
    /// A program for another machine, by ELF's number, or of another word size.
    Foreign(u16),
    /// A script; its interpreter's path.
    Script(Vec<u8>),
    /// Another kind of file.
    Unknown,
}

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("no pthread layouts are known for this machine");

const INTERPRETER: u32 = 3;

/// Classifies a file by its first bytes; 4 KiB suffice for all known linkers.
pub(crate) fn image(bytes: &[u8]) -> Image {
    if let Some(rest) = bytes.strip_prefix(b"#!") {
        let line = rest.split(|b| *b == b'\n').next().unwrap_or_default().trim_ascii_start();
        let path = line.split(|b| b.is_ascii_whitespace()).next().unwrap_or_default();
        return Image::Script(path.to_vec());
    }
    if !bytes.starts_with(b"\x7fELF") {
        return Image::Unknown;
    }
    let machine = half(bytes, 18).unwrap_or(0);
    // 64 bits, little-endian, like this program.
    if bytes.get(4..6) != Some(&[2, 1]) || machine != MACHINE {
        return Image::Foreign(machine);
    }
    match asks_for_loader(bytes) {
        Some(Some(loader)) => Image::Dynamic(loader),
        Some(None) => Image::Static,
        None => Image::Unknown,
    }
}

/// The interpreter that a program header names, if one does; none if the headers are missing. A
/// path behind the bytes read is empty.
fn asks_for_loader(bytes: &[u8]) -> Option<Option<Vec<u8>>> {
    let table = usize::try_from(u64::from_le_bytes(field(bytes, 32)?)).ok()?;
    let size = usize::from(half(bytes, 54)?);
    let count = usize::from(half(bytes, 56)?);
    let mut found = None;
    for index in 0..count {
        let at = table.checked_add(index.checked_mul(size)?)?;
        if u32::from_le_bytes(field(bytes, at)?) == INTERPRETER {
            let place = |from: usize| {
                let at = at.checked_add(from)?;
                usize::try_from(u64::from_le_bytes(field(bytes, at)?)).ok()
            };
            let (from, length) = (place(8)?, place(32)?);
            let path = bytes.get(from..from.saturating_add(length)).unwrap_or_default();
            found = Some(path.split(|byte| *byte == 0).next().unwrap_or_default().to_vec());
        }
    }
    Some(found)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    field(bytes, at).map(u16::from_le_bytes)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_dynamic_and_its_pieces_are_no_panic() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        assert!(matches!(image(&bytes), Image::Dynamic(loader) if loader.starts_with(b"/")));
        for length in 0..2000 {
            let _ = image(&bytes[..length]);
        }
    }

    #[test]
    fn scripts_name_an_interpreter() {
        assert_eq!(image(b"#! /bin/sh -e\n"), Image::Script(b"/bin/sh".to_vec()));
        assert_eq!(image(b"#!"), Image::Script(Vec::new()));
        assert_eq!(image(b"echo"), Image::Unknown);
    }

    #[test]
    fn another_machine_is_foreign() {
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18] = 40;
        assert_eq!(image(&bytes), Image::Foreign(40));
    }

    #[test]
    fn offsets_that_lead_astray_are_unknown() {
        let mut bytes = std::fs::read("/proc/self/exe").unwrap()[..4096].to_vec();
        bytes[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(image(&bytes), Image::Unknown);
    }
}
