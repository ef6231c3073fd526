//! The lanes with stock S3 tools: `s3-tools`, `s3-conformance` and `vm-s3-tools`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::vms::{Rig, Setup};
use super::{Bench, Skip};
use crate::guest::payload;
use crate::server::{ENDPOINT, KEYS, Listener};
use crate::tools::Tools;
use crate::{process, vm};

/// A large file: several parts for every tool.
const BIG: usize = 40 << 20;

/// Files of the tree that is synchronised: names that need quoting somewhere, and lengths.
const FILES: [(&str, usize); 11] = [
    ("plain.txt", 11),
    ("empty", 0),
    ("a space.txt", 100),
    ("a+b.txt", 1_000),
    ("100%.txt", 7),
    ("%41.txt", 8),
    ("semi;colon,(paren)!'~$&@=.txt", 9),
    ("q?a=b#c.txt", 10),
    ("sub dir/\u{fc}n\u{ef}/\u{e7}\u{f6}d\u{e9}.bin", 70_001),
    ("\u{65e5}\u{672c}/\u{8a9e}.txt", 12),
    ("deep/er/and/deeper/x.bin", 300_000),
];

/// Longest time of one command.
const LIMIT: Duration = Duration::from_secs(120);

/// The tools that have commands for all of [`Verb`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Aws,
    S3cmd,
    Rclone,
    Mc,
    Boto3,
    MinioPy,
    Curl,
}

const TOOLS: [Tool; 7] = [Tool::Aws, Tool::S3cmd, Tool::Rclone, Tool::Mc, Tool::Boto3, Tool::MinioPy, Tool::Curl];

/// What a tool is asked to do in its bucket.
#[derive(Debug, Clone, Copy)]
enum Verb<'a> {
    /// Make the bucket.
    Make,
    /// List all buckets.
    Buckets,
    /// Store a file under a key.
    Put(&'a Path, &'a str),
    /// Fetch a key into a file.
    Get(&'a str, &'a Path),
    /// Copy a key to another within the server.
    Copy(&'a str, &'a str),
    /// Make what is under the prefix, which ends with a slash, the same as the folder.
    Up(&'a Path, &'a str),
    /// Fetch what is under the prefix into the folder.
    Down(&'a str, &'a Path),
    /// List all keys under the prefix.
    List(&'a str),
    /// Delete a key.
    Remove(&'a str),
    /// Delete all keys.
    Clear,
    /// Delete the bucket, which is empty.
    Drop,
}

/// One tool against the server.
struct Run<'a> {
    tool: Tool,
    tools: &'a Tools,
    endpoint: &'a str,
    /// The tool's own folder, for its configuration.
    home: PathBuf,
    bucket: String,
    log: &'a Path,
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Self::Aws => "aws",
            Self::S3cmd => "s3cmd",
            Self::Rclone => "rclone",
            Self::Mc => "mc",
            Self::Boto3 => "boto3",
            Self::MinioPy => "minio-py",
            Self::Curl => "curl",
        }
    }
}

/// The file `name` of the folder `tests` of the workspace.
fn test_file(name: &str) -> PathBuf {
    crate::workspace().join("tests").join(name)
}

/// A URL's path from a key: all but the slash and what is unreserved is percent-encoded.
fn encoded(key: &str) -> String {
    key.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => char::from(b).to_string(),
            _ => format!("%{b:02X}"),
        })
        .collect()
}

/// Text between `<tag>` and `</tag>`, everywhere in `xml`, with XML's five entities replaced.
fn elements(xml: &str, tag: &str) -> Vec<String> {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let inner = xml.split(&open).skip(1).filter_map(|rest| rest.split(&close).next());
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&#39;", "'"), ("&amp;", "&")];
    inner.map(|text| entities.iter().fold(text.to_owned(), |t, (from, to)| t.replace(from, to))).collect()
}

impl<'a> Run<'a> {
    fn new(tool: Tool, tools: &'a Tools, endpoint: &'a str, work: &Path, log: &'a Path) -> Result<Self> {
        let home = work.join(format!("home-{}", tool.name()));
        fs::create_dir_all(&home)?;
        let authority = endpoint.trim_start_matches("http://");
        let (access, secret) = KEYS;
        match tool {
            Tool::S3cmd => fs::write(
                home.join("s3cfg"),
                format!(
                    "[default]\naccess_key = {access}\nsecret_key = {secret}\nhost_base = {authority}\nhost_bucket = {authority}\n\
                     use_https = False\nbucket_location = us-east-1\n"
                ),
            )?,
            Tool::Curl => fs::write(
                home.join("curlrc"),
                format!(
                    "aws-sigv4 = \"aws:amz:us-east-1:s3\"\nuser = \"{access}:{secret}\"\nfail-with-body\nsilent\nshow-error\n"
                ),
            )?,
            _ => {}
        }
        Ok(Self { tool, tools, endpoint, home, bucket: format!("tool-{}", tool.name()), log })
    }

