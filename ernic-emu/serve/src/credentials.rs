//! The keys that requests are signed with: from a file, from the environment, or from both.
//!
//! Never from the command line, which everybody on the machine can read.

use std::{env, fmt::Write as _, fs, io::Read, os::unix::fs::PermissionsExt, path::Path};

use anyhow::{Context, bail};
use s3_proto::Credentials;

use crate::backend::S3Options;

/// Environment variables of one access key and its secret.
pub const VARIABLES: [&str; 2] = ["ERNIC_ACCESS_KEY", "ERNIC_SECRET_KEY"];
/// Most bytes of a file of credentials.
const MAX_FILE: u64 = 1 << 20;
/// Rights of group and others.
const OTHERS: u32 = 0o077;

/// Whether authentication is asked for, well or badly.
#[must_use]
pub fn are_given(s3: &S3Options) -> bool {
    s3.credentials.is_some() || VARIABLES.iter().any(|name| env::var_os(name).is_some())
}

/// The credentials that the options and the environment name; `None` where they name none.
///
/// # Errors
///
/// One of the two variables without the other; a file that cannot be read, that others can read, or that is malformed. No
/// text shows a secret.
pub fn load(s3: &S3Options) -> anyhow::Result<Option<Credentials>> {
    let mut credentials = Credentials::new();
    if let Some(path) = &s3.credentials {
        read(&mut credentials, path).with_context(|| format!("s3 backend: bad credentials '{}'", path.display()))?;
    }
    let [access, secret] = VARIABLES.map(|name| env::var(name).ok());
    match (access, secret) {
        (None, None) => {}
        (Some(access), Some(secret)) => credentials.add(&access, &secret).context(VARIABLES.join(" and "))?,
        (Some(_), None) => bail!("{} is set without {}: set both, or neither", VARIABLES[0], VARIABLES[1]),
        (None, Some(_)) => bail!("{} is set without {}: set both, or neither", VARIABLES[1], VARIABLES[0]),
    }
    Ok((!credentials.is_empty()).then_some(credentials))
}

/// Reads lines of `ACCESS:SECRET`; empty ones and those that start with `#` are skipped.
fn read(credentials: &mut Credentials, path: &Path) -> anyhow::Result<()> {
    let file = fs::File::open(path)?;
    // Of the file that is open, whatever is at the path by now.
    let metadata = file.metadata()?;
    let mode = metadata.permissions().mode();
    if metadata.is_file() && mode & OTHERS != 0 {
        bail!(
            "others than its owner have rights to it (mode {:04o}); run: chmod 600 {}",
            mode & 0o7777,
            quoted(&path.display().to_string())
        );
    }
    let mut text = String::new();
    file.take(MAX_FILE).read_to_string(&mut text)?;
    let before = credentials.len();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let number = i + 1;
        // Its text may be a secret that stands alone.
        let Some((access, secret)) = line.split_once(':') else {
            bail!("line {number} is not ACCESS:SECRET");
        };
        credentials.add(access.trim(), secret.trim()).with_context(|| format!("line {number}"))?;
    }
    if credentials.len() == before {
        bail!("it has no line ACCESS:SECRET");
    }
    Ok(())
}

/// One word for a POSIX shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(plain) {
        return text.to_owned();
    }
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(out, "'{}'", text.replace('\'', r"'\''"));
    out
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn file(mode: u32, content: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    fn refused(mode: u32, content: &str) -> String {
        let (_dir, path) = file(mode, content);
        let options = S3Options { credentials: Some(path.clone()), ..S3Options::default() };
        let text = format!("{:#}", load(&options).unwrap_err());
        text.replace(path.to_str().unwrap(), "FILE")
    }

    #[test]
    fn files_of_keys() {
        let (_dir, path) = file(0o600, "# mine\n\nalice:wonder:land\r\n  bob : builder \n");
        let options = S3Options { credentials: Some(path), ..S3Options::default() };
        assert!(are_given(&options));
        let credentials = load(&options).unwrap().unwrap();
        let mut expected = Credentials::new();
        expected.add("alice", "wonder:land").unwrap();
        expected.add("bob", "builder").unwrap();
        assert_eq!(credentials, expected);
        assert!(!format!("{credentials:?} {options:?}").contains("wonder"));
    }

    #[test]
    fn refusals_name_the_file_and_no_secret() {
        for (mode, content, expected) in [
            (0o640, "a:b", "others than its owner have rights to it (mode 0640); run: chmod 600 FILE"),
            (0o604, "a:b", "others than its owner have rights to it (mode 0604); run: chmod 600 FILE"),
            (0o600, "", "it has no line ACCESS:SECRET"),
            (0o600, "# a:b\n", "it has no line ACCESS:SECRET"),
            (0o600, "a:b\nhidden\n", "line 2 is not ACCESS:SECRET"),
            (0o400, "a:hidden\na:hidden2\n", "line 2: access key 'a' is given twice"),
            (0o600, "a:\n", "line 1: the secret of access key 'a' is empty"),
            (0o600, ":hidden\n", "line 1: bad access key '': use printable ASCII without spaces, commas and quotes"),
        ] {
            assert_eq!(refused(mode, content), format!("s3 backend: bad credentials 'FILE': {expected}"));
        }
        let options = S3Options { credentials: Some("/nowhere/keys".into()), ..S3Options::default() };
        let text = format!("{:#}", load(&options).unwrap_err());
        assert!(text.starts_with("s3 backend: bad credentials '/nowhere/keys': No such file"), "{text}");
    }

    #[test]
    fn words_for_a_shell() {
        assert_eq!((quoted("/a/b-c.d"), quoted("it's")), ("/a/b-c.d".to_owned(), r"'it'\''s'".to_owned()));
    }
}
