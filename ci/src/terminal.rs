//! The person's terminal as the guest's console.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use anyhow::Result;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Ctrl-].
const LEAVE: u8 = 0x1d;
/// Ctrl-D: the end of input, to a shell.
const END_OF_INPUT: u8 = 0x04;

/// `shell` for the guest's kernel command line, with this terminal's size.
pub fn shell_word() -> String {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => format!("shell={}x{}", size.ws_row, size.ws_col),
        _ => "shell".to_owned(),
    }
}

/// Restores the terminal's mode.
struct Raw(Termios);

impl Raw {
    /// Makes standard input raw if it is a terminal.
    fn enter() -> Result<Option<Self>> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Some(Self(before)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Copies between standard input and output and `console` until the console ends or Ctrl-] is typed. Standard input that
/// is not a terminal is typed into the guest's shell, and its end ends the shell.
///
/// # Errors
/// When the terminal's mode cannot be changed or a copy fails.
pub fn attach(mut console: UnixStream) -> Result<()> {
    let raw = Raw::enter()?;
    let is_terminal = raw.is_some();
    let mut keys = console.try_clone()?;
    if is_terminal {
        // For a prompt: the shell gave its first one before anybody was there.
        keys.write_all(b"\r")?;
    }
    // Not joined: it may be waiting for a key when the guest ends.
    std::thread::spawn(move || {
        let mut buffer = [0; 1024];
        loop {
            let typed = match io::stdin().read(&mut buffer) {
                Ok(n @ 1..) => buffer.get(..n).unwrap_or_default(),
                _ => &[END_OF_INPUT],
            };
            if is_terminal && typed.contains(&LEAVE) {
                let _ = keys.shutdown(std::net::Shutdown::Both);
                return;
            }
            if keys.write_all(typed).is_err() || typed == [END_OF_INPUT] && !is_terminal {
                return;
            }
        }
    });
    let mut out = io::stdout();
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = console.read(&mut buffer) {
        out.write_all(buffer.get(..n).unwrap_or_default())?;
        out.flush()?;
    }
    drop(raw);
    Ok(())
}