    /// The tool with what it is configured with, as in the user guide's page on tools.
    fn command(&self) -> Command {
        let (access, secret) = KEYS;
        let mut command = match self.tool {
            Tool::Boto3 | Tool::MinioPy => self.tools.command("python3"),
            tool => self.tools.command(tool.name()),
        };
        command.env("HOME", &self.home);
        match self.tool {
            Tool::Aws => {
                command.env("AWS_ACCESS_KEY_ID", access).env("AWS_SECRET_ACCESS_KEY", secret);
                command.env("AWS_DEFAULT_REGION", "us-east-1").env("AWS_ENDPOINT_URL", self.endpoint);
                command.env("AWS_EC2_METADATA_DISABLED", "true").env("AWS_PAGER", "");
            }
            Tool::S3cmd => {
                command.arg("-c").arg(self.home.join("s3cfg")).arg("--no-progress");
            }
            Tool::Rclone => {
                command.env("RCLONE_CONFIG_E_TYPE", "s3").env("RCLONE_CONFIG_E_PROVIDER", "Other");
                command.env("RCLONE_CONFIG_E_ACCESS_KEY_ID", access).env("RCLONE_CONFIG_E_SECRET_ACCESS_KEY", secret);
                command.env("RCLONE_CONFIG_E_ENDPOINT", self.endpoint).env("RCLONE_CONFIG_E_REGION", "us-east-1");
                command.env("RCLONE_CONFIG", "/dev/null");
                command.args(["--s3-upload-cutoff", "5M", "--s3-chunk-size", "5M", "--retries", "1"]);
            }
            Tool::Mc => {
                let rest = self.endpoint.trim_start_matches("http://");
                command.env("MC_HOST_e", format!("http://{access}:{secret}@{rest}"));
                command.arg("--config-dir").arg(&self.home).arg("--quiet");
            }
            Tool::Boto3 | Tool::MinioPy => {
                let client = if self.tool == Tool::Boto3 { "boto3" } else { "minio" };
                command.env("ENDPOINT", self.endpoint).env("ACCESS_KEY", access).env("SECRET_KEY", secret);
                command.env("AWS_EC2_METADATA_DISABLED", "true");
                command.arg(test_file("tools/verbs.py")).arg(client);
            }
            Tool::Curl => {
                command.arg("-q").arg("-K").arg(self.home.join("curlrc"));
            }
        }
        command
    }

