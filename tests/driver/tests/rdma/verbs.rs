//! Work requests, executed: what arrives, byte by byte, and what completions and events say of it.

use std::time::Duration;

use ernic_emu::rdma::Traffic;
use ionic_abi::{
    AdminOp, AdminStatus, EQE_QP_ERR, EQE_QP_ERR_ACCESS, EQE_QP_ERR_REQUEST, EQE_QP_SQ_DRAIN, ModifyQp, MrFlags,
    QpAttr, QpFlags, QpState, QpType, WorkFlags, WorkStatus,
};
use ionic_driver::{
    UserMem,
    user::Placement,
    verbs::{Change, Command, Event, QpConfig, Receive, Received, RegMr, Request, Sge, Wc},
};

use super::{
    common::{LONG, MAC, TestBus},
    kit::{ACCESS, ALL, Dice, End, Guest, RIGHTS, address, connected, shaped},
};

const OK: u32 = 0;

fn status(status: WorkStatus) -> u32 {
    status.0.into()
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + i / 251 + seed * 7) % 251) as u8).collect()
}

impl<T: TestBus> Guest<T> {
    fn traffic(&mut self) -> Traffic {
        self.nic.bus.settle();
        self.nic.bus.with_device(|device| device.rdma_traffic())
    }

    fn post(&mut self, end: &End, id: u64, request: Request) {
        self.verbs.post_send(&mut self.nic, end.qpn, id, &request).unwrap();
    }

    fn post_buffer(&mut self, end: &End, id: u64, sges: Vec<Sge>) {
        self.verbs.post_receive(&mut self.nic, end.qpn, id, &Receive(sges)).unwrap();
    }

    /// The one completion of what was sent.
    fn sent(&mut self, end: &End) -> Wc {
        self.completions(end.sends, 1)[0]
    }

    fn got(&mut self, end: &End) -> Wc {
        self.completions(end.receives, 1)[0]
    }

    fn state(&mut self, end: &End) -> QpState {
        self.verbs.query_qp(&mut self.nic, end.qpn).unwrap().state
    }
}

/// Cuts `len` bytes of an end's memory into pieces with gaps, so that they cross pages.
fn pieces(end: &End, count: usize, len: usize, dice: &mut Dice) -> (Vec<Sge>, Vec<(usize, usize)>) {
    let (mut sges, mut places) = (Vec::new(), Vec::new());
    let (mut at, mut left) = (dice.below(64), len);
    for i in 0..count {
        let n = if i + 1 == count { left } else { dice.below(left + 1) };
        sges.push(end.sge(at, n));
        places.push((at, n));
        at += n + dice.below(40);
        left -= n;
    }
    (sges, places)
}

/// Messages of every number of pieces on both sides, with every entry size, with and without speculative lengths; inline ones of
/// every length.
pub fn messages_of_every_shape<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let shapes: [fn(&mut QpConfig); 4] =
        [|c| c.stride_log2 = 6, |c| c.stride_log2 = 7, |c| c.stride_log2 = 8, |c| c.stride_log2 = 9];
    let mut dice = Dice(7);
    let mut moved = 0;
    for (shape, stride) in shapes.into_iter().zip([64_usize, 128, 256, 512]) {
        let (a, b) = shaped(&mut guest, 40_000, shape);
        let most = (stride - 32) / 16;
        for count in 0..=most {
            let len = if count == 0 { 0 } else { dice.below(9000) };
            let (mut gather, from) = pieces(&a, count, len, &mut dice);
            let (scatter, to) = pieces(&b, 1 + dice.below(most), len + dice.below(100), &mut dice);
            a.mem.write(0, &pattern(40_000, count));
            b.mem.write(0, &vec![0x55; 40_000]);
            guest.post_buffer(&b, 10, scatter);
            let spec = count > 2 && count <= (stride - 32) / 16 - 2;
            if count == 0 {
                gather.clear();
            }
            let mut request = Request::Send(gather, None);
            if spec {
                let flag = if count % 2 == 0 { WorkFlags::SPEC32 } else { WorkFlags::SPEC16 };
                request = Request::Flagged(flag, Box::new(request));
            }
            let immediate = count % 3 == 0;
            if immediate {
                request = Request::Immediate(0x1122_3344, Box::new(request));
            }
            guest.post(&a, 20, request);
            let (sent, got) = (guest.sent(&a), guest.got(&b));
            assert_eq!((sent.id, sent.status, got.id, got.status), (20, OK, 10, OK), "{stride} {count}");
            let (op, word) = if immediate { (2, 0x1122_3344) } else { (0, 0) };
            assert_eq!(got.length as usize, len);
            assert_eq!(got.received, Received { op, word, source: a.qpn, ..Received::default() });
            // What was gathered lies where it was to be scattered, and nothing else changed.
            let sent: Vec<u8> = from.iter().flat_map(|(at, n)| a.bytes(*at, *n)).collect();
            let (mut expected, mut rest) = (vec![0x55; 40_000], &sent[..]);
            for (at, n) in to {
                let (now, later) = rest.split_at(n.min(rest.len()));
                expected[at..at + now.len()].copy_from_slice(now);
                rest = later;
            }
            assert!(b.mem.content() == expected && b.mem.intact() && a.mem.intact(), "{stride} {count} {len}");
            moved += len as u64;
        }
        for len in [0, 1, 7, 8, 31, stride - 32] {
            b.mem.write(0, &[0; 600]);
            guest.post_buffer(&b, 30, vec![b.sge(3, 5), b.sge(100, 500)]);
            let bytes = pattern(len, stride);
            guest.post(&a, 31, Request::SendInline(bytes.clone()));
            let (sent, got) = (guest.sent(&a), guest.got(&b));
            assert_eq!((sent.status, got.status, got.length as usize), (OK, OK, len));
            let (head, tail) = bytes.split_at(len.min(5));
            assert!(b.bytes(3, head.len()) == head && b.bytes(100, tail.len()) == tail);
            moved += len as u64;
        }
    }
    assert_eq!(guest.traffic().bytes, moved);
    assert!(guest.verbs.rings_intact());
}

