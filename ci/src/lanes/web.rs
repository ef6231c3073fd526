//! The lane `web`: the page in a headless Chromium, as a person's browser shows it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use super::{Bench, Skip};
use crate::apt::Apt;
use crate::cache::Cache;
use crate::tree::{LIBRARIES, Tree};
use crate::{process, say};

/// Names under which distributions have Chromium.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// Bounds a hang of the server or of the network.
const LIMIT: Duration = Duration::from_secs(60);
/// Milliseconds of the page's own clock that pass before it is looked at: several rounds of its two-second poll. They cost
/// no waiting where nothing else happens.
const PAGE_TIME: &str = "--virtual-time-budget=11000";
/// A key that is markup, should anybody take it for that.
const HOSTILE: &str = "<img src=x onerror=document.title='owned'>.txt";

/// The page shows buckets, prefixes and objects, its links lead to the bytes, its figures move, and no key becomes markup.
pub fn web(bench: &Bench<'_>) -> Result<()> {
    let browser = Browser::find(bench.args().guest.mirror.as_deref())?;
    let program = bench.server()?;
    let server = Server::start(&program)?;
    let content: Vec<u8> = (0..40_000_u32).map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1]).collect();
    for key in ["photos/2026/a%20b%25%2B%C3%A9.bin", "photos/readme", "plain"] {
        server.put(key, &content)?;
    }
    server.put("%3Cimg%20src%3Dx%20onerror%3Ddocument.title%3D%27owned%27%3E.txt", b"x")?;

    // From the list of buckets by the links of each page to the bytes of an object.
    let buckets = browser.dom(&server.url("/"))?;
    let bucket = link(&buckets, "bench")?;
    let objects = browser.dom(&server.url(&format!("/{bucket}")))?;
    for name in ["plain", "photos/"] {
        link(&objects, name)?;
    }
    ensure!(objects.contains(">40,000<"), "no size in\n{objects}");
    let photos = browser.dom(&server.url(&format!("/{}", link(&objects, "photos/")?)))?;
    link(&photos, "readme")?;
    let year = browser.dom(&server.url(&format!("/{}", link(&photos, "2026/")?)))?;
    let object = link(&year, "a b%+é.bin")?;
    ensure!(object.starts_with("/bench/photos/2026/"), "{object}");
    let (status, bytes) = server.ask("GET", &object, "", b"")?;
    ensure!(status == 200 && bytes == content, "{status}, {} bytes behind {object}", bytes.len());
    for step in ["buckets", "bench", "photos", "2026"] {
        link(&year, step)?;
    }

    // A key is text.
    ensure!(objects.contains("&lt;img src=x onerror="), "the hostile key is not shown in\n{objects}");
    ensure!(!objects.contains("<img") && objects.contains("<title>ernic</title>"), "{HOSTILE} became markup");

    // Every poll of the page is a request, which the next one shows.
    let before = server.figure("ernic_http_requests_total")?;
    let shown = figure(&browser.dom(&server.url("/"))?, "ernic_http_requests_total")?;
    ensure!(shown >= before + 5, "the page showed {shown} requests at last, there were {before} before it");
    ensure!(figure(&objects, "ernic_store_objects")? == 4, "{objects}");

    let picture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/web.png");
    browser.picture(&server.url(&format!("/{bucket}")), &picture)?;
    say!("the page's picture is {}", picture.canonicalize()?.display());
    server.stop()
}

/// The target of the link that has the text.
fn link(dom: &str, text: &str) -> Result<String> {
    for element in dom.split("<a ").skip(1) {
        let (attributes, rest) = element.split_once('>').unwrap_or((element, ""));
        let shown = rest.split_once("</a>").map_or("", |(shown, _)| shown);
        if unescape(shown) == text {
            let target = attributes.split("href=\"").nth(1).and_then(|rest| rest.split('"').next());
            return target.map(unescape).with_context(|| format!("the link '{text}' has no target: {attributes}"));
        }
    }
    bail!("no link '{text}' in\n{dom}")
}

