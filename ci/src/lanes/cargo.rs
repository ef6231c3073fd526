//! Test programs of the workspace: all built by one Cargo run, so that their features are unified and nothing is built
//! twice, then started one by one in the way Cargo does it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Skip, Target};
use crate::native::Native;
use crate::{process, say, vm};

/// A test program.
#[derive(Debug, Clone)]
pub struct Program {
    package: String,
    /// The package's folder.
    folder: PathBuf,
    target: String,
    kind: String,
    path: PathBuf,
}

impl Program {
    /// Whether it is (one of) the target.
    pub fn is(&self, target: Target) -> bool {
        match target {
            Target::All(package) => self.package == package,
            Target::Lib(package) => self.package == package && self.kind == "lib",
            Target::Test(package, name) => self.package == package && self.kind == "test" && self.target == name,
        }
    }
}

/// What a build has made.
#[derive(Debug, Default)]
pub struct Programs {
    tests: Vec<Program>,
    /// Names and paths of the packages' own programs, which tests start.
    binaries: Vec<(String, PathBuf)>,
    /// Whether something did not build.
    broken: bool,
}

/// What a line of `--message-format=json` says was made.
fn artifact(line: &[u8], programs: &mut Programs) {
    let Ok(message) = serde_json::from_slice::<Value>(line) else { return };
    let text = |pointer: &str| message.pointer(pointer).and_then(Value::as_str);
    let (Some(path), Some(target), Some(kind), Some(manifest)) =
        (text("/executable"), text("/target/name"), text("/target/kind/0"), text("/manifest_path"))
    else {
        return;
    };
    let folder = Path::new(manifest).parent().unwrap_or_else(|| Path::new("/")).to_owned();
    // `path+file:///…/token#rdma-token@0.1.0`, or `…/store#0.1.0` where folder and package have one name.
    let id = text("/package_id").unwrap_or_default();
    let (url, last) = id.rsplit_once('#').unwrap_or((id, ""));
    let package = match last.split_once('@') {
        Some((name, _)) => name,
        None => url.rsplit('/').next().unwrap_or_default(),
    };
    if message.pointer("/profile/test").and_then(Value::as_bool) == Some(true) {
        programs.tests.push(Program {
            package: package.to_owned(),
            folder,
            target: target.to_owned(),
            kind: kind.to_owned(),
            path: path.into(),
        });
    } else if kind == "bin" {
        programs.binaries.push((target.to_owned(), path.into()));
    }
}

/// Cargo for all packages, where the machine can build them, or else for all but `ernic-verbs`.
fn cargo(command: &str, native: Result<&Native, &str>) -> Command {
    let mut cargo = crate::cargo();
    cargo.arg(command);
    match native {
        Ok(native) => native.apply(cargo.arg("--workspace")),
        Err(why) => say!("without ernic-verbs: {why}"),
    }
    cargo
}

/// Builds all test programs of the workspace. What does not build is missing from the result, and Cargo has said why.
///
/// # Errors
/// When Cargo cannot be run, or builds nothing.
pub fn build(native: Result<&Native, &str>) -> Result<Programs> {
    let start = Instant::now();
    // `cargo test --no-run` builds the same, but stops at the first target that does not build, and builds examples too.
    let mut command = cargo("build", native);
    command.args(["--tests", "--keep-going", "--message-format=json-render-diagnostics"]);
    let output = process::end_with_parent(&mut command)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    let mut programs = Programs { broken: !output.status.success(), ..Programs::default() };
    for line in output.stdout.split(|b| *b == b'\n') {
        artifact(line, &mut programs);
    }
    if programs.tests.is_empty() {
        bail!("`{}` made no test program: {}", process::display(&command), output.status);
    }
    say!("{} test programs built: {:.1} s", programs.tests.len(), start.elapsed().as_secs_f64());
    Ok(programs)
}

/// Longest time of one test program.
const LIMIT: Duration = Duration::from_secs(1200);

