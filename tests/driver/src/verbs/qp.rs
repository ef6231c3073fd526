//! Completion queues, queue pairs and address handles; work requests and their completions.

use std::{collections::VecDeque, net::IpAddr};

use ionic_abi::{
    AdminOp, CQ_RING_ARM, CQ_RING_CONS, CQ_RING_SOL, CQE_ERROR, CQE_QID_SHIFT, CQE_RECV_IPV4, CQE_RECV_OP_SHIFT,
    CQE_RECV_VLAN, CQE_TYPE_SHIFT, CqeType, CreateAh, CreateCq, CreateQp, DestroyById, Doorbell, ModifyQp, MrFlags,
    QpAttr, QpFlags, QpState, QpType, QueryQp, QueryRq, QuerySq, WorkFlags, WorkOp,
};
use zerocopy::FromZeros;

use super::{
    MOVERS, Verbs,
    queue::{CompletionRing, Cqe, be32, ring, ring_table},
    spread,
};
use crate::{bus::Bus, error::DriverError, ionic::Ionic, ram::PAGE, user::UserMem};

/// Entries that a completion queue has beyond those that are asked for, for flushes (`IONIC_CQ_GRACE`).
const CQ_GRACE: u32 = 100;
/// Completion status of a queue pair that was flushed (`IONIC_STS_WQE_FLUSHED_ERR`).
const FLUSHED: u32 = 4;
/// UDP port of RoCE version 2, and source port of address handles.
const ROCE_PORT: u16 = 4791;
const AH_PORT: u16 = 28_272;

/// A completion queue of a program: one of the device for each data mover.
#[derive(Debug)]
pub(super) struct Cq {
    pub(super) rings: Vec<CompletionRing>,
    page: u16,
}

/// A ring of work requests, and what the driver remembers of each.
#[derive(Debug)]
struct WorkRing {
    mem: UserMem,
    log2: u8,
    stride_log2: u8,
    head: u16,
    posted: VecDeque<Posted>,
    /// Requests so far that complete by message number, since RESET.
    messages: u32,
    /// Message number that the last completion said.
    completed: u32,
    flushed: bool,
}

#[derive(Debug)]
struct Posted {
    id: u64,
    index: u16,
    /// Its message number, if it completes by that.
    message: Option<u32>,
    signalled: bool,
    outcome: Option<(u32, u32, Received)>,
}

impl WorkRing {
    fn new(mem: UserMem, log2: u8, stride_log2: u8) -> Self {
        Self { mem, log2, stride_log2, head: 0, posted: VecDeque::new(), messages: 0, completed: 0, flushed: false }
    }

    fn reset(&mut self) {
        self.head = 0;
        self.posted.clear();
        self.messages = 0;
        self.completed = 0;
        self.flushed = false;
    }

    /// Writes a request, as much of it as its entry holds; the rest of that is zero.
    fn push(&mut self, wqe: &[u8]) -> Result<u16, DriverError> {
        let (index, stride) = (self.head, 1usize << self.stride_log2);
        if self.posted.len() + 1 >= 1 << self.log2 {
            return Err(DriverError::Full(self.posted.len()));
        }
        let mut entry = vec![0; stride];
        let wqe = &wqe[..wqe.len().min(stride)];
        entry[..wqe.len()].copy_from_slice(wqe);
        entry[..8].copy_from_slice(&u64::from(index).to_le_bytes());
        self.mem.write(usize::from(index) * stride, &entry);
        self.head = u16::try_from((u32::from(index) + 1) % (1 << self.log2)).unwrap_or(0);
        Ok(index)
    }

    /// Takes what is complete, in order; all of it if the queue was flushed.
    fn drain(&mut self, out: &mut Vec<Wc>, qpn: u32, receive: bool) {
        while let Some(first) = self.posted.front() {
            let (status, length, received) = match first.outcome {
                Some(outcome) => outcome,
                None if self.flushed => (FLUSHED, 0, Received::default()),
                None => break,
            };
            if first.signalled || status != 0 {
                out.push(Wc { qpn, id: first.id, status, length, receive, received });
            }
            self.posted.pop_front();
        }
    }
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    kind: QpType,
    page: u16,
    mover: u32,
    sq: WorkRing,
    rq: WorkRing,
    send_cq: u32,
    receive_cq: u32,
    /// Address handle of the connection.
    ah: u32,
    /// Its rings have entries that nobody remembers.
    wild: bool,
}

/// What a queue pair is like.
#[derive(Debug, Clone, Copy)]
pub struct QpConfig {
    /// RC or UD.
    pub kind: QpType,
    /// Protection domain.
    pub pd: u32,
    /// Completion queue of what is sent.
    pub send_cq: u32,
    /// Completion queue of what is received.
    pub receive_cq: u32,
    /// Entries of the send queue, log2.
    pub sq_log2: u8,
    /// Entries of the receive queue, log2.
    pub rq_log2: u8,
    /// Bytes of an entry, log2: 6 to 9.
    pub stride_log2: u8,
    /// Flags that creation sets.
    pub flags: QpFlags,
}

impl QpConfig {
    /// 64 entries of 128 bytes each.
    #[must_use]
    pub fn new(kind: QpType, pd: u32, cq: u32) -> Self {
        let flags = QpFlags::empty();
        Self { kind, pd, send_cq: cq, receive_cq: cq, sq_log2: 6, rq_log2: 6, stride_log2: 7, flags }
    }
}

/// Where a packet would go: the header of an address handle or of a connection.
#[derive(Debug, Clone, Copy)]
pub struct AddressVector {
    /// Destination and source at the link.
    pub macs: [[u8; 6]; 2],
    /// VLAN tag.
    pub tci: Option<u16>,
    /// Destination and source at the network; both of one family.
    pub addresses: [IpAddr; 2],
    /// Hop limit.
    pub hops: u8,
}

