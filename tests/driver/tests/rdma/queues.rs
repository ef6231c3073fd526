//! Completion queues, queue pairs and address handles; work requests that are none, and events.

use std::time::Duration;

use ernic_emu::{device::GuestErrors, rdma::Objects};
use ionic_abi::{
    AdminOp, AdminStatus, CQ_RING_ARM, CreateAh, CreateCq, CreateQp, DestroyById, Doorbell, EQE_CQ_ERR, EQE_QP_ERR,
    EQE_QP_SQ_DRAIN, ModifyQp, QpAttr, QpFlags, QpState, QpType, QueryQp,
};
use ionic_driver::{
    DriverError, UserMem,
    user::Placement,
    verbs::{Change, Command, Event, QpConfig, Receive, RegMr, Request, Sge, Wc},
};
use zerocopy::FromZeros;

use super::{
    common::{LONG, TestBus},
    kit::{ALL, Guest, address},
};

/// Completion statuses (05 §4).
const QP_OPERATION: u32 = 2;
const FLUSHED: u32 = 4;
const NOT_READY: u32 = 12;

fn refused(result: Result<impl std::fmt::Debug, DriverError>, expected: AdminStatus) {
    match result {
        Err(DriverError::Verb { status, .. }) => assert_eq!(status, expected),
        other => panic!("{other:?}"),
    }
}

impl<T: TestBus> Guest<T> {
    fn objects(&mut self) -> Objects {
        self.nic.bus.with_device(|device| device.rdma_objects())
    }

    /// A completion queue, and a queue pair on it.
    fn pair(&mut self, kind: QpType) -> (u32, u32) {
        let pd = self.verbs.create_pd();
        let cq = self.verbs.create_cq(&mut self.nic, 100).unwrap();
        (cq, self.verbs.create_qp(&mut self.nic, QpConfig::new(kind, pd, cq)).unwrap())
    }

    /// One in RTS.
    fn ready(&mut self, kind: QpType) -> (u32, u32) {
        let (cq, qpn) = self.pair(kind);
        self.connect(kind, qpn);
        (cq, qpn)
    }

    fn connect(&mut self, kind: QpType, qpn: u32) {
        if kind == QpType::RC {
            self.verbs.connect_qp(&mut self.nic, qpn, qpn, QpFlags::REMOTE_WRITE, address(false, None)).unwrap();
        } else {
            self.verbs.ready_qp(&mut self.nic, qpn, 0x1111_1111).unwrap();
        }
    }

    /// A datagram to nobody, which is sent all the same.
    fn lost(&mut self, pd: u32, bytes: usize) -> Request {
        let ah = self.verbs.create_ah(&mut self.nic, pd, address(false, None)).unwrap();
        Request::To([ah, 0xf00, 0], Box::new(Request::SendInline(vec![1; bytes])))
    }

    /// One in RTS for datagrams, and one of those.
    fn loser(&mut self) -> (u32, u32, Request) {
        let pd = self.verbs.create_pd();
        let cq = self.verbs.create_cq(&mut self.nic, 100).unwrap();
        let qpn = self.verbs.create_qp(&mut self.nic, QpConfig::new(QpType::UD, pd, cq)).unwrap();
        self.connect(QpType::UD, qpn);
        (cq, qpn, self.lost(pd, 1))
    }

    /// Waits for `count` completions, and that no more come.
    pub fn completions(&mut self, cq: u32, count: usize) -> Vec<Wc> {
        let mut wcs = Vec::new();
        while wcs.len() < count {
            let more = self.verbs.wait_cq(&mut self.nic, cq, LONG).unwrap();
            assert!(!more.is_empty(), "{wcs:?} of {count}");
            wcs.extend(more);
        }
        self.nic.bus.settle();
        wcs.extend(self.verbs.poll_cq(cq).unwrap());
        assert_eq!(wcs.len(), count, "{wcs:?}");
        wcs
    }

    /// Events that came, but for those that a process's queue starts with.
    pub fn events(&mut self) -> Vec<Event> {
        self.nic.bus.settle();
        self.verbs.serve_events(&mut self.nic).unwrap();
        self.verbs.events.drain(..).collect()
    }
}

