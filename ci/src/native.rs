//! What a build of `ernic-verbs` needs of the machine, or else of packages that are unpacked in the cache.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    apt::Apt,
    cache::Cache,
    guest,
    progress::{Step, megabytes, tree_bytes, watching},
    tree::{LIBRARIES, Tree},
};

/// Goes up with every change to how the folder is put together.
const VERSION: u32 = 1;

/// Variables for a build of `ernic-verbs`: none where the machine has cmake and libclang.
#[derive(Debug, Clone, Default)]
pub struct Native(Vec<(&'static str, OsString)>);

impl Native {
    /// Finds cmake and libclang, or fetches them from the mirror that the machine's apt uses, without installing anything. libclang is
    /// loaded by programs of this machine, so that it is its own release's.
    ///
    /// # Errors
    /// What is missing and cannot be fetched, and what to install.
    pub fn acquire(mirror: Option<&str>) -> Result<Self> {
        let missing = missing();
        if missing.is_empty() {
            return Ok(Self::default());
        }
        let tree = fetch(mirror)
            .with_context(|| format!("without {}: apt-get install cmake libclang-dev", missing.join(" and ")))?;
        let before = |variable: &str, folder: PathBuf| {
            let old = env::var_os(variable).unwrap_or_default();
            env::join_paths([folder].into_iter().chain(env::split_paths(&old).filter(|p| !p.as_os_str().is_empty())))
        };
        let libclang = libclang(&tree)?;
        let headers = headers(&libclang)?;
        Ok(Self(vec![
            ("PATH", before("PATH", tree.path("usr/bin"))?),
            ("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", tree.path(LIBRARIES))?),
            ("LIBCLANG_PATH", libclang.into()),
            // It looks for its own headers beside its file, and finds a link.
            ("BINDGEN_EXTRA_CLANG_ARGS", format!("-isystem {}", headers.display()).into()),
        ]))
    }

    /// Gives them to a command that builds.
    pub fn apply(&self, command: &mut Command) {
        command.envs(self.0.iter().cloned());
    }
}

/// The folder of the tree that has libclang.
fn libclang(tree: &Tree) -> Result<PathBuf> {
    let versions = fs::read_dir(tree.path("usr/lib")).context("no libraries in the packages")?.flatten();
    let mut folders = versions.map(|entry| entry.path().join("lib"));
    folders.find(|folder| has_libclang(folder)).context("no libclang in the packages")
}

/// The folder beside libclang that has the compiler's own headers.
fn headers(libclang: &Path) -> Result<PathBuf> {
    let versions = fs::read_dir(libclang.join("clang")).context("no headers in the packages")?.flatten();
    let mut folders = versions.map(|entry| entry.path().join("include"));
    folders.find(|folder| folder.join("stddef.h").is_file()).context("no stddef.h in the packages")
}

/// The name of this release in Debian's archive, from os-release(5).
fn codename(text: &str) -> Option<&str> {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.map(|value| value.trim().trim_matches(['"', '\'']))
    };
    if value("ID")? == "debian" { value("VERSION_CODENAME") } else { None }
}

/// The newest libclang of a list of package names: its number.
fn newest(names: &[String]) -> Option<u32> {
    names.iter().filter_map(|name| name.strip_prefix("libclang1-")?.parse().ok()).max()
}

