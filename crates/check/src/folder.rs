//! A folder for a test's files.

use std::path::PathBuf;

/// A folder of its own for a test, empty at first. Dropped, it goes with all that is in it.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// One whose path has this name, and the number of the process.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("latchwork-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder for temporary files");
        Self(path)
    }

    /// What has this name in it.
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