/// Passed, failed and ignored tests, from the closing line of libtest (and of libtest-mimic): `test result: ok. 3 passed; 0
/// failed; 0 ignored; …`.
fn counts(output: &str) -> Option<[u64; 3]> {
    let line = output.lines().rev().find(|l| l.starts_with("test result: "))?;
    let number = |word: &str| -> Option<u64> {
        let before = line.split(word).next()?.trim_end();
        before.rsplit(' ').next()?.parse().ok()
    };
    Some([number(" passed;")?, number(" failed;")?, number(" ignored;")?])
}

/// Why a test program has run nothing: what follows `SKIPPED: ` at the start of a line of its output.
fn skipped(output: &str) -> Option<&str> {
    output.lines().find_map(|l| l.strip_prefix("SKIPPED: ")).map(str::trim)
}

/// Runs the programs that `wanted` picks; each of `targets` must be among them. Returns how many tests ran.
///
/// # Errors
/// When a program is missing, fails, hangs, or no test runs: the error has the end of the output. [`Skip`] when a program
/// cannot run here and says so, and none fails.
pub fn run(
    programs: &Programs,
    lane: &str,
    wanted: impl Fn(&Program) -> bool,
    targets: &[Target],
    full: bool,
) -> Result<String> {
    for target in targets {
        if !programs.tests.iter().any(|p| p.is(*target)) {
            let why = if programs.broken { "did not build" } else { "is not in the workspace" };
            bail!("the test target {target:?} {why}");
        }
    }
    if programs.broken && targets.is_empty() {
        bail!("some test programs did not build");
    }
    let log = vm::log_folder("lanes")?.join(format!("{lane}.log"));
    let mut file = File::create(&log)?;
    let [mut passed, mut ignored] = [0, 0];
    let mut failures = String::new();
    let mut skips = Vec::new();
    for program in programs.tests.iter().filter(|p| wanted(p)) {
        let before = fs::metadata(&log)?.len();
        let mut command = Command::new(&program.path);
        command
            .current_dir(&program.folder)
            .env("CARGO_MANIFEST_DIR", &program.folder)
            .env("CARGO_PKG_NAME", &program.package);
        for (name, path) in &programs.binaries {
            command.env(format!("CARGO_BIN_EXE_{name}"), path);
        }
        if full {
            command.arg("--include-ignored");
        }
        let mut child = process::end_with_parent(&mut command)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file.try_clone()?)
            .spawn()?;
        let in_time = process::wait_for(&mut child, LIMIT)?;
        if !in_time {
            child.kill()?;
        }
        let status = child.wait()?;
        let said = fs::read(&log)?;
        let said = String::from_utf8_lossy(said.get(usize::try_from(before)?..).unwrap_or_default()).into_owned();
        let what = format!("{} {} {}", program.package, program.kind, program.target);
        if let Some([good, _, left]) = counts(&said) {
            passed += good;
            ignored += left;
        }
        if !in_time {
            failures.push_str(&format!(
                "{what}: still running after {} s\n{}\n",
                LIMIT.as_secs(),
                process::tail(&said, 20)
            ));
        } else if !status.success() {
            failures.push_str(&format!("{what}: {status}\n{}\n", process::tail(&said, 50)));
        } else if let Some(reason) = skipped(&said) {
            skips.push(format!("{what}: {reason}"));
        }
        use std::io::{Seek as _, SeekFrom};
        file.seek(SeekFrom::End(0))?;
    }
    if !failures.is_empty() {
        bail!("{failures}(all of it in {})", log.display());
    }
    if !skips.is_empty() {
        bail!(Skip(skips.join("; ")));
    }
    if passed == 0 {
        bail!("no test ran (see {})", log.display());
    }
    let more = if ignored > 0 { format!(", {ignored} ignored") } else { String::new() };
    Ok(format!(" ({passed} tests{more})"))
}