/// The five entities that a serialised document has.
fn unescape(text: &str) -> String {
    [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&nbsp;", "\u{a0}"), ("&amp;", "&")]
        .iter()
        .fold(text.to_owned(), |text, (entity, c)| text.replace(entity, c))
}

/// A figure that the page shows.
fn figure(dom: &str, name: &str) -> Result<u64> {
    let shown = dom.split(&format!("data-name=\"{name}\">")).nth(1).and_then(|rest| rest.split('<').next());
    let shown = shown.with_context(|| format!("no figure {name} in\n{dom}"))?;
    shown.replace(',', "").parse().with_context(|| format!("{name} is '{shown}'"))
}

/// `ernic serve` with a page, on a port of its own.
struct Server {
    child: Child,
    address: SocketAddr,
    _dir: TempDir,
}

impl Server {
    fn start(program: &Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("log");
        let mut command = Command::new(program);
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--backend", "s3:bucket=bench,web=on"])
            .env_remove("ERNIC_ACCESS_KEY")
            .env_remove("ERNIC_SECRET_KEY")
            .env_remove("ERNIC_LOG_LEVEL")
            .stdin(Stdio::null())
            .stderr(File::create(&path)?);
        let mut child = process::end_with_parent(&mut command).spawn().context("cannot start the server")?;
        let end = Instant::now() + LIMIT;
        let address = loop {
            let log = fs::read_to_string(&path)?;
            let ready = log.contains("authentication is off");
            let address = log.split("bytes at http://").nth(1).and_then(|rest| rest.split('/').next());
            if let Some(address) = address.filter(|_| ready) {
                break address.parse()?;
            }
            if child.try_wait()?.is_some() || Instant::now() > end {
                let _ = child.kill();
                bail!("the server does not start:\n{}", process::tail(&log, 12));
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        Ok(Self { child, address, _dir: dir })
    }

    fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.address)
    }

    fn put(&self, key: &str, content: &[u8]) -> Result<()> {
        let (status, answer) = self.ask("PUT", &format!("/bench/{key}"), "", content)?;
        ensure!(status == 200, "PUT {key}: {status} {}", String::from_utf8_lossy(&answer));
        Ok(())
    }

    /// One request on a connection of its own; without knowledge of the page.
    fn ask(&self, method: &str, target: &str, headers: &str, content: &[u8]) -> Result<(u16, Vec<u8>)> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let length = content.len();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n",
            self.address
        );
        stream.write_all(&[head.as_bytes(), content].concat())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").context("no head")?;
        let status = String::from_utf8_lossy(answer.get(9..12).unwrap_or_default()).parse()?;
        Ok((status, answer.split_off(end + 4)))
    }

    fn figure(&self, name: &str) -> Result<u64> {
        let (_, page) = self.ask("GET", "/metrics", "", b"")?;
        let page = String::from_utf8(page)?;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.with_context(|| format!("no {name} in\n{page}"))?.parse()?)
    }

    fn stop(mut self) -> Result<()> {
        ensure!(process::terminate(&mut self.child, LIMIT)?, "the server does not end");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Chromium: the machine's own, or Debian's from the cache.
struct Browser {
    program: PathBuf,
    environment: BTreeMap<&'static str, PathBuf>,
}

impl Browser {
    fn find(mirror: Option<&str>) -> Result<Self> {
        if let Some(program) = BROWSERS.into_iter().find(|name| process::on_path(name)) {
            return Ok(Self { program: program.into(), environment: BTreeMap::new() });
        }
        Self::fetch(mirror).map_err(|error| Skip(format!("no Chromium: {error:#}")).into())
    }

    /// Debian's package of this machine's own release, and all that it needs, unpacked in the cache. Its libraries go with this
    /// machine's dynamic linker only because both are of one release.
    fn fetch(mirror: Option<&str>) -> Result<Self> {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let field =
            |name: &str| release.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim_matches('"'));
        let (Some("debian"), Some(suite)) = (field("ID="), field("VERSION_CODENAME=")) else {
            bail!("install it; only on Debian can its package be used without");
        };
        let cache = Cache::open()?;
        let apt = Apt::open(cache.path("apt-web"), mirror, &[suite], "")?;
        let packages = ["chromium", "fonts-dejavu-core"];
        let resolved =
            apt.resolve(&packages, true).or_else(|_| apt.update().and_then(|()| apt.resolve(&packages, true)))?;
        let version = resolved.iter().map(crate::apt::Deb::name_version).find(|(name, _)| *name == "chromium");
        let version = version.context("apt names no file of chromium")?.1;
        let name = format!("chromium-{version}");
        let folder = cache.folder(&format!("web/{name}"), |partial| {
            say!("fetching {} packages for Chromium {version}", resolved.len());
            let debs = partial.join("debs");
            apt.fetch(&packages, true, &debs)?;
            Tree::unpack(&debs, &partial.join("tree"))?;
            Ok(fs::remove_dir_all(&debs)?)
        })?;
        cache.prune("web", &[name]);
        let tree = Tree::at(folder.join("tree"));
        let libraries = tree.path(LIBRARIES);
        // This machine's C library must be that of its dynamic linker.
        for own in ["libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2"] {
            let _ = fs::remove_file(libraries.join(own));
        }
        let environment = BTreeMap::from([
            ("LD_LIBRARY_PATH", libraries),
            ("FONTCONFIG_SYSROOT", folder.join("tree")),
            ("XDG_DATA_HOME", tree.path("usr/share")),
        ]);
        Ok(Self { program: tree.path("usr/lib/chromium/chromium"), environment })
    }

    /// Without what a test machine may not have: a sandbox (as root), a GPU, the network.
    fn run(&self, arguments: &[&str]) -> Result<Vec<u8>> {
        let profile = tempfile::tempdir()?;
        let mut command = Command::new(&self.program);
        command
            .envs(&self.environment)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--disable-dev-shm-usage", "--hide-scrollbars"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(arguments);
        Ok(process::output(&mut command)?.stdout)
    }

    /// The document after its script has had its time.
    fn dom(&self, url: &str) -> Result<String> {
        Ok(String::from_utf8(self.run(&[PAGE_TIME, "--dump-dom", url])?)?)
    }

    fn picture(&self, url: &str, path: &Path) -> Result<()> {
        let into = format!("--screenshot={}", path.display());
        self.run(&[PAGE_TIME, "--window-size=1000,800", &into, url])?;
        let picture = fs::read(path).context("no picture")?;
        ensure!(picture.starts_with(b"\x89PNG") && picture.len() > 5000, "{} bytes are no picture", picture.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_figures_are_read_from_a_document() {
        let dom = "<a href=\"#\">buckets</a><td><a download=\"x\" href=\"/b/a&amp;b\">a&amp;b&lt;</a></td>\
                   <dd data-name=\"n_total\">1,234</dd>";
        assert_eq!((link(dom, "buckets").unwrap(), link(dom, "a&b<").unwrap()), ("#".to_owned(), "/b/a&b".to_owned()));
        assert!(link(dom, "a").is_err());
        assert_eq!(figure(dom, "n_total").unwrap(), 1234);
        assert!(figure(dom, "m_total").is_err());
    }
}