pub fn queue_pairs_live_through_their_states<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let base = guest.objects();
    for (round, (v6, tci)) in
        [(false, None), (false, Some(0x2005)), (true, None), (true, Some(7))].into_iter().enumerate()
    {
        let (cq, qpn) = guest.pair(QpType::RC);
        let nic = &mut guest.nic;
        let verbs = &mut guest.verbs;
        assert_eq!(verbs.mover(qpn).unwrap() as usize, round % 2, "they alternate");
        assert_eq!(verbs.query_qp(nic, qpn).unwrap().state, QpState::RESET);
        let access = QpFlags::REMOTE_READ | QpFlags::REMOTE_WRITE;
        verbs.modify_qp(nic, qpn, &Change { access: Some(access), ..Change::to(QpState::INIT) }).unwrap();
        let init = verbs.query_qp(nic, qpn).unwrap();
        assert_eq!((init.state, init.flags), (QpState::INIT, access));
        let rtr = Change {
            dest_qpn: Some(0x12_3456),
            rq_psn: Some(0x00ab_cdef),
            pmtu: Some(12),
            min_rnr_timer: Some(13),
            max_dest_rd_atomic: Some(4),
            av: Some(address(v6, tci)),
            ..Change::to(QpState::RTR)
        };
        verbs.modify_qp(nic, qpn, &rtr).unwrap();
        let rts = Change {
            sq_psn: Some(0x0012_3abc),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(3),
            max_rd_atomic: Some(4),
            ..Change::to(QpState::RTS)
        };
        verbs.modify_qp(nic, qpn, &rts).unwrap();
        let full = verbs.query_qp(nic, qpn).unwrap();
        // What the driver makes of 4 and 4 is 3 and 7.
        let expected = ionic_driver::verbs::QpInfo {
            state: QpState::RTS,
            mtu: 4096,
            flags: access,
            qkey_dest_qpn: 0x12_3456,
            rq_psn: 0x00ab_cdef,
            sq_psn: 0x0012_3abc,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 3,
            min_rnr_timer: 13,
            max_rd_atomic: 3,
            max_dest_rd_atomic: 7,
        };
        assert_eq!(full, expected);
        // A change of one thing leaves the others, whose fields in the command mean nothing.
        for (change, after) in [
            (Change { timeout: Some(20), ..Change::default() }, ionic_driver::verbs::QpInfo { timeout: 20, ..full }),
            (
                Change { access: Some(QpFlags::REMOTE_ATOMIC), ..Change::default() },
                ionic_driver::verbs::QpInfo { timeout: 20, flags: QpFlags::REMOTE_ATOMIC, ..full },
            ),
            (Change::default(), ionic_driver::verbs::QpInfo { timeout: 20, flags: QpFlags::REMOTE_ATOMIC, ..full }),
        ] {
            verbs.modify_qp(nic, qpn, &change).unwrap();
            assert_eq!(verbs.query_qp(nic, qpn).unwrap(), after);
        }
        for state in [QpState::SQD, QpState::RTS, QpState::ERR, QpState::RESET, QpState::INIT, QpState::RESET] {
            verbs.modify_qp(nic, qpn, &Change::to(state)).unwrap();
            assert_eq!(verbs.query_qp(nic, qpn).unwrap().state, state);
            // What does not follow is refused, and changes nothing.
            let others = match state {
                QpState::RESET => &[QpState::RTR, QpState::RTS, QpState::SQD, QpState::SQE][..],
                QpState::INIT => &[QpState::RTS, QpState::SQD],
                QpState::ERR => &[QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD],
                _ => &[QpState::INIT, QpState::RTR, QpState::SQE],
            };
            for other in others {
                let change = Change { timeout: Some(3), ..Change::to(*other) };
                refused(verbs.modify_qp(nic, qpn, &change), AdminStatus::BAD_STATE);
            }
            let info = verbs.query_qp(nic, qpn).unwrap();
            assert_eq!((info.state, info.timeout), (state, 20));
        }
        verbs.destroy_qp(nic, qpn).unwrap();
        refused(verbs.query_qp(nic, qpn), AdminStatus::BAD_INDEX);
        refused(verbs.destroy_qp(nic, qpn), AdminStatus::BAD_INDEX);
        verbs.destroy_cq(nic, cq).unwrap();
    }
    // Datagrams: a Q_Key in place of the peer.
    let (cq, qpn) = guest.ready(QpType::UD);
    let info = guest.verbs.query_qp(&mut guest.nic, qpn).unwrap();
    assert_eq!((info.state, info.qkey_dest_qpn), (QpState::RTS, 0x1111_1111));
    // Whoever asks for its address must be refused: the kernel would follow a null pointer.
    let page = guest.nic.bus.ram().alloc(4096).unwrap();
    let query = |qpn: u32| QueryQp {
        hdr_dma_addr: (page.iova() + 2048).into(),
        sq_dma_addr: page.iova().into(),
        rq_dma_addr: (page.iova() + 1024).into(),
        id_ver: qpn.into(),
        ..QueryQp::default()
    };
    let status = guest.verbs.run_one(&mut guest.nic, Command::new(AdminOp::QUERY_QP, &query(qpn))).unwrap();
    assert_eq!(status, AdminStatus::BAD_TYPE);
    let (rc_cq, rc) = guest.ready(QpType::RC);
    let status = guest.verbs.run_one(&mut guest.nic, Command::new(AdminOp::QUERY_QP, &query(rc))).unwrap();
    assert_eq!(status, AdminStatus::OK);
    for (qpn, cq) in [(qpn, cq), (rc, rc_cq)] {
        guest.verbs.destroy_qp(&mut guest.nic, qpn).unwrap();
        guest.verbs.destroy_cq(&mut guest.nic, cq).unwrap();
    }
    assert_eq!(guest.objects(), base);
}

