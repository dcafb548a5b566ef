//! A tree that looks like another machine, for the tests of everything that reads one.

use super::SystemRoot;
use std::fs;
use tempfile::TempDir;

/// `files`: path without its leading slash, and content. The folder goes with the first value.
pub(crate) fn tree(files: &[(&str, &str)]) -> (TempDir, SystemRoot) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let root = SystemRoot::at(dir.path());
    (dir, root)
}
