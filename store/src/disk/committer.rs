//! The one thread that changes the tables.
//!
//! It takes all changes that wait, makes them in one transaction, and answers all of them once that is on the disk: many
//! small writes at a time cost one fsync of the tables together.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures_channel::oneshot;
use redb::Durability;

use super::{
    Core,
    batch::{Batch, Outcome},
    meta::failed,
    pool::lost,
};
use crate::{Result, StoreError};

/// Most changes of one transaction: it stays in memory until it is committed.
const CHANGES: usize = 1024;

/// Most changes of one transaction on a full disk, where it has to fit into the reserve.
const CHANGES_WHEN_FULL: usize = 16;

/// How long what is acknowledged may be in memory only, where the store need not be durable.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Answers whoever asked for a change, which was made or else has failed with this.
type Answer = Box<dyn FnOnce(Option<&str>) + Send>;

type Change = Box<dyn FnOnce(&mut Batch<'_>) -> Answer + Send>;

/// Changes that wait.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Change>,
    closed: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("waiting", &self.lock().waiting.len()).finish()
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No change runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a change made. It is made even if nobody waits for it any more.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Batch<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        self.push(Box::new(move |batch| {
            let result = batch.change(change);
            Box::new(move |failure| {
                let result = match failure {
                    None => result,
                    Some(why) => Err(StoreError::Internal(why.to_owned())),
                };
                // Whoever asked may have gone.
                let _ = sender.send(result);
            })
        }))?;
        receiver.await.unwrap_or_else(|_| Err(lost()))
    }

    fn push(&self, change: Change) -> Result<()> {
        let mut state = self.lock();
        if state.closed {
            return Err(StoreError::Internal("the store is closed".into()));
        }
        state.waiting.push_back(change);
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    /// Has the thread end once it has done what waits.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_one();
    }

    /// The changes that wait, once there are any; none at the deadline; `None` at the end.
    fn take(&self, most: usize, deadline: Option<Instant>) -> Option<Vec<Change>> {
        let mut state = self.lock();
        loop {
            if !state.waiting.is_empty() {
                let many = state.waiting.len().min(most);
                return Some(state.waiting.drain(..many).collect());
            }
            if state.closed {
                return None;
            }
            state = match deadline {
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Some(Vec::new());
                    }
                    self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// Body of the thread. Ends when the queue is closed, and then closes the store in order.
pub(super) fn run(core: &Core) {
    let mut committer =
        Committer { core, transactions: core.meta.transactions, unsynced: None, discarded: Vec::new(), healthy: true };
    loop {
        let most = if core.meta.reserve.used() { CHANGES_WHEN_FULL } else { CHANGES };
        let deadline = committer.unsynced.map(|since| since + SYNC_INTERVAL);
        let Some(changes) = core.queue.take(most, deadline) else { break };
        if !changes.is_empty() {
            committer.commit(changes);
        }
        if committer.unsynced.is_some_and(|since| since.elapsed() >= SYNC_INTERVAL) {
            committer.sync();
        }
        core.meta.reserve.refill();
    }
    committer.sync();
    if committer.healthy
        && let Err(error) = core.disk.files.write_clean(committer.transactions)
    {
        tracing::warn!(%error, "the disk store cannot say that it was closed in order: the next start takes longer");
    }
}

struct Committer<'a> {
    core: &'a Core,
    transactions: u64,
    /// Since when there is something that is not on the disk yet, if the store need not be durable.
    unsynced: Option<Instant>,
    /// What may be removed once that is on the disk.
    discarded: Vec<(u64, Vec<u64>)>,
    healthy: bool,
}

impl Committer<'_> {
    fn commit(&mut self, changes: Vec<Change>) {
        let durable = self.core.disk.files.durable;
        let durability = if durable { Durability::Immediate } else { Durability::None };
        let mut answers = Vec::with_capacity(changes.len());
        let mut outcome = Outcome::default();
        let result = self.transact(durability, changes, &mut answers, &mut outcome);
        let mut accounts = self.core.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let why = match result {
            Ok(()) => {
                accounts.committed();
                None
            }
            Err(error) => {
                accounts.aborted(std::mem::take(&mut outcome.steps));
                let StoreError::Internal(why) = error else { return };
                tracing::error!(error = %why, "the disk store failed");
                Some(why)
            }
        };
        drop(accounts);
        answers.into_iter().for_each(|answer: Answer| answer(why.as_deref()));
        if why.is_none() && outcome.changed {
            self.discarded.append(&mut outcome.discarded);
            if durable {
                self.discard();
            } else {
                self.unsynced.get_or_insert_with(Instant::now);
            }
        }
    }

    fn transact(
        &mut self,
        durability: Durability,
        changes: Vec<Change>,
        answers: &mut Vec<Answer>,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let mut transaction = self.core.meta.db.begin_write().map_err(failed)?;
        transaction.set_durability(durability).map_err(failed)?;
        let mut batch = Batch::new(self.core, &transaction)?;
        answers.extend(changes.into_iter().map(|change| change(&mut batch)));
        let result;
        (*outcome, result) = batch.finish(self.transactions + 1);
        result?;
        if outcome.changed {
            let committed = transaction.commit().map_err(failed);
            // Whether it is on the disk cannot be told then.
            self.healthy &= committed.is_ok();
            committed?;
            self.transactions += 1;
        }
        Ok(())
    }

    /// Puts on the disk what is not there yet.
    fn sync(&mut self) {
        if self.unsynced.take().is_none() {
            return;
        }
        let synced = (|| {
            // Contents before what names them.
            self.core.disk.files.sync_all().map_err(|error| self.core.disk.files.error("write", 0, &error))?;
            let transaction = self.core.meta.db.begin_write().map_err(failed)?;
            transaction.commit().map_err(failed)
        })();
        match synced {
            Ok(()) => self.discard(),
            Err(error) => {
                self.healthy = false;
                tracing::error!(%error, "the disk store cannot be made permanent");
            }
        }
    }

    /// Has files removed.
    fn discard(&mut self) {
        let discarded = std::mem::take(&mut self.discarded);
        if !discarded.is_empty() {
            let disk = std::sync::Arc::clone(&self.core.disk);
            self.core.disk.pool.spawn(move || discarded.into_iter().for_each(|(id, files)| disk.discard(id, files)));
        }
    }
}