/// Who asks to be told when the send queue is drained is told, once, and nobody else.
pub fn a_drained_send_queue_is_told<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    for _ in 0..2 {
        // One on each data mover.
        let (_, qpn) = guest.ready(QpType::RC);
        guest.events();
        let modify = |state: QpState, asked: bool, flags: QpFlags| ModifyQp {
            attr_mask: (QpAttr::STATE | if asked { QpAttr::EN_SQD_ASYNC_NOTIFY } else { QpAttr::empty() })
                .bits()
                .into(),
            access_flags: (flags.bits() as u16).into(),
            type_state: state.0,
            id_ver: qpn.into(),
            ..ModifyQp::default()
        };
        let notify = QpFlags::SQD_NOTIFY;
        let drained = vec![Event::QueuePair { qpn, code: EQE_QP_SQ_DRAIN }];
        for (state, asked, flags, events) in [
            (QpState::SQD, false, notify, vec![]),
            (QpState::RTS, true, notify, vec![]),
            (QpState::SQD, true, QpFlags::empty(), vec![]),
            (QpState::RTS, false, notify, vec![]),
            (QpState::SQD, true, notify, drained.clone()),
            (QpState::RTS, true, notify, vec![]),
            (QpState::SQD, true, notify, drained),
        ] {
            let command = Command::new(AdminOp::MODIFY_QP, &modify(state, asked, flags));
            assert_eq!(guest.verbs.run_one(&mut guest.nic, command).unwrap(), AdminStatus::OK);
            assert_eq!(guest.events(), events, "{state:?} {asked} {flags:?}");
        }
    }
}

pub fn address_handles<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let pd = guest.verbs.create_pd();
    let mut ids = Vec::new();
    for i in 0..200_u16 {
        let av = address(i % 2 == 0, (i % 3 == 0).then_some(i));
        ids.push(guest.verbs.create_ah(&mut guest.nic, pd, av).unwrap());
    }
    assert_eq!(guest.objects().ahs, 200);
    for id in ids {
        guest.verbs.destroy_ah(&mut guest.nic, id).unwrap();
    }
    assert_eq!(guest.objects().ahs, 0);
    refused(guest.verbs.destroy_ah(&mut guest.nic, 3), AdminStatus::BAD_INDEX);
}