    /// The commands of a verb, in order.
    #[allow(clippy::too_many_lines)]
    fn commands(&self, verb: Verb<'_>) -> Result<Vec<Command>> {
        let bucket = &self.bucket;
        let words = |words: &[&str]| {
            let mut command = self.command();
            command.args(words);
            command
        };
        let text = |path: &Path| path.display().to_string();
        // Each tool's way to write the bucket and a key in it.
        let at = |key: &str| match self.tool {
            Tool::Aws | Tool::S3cmd => format!("s3://{bucket}/{key}"),
            Tool::Rclone => format!("e:{bucket}/{key}"),
            Tool::Mc => format!("e/{bucket}/{key}"),
            Tool::Boto3 | Tool::MinioPy => key.to_owned(),
            Tool::Curl => format!("{}/{bucket}/{}", self.endpoint, encoded(key)),
        };
        // A folder whose content is meant, not it itself.
        let inside = |path: &Path| format!("{}/", path.display());
        let top = at("");
        let one = match (self.tool, verb) {
            (Tool::Aws, Verb::Make) => words(&["s3", "mb", &format!("s3://{bucket}")]),
            (Tool::Aws, Verb::Buckets) => words(&["s3", "ls"]),
            (Tool::Aws, Verb::Put(file, key)) => words(&["s3", "cp", "--quiet", &text(file), &at(key)]),
            (Tool::Aws, Verb::Get(key, file)) => words(&["s3", "cp", "--quiet", &at(key), &text(file)]),
            (Tool::Aws, Verb::Copy(from, to)) => words(&["s3", "cp", "--quiet", &at(from), &at(to)]),
            (Tool::Aws, Verb::Up(folder, prefix)) => {
                words(&["s3", "sync", "--quiet", "--delete", &inside(folder), &at(prefix)])
            }
            (Tool::Aws, Verb::Down(prefix, folder)) => words(&["s3", "sync", "--quiet", &at(prefix), &inside(folder)]),
            (Tool::Aws, Verb::List(prefix)) => {
                words(&["s3api", "list-objects-v2", "--bucket", bucket, "--prefix", prefix, "--output", "json"])
            }
            (Tool::Aws, Verb::Remove(key)) => words(&["s3", "rm", "--quiet", &at(key)]),
            (Tool::Aws, Verb::Clear) => words(&["s3", "rm", "--quiet", "--recursive", &top]),
            (Tool::Aws, Verb::Drop) => words(&["s3", "rb", &format!("s3://{bucket}")]),

            (Tool::S3cmd, Verb::Make) => words(&["mb", &format!("s3://{bucket}")]),
            (Tool::S3cmd, Verb::Buckets) => words(&["ls"]),
            (Tool::S3cmd, Verb::Put(file, key)) => words(&["put", &text(file), &at(key)]),
            (Tool::S3cmd, Verb::Get(key, file)) => words(&["get", "--force", &at(key), &text(file)]),
            (Tool::S3cmd, Verb::Copy(from, to)) => words(&["cp", &at(from), &at(to)]),
            (Tool::S3cmd, Verb::Up(folder, prefix)) => {
                words(&["sync", "--delete-removed", &inside(folder), &at(prefix)])
            }
            (Tool::S3cmd, Verb::Down(prefix, folder)) => words(&["sync", &at(prefix), &inside(folder)]),
            (Tool::S3cmd, Verb::List(prefix)) => words(&["ls", "-r", &at(prefix)]),
            (Tool::S3cmd, Verb::Remove(key)) => words(&["del", &at(key)]),
            (Tool::S3cmd, Verb::Clear) => words(&["del", "--recursive", "--force", &top]),
            (Tool::S3cmd, Verb::Drop) => words(&["rb", &format!("s3://{bucket}")]),

            (Tool::Rclone, Verb::Make) => words(&["mkdir", &format!("e:{bucket}")]),
            (Tool::Rclone, Verb::Buckets) => words(&["lsf", "e:"]),
            (Tool::Rclone, Verb::Put(file, key)) => words(&["copyto", &text(file), &at(key)]),
            (Tool::Rclone, Verb::Get(key, file)) => words(&["copyto", &at(key), &text(file)]),
            (Tool::Rclone, Verb::Copy(from, to)) => words(&["copyto", &at(from), &at(to)]),
            (Tool::Rclone, Verb::Up(folder, prefix)) => {
                // It compares all contents at the end, by its own sums.
                let compare = words(&["check", "--download", &inside(folder), &at(prefix)]);
                return Ok(vec![words(&["sync", "--checksum", &inside(folder), &at(prefix)]), compare]);
            }
            (Tool::Rclone, Verb::Down(prefix, folder)) => words(&["sync", &at(prefix), &inside(folder)]),
            (Tool::Rclone, Verb::List(prefix)) => words(&["lsf", "-R", "--files-only", &at(prefix)]),
            (Tool::Rclone, Verb::Remove(key)) => words(&["deletefile", &at(key)]),
            (Tool::Rclone, Verb::Clear) => words(&["delete", &format!("e:{bucket}")]),
            (Tool::Rclone, Verb::Drop) => words(&["rmdir", &format!("e:{bucket}")]),

            (Tool::Mc, Verb::Make) => words(&["mb", &top]),
            (Tool::Mc, Verb::Buckets) => words(&["ls", "--json", "e"]),
            (Tool::Mc, Verb::Put(file, key)) => words(&["cp", &text(file), &at(key)]),
            (Tool::Mc, Verb::Get(key, file)) => words(&["cp", &at(key), &text(file)]),
            (Tool::Mc, Verb::Copy(from, to)) => words(&["cp", &at(from), &at(to)]),
            (Tool::Mc, Verb::Up(folder, prefix)) => {
                words(&["mirror", "--remove", "--overwrite", &inside(folder), &at(prefix)])
            }
            (Tool::Mc, Verb::Down(prefix, folder)) => words(&["mirror", &at(prefix), &inside(folder)]),
            (Tool::Mc, Verb::List(prefix)) => words(&["ls", "-r", "--json", &at(prefix)]),
            (Tool::Mc, Verb::Remove(key)) => words(&["rm", &at(key)]),
            (Tool::Mc, Verb::Clear) => words(&["rm", "--recursive", "--force", &top]),
            (Tool::Mc, Verb::Drop) => words(&["rb", &top]),

            (Tool::Boto3 | Tool::MinioPy, verb) => match verb {
                Verb::Make => words(&["make", bucket]),
                Verb::Buckets => words(&["buckets", bucket]),
                Verb::Put(file, key) => words(&["put", bucket, &text(file), key]),
                Verb::Get(key, file) => words(&["get", bucket, key, &text(file)]),
                Verb::Copy(from, to) => words(&["copy", bucket, from, to]),
                Verb::Up(folder, prefix) => words(&["up", bucket, &text(folder), prefix]),
                Verb::Down(prefix, folder) => words(&["down", bucket, prefix, &text(folder)]),
                Verb::List(prefix) => words(&["list", bucket, prefix]),
                Verb::Remove(key) => words(&["remove", bucket, key]),
                Verb::Clear => words(&["clear", bucket]),
                Verb::Drop => words(&["drop", bucket]),
            },

            (Tool::Curl, Verb::Make) => words(&["-X", "PUT", &top]),
            (Tool::Curl, Verb::Buckets) => words(&[self.endpoint]),
            (Tool::Curl, Verb::Put(file, key)) => words(&["-T", &text(file), &at(key)]),
            (Tool::Curl, Verb::Get(key, file)) => words(&["-o", &text(file), &at(key)]),
            (Tool::Curl, Verb::Copy(from, to)) => {
                words(&["-X", "PUT", "-H", &format!("x-amz-copy-source: /{bucket}/{}", encoded(from)), &at(to)])
            }
            (Tool::Curl, Verb::Up(folder, prefix)) => {
                let files = tree(folder)?;
                let mut commands: Vec<Command> = files
                    .keys()
                    .map(|f| words(&["-T", &text(&folder.join(f)), &at(&format!("{prefix}{f}"))]))
                    .collect();
                for gone in self.list(prefix)?.iter().filter(|f| !files.contains_key(*f)) {
                    commands.push(words(&["-X", "DELETE", &at(&format!("{prefix}{gone}"))]));
                }
                return Ok(commands);
            }
            (Tool::Curl, Verb::Down(prefix, folder)) => {
                let keys = self.list(prefix)?;
                let get = |key: &String| {
                    words(&["--create-dirs", "-o", &text(&folder.join(key)), &at(&format!("{prefix}{key}"))])
                };
                return Ok(keys.iter().map(get).collect());
            }
            (Tool::Curl, Verb::List(prefix)) => {
                words(&["-G", "--data-urlencode", "list-type=2", "--data-urlencode", &format!("prefix={prefix}"), &top])
            }
            (Tool::Curl, Verb::Remove(key)) => words(&["-X", "DELETE", &at(key)]),
            (Tool::Curl, Verb::Clear) => {
                return Ok(self.list("")?.iter().map(|key| words(&["-X", "DELETE", &at(key)])).collect());
            }
            (Tool::Curl, Verb::Drop) => words(&["-X", "DELETE", &top]),
        };
        Ok(vec![one])
    }

