//! A directory for the files of a test.

use std::path::PathBuf;

/// An empty directory for one test, removed on drop.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// A directory whose path contains this name and the process id.
    ///
    /// # Panics
    ///
    /// If it cannot be created.
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("latchwork-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder for temporary files");
        Self(path)
    }

    /// The path of the file `name` in the directory.
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