impl AddressVector {
    /// Shape of the header (`csum_profile`) and its bytes up to UDP (`ib_ud_header_pack`).
    fn header(&self) -> (u8, Vec<u8>) {
        let mut out = [self.macs[0], self.macs[1]].concat();
        let v6 = self.addresses[0].is_ipv6();
        if let Some(tci) = self.tci {
            out.extend([0x81, 0]);
            out.extend(tci.to_be_bytes());
        }
        out.extend(if v6 { [0x86, 0xdd] } else { [0x08, 0] });
        match self.addresses {
            [IpAddr::V4(to), IpAddr::V4(from)] => {
                out.extend([0x45, 0, 0xff, 0xff, 0, 0, 0x40, 0, self.hops, 17, 0, 0]);
                out.extend(from.octets());
                out.extend(to.octets());
            }
            [to, from] => {
                out.extend([0x60, 0, 0, 0, 0, 32, 17, self.hops]);
                for address in [from, to] {
                    out.extend(match address {
                        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                        IpAddr::V6(address) => address.octets(),
                    });
                }
            }
        }
        for word in [AH_PORT, ROCE_PORT, 32, 0] {
            out.extend(word.to_be_bytes());
        }
        (u8::from(v6) << 1 | u8::from(self.tci.is_some()), out)
    }
}

/// What MODIFY_QP changes; `None` leaves a field.
#[derive(Debug, Clone, Copy, Default)]
pub struct Change {
    /// State.
    pub state: Option<QpState>,
    /// Rights of the peer.
    pub access: Option<QpFlags>,
    /// Peer's queue pair.
    pub dest_qpn: Option<u32>,
    /// Q_Key.
    pub qkey: Option<u32>,
    /// First packet sequence number that is expected.
    pub rq_psn: Option<u32>,
    /// First packet sequence number that is sent.
    pub sq_psn: Option<u32>,
    /// Path MTU, log2 bytes.
    pub pmtu: Option<u8>,
    /// Acknowledge timeout code.
    pub timeout: Option<u8>,
    /// Retries.
    pub retry_cnt: Option<u8>,
    /// Retries while the receiver is not ready.
    pub rnr_retry: Option<u8>,
    /// Timer code of the receiver that is not ready.
    pub min_rnr_timer: Option<u8>,
    /// Reads and atomics under way as requester.
    pub max_rd_atomic: Option<u8>,
    /// As responder.
    pub max_dest_rd_atomic: Option<u8>,
    /// Address.
    pub av: Option<AddressVector>,
}

impl Change {
    /// A change of state alone.
    #[must_use]
    pub fn to(state: QpState) -> Self {
        Self { state: Some(state), ..Self::default() }
    }
}

/// What QUERY_QP says, as the driver understands it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpInfo {
    /// State.
    pub state: QpState,
    /// Path MTU, bytes.
    pub mtu: u32,
    /// Flags.
    pub flags: QpFlags,
    /// Q_Key or the peer's queue pair.
    pub qkey_dest_qpn: u32,
    /// First packet sequence number that is expected.
    pub rq_psn: u32,
    /// First packet sequence number that is sent.
    pub sq_psn: u32,
    /// Acknowledge timeout code.
    pub timeout: u8,
    /// Retries.
    pub retry_cnt: u8,
    /// Retries while the receiver is not ready.
    pub rnr_retry: u8,
    /// Timer code of the receiver that is not ready.
    pub min_rnr_timer: u8,
    /// Reads and atomics under way as requester: one less than a power of two.
    pub max_rd_atomic: u32,
    /// As responder.
    pub max_dest_rd_atomic: u32,
}

/// A piece of memory of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sge {
    /// First address.
    pub va: u64,
    /// Bytes.
    pub length: u32,
    /// Key.
    pub lkey: u32,
}

impl Sge {
    fn bytes(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.va.to_be_bytes());
        out[8..12].copy_from_slice(&self.length.to_be_bytes());
        out[12..].copy_from_slice(&self.lkey.to_be_bytes());
        out
    }
}

/// A work request of version 1 (`struct ionic_v1_wqe`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A message; address handle, queue pair and Q_Key of the receiver on a datagram queue pair.
    Send(Vec<Sge>, Option<[u32; 3]>),
    /// A message whose bytes are in the request.
    SendInline(Vec<u8>),
    /// Reads the peer's memory: address, rkey.
    Read(Vec<Sge>, u64, u32),
    /// Writes the peer's memory: address, rkey.
    Write(Vec<Sge>, u64, u32),
    /// Makes a key invalid.
    LocalInvalidate(u32),
    /// Binds a window to `[va, va + length)` of a region: new key byte, window, region, address, length, flags.
    BindWindow(u8, u32, u32, u64, u64, u16),
    /// Writes bytes that are in the request to the peer's memory: address, rkey.
    WriteInline(Vec<u8>, u64, u32),
    /// Adds to a number in the peer's memory: where the number before goes, address, rkey.
    FetchAdd(Sge, u64, u32, u64),
    /// Replaces a number in the peer's memory if it is the first one: where the number before goes, address, rkey.
    CompareSwap(Sge, u64, u32, u64, u64),
    /// Maps pages to a region that was made for it (REG_MR): new key byte, region, address, rights, bus address of the pages or
    /// of their table, and of how many pages it is; bytes.
    Register {
        /// New key byte.
        byte: u8,
        /// Region.
        key: u32,
        /// First address.
        va: u64,
        /// Bytes.
        length: u64,
        /// Rights.
        access: MrFlags,
        /// Where it is, or its table.
        dma_addr: u64,
        /// Pages of 4 KiB.
        pages: u32,
    },
    /// A message or write with immediate data.
    Immediate(u32, Box<Request>),
    /// A message that makes a key of the receiver's invalid.
    Invalidate(u32, Box<Request>),
    /// To whom a datagram goes: address handle, queue pair, Q_Key.
    To([u32; 3], Box<Request>),
    /// With flags; speculative lengths move the list.
    Flagged(WorkFlags, Box<Request>),
    /// Anything: opcode and the bytes behind the first 16.
    Raw(u8, Vec<u8>),
}

impl Request {
    /// The entry that asks for it: all but the index, which is the first 8 bytes.
    #[must_use]
    pub fn entry(&self, signalled: bool) -> Vec<u8> {
        let (op, count, flags, word, body) = self.encode();
        let mut wqe = vec![0; 8];
        wqe.extend([op.0, count]);
        wqe.extend((flags | if signalled { WorkFlags::SIG } else { WorkFlags::empty() }).bits().to_be_bytes());
        wqe.extend(word.to_be_bytes());
        wqe.extend(&body);
        wqe
    }