    fn run(&self, verb: Verb<'_>) -> Result<String> {
        let mut said = String::new();
        for mut command in self.commands(verb)? {
            said.push_str(&bounded(&mut command, self.log).with_context(|| format!("{}: {verb:?}", self.tool.name()))?);
        }
        Ok(said)
    }

    /// Keys under the prefix, without it, sorted.
    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let text = self.run(Verb::List(prefix))?;
        let mut names: Vec<String> = match self.tool {
            Tool::Aws if text.trim().is_empty() => Vec::new(),
            Tool::Aws => {
                let answer: Value = serde_json::from_str(&text).context("aws: JSON of a listing")?;
                let contents = answer.get("Contents").and_then(Value::as_array).cloned().unwrap_or_default();
                contents.iter().filter_map(|o| o.get("Key").and_then(Value::as_str)).map(str::to_owned).collect()
            }
            // DATE TIME SIZE s3://BUCKET/KEY
            Tool::S3cmd => {
                let mark = format!("s3://{}/", self.bucket);
                text.lines().filter_map(|l| l.split_once(&mark)).map(|(_, key)| key.to_owned()).collect()
            }
            Tool::Mc => json_keys(&text)?,
            Tool::Curl => elements(&text, "Key"),
            Tool::Rclone | Tool::Boto3 | Tool::MinioPy => text.lines().map(str::to_owned).collect(),
        };
        if matches!(self.tool, Tool::Aws | Tool::S3cmd | Tool::Curl) {
            for name in &mut names {
                *name = name.strip_prefix(prefix).with_context(|| format!("{name} is not under {prefix}"))?.to_owned();
            }
        }
        names.sort();
        Ok(names)
    }

    fn buckets(&self) -> Result<Vec<String>> {
        let text = self.run(Verb::Buckets)?;
        Ok(match self.tool {
            Tool::Curl => elements(&text, "Name"),
            Tool::Mc => json_keys(&text)?,
            // A date, a time and the name, or the name alone; s3cmd says s3://NAME, rclone NAME/.
            _ => text.lines().filter_map(|l| l.split_whitespace().last()).map(str::to_owned).collect(),
        }
        .iter()
        .map(|name| name.trim_start_matches("s3://").trim_end_matches('/').to_owned())
        .collect())
    }

    /// Everything a tool is asked for. `work` has the files.
    fn all(&self, work: &Work) -> Result<()> {
        let name = self.tool.name();
        self.run(Verb::Make)?;
        ensure!(self.buckets()?.contains(&self.bucket), "{name} does not list its bucket");
        let got = work.folder.join(format!("got-{name}"));
        let fetched = |key: &str, expected: &str| -> Result<()> {
            self.run(Verb::Get(key, &got))?;
            let sum = digest(&got)?;
            ensure!(sum == expected, "{name}: {key} has {sum} instead of {expected}");
            Ok(fs::remove_file(&got)?)
        };
        self.run(Verb::Put(&work.small, "dir one/sm+all.bin"))?;
        fetched("dir one/sm+all.bin", &work.small_sum)?;
        self.run(Verb::Put(&work.big, "big.bin"))?;
        fetched("big.bin", &work.big_sum)?;
        self.run(Verb::Copy("big.bin", "copied big.bin"))?;
        fetched("copied big.bin", &work.big_sum)?;
        self.run(Verb::Copy("dir one/sm+all.bin", "copied/sm%all.bin"))?;
        fetched("copied/sm%all.bin", &work.small_sum)?;

        self.run(Verb::Up(&work.tree, "tree/"))?;
        let keys: Vec<String> = tree(&work.tree)?.into_keys().collect();
        let listed = self.list("tree/")?;
        ensure!(listed == keys, "{name} lists {listed:?} instead of {keys:?}");
        let down = work.folder.join(format!("down-{name}"));
        fs::create_dir(&down)?;
        self.run(Verb::Down("tree/", &down))?;
        let (there, here) = (tree(&down)?, tree(&work.tree)?);
        ensure!(there == here, "{name} gives back {there:?} instead of {here:?}");

        // The same with a file less, one more and one with other content: to be seen by length and by sum.
        self.run(Verb::Up(&work.changed, "tree/"))?;
        let again = work.folder.join(format!("again-{name}"));
        fs::create_dir(&again)?;
        self.run(Verb::Down("tree/", &again))?;
        let (there, here) = (tree(&again)?, tree(&work.changed)?);
        ensure!(there == here, "{name} gives back, after changes, {there:?} instead of {here:?}");
        fs::remove_dir_all(&down)?;
        fs::remove_dir_all(&again)?;

        self.run(Verb::Remove("big.bin"))?;
        let left = self.list("")?;
        ensure!(
            !left.contains(&"big.bin".to_owned()) && left.contains(&"copied big.bin".to_owned()),
            "{name} deleted something else: {left:?}"
        );
        self.run(Verb::Clear)?;
        ensure!(self.list("")?.is_empty(), "{name} did not delete everything: {:?}", self.list("")?);
        self.run(Verb::Drop)?;
        ensure!(!self.buckets()?.contains(&self.bucket), "{name}'s bucket is still there");
        Ok(())
    }
}