/// Far more than there can be at once, over time: everything is given back.
pub fn many_come_and_go<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let base = guest.objects();
    let pd = guest.verbs.create_pd();
    let rounds = if T::EXACT { 40 } else { 8 };
    for _ in 0..rounds {
        let cqs: Vec<u32> = (0..20).map(|_| guest.verbs.create_cq(&mut guest.nic, 1000).unwrap()).collect();
        let qps: Vec<u32> = (0..100)
            .map(|i| {
                let kind = if i % 3 == 0 { QpType::UD } else { QpType::RC };
                guest.verbs.create_qp(&mut guest.nic, QpConfig::new(kind, pd, cqs[i % 20])).unwrap()
            })
            .collect();
        assert_eq!(guest.objects(), Objects { cqs: base.cqs + 40, qps: 100, ..base });
        for qpn in qps {
            guest.verbs.destroy_qp(&mut guest.nic, qpn).unwrap();
        }
        for cq in cqs {
            guest.verbs.destroy_cq(&mut guest.nic, cq).unwrap();
        }
        assert_eq!(guest.objects(), base);
    }
    assert_eq!(guest.nic.bus.errors(), GuestErrors::default());
}

pub fn numbers_beyond_the_tables<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let page = guest.nic.bus.ram().alloc(16 * 4096).unwrap();
    let id = guest.verbs.identity;
    let cq = |number: u32| CreateCq {
        eq_id: 2.into(),
        depth_log2: 7,
        stride_log2: 5,
        id_ver: number.into(),
        map_count: 1.into(),
        dma_addr: page.iova().into(),
        ..CreateCq::default()
    };
    let qp = |number: u32| CreateQp {
        sq_cq_id: 0.into(),
        sq_depth_log2: 4,
        sq_stride_log2: 6,
        sq_map_count: 1.into(),
        sq_dma_addr: page.iova().into(),
        rq_cq_id: 0.into(),
        rq_depth_log2: 4,
        rq_stride_log2: 6,
        rq_map_count: 1.into(),
        rq_dma_addr: (page.iova() + 8192).into(),
        id_ver: number.into(),
        ..CreateQp::new_zeroed()
    };
    let ah = |number: u32| CreateAh {
        dma_addr: page.iova().into(),
        length: 42.into(),
        id_ver: number.into(),
        ..CreateAh::default()
    };
    let mut run = |command: Command| guest.verbs.run_one(&mut guest.nic, command).unwrap();
    let (cqs, qps, ahs) = (id.cq_qtype.qid_count.get(), id.sq_qtype.qid_count.get(), id.nahs_per_lif.get());
    for (last, status) in [(1, AdminStatus::OK), (0, AdminStatus::BAD_INDEX)] {
        assert_eq!(run(Command::new(AdminOp::CREATE_CQ, &cq(cqs - last))), status);
        assert_eq!(run(Command::new(AdminOp::CREATE_QP, &qp(qps - last))), status);
        assert_eq!(run(Command::new(AdminOp::CREATE_AH, &ah(ahs - last))), status);
    }
    for number in [u32::MAX, 1 << 24, 1 << 16] {
        let gone = DestroyById { id_ver: number.into() };
        for command in [
            Command::new(AdminOp::CREATE_CQ, &cq(number)),
            Command::new(AdminOp::CREATE_QP, &qp(number)),
            Command::new(AdminOp::CREATE_AH, &ah(number)),
            Command::new(AdminOp::DESTROY_CQ, &gone),
            Command::new(AdminOp::DESTROY_QP, &gone),
            Command::new(AdminOp::DESTROY_AH, &gone),
            Command::new(AdminOp::QUERY_QP, &QueryQp { id_ver: number.into(), ..QueryQp::default() }),
            Command::new(AdminOp::MODIFY_QP, &ModifyQp { id_ver: number.into(), ..ModifyQp::default() }),
        ] {
            let op = command.op;
            assert_eq!(run(command), AdminStatus::BAD_INDEX, "{op} {number:#x}");
        }
    }
    // A number that is taken.
    assert_eq!(run(Command::new(AdminOp::CREATE_CQ, &cq(cqs - 1))), AdminStatus::BAD_INDEX);
    assert_eq!(run(Command::new(AdminOp::CREATE_QP, &qp(qps - 1))), AdminStatus::BAD_INDEX);
}