    /// Opcode, number of pieces or key byte, flags, immediate data or key, and what follows the first 16 bytes.
    fn encode(&self) -> (WorkOp, u8, WorkFlags, u32, Vec<u8>) {
        let none = WorkFlags::empty();
        let list = |mut head: Vec<u8>, sges: &[Sge]| {
            let total = sges.iter().fold(0u32, |sum, sge| sum.wrapping_add(sge.length));
            head.extend(total.to_be_bytes());
            head.extend(sges.iter().flat_map(|sge| sge.bytes()));
            (u8::try_from(sges.len()).unwrap_or(u8::MAX), head)
        };
        let inline = |head: &[u8], bytes: &[u8]| {
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes();
            [head, &length[..], bytes].concat()
        };
        let remote = |va: &u64, rkey: &u32| [&va.to_be_bytes()[..], &rkey.to_be_bytes()].concat();
        let atomic = |sge: &Sge, va: &u64, rkey: &u32, operand: u64, compare: u64| {
            let mut body = remote(va, rkey);
            body.extend([operand, compare].iter().flat_map(|word| word.to_be_bytes()));
            body.extend([0; 4]);
            body.extend(sge.bytes());
            body
        };
        match self {
            Self::Send(sges, datagram) => {
                let head = datagram.unwrap_or([0; 3]).iter().flat_map(|word| word.to_be_bytes()).collect();
                let (count, body) = list(head, sges);
                (WorkOp::SEND, count, none, 0, body)
            }
            Self::SendInline(bytes) => (WorkOp::SEND, 0, WorkFlags::INL, 0, inline(&[0; 12], bytes)),
            Self::WriteInline(bytes, va, rkey) => {
                (WorkOp::RDMA_WRITE, 0, WorkFlags::INL, 0, inline(&remote(va, rkey), bytes))
            }
            Self::Read(sges, va, rkey) | Self::Write(sges, va, rkey) => {
                let (count, body) = list(remote(va, rkey), sges);
                let op = if matches!(self, Self::Read(..)) { WorkOp::RDMA_READ } else { WorkOp::RDMA_WRITE };
                (op, count, none, 0, body)
            }
            Self::FetchAdd(sge, va, rkey, add) => (WorkOp::ATOMIC_FA, 1, none, 0, atomic(sge, va, rkey, *add, 0)),
            Self::CompareSwap(sge, va, rkey, compare, swap) => {
                (WorkOp::ATOMIC_CS, 1, none, 0, atomic(sge, va, rkey, *swap, *compare))
            }
            Self::LocalInvalidate(key) => (WorkOp::LOCAL_INV, 0, none, *key, Vec::new()),
            Self::BindWindow(byte, window, region, va, length, flags) => {
                let mut body = [va.to_be_bytes(), length.to_be_bytes()].concat();
                body.extend(region.to_be_bytes());
                body.extend(flags.to_be_bytes());
                (WorkOp::BIND_MW, *byte, none, *window, body)
            }
            Self::Register { byte, key, va, length, access, dma_addr, pages } => {
                let offset = if *pages > 1 { va % PAGE as u64 } else { 0 };
                let mut body: Vec<u8> =
                    [*va, *length, offset, *dma_addr].iter().flat_map(|word| word.to_be_bytes()).collect();
                body.extend(pages.to_be_bytes());
                body.extend(access.bits().to_be_bytes());
                body.extend([0, 12]);
                (WorkOp::REG_MR, *byte, none, *key, body)
            }
            Self::Immediate(word, request) => {
                let (op, count, flags, _, body) = request.encode();
                let op = if op == WorkOp::SEND { WorkOp::SEND_IMM } else { WorkOp::RDMA_WRITE_IMM };
                (op, count, flags, *word, body)
            }
            Self::Invalidate(key, request) => {
                let (_, count, flags, _, body) = request.encode();
                (WorkOp::SEND_INV, count, flags, *key, body)
            }
            Self::To(to, request) => {
                let (op, count, flags, word, mut body) = request.encode();
                for (at, part) in to.iter().flat_map(|part| part.to_be_bytes()).enumerate() {
                    body[at] = part;
                }
                (op, count, flags, word, body)
            }
            Self::Flagged(more, request) => {
                let (op, count, flags, word, mut body) = request.encode();
                if more.intersects(WorkFlags::SPEC16 | WorkFlags::SPEC32) {
                    // The lengths in front of the list: the device need not look at them.
                    let at = body.len().min(16);
                    body.splice(at..at, [0xee; 32]);
                }
                (op, count, flags | *more, word, body)
            }
            Self::Raw(op, body) => (WorkOp(*op), 0, none, 0, body.clone()),
        }
    }

    /// Done at the requester alone: completes by index whatever the queue pair is (libionic).
    fn local(&self) -> bool {
        let (op, ..) = self.encode();
        matches!(op, WorkOp::REG_MR | WorkOp::LOCAL_INV | WorkOp::BIND_MW)
    }
}

/// A buffer for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receive(pub Vec<Sge>);

impl Receive {
    /// The entry that offers it: all but the index, which is the first 8 bytes.
    #[must_use]
    pub fn entry(&self) -> Vec<u8> {
        let total = self.0.iter().fold(0u32, |sum, sge| sum.wrapping_add(sge.length));
        let mut wqe = vec![0; 8];
        wqe.extend([0, u8::try_from(self.0.len()).unwrap_or(u8::MAX), 0, 0]);
        wqe.extend(total.to_be_bytes());
        wqe.extend([0; 16]);
        wqe.extend(self.0.iter().flat_map(|sge| sge.bytes()));
        wqe
    }
}

/// A work completion (`struct ibv_wc`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wc {
    /// Queue pair.
    pub qpn: u32,
    /// What the request was called.
    pub id: u64,
    /// 0, or why it failed.
    pub status: u32,
    /// Bytes of a received message.
    pub length: u32,
    /// It was a receive.
    pub receive: bool,
    /// What else the completion of a receive says.
    pub received: Received,
}