/// Only those that ask for it complete, and stand for those before them; the driver's ring goes round several times.
pub fn unsignalled_batches<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let (a, b) = connected(&mut guest, 8192);
    let mut messages = 0_u64;
    for batch in [1_usize, 50, 63, 7, 63, 63] {
        for id in 0..batch as u64 {
            guest.post_buffer(&b, id, vec![b.sge(0, 64)]);
        }
        let requests: Vec<_> =
            (0..batch).map(|i| (i as u64, Request::SendInline(vec![i as u8; i % 60]), i + 1 == batch)).collect();
        guest.verbs.post_sends(&mut guest.nic, a.qpn, &requests).unwrap();
        let last = guest.sent(&a);
        assert_eq!((last.id, last.status), (batch as u64 - 1, OK));
        let got = guest.completions(b.receives, batch);
        assert!(got.iter().zip(0..).all(|(wc, id)| (wc.id, wc.status, u64::from(wc.length)) == (id, OK, id % 60)));
        messages += batch as u64;
    }
    assert_eq!(guest.traffic().requests(), messages);
    // A local operation completes by position: what is before it is complete to the driver then, which goes by the order.
    let window = guest.verbs.alloc_mw(&mut guest.nic, a.pd, false).unwrap();
    let batch = [
        (1, Request::WriteInline(vec![1; 8], b.at(0), b.mr.key), false),
        (2, Request::WriteInline(vec![2; 8], b.at(8), b.mr.key), false),
        (3, Request::BindWindow(9, window, a.mr.key, a.at(0), 100, 0x4001), true),
        (4, Request::WriteInline(vec![3; 8], b.at(16), b.mr.key), true),
    ];
    guest.verbs.post_sends(&mut guest.nic, a.qpn, &batch).unwrap();
    let ids: Vec<_> = guest.completions(a.sends, 2).iter().map(|wc| (wc.id, wc.status)).collect();
    assert_eq!(ids, [(3, OK), (4, OK)]);
    assert_eq!(b.bytes(0, 24), [[1; 8], [2; 8], [3; 8]].concat());
}

/// Writes and reads of every size up to several visits, with immediate data, and of nothing.
pub fn writes_and_reads<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let size = 3 << 20;
    let (a, b) = connected(&mut guest, size);
    let mut dice = Dice(3);
    let mut moved = 0;
    for len in [0, 1, 2, 7, 8, 9, 63, 64, 4095, 4096, 4097, 65_535, 65_536, 65_537, 1 << 20, (3 << 20) - 200] {
        let (from, to) = (dice.below(100), dice.below(100));
        a.mem.write(0, &pattern(size, len));
        b.mem.write(0, &vec![0x55; size]);
        let bytes = a.bytes(from, len);
        guest.post(&a, 1, Request::Write(vec![a.sge(from, len)], b.at(to), b.mr.key));
        assert_eq!(guest.sent(&a).status, OK, "{len}");
        assert!(b.bytes(to, len) == bytes && b.mem.intact());
        let rest = b.mem.content();
        assert!(rest[..to].iter().chain(&rest[to + len..]).all(|byte| *byte == 0x55), "{len}");
        // Back again, to another place, in two pieces.
        a.mem.write(0, &vec![0x66; size]);
        let cut = dice.below(len + 1);
        let pieces = vec![a.sge(5, cut), a.sge(105 + cut, len - cut)];
        guest.post(&a, 2, Request::Read(pieces, b.at(to), b.mr.key));
        assert_eq!(guest.sent(&a).status, OK, "{len}");
        assert!(a.bytes(5, cut) == bytes[..cut] && a.bytes(105 + cut, len - cut) == bytes[cut..] && a.mem.intact());
        assert!(a.bytes(5 + cut, 100).iter().all(|byte| *byte == 0x66));
        moved += 2 * len as u64;
    }
    // Immediate data takes a buffer of the receiver's, whose memory is not used, and tells the length of the write.
    for len in [0, 1000] {
        guest.post_buffer(&b, 9, Vec::new());
        let write = Request::Write(vec![a.sge(0, len)], b.at(0), b.mr.key);
        guest.post(&a, 3, Request::Immediate(0xdead_beef, Box::new(write)));
        let (sent, got) = (guest.sent(&a), guest.got(&b));
        assert_eq!((sent.status, got.status, got.id, got.length as usize), (OK, OK, 9, len));
        assert_eq!(got.received, Received { op: 3, word: 0xdead_beef, source: a.qpn, ..Received::default() });
        assert_eq!(b.bytes(0, len), a.bytes(0, len));
        moved += len as u64;
    }
    // Of nothing, the key does not matter.
    guest.post(&a, 4, Request::Write(Vec::new(), 1, 0x1234));
    assert_eq!(guest.sent(&a).status, OK);
    let by_operation = [0, 0, 0, 16, 17, 2, 0, 0, 0, 0, 0];
    assert_eq!(guest.traffic(), Traffic { by_operation, bytes: moved, ..Traffic::default() });
    assert_eq!(guest.traffic().requests(), 35);
}

