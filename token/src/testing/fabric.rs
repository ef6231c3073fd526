//! Reliable connections for tests: buffers in this process, and completions that are kept until they are asked for.

use std::{
    collections::{BTreeMap, VecDeque},
    future::poll_fn,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
    time::Duration,
};

use async_trait::async_trait;

use super::Regions;
use crate::{
    RcEndpoint, RcFabric, RcSession, RcStaging, RcTarget, RemoteAccess, RemoteError, RemoteMemory, RemoteWindow, Token,
    TokenHeader, Transport, Window,
};

/// GID of the server: ::ffff:192.168.200.1.
const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 200, 1];
/// The first of its queue pairs.
const QPN: u32 = 0x40;
/// Where its first buffer is, and how far apart they are.
const BUFFERS: u64 = 0x7e00_0000_0000;
const APART: u64 = 1 << 32;

/// A server's device whose clients have their memory in a [`Regions`], and write to its buffers by [`Fabric::write`]. Clones share
/// it.
#[derive(Debug, Clone)]
pub struct Fabric(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    regions: Regions,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug)]
struct State {
    /// Buffers that there may be, and bytes of each.
    buffers: usize,
    most: u64,
    made: u32,
    /// By the number of the server's queue pair.
    sessions: BTreeMap<u32, Side>,
    /// Completions of clients, by the number of their queue pair.
    arrivals: BTreeMap<u32, VecDeque<Arrival>>,
    faults: Vec<(Step, RemoteError)>,
}

/// The server's side of a session.
#[derive(Debug)]
struct Side {
    peer: Peer,
    buffer: Vec<u8>,
    staging: RcStaging,
    received: Option<(u64, u32)>,
    waker: Option<Waker>,
}

/// What a session was prepared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The client's token.
    pub token: Token,
    /// The first packet that the client sends.
    pub psn: u32,
    /// Bytes.
    pub size: u64,
    /// What is done to the client's memory.
    pub access: RemoteAccess,
    /// The server's side.
    pub local: RcEndpoint,
}

/// A completion of a client's: the server has written to its memory, with immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// The server's queue pair.
    pub from: u32,
    /// Bytes.
    pub bytes: u64,
    /// The immediate.
    pub immediate: u32,
}

/// What can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// [`RcFabric::prepare`].
    Prepare,
    /// [`RcSession::send`].
    Send,
    /// [`RcSession::received`].
    Receive,
}