/// What came, and from whom.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Received {
    /// 0: a message; 1: one that made a key invalid; 2: one with immediate data; 3: immediate data of a write.
    pub op: u8,
    /// Immediate data, or the key.
    pub word: u32,
    /// Queue pair of the sender.
    pub source: u32,
    /// Its link address, of datagrams.
    pub mac: [u8; 6],
    /// VLAN tag.
    pub tci: Option<u16>,
    /// It came by IPv4.
    pub v4: bool,
}

impl Received {
    fn new(cqe: &Cqe) -> Self {
        let word = be32(cqe, 8);
        let mut mac = [0; 6];
        mac.copy_from_slice(&cqe[12..18]);
        Self {
            op: u8::try_from(word >> CQE_RECV_OP_SHIFT & 0x1f).unwrap_or(0),
            word: be32(cqe, 20),
            source: word & 0x00ff_ffff,
            mac,
            tci: (word & CQE_RECV_VLAN != 0).then(|| u16::from_be_bytes([cqe[18], cqe[19]])),
            v4: word & CQE_RECV_IPV4 != 0,
        }
    }
}

fn depth_log2(least: u64) -> u8 {
    u8::try_from(least.next_power_of_two().trailing_zeros()).unwrap_or(u8::MAX)
}

impl Verbs {
    /// Makes a completion queue for at least `entries` completions; what the calls here know it by.
    ///
    /// # Errors
    /// The device refused it.
    pub fn create_cq<B: Bus>(&mut self, nic: &mut Ionic<B>, entries: u32) -> Result<u32, DriverError> {
        let log2 = depth_log2(u64::from(entries) + u64::from(CQ_GRACE));
        let (page, kernel) = (self.page, self.page == 0);
        let mut rings: Vec<CompletionRing> = Vec::new();
        for mover in 0..MOVERS {
            let numbers = &mut self.cq_numbers[mover as usize];
            let at = numbers.take();
            let number = spread(at, mover, self.identity.udma_shift);
            let ring = CompletionRing::new(&self.ram, number, log2, kernel)?;
            let (map_count, page_size_log2, table) = ring_table(&ring.ring, kernel);
            let table = self.place(table)?;
            let cmd = CreateCq {
                eq_id: self.event_queue(0, mover).into(),
                depth_log2: log2,
                stride_log2: 5,
                page_size_log2,
                id_ver: number.into(),
                tbl_index: u32::MAX.into(),
                map_count: map_count.into(),
                dma_addr: table.as_ref().map_or_else(|| ring.iova(), |table| table.iova()).into(),
                dbid_flags: page.into(),
                ..CreateCq::default()
            };
            let made = self.verb(nic, AdminOp::CREATE_CQ, &cmd);
            if let Some(table) = table {
                table.fill(0xff);
            }
            if made.is_err() {
                self.cq_numbers[mover as usize].give(at);
                // The first of two is taken back.
                for ring in &rings {
                    self.drop_cq(nic, ring.number)?;
                }
            }
            made?;
            rings.push(ring);
        }
        let handle = rings.first().map_or(0, |ring| ring.number);
        self.cqs.insert(handle, Cq { rings, page });
        Ok(handle)
    }

    /// A copy of a table for the time of a command.
    fn place(&self, table: Option<Vec<u64>>) -> Result<Option<crate::ram::DmaBuf>, DriverError> {
        let Some(table) = table else { return Ok(None) };
        let bytes: Vec<u8> = table.iter().flat_map(|page| page.to_le_bytes()).collect();
        let copy = self.ram.alloc_dirty(bytes.len()).ok_or(DriverError::NoMemory(bytes.len()))?;
        copy.write(0, &bytes);
        Ok(Some(copy))
    }

    /// Numbers of the two completion queues at the device.
    #[must_use]
    pub fn cq_numbers(&self, cq: u32) -> Vec<u32> {
        self.cqs.get(&cq).map_or(Vec::new(), |cq| cq.rings.iter().map(|ring| ring.number).collect())
    }

    fn cq(&mut self, cq: u32) -> Result<&mut Cq, DriverError> {
        self.cqs.get_mut(&cq).ok_or_else(|| DriverError::Violation(format!("no completion queue {cq}")))
    }

    fn qp(&mut self, qpn: u32) -> Result<&mut Qp, DriverError> {
        self.qps.get_mut(&qpn).ok_or_else(|| DriverError::Violation(format!("no queue pair {qpn}")))
    }

    /// Destroys a completion queue. Afterwards the device may not write to it.
    ///
    /// # Errors
    /// The device refused it.
    pub fn destroy_cq<B: Bus>(&mut self, nic: &mut Ionic<B>, cq: u32) -> Result<(), DriverError> {
        let numbers: Vec<u32> = self.cq(cq)?.rings.iter().map(|ring| ring.number).collect();
        for number in numbers {
            self.drop_cq(nic, number)?;
        }
        self.cqs.remove(&cq);
        Ok(())
    }

    fn drop_cq<B: Bus>(&mut self, nic: &mut Ionic<B>, number: u32) -> Result<(), DriverError> {
        self.verb(nic, AdminOp::DESTROY_CQ, &DestroyById { id_ver: number.into() })?;
        let (mover, at) = gather(number, self.identity.udma_shift);
        self.cq_numbers[mover].give(at);
        Ok(())
    }

    /// Tells the device how far completions were taken out, if it does not know.
    ///
    /// # Errors
    /// The bus failed.
    pub fn tell_cq<B: Bus>(&mut self, nic: &mut Ionic<B>, cq: u32) -> Result<(), DriverError> {
        let slot = self.identity.cq_qtype.qtype;
        let cq = self.cq(cq)?;
        for ring in cq.rings.iter_mut().filter(|ring| ring.told != ring.at) {
            ring.told = ring.at;
            nic.doorbell(cq.page, slot, Doorbell { p_index: ring.at, ring: CQ_RING_CONS, qid: ring.number })?;
        }
        Ok(())
    }

    /// Asks for an event with the next completion, or the next solicited one or error (`ibv_req_notify_cq`, and the poll after
    /// it that lets libionic do it).
    ///
    /// # Errors
    /// The bus failed.
    pub fn arm_cq<B: Bus>(&mut self, nic: &mut Ionic<B>, cq: u32, solicited: bool) -> Result<(), DriverError> {
        self.tell_cq(nic, cq)?;
        let slot = self.identity.cq_qtype.qtype;
        let cq = self.cq(cq)?;
        let ring = if solicited { CQ_RING_SOL } else { CQ_RING_ARM };
        for cq_ring in &mut cq.rings {
            cq_ring.arms = cq_ring.arms.wrapping_add(1);
            cq_ring.armed = true;
            nic.doorbell(cq.page, slot, Doorbell { p_index: cq_ring.arms, ring, qid: cq_ring.number })?;
        }
        Ok(())
    }