/// The requester's and the peer's view of everything that may not be.
pub fn every_error_has_its_status<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let (a, b) = connected(&mut guest, 8192);
    let stranger = guest.verbs.create_pd();
    let other = guest.verbs.reg_mr(&mut guest.nic, stranger, &RegMr::all(&b.mem, RIGHTS)).unwrap();
    let read_only = RegMr::all(&b.mem, MrFlags::REMOTE_READ);
    let read_only = guest.verbs.reg_mr(&mut guest.nic, b.pd, &read_only).unwrap();
    let plain = guest.verbs.reg_mr(&mut guest.nic, a.pd, &RegMr::all(&a.mem, MrFlags::empty())).unwrap();
    let bad_key = Sge { lkey: a.mr.key ^ 1, ..a.sge(0, 16) };
    let foreign = Sge { lkey: other.key, ..b.sge(0, 16) };
    let beyond = a.sge(8190, 3);
    let reserved = Sge { va: 0x12_3400_0000, length: 16, lkey: 0 };
    let unwritable = Sge { lkey: plain.key, ..a.sge(0, 16) };
    let write = |sge: Sge, va: u64, key: u32| Request::Write(vec![sge], va, key);
    let read = |sge: Sge, va: u64, key: u32| Request::Read(vec![sge], va, key);
    let good = a.sge(0, 16);
    let (protection, access, invalid) = (WorkStatus::LOCAL_PROT, WorkStatus::REMOTE_ACC, WorkStatus::REMOTE_INV_REQ);
    // Request, its status, and what becomes of the peer: an event if it goes down too.
    let cases: Vec<(&str, Request, WorkStatus, Option<u32>)> = vec![
        ("key byte", write(bad_key, b.at(0), b.mr.key), protection, None),
        ("foreign lkey", Request::Send(vec![foreign], None), protection, None),
        ("beyond the region", Request::Send(vec![good, beyond], None), protection, None),
        ("reserved lkey", Request::Send(vec![reserved], None), protection, None),
        ("not writable here", read(unwritable, b.at(0), b.mr.key), protection, None),
        (
            "not writable here, atomic",
            Request::FetchAdd(Sge { length: 8, ..unwritable }, b.at(3), b.mr.key, 1),
            protection,
            None,
        ),
        ("atomic of 16", Request::FetchAdd(good, b.at(3), b.mr.key, 1), WorkStatus::LOCAL_LEN, None),
        ("rkey byte", write(good, b.at(0), b.mr.key ^ 1), access, Some(EQE_QP_ERR_ACCESS)),
        ("no such rkey", read(good, b.at(0), 0x00ff_ff01), access, Some(EQE_QP_ERR_ACCESS)),
        ("rkey of another domain", write(good, b.at(0), other.key), access, Some(EQE_QP_ERR_ACCESS)),
        ("reserved rkey", write(good, 0x12_3400_0000, 0), access, Some(EQE_QP_ERR_ACCESS)),
        ("one byte beyond", write(good, b.at(8192 - 15), b.mr.key), access, Some(EQE_QP_ERR_ACCESS)),
        ("before the beginning", read(good, b.at(0) - 1, b.mr.key), access, Some(EQE_QP_ERR_ACCESS)),
        ("wraps", write(good, u64::MAX - 3, b.mr.key), access, Some(EQE_QP_ERR_ACCESS)),
        ("not writable there", write(good, b.at(0), read_only.key), access, Some(EQE_QP_ERR_ACCESS)),
        (
            "no atomics there",
            Request::FetchAdd(a.sge(0, 8), b.at(3), read_only.key, 1),
            access,
            Some(EQE_QP_ERR_ACCESS),
        ),
        ("misaligned atomic", Request::FetchAdd(a.sge(0, 8), b.at(4), b.mr.key, 1), invalid, Some(EQE_QP_ERR_REQUEST)),
        (
            "invalidates what may not be",
            Request::Invalidate(b.mr.key, Box::new(Request::Send(vec![good], None))),
            access,
            Some(EQE_QP_ERR_ACCESS),
        ),
        ("local invalidation of what may not be", Request::LocalInvalidate(a.mr.key), WorkStatus::MEM_MGMT_OPER, None),
        ("no such opcode", Request::Raw(11, vec![0; 16]), WorkStatus::LOCAL_QP_OPER, None),
        (
            "inline beyond the entry",
            Request::Raw(0, [vec![0; 12], 97_u32.to_be_bytes().to_vec()].concat()),
            WorkStatus::OK,
            None,
        ),
    ];
    for (what, request, expected, down) in cases {
        // An inline length that the entry does not hold, flagged as inline.
        let (request, expected) = match expected {
            WorkStatus::OK => (Request::Flagged(WorkFlags::INL, Box::new(request)), WorkStatus::LOCAL_LEN),
            _ => (request, expected),
        };
        a.mem.write(0, &[0x77; 8192]);
        b.mem.write(0, &[0x78; 8192]);
        for id in 0..2 {
            guest.post_buffer(&b, 40 + id, vec![b.sge(4096, 64)]);
        }
        guest.events();
        // One that succeeds, unsignalled; the one that fails, and one more behind it.
        let before = Request::WriteInline(vec![0x78; 4], b.at(0), b.mr.key);
        let batch = [(1, before, false), (2, request, false), (3, Request::SendInline(vec![9; 9]), true)];
        guest.verbs.post_sends(&mut guest.nic, a.qpn, &batch).unwrap();
        let sent: Vec<_> = guest.completions(a.sends, 2).iter().map(|wc| (wc.id, wc.status)).collect();
        let flushed = status(WorkStatus::WQE_FLUSHED);
        assert_eq!(sent, [(2, status(expected)), (3, flushed)], "{what}");
        assert_eq!(guest.state(&a), QpState::ERR, "{what}");
        let events: Vec<_> =
            guest.events().into_iter().filter(|event| matches!(event, Event::QueuePair { .. })).collect();
        match down {
            Some(code) => {
                assert_eq!(events, [Event::QueuePair { qpn: b.qpn, code }], "{what}");
                let flushes = guest.completions(b.receives, 2);
                assert!(flushes.iter().zip(40..).all(|(wc, id)| (wc.id, wc.status) == (id, flushed)), "{what}");
                assert_eq!(guest.state(&b), QpState::ERR, "{what}");
            }
            None => {
                assert_eq!((events, guest.state(&b)), (vec![], QpState::RTS), "{what}");
                assert_eq!(guest.verbs.poll_cq(b.receives).unwrap(), [], "{what}");
            }
        }
        let untouched = |mem: &UserMem, byte| mem.content().iter().all(|at| *at == byte) && mem.intact();
        assert!(untouched(&a.mem, 0x77) && untouched(&b.mem, 0x78), "{what}");
        guest.reconnect([&a, &b]);
    }
    // Rights that the queue pair does not give, though the region does.
    let none = Change { access: Some(QpFlags::empty()), ..Change::default() };
    for request in [
        write(good, b.at(0), b.mr.key),
        read(good, b.at(0), b.mr.key),
        Request::FetchAdd(a.sge(0, 8), b.at(3), b.mr.key, 1),
    ] {
        guest.verbs.modify_qp(&mut guest.nic, b.qpn, &none).unwrap();
        guest.post(&a, 1, request);
        assert_eq!(guest.sent(&a).status, status(access));
        guest.reconnect([&a, &b]);
    }
    // The receiver's faults: a buffer that is too small, and one that is none. It hears of it, then the flush.
    let unwritable = Sge { lkey: read_only.key, ..b.sge(0, 64) };
    for (sges, requester, receiver) in [
        (vec![b.sge(0, 8), b.sge(100, 7)], invalid, WorkStatus::LOCAL_LEN),
        (vec![], invalid, WorkStatus::LOCAL_LEN),
        (vec![b.sge(0, 8), unwritable], WorkStatus::REMOTE_OPER, protection),
        (vec![Sge { lkey: 0, ..b.sge(0, 64) }], WorkStatus::REMOTE_OPER, protection),
        (vec![b.sge(8180, 64)], WorkStatus::REMOTE_OPER, protection),
    ] {
        guest.events();
        guest.post_buffer(&b, 1, sges);
        guest.post_buffer(&b, 2, vec![b.sge(0, 100)]);
        guest.post(&a, 3, Request::Send(vec![good], None));
        assert_eq!(guest.sent(&a).status, status(requester));
        let got: Vec<_> = guest.completions(b.receives, 2).iter().map(|wc| (wc.id, wc.status)).collect();
        assert_eq!(got, [(1, status(receiver)), (2, status(WorkStatus::WQE_FLUSHED))]);
        let broke = Event::QueuePair { qpn: b.qpn, code: EQE_QP_ERR };
        assert!(guest.events().contains(&broke));
        assert!(b.mem.content().iter().all(|byte| *byte == 0x78), "nothing of it arrived");
        guest.reconnect([&a, &b]);
    }
    // And it still works.
    guest.post_buffer(&b, 1, vec![b.sge(0, 100)]);
    guest.post(&a, 2, Request::SendInline(b"fine".to_vec()));
    assert_eq!((guest.sent(&a).status, guest.got(&b).length, b.bytes(0, 4)), (OK, 4, b"fine".to_vec()));
    assert!(guest.verbs.rings_intact());
}

