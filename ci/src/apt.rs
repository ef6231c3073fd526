//! Debian packages without root and without touching the host: a private apt state in the cache, filled from the mirror
//! that the machine's own apt uses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::{process, say};

/// One package file that apt would download.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Deb {
    /// File name: `name_version_arch.deb`, with an epoch's colon as `%3a`.
    pub file: String,
    /// Bytes.
    pub size: u64,
}

impl Deb {
    /// Package name and version.
    pub fn name_version(&self) -> (&str, String) {
        let mut parts = self.file.split('_');
        let name = parts.next().unwrap_or_default();
        (name, parts.next().unwrap_or_default().replace("%3a", ":"))
    }
}

/// How a person goes on where apt cannot help. Ends every error about that.
pub const GO_ON: &str = "How to go on: name a Debian mirror with --mirror URL or ERNIC_MIRROR, or bring your own with --qemu PATH (10.1 or newer) \
     --kernel PATH --initrd PATH; kernel and initrd are what `cargo xtask guest` makes on any Debian machine";

/// A private apt state.
#[derive(Debug)]
pub struct Apt {
    dir: PathBuf,
}

/// One `deb` source of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Source {
    uri: String,
    suite: String,
    components: Vec<String>,
}

/// The format of sources.list(5), "one line style".
fn parse_one_line(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(rest) = line.strip_prefix("deb").filter(|r| r.starts_with([' ', '\t'])) else {
            continue;
        };
        let rest = rest.trim_start();
        // [option=value …] may hold blanks.
        let rest = match rest.strip_prefix('[') {
            Some(options) => options.split_once(']').map_or("", |(_, after)| after),
            None => rest,
        };
        let mut words = rest.split_whitespace().map(str::to_owned);
        if let (Some(uri), Some(suite)) = (words.next(), words.next()) {
            sources.push(Source { uri, suite, components: words.collect() });
        }
    }
    sources
}

/// The format of sources.list(5), "deb822 style": stanzas of `Field: value`, comment lines, continuation lines.
fn parse_deb822(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            let get = |name: &str| -> Vec<String> {
                let value = fields.iter().find(|(n, _)| n == name).map_or("", |(_, v)| v);
                value.split_whitespace().map(str::to_owned).collect()
            };
            let off = get("enabled")
                .first()
                .is_some_and(|v| ["no", "false", "off", "0", "without", "disable"].contains(&v.as_str()));
            if !off && get("types").iter().any(|t| t == "deb") {
                for uri in get("uris") {
                    for suite in get("suites") {
                        sources.push(Source { uri: uri.clone(), suite, components: get("components") });
                    }
                }
            }
            fields.clear();
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push(' ');
                value.push_str(line.trim());
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    sources
}

/// The mirror of the Debian archive among `sources`: a suite of Debian with component `main`; one whose path ends in
/// `/debian` before any other, since third parties name their suites after Debian's.
fn debian_mirror(sources: &[Source]) -> Option<String> {
    const SUITES: [&str; 11] = [
        "bullseye",
        "bookworm",
        "trixie",
        "forky",
        "duke",
        "sid",
        "oldoldstable",
        "oldstable",
        "stable",
        "testing",
        "unstable",
    ];
    let debian = |s: &&Source| {
        let suite = s.suite.strip_suffix("-updates").or_else(|| s.suite.strip_suffix("-backports")).unwrap_or(&s.suite);
        SUITES.contains(&suite) && s.components.iter().any(|c| c == "main") && !s.uri.starts_with("cdrom:")
    };
    let named = |s: &&Source| s.uri.trim_end_matches('/').ends_with("/debian");
    let all = || sources.iter().filter(debian);
    all().find(named).or_else(|| all().next()).map(|s| s.uri.trim_end_matches('/').to_owned())
}

/// All sources of the machine's own apt.
fn machine_sources(etc: &Path) -> Vec<Source> {
    let mut sources = parse_one_line(&fs::read_to_string(etc.join("sources.list")).unwrap_or_default());
    let mut files: Vec<PathBuf> =
        fs::read_dir(etc.join("sources.list.d")).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.sort();
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        match file.extension().and_then(|e| e.to_str()) {
            Some("list") => sources.extend(parse_one_line(&text)),
            Some("sources") => sources.extend(parse_deb822(&text)),
            _ => {}
        }
    }
    sources
}

/// Lines `'URI' FILE SIZE HASH` of `apt-get --print-uris`.
fn parse_uris(text: &str) -> Vec<Deb> {
    let mut debs: Vec<Deb> = text
        .lines()
        .filter(|line| line.starts_with('\''))
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            Some(Deb { file: words.next()?.to_owned(), size: words.next()?.parse().ok()? })
        })
        .collect();
    debs.sort();
    debs
}

