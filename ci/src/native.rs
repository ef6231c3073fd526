//! What a build of `ernic-verbs` needs of the machine.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// Folders in which distributions keep libclang (clang-sys, `support.rs` and `build/common.rs`).
const FOLDERS: [&str; 5] =
    ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];

/// The programs and libraries that are missing, of cmake and libclang; none where `ernic-verbs` can be built.
pub fn missing() -> Vec<&'static str> {
    let path = env::var_os("PATH").unwrap_or_default();
    let cmake = env::var_os("CMAKE").is_some() || env::split_paths(&path).any(|folder| folder.join("cmake").is_file());
    let versions = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let versions = versions.filter(|path| file_name(path).is_some_and(|name| name.starts_with("llvm")));
    let given = env::var_os("LIBCLANG_PATH").map(PathBuf::from);
    let folders = FOLDERS.iter().map(PathBuf::from).chain(versions.map(|folder| folder.join("lib"))).chain(given);
    let clang = folders.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    let clang = clang.map(|entry| entry.path()).any(|path| file_name(&path).is_some_and(is_libclang));
    let mut missing = Vec::new();
    missing.extend((!cmake).then_some("cmake"));
    missing.extend((!clang).then_some("libclang"));
    missing
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