/// A receiver that is not ready, and a peer that is not there: waited for as long as the requester's and the receiver's attributes
/// say, in order, and then an error.
pub fn waiting_for_the_other_side<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let (a, b) = connected(&mut guest, 8192);
    // For ever, if that is asked for: nothing happens until there is a buffer, and order is kept.
    guest.post(&a, 1, Request::SendInline(b"one".to_vec()));
    guest.post(&a, 2, Request::WriteInline(b"two".to_vec(), b.at(100), b.mr.key));
    guest.nic.bus.pass(Duration::from_secs(60));
    assert_eq!((guest.verbs.poll_cq(a.sends).unwrap(), b.bytes(100, 1)), (vec![], vec![0x77]));
    assert_eq!(guest.traffic(), Traffic { waits: 1, ..Traffic::default() });
    guest.post_buffer(&b, 3, vec![b.sge(0, 100)]);
    let done: Vec<_> = guest.completions(a.sends, 2).iter().map(|wc| (wc.id, wc.status)).collect();
    assert_eq!((done, guest.got(&b).id), (vec![(1, OK), (2, OK)], 3));
    assert_eq!((b.bytes(0, 3), b.bytes(100, 3)), (b"one".to_vec(), b"two".to_vec()));

    // 3 times 491.52 ms of the receiver's.
    let exact = T::EXACT;
    guest.verbs.modify_qp(&mut guest.nic, b.qpn, &Change { min_rnr_timer: Some(31), ..Change::default() }).unwrap();
    guest.verbs.modify_qp(&mut guest.nic, a.qpn, &Change { rnr_retry: Some(3), ..Change::default() }).unwrap();
    guest.post(&a, 4, Request::SendInline(b"late".to_vec()));
    if exact {
        guest.nic.bus.pass(Duration::from_millis(1200));
        assert_eq!(guest.verbs.poll_cq(a.sends).unwrap(), []);
        guest.nic.bus.pass(Duration::from_millis(400));
    }
    let wc = guest.sent(&a);
    assert_eq!((wc.id, wc.status), (4, status(WorkStatus::RNR_RETRY_EXCEEDED)));
    assert_eq!((guest.state(&a), guest.state(&b)), (QpState::ERR, QpState::RTS), "the receiver is not touched");

    // Peers that are not there: none, not ready, connected to another, at another address.
    guest.reconnect([&a, &b]);
    let (c, d) = connected(&mut guest, 4096);
    let lost = [0xf0, b.qpn, d.qpn];
    for (round, peer) in lost.into_iter().enumerate() {
        guest.verbs.modify_qp(&mut guest.nic, a.qpn, &Change::to(QpState::RESET)).unwrap();
        guest.verbs.connect_qp(&mut guest.nic, a.qpn, peer, ACCESS, address(false, None)).unwrap();
        let quick = Change { timeout: Some(12), retry_cnt: Some(1), ..Change::default() };
        guest.verbs.modify_qp(&mut guest.nic, a.qpn, &quick).unwrap();
        if round == 1 {
            guest.verbs.modify_qp(&mut guest.nic, b.qpn, &Change::to(QpState::RESET)).unwrap();
        }
        guest.post(&a, 5, Request::SendInline(vec![1]));
        guest.post(&a, 6, Request::SendInline(vec![1]));
        let done: Vec<_> = guest.completions(a.sends, 2).iter().map(|wc| (wc.id, wc.status)).collect();
        assert_eq!(done, [(5, status(WorkStatus::RETRY_EXCEEDED)), (6, status(WorkStatus::WQE_FLUSHED))], "{round}");
    }
    assert_eq!((guest.state(&c), guest.state(&d)), (QpState::RTS, QpState::RTS));
    // One that comes late is found.
    guest.verbs.modify_qp(&mut guest.nic, a.qpn, &Change::to(QpState::RESET)).unwrap();
    guest.verbs.connect_qp(&mut guest.nic, a.qpn, b.qpn, ACCESS, address(false, None)).unwrap();
    guest.post(&a, 7, Request::SendInline(b"patience".to_vec()));
    guest.nic.bus.settle();
    guest.verbs.connect_qp(&mut guest.nic, b.qpn, a.qpn, ACCESS, address(true, None)).unwrap();
    guest.post_buffer(&b, 8, vec![b.sge(0, 8)]);
    assert_eq!((guest.sent(&a).status, guest.got(&b).length, b.bytes(0, 8)), (OK, 8, b"patience".to_vec()));
    // Elsewhere: another link address and another network address.
    let mut elsewhere = address(false, None);
    elsewhere.macs[0] = [2, 0, 0, 9, 9, 9];
    guest.verbs.modify_qp(&mut guest.nic, a.qpn, &Change::to(QpState::RESET)).unwrap();
    guest.verbs.connect_qp(&mut guest.nic, a.qpn, b.qpn, ACCESS, elsewhere).unwrap();
    guest.post(&a, 9, Request::SendInline(vec![1]));
    assert_eq!(guest.sent(&a).status, status(WorkStatus::RETRY_EXCEEDED));

    // A wait does not keep anything alive: its queue pair goes at once, and the peer too.
    let waits = guest.traffic().waits;
    guest.post(&c, 1, Request::SendInline(vec![1]));
    assert_eq!(guest.traffic().waits, waits + 1);
    guest.verbs.destroy_qp(&mut guest.nic, d.qpn).unwrap();
    guest.verbs.destroy_qp(&mut guest.nic, c.qpn).unwrap();
    guest.nic.bus.pass(Duration::from_secs(10));
    assert_eq!(guest.verbs.poll_cq(c.sends).unwrap(), []);
}