/// Runs the examples in the documentation of all packages.
///
/// # Errors
/// When one fails.
pub fn doc(native: Result<&Native, &str>) -> Result<String> {
    process::output(cargo("test", native).args(["--doc", "--quiet"]))?;
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifacts_are_told_apart() {
        let mut programs = Programs::default();
        let line = |id: &str, kind: &str, name: &str, test: bool| {
            serde_json::json!({"reason": "compiler-artifact", "package_id": id, "manifest_path": "/w/store/Cargo.toml",
                "target": {"name": name, "kind": [kind]}, "profile": {"test": test}, "executable": format!("/t/{name}")})
            .to_string()
        };
        artifact(line("path+file:///w/store#ernic-store@0.1.0", "lib", "ernic_store", true).as_bytes(), &mut programs);
        artifact(line("path+file:///w/ernic#0.1.0", "test", "ci", true).as_bytes(), &mut programs);
        artifact(line("path+file:///w/ernic#0.1.0", "bin", "ernic", false).as_bytes(), &mut programs);
        artifact(br#"{"reason":"compiler-artifact","executable":null}"#, &mut programs);
        artifact(b"", &mut programs);
        assert_eq!(programs.tests.len(), 2);
        assert!(programs.tests[0].is(Target::All("ernic-store")) && programs.tests[0].is(Target::Lib("ernic-store")));
        assert!(programs.tests[1].is(Target::Test("ernic", "ci")) && !programs.tests[1].is(Target::Lib("ernic")));
        assert_eq!(programs.tests[0].folder, Path::new("/w/store"));
        assert_eq!(programs.binaries, [("ernic".to_owned(), PathBuf::from("/t/ernic"))]);
    }

    #[test]
    fn the_closing_line_is_counted() {
        let text = "running 3 tests\ntest result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\n";
        assert_eq!(counts(text), Some([12, 0, 3]));
        assert_eq!(counts("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured\n"), Some([1, 2, 0]));
        assert_eq!(counts("nothing"), None);
    }

    /// A program that says and does what the shell script `text` makes it.
    fn script(folder: &Path, name: &str, text: &str) -> Program {
        let path = folder.join(name);
        // Written by a child: a file that this process has open for writing, or that a child of another test inherits in the
        // moment between fork and exec, cannot be run.
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$2\" && chmod 755 \"$2\"";
        process::output(Command::new("sh").args(["-c", write, "sh", text]).arg(&path)).unwrap();
        Program { package: "p".into(), folder: folder.into(), target: name.into(), kind: "test".into(), path }
    }

    #[test]
    fn a_program_that_says_skipped_makes_the_lane_a_skipped_one() {
        let folder = tempfile::tempdir().unwrap();
        let good = script(folder.path(), "good", "echo 'test result: ok. 2 passed; 0 failed; 0 ignored;'");
        let skip = script(folder.path(), "skip", "echo 'SKIPPED: no network namespace'");
        let bad = script(folder.path(), "bad", "echo 'SKIPPED: x'; exit 1");
        let lane = |tests: &[&Program]| {
            let tests = tests.iter().map(|p| (*p).clone()).collect();
            run(&Programs { tests, ..Programs::default() }, "unit-skip", |_| true, &[], false)
        };
        assert_eq!(lane(&[&good]).unwrap(), " (2 tests)");
        let error = lane(&[&good, &skip]).unwrap_err();
        assert_eq!(error.downcast_ref::<Skip>().unwrap().0, "p test skip: no network namespace");
        let error = lane(&[&skip, &bad]).unwrap_err();
        assert!(error.downcast_ref::<Skip>().is_none() && error.to_string().starts_with("p test bad: exit"), "{error}");
    }

    #[test]
    fn a_lane_without_a_test_fails() {
        let error = run(&Programs::default(), "unit-none", |_| true, &[], false).unwrap_err();
        assert!(error.to_string().starts_with("no test ran"), "{error}");
        let error = run(&Programs::default(), "unit-none", |_| true, &[Target::Lib("gone")], false).unwrap_err();
        assert!(error.to_string().contains("is not in the workspace"), "{error}");
    }
}
