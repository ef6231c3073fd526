//! A bounded number of things that are lent and come back.

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// Things that are made once and lent one at a time. Clones share them.
pub(crate) struct Pool<T> {
    inner: Arc<Inner<T>>,
}

struct Inner<T> {
    free: Mutex<Vec<T>>,
    /// A permit for each that is free.
    permits: Arc<Semaphore>,
    total: usize,
}

impl<T> Inner<T> {
    fn free(&self) -> MutexGuard<'_, Vec<T>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of a [`Pool`], which gets it back when this is dropped.
pub(crate) struct Lease<T> {
    /// Empty only while it is dropped.
    item: Option<T>,
    pool: Arc<Inner<T>>,
    /// Given back after the thing itself.
    _permit: OwnedSemaphorePermit,
}

impl<T> Pool<T> {
    pub(crate) fn new(items: Vec<T>) -> Self {
        let total = items.len();
        Self { inner: Arc::new(Inner { free: Mutex::new(items), permits: Arc::new(Semaphore::new(total)), total }) }
    }

    /// How many there are.
    pub(crate) fn total(&self) -> usize {
        self.inner.total
    }

    /// How many are free.
    pub(crate) fn free(&self) -> usize {
        self.inner.permits.available_permits()
    }

    /// The next that is free, in the order of asking. `None` if none is for as long as `patience`.
    pub(crate) async fn take(&self, patience: Duration) -> Option<Lease<T>> {
        // It is never closed.
        let permit = timeout(patience, Arc::clone(&self.inner.permits).acquire_owned()).await.ok()?.ok()?;
        let item = self.inner.free().pop()?;
        Some(Lease { item: Some(item), pool: Arc::clone(&self.inner), _permit: permit })
    }
}

impl<T> Deref for Lease<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.item {
            Some(item) => item,
            None => unreachable!("taken out by drop alone"),
        }
    }
}

impl<T> Drop for Lease<T> {
    fn drop(&mut self) {
        if let Some(item) = self.item.take() {
            self.pool.free().push(item);
        }
    }
}

impl<T> fmt::Debug for Pool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("total", &self.total()).field("free", &self.free()).finish()
    }
}

impl<T> fmt::Debug for Lease<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SHORT: Duration = Duration::from_millis(5);

    #[tokio::test(start_paused = true)]
    async fn what_is_lent_is_missing_until_it_is_back() {
        let pool = Pool::new(vec![1, 2]);
        let (a, b) = (pool.take(SHORT).await.unwrap(), pool.take(SHORT).await.unwrap());
        assert_eq!((*a + *b, pool.free(), pool.total()), (3, 0, 2));
        assert!(pool.take(SHORT).await.is_none());
        let a = *{ a };
        assert_eq!(pool.free(), 1);
        assert_eq!(*pool.take(SHORT).await.unwrap(), a);
        drop(b);
        assert_eq!(pool.free(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_gets_it_in_the_order_of_asking() {
        let pool = Pool::new(vec![()]);
        let held = pool.take(SHORT).await.unwrap();
        let order = Mutex::new(Vec::new());
        let wait = async |name| {
            let lease = pool.take(Duration::from_secs(60)).await;
            order.lock().unwrap().push((name, lease.is_some()));
            tokio::time::sleep(SHORT).await;
        };
        tokio::join!(wait(1), wait(2), async { drop(held) }, wait(3));
        assert_eq!(*order.lock().unwrap(), [(1, true), (2, true), (3, true)]);
        assert_eq!(pool.free(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_takes_nothing_along() {
        let pool = Pool::new(vec![()]);
        let held = pool.take(SHORT).await.unwrap();
        let gave_up = pool.take(SHORT);
        assert!(timeout(Duration::from_millis(1), gave_up).await.is_err());
        drop(held);
        assert_eq!(pool.free(), 1);
        assert!(pool.take(SHORT).await.is_some());
    }
}
