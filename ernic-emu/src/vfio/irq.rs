//! The eventfds behind a device's interrupts.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::IrqAction;

/// One eventfd per vector, where the client installed one. Clones share one table; any thread may trigger.
#[derive(Debug, Clone)]
pub struct IrqTable(Arc<RwLock<Vec<Option<Event>>>>);

#[derive(Debug)]
struct Event {
    fd: OwnedFd,
    /// A write waits while the counter is at its maximum.
    blocking: bool,
}

impl IrqTable {
    /// A table of `vectors` vectors without eventfds.
    pub fn new(vectors: usize) -> Self {
        Self(Arc::new(RwLock::new(std::iter::repeat_with(|| None).take(vectors).collect())))
    }

    /// Gives vector `vector` an eventfd in place of what it had.
    ///
    /// # Errors
    /// `EINVAL`: no such vector.
    pub fn install(&self, vector: u32, fd: OwnedFd) -> Result<(), Errno> {
        let blocking = !rustix::fs::fcntl_getfl(&fd)?.contains(OFlags::NONBLOCK);
        self.replace(vector, Some(Event { fd, blocking }))
    }

    /// Takes the eventfd of vector `vector` away; nothing happens if it has none.
    ///
    /// # Errors
    /// `EINVAL`: no such vector.
    pub fn remove(&self, vector: u32) -> Result<(), Errno> {
        self.replace(vector, None)
    }

    fn replace(&self, vector: u32, event: Option<Event>) -> Result<(), Errno> {
        let mut events = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let slot = usize::try_from(vector).ok().and_then(|v| events.get_mut(v)).ok_or(Errno::INVAL)?;
        *slot = event;
        Ok(())
    }

    /// Takes all eventfds away.
    pub fn disable_all(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).fill_with(|| None);
    }

    /// Carries out what SET_IRQS asks for. A trigger of a vector without an eventfd does nothing.
    ///
    /// # Errors
    /// `EINVAL`: a vector does not exist; those before it are done.
    pub fn apply(&self, action: IrqAction) -> Result<(), Errno> {
        match action {
            IrqAction::EventFds { start, fds } => {
                for (fd, vector) in fds.into_iter().zip(start..) {
                    match fd {
                        Some(fd) => self.install(vector, fd)?,
                        None => self.remove(vector)?,
                    }
                }
            }
            IrqAction::DisableAll => self.disable_all(),
            IrqAction::Trigger { start, count } => {
                for vector in start..start.saturating_add(count) {
                    self.trigger(vector);
                }
            }
        }
        Ok(())
    }

    /// Whether vector `vector` has an eventfd.
    pub fn installed(&self, vector: u32) -> bool {
        let events = self.0.read().unwrap_or_else(PoisonError::into_inner);
        usize::try_from(vector).ok().and_then(|v| events.get(v)).is_some_and(Option::is_some)
    }

    /// Signals vector `vector`: adds 1 to its eventfd. `false`: it has none, the caller has to remember the event. Never waits: if the
    /// counter is at its maximum, a signal is pending there anyway.
    pub fn trigger(&self, vector: u32) -> bool {
        let events = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Some(event) = usize::try_from(vector).ok().and_then(|v| events.get(v)).and_then(Option::as_ref) else {
            return false;
        };
        if event.blocking && !writable_now(&event.fd) {
            return true;
        }
        match rustix::io::write(&event.fd, &1_u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(errno) => crate::warn_limited!(vector, %errno, "cannot signal an interrupt"),
        }
        true
    }
}

/// Whether a write would not wait. The client's descriptor is shared with the client: making it non-blocking would change it there too.
fn writable_now(fd: &impl AsFd) -> bool {
    let mut poll = [PollFd::new(fd, PollFlags::OUT)];
    rustix::event::poll(&mut poll, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn take(fd: &OwnedFd) -> Option<u64> {
        let mut buf = [0; 8];
        writable_or_readable(fd).then(|| rustix::io::read(fd, &mut buf).unwrap())?;
        Some(u64::from_ne_bytes(buf))
    }

    fn writable_or_readable(fd: &OwnedFd) -> bool {
        let mut poll = [PollFd::new(fd, PollFlags::IN)];
        rustix::event::poll(&mut poll, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    fn event(flags: EventfdFlags) -> (OwnedFd, OwnedFd) {
        let fd = eventfd(0, flags).unwrap();
        let copy = fd.try_clone().unwrap();
        (fd, copy)
    }

    #[test]
    fn triggers_reach_the_right_eventfd_and_add_up() {
        let table = IrqTable::new(3);
        let (a, ours_a) = event(EventfdFlags::NONBLOCK);
        let (b, ours_b) = event(EventfdFlags::empty());
        assert!(!table.trigger(0), "nothing installed");
        table.apply(IrqAction::EventFds { start: 1, fds: vec![Some(a), Some(b)] }).unwrap();
        assert_eq!([0, 1, 2, 3, u32::MAX].map(|v| table.installed(v)), [false, true, true, false, false]);
        assert!(table.trigger(1));
        assert!(table.trigger(1));
        assert!(table.trigger(2));
        assert_eq!(take(&ours_a), Some(2));
        assert_eq!(take(&ours_b), Some(1));
        assert!(!table.trigger(3));
        table.apply(IrqAction::Trigger { start: 0, count: 3 }).unwrap();
        assert_eq!((take(&ours_a), take(&ours_b)), (Some(1), Some(1)));
        table.apply(IrqAction::EventFds { start: 1, fds: vec![None] }).unwrap();
        assert!(!table.trigger(1));
        assert!(table.trigger(2));
        table.apply(IrqAction::DisableAll).unwrap();
        assert!(!table.trigger(2));
        assert_eq!(take(&ours_a), None);
        assert_eq!(table.install(3, ours_a), Err(Errno::INVAL));
    }

    #[test]
    fn a_full_counter_does_not_hang_us() {
        for flags in [EventfdFlags::NONBLOCK, EventfdFlags::empty()] {
            let table = IrqTable::new(1);
            let (fd, ours) = event(flags);
            table.install(0, fd).unwrap();
            rustix::io::write(&ours, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            assert!(table.trigger(0));
            assert_eq!(take(&ours), Some(u64::MAX - 1));
            assert!(table.trigger(0));
            assert_eq!(take(&ours), Some(1));
        }
    }
}
