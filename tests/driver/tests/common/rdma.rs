//! The RDMA half of a guest: its device, connected queue pairs and their memory.
#![allow(dead_code, missing_debug_implementations, unreachable_pub, clippy::cast_possible_truncation)]

use std::{
    future::Future,
    net::IpAddr,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use ernic_emu::rdma::NicMemory;
use ionic_abi::{MrFlags, QpFlags, QpState, QpType};
use ionic_driver::{
    Config, Ionic, UserMem, Verbs,
    user::Placement,
    verbs::{AddressVector, Change, Mr, QpConfig, RegMr, Sge},
};
use rdma_token::{RemoteAccess, RemoteError, RemoteMemory, RemoteWindow, Token, TokenHeader, Transport, Window};

use crate::common::{MAC, TestBus, TestLink, device_config};

/// Every right that a token may need.
pub const ALL: MrFlags = MrFlags::LOCAL_WRITE.union(MrFlags::REMOTE_READ).union(MrFlags::REMOTE_WRITE);
/// How the pages of a process may lie.
pub const PLACEMENTS: [Placement; 3] = [Placement::Contiguous, Placement::Scattered, Placement::Huge];

/// A guest with its verbs device open.
pub struct Guest<T: TestBus> {
    pub nic: Ionic<T>,
    pub verbs: Verbs,
}

impl<T: TestBus> Guest<T> {
    pub fn new() -> Self {
        Self::on(T::make(device_config()))
    }

    pub fn on(bus: T) -> Self {
        let mut nic = Ionic::attach(bus, Config { tx_entries: 64, rx_entries: 64, ..Config::default() }).unwrap();
        nic.up().unwrap();
        let verbs = Verbs::open(&mut nic).unwrap();
        Self { nic, verbs }
    }

    /// Looks at what a token reaches, in the device's thread.
    pub fn with_memory<R: Send + 'static>(&mut self, f: impl FnOnce(&NicMemory) -> R + Send + 'static) -> R {
        self.nic.bus.with_device(|device| f(&NicMemory::new(device.regions().clone(), device.memory().clone())))
    }

    /// Opens a window with the token of `rkey`.
    pub fn open(
        &mut self,
        rkey: u32,
        window: Window,
        access: RemoteAccess,
    ) -> Result<Box<dyn RemoteWindow>, RemoteError> {
        let header = token(rkey, window);
        self.with_memory(move |memory| now(memory.open(&header, access)))
    }

    /// Writes to a client's memory as a GET with its token does. All of it, or the window is shorter.
    pub fn put(&mut self, rkey: u32, address: u64, bytes: &[u8]) -> Result<(), RemoteError> {
        let window = Window { address, length: bytes.len() as u64 };
        let mut open = self.open(rkey, window, RemoteAccess::Write)?;
        if open.len() < window.length {
            return Err(RemoteError::Bounds(window));
        }
        let bytes = bytes.to_vec();
        self.nic.bus.with_device(move |_| now(open.write(0, &bytes)))
    }

    /// Reads from it as a PUT does.
    pub fn get(&mut self, rkey: u32, address: u64, length: usize) -> Result<Vec<u8>, RemoteError> {
        let window = Window { address, length: length as u64 };
        let mut open = self.open(rkey, window, RemoteAccess::Read)?;
        if open.len() < window.length {
            return Err(RemoteError::Bounds(window));
        }
        self.nic.bus.with_device(move |_| {
            let mut bytes = vec![0; length];
            now(open.read(0, &mut bytes)).map(|()| bytes)
        })
    }
}

/// A token as a client makes it.
pub fn token(rkey: u32, window: Window) -> TokenHeader {
    let Window { address, length } = window;
    TokenHeader::A(Token { transport: Transport::Rc, qpn: 2, gid: [0; 16], rkey, address, length, port: 1, lid: 0 })
}

/// The result of a future that never waits: the memory of a NIC answers at once.
pub fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("a transfer waits"),
    }
}

