//! The guest's cable: who may pull it, and for how long.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Asks for the link to be down for a time. Anybody may, at any moment, and the loop acts on it before its next turn.
/// Clones are one.
#[derive(Debug, Clone, Default)]
pub struct LinkFault(Arc<AtomicU64>);

impl LinkFault {
    /// Asks for it; the longest of several times counts.
    pub fn request(&self, time: Duration) {
        self.0.fetch_max(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Whether somebody has asked and nothing has happened yet.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    fn take(&self) -> Option<Duration> {
        match self.0.swap(0, Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }
}

/// The cable. It is plugged in at first; the user pulls it for as long as they like, a fault for its time.
#[derive(Debug, Default)]
pub struct Cable {
    pulled: bool,
    down_until: Option<Duration>,
    fault: LinkFault,
}

impl Cable {
    /// What faults ask.
    #[must_use]
    pub fn fault(&self) -> &LinkFault {
        &self.fault
    }

    /// Plugs the cable in, which also ends a fault, or pulls it.
    pub fn set(&mut self, up: bool) {
        self.pulled = !up;
        if up {
            self.fault.take();
            self.down_until = None;
        }
    }

    /// Whether the link is up at `now`.
    pub fn is_up(&mut self, now: Duration) -> bool {
        if let Some(time) = self.fault.take() {
            self.down_until = self.down_until.max(Some(now.saturating_add(time)));
        }
        if self.down_until.is_some_and(|until| until <= now) {
            self.down_until = None;
        }
        !self.pulled && self.down_until.is_none()
    }

    /// When it changes by itself.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.down_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn faults_last_their_time_and_users_have_the_last_word() {
        let mut cable = Cable::default();
        let fault = cable.fault().clone();
        assert!(cable.is_up(S) && cable.deadline().is_none() && !fault.is_pending());
        fault.request(2 * S);
        fault.request(S);
        assert!(fault.is_pending());
        assert!(!cable.is_up(10 * S), "down for the longer of two times, from when the loop sees it");
        assert!(!fault.is_pending());
        assert_eq!(cable.deadline(), Some(12 * S));
        assert!(!cable.is_up(11 * S));
        // A shorter one in between takes nothing back.
        fault.request(S / 2);
        assert!(!cable.is_up(11 * S));
        assert_eq!(cable.deadline(), Some(12 * S));
        assert!(cable.is_up(12 * S) && cable.deadline().is_none());

        cable.set(false);
        assert!(!cable.is_up(13 * S) && cable.deadline().is_none());
        fault.request(S);
        assert!(!cable.is_up(14 * S));
        assert!(!cable.is_up(20 * S), "the fault is over, the cable is still pulled");
        fault.request(S);
        assert!(!cable.is_up(21 * S));
        cable.set(true);
        assert!(cable.is_up(21 * S), "plugging in ends a fault");
        fault.request(Duration::MAX);
        assert!(!cable.is_up(22 * S));
        cable.set(true);
        assert!(cable.is_up(22 * S));
    }
}
