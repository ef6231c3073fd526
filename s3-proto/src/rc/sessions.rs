//! Which sessions there are, whose they are, and how far they have come.
//!
//! ```text
//!  prepare ──► Prepared ──ready──► Running ──► gone
//!                 └── cancel, or too late ──────►┘
//! ```
//!
//! A session that is gone is not remembered: a second ready finds nothing, as one with an id of nobody's does.

use std::{
    collections::{HashMap, hash_map},
    fmt,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use rdma_token::{RcSession, Token};

use super::headers::Operation;
use crate::Metrics;

/// Who a session belongs to, for the limit: an access key, or where nobody signs the address of a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    Key(String),
    Gid([u8; 16]),
}

/// Why a session cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Denied {
    /// There is none, or none any more, or it is under way.
    State,
    /// It is somebody else's, or the cookie is another one.
    Foreign,
}

/// What a session has been prepared with.
pub(super) struct Prepared {
    pub(super) token: Token,
    pub(super) operation: Operation,
    pub(super) session: Box<dyn RcSession>,
    /// Its place among the sessions there may be.
    pub(super) slot: Slot,
}

struct Entry {
    /// Access key of the client; `None` where nobody signs.
    owner: Option<String>,
    cookie: u32,
    state: State,
}

enum State {
    /// Until then, it waits to be made ready.
    Prepared(Box<Prepared>, Instant),
    Running(Arc<Stop>),
}

/// All of them.
pub(super) struct Sessions {
    table: Mutex<Table>,
    metrics: Arc<Metrics>,
    all: usize,
    per_peer: usize,
}

#[derive(Default)]
struct Table {
    entries: HashMap<u128, Entry>,
    /// Slots that are taken, by whom: those of sessions that are being made among them.
    taken: HashMap<Peer, usize>,
    all: usize,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("taken", &self.table().all).finish_non_exhaustive()
    }
}

impl Sessions {
    pub(super) fn new(all: usize, per_peer: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { table: Mutex::default(), metrics, all, per_peer })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a session of `peer`. `None` if there are as many as there may be.
    pub(super) fn slot(self: &Arc<Self>, peer: Peer) -> Option<Slot> {
        let mut table = self.table();
        let of_peer = table.taken.get(&peer).copied().unwrap_or_default();
        if table.all >= self.all || of_peer >= self.per_peer {
            return None;
        }
        table.all += 1;
        table.taken.insert(peer.clone(), of_peer + 1);
        self.metrics.rdma_session(true);
        Some(Slot { sessions: Arc::clone(self), peer })
    }

    /// Lets a session wait for its client. `false`, and it is gone, if the id is taken: ids are random, and that is no accident.
    pub(super) fn insert(
        &self,
        id: u128,
        owner: Option<String>,
        cookie: u32,
        prepared: Prepared,
        until: Instant,
    ) -> bool {
        let entry = Entry { owner, cookie, state: State::Prepared(Box::new(prepared), until) };
        let mut table = self.table();
        if let hash_map::Entry::Vacant(place) = table.entries.entry(id) {
            place.insert(entry);
            return true;
        }
        drop(table);
        false
    }

    /// Takes a prepared session, once, to run it.
    pub(super) fn begin(
        self: &Arc<Self>,
        id: u128,
        owner: Option<&str>,
        cookie: u32,
        now: Instant,
    ) -> Result<(Box<Prepared>, Running), Denied> {
        let mut table = self.table();
        let entry = table.entries.get_mut(&id).ok_or(Denied::State)?;
        if entry.owner.as_deref() != owner || entry.cookie != cookie {
            return Err(Denied::Foreign);
        }
        if !matches!(&entry.state, State::Prepared(_, until) if now < *until) {
            return Err(Denied::State);
        }
        let stop = Arc::new(Stop::default());
        match std::mem::replace(&mut entry.state, State::Running(Arc::clone(&stop))) {
            State::Prepared(prepared, _) => Ok((prepared, Running { sessions: Arc::clone(self), id, stop })),
            State::Running(_) => Err(Denied::State),
        }
    }

    /// Ends a session: at once if it waits, else as soon as what it runs has heard of it. One that is not there has ended already.
    pub(super) fn cancel(&self, id: u128, owner: Option<&str>, cookie: Option<u32>) -> Result<(), Denied> {
        let mut table = self.table();
        let Some(entry) = table.entries.get(&id) else { return Ok(()) };
        if entry.owner.as_deref() != owner || cookie.is_some_and(|cookie| cookie != entry.cookie) {
            return Err(Denied::Foreign);
        }
        let ended = match &entry.state {
            State::Prepared(..) => table.entries.remove(&id),
            State::Running(stop) => {
                stop.stop();
                None
            }
        };
        // What it holds is given back without the table: its slot needs it.
        drop(table);
        if ended.is_some() {
            self.metrics.rdma_failed("cancelled");
        }
        Ok(())
    }

    /// Ends the sessions that have waited too long. Returns how long the next one will still wait.
    pub(super) fn reap(&self, now: Instant) -> Option<Duration> {
        let mut table = self.table();
        let late = |entry: &Entry| matches!(&entry.state, State::Prepared(_, until) if *until <= now);
        let ended: Vec<_> = table.entries.extract_if(|_, entry| late(entry)).collect();
        let waiting = table.entries.values().filter_map(|entry| match &entry.state {
            State::Prepared(_, until) => Some(until.saturating_duration_since(now)),
            State::Running(_) => None,
        });
        let next = waiting.min();
        drop(table);
        for _ in &ended {
            self.metrics.rdma_failed("expired");
        }
        next
    }
}

/// A place among the sessions there may be; given back when it is dropped.
pub(super) struct Slot {
    sessions: Arc<Sessions>,
    peer: Peer,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.sessions.table();
        table.all = table.all.saturating_sub(1);
        if let hash_map::Entry::Occupied(mut taken) = table.taken.entry(self.peer.clone()) {
            match taken.get().checked_sub(1) {
                None | Some(0) => drop(taken.remove()),
                Some(left) => *taken.get_mut() = left,
            }
        }
        self.sessions.metrics.rdma_session(false);
    }
}

/// A session that runs. It is gone when this is dropped.
pub(super) struct Running {
    sessions: Arc<Sessions>,
    id: u128,
    stop: Arc<Stop>,
}

impl Running {
    /// Completes when the client has cancelled the session.
    pub(super) async fn cancelled(&self) {
        self.stop.wait().await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.sessions.table().entries.remove(&self.id);
    }
}

/// Tells what runs that it is to end.
#[derive(Debug, Default)]
struct Stop(Mutex<(bool, Option<Waker>)>);

impl Stop {
    fn state(&self) -> MutexGuard<'_, (bool, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        let mut state = self.state();
        state.0 = true;
        let waker = state.1.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    async fn wait(&self) {
        poll_fn(|cx| {
            let mut state = self.state();
            if state.0 {
                return Poll::Ready(());
            }
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