/// Datagrams: what is in front of them, who gets them, and who does not.
pub fn datagrams<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let datagram = |c: &mut QpConfig| c.kind = QpType::UD;
    let (a, b) = (End::new(&mut guest, 8192, datagram), End::new(&mut guest, 8192, datagram));
    guest.verbs.ready_qp(&mut guest.nic, a.qpn, 0x8001_0000).unwrap();
    guest.verbs.ready_qp(&mut guest.nic, b.qpn, 0x1111_1111).unwrap();
    let mut elsewhere = address(false, None);
    elsewhere.macs[0] = [2, 0, 0, 9, 9, 9];
    let far = guest.verbs.create_ah(&mut guest.nic, a.pd, elsewhere).unwrap();
    for (v6, tci) in [(false, None), (false, Some(0x6005)), (true, None), (true, Some(7))] {
        let av = address(v6, tci);
        let ah = guest.verbs.create_ah(&mut guest.nic, a.pd, av).unwrap();
        for (len, immediate) in [(0, false), (1, true), (1024, false), (256, true)] {
            a.mem.write(0, &pattern(2048, len));
            b.mem.write(0, &[0x55; 4096]);
            guest.post_buffer(&b, 7, vec![b.sge(10, 25), b.sge(100, 1039)]);
            let mut request = Request::Send(vec![a.sge(1, len / 2), a.sge(1000, len - len / 2)], None);
            if immediate {
                request = Request::Immediate(0xaabb_ccdd, Box::new(request));
            }
            guest.post(&a, 8, Request::To([ah, b.qpn, 0x1111_1111], Box::new(request)));
            let (sent, got) = (guest.sent(&a), guest.got(&b));
            assert_eq!((sent.status, got.status, got.id, got.length as usize), (OK, OK, 7, len + 40));
            let (op, word) = if immediate { (2, 0xaabb_ccdd) } else { (0, 0) };
            assert_eq!(got.received, Received { op, word, source: a.qpn, mac: MAC, tci, v4: !v6 });
            let area = [b.bytes(10, 25), b.bytes(100, 15 + len)].concat();
            let payload = [a.bytes(1, len / 2), a.bytes(1000, len - len / 2)].concat();
            assert!(area[40..] == payload && b.mem.intact());
            let behind = 8 + 12 + 8 + if immediate { 4 } else { 0 } + len.next_multiple_of(4) + 4;
            if v6 {
                assert_eq!((area[0] >> 4, area[6], area[7]), (6, 17, 64));
                assert_eq!(usize::from(u16::from_be_bytes([area[4], area[5]])), behind);
                assert_eq!((area[23], area[39]), (2, 1), "from, to");
            } else {
                assert_eq!(area[..20], [0; 20]);
                assert_eq!((area[20], area[28], area[29]), (0x45, 64, 17));
                assert_eq!(usize::from(u16::from_be_bytes([area[22], area[23]])), behind + 20);
                let sum: u32 = area[20..40].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
                assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "checksum");
                assert_eq!((&area[32..36], &area[36..40]), (&[192, 168, 200, 2][..], &[192, 168, 200, 1][..]));
            }
        }
        // A Q_Key with its highest bit stands for the sender's own, which is not the receiver's here.
        let to = |to: [u32; 3]| Request::To(to, Box::new(Request::Send(vec![a.sge(0, 10)], None)));
        let dropped = guest.traffic().dropped;
        guest.post_buffer(&b, 9, vec![b.sge(0, 1500)]);
        let lost =
            [[ah, b.qpn, 0x8000_0001], [ah, b.qpn, 0x1111_1112], [ah, 0xf0, 0x1111_1111], [far, b.qpn, 0x1111_1111]];
        for (id, lost) in lost.into_iter().enumerate() {
            guest.post(&a, id as u64, to(lost));
            assert_eq!(guest.sent(&a).status, OK);
        }
        assert_eq!((guest.verbs.poll_cq(b.receives).unwrap(), guest.traffic().dropped), (vec![], dropped + 4));
        guest.post(&a, 1, to([ah, b.qpn, 0x1111_1111]));
        assert_eq!((guest.sent(&a).status, guest.got(&b).id), (OK, 9));
        // No buffer, and one that is too small, which stays for the next.
        guest.post(&a, 2, to([ah, b.qpn, 0x1111_1111]));
        assert_eq!(guest.sent(&a).status, OK);
        guest.post_buffer(&b, 10, vec![b.sge(0, 49)]);
        guest.post(&a, 3, to([ah, b.qpn, 0x1111_1111]));
        assert_eq!((guest.sent(&a).status, guest.traffic().dropped), (OK, dropped + 6));
        let short = Request::To([ah, b.qpn, 0x1111_1111], Box::new(Request::SendInline(vec![5; 9])));
        guest.post(&a, 4, short);
        assert_eq!((guest.sent(&a).status, guest.got(&b).length), (OK, 49));
        // To itself.
        guest.post_buffer(&a, 11, vec![a.sge(4096, 100)]);
        guest.post(&a, 5, to([ah, a.qpn, 0xffff_ffff]));
        assert_eq!((guest.sent(&a).status, guest.got(&a).received.source), (OK, a.qpn));
        // Every one completes, signalled or not.
        let batch: Vec<_> = (0..40).map(|id| (id, to([ah, b.qpn, 1]), false)).collect();
        guest.verbs.post_sends(&mut guest.nic, a.qpn, &batch).unwrap();
        guest.post(&a, 99, to([ah, b.qpn, 1]));
        assert_eq!(guest.sent(&a).id, 99);
        guest.verbs.destroy_ah(&mut guest.nic, ah).unwrap();
    }
    // The sender's faults: more than a packet, no such handle, one of another domain, memory.
    let ah = guest.verbs.create_ah(&mut guest.nic, a.pd, address(false, None)).unwrap();
    let foreign = guest.verbs.create_ah(&mut guest.nic, b.pd, address(false, None)).unwrap();
    let to = |ah, sge| Request::To([ah, b.qpn, 0x1111_1111], Box::new(Request::Send(vec![sge], None)));
    let good = a.sge(0, 10);
    for (request, expected) in [
        (to(ah, a.sge(0, 1025)), WorkStatus::LOCAL_LEN),
        (to(0x1234, good), WorkStatus::LOCAL_QP_OPER),
        (to(foreign, good), WorkStatus::LOCAL_QP_OPER),
        (to(ah, Sge { lkey: b.mr.key, ..good }), WorkStatus::LOCAL_PROT),
        (Request::Write(vec![good], b.at(0), b.mr.key), WorkStatus::LOCAL_QP_OPER),
        (Request::LocalInvalidate(a.mr.key), WorkStatus::LOCAL_QP_OPER),
    ] {
        guest.post(&a, 1, request);
        assert_eq!(guest.sent(&a).status, status(expected));
        assert_eq!((guest.state(&a), guest.state(&b)), (QpState::ERR, QpState::RTS));
        guest.verbs.modify_qp(&mut guest.nic, a.qpn, &Change::to(QpState::RESET)).unwrap();
        guest.verbs.ready_qp(&mut guest.nic, a.qpn, 0x8001_0000).unwrap();
    }
    // With a larger MTU, larger packets.
    guest.nic.set_mtu(9000).unwrap();
    guest.post_buffer(&b, 1, vec![b.sge(0, 4136)]);
    guest.post(&a, 2, to(ah, a.sge(0, 4096)));
    assert_eq!((guest.sent(&a).status, guest.got(&b).length), (OK, 4136));
    assert!(b.bytes(40, 4096) == a.bytes(0, 4096) && guest.verbs.rings_intact());
}

/// Atomic operations on numbers in guest memory, and the numbers before.
pub fn atomics<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let (a, b) = connected(&mut guest, 8192);
    // The first aligned address.
    let at = 3;
    assert!(b.at(at).is_multiple_of(8));
    let number = |end: &End, at| u64::from_le_bytes(end.bytes(at, 8).try_into().unwrap());
    b.mem.write(at, &u64::MAX.to_le_bytes());
    let mut expected = u64::MAX;
    let mut dice = Dice(11);
    for round in 0..100 {
        let (operand, compare) = (dice.roll(), if round % 2 == 0 { expected } else { dice.roll() });
        let result = a.sge(round % 30 * 9, 8);
        let (request, after) = if round % 3 == 0 {
            (Request::FetchAdd(result, b.at(at), b.mr.key, operand), expected.wrapping_add(operand))
        } else {
            let after = if compare == expected { operand } else { expected };
            (Request::CompareSwap(result, b.at(at), b.mr.key, compare, operand), after)
        };
        guest.post(&a, 1, request);
        assert_eq!(guest.sent(&a).status, OK);
        assert_eq!((number(&a, round % 30 * 9), number(&b, at)), (expected, after), "{round}");
        expected = after;
    }
    assert_eq!((b.bytes(0, 3), b.bytes(11, 100)), (vec![0x77; 3], vec![0x77; 100]));
    assert!(a.mem.intact() && b.mem.intact());
}

