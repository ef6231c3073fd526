//! S3's stock tools for the lanes that use them: Debian packages unpacked in the cache and run from there, and Python
//! packages that Debian does not have, from the machine's Python package index.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::apt::{Apt, Deb};
use crate::cache::Cache;
use crate::guest::{self, payload, recipe};
use crate::progress::{Step, megabytes, tree_bytes, watching};
use crate::tree::Tree;
use crate::{process, say};

/// The packages with the tools. `python3-pip` gets what Debian does not have.
const PACKAGES: [&str; 11] = [
    "awscli",
    "s3cmd",
    "rclone",
    "minio-client",
    "s3fs",
    "curl",
    "python3-boto3",
    "python3-awscrt",
    "python3-certifi",
    "python3-urllib3",
    "python3-pip",
];

/// Packages whose versions are told.
const SHOWN: [&str; 7] = ["awscli", "s3cmd", "rclone", "minio-client", "s3fs", "curl", "python3-boto3"];

/// What pip installs: each with its version and the hash of its file.
const REQUIREMENTS: &str = include_str!("requirements.txt");

/// Tools by the names of their wrappers: the program in the tree, and whether Python runs it.
const TOOLS: [(&str, &str, bool); 6] = [
    ("aws", "usr/bin/aws", true),
    ("s3cmd", "usr/bin/s3cmd", true),
    ("rclone", "usr/bin/rclone", false),
    ("mc", "usr/bin/minio-client", false),
    ("s3fs", "usr/bin/s3fs", false),
    ("curl", "usr/bin/curl", false),
];

/// Goes up with every change to how the folders are put together.
const VERSION: u32 = 1;

/// The unpacked tools.
#[derive(Debug)]
pub struct Tools {
    bin: PathBuf,
    site: Result<PathBuf, String>,
    versions: String,
}

impl Tools {
    /// Finds or makes them in the cache. What pip cannot get is told by [`Tools::site`] only.
    ///
    /// # Errors
    /// When Debian's packages cannot be had and none of an earlier day are kept.
    pub fn acquire(mirror: Option<&str>) -> Result<Self> {
        let cache = Cache::open()?;
        let apt = Apt::open(cache.path("apt"), mirror, &recipe::SUITES, recipe::PINS)?;
        let attempt = || -> Result<PathBuf> {
            let debs = apt.resolve(&PACKAGES, true)?;
            let id = format!("debian-{}", guest::digest(&format!("{}{VERSION}", guest::list(&debs))));
            cache.folder(&format!("tools/{id}"), |partial| make(&apt, &debs, partial))
        };
        let made = apt.newest(&cache, "tools", ("tools", "bin/aws"), attempt)?;
        let bin = made.join("bin");
        let versions = fs::read_to_string(made.join("versions"))?;
        let id = format!("python-{}", guest::digest(&format!("{REQUIREMENTS}{VERSION}")));
        let site = cache.folder(&format!("tools/{id}"), |partial| install(&bin.join("python3"), partial));
        let keep = [made.file_name().unwrap_or_default().to_string_lossy().into_owned(), id];
        cache.prune("tools", &keep);
        Ok(Self { bin, site: site.map_err(|e| format!("{e:#}")), versions })
    }

    /// A command that runs a tool or `python3`, without what this machine's environment and configuration would change.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        for (variable, _) in std::env::vars_os() {
            let text = variable.to_string_lossy();
            if ["PYTHON", "AWS_", "RCLONE_", "MC_", "DUCKDB"].iter().any(|p| text.starts_with(p))
                || text.to_ascii_lowercase().ends_with("_proxy")
            {
                command.env_remove(&variable);
            }
        }
        command.env("PYTHONNOUSERSITE", "1").env("PYTHONDONTWRITEBYTECODE", "1").env("LC_ALL", "C.UTF-8");
        if let Ok(site) = &self.site {
            command.env("PYTHONPATH", site);
        }
        command
    }

    /// The folder with the tools, for a script that starts them.
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// The tree with the packages.
    pub fn tree(&self) -> Tree {
        Tree::at(self.bin.with_file_name("tree"))
    }

    /// Why there are no packages from the package index, if so.
    pub fn no_site(&self) -> Option<&str> {
        self.site.as_ref().err().map(String::as_str)
    }

    /// Names and versions of the tools, in one line.
    pub fn versions(&self) -> &str {
        &self.versions
    }
}

/// `cargo xtask tools`.
///
/// # Errors
/// Those of [`Tools::acquire`].
pub fn print(mirror: Option<&str>) -> Result<()> {
    let tools = Tools::acquire(mirror)?;
    say!("{}", tools.versions());
    match &tools.site {
        Ok(site) => say!("for the Python packages: PYTHONPATH={}", site.display()),
        Err(why) => say!("{why}"),
    }
    println!("{}", tools.bin().display());
    Ok(())
}