/// The keys that `mc --json` lists, one object a line.
fn json_keys(text: &str) -> Result<Vec<String>> {
    let mut keys = Vec::new();
    for line in text.lines().filter(|l| !l.trim().is_empty()) {
        let entry: Value = serde_json::from_str(line).with_context(|| format!("mc: {line}"))?;
        let key = entry.get("key").and_then(Value::as_str).with_context(|| format!("mc: {line}"))?;
        keys.push(key.to_owned());
    }
    Ok(keys)
}

/// What the tools are given.
struct Work {
    folder: PathBuf,
    small: PathBuf,
    small_sum: String,
    big: PathBuf,
    big_sum: String,
    tree: PathBuf,
    changed: PathBuf,
}

impl Work {
    fn make(folder: &Path) -> Result<Self> {
        let mut random = File::open("/dev/urandom")?;
        let mut bytes = |n: usize| -> Result<Vec<u8>> {
            let mut data = vec![0; n];
            random.read_exact(&mut data)?;
            Ok(data)
        };
        let (small, big) = (folder.join("small.bin"), folder.join("big.bin"));
        fs::write(&small, bytes(100_003)?)?;
        fs::write(&big, bytes(BIG)?)?;
        let (tree, changed) = (folder.join("tree"), folder.join("changed"));
        for (name, length) in FILES {
            let data = bytes(length)?;
            for top in [&tree, &changed] {
                let path = top.join(name);
                fs::create_dir_all(path.parent().unwrap_or(top))?;
                fs::write(path, &data)?;
            }
        }
        fs::remove_file(changed.join("a+b.txt"))?;
        fs::write(changed.join("a new one.txt"), bytes(333)?)?;
        fs::write(changed.join("plain.txt"), bytes(12)?)?;
        Ok(Self {
            folder: folder.to_owned(),
            small_sum: digest(&small)?,
            big_sum: digest(&big)?,
            small,
            big,
            tree,
            changed,
        })
    }
}