/// Every right that a region can give.
pub const RIGHTS: MrFlags = ALL.union(MrFlags::REMOTE_ATOMIC).union(MrFlags::MW_BIND);
pub const ACCESS: QpFlags = QpFlags::REMOTE_READ.union(QpFlags::REMOTE_WRITE).union(QpFlags::REMOTE_ATOMIC);
/// Numbers without a pattern, the same each time.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0 ^ self.0 >> 33;
        x.wrapping_mul(0xff51_afd7_ed55_8ccd) ^ x >> 29
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.roll() % bound as u64) as usize
    }

    pub fn pick<V: Copy>(&mut self, values: &[V]) -> V {
        values[self.below(values.len())]
    }
}

pub fn address(v6: bool, tci: Option<u16>) -> AddressVector {
    let addresses: [IpAddr; 2] = if v6 {
        [[0xfe80, 0, 0, 0, 0, 0, 0, 1].into(), [0xfe80, 0, 0, 0, 0, 0, 0, 2].into()]
    } else {
        [[192, 168, 200, 1].into(), [192, 168, 200, 2].into()]
    };
    AddressVector { macs: [MAC, MAC], tci, addresses, hops: 64 }
}

/// One end of a connection, with its own protection domain, memory and completion queues.
pub struct End {
    pub pd: u32,
    pub qpn: u32,
    /// Of what it sends, and of what it receives.
    pub sends: u32,
    pub receives: u32,
    pub mem: UserMem,
    pub mr: Mr,
}

impl End {
    pub fn new<T: TestBus>(guest: &mut Guest<T>, bytes: usize, shape: impl FnOnce(&mut QpConfig)) -> Self {
        let pd = guest.verbs.create_pd();
        let sends = guest.verbs.create_cq(&mut guest.nic, 400).unwrap();
        let receives = guest.verbs.create_cq(&mut guest.nic, 400).unwrap();
        let mut config = QpConfig { receive_cq: receives, ..QpConfig::new(QpType::RC, pd, sends) };
        shape(&mut config);
        let qpn = guest.verbs.create_qp(&mut guest.nic, config).unwrap();
        let mem = UserMem::new(guest.nic.bus.ram(), 0x7000_0123_0f05, bytes, Placement::Scattered).unwrap();
        mem.write(0, &vec![0x77; bytes]);
        let mr = guest.verbs.reg_mr(&mut guest.nic, pd, &RegMr::all(&mem, RIGHTS)).unwrap();
        Self { pd, qpn, sends, receives, mem, mr }
    }

    pub fn sge(&self, from: usize, length: usize) -> Sge {
        Sge { va: self.mr.va + from as u64, length: length as u32, lkey: self.mr.key }
    }

    pub fn at(&self, from: usize) -> u64 {
        self.mr.va + from as u64
    }

    pub fn bytes(&self, from: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mem.read(from, &mut bytes);
        bytes
    }
}

/// Two ends that are connected.
pub fn connected<T: TestBus>(guest: &mut Guest<T>, bytes: usize) -> (End, End) {
    shaped(guest, bytes, |_| {})
}

pub fn shaped<T: TestBus>(guest: &mut Guest<T>, bytes: usize, shape: fn(&mut QpConfig)) -> (End, End) {
    let (a, b) = (End::new(guest, bytes, shape), End::new(guest, bytes, shape));
    for (end, peer) in [(&a, &b), (&b, &a)] {
        guest.verbs.connect_qp(&mut guest.nic, end.qpn, peer.qpn, ACCESS, address(false, None)).unwrap();
    }
    (a, b)
}

impl<T: TestBus> Guest<T> {
    /// One turn of the device.
    pub fn turn(&mut self) {
        self.nic.bus.with_device(|device| device.poll(Duration::ZERO, &mut TestLink::default()));
    }

    /// Both ends anew.
    pub fn reconnect(&mut self, ends: [&End; 2]) {
        for end in ends {
            self.verbs.modify_qp(&mut self.nic, end.qpn, &Change::to(QpState::RESET)).unwrap();
        }
        for (end, peer) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            self.verbs.connect_qp(&mut self.nic, end.qpn, peer.qpn, ACCESS, address(false, None)).unwrap();
        }
    }
}
