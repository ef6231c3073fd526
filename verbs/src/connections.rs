//! Connections that are kept for the next request of the same queue pair.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::device::Peer;

/// A queue pair of a client: where it is and which it is.
pub(crate) type Key = ([u8; 16], u32);

impl Peer {
    pub(crate) fn key(&self) -> Key {
        (self.gid, self.qpn)
    }
}

/// Connections by the client's queue pair.
#[derive(Debug)]
pub(crate) struct Connections<T> {
    kept: Mutex<HashMap<Key, Kept<T>>>,
    idle: Duration,
}

#[derive(Debug)]
struct Kept<T> {
    connection: Arc<T>,
    used: Instant,
}

impl<T> Kept<T> {
    /// Whether nobody else has it.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.connection) == 1
    }
}

impl<T> Connections<T> {
    /// None yet. They are closed after `idle` without use.
    pub(crate) fn new(idle: Duration) -> Self {
        Self { kept: Mutex::default(), idle }
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<Key, Kept<T>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.kept().len()
    }

    /// The connection to a queue pair.
    pub(crate) fn get(&self, key: Key, now: Instant) -> Option<Arc<T>> {
        let mut kept = self.kept();
        let found = kept.get_mut(&key)?;
        found.used = now;
        Some(Arc::clone(&found.connection))
    }

    /// Keeps one. What was kept for the queue pair before comes back: it is the client's no more.
    pub(crate) fn keep(&self, key: Key, connection: Arc<T>, now: Instant) -> Option<Arc<T>> {
        self.kept().insert(key, Kept { connection, used: now }).map(|old| old.connection)
    }

    /// Notes that it was in use until now.
    pub(crate) fn used(&self, key: Key, now: Instant) {
        if let Some(kept) = self.kept().get_mut(&key) {
            kept.used = now;
        }
    }

    /// Forgets one that broke, unless another has taken its place.
    pub(crate) fn forget(&self, key: Key, connection: &Arc<T>) -> Option<Arc<T>> {
        let mut kept = self.kept();
        let same = kept.get(&key).is_some_and(|found| Arc::ptr_eq(&found.connection, connection));
        if same { kept.remove(&key).map(|old| old.connection) } else { None }
    }

    /// Takes out what nobody has used for long enough.
    pub(crate) fn sweep(&self, now: Instant) -> Vec<Arc<T>> {
        let due = |kept: &Kept<T>| kept.is_idle() && now.saturating_duration_since(kept.used) >= self.idle;
        self.kept().extract_if(|_, kept| due(kept)).map(|(_, kept)| kept.connection).collect()
    }

    /// How long until there may be something to sweep.
    pub(crate) fn next_sweep(&self, now: Instant) -> Option<Duration> {
        let kept = self.kept();
        let left = |kept: &Kept<T>| match self.idle.saturating_sub(now.saturating_duration_since(kept.used)) {
            // In use for longer than that: looked at again later.
            Duration::ZERO => self.idle,
            left => left,
        };
        kept.values().map(left).min()
    }

    /// Takes out the one that nobody has used for longest, of `client`'s if there is one, to make room.
    pub(crate) fn evict(&self, client: [u8; 16]) -> Option<Arc<T>> {
        let mut kept = self.kept();
        let idle = kept.iter().filter(|(_, kept)| kept.is_idle());
        let oldest = idle.min_by_key(|(key, kept)| (key.0 != client, kept.used)).map(|(key, _)| *key)?;
        kept.remove(&oldest).map(|kept| kept.connection)
    }

    /// Takes all out.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.kept());
        drop(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Key = ([1; 16], 7);
    const B: Key = ([1; 16], 8);
    const C: Key = ([2; 16], 7);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_connection_is_found_by_both_halves_of_its_key() {
        let (connections, now) = (Connections::new(SECOND), Instant::now());
        for (key, n) in [(A, 1), (B, 2), (C, 3)] {
            assert!(connections.keep(key, Arc::new(n), now).is_none());
        }
        let get = |key| connections.get(key, now).map(|n| *n);
        assert_eq!([get(A), get(B), get(C), get(([2; 16], 8))], [Some(1), Some(2), Some(3), None]);
        assert_eq!(connections.keep(A, Arc::new(4), now).as_deref(), Some(&1));
        assert_eq!((get(A), connections.len()), (Some(4), 3));
    }

    #[test]
    fn one_that_broke_is_forgotten_and_its_successor_is_not() {
        let (connections, now) = (Connections::new(SECOND), Instant::now());
        connections.keep(A, Arc::new(1), now);
        let broken = connections.get(A, now).unwrap();
        connections.keep(A, Arc::new(2), now);
        assert!(connections.forget(A, &broken).is_none());
        let second = connections.get(A, now).unwrap();
        assert_eq!(connections.forget(A, &second).as_deref(), Some(&2));
        assert!(connections.forget(A, &second).is_none());
        assert_eq!(connections.len(), 0);
    }

    #[test]
    fn idle_ones_are_closed_and_those_in_use_are_not() {
        let (connections, start) = (Connections::new(10 * SECOND), Instant::now());
        assert_eq!(connections.next_sweep(start), None);
        connections.keep(A, Arc::new(1), start);
        connections.keep(B, Arc::new(2), start + 5 * SECOND);
        assert_eq!(connections.next_sweep(start + 5 * SECOND), Some(5 * SECOND));
        assert!(connections.sweep(start + 9 * SECOND).is_empty());
        let in_use = connections.get(A, start + 9 * SECOND).unwrap();
        assert_eq!(connections.sweep(start + 20 * SECOND).iter().map(|n| **n).collect::<Vec<_>>(), [2]);
        assert_eq!(connections.next_sweep(start + 20 * SECOND), Some(10 * SECOND));
        connections.used(A, start + 20 * SECOND);
        drop(in_use);
        assert!(connections.sweep(start + 29 * SECOND).is_empty());
        assert_eq!(connections.sweep(start + 30 * SECOND).len(), 1);
        assert_eq!(connections.len(), 0);
    }

    #[test]
    fn room_is_made_by_the_clients_own_oldest() {
        let (connections, now) = (Connections::new(SECOND), Instant::now());
        connections.keep(C, Arc::new(3), now);
        connections.keep(A, Arc::new(1), now + SECOND);
        connections.keep(B, Arc::new(2), now + 2 * SECOND);
        let evict = |client| connections.evict(client).map(|n| *n);
        assert_eq!(evict(A.0), Some(1));
        assert_eq!(evict([9; 16]), Some(3), "anybody's, where it has none");
        let in_use = connections.get(B, now);
        assert_eq!(evict(B.0), None);
        drop(in_use);
        assert_eq!(evict(B.0), Some(2));
        connections.keep(A, Arc::new(1), now);
        connections.clear();
        assert_eq!(connections.len(), 0);
    }
}