/// Downloads and unpacks Debian's packages, and makes the wrappers.
fn make(apt: &Apt, debs: &[Deb], partial: &Path) -> Result<()> {
    let into = partial.join("debs");
    let step = Step::begin("tools: download");
    let total = debs.iter().map(|d| d.size).sum();
    watching("tools: download", &into, total, || apt.fetch(&PACKAGES, true, &into))?;
    step.done(&format!("{} in {} packages", megabytes(tree_bytes(&into)), debs.len()));
    let step = Step::begin("tools: unpack");
    let root = partial.join("tree");
    let tree = Tree::unpack(&into, &root)?;
    fs::remove_dir_all(&into)?;
    let python = payload::interpreter(&tree)?;
    let folders = [format!("usr/lib/{python}"), "usr/lib/python3/dist-packages".to_owned()];
    for folder in &folders {
        payload::leave_out(&tree.path(folder), &["s3", "sts"])?;
    }
    // awscli starts in a second with compiled files and in four without.
    payload::compile(&tree, &python, &folders)?;
    let bin = partial.join("bin");
    fs::create_dir_all(&bin)?;
    wrapper(&bin.join("python3"), &format!("usr/bin/{python}"), None)?;
    for (name, program, script) in TOOLS {
        match script {
            true => wrapper(&bin.join(name), &format!("usr/bin/{python}"), Some(program))?,
            false => wrapper(&bin.join(name), program, None)?,
        }
    }
    let versions: Vec<String> = debs
        .iter()
        .map(Deb::name_version)
        .filter(|(name, _)| SHOWN.contains(name))
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    fs::write(partial.join("versions"), versions.join(", "))?;
    step.done(&megabytes(tree_bytes(&root)));
    Ok(())
}

/// A shell script that runs `program` of the tree beside it with the tree's loader and libraries; `script` is for the
/// interpreter that `program` is then.
fn wrapper(path: &Path, program: &str, script: Option<&str>) -> Result<()> {
    let libraries = format!("$d/tree/{}", crate::tree::LIBRARIES);
    let python = if program.contains("/python3") {
        // libmagic, which s3cmd asks for types, looks for its table in the system.
        "export PYTHONHOME=\"$d/tree/usr\" MAGIC=\"$d/tree/usr/lib/file/magic.mgc\"\n"
    } else {
        ""
    };
    let script = script.map(|s| format!(" \"$d/tree/{s}\"")).unwrap_or_default();
    let text = format!(
        "#!/bin/sh\nd=$(dirname \"$0\")/..\n{python}exec \"{libraries}/ld-linux-x86-64.so.2\" --library-path \"{libraries}\" --argv0 \"$0\" \"$d/tree/{program}\"{script} \"$@\"\n"
    );
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Installs [`REQUIREMENTS`] into the folder `into` with the pip of Debian's Python, from where this machine's pip would.
fn install(python: &Path, into: &Path) -> Result<()> {
    let step = Step::begin("tools: Python packages");
    let list = tempfile::Builder::new().prefix("requirements-").suffix(".txt").tempfile()?;
    fs::write(list.path(), REQUIREMENTS)?;
    let mut command = Command::new(python);
    command.args(["-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", "--no-deps"]);
    command.args(["--only-binary", ":all:", "--require-hashes", "--target"]).arg(into).arg("-r").arg(list.path());
    command.env_remove("PYTHONPATH").env("PYTHONNOUSERSITE", "1");
    process::output(&mut command).context("pip cannot install the Python packages of the tools")?;
    step.done(&megabytes(tree_bytes(into)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_requirement_is_pinned_with_a_hash() {
        let lines: Vec<&str> = REQUIREMENTS.lines().filter(|l| !l.starts_with('#')).collect();
        assert!(lines.len() >= 7);
        for line in lines {
            let (name, rest) = line.split_once("==").unwrap();
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{line}");
            let (version, hash) = rest.split_once(" --hash=sha256:").unwrap();
            assert!(version.starts_with(|c: char| c.is_ascii_digit()) && hash.len() == 64, "{line}");
        }
    }

    #[test]
    fn a_wrapper_runs_what_is_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let loader = folder.path().join("tree").join(crate::tree::LIBRARIES);
        fs::create_dir_all(&loader).unwrap();
        fs::create_dir_all(folder.path().join("bin")).unwrap();
        let write = "printf '#!/bin/sh\\necho \"$PYTHONHOME\"; printf \"%%s|\" \"$@\"\\n' >\"$1\" && chmod 755 \"$1\"";
        process::output(Command::new("sh").args(["-c", write, "sh"]).arg(loader.join("ld-linux-x86-64.so.2"))).unwrap();
        let path = folder.path().join("bin/tool");
        wrapper(&path, "usr/bin/python3.13", Some("usr/bin/tool")).unwrap();
        let said = process::stdout(Command::new(&path).args(["a b", "c"])).unwrap();
        let (home, words) = said.split_once('\n').unwrap();
        let d = format!("{}/bin/..", folder.path().display());
        assert_eq!(home, format!("{d}/tree/usr"));
        let libraries = format!("{d}/tree/{}", crate::tree::LIBRARIES);
        let expected = [
            "--library-path",
            &libraries,
            "--argv0",
            &path.display().to_string(),
            &format!("{d}/tree/usr/bin/python3.13"),
            &format!("{d}/tree/usr/bin/tool"),
            "a b",
            "c",
        ];
        assert_eq!(words.split('|').collect::<Vec<_>>()[..8], expected);
    }
}