    /// Makes a queue pair in RESET; its number.
    ///
    /// # Errors
    /// The device refused it.
    pub fn create_qp<B: Bus>(&mut self, nic: &mut Ionic<B>, config: QpConfig) -> Result<u32, DriverError> {
        let mover = self.next_mover;
        self.next_mover = (self.next_mover + 1) % MOVERS;
        let at = self.qp_numbers[mover as usize].take();
        let qpn = spread(at, mover, self.identity.udma_shift);
        let cq_number = |verbs: &mut Self, cq: u32| {
            Ok::<u32, DriverError>(verbs.cq(cq)?.rings.get(mover as usize).map_or(0, |ring| ring.number))
        };
        let (sq_cq, rq_cq) = (cq_number(self, config.send_cq)?, cq_number(self, config.receive_cq)?);
        let (page, kernel) = (self.page, self.page == 0);
        let sq = ring(&self.ram, 1 << (config.sq_log2 + config.stride_log2), kernel)?;
        let rq = ring(&self.ram, 1 << (config.rq_log2 + config.stride_log2), kernel)?;
        let (sq_map, sq_shift, sq_table) = ring_table(&sq, kernel);
        let (rq_map, rq_shift, rq_table) = ring_table(&rq, kernel);
        let (sq_table, rq_table) = (self.place(sq_table)?, self.place(rq_table)?);
        let address = |table: &Option<crate::ram::DmaBuf>, mem: &UserMem| {
            table.as_ref().map_or_else(|| mem.pages()[0], |table| table.iova())
        };
        let cmd = CreateQp {
            pd_id: config.pd.into(),
            priv_flags: config.flags.bits().into(),
            sq_cq_id: sq_cq.into(),
            sq_depth_log2: config.sq_log2,
            sq_stride_log2: config.stride_log2,
            sq_page_size_log2: sq_shift,
            sq_tbl_index_xrcd_id: u32::MAX.into(),
            sq_map_count: sq_map.into(),
            sq_dma_addr: address(&sq_table, &sq).into(),
            rq_cq_id: rq_cq.into(),
            rq_depth_log2: config.rq_log2,
            rq_stride_log2: config.stride_log2,
            rq_page_size_log2: rq_shift,
            rq_tbl_index_srq_id: u32::MAX.into(),
            rq_map_count: rq_map.into(),
            rq_dma_addr: address(&rq_table, &rq).into(),
            id_ver: qpn.into(),
            dbid_flags: page.into(),
            type_state: config.kind,
            ..CreateQp::new_zeroed()
        };
        let made = self.verb(nic, AdminOp::CREATE_QP, &cmd);
        [sq_table, rq_table].iter().flatten().for_each(|table| table.fill(0xff));
        if made.is_err() {
            self.qp_numbers[mover as usize].give(at);
        }
        made?;
        // Every RC queue pair has an address handle of its own, which only MODIFY_QP names.
        let ah = if config.kind == QpType::RC { self.ahs.take() } else { 0 };
        let qp = Qp {
            kind: config.kind,
            page,
            mover,
            sq: WorkRing::new(sq, config.sq_log2, config.stride_log2),
            rq: WorkRing::new(rq, config.rq_log2, config.stride_log2),
            send_cq: config.send_cq,
            receive_cq: config.receive_cq,
            ah,
            wild: false,
        };
        self.qps.insert(qpn, qp);
        Ok(qpn)
    }