/// SHA-256 of a file, by coreutils.
fn digest(path: &Path) -> Result<String> {
    // From standard input: it escapes some names.
    let output =
        Command::new("sha256sum").stdin(File::open(path).with_context(|| path.display().to_string())?).output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split_whitespace().next().context("sha256sum says nothing")?.to_owned())
}

/// Names, lengths and SHA-256 of the files below a folder.
fn tree(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder)?.to_str().context("a file name that is not UTF-8")?.to_owned();
                files.insert(name, digest(&path)?);
            }
        }
    }
    Ok(files)
}

/// Runs a command with a limit of time, all its output to the log, and returns what it printed on standard output.
fn bounded(command: &mut Command, log: &Path) -> Result<String> {
    bounded_for(command, log, LIMIT)
}

/// [`bounded`] with another limit.
fn bounded_for(command: &mut Command, log: &Path, limit: Duration) -> Result<String> {
    let what = process::display(command);
    let start = Instant::now();
    let (out, err) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = process::end_with_parent(command)
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(err.try_clone()?)
        .spawn()
        .with_context(|| format!("cannot run `{what}`"))?;
    let in_time = process::wait_for(&mut child, limit)?;
    if !in_time {
        child.kill()?;
    }
    let status = child.wait()?;
    let read = |mut file: File| -> Result<String> {
        use std::io::{Seek as _, SeekFrom};
        file.seek(SeekFrom::Start(0))?;
        let mut data = Vec::new();
        file.read_to_end(&mut data)?;
        Ok(String::from_utf8_lossy(&data).into_owned())
    };
    let (said, complained) = (read(out)?, read(err)?);
    let mut file = File::options().append(true).create(true).open(log)?;
    use std::io::Write as _;
    writeln!(file, "$ {what}\n{said}{complained}({status}, {:.1} s)", start.elapsed().as_secs_f64())?;
    let last = format!("{}\n{}", process::tail(&said, 10), process::tail(&complained, 40));
    ensure!(in_time, "`{what}` still runs after {} s\n{last}", limit.as_secs());
    ensure!(status.success(), "`{what}`: {status}\n{last}");
    Ok(said)
}

/// `ernic serve` on the loopback, with credentials, and the tools.
fn start(bench: &Bench<'_>, name: &str) -> Result<(Tools, Listener)> {
    let tools = Tools::acquire(bench.args().guest.mirror.as_deref()).map_err(|error| Skip(format!("{error:#}")))?;
    vm::clear_logs(name)?;
    let program = bench.server()?;
    let server = Listener::start(&program, name, "s3:size=1G")?;
    Ok((tools, server))
}

/// One of the scripts in `tests/tools`, with the server's address and credentials.
fn script(tools: &Tools, server: &Listener, file: &str) -> Command {
    let mut command = tools.command("python3");
    command.env("ENDPOINT", &server.endpoint).env("ACCESS_KEY", KEYS.0).env("SECRET_KEY", KEYS.1);
    command.arg(test_file(file));
    command
}

/// Stock tools against `ernic serve` with credentials: buckets, objects, parts, copies, trees of odd names.
pub fn s3_tools(bench: &Bench<'_>) -> Result<String> {
    let (tools, mut server) = start(bench, "s3-tools")?;
    let log = vm::log_folder("s3-tools")?.join("tools.log");
    let temporary = tempfile::Builder::new().prefix("ernic-tools-").tempdir()?;
    let work = Work::make(temporary.path())?;
    let mut report = Vec::new();
    let mut failures = String::new();
    let mut note = |name: &str, start: Instant, result: Result<Option<String>>| {
        let seconds = start.elapsed().as_secs_f64();
        report.push(match &result {
            Ok(None) => format!("{name} {seconds:.1} s"),
            Ok(Some(reason)) => format!("{name} skipped: {reason}"),
            Err(_) => format!("{name} FAILED"),
        });
        if let Err(error) = result {
            failures.push_str(&format!("{name}: {error:#}\n"));
        }
    };
    for tool in TOOLS {
        let start = Instant::now();
        let result = match (tool, tools.no_site()) {
            (Tool::MinioPy, Some(why)) => Ok(Some(why.to_owned())),
            _ => Run::new(tool, &tools, &server.endpoint, &work.folder, &log).and_then(|r| r.all(&work)).map(|()| None),
        };
        note(tool.name(), start, result);
    }
    // The others have a bucket made for them.
    let curl = Run::new(Tool::Curl, &tools, &server.endpoint, &work.folder, &log);
    let mut curl = curl.context("curl")?;
    for (name, file) in [("duckdb", "tools/duck.py"), ("s3fs", "tools/mount.py")] {
        let start = Instant::now();
        curl.bucket = format!("tool-{name}");
        let result = (|| {
            if let (true, Some(why)) = (name == "duckdb", tools.no_site()) {
                return Ok(Some(why.to_owned()));
            }
            curl.run(Verb::Make)?;
            let mut command = script(&tools, &server, file);
            if name == "s3fs" {
                command.arg(tools.bin().join("s3fs"));
            }
            command.arg(&curl.bucket);
            if name == "s3fs" {
                command.arg(&work.changed);
            }
            let said = bounded(&mut command, &log)?;
            curl.run(Verb::Clear)?;
            curl.run(Verb::Drop)?;
            let skipped = said.lines().find_map(|l| l.strip_prefix("SKIPPED: ")).map(str::to_owned);
            ensure!(skipped.is_some() || said.trim_end().ends_with("ok"), "{name}: {said}");
            Ok(skipped)
        })();
        note(name, start, result);
    }
    server.check()?;
    if !failures.is_empty() {
        bail!("{}\n{failures}(all of it in {})", report.join(", "), log.display());
    }
    server.stop()?;
    Ok(format!(" ({}; {})", report.join(", "), tools.versions()))
}