impl Fabric {
    /// With 16 buffers of 64 MiB.
    #[must_use]
    pub fn new(regions: &Regions) -> Self {
        let state = State {
            buffers: 16,
            most: 64 << 20,
            made: 0,
            sessions: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            faults: Vec::new(),
        };
        Self(Arc::new(Shared { regions: regions.clone(), state: Mutex::new(state), arrived: Condvar::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many buffers of so many bytes, from now on.
    pub fn limit(&self, buffers: usize, most: u64) {
        let mut state = self.state();
        (state.buffers, state.most) = (buffers, most);
    }

    /// The next such step fails.
    pub fn fail(&self, step: Step, error: RemoteError) {
        self.state().faults.push((step, error));
    }

    /// The sessions that there are.
    #[must_use]
    pub fn sessions(&self) -> Vec<Peer> {
        self.state().sessions.values().map(|side| side.peer).collect()
    }

    /// What a client's RDMA WRITE with immediate does. `false` if it is refused: there is no such buffer any more, or it has no
    /// such bytes, or none that the client may write.
    pub fn write(&self, to: RcTarget, bytes: &[u8], immediate: u32) -> bool {
        let mut state = self.state();
        let side = state.sessions.values_mut().find(|side| {
            side.staging.rkey == to.rkey && side.peer.access == RemoteAccess::Read && side.received.is_none()
        });
        let Some(side) = side else { return false };
        let offset = to.address.checked_sub(side.staging.address).and_then(|offset| usize::try_from(offset).ok());
        let Some(into) = offset.and_then(|offset| side.buffer.get_mut(offset..)?.get_mut(..bytes.len())) else {
            return false;
        };
        into.copy_from_slice(bytes);
        side.received = Some((bytes.len() as u64, immediate));
        if let Some(waker) = side.waker.take() {
            waker.wake();
        }
        true
    }

    /// Takes the next completion of the client's queue pair, for which it waits as long.
    #[must_use]
    pub fn arrival(&self, qpn: u32, patience: Duration) -> Option<Arrival> {
        let mut state = self.state();
        let none = |state: &mut State| state.arrivals.get(&qpn).is_none_or(VecDeque::is_empty);
        state = match self.0.arrived.wait_timeout_while(state, patience, none) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        };
        state.arrivals.get_mut(&qpn)?.pop_front()
    }
}

impl State {
    fn fault(&mut self, step: Step) -> Result<(), RemoteError> {
        match self.faults.iter().position(|(of, _)| *of == step) {
            Some(at) => Err(self.faults.remove(at).1),
            None => Ok(()),
        }
    }
}

#[async_trait]
impl RemoteMemory for Fabric {
    async fn open(&self, header: &TokenHeader, access: RemoteAccess) -> Result<Box<dyn RemoteWindow>, RemoteError> {
        self.0.regions.open(header, access).await
    }
}

#[async_trait]
impl RcFabric for Fabric {
    async fn prepare(
        &self,
        peer: &Token,
        psn: u32,
        size: u64,
        access: RemoteAccess,
    ) -> Result<Box<dyn RcSession>, RemoteError> {
        if peer.transport != Transport::Rc {
            return Err(RemoteError::Unsupported("DC tokens".to_owned()));
        }
        let mut state = self.state();
        state.fault(Step::Prepare)?;
        let most = state.most;
        let bytes = usize::try_from(size).ok().filter(|_| size <= most);
        let bytes = bytes.ok_or(RemoteError::TooLarge { size, most })?;
        if state.sessions.len() >= state.buffers {
            return Err(RemoteError::Exhausted("buffer"));
        }
        let number = state.made;
        state.made += 1;
        let address = BUFFERS + u64::from(number) * APART;
        let staging = RcStaging { address, rkey: 0x8000 + number, length: size };
        let staged = (access == RemoteAccess::Read).then_some(staging);
        let local = RcEndpoint { qpn: QPN + number, gid: GID, lid: 0, psn: 0x00ab_0001 + number, staging: staged };
        let peer = Peer { token: *peer, psn, size, access, local };
        // What a buffer holds before is what another session left there.
        let buffer = vec![super::CANARY_BYTE; bytes];
        state.sessions.insert(local.qpn, Side { peer, buffer, staging, received: None, waker: None });
        Ok(Box::new(Session { fabric: self.clone(), peer }))
    }
}

/// A session of a [`Fabric`].
#[derive(Debug)]
struct Session {
    fabric: Fabric,
    peer: Peer,
}

impl Session {
    /// Lets `copy` have a part of the buffer.
    fn part(
        &self,
        access: RemoteAccess,
        offset: u64,
        length: usize,
        copy: impl FnOnce(&mut [u8]),
    ) -> Result<(), RemoteError> {
        if access != self.peer.access {
            return Err(RemoteError::Access(access));
        }
        let mut state = self.fabric.state();
        let buffer = state.sessions.get_mut(&self.peer.local.qpn).map(|side| &mut side.buffer);
        let part = buffer.and_then(|buffer| buffer.get_mut(usize::try_from(offset).ok()?..)?.get_mut(..length));
        copy(part.ok_or(RemoteError::Bounds(Window { address: offset, length: length as u64 }))?);
        Ok(())
    }
}

#[async_trait]
impl RemoteWindow for Session {
    fn len(&self) -> u64 {
        self.peer.size
    }

    async fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), RemoteError> {
        self.part(RemoteAccess::Read, offset, into.len(), |part| into.copy_from_slice(part))
    }

    async fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), RemoteError> {
        self.part(RemoteAccess::Write, offset, from.len(), |part| part.copy_from_slice(from))
    }
}

#[async_trait]
impl RcSession for Session {
    fn local(&self) -> RcEndpoint {
        self.peer.local
    }

    async fn send(&mut self, to: RcTarget, length: u64, immediate: u32) -> Result<(), RemoteError> {
        self.fabric.state().fault(Step::Send)?;
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        self.part(RemoteAccess::Write, 0, bytes.len(), |part| bytes.copy_from_slice(part))?;
        let Peer { token, local, .. } = self.peer;
        let window = TokenHeader::A(Token { rkey: to.rkey, address: to.address, length, ..token });
        // A wrong key or address is a completion error here, as on the wire.
        let broken = |error: RemoteError| RemoteError::Transport(format!("REM_ACCESS_ERR: {error}"));
        let mut window = self.fabric.0.regions.open(&window, RemoteAccess::Write).await.map_err(broken)?;
        window.write(0, &bytes).await.map_err(broken)?;
        let arrival = Arrival { from: local.qpn, bytes: length, immediate };
        self.fabric.state().arrivals.entry(token.qpn).or_default().push_back(arrival);
        self.fabric.0.arrived.notify_all();
        Ok(())
    }

    async fn received(&mut self) -> Result<(u64, u32), RemoteError> {
        self.fabric.state().fault(Step::Receive)?;
        poll_fn(|cx| {
            let mut state = self.fabric.state();
            let Some(side) = state.sessions.get_mut(&self.peer.local.qpn) else { return Poll::Pending };
            match side.received {
                Some(received) => Poll::Ready(Ok(received)),
                None => {
                    side.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.fabric.state().sessions.remove(&self.peer.local.qpn);
    }
}