    /// Changes a queue pair (`ionic_modify_qp`).
    ///
    /// # Errors
    /// The device refused it.
    pub fn modify_qp<B: Bus>(&mut self, nic: &mut Ionic<B>, qpn: u32, change: &Change) -> Result<(), DriverError> {
        let (kind, ah) = {
            let qp = self.qp(qpn)?;
            (qp.kind, qp.ah)
        };
        let mut mask = QpAttr::empty();
        let mut has = |bit: QpAttr, set: bool| mask.set(bit, set);
        has(QpAttr::STATE, change.state.is_some());
        has(QpAttr::ACCESS_FLAGS, change.access.is_some());
        has(QpAttr::DEST_QPN, change.dest_qpn.is_some());
        has(QpAttr::QKEY, change.qkey.is_some());
        has(QpAttr::RQ_PSN, change.rq_psn.is_some());
        has(QpAttr::SQ_PSN, change.sq_psn.is_some());
        has(QpAttr::PATH_MTU, change.pmtu.is_some());
        has(QpAttr::TIMEOUT, change.timeout.is_some());
        has(QpAttr::RETRY_CNT, change.retry_cnt.is_some());
        has(QpAttr::RNR_RETRY, change.rnr_retry.is_some());
        has(QpAttr::MIN_RNR_TIMER, change.min_rnr_timer.is_some());
        has(QpAttr::MAX_QP_RD_ATOMIC, change.max_rd_atomic.is_some());
        has(QpAttr::MAX_DEST_RD_ATOMIC, change.max_dest_rd_atomic.is_some());
        has(QpAttr::AV, change.av.is_some());
        if change.state == Some(QpState::INIT) {
            mask |= QpAttr::PKEY_INDEX | QpAttr::PORT;
        }
        let template = change.av.map(|av| av.header());
        let mut cmd = ModifyQp {
            attr_mask: mask.bits().into(),
            access_flags: u16::try_from(change.access.unwrap_or(QpFlags::empty()).bits() & 0xffff).unwrap_or(0).into(),
            rq_psn: change.rq_psn.unwrap_or(0).into(),
            sq_psn: change.sq_psn.unwrap_or(0).into(),
            qkey_dest_qpn: change.dest_qpn.or(change.qkey).unwrap_or(0).into(),
            // What the driver makes of an MTU that is not set.
            pmtu: change.pmtu.unwrap_or(7),
            retry: change.retry_cnt.unwrap_or(0) | change.rnr_retry.unwrap_or(0) << 4,
            rnr_timer: change.min_rnr_timer.unwrap_or(0),
            retry_timeout: change.timeout.unwrap_or(0),
            rsq_depth: change.max_dest_rd_atomic.map_or(0, |n| depth_log2(u64::from(n) + 1)),
            rrq_depth: change.max_rd_atomic.map_or(0, |n| depth_log2(u64::from(n) + 2) - 1),
            type_state: change.state.unwrap_or(QpState::RESET).0,
            rrq_index: u32::MAX.into(),
            rsq_index: u32::MAX.into(),
            id_ver: qpn.into(),
            ..ModifyQp::default()
        };
        if let Some((profile, header)) = &template {
            cmd.tfp_csum_profile = *profile;
            if kind == QpType::RC {
                cmd.ah_id_len = (ah | u32::try_from(header.len()).unwrap_or(0) << 24).into();
                cmd.dma_addr = self.stage(&header[..]).into();
            }
        }
        let done = self.verb(nic, AdminOp::MODIFY_QP, &cmd);
        self.unstage();
        done?;
        let qp = self.qp(qpn)?;
        match change.state {
            Some(QpState::RESET) => {
                qp.sq.reset();
                qp.rq.reset();
                let (send, receive) = (qp.send_cq, qp.receive_cq);
                self.purge(qpn, [send, receive])?;
            }
            // The kernel's driver flushes by itself then; libionic waits for the device's word.
            Some(QpState::ERR) if qp.page == 0 => {
                qp.sq.flushed = true;
                qp.rq.flushed = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// Drops completions of a queue pair that is no more (`ionic_clean_cq`).
    fn purge(&mut self, qpn: u32, cqs: [u32; 2]) -> Result<(), DriverError> {
        for cq in cqs {
            // Completions of others are kept: they are taken by their next poll.
            let mut keep = Vec::new();
            for ring in &mut self.cq(cq)?.rings {
                while let Some(cqe) = ring.next() {
                    if be32(&cqe, 28) >> CQE_QID_SHIFT != qpn {
                        keep.push(cqe);
                    }
                }
            }
            let mut out = Vec::new();
            for cqe in keep {
                self.completion(&cqe, &mut out)?;
            }
            self.ready.extend(out.into_iter().map(|wc| (cq, wc)));
        }
        Ok(())
    }

    /// Takes an RC queue pair through INIT and RTR to RTS, connected to `peer`.
    ///
    /// # Errors
    /// As [`Verbs::modify_qp`].
    pub fn connect_qp<B: Bus>(
        &mut self,
        nic: &mut Ionic<B>,
        qpn: u32,
        peer: u32,
        access: QpFlags,
        av: AddressVector,
    ) -> Result<(), DriverError> {
        self.modify_qp(nic, qpn, &Change { access: Some(access), ..Change::to(QpState::INIT) })?;
        let rtr = Change {
            dest_qpn: Some(peer),
            rq_psn: Some(0),
            pmtu: Some(10),
            min_rnr_timer: Some(12),
            max_dest_rd_atomic: Some(1),
            av: Some(av),
            ..Change::to(QpState::RTR)
        };
        self.modify_qp(nic, qpn, &rtr)?;
        let rts = Change {
            sq_psn: Some(0),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(1),
            ..Change::to(QpState::RTS)
        };
        self.modify_qp(nic, qpn, &rts)
    }

    /// Takes a datagram queue pair to RTS.
    ///
    /// # Errors
    /// As [`Verbs::modify_qp`].
    pub fn ready_qp<B: Bus>(&mut self, nic: &mut Ionic<B>, qpn: u32, qkey: u32) -> Result<(), DriverError> {
        self.modify_qp(nic, qpn, &Change { qkey: Some(qkey), ..Change::to(QpState::INIT) })?;
        self.modify_qp(nic, qpn, &Change::to(QpState::RTR))?;
        self.modify_qp(nic, qpn, &Change { sq_psn: Some(0), ..Change::to(QpState::RTS) })
    }

    /// Asks the device for the state of a queue pair.
    ///
    /// # Errors
    /// The device refused it, or says an MTU that the kernel would trip over.
    pub fn query_qp<B: Bus>(&mut self, nic: &mut Ionic<B>, qpn: u32) -> Result<QpInfo, DriverError> {
        let pages = self.ram.alloc_dirty(2 * PAGE).ok_or(DriverError::NoMemory(2 * PAGE))?;
        pages.fill(0xff);
        let cmd = QueryQp {
            sq_dma_addr: pages.iova().into(),
            rq_dma_addr: (pages.iova() + PAGE as u64).into(),
            id_ver: qpn.into(),
            ..QueryQp::default()
        };
        self.verb(nic, AdminOp::QUERY_QP, &cmd)?;
        let (sq, rq): (QuerySq, QueryRq) = (pages.load(0), pages.load(PAGE));
        let behind = [size_of::<QuerySq>(), PAGE + size_of::<QueryRq>()];
        for at in behind {
            if pages.load::<[u8; 32]>(at) != [0xff; 32] {
                return Err(DriverError::Violation(format!("QUERY_QP writes beyond its answers, at {at:#x}")));
            }
        }
        let log2 = rq.state_pmtu & 15;
        if !(8..=12).contains(&log2) {
            return Err(DriverError::Violation(format!("path MTU of 2^{log2} bytes")));
        }
        let reads = |depth: u8| 1u32.checked_shl(depth.into()).unwrap_or(0).wrapping_sub(1);
        Ok(QpInfo {
            state: QpState(rq.state_pmtu >> 4),
            mtu: 1 << log2,
            flags: QpFlags::from_bits_retain(u32::from(sq.access_perms_flags.get() | rq.access_perms_flags.get())),
            qkey_dest_qpn: sq.qkey_dest_qpn.get(),
            rq_psn: sq.rq_psn.get(),
            sq_psn: rq.sq_psn.get(),
            timeout: sq.retry_timeout,
            retry_cnt: rq.retry_rnrtry & 15,
            rnr_retry: rq.retry_rnrtry >> 4,
            min_rnr_timer: sq.rnr_timer,
            max_rd_atomic: reads(rq.rrq_depth),
            max_dest_rd_atomic: reads(rq.rsq_depth),
        })
    }

    /// Destroys a queue pair. Afterwards the device may not write of it.
    ///
    /// # Errors
    /// The device refused it.
    pub fn destroy_qp<B: Bus>(&mut self, nic: &mut Ionic<B>, qpn: u32) -> Result<(), DriverError> {
        self.verb(nic, AdminOp::DESTROY_QP, &DestroyById { id_ver: qpn.into() })?;
        let Some(qp) = self.qps.remove(&qpn) else { return Ok(()) };
        let (mover, at) = gather(qpn, self.identity.udma_shift);
        self.qp_numbers[mover].give(at);
        if qp.kind == QpType::RC {
            self.ahs.give(qp.ah);
        }
        self.purge(qpn, [qp.send_cq, qp.receive_cq])
    }

    /// Makes an address handle.
    ///
    /// # Errors
    /// The device refused it.
    pub fn create_ah<B: Bus>(&mut self, nic: &mut Ionic<B>, pd: u32, av: AddressVector) -> Result<u32, DriverError> {
        let id = self.ahs.take();
        let (csum_profile, header) = av.header();
        let cmd = CreateAh {
            dma_addr: self.stage(&header[..]).into(),
            length: u32::try_from(header.len()).unwrap_or(0).into(),
            pd_id: pd.into(),
            id_ver: id.into(),
            csum_profile,
            ..CreateAh::default()
        };
        let made = self.verb(nic, AdminOp::CREATE_AH, &cmd).inspect_err(|_| self.ahs.give(id));
        self.unstage();
        made.map(|()| id)
    }

    /// Destroys an address handle.
    ///
    /// # Errors
    /// The device refused it.
    pub fn destroy_ah<B: Bus>(&mut self, nic: &mut Ionic<B>, id: u32) -> Result<(), DriverError> {
        self.verb(nic, AdminOp::DESTROY_AH, &DestroyById { id_ver: id.into() })?;
        self.ahs.give(id);
        Ok(())
    }

    /// Posts a work request, called `id`, that wants a completion, and rings.
    ///
    /// # Errors
    /// The queue is full, or the bus failed.
    pub fn post_send<B: Bus>(
        &mut self,
        nic: &mut Ionic<B>,
        qpn: u32,
        id: u64,
        request: &Request,
    ) -> Result<(), DriverError> {
        self.post_sends(nic, qpn, &[(id, request.clone(), true)])
    }

    /// Posts work requests, with one doorbell; each with its name and whether it wants a completion if it succeeds.
    ///
    /// # Errors
    /// As [`Verbs::post_send`].
    pub fn post_sends<B: Bus>(
        &mut self,
        nic: &mut Ionic<B>,
        qpn: u32,
        requests: &[(u64, Request, bool)],
    ) -> Result<(), DriverError> {
        let slot = self.identity.sq_qtype.qtype;
        let qp = self.qp(qpn)?;
        for (id, request, signalled) in requests {
            let index = qp.sq.push(&request.entry(*signalled))?;
            let message = (qp.kind != QpType::UD && !request.local()).then(|| {
                qp.sq.messages += 1;
                qp.sq.messages
            });
            qp.sq.posted.push_back(Posted { id: *id, index, message, signalled: *signalled, outcome: None });
        }
        nic.doorbell(qp.page, slot, Doorbell { p_index: qp.sq.head, ring: 0, qid: qpn })
    }

    /// Posts a receive buffer, called `id`.
    ///
    /// # Errors
    /// The queue is full, or the bus failed.
    pub fn post_receive<B: Bus>(
        &mut self,
        nic: &mut Ionic<B>,
        qpn: u32,
        id: u64,
        buffer: &Receive,
    ) -> Result<(), DriverError> {
        let slot = self.identity.rq_qtype.qtype;
        let qp = self.qp(qpn)?;
        let index = qp.rq.push(&buffer.entry())?;
        qp.rq.posted.push_back(Posted { id, index, message: None, signalled: true, outcome: None });
        nic.doorbell(qp.page, slot, Doorbell { p_index: qp.rq.head, ring: 0, qid: qpn })
    }

    /// Writes an entry as it is to the send or receive queue's next place, full or not, and remembers nothing of it: from then on, what
    /// the queue pair completes is taken as it comes, and only its status counts. Returns the producer index that a doorbell would say.
    ///
    /// # Errors
    /// There is no such queue pair.
    pub fn write_entry(&mut self, qpn: u32, receive: bool, entry: &[u8]) -> Result<u16, DriverError> {
        let qp = self.qp(qpn)?;
        qp.wild = true;
        let ring = if receive { &mut qp.rq } else { &mut qp.sq };
        let stride = 1usize << ring.stride_log2;
        ring.mem.write(usize::from(ring.head) * stride, &entry[..entry.len().min(stride)]);
        ring.head = u16::try_from((u32::from(ring.head) + 1) % (1 << ring.log2)).unwrap_or(0);
        Ok(ring.head)
    }

    /// All memory that the device may write by itself, apart from registered memory: bus address and bytes of each piece.
    #[must_use]
    pub fn device_rings(&self) -> Vec<(u64, usize)> {
        let events = self.eqs.iter().map(super::queue::EventRing::extent);
        let completions = self.cqs.values().flat_map(|cq| &cq.rings).chain(self.aqs.iter().map(|aq| &aq.cq));
        events.chain(completions.flat_map(|ring| ring.ring.extents())).collect()
    }

    /// Takes the completions that are there (`ibv_poll_cq`).
    ///
    /// # Errors
    /// One makes no sense: the queue would be stuck for ever.
    pub fn poll_cq(&mut self, cq: u32) -> Result<Vec<Wc>, DriverError> {
        let mut out = Vec::new();
        self.ready.retain(|(of, wc)| {
            let taken = *of == cq;
            if taken {
                out.push(*wc);
            }
            !taken
        });
        for at in 0..self.cq(cq)?.rings.len() {
            while let Some(cqe) = self.cq(cq)?.rings.get_mut(at).and_then(CompletionRing::next) {
                self.completion(&cqe, &mut out)?;
            }
        }
        // What the kernel flushes by itself.
        for (qpn, qp) in self.qps.iter_mut().filter(|(_, qp)| qp.page == 0) {
            if qp.send_cq == cq && qp.sq.flushed {
                qp.sq.drain(&mut out, *qpn, false);
            }
            if qp.receive_cq == cq && qp.rq.flushed {
                qp.rq.drain(&mut out, *qpn, true);
            }
        }
        Ok(out)
    }

    /// Lets the device run until a completion queue has something, or `limit` is over.
    ///
    /// # Errors
    /// As [`Verbs::poll_cq`], and [`DriverError::LostInterrupt`] if an event lies in its ring at the end.
    pub fn wait_cq<B: Bus>(
        &mut self,
        nic: &mut Ionic<B>,
        cq: u32,
        limit: std::time::Duration,
    ) -> Result<Vec<Wc>, DriverError> {
        let end = nic.bus.now() + limit;
        loop {
            self.serve_events(nic)?;
            let wcs = self.poll_cq(cq)?;
            let left = end.saturating_sub(nic.bus.now());
            if !wcs.is_empty() {
                return Ok(wcs);
            }
            // An event may not have been asked for.
            let slice = left.min(std::time::Duration::from_millis(1));
            if !nic.bus.wait(slice)? && left.is_zero() {
                return match self.lost_event() {
                    Some(vector) => Err(DriverError::LostInterrupt { what: "an RDMA event is there", vector }),
                    None => Ok(wcs),
                };
            }
        }
    }

    /// Acts on one completion (libionic's `ionic_poll_cq`, and its refusals).
    fn completion(&mut self, cqe: &Cqe, out: &mut Vec<Wc>) -> Result<(), DriverError> {
        let word = be32(cqe, 28);
        let qpn = word >> CQE_QID_SHIFT;
        let kind = u8::try_from(word >> CQE_TYPE_SHIFT & 7).map_or(CqeType(u8::MAX), CqeType);
        let value = be32(cqe, 24);
        let status = if word & CQE_ERROR != 0 { value } else { 0 };
        let bad = |why: &str| Err(DriverError::Violation(format!("{why}: completion {cqe:02x?}")));
        if word & CQE_ERROR != 0 && status == 0 {
            return bad("an error without a status");
        }
        // The driver skips what is of no queue pair it knows.
        let Some(qp) = self.qps.get_mut(&qpn) else { return bad("of no queue pair") };
        let receive = kind == CqeType::RECV;
        if qp.wild {
            out.push(Wc { qpn, id: 0, status, length: 0, receive, received: Received::default() });
            return Ok(());
        }
        let ring = if receive { &mut qp.rq } else { &mut qp.sq };
        match kind {
            CqeType::RECV | CqeType::SEND_NPG if status == FLUSHED => {
                if std::mem::replace(&mut ring.flushed, true) {
                    return bad("flushed twice");
                }
            }
            CqeType::RECV => {
                let index = u16::from_le_bytes([cqe[0], cqe[1]]);
                match ring.posted.front_mut() {
                    Some(first) if first.index == index => {
                        first.outcome = Some((status, if status == 0 { value } else { 0 }, Received::new(cqe)));
                    }
                    _ => return bad("not the oldest receive"),
                }
            }
            CqeType::SEND_MSN => {
                let msn = be32(cqe, 4);
                if msn <= ring.completed || msn > ring.messages {
                    return bad("message number out of order");
                }
                ring.completed = msn;
                for posted in &mut ring.posted {
                    match posted.message {
                        Some(message) if message == msn => posted.outcome = Some((status, 0, Received::default())),
                        Some(message) if message < msn => posted.outcome = Some((0, 0, Received::default())),
                        _ => {}
                    }
                }
            }
            CqeType::SEND_NPG => {
                let index = u16::from_le_bytes([cqe[16], cqe[17]]);
                match ring.posted.iter_mut().find(|posted| posted.index == index && posted.outcome.is_none()) {
                    Some(posted) => posted.outcome = Some((status, 0, Received::default())),
                    None => return bad("of no request"),
                }
            }
            _ => return bad("unknown type"),
        }
        ring.drain(out, qpn, receive);
        Ok(())
    }

    /// The data mover of a queue pair.
    ///
    /// # Errors
    /// There is none of that number.
    pub fn mover(&mut self, qpn: u32) -> Result<u32, DriverError> {
        Ok(self.qp(qpn)?.mover)
    }

    /// Whether the device wrote nothing beside the rings that it was given, nor into those it may only read.
    #[must_use]
    pub fn rings_intact(&self) -> bool {
        self.cqs.values().flat_map(|cq| &cq.rings).all(|ring| ring.ring.intact())
            && self.qps.values().all(|qp| qp.sq.mem.intact() && qp.rq.mem.intact())
    }
}

/// Data mover and position of a number: the opposite of [`spread`].
fn gather(number: u32, shift: u8) -> (usize, u32) {
    let at = number >> (shift + 1) << shift | number & ((1 << shift) - 1);
    ((number >> shift & 1) as usize, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernel() {
        // As seen live: 2, 3, …, 63, 128 for one mover and 64, …, 127, 192 for the other.
        assert_eq!([2, 63, 64].map(|at| spread(at, 0, 6)), [2, 63, 128]);
        assert_eq!([0, 63, 64].map(|at| spread(at, 1, 6)), [64, 127, 192]);
        for at in 0..1000 {
            for mover in 0..2 {
                assert_eq!(gather(spread(at, mover, 6), 6), (mover as usize, at));
            }
        }
    }

    #[test]
    fn headers_have_their_four_lengths() {
        let v4: [IpAddr; 2] = [[192, 168, 200, 1].into(), [192, 168, 200, 9].into()];
        let v6: [IpAddr; 2] = [[0xfe80, 0, 0, 0, 0, 0, 0, 1].into(), [0xfe80, 0, 0, 0, 0, 0, 0, 2].into()];
        for (addresses, tci, profile, length) in
            [(v4, None, 0, 42), (v4, Some(5), 1, 46), (v6, None, 2, 62), (v6, Some(5), 3, 66)]
        {
            let av = AddressVector { macs: [[1; 6], [2; 6]], tci, addresses, hops: 64 };
            let (shape, header) = av.header();
            assert_eq!((shape, header.len()), (profile, length));
            assert_eq!(header[length - 6..length - 4], ROCE_PORT.to_be_bytes());
        }
    }
}