/// Tests in Python, with boto3, of what S3 is documented to do: `tests/conformance`.
pub fn conformance(bench: &Bench<'_>) -> Result<String> {
    let (tools, mut server) = start(bench, "s3-conformance")?;
    let log = vm::log_folder("s3-conformance")?.join("tests.log");
    let mut command = tools.command("python3");
    command.env("ENDPOINT", &server.endpoint).env("ACCESS_KEY", KEYS.0).env("SECRET_KEY", KEYS.1);
    command.args(["-m", "unittest", "discover", "--start-directory"]).arg(test_file("conformance"));
    let result = bounded_for(&mut command, &log, Duration::from_secs(900));
    server.check()?;
    let text = fs::read_to_string(&log)?;
    if let Err(error) = result {
        let failed: Vec<&str> = text.lines().filter(|l| l.starts_with("FAIL: ") || l.starts_with("ERROR: ")).collect();
        bail!("{}\n{error:#}\n(all of it in {})", failed.join("\n"), log.display());
    }
    server.stop()?;
    let count = ran(&text).with_context(|| format!("no count of tests in {}", log.display()))?;
    ensure!(count >= 400, "only {count} tests ran");
    Ok(format!(" ({count} tests)"))
}

/// How many tests a run of Python's unittest says that it has run: `Ran 3 tests in 0.1s`.
fn ran(text: &str) -> Option<u64> {
    text.lines().rev().find_map(|l| l.strip_prefix("Ran ")?.split(" test").next()?.parse().ok())
}