/// The mirror to use (`mirror`, else the one that the machine's own apt uses) and Debian's archive keys.
///
/// # Errors
/// Where apt, dpkg-deb, Debian's archive keys or a Debian source is missing; each error ends with [`GO_ON`].
pub fn source(mirror: Option<&str>) -> Result<(String, &'static str)> {
    for tool in ["apt-get", "apt-cache", "apt-config", "dpkg-deb"] {
        if !process::on_path(tool) {
            bail!("`{tool}` is not on this machine, so guest packages cannot be fetched. {GO_ON}");
        }
    }
    let keys = ["/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp"];
    let Some(keys) = keys.into_iter().find(|k| Path::new(k).exists()) else {
        bail!("Debian's archive keys ({}) are missing: install the package debian-archive-keyring. {GO_ON}", keys[0]);
    };
    let mirror = match mirror {
        Some(mirror) => mirror.to_owned(),
        None => debian_mirror(&machine_sources(Path::new("/etc/apt"))).with_context(|| {
            format!(
                "this machine's apt has no Debian source (looked in /etc/apt/sources.list and sources.list.d). {GO_ON}"
            )
        })?,
    };
    Ok((mirror, keys))
}

impl Apt {
    /// Makes (or reuses) the private state in `dir` for `suites` of the Debian archive, with `pins` in the format of
    /// apt_preferences(5).
    ///
    /// # Errors
    /// Those of [`source`], and when the state cannot be written.
    pub fn open(dir: PathBuf, mirror: Option<&str>, suites: &[&str], pins: &str) -> Result<Self> {
        let (mirror, keys) = source(mirror)?;
        for sub in [
            "etc/apt.conf.d",
            "etc/preferences.d",
            "etc/trusted.gpg.d",
            "lists/partial",
            "cache/archives/partial",
            "log",
        ] {
            fs::create_dir_all(dir.join(sub))?;
        }
        let mut sources = String::new();
        for suite in suites {
            // An index of a development suite may have run out; what it lists is still signed.
            sources.push_str(&format!("deb [check-valid-until=no signed-by={keys}] {mirror} {suite} main\n"));
        }
        fs::write(dir.join("etc/sources.list"), sources)?;
        fs::write(dir.join("etc/preferences.d/pins"), pins)?;
        fs::write(dir.join("status"), "")?;
        let d = dir.display();
        let mut conf = format!(
            "Dir::Etc \"{d}/etc\";\nDir::Etc::sourcelist \"{d}/etc/sources.list\";\nDir::Etc::sourceparts \"/dev/null\";\n\
             Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"{d}/etc/preferences.d\";\nDir::Etc::parts \"/dev/null\";\n\
             Dir::Etc::main \"/dev/null\";\nDir::Etc::netrc \"/etc/apt/auth.conf\";\nDir::Etc::netrcparts \"/etc/apt/auth.conf.d\";\n\
             Dir::State \"{d}\";\nDir::State::lists \"{d}/lists\";\nDir::State::status \"{d}/status\";\n\
             Dir::Cache \"{d}/cache\";\nDir::Log \"{d}/log\";\n\
             APT::Install-Recommends \"false\";\nAPT::Architecture \"amd64\";\nAPT::Architectures {{ \"amd64\"; }};\nAPT::Sandbox::User \"\";\n\
             APT::Get::Assume-Yes \"true\";\nAPT::Update::Error-Mode \"any\";\nDebug::NoLocking \"1\";\n\
             Acquire::Languages \"none\";\nAcquire::Retries \"3\";\n"
        );
        conf.push_str(&machine_transport()?);
        fs::write(dir.join("apt.conf"), conf)?;
        Ok(Self { dir })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.dir.join("apt.conf")).env("LC_ALL", "C").current_dir(&self.dir);
        command
    }

    /// Fetches the package indexes.
    ///
    /// # Errors
    /// When any index cannot be fetched or its signature is wrong.
    pub fn update(&self) -> Result<()> {
        process::output(self.command("apt-get").args(["-qq", "update"]))
            .context("cannot fetch Debian's package indexes")?;
        Ok(())
    }

    /// The folder that `attempt` makes of packages. Where it fails, the lists are updated first and it is tried again: what
    /// was looked up earlier may be gone from the mirror, or nothing was looked up yet. Where that fails too, the folder of an
    /// earlier day in the cache's `under` that has the file `whole`.
    ///
    /// # Errors
    /// That of the last attempt, when there is no such folder.
    pub fn newest(
        &self,
        cache: &Cache,
        what: &str,
        (under, whole): (&str, &str),
        attempt: impl Fn() -> Result<PathBuf>,
    ) -> Result<PathBuf> {
        attempt().or_else(|_| self.update().and_then(|()| attempt())).or_else(|error| {
            let kept = cache.kept(under, whole).ok_or(error)?;
            say!("the newest {what} cannot be had; going on with {}", kept.display());
            Ok(kept)
        })
    }

    /// Names of known packages that start with `prefix`.
    ///
    /// # Errors
    /// When apt-cache fails.
    pub fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let text = process::stdout(self.command("apt-cache").args(["pkgnames", prefix]))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    fn words(&self, packages: &[&str], depends: bool, into: &Path) -> Command {
        let mut command = self.command("apt-get");
        command.arg("-qq").arg("-o").arg(format!("Dir::Cache::archives={}", into.display()));
        if depends {
            command.args(["install", "--download-only"])
        } else {
            command.arg("download")
        };
        command.args(packages);
        command
    }

    /// The package files of `packages`, with everything that they depend on if `depends`. Sorted by name.
    ///
    /// # Errors
    /// When a package is not there or its dependencies cannot be met.
    pub fn resolve(&self, packages: &[&str], depends: bool) -> Result<Vec<Deb>> {
        let into = self.dir.join("cache/archives");
        let debs = parse_uris(&process::stdout(self.words(packages, depends, &into).arg("--print-uris"))?);
        if debs.is_empty() {
            bail!("apt names no package file for {}", packages.join(" "));
        }
        Ok(debs)
    }

    /// Downloads what [`Apt::resolve`] lists into the folder `into`; apt checks the hashes.
    ///
    /// # Errors
    /// When a download fails.
    pub fn fetch(&self, packages: &[&str], depends: bool, into: &Path) -> Result<()> {
        fs::create_dir_all(into.join("partial"))?;
        process::output(self.words(packages, depends, into).current_dir(into))?;
        Ok(())
    }
}