/// Requests that a queue pair does not do: an error, the flushes, the state, an event, and memory that stays.
pub fn requests_that_are_none_fail_aloud<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let pd = guest.verbs.create_pd();
    let mem = UserMem::new(guest.nic.bus.ram(), 0x7000_0005, 8192, Placement::Scattered).unwrap();
    mem.write(0, &[0x77; 8192]);
    let mr = guest.verbs.reg_mr(&mut guest.nic, pd, &RegMr::all(&mem, ALL)).unwrap();
    let window = guest.verbs.alloc_mw(&mut guest.nic, pd, true).unwrap();
    let sge = |from: u64| Sge { va: mr.va + from, length: 512, lkey: mr.key };
    let none: Vec<_> = [11, 0x20, 0x7f, 0xff].map(|op| Request::Raw(op, vec![0xff; 48])).to_vec();
    let mut connected = vec![
        Request::Read(vec![sge(0)], mr.va + 4096, mr.key),
        Request::Write(vec![sge(0)], mr.va + 4096, mr.key),
        Request::LocalInvalidate(mr.key),
        Request::BindWindow(7, window, mr.key, mr.va, 4096, 0xc003),
    ];
    connected.extend([1, 5, 6, 7, 8].map(|op| Request::Raw(op, vec![0xff; 48])));
    for (kind, requests) in [(QpType::RC, none.clone()), (QpType::UD, [none, connected].concat())] {
        for request in &requests {
            let (cq, qpn) = guest.ready(kind);
            for id in 0..3 {
                guest.verbs.post_receive(&mut guest.nic, qpn, 100 + id, &Receive(vec![sge(2048)])).unwrap();
            }
            guest.verbs.arm_cq(&mut guest.nic, cq, true).unwrap();
            // None of them wants a completion: an error is told anyhow.
            let batch: Vec<_> = (0..3).map(|id| (id, request.clone(), false)).collect();
            guest.verbs.post_sends(&mut guest.nic, qpn, &batch).unwrap();
            let wcs = guest.completions(cq, 6);
            let (sent, received): (Vec<Wc>, Vec<Wc>) = wcs.into_iter().partition(|wc| !wc.receive);
            let statuses: Vec<_> = sent.iter().map(|wc| (wc.id, wc.status)).collect();
            assert_eq!(statuses, [(0, QP_OPERATION), (1, FLUSHED), (2, FLUSHED)], "{kind} {request:?}");
            assert!(received.iter().all(|wc| wc.status == FLUSHED && wc.id >= 100));
            let numbers = guest.verbs.cq_numbers(cq);
            let events = guest.events();
            assert!(events.iter().any(|e| matches!(e, Event::Completion(n) if numbers.contains(n))), "{events:?}");
            assert_eq!(guest.verbs.query_qp(&mut guest.nic, qpn).unwrap().state, QpState::ERR);
            assert!(guest.verbs.rings_intact());
            // From RESET on it counts from the beginning.
            guest.verbs.modify_qp(&mut guest.nic, qpn, &Change::to(QpState::RESET)).unwrap();
            guest.connect(kind, qpn);
            guest.verbs.post_send(&mut guest.nic, qpn, 9, request).unwrap();
            let wcs = guest.completions(cq, 1);
            assert_eq!((wcs[0].id, wcs[0].status), (9, QP_OPERATION));
            guest.verbs.destroy_qp(&mut guest.nic, qpn).unwrap();
            guest.verbs.destroy_cq(&mut guest.nic, cq).unwrap();
        }
    }
    // Nothing of it was done: the memory is as it was, and the region is there.
    assert!(mem.content().iter().all(|byte| *byte == 0x77) && mem.intact());
    assert_eq!(guest.get(mr.key, mr.va, 10).unwrap(), [0x77; 10]);
    assert_eq!(guest.nic.bus.errors(), GuestErrors::default());
}

