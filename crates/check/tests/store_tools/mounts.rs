//! File systems that a test mounts in its own mount namespace, which ends with its process.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::stage::Place;

/// Runs this test program again, in the test of this name, where it may mount file systems that no
/// other process sees. The test creates the file `done` at its end. Skips with a message if
/// mounting is not allowed.
pub(crate) fn in_namespace(place: &Place, test: &str) {
    if !may_mount() {
        println!("SKIPPED: this user may not mount file systems");
        return;
    }
    let ended = place.start_by("exec unshare -m \"$0\" \"$@\"", test).wait().unwrap();
    assert!(ended.success(), "{test}: {ended}");
    assert!(place.at("done").exists(), "{test} did not complete");
}

fn may_mount() -> bool {
    runs("unshare", &["-m", "sh", "-c", "mount -t tmpfs none /mnt"])
}

/// Returns whether a program exits successfully.
pub(crate) fn runs(program: &str, args: &[&str]) -> bool {
    let ended =
        Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
    ended.is_ok_and(|ended| ended.success())
}

/// Creates an ext4 file system of this size in a file in memory, and mounts it.
pub(crate) fn mount_ext4(bytes: u64, block: u32, at: &Path) -> bool {
    let memory = at.with_extension("memory");
    std::fs::create_dir(at).and_then(|()| std::fs::create_dir(&memory)).unwrap();
    assert!(runs("mount", &["-t", "tmpfs", "none", memory.to_str().unwrap()]));
    let image = memory.join("image");
    std::fs::File::create(&image).and_then(|file| file.set_len(bytes)).unwrap();
    let (image, at) = (image.to_str().unwrap(), at.to_str().unwrap());
    runs("mkfs.ext4", &["-q", "-F", "-b", &block.to_string(), "-m", "0", image])
        && runs("mount", &["-o", "loop", image, at])
}