/// Fast registration, windows of both types, and keys that are made invalid from either side.
pub fn keys_that_come_and_go<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let (a, b) = connected(&mut guest, 12_000);
    let write = |key: u32, at: u64| Request::WriteInline(vec![0xab; 16], at, key);
    let check = |guest: &mut Guest<T>, key: u32, at: u64, expected: WorkStatus| {
        guest.post(&a, 1, write(key, at));
        assert_eq!(guest.sent(&a).status, status(expected), "{key:#x}");
        if expected != WorkStatus::OK {
            guest.reconnect([&a, &b]);
        }
    };
    let (ok, access) = (WorkStatus::OK, WorkStatus::REMOTE_ACC);

    // A region is made without pages, and gets them by a request of its owner's, with a new key byte.
    let key = guest.verbs.alloc_mr(&mut guest.nic, b.pd).unwrap();
    let pages = b.mem.pages();
    let table = guest.nic.bus.ram().alloc(4096).unwrap();
    let fill = |pages: &[u64]| pages.iter().zip(0..).for_each(|(page, i)| table.store(8 * i, &page.to_le()));
    let register = |byte, key| Request::Register {
        byte,
        key,
        va: b.at(0),
        length: 9000,
        access: MrFlags::LOCAL_WRITE | MrFlags::REMOTE_WRITE,
        dma_addr: table.iova(),
        pages: 4,
    };
    for byte in [0x31, 0x32] {
        check(&mut guest, key, b.at(0), access);
        fill(&pages);
        let register = register(byte, key);
        let batch = [(1, register.clone(), false), (2, Request::SendInline(vec![1]), true)];
        guest.post_buffer(&a, 3, vec![a.sge(0, 8)]);
        guest.verbs.post_sends(&mut guest.nic, b.qpn, &batch).unwrap();
        let wc = guest.sent(&b);
        assert_eq!((wc.id, wc.status, guest.got(&a).status), (2, OK, OK));
        // The table is somebody else's again.
        fill(&[0x1000; 4]);
        let now = key & !0xff | u32::from(byte);
        b.mem.write(0, &[0; 12_000]);
        check(&mut guest, now, b.at(8984), ok);
        assert!(b.bytes(8984, 16) == [0xab; 16] && b.bytes(9000, 100) == [0; 100] && b.mem.intact());
        check(&mut guest, now, b.at(8985), access);
        check(&mut guest, key, b.at(0), access);
        // The kernel's tokens follow too.
        guest.put(now, b.at(100), b"token").unwrap();
        assert_eq!(b.bytes(100, 5), b"token");
        if byte == 0x31 {
            guest.post(&b, 4, Request::LocalInvalidate(now));
            assert_eq!(guest.sent(&b).status, OK);
        } else {
            // By the peer, with a message that says so.
            guest.post_buffer(&b, 5, vec![b.sge(0, 64)]);
            let send = Box::new(Request::SendInline(b"give it up".to_vec()));
            guest.post(&a, 6, Request::Invalidate(now, send));
            let got = guest.got(&b);
            assert_eq!((guest.sent(&a).status, got.status, got.received.op, got.received.word), (OK, OK, 1, now));
        }
        check(&mut guest, now, b.at(0), access);
        assert!(guest.put(now, b.at(100), b"token").is_err());
    }
    // Not by others' owners, not a region that is not made for it.
    for key in [key, b.mr.key] {
        let end = if key == b.mr.key { &b } else { &a };
        fill(&pages);
        guest.post(end, 1, register(1, key));
        assert_eq!(guest.sent(end).status, status(WorkStatus::MEM_MGMT_OPER));
        guest.reconnect([&a, &b]);
    }

    // Windows: to a part of a region, for any queue pair of the domain, or for one.
    let (c, d) = {
        let (mut c, d) = connected(&mut guest, 4096);
        // Another queue pair of b's domain, connected to d.
        let config = QpConfig { receive_cq: c.receives, ..QpConfig::new(QpType::RC, b.pd, c.sends) };
        c.qpn = guest.verbs.create_qp(&mut guest.nic, config).unwrap();
        (c, d)
    };
    guest.reconnect([&d, &c]);
    for second in [false, true] {
        let window = guest.verbs.alloc_mw(&mut guest.nic, b.pd, second).unwrap();
        let flags = if second { 0xc000 } else { 0x4000 };
        let bind = |byte, window, at, length, rights: u16| {
            Request::BindWindow(byte, window, b.mr.key, b.at(at), length, flags | rights)
        };
        check(&mut guest, window, b.at(0), access);
        guest.post(&b, 1, bind(0x51, window, 1000, 500, 2));
        assert_eq!(guest.sent(&b).status, OK);
        let now = window & !0xff | 0x51;
        b.mem.write(0, &[0; 12_000]);
        check(&mut guest, now, b.at(1484), ok);
        assert_eq!(b.bytes(1484, 16), [0xab; 16]);
        check(&mut guest, now, b.at(1485), access);
        check(&mut guest, now, b.at(999), access);
        check(&mut guest, window, b.at(1000), access);
        // It gives no right to read.
        guest.post(&a, 1, Request::Read(vec![a.sge(0, 16)], b.at(1000), now));
        assert_eq!(guest.sent(&a).status, status(access));
        guest.reconnect([&a, &b]);
        guest.post(&d, 1, write(now, b.at(1000)));
        assert_eq!(guest.sent(&d).status, status(if second { access } else { ok }), "{second}");
        guest.reconnect([&d, &c]);
        // Closed again; it cannot be used then.
        if second {
            guest.post(&b, 1, bind(0x52, now, 0, 100, 2));
            assert_eq!(guest.sent(&b).status, status(WorkStatus::MEM_MGMT_OPER), "bound already");
            guest.reconnect([&a, &b]);
            guest.post(&b, 1, Request::LocalInvalidate(now));
        } else {
            guest.post(&b, 1, bind(0x52, now, 0, 0, 2));
        }
        assert_eq!(guest.sent(&b).status, OK);
        check(&mut guest, now, b.at(1000), access);
        // Beyond the region, and to a region that does not allow it.
        let closed = guest.verbs.reg_mr(&mut guest.nic, b.pd, &RegMr::all(&b.mem, ALL)).unwrap();
        for request in [
            bind(0x53, now, 11_900, 101, 2),
            Request::BindWindow(0x53, now, closed.key, b.at(0), 100, flags | 2),
            Request::BindWindow(0x53, b.mr.key, b.mr.key, b.at(0), 100, flags | 2),
            Request::BindWindow(0x53, now, a.mr.key, a.at(0), 100, flags | 2),
        ] {
            guest.post(&b, 1, request);
            assert_eq!(guest.sent(&b).status, status(WorkStatus::MEM_MGMT_OPER));
            guest.reconnect([&a, &b]);
        }
        guest.verbs.dereg_mr(&mut guest.nic, window).unwrap();
    }
    assert!(guest.verbs.rings_intact());
}