/// A full ring of requests, and the ring's end in the middle of a batch.
pub fn rings_wrap<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let pd = guest.verbs.create_pd();
    let cq = guest.verbs.create_cq(&mut guest.nic, 40).unwrap();
    let config = QpConfig { sq_log2: 5, rq_log2: 3, stride_log2: 9, ..QpConfig::new(QpType::UD, pd, cq) };
    let qpn = guest.verbs.create_qp(&mut guest.nic, config).unwrap();
    guest.connect(QpType::UD, qpn);
    let lost = guest.lost(pd, 480);
    let mut id = 0;
    for batch in [31, 1, 30, 31, 17, 31, 31, 9] {
        let requests: Vec<_> = (0..batch).map(|i| (id + i, lost.clone(), true)).collect();
        guest.verbs.post_sends(&mut guest.nic, qpn, &requests).unwrap();
        let wcs = guest.completions(cq, batch as usize);
        assert!(wcs.iter().zip(id..).all(|(wc, id)| (wc.id, wc.status, wc.qpn) == (id, 0, qpn)));
        id += batch;
        // Says how far it has read.
        guest.verbs.arm_cq(&mut guest.nic, cq, false).unwrap();
    }
    let over: Vec<_> = (0..32).map(|i| (i, lost.clone(), true)).collect();
    let full = guest.verbs.post_sends(&mut guest.nic, qpn, &over).unwrap_err();
    assert!(matches!(full, DriverError::Full(31)), "{full}");
    assert!(guest.verbs.rings_intact());
}

/// Events come when they were asked for, once for each time, and at once if there is something already.
pub fn events_follow_arms<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    // The kernel's queues start without an arm.
    guest.verbs.page = 0;
    let (cq, qpn, lost) = guest.loser();
    let mover = guest.verbs.mover(qpn).unwrap() as usize;
    let number = guest.verbs.cq_numbers(cq)[mover];
    let mut id = 0;
    let mut post = |guest: &mut Guest<T>| {
        id += 1;
        guest.verbs.post_send(&mut guest.nic, qpn, id, &lost).unwrap();
        guest.nic.bus.settle();
    };
    // Not armed: nothing. Armed late: at once, and once.
    post(&mut guest);
    assert_eq!(guest.events(), []);
    guest.verbs.arm_cq(&mut guest.nic, cq, false).unwrap();
    assert_eq!(guest.events(), [Event::Completion(number)]);
    post(&mut guest);
    assert_eq!(guest.events(), []);
    guest.completions(cq, 2);
    // Armed with nothing there: with the next one, and once.
    guest.verbs.arm_cq(&mut guest.nic, cq, false).unwrap();
    assert_eq!(guest.events(), []);
    for _ in 0..3 {
        post(&mut guest);
    }
    assert_eq!(guest.events(), [Event::Completion(number)]);
    guest.completions(cq, 3);
    // For solicited ones: not with what was sent.
    guest.verbs.arm_cq(&mut guest.nic, cq, true).unwrap();
    post(&mut guest);
    assert_eq!(guest.events(), []);
    guest.completions(cq, 1);
    // Armed both ways: one event takes both away.
    guest.verbs.arm_cq(&mut guest.nic, cq, true).unwrap();
    guest.verbs.arm_cq(&mut guest.nic, cq, false).unwrap();
    post(&mut guest);
    post(&mut guest);
    assert_eq!(guest.events(), [Event::Completion(number)]);
    guest.completions(cq, 2);
    // Those of a process start armed: a program that waits before its first poll never arms.
    guest.verbs.page = 3;
    let (cq, qpn, lost) = guest.loser();
    guest.verbs.post_send(&mut guest.nic, qpn, 1, &lost).unwrap();
    let number = guest.verbs.cq_numbers(cq)[guest.verbs.mover(qpn).unwrap() as usize];
    assert_eq!(guest.events(), [Event::Completion(number)]);
    assert_eq!(guest.completions(cq, 1)[0].status, 0);
    // Many events, more than an event queue has entries.
    guest.verbs.page = 0;
    let (cq, qpn, lost) = guest.loser();
    for id in 0..1500 {
        guest.verbs.arm_cq(&mut guest.nic, cq, false).unwrap();
        guest.verbs.post_send(&mut guest.nic, qpn, id, &lost).unwrap();
        assert_eq!(guest.events().len(), 1, "{id}");
        assert_eq!(guest.verbs.poll_cq(cq).unwrap().len(), 1);
    }
}