/// rclone as Debian has it, in the guest, on the emulated NIC.
pub fn vm_tools(bench: &Bench<'_>) -> Result<()> {
    if bench.args().guest.initrd.is_some() {
        bail!(Skip("the tools come with Debian's packages, and --initrd does without them".to_owned()));
    }
    // The image first: it looks the packages up where they are not.
    bench.image()?;
    let tools = Tools::acquire(bench.args().guest.mirror.as_deref()).map_err(|error| Skip(format!("{error:#}")))?;
    let archive = payload::programs(&tools.tree(), &["/usr/bin/rclone"], "tools")?;
    let setup = Setup { payloads: vec![archive], backend: "s3:objects=1000", ..Setup::default() };
    let mut rig = Rig::start_with(bench, "vm-s3-tools", setup)?;
    let line = format!(
        "/usr/bin/rclone --config /dev/null --s3-provider Other --s3-endpoint {ENDPOINT} --s3-region us-east-1 --s3-access-key-id a --s3-secret-access-key b --s3-chunk-size 5M --s3-upload-cutoff 5M --retries 1"
    );
    // One line, as the guest's agent reads them.
    let script = format!("#!/bin/sh\\nexport RCLONE_CONFIG_E_TYPE=s3\\nexec {line} \"$@\"\\n");
    rig.ok(&format!("printf '{script}' >/usr/bin/rc && chmod 755 /usr/bin/rc"))?;
    let limit = Duration::from_secs(300);
    // Names and lengths of the lane `s3-tools`, and a file of several parts.
    let mut make = "mkdir -p /tmp/tree && cd /tmp/tree".to_owned();
    for (name, length) in FILES.iter().copied().chain([("big.bin", 24 << 20)]) {
        let quoted = format!("'{}'", name.replace('\'', "'\\''"));
        make.push_str(&format!(" && mkdir -p \"$(dirname {quoted})\" && head -c {length} /dev/urandom >{quoted}"));
    }
    rig.ok(&make)?;
    let sums = |rig: &mut Rig<'_>, folder: &str| -> Result<Vec<String>> {
        let text = rig.ok(&format!("cd {folder} && find . -type f -exec sha256sum {{}} +"))?;
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        Ok(lines)
    };
    let stored = sums(&mut rig, "/tmp/tree")?;
    ensure!(stored.len() == FILES.len() + 1, "{stored:?}");
    rig.ok_for("rc mkdir e:guests && rc sync --checksum /tmp/tree e:guests/tree", limit)?;
    rig.ok_for("rc check --download /tmp/tree e:guests/tree", limit)?;
    rig.ok_for("rc sync e:guests/tree /tmp/back", limit)?;
    let got = sums(&mut rig, "/tmp/back")?;
    ensure!(got == stored, "rclone gives back {got:?} instead of {stored:?}");
    // One file less, one changed; a copy made by the server; another client's view of it.
    rig.ok("rm '/tmp/tree/a+b.txt' && echo changed >/tmp/tree/plain.txt")?;
    rig.ok_for("rc sync --checksum /tmp/tree e:guests/tree", limit)?;
    rig.ok_for("rc copyto e:guests/tree/big.bin 'e:guests/a copy.bin'", limit)?;
    let stored = sums(&mut rig, "/tmp/tree")?;
    rig.ok_for("rm -rf /tmp/back && rc sync e:guests/tree /tmp/back", limit)?;
    let got = sums(&mut rig, "/tmp/back")?;
    ensure!(got == stored, "after changes rclone gives back {got:?} instead of {stored:?}");
    let big = rig.ok("sha256sum </tmp/tree/big.bin")?;
    let copy = rig.ok(&format!("curl -sSf -m 100 '{ENDPOINT}/guests/a%20copy.bin' | sha256sum"))?;
    ensure!(copy == big, "the copy is {copy} instead of {big}");
    let listing = rig.ok("rc lsf -R --files-only e:guests")?;
    ensure!(listing.lines().count() == stored.len() + 1, "{listing}");
    rig.ok_for("rc delete e:guests && rc rmdir e:guests", limit)?;
    let buckets = rig.ok("rc lsf e:")?;
    ensure!(buckets.trim() == "ernic/", "{buckets}");
    rig.stop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_encoded_for_a_path() {
        assert_eq!(encoded("a b/c+d%é"), "a%20b/c%2Bd%25%C3%A9");
    }

    #[test]
    fn names_are_taken_from_listings() {
        let xml = "<Contents><Key>a&amp;b</Key></Contents><Contents><Key>&lt;c&gt;</Key></Contents>";
        assert_eq!(elements(xml, "Key"), ["a&b", "<c>"]);
        assert_eq!(json_keys("{\"key\":\"a b\"}\n\n{\"key\":\"c\"}\n").unwrap(), ["a b", "c"]);
        assert!(json_keys("{\"status\":\"error\"}").is_err());
    }

    #[test]
    fn tests_are_counted_by_the_closing_lines() {
        assert_eq!(ran("F.\nRan 1 test in 0.1s\n\nFAILED\n"), Some(1));
        assert_eq!(ran("...\nRan 441 tests in 20.1s\n\nOK\n"), Some(441));
        assert_eq!(ran("Error: no such folder"), None);
    }

    #[test]
    fn a_tree_is_told_by_names_and_contents() {
        let folder = tempfile::tempdir().unwrap();
        let work = Work::make(folder.path()).unwrap();
        let (before, after) = (tree(&work.tree).unwrap(), tree(&work.changed).unwrap());
        assert_eq!(
            before.keys().map(String::as_str).collect::<std::collections::BTreeSet<_>>(),
            FILES.map(|(n, _)| n).into()
        );
        let changed: Vec<&str> =
            before.iter().filter(|(n, s)| after.get(*n) != Some(*s)).map(|(n, _)| n.as_str()).collect();
        assert_eq!(changed, ["a+b.txt", "plain.txt"]);
        assert_eq!(before["empty"], "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }

    #[test]
    fn a_command_is_bounded_and_its_words_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        assert_eq!(bounded(Command::new("sh").args(["-c", "echo out; echo err >&2"]), &log).unwrap(), "out\n");
        assert!(fs::read_to_string(&log).unwrap().contains("out\nerr\n(exit status: 0, "));
        let error = bounded(Command::new("sh").args(["-c", "echo lost >&2; exit 3"]), &log).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("lost"), "{error}");
        let error = bounded_for(Command::new("sleep").arg("60"), &log, Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("still runs"), "{error}");
    }
}