/// Who is told of solicited ones alone is told of those.
pub fn solicited_events<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    guest.verbs.page = 0;
    let (a, b) = connected(&mut guest, 4096);
    let mover = guest.verbs.mover(b.qpn).unwrap() as usize;
    let number = guest.verbs.cq_numbers(b.receives)[mover];
    let told = |guest: &mut Guest<T>| guest.events().contains(&Event::Completion(number));
    for (flags, expected) in [(WorkFlags::empty(), false), (WorkFlags::SOL, true)] {
        guest.verbs.arm_cq(&mut guest.nic, b.receives, true).unwrap();
        for request in [
            Request::SendInline(vec![1]),
            Request::Immediate(7, Box::new(Request::SendInline(vec![1]))),
            Request::Immediate(7, Box::new(Request::WriteInline(vec![1], b.at(0), b.mr.key))),
        ] {
            guest.post_buffer(&b, 1, vec![b.sge(0, 8)]);
            guest.post(&a, 2, Request::Flagged(flags, Box::new(request)));
            assert_eq!((guest.sent(&a).status, guest.got(&b).status), (OK, OK));
            assert_eq!(told(&mut guest), expected, "{flags:?}");
            if expected {
                guest.verbs.arm_cq(&mut guest.nic, b.receives, true).unwrap();
            }
        }
    }
    // An error counts as one.
    guest.post_buffer(&b, 1, Vec::new());
    guest.post(&a, 2, Request::SendInline(vec![1]));
    assert_eq!(guest.sent(&a).status, status(WorkStatus::REMOTE_INV_REQ));
    assert!(told(&mut guest));
}

/// A queue pair that moves much does not keep one that moves little waiting, and what it is at is finished before it is drained.
pub fn turns_are_shared<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let (a, b) = connected(&mut guest, 8 << 20);
    let (c, d) = connected(&mut guest, 4096);
    let large = || Request::Write(vec![a.sge(0, 8 << 20)], b.at(0), b.mr.key);
    let batch: Vec<_> = (0..8).map(|id| (id, large(), true)).collect();
    guest.verbs.post_sends(&mut guest.nic, a.qpn, &batch).unwrap();
    guest.post(&c, 1, Request::WriteInline(vec![1; 8], d.at(0), d.mr.key));
    let wcs = guest.verbs.wait_cq(&mut guest.nic, c.sends, LONG).unwrap();
    assert_eq!(wcs.iter().map(|wc| wc.status).collect::<Vec<_>>(), [OK]);
    if T::EXACT {
        assert_eq!(guest.verbs.poll_cq(a.sends).unwrap(), [], "8 MiB take many turns, and 8 bytes one");
    }
    let done = guest.completions(a.sends, 8);
    assert!(done.iter().zip(0..).all(|(wc, id)| (wc.id, wc.status) == (id, OK)));
    assert_eq!(guest.traffic().bytes, (64 << 20) + 8);

    // Drained: the one under way is finished, those behind it wait.
    guest.verbs.post_sends(&mut guest.nic, a.qpn, &batch[..3]).unwrap();
    guest.turn();
    let drain = ModifyQp {
        attr_mask: (QpAttr::STATE | QpAttr::EN_SQD_ASYNC_NOTIFY).bits().into(),
        access_flags: (QpFlags::SQD_NOTIFY.bits() as u16).into(),
        type_state: QpState::SQD.0,
        id_ver: a.qpn.into(),
        ..ModifyQp::default()
    };
    let drain = Command::new(AdminOp::MODIFY_QP, &drain);
    assert_eq!(guest.verbs.run_one(&mut guest.nic, drain).unwrap(), AdminStatus::OK);
    let drained = Event::QueuePair { qpn: a.qpn, code: EQE_QP_SQ_DRAIN };
    assert_eq!(guest.events().into_iter().filter(|event| *event == drained).count(), 1);
    let before = guest.verbs.poll_cq(a.sends).unwrap().len();
    assert!(before <= 3);
    if T::EXACT {
        assert_eq!(before, 1);
    }
    guest.verbs.modify_qp(&mut guest.nic, a.qpn, &Change::to(QpState::RTS)).unwrap();
    if before < 3 {
        guest.completions(a.sends, 3 - before);
    }
    assert!(!guest.events().contains(&drained), "once");

    // The peer, its memory, or the whole queue pair goes in the middle of it: no harm, and no silence.
    for round in 0..3 {
        guest.verbs.post_sends(&mut guest.nic, a.qpn, &batch[..2]).unwrap();
        guest.turn();
        match round {
            0 => guest.verbs.dereg_mr(&mut guest.nic, b.mr.key).unwrap(),
            1 => guest.verbs.modify_qp(&mut guest.nic, a.qpn, &Change::to(QpState::ERR)).unwrap(),
            _ => guest.verbs.destroy_qp(&mut guest.nic, a.qpn).unwrap(),
        }
        guest.nic.bus.settle();
        let wcs = guest.verbs.poll_cq(a.sends).unwrap();
        let failed = wcs.iter().filter(|wc| wc.status != OK).count();
        match round {
            0 if T::EXACT => assert_eq!((wcs[0].status, failed), (status(WorkStatus::REMOTE_ACC), 2)),
            1 if T::EXACT => assert_eq!(failed, 2),
            2 => assert_eq!(wcs, []),
            _ => {}
        }
        if round == 0 {
            guest.reconnect([&a, &b]);
        } else if round == 1 {
            guest.verbs.modify_qp(&mut guest.nic, a.qpn, &Change::to(QpState::RESET)).unwrap();
            guest.verbs.connect_qp(&mut guest.nic, a.qpn, b.qpn, ACCESS, address(false, None)).unwrap();
        }
    }
    assert!(a.mem.intact() && b.mem.intact() && guest.verbs.rings_intact());
}