/// A completion queue that nobody reads: it says that it broke, and what is in it stays.
pub fn a_full_completion_queue_is_told<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let pd = guest.verbs.create_pd();
    // With the driver's reserve these are 128.
    let cq = guest.verbs.create_cq(&mut guest.nic, 28).unwrap();
    let config = QpConfig { sq_log2: 8, ..QpConfig::new(QpType::UD, pd, cq) };
    let qpn = guest.verbs.create_qp(&mut guest.nic, config).unwrap();
    guest.connect(QpType::UD, qpn);
    let number = guest.verbs.cq_numbers(cq)[guest.verbs.mover(qpn).unwrap() as usize];
    let lost = guest.lost(pd, 1);
    let requests: Vec<_> = (0..200).map(|id| (id, lost.clone(), true)).collect();
    guest.verbs.post_sends(&mut guest.nic, qpn, &requests).unwrap();
    guest.nic.bus.settle();
    let events = guest.events();
    let broke = Event::Queue { cq: number, code: EQE_CQ_ERR };
    assert_eq!(events.iter().filter(|event| **event == broke).count(), 1, "{events:?}");
    // Its queue pair goes down with it.
    assert!(events.contains(&Event::QueuePair { qpn, code: EQE_QP_ERR }), "{events:?}");
    assert_eq!(guest.verbs.query_qp(&mut guest.nic, qpn).unwrap().state, QpState::ERR);
    let wcs = guest.verbs.poll_cq(cq).unwrap();
    assert!(wcs.len() == 128 && wcs.iter().zip(0..).all(|(wc, id)| wc.id == id), "{}", wcs.len());
    assert!(guest.verbs.rings_intact());
    // Others work.
    let (cq, qpn, lost) = guest.loser();
    guest.verbs.post_send(&mut guest.nic, qpn, 1, &lost).unwrap();
    assert_eq!(guest.completions(cq, 1)[0].status, 0);
}

/// Doorbells of one process do nothing to another's queues, and those of what is gone nothing to anybody's.
pub fn doorbells_are_their_owners<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let id = guest.verbs.identity;
    guest.verbs.page = 5;
    let (cq, qpn) = guest.ready(QpType::UD);
    guest.events();
    let numbers = guest.verbs.cq_numbers(cq);
    let mut refused = 0;
    let last = u16::try_from(guest.nic.dev.ndbpgs_per_lif.get() - 1).unwrap();
    for page in [0, 4, 6, last] {
        for (slot, ring, number) in [
            (id.sq_qtype.qtype, 0, qpn),
            (id.rq_qtype.qtype, 0, qpn),
            (id.cq_qtype.qtype, CQ_RING_ARM, numbers[0]),
            (id.cq_qtype.qtype, 0, numbers[1]),
            (id.aq_qtype.qtype, 0, 77),
        ] {
            guest.nic.doorbell(page, slot, Doorbell { p_index: 3, ring, qid: number }).unwrap();
            refused += 1;
        }
    }
    // The admin queues are the kernel's alone.
    guest.nic.doorbell(5, id.aq_qtype.qtype, Doorbell { p_index: 3, ring: 0, qid: 0 }).unwrap();
    // Beyond the ring, and rings that a queue does not have.
    guest.nic.doorbell(5, id.sq_qtype.qtype, Doorbell { p_index: 64, ring: 0, qid: qpn }).unwrap();
    guest.nic.doorbell(5, id.sq_qtype.qtype, Doorbell { p_index: 1, ring: 1, qid: qpn }).unwrap();
    guest.nic.doorbell(5, id.cq_qtype.qtype, Doorbell { p_index: 1, ring: 7, qid: numbers[0] }).unwrap();
    refused += 4;
    assert_eq!(guest.nic.bus.errors(), GuestErrors { doorbells: refused, ..GuestErrors::default() });
    assert_eq!((guest.events(), guest.verbs.poll_cq(cq).unwrap()), (vec![], vec![]));
    // The owner's still count.
    guest.verbs.post_send(&mut guest.nic, qpn, 1, &Request::SendInline(vec![1])).unwrap();
    assert_eq!(guest.completions(cq, 1)[0].id, 1);
    // After the end of both: dropped.
    guest.verbs.destroy_qp(&mut guest.nic, qpn).unwrap();
    guest.verbs.destroy_cq(&mut guest.nic, cq).unwrap();
    guest.nic.doorbell(5, id.sq_qtype.qtype, Doorbell { p_index: 9, ring: 0, qid: qpn }).unwrap();
    guest.nic.doorbell(5, id.cq_qtype.qtype, Doorbell { p_index: 1, ring: CQ_RING_ARM, qid: numbers[0] }).unwrap();
    assert_eq!(guest.nic.bus.errors().doorbells, refused + 2);
}

