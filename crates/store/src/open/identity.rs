//! The file `identity`: the format, a random number, and the sizes of the store's files.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::no_store;
use super::text_file::{open_folder, read_file, replace_file};
use crate::error::refused;
use crate::files::inner::Sizes;
use crate::format::{CONVERTED, FORMAT};
use crate::{Error, Refusal};

const TITLE: &str = "latchwork store, format ";
/// Returns a random number as text.
pub(super) fn random() -> Result<String, std::io::Error> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Reads the store's number and the sizes of its files; writes a new identity if the folder has
/// none.
pub(super) fn identity(path: &Path, sizes: &mut Sizes) -> Result<String, Error> {
    let said = |why: std::io::Error| refused(path, why);
    match read_file(&path.join("identity")) {
        Ok(bytes) => read_identity(&bytes, sizes).map_err(|why| refused(path, why)),
        Err(why) if why.kind() == ErrorKind::NotFound => {
            has_nothing_else(path)?;
            write_identity(path, sizes)
        }
        Err(why) => Err(said(why)),
    }
}

/// Refuses a folder that contains other files, before any file is created in it. Accepts a folder
/// in which another process is creating a store.
pub(super) fn is_for_a_store(path: &Path) -> Result<(), Error> {
    match has_nothing_else(path) {
        // The identity is the first file of a store.
        Err(why) if !path.join("identity").exists() => Err(why),
        _ => Ok(()),
    }
}

fn has_nothing_else(path: &Path) -> Result<(), Error> {
    let ours = ["opening", "live", "identity-new"];
    let other = fs::read_dir(path).map_err(|why| refused(path, why))?.filter_map(Result::ok);
    let mut other = other.map(|entry| entry.file_name());
    match other.find(|name| !ours.contains(&name.to_string_lossy().as_ref())) {
        Some(name) => match no_store(path) {
            // The other files of a store exist.
            why @ Error::Open { why: Refusal::Damaged { .. }, .. } => Err(why),
            _ => Err(refused(path, Refusal::NotEmpty { name })),
        },
        None => Ok(()),
    }
}

/// Turns a folder into a store: writes its identity.
pub(crate) fn write_identity(path: &Path, sizes: &Sizes) -> Result<String, Error> {
    let said = |why: std::io::Error| refused(path, why);
    // Before the identity exists: a folder that has one is a store, and this step is not repeated.
    for around in folders_around(path) {
        // As far as permissions allow: this user can open any folder that it has created.
        if let Ok(folder) = open_folder(around) {
            folder.sync_all().map_err(|why| refused(around, why))?;
        }
    }
    let id = random().map_err(said)?;
    put_identity(path, &id, sizes).map_err(said)?;
    Ok(id)
}

fn put_identity(path: &Path, id: &str, sizes: &Sizes) -> std::io::Result<()> {
    let (Sizes { page, log_segment, .. }, program) = (sizes, env!("CARGO_PKG_VERSION"));
    let sizes = format!("page {page}\nsegment {log_segment}\n");
    let text = format!("{TITLE}{FORMAT}\n{id}\nprogram {program}\n{sizes}");
    replace_file(path, "identity", &text)?;
    open_folder(path)?.sync_all()
}

/// Rewrites the identity of a store of an older format in the current format. The caller has
/// exclusive access to the store.
pub(super) fn convert_identity(path: &Path, found: &Identity, sizes: &Sizes) -> Result<(), Error> {
    put_identity(path, &found.id, sizes).map_err(|why| refused(path, why))
}

/// Returns the folders above a path, up to the root of its file system. This process, or a process
/// that died, may have created any of them recently, and everything below a folder whose name is
/// not durable can be lost. A mount point existed before.
fn folders_around(path: &Path) -> impl Iterator<Item = &Path> {
    let device = |path: &Path| fs::metadata(path).ok().map(|about| about.dev());
    let own = device(path);
    path.ancestors().skip(1).take_while(move |around| device(around) == own)
}

/// The contents of an identity, except the sizes.
pub(super) struct Identity {
    pub(super) format: u64,
    pub(super) id: String,
}

/// Parses an identity of the current format.
pub(super) fn read_identity(bytes: &[u8], sizes: &mut Sizes) -> Result<String, Refusal> {
    match parse_identity(bytes, sizes)? {
        Identity { format: FORMAT, id } => Ok(id),
        Identity { format, .. } => Err(Refusal::Older { format }),
    }
}

