//! SIGINT and SIGTERM as something to poll.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::{backend::SignalDelivery, exfiltrator::SignalOnly},
};

/// SIGINT and SIGTERM of this process, which from now on end nothing by themselves.
#[derive(Debug)]
pub struct Signals(SignalDelivery<UnixStream, SignalOnly>);

/// A request to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl Signal {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }
}

impl Signals {
    /// Takes both signals over. Errors: the system refuses a socket pair or a handler.
    pub fn install() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        SignalDelivery::with_pipe(read, write, SignalOnly, [SIGINT, SIGTERM]).map(Self)
    }

    /// The signal that has come, if one has. Never blocks. Call it when [`Signals::as_fd`] is readable.
    pub fn take(&mut self) -> Option<Signal> {
        self.0.pending().next().map(|signal| if signal == SIGINT { Signal::Interrupt } else { Signal::Terminate })
    }
}

impl AsFd for Signals {
    /// Readable once a signal has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_read().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::{
        event::{PollFd, PollFlags, Timespec, poll},
        process::{getpid, kill_process},
    };

    use super::*;

    fn readable(signals: &Signals, seconds: i64) -> bool {
        let mut fds = [PollFd::new(signals, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: seconds, tv_nsec: 0 })).unwrap() == 1
    }

    /// One test for both, since signals belong to the whole process.
    #[test]
    fn signals_make_the_fd_readable_and_are_told_apart() {
        let mut signals = Signals::install().unwrap();
        assert!(!readable(&signals, 0));
        assert_eq!(signals.take(), None);
        for (sent, expected) in
            [(rustix::process::Signal::TERM, Signal::Terminate), (rustix::process::Signal::INT, Signal::Interrupt)]
        {
            kill_process(getpid(), sent).unwrap();
            assert!(readable(&signals, 60));
            assert_eq!(signals.take(), Some(expected));
            assert_eq!(signals.take(), None);
            assert!(!readable(&signals, 0), "drained");
        }
    }
}