/// Requests with random fields, thousands of them: nothing outside of what is registered is ever written, and nothing that was
/// registered without the right to write.
pub fn random_requests<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let (a, b) = connected(&mut guest, 20_000);
    let locked = UserMem::new(guest.nic.bus.ram(), 0x5000_0000, 20_000, Placement::Scattered).unwrap();
    locked.write(0, &[0x42; 20_000]);
    let read = guest.verbs.reg_mr(&mut guest.nic, a.pd, &RegMr::all(&locked, MrFlags::REMOTE_READ)).unwrap();
    let peers = guest.verbs.reg_mr(&mut guest.nic, b.pd, &RegMr::all(&locked, MrFlags::REMOTE_READ)).unwrap();
    let fast = guest.verbs.alloc_mr(&mut guest.nic, b.pd).unwrap();
    let window = guest.verbs.alloc_mw(&mut guest.nic, a.pd, true).unwrap();
    let bystander = UserMem::new(guest.nic.bus.ram(), 0, 1 << 20, Placement::Scattered).unwrap();
    bystander.write(0, &vec![0x43; 1 << 20]);
    let mut dice = Dice(0x5eed);
    let keys = [a.mr.key, b.mr.key, read.key, peers.key, fast, window, 0, 1, u32::MAX, a.mr.key ^ 1];
    let rounds = if T::EXACT { 20_000 } else { 1_500 };
    let (mut succeeded, mut failed) = (0, 0);
    for round in 0..rounds {
        let place = |dice: &mut Dice| {
            let base = dice.pick(&[a.at(0), b.at(0), 0x5000_0000, 0, u64::MAX - 100, 0x12_3400_0000]);
            base.wrapping_add(dice.below(20_100) as u64)
        };
        let length = |dice: &mut Dice| dice.pick(&[0, 1, 8, 64, 3000, 20_000, 0x8000_0000, u32::MAX]);
        let sge = |dice: &mut Dice| {
            // Mostly what works, or nothing ever happens.
            if dice.below(3) > 0 {
                let from = dice.below(10_000);
                let len = dice.below(5000);
                if dice.below(2) == 0 { a.sge(from, len) } else { a.sge(from & !7, 8) }
            } else {
                Sge { va: place(dice), length: length(dice), lkey: dice.pick(&keys) }
            }
        };
        let sges: Vec<_> = (0..dice.below(5)).map(|_| sge(&mut dice)).collect();
        let (va, rkey) = if dice.below(2) == 0 {
            (b.at(dice.below(1000) & !7 | 3), b.mr.key)
        } else {
            (place(&mut dice), dice.pick(&keys))
        };
        let mut request = match dice.below(10) {
            0 | 1 => Request::Send(sges, None),
            2 | 3 => Request::Write(sges, va, rkey),
            4 | 5 => Request::Read(sges, va, rkey),
            6 => Request::FetchAdd(sge(&mut dice), va, rkey, dice.roll()),
            7 => Request::CompareSwap(sge(&mut dice), va, rkey, dice.roll(), dice.roll()),
            8 => Request::WriteInline(vec![1; dice.below(96)], va, rkey),
            _ => Request::Raw(dice.below(12) as u8, (0..112).map(|_| dice.roll() as u8).collect()),
        };
        if dice.below(4) == 0 {
            // Any field of it, changed; the memory of a bind or registration may only be what is registered already.
            request = match dice.below(3) {
                0 => Request::Flagged(WorkFlags::from_bits_retain(dice.roll() as u16), Box::new(request)),
                1 => Request::Immediate(dice.roll() as u32, Box::new(request)),
                _ => Request::Invalidate(dice.pick(&keys), Box::new(request)),
            };
        }
        if dice.below(2) == 0 {
            let len = dice.below(3000);
            let buffer = if dice.below(5) == 0 {
                Sge { va: place(&mut dice), length: length(&mut dice), lkey: dice.pick(&keys) }
            } else {
                b.sge(10_000, len)
            };
            guest.post_buffer(&b, 1, vec![buffer, b.sge(15_000, 5000)]);
        }
        let _ = guest.verbs.post_sends(&mut guest.nic, a.qpn, &[(round, request.clone(), true)]);
        guest.nic.bus.settle();
        let wcs = guest.verbs.poll_cq(a.sends).unwrap();
        guest.verbs.poll_cq(b.receives).unwrap();
        match wcs.as_slice() {
            // It waits for a buffer.
            [] => {}
            [wc, ..] if wc.status == OK => succeeded += 1,
            _ => failed += 1,
        }
        if wcs.is_empty() || wcs.iter().any(|wc| wc.status != OK) || round % 40 == 0 {
            guest.reconnect([&a, &b]);
            guest.verbs.poll_cq(b.receives).unwrap();
            guest.verbs.poll_cq(a.receives).unwrap();
            guest.verbs.poll_cq(b.sends).unwrap();
        }
        guest.verbs.events.clear();
        if round % 50 == 0 {
            // Says how far it has read.
            for cq in [a.sends, a.receives, b.sends, b.receives] {
                guest.verbs.arm_cq(&mut guest.nic, cq, true).unwrap();
            }
        }
        if round % 100 == 0 {
            let same = |mem: &UserMem, byte| mem.content().iter().all(|at| *at == byte);
            assert!(same(&locked, 0x42) && same(&bystander, 0x43), "{round}: {request:x?}");
            assert!(a.mem.intact() && b.mem.intact() && locked.intact() && bystander.intact(), "{round}: {request:x?}");
            assert!(guest.verbs.rings_intact(), "{round}");
        }
    }
    assert!(succeeded > rounds / 10 && failed > rounds / 10, "{succeeded} of {rounds}, {failed} failed");
    // After all of that.
    guest.reconnect([&a, &b]);
    guest.post_buffer(&b, 1, vec![b.sge(0, 10)]);
    guest.post(&a, 2, Request::SendInline(b"alive".to_vec()));
    assert_eq!((guest.sent(&a).status, guest.got(&b).length, b.bytes(0, 5)), (OK, 5, b"alive".to_vec()));
}

/// What the device alone takes, in this thread: run with `--release`-like settings and `--nocapture`.
#[test]
#[ignore = "prints figures"]
fn figures_of_work_requests() {
    use super::common::Direct;
    let mut guest = Guest::<Direct>::new();
    let size = 1 << 20;
    let (a, b) = connected(&mut guest, size + 4096);
    let whole = |request: fn(Vec<Sge>, u64, u32) -> Request| request(vec![a.sge(0, size)], b.at(0), b.mr.key);
    for (what, request, bytes) in [
        ("WRITE of 8 bytes", Request::Write(vec![a.sge(3, 8)], b.at(3), b.mr.key), 8_usize),
        ("WRITE of 8 bytes, inline", Request::WriteInline(vec![1; 8], b.at(3), b.mr.key), 8),
        ("WRITE of 1 MiB", whole(Request::Write), size),
        ("READ of 1 MiB", whole(Request::Read), size),
    ] {
        let (rounds, mut spent) = (if bytes > 8 { 20 } else { 2000 }, Duration::ZERO);
        let batch: Vec<_> = (0..60).map(|id| (id, request.clone(), id == 59)).collect();
        for _ in 0..rounds {
            guest.verbs.post_sends(&mut guest.nic, a.qpn, &batch).unwrap();
            let start = std::time::Instant::now();
            guest.nic.bus.settle();
            spent += start.elapsed();
            assert_eq!(guest.verbs.poll_cq(a.sends).unwrap()[0].status, OK);
            guest.verbs.arm_cq(&mut guest.nic, a.sends, false).unwrap();
        }
        let each = spent.as_secs_f64() / f64::from(rounds * 60);
        println!("{what}: {:.0} ns, {:.2} M/s, {:.2} GB/s", each * 1e9, 1e-6 / each, bytes as f64 / each * 1e-9);
    }
}
