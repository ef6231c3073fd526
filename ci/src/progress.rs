//! Progress lines on standard error: what is done, how much, how long.

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Prints one progress line.
#[macro_export]
macro_rules! say {
    ($($word:tt)*) => { eprintln!("xtask: {}", format_args!($($word)*)) };
}

/// A step that takes a while: says so after some seconds, and its time at the end.
#[derive(Debug)]
pub struct Step {
    what: String,
    start: Instant,
}

impl Step {
    /// Starts the clock.
    pub fn begin(what: impl Into<String>) -> Self {
        Self { what: what.into(), start: Instant::now() }
    }

    /// Prints `what: detail, N.N s`.
    pub fn done(self, detail: &str) {
        let seconds = self.start.elapsed().as_secs_f64();
        if detail.is_empty() {
            say!("{}: {seconds:.1} s", self.what);
        } else {
            say!("{}: {detail}, {seconds:.1} s", self.what);
        }
    }
}

/// Bytes as `N.N MB` (10^6).
pub fn megabytes(bytes: u64) -> String {
    format!("{}.{} MB", bytes / 1_000_000, bytes % 1_000_000 / 100_000)
}

/// Bytes of all files below `dir`, by their lengths. What cannot be read counts as nothing.
pub fn tree_bytes(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => tree_bytes(&entry.path()),
            Ok(kind) if kind.is_file() => entry.metadata().map_or(0, |m| m.len()),
            _ => 0,
        })
        .sum()
}

/// Runs `work`; meanwhile prints, every five seconds, how many bytes have arrived below `dir` (with `of` the total).
pub fn watching<T>(what: &str, dir: &Path, of: u64, work: impl FnOnce() -> T) -> T {
    let (done, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while ended.recv_timeout(Duration::from_secs(5)) == Err(mpsc::RecvTimeoutError::Timeout) {
                say!("{what}: {} of {}", megabytes(tree_bytes(dir)), megabytes(of));
            }
        });
        let result = work();
        drop(done);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn megabytes_are_decimal_and_cut() {
        assert_eq!(megabytes(0), "0.0 MB");
        assert_eq!(megabytes(41_199_999), "41.1 MB");
    }

    #[test]
    fn tree_bytes_sums_files_and_not_links() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        std::fs::write(dir.path().join("d/a"), [0; 10]).unwrap();
        std::fs::write(dir.path().join("b"), [0; 5]).unwrap();
        std::os::unix::fs::symlink("b", dir.path().join("l")).unwrap();
        assert_eq!(tree_bytes(dir.path()), 15);
    }
}