/// Work that waits when its queue pair goes, when the state changes, and when all of it is reset: nothing comes afterwards.
pub fn destroyed_queue_pairs_are_silent<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let (cq, qpn) = guest.pair(QpType::RC);
    let sends = |n: u64| (0..n).map(|id| (id, Request::SendInline(vec![1]), true)).collect::<Vec<_>>();
    // Posted before it may send: kept, and told when it may.
    let nic = &mut guest.nic;
    guest.verbs.modify_qp(nic, qpn, &Change::to(QpState::INIT)).unwrap();
    let rtr =
        Change { dest_qpn: Some(qpn), pmtu: Some(10), av: Some(address(false, None)), ..Change::to(QpState::RTR) };
    guest.verbs.modify_qp(nic, qpn, &rtr).unwrap();
    guest.verbs.post_sends(nic, qpn, &sends(2)).unwrap();
    guest.nic.bus.settle();
    assert_eq!(guest.verbs.poll_cq(cq).unwrap(), []);
    guest.verbs.modify_qp(&mut guest.nic, qpn, &Change::to(QpState::RTS)).unwrap();
    let statuses: Vec<u32> = guest.completions(cq, 2).iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [NOT_READY, FLUSHED]);
    // In ERR nothing more is written, whatever is posted.
    let slot = guest.verbs.identity.sq_qtype.qtype;
    guest.nic.doorbell(guest.verbs.page, slot, Doorbell { p_index: 10, ring: 0, qid: qpn }).unwrap();
    guest.nic.bus.settle();
    assert_eq!(guest.verbs.poll_cq(cq).unwrap(), []);
    // The program's own error flushes what waits.
    let (other_cq, other) = guest.ready(QpType::RC);
    for id in 0..5 {
        guest.verbs.post_receive(&mut guest.nic, other, id, &Receive(Vec::new())).unwrap();
    }
    guest.verbs.modify_qp(&mut guest.nic, other, &Change::to(QpState::ERR)).unwrap();
    let flushed = guest.completions(other_cq, 5);
    assert!(flushed.iter().zip(0..).all(|(wc, id)| (wc.id, wc.status, wc.receive) == (id, FLUSHED, true)));
    guest.verbs.modify_qp(&mut guest.nic, other, &Change::to(QpState::ERR)).unwrap();
    guest.nic.bus.settle();
    assert_eq!(guest.verbs.poll_cq(other_cq).unwrap(), [], "flushed once");
    // Gone with receives posted: their flush never comes.
    let (last_cq, last) = guest.ready(QpType::RC);
    guest.verbs.post_receive(&mut guest.nic, last, 1, &Receive(Vec::new())).unwrap();
    guest.verbs.destroy_qp(&mut guest.nic, last).unwrap();
    guest.nic.bus.pass(Duration::from_secs(1));
    assert_eq!(guest.verbs.poll_cq(last_cq).unwrap(), []);
    assert!(guest.verbs.rings_intact());
    // RDMA_RESET_LIF with everything set up: nothing is rung through any more, and it starts again.
    let Guest { mut nic, verbs } = guest;
    verbs.close(&mut nic).unwrap();
    nic.doorbell(1, slot, Doorbell { p_index: 20, ring: 0, qid: qpn }).unwrap();
    assert_eq!(nic.bus.with_device(|device| device.rdma_objects()), Objects::default());
    for vector in 3..7 {
        assert_eq!(nic.bus.take_irq(vector).unwrap(), 0);
    }
    let verbs = ionic_driver::Verbs::open(&mut nic).unwrap();
    let mut guest = Guest { nic, verbs };
    let (cq, qpn) = guest.ready(QpType::RC);
    guest.verbs.post_send(&mut guest.nic, qpn, 1, &Request::Raw(0xff, Vec::new())).unwrap();
    assert_eq!(guest.completions(cq, 1)[0].status, QP_OPERATION);
}
