//! How many queue pairs there may be, in all and for one client.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A client's address: its GID.
pub(crate) type Address = [u8; 16];

/// Places for queue pairs. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    taken: Arc<Mutex<Taken>>,
    most: usize,
    most_of_one: usize,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_client: HashMap<Address, usize>,
}

/// The place of one queue pair, free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    taken: Arc<Mutex<Taken>>,
    client: Address,
}

impl Places {
    pub(crate) fn new(most: usize, most_of_one: usize) -> Self {
        Self { taken: Arc::default(), most, most_of_one }
    }

    /// A place for a queue pair of `client`'s, if there is one.
    pub(crate) fn take(&self, client: Address) -> Option<Place> {
        let mut taken = lock(&self.taken);
        let of_client = taken.by_client.get(&client).copied().unwrap_or(0);
        if taken.all >= self.most || of_client >= self.most_of_one {
            return None;
        }
        taken.all += 1;
        taken.by_client.insert(client, of_client + 1);
        Some(Place { taken: Arc::clone(&self.taken), client })
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        lock(&self.taken).all
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        taken.all -= 1;
        match taken.by_client.get_mut(&self.client) {
            Some(of_client) if *of_client > 1 => *of_client -= 1,
            _ => {
                taken.by_client.remove(&self.client);
            }
        }
    }
}

fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_for_one_client_and_for_all() {
        let places = Places::new(3, 2);
        let [a, b, c] = [[1; 16], [2; 16], [3; 16]];
        let first = places.take(a).unwrap();
        let second = places.take(a).unwrap();
        assert!(places.take(a).is_none(), "one client's limit");
        let third = places.take(b).unwrap();
        assert!(places.take(c).is_none(), "everybody's");
        assert_eq!(places.taken(), 3);
        drop(second);
        assert!(places.take(c).is_some());
        drop((first, third));
        assert_eq!(places.taken(), 0);
        assert!(lock(&places.taken).by_client.is_empty(), "clients that have gone are forgotten");
    }
}