/// Parses an identity of any format that can be converted. An identity of a version that did not
/// record sizes leaves those of the caller.
pub(super) fn parse_identity(bytes: &[u8], sizes: &mut Sizes) -> Result<Identity, Refusal> {
    let wrong = |what| Refusal::Damaged { file: "identity", what };
    let text = str::from_utf8(bytes).map_err(|_| wrong("it is no text"))?;
    if !text.ends_with('\n') {
        return Err(wrong("it is cut off"));
    }
    let mut lines = text.lines();
    let format = lines.next().and_then(|line| line.strip_prefix(TITLE));
    let program = || text.lines().find_map(|line| line.strip_prefix("program "));
    let format = match format.ok_or(wrong("another program wrote it"))?.parse() {
        Ok(format @ CONVERTED..=FORMAT) => format,
        Ok(format) if format > FORMAT => {
            return Err(Refusal::Newer { format, program: program().map(str::to_owned) });
        }
        Ok(format) => return Err(Refusal::Older { format }),
        Err(_) => return Err(wrong("its format")),
    };
    let id = lines.next().unwrap_or_default();
    if id.len() != 32 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong("no number of a store"));
    }
    let mut names = Vec::new();
    for line in lines {
        let (name, bytes) = line.split_once(' ').unwrap_or_default();
        if names.contains(&name) {
            return Err(wrong("a line that is there twice"));
        }
        names.push(name);
        if name == "program" {
            continue;
        }
        let bytes = bytes.parse::<u64>().map_err(|_| wrong("a size"))?;
        match name {
            "page" => sizes.page = u32::try_from(bytes).map_err(|_| wrong("a size"))?,
            "segment" => sizes.log_segment = bytes,
            _ => return Err(wrong("a line")),
        }
    }
    // The caller's other sizes are checked elsewhere.
    let mut made = Sizes { page: sizes.page, log_segment: sizes.log_segment, ..Sizes::default() };
    // The log buffer is at most as large as a segment.
    for sizes in [&mut made, sizes] {
        while sizes.log_buffer > sizes.log_segment {
            sizes.log_buffer /= 2;
        }
    }
    made.check().map_err(|_| wrong("a size"))?;
    Ok(Identity { format, id: id.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If a name is not durable, everything below it can be lost.
    #[test]
    fn all_folders_above_a_new_store_are_to_be_synced() {
        let temp = fs::canonicalize(std::env::temp_dir()).unwrap();
        let top = temp.join(format!("store-around-{}", std::process::id()));
        let path = top.join("a/b");
        fs::create_dir_all(&path).unwrap();
        let around: Vec<_> = folders_around(&path).collect();
        assert_eq!(around[..3], [&top.join("a"), &top, &temp]);
        fs::remove_dir_all(top).unwrap();
        assert_eq!(
            folders_around(Path::new("/proc/self")).collect::<Vec<_>>(),
            [Path::new("/proc")]
        );
    }

    #[test]
    fn an_identity_that_is_anything_is_refused_or_understood() {
        let number = "0123456789abcdef0123456789abcdef";
        let sound = format!("{TITLE}{FORMAT}\n{number}\npage 4096\nsegment 4194304\n");
        let read = |bytes: &[u8]| read_identity(bytes, &mut Sizes::default());
        assert_eq!(read(sound.as_bytes()).as_deref(), Ok(number));
        assert_eq!(read(format!("{TITLE}{FORMAT}\n{number}\n").as_bytes()).as_deref(), Ok(number));
        let of = |format: u64| sound.replacen(&FORMAT.to_string(), &format.to_string(), 1);
        let (newer, program) = (FORMAT + 1, Some("0.3.0".to_owned()));
        let text = of(newer) + "program 0.3.0\n";
        assert_eq!(read(text.as_bytes()), Err(Refusal::Newer { format: newer, program }));
        for format in 4..FORMAT {
            assert_eq!(read(of(format).as_bytes()), Err(Refusal::Older { format }));
        }
        for length in 0..sound.len() {
            if let Ok(id) = read(&sound.as_bytes()[..length]) {
                assert!(sound[..length].ends_with('\n'), "{length}: {id}");
            }
        }
        for wrong in ["page 0", "page 5000", "page 99999999999", "segment 1", "room 7", "page"] {
            let text = sound.replace("page 4096", wrong);
            assert!(matches!(read(text.as_bytes()), Err(Refusal::Damaged { .. })), "{wrong}");
        }
        let large = sound.replace("page 4096", "page 65536");
        let mut small = Sizes { log_buffer: 1 << 20, ..Sizes::default() };
        assert_eq!(read_identity(large.as_bytes(), &mut small).as_deref(), Ok(number));
        assert!(matches!(small.check(), Err(crate::Error::Options(_))), "that is the caller's");
        let path = sound.replace(number, "../../../../../../../../../../../e");
        assert!(matches!(read(path.as_bytes()), Err(Refusal::Damaged { .. })));
        assert!(matches!(read(b"\xff\xfe\n"), Err(Refusal::Damaged { .. })));
    }
}
