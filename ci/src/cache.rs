//! Where downloaded and made things are kept between runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::say;

/// The cache directory, held under a lock: two runs do not make the same image at the same time.
#[derive(Debug)]
pub struct Cache {
    dir: PathBuf,
    _lock: File,
}

/// What the names of folders end with that are being filled.
const PARTIAL: &str = "partial";

/// `$ERNIC_CACHE`, else `$XDG_CACHE_HOME/ernic`, else `~/.cache/ernic`.
///
/// # Errors
/// When none of the three variables is set.
pub fn dir() -> Result<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let dir = var("ERNIC_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|d| d.join("ernic")))
        .or_else(|| var("HOME").map(|d| d.join(".cache/ernic")))
        .context("no place for the cache: none of ERNIC_CACHE, XDG_CACHE_HOME and HOME is set; set ERNIC_CACHE to a folder with 1 GB of room")?;
    // apt and QEMU are given paths inside it from other working directories.
    Ok(std::path::absolute(dir)?)
}

impl Cache {
    /// Opens (and makes) the cache and waits for its lock.
    ///
    /// # Errors
    /// When the folder cannot be made or written to.
    pub fn open() -> Result<Self> {
        let dir = dir()?;
        let hint =
            || format!("the cache folder {} cannot be written to; set ERNIC_CACHE to another one", dir.display());
        fs::create_dir_all(&dir).with_context(hint)?;
        let lock = File::create(dir.join("lock")).with_context(hint)?;
        if lock.try_lock().is_err() {
            say!("waiting for another run that holds {}", dir.join("lock").display());
            lock.lock()?;
        }
        Ok(Self { dir, _lock: lock })
    }

    /// The path of `name` inside the cache.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }

    /// Makes the folder `name` with `fill` unless it is there. `fill` gets an empty folder beside it, which is renamed
    /// when it succeeds: a folder under its final name is always whole.
    ///
    /// # Errors
    /// Those of `fill` and of the file system.
    pub fn folder(&self, name: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let path = self.path(name);
        if path.is_dir() {
            return Ok(path);
        }
        let partial = self.path(format!("{name}.{PARTIAL}"));
        if partial.exists() {
            fs::remove_dir_all(&partial)?;
        }
        fs::create_dir_all(&partial)?;
        if let Err(error) = fill(&partial) {
            // Hundreds of megabytes, of no use to the next try.
            let _ = fs::remove_dir_all(&partial);
            return Err(error);
        }
        fs::rename(&partial, &path)?;
        Ok(path)
    }

    /// A folder of an earlier day in `under` that has the file `whole`: the last by name.
    pub fn kept(&self, under: &str, whole: &str) -> Option<PathBuf> {
        let folders = fs::read_dir(self.path(under)).into_iter().flatten().flatten().map(|entry| entry.path());
        // One that is being filled, or was when its run was killed, is not whole.
        folders.filter(|p| p.extension().is_none_or(|e| e != PARTIAL) && p.join(whole).is_file()).max()
    }

    /// Removes the folders in `under` whose names are not in `keep`.
    pub fn prune(&self, under: &str, keep: &[String]) {
        for entry in fs::read_dir(self.path(under)).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !keep.contains(&name) {
                // Only room is lost when this fails.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_whole_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache { dir: dir.path().to_owned(), _lock: File::create(dir.path().join("lock")).unwrap() };
        let failed = cache.folder("parts/a", |partial| {
            fs::write(partial.join("half"), "")?;
            anyhow::bail!("lost")
        });
        assert_eq!(failed.unwrap_err().to_string(), "lost");
        assert_eq!(fs::read_dir(cache.path("parts")).unwrap().count(), 0);
        let made = cache.folder("parts/a", |partial| Ok(fs::write(partial.join("whole"), "")?)).unwrap();
        assert!(made.join("whole").exists());
        assert_eq!(cache.folder("parts/a", |_| unreachable!()).unwrap(), made);
        assert_eq!(cache.kept("parts", "half"), None);
        fs::create_dir(cache.path("parts/b.partial")).unwrap();
        fs::write(cache.path("parts/b.partial/whole"), "").unwrap();
        assert_eq!(cache.kept("parts", "whole"), Some(made.clone()));
        cache.prune("parts", &["b".to_owned()]);
        assert!(!made.exists());
    }
}
