//! Child processes: they end with us, and their failures name the command and its last words.

// `pre_exec` is the only way to set the parent-death signal of a child.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

/// Makes the child get SIGTERM when the thread that spawns it ends (`prctl(2)`, `PR_SET_PDEATHSIG`), so that a killed
/// `cargo xtask` leaves no server behind. Spawn such children from the main thread only.
pub fn end_with_parent(command: &mut Command) -> &mut Command {
    // SAFETY: the closure runs between fork and exec and makes one prctl system call: no allocation, no lock.
    unsafe { command.pre_exec(|| set_parent_process_death_signal(Some(Signal::TERM)).map_err(io::Error::from)) }
}

/// The command as a person would type it.
pub fn display(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    words.join(" ")
}

/// The last `lines` lines of `text`.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Runs the command without standard input and returns what it printed.
///
/// # Errors
/// When it cannot be started, or ends with another status than 0: the error has the command and the end of its output.
pub fn output(command: &mut Command) -> Result<Output> {
    end_with_parent(command).stdin(Stdio::null());
    let output = command.output().with_context(|| format!("cannot run `{}`", display(command)))?;
    if !output.status.success() {
        let mut said = String::from_utf8_lossy(&output.stderr).into_owned();
        if said.trim().is_empty() {
            said = String::from_utf8_lossy(&output.stdout).into_owned();
        }
        bail!("`{}`: {}\n{}", display(command), output.status, tail(&said, 12));
    }
    Ok(output)
}

/// Standard output of [`output`] as text.
///
/// # Errors
/// As [`output`].
pub fn stdout(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&output(command)?.stdout).into_owned())
}

/// Whether `program` is found on `PATH`.
pub fn on_path(program: impl AsRef<OsStr>) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program.as_ref()).is_file())
}

/// Waits for the child at most `limit`; `true` when it has ended.
///
/// # Errors
/// When the child's status cannot be read.
pub fn wait_for(child: &mut Child, limit: Duration) -> Result<bool> {
    let end = Instant::now() + limit;
    loop {
        if child.try_wait()?.is_some() {
            return Ok(true);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends SIGTERM, waits at most `limit`, then kills. `true` when SIGTERM was enough.
///
/// # Errors
/// When the child's status cannot be read.
pub fn terminate(child: &mut Child, limit: Duration) -> Result<bool> {
    if child.try_wait()?.is_some() {
        return Ok(true);
    }
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        kill_process(pid, Signal::TERM)?;
    }
    if wait_for(child, limit)? {
        return Ok(true);
    }
    child.kill()?;
    child.wait()?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_keeps_the_last_lines() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
        assert_eq!(tail("", 2), "");
    }

    #[test]
    fn a_failure_names_the_command_and_its_last_words() {
        let error = output(Command::new("sh").args(["-c", "echo lost >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("sh -c") && text.contains("exit status: 3") && text.ends_with("lost"), "{text}");
    }

    #[test]
    fn terminate_ends_a_child() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(terminate(&mut child, Duration::from_secs(20)).unwrap());
        assert!(child.try_wait().unwrap().is_some());
    }
}