/// Packages with cmake and libclang, unpacked in the cache.
fn fetch(mirror: Option<&str>) -> Result<Tree> {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let Some(suite) = codename(&text) else { bail!("this machine is not Debian, whose packages are fetched") };
    let cache = Cache::open()?;
    let apt = Apt::open(cache.path("apt-host"), mirror, &[suite], "")?;
    let attempt = || -> Result<PathBuf> {
        let number = newest(&apt.names("libclang1-")?).context("there is no package libclang1-…")?;
        let packages = ["cmake".to_owned(), format!("libclang1-{number}"), format!("libclang-common-{number}-dev")];
        let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
        let debs = apt.resolve(&packages, true)?;
        let id = guest::digest(&format!("{suite} {}{VERSION}", guest::list(&debs)));
        let made = cache.folder(&format!("native/{id}"), |partial| {
            let step = Step::begin("cmake and libclang: download");
            let (into, total) = (partial.join("debs"), debs.iter().map(|deb| deb.size).sum());
            watching("cmake and libclang: download", &into, total, || apt.fetch(&packages, true, &into))?;
            step.done(&format!("{} in {} packages", megabytes(tree_bytes(&into)), debs.len()));
            // The C library goes with the loader, and that is the machine's.
            for file in fs::read_dir(&into)?.flatten().filter(|f| f.file_name().to_string_lossy().starts_with("libc6_"))
            {
                fs::remove_file(file.path())?;
            }
            Tree::unpack(&into, &partial.join("tree"))?;
            Ok(fs::remove_dir_all(&into)?)
        })?;
        cache.prune("native", &[id]);
        Ok(made)
    };
    let made = apt.newest(&cache, "cmake and libclang", ("native", "tree/usr/bin/cmake"), attempt)?;
    Ok(Tree::at(made.join("tree")))
}

/// Folders in which distributions keep libclang (clang-sys, `support.rs` and `build/common.rs`).
const FOLDERS: [&str; 5] =
    ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];

/// The programs and libraries that are missing, of cmake and libclang; none where `ernic-verbs` can be built.
fn missing() -> Vec<&'static str> {
    let path = env::var_os("PATH").unwrap_or_default();
    let cmake = env::var_os("CMAKE").is_some() || env::split_paths(&path).any(|folder| folder.join("cmake").is_file());
    let versions = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let versions = versions.filter(|path| file_name(path).is_some_and(|name| name.starts_with("llvm")));
    let given = env::var_os("LIBCLANG_PATH").map(PathBuf::from);
    let mut folders = FOLDERS.iter().map(PathBuf::from).chain(versions.map(|folder| folder.join("lib"))).chain(given);
    let clang = folders.any(|folder| has_libclang(&folder));
    let mut missing = Vec::new();
    missing.extend((!cmake).then_some("cmake"));
    missing.extend((!clang).then_some("libclang"));
    missing
}

/// Whether libclang is in a folder.
fn has_libclang(folder: &Path) -> bool {
    let mut files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    // A link may lead nowhere.
    files.any(|path| path.is_file() && file_name(&path).is_some_and(is_libclang))
}

fn file_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

/// Whether a library is libclang, as clang-sys looks for it: `libclang.so`, `libclang-14.so.1`. Others begin alike.
fn is_libclang(name: &str) -> bool {
    let stem = name.split_once(".so").and_then(|(stem, _)| stem.strip_prefix("libclang"));
    let number = |version: &str| version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    stem.is_some_and(|stem| stem.is_empty() || stem.strip_prefix('-').is_some_and(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_debians_own() {
        let text = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        assert_eq!(codename(text), Some("bookworm"));
        assert_eq!(codename(&text.replace("ID=debian", "ID=ubuntu\nID_LIKE=debian")), None);
        assert_eq!(codename("ID=debian\n"), None);
        let names = ["libclang1-9", "libclang1-14", "libclang1-13", "libclang1-14-dbgsym"].map(str::to_owned);
        assert_eq!(newest(&names), Some(14));
        assert_eq!(newest(&[]), None);
    }

    #[test]
    fn libclang_is_told_from_its_neighbours() {
        for name in [
            "libclang.so",
            "libclang.so.1",
            "libclang-14.so",
            "libclang-14.so.1",
            "libclang-14.so.14.0.6",
            "libclang.so.18.1",
        ] {
            assert!(is_libclang(name), "{name}");
        }
        for name in [
            "libclang-cpp.so.14",
            "libclang-cpp.so",
            "libclangTooling.so",
            "libLLVM-14.so.1",
            "libclang.a",
            "libclang-14",
        ] {
            assert!(!is_libclang(name), "{name}");
        }
    }
}