/// Proxies, certificates and date checks of the machine's own apt configuration, to be used by the private one too.
fn machine_transport() -> Result<String> {
    let dump = process::stdout(Command::new("apt-config").arg("dump"))?;
    let wanted = ["Acquire::http", "Acquire::https", "Acquire::Check-Date"];
    Ok(dump.lines().filter(|l| wanted.iter().any(|w| l.starts_with(w))).map(|l| format!("{l}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(uri: &str, suite: &str, components: &[&str]) -> Source {
        Source {
            uri: uri.into(),
            suite: suite.into(),
            components: components.iter().map(|c| (*c).to_owned()).collect(),
        }
    }

    #[test]
    fn one_line_sources() {
        let text = "# comment\ndeb-src http://m/debian bookworm main\ndeb [arch=amd64 signed-by=/k] http://m/debian bookworm main contrib # x\n\
                    deb\thttp://n/x  trixie   main\ndebug http://o/ a b\n";
        assert_eq!(
            parse_one_line(text),
            [source("http://m/debian", "bookworm", &["main", "contrib"]), source("http://n/x", "trixie", &["main"]),]
        );
    }

    #[test]
    fn deb822_sources() {
        let text = "Types: deb deb-src\n# a comment inside\nURIs: http://m/debian\nSuites: bookworm\n bookworm-updates\nComponents: main\n\n\
                    Enabled: no\nTypes: deb\nURIs: http://off/debian\nSuites: sid\nComponents: main\n\n\n\
                    types: deb-src\nuris: http://src/debian\nsuites: sid\ncomponents: main\n";
        assert_eq!(
            parse_deb822(text),
            [
                source("http://m/debian", "bookworm", &["main"]),
                source("http://m/debian", "bookworm-updates", &["main"]),
            ]
        );
    }

    #[test]
    fn the_mirror_is_debians_own() {
        let third = source("https://third.example/apt", "bookworm", &["main"]);
        let other = source("https://other.example/linux/debian", "bookworm", &["stable"]);
        let security = source("http://m.example/debian-security", "bookworm-security", &["main"]);
        let debian = source("http://m.example/debian/", "bookworm-updates", &["main"]);
        assert_eq!(
            debian_mirror(&[third.clone(), other.clone(), security.clone(), debian]),
            Some("http://m.example/debian".into())
        );
        assert_eq!(debian_mirror(&[other.clone(), security.clone()]), None);
        assert_eq!(debian_mirror(&[third]), Some("https://third.example/apt".into()));
        assert_eq!(debian_mirror(&[source("http://archive.example/ubuntu", "noble", &["main"])]), None);
    }

    #[test]
    fn both_formats_are_read_from_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sources.list.d")).unwrap();
        fs::write(
            dir.path().join("sources.list.d/a.sources"),
            "Types: deb\nURIs: http://a/debian\nSuites: sid\nComponents: main\n",
        )
        .unwrap();
        fs::write(dir.path().join("sources.list.d/b.list"), "deb http://b/debian sid main\n").unwrap();
        fs::write(dir.path().join("sources.list.d/c.list.disabled"), "deb http://c/debian sid main\n").unwrap();
        let all = machine_sources(dir.path());
        assert_eq!(all, [source("http://a/debian", "sid", &["main"]), source("http://b/debian", "sid", &["main"])]);
    }

    #[test]
    fn uris_name_files_and_sizes() {
        let text = "W: note\n'http://m/pool/q/qemu_1%3a11.1.3_amd64.deb' qemu_1%3a11.1.3_amd64.deb 123 SHA256:00\n'http://m/a_1_all.deb' a_1_all.deb 5 MD5Sum:00\n";
        let debs = parse_uris(text);
        assert_eq!(
            debs,
            [Deb { file: "a_1_all.deb".into(), size: 5 }, Deb { file: "qemu_1%3a11.1.3_amd64.deb".into(), size: 123 }]
        );
        assert_eq!(debs[1].name_version(), ("qemu", "1:11.1.3".into()));
    }
}
