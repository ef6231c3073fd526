//! The fabric on a real device, with a client in the same process: the two queue pairs reach each other over the port's loopback.
//!
//! `ERNIC_VERBS_DEVICE` names the device; these tests are run with `--ignored`, in a guest or where there is hardware.
#![allow(unsafe_code)] // the client shares memory with the device

use std::{env, sync::Arc, time::Duration};

use ernic_verbs::{Config, Fabric};
use memmap2::MmapMut;
use rdma_token::{
    AnswerFirst, RcEndpoint, RcFabric, RcTarget, RemoteAccess, RemoteError, RemoteMemory, Token, TokenHeader, Transport,
};
use sideway::ibverbs::{
    AccessFlags,
    address::{AddressHandleAttribute, Gid},
    completion::BasicCompletionQueue,
    device::{DeviceInfo, DeviceList},
    device_context::{DeviceContext, Mtu},
    memory_region::MemoryRegion,
    queue_pair::{
        BasicQueuePair, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairState, SetScatterGatherEntry,
        WorkRequestFlags,
    },
};

const SIZE: usize = 3 << 20;

fn device() -> String {
    env::var("ERNIC_VERBS_DEVICE").expect("ERNIC_VERBS_DEVICE names an RDMA device")
}

fn config() -> Config {
    let (wait, buffer_wait) = (Duration::from_secs(3), Duration::from_millis(200));
    Config {
        device: Some(device()),
        buffers: 2,
        buffer_size: 4 << 20,
        v1: true,
        wait,
        buffer_wait,
        ..Config::default()
    }
}

/// A client's queue pair, in INIT, and registered memory. Dropped in this order.
struct Client {
    qp: BasicQueuePair,
    queue: Arc<BasicCompletionQueue>,
    region: Arc<MemoryRegion>,
    memory: MmapMut,
    gid: (u8, [u8; 16]),
    mtu: Mtu,
    _context: Arc<DeviceContext>,
}

impl Client {
    fn new(fill: impl Fn(usize) -> u8) -> Self {
        let list = DeviceList::new().unwrap();
        let context = list.iter().find(|found| found.name() == device()).expect("the device").open().unwrap();
        let port = context.query_port(1).unwrap();
        let mut gid =
            (0..8).filter_map(|index| context.query_gid_ex(1, index.into()).ok().map(|entry| (index, entry.gid().raw)));

        let gid = gid.next_back().expect("an address");
        let domain = context.alloc_pd().unwrap();
        let queue = context.create_cq_builder().setup_cqe(16).build().unwrap();
        let mut memory = MmapMut::map_anon(SIZE).unwrap();
        memory.iter_mut().enumerate().for_each(|(i, byte)| *byte = fill(i));
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite | AccessFlags::RemoteRead;
        // SAFETY: mapped until `memory` is dropped, after the region.
        let region = unsafe { domain.reg_mr(memory.as_ptr().addr(), SIZE, access) }.unwrap();
        let mut builder = domain.create_qp_builder();
        builder.setup_send_cq(Arc::clone(&queue)).setup_recv_cq(Arc::clone(&queue));
        let mut qp = builder.build().unwrap();
        let mut init = QueuePairAttribute::new();
        init.setup_state(QueuePairState::Init).setup_pkey_index(0).setup_port(1);
        init.setup_access_flags(AccessFlags::LocalWrite | AccessFlags::RemoteWrite | AccessFlags::RemoteRead);
        qp.modify(&init).unwrap();
        Self { qp, queue, region, memory, gid, mtu: port.active_mtu(), _context: context }
    }

    fn token(&self) -> Token {
        Token {
            transport: Transport::Rc,
            qpn: self.qp.qp_number(),
            gid: self.gid.1,
            rkey: self.region.rkey(),
            address: self.region.get_ptr() as u64,
            length: SIZE as u64,
            port: 1,
            lid: 0,
        }
    }

    /// INIT to RTS, towards the server's end.
    fn connect(&mut self, to: RcEndpoint, psn: u32, mtu: Mtu) {
        let mut receive = self.qp.start_post_recv();
        receive.construct_wr(7);
        receive.post().unwrap();
        let mut address = AddressHandleAttribute::new();
        address.setup_port(1).setup_dest_lid(to.lid).setup_grh(&Gid { raw: to.gid }, 0, self.gid.0, 64, 0);
        let mut attribute = QueuePairAttribute::new();
        attribute.setup_state(QueuePairState::ReadyToReceive).setup_path_mtu(mtu).setup_dest_qp_num(to.qpn);
        attribute.setup_rq_psn(to.psn).setup_max_dest_read_atomic(1).setup_min_rnr_timer(12);
        attribute.setup_address_vector(&address);
        self.qp.modify(&attribute).unwrap();
        let mut attribute = QueuePairAttribute::new();
        attribute.setup_state(QueuePairState::ReadyToSend).setup_sq_psn(psn).setup_timeout(14).setup_retry_cnt(7);
        attribute.setup_rnr_retry(7).setup_max_read_atomic(1);
        self.qp.modify(&attribute).unwrap();
    }

    /// Status, bytes and immediate of the next completion, within ten seconds.
    fn completion(&self) -> (u32, u32, u32) {
        for _ in 0..10_000 {
            if let Ok(mut poll) = self.queue.start_poll()
                && let Some(wc) = poll.next()
            {
                return (wc.status(), wc.byte_len(), u32::from_be(wc.imm_data()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("no completion");
    }

    /// What the memory holds, which the device may have written.
    fn content(&self) -> Vec<u8> {
        // SAFETY: no transfer is under way when this is called, and the mapping is that long.
        (0..SIZE).map(|i| unsafe { self.memory.as_ptr().add(i).read_volatile() }).collect()
    }
}

fn pattern(i: usize) -> u8 {
    u8::try_from((i * 7 + i / 251) % 256).unwrap_or(0)
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test);
}

/// hipObject's first protocol, and then its connection for more.
#[test]
#[ignore = "needs a device: ERNIC_VERBS_DEVICE"]
fn a_client_that_connects_after_the_answer_is_reached_again() {
    run(async {
        let fabric = Fabric::open(config()).unwrap();
        let mut client = Client::new(|_| 0xee);
        let header = TokenHeader::A(client.token());
        let unconnected = fabric.open(&header, RemoteAccess::Read).await.err().unwrap();
        assert_eq!(unconnected.reason(), "unsupported");
        let AnswerFirst { endpoint, mut window, .. } = fabric.answer_first(&header).await.unwrap().expect("v1 is on");
        let content: Vec<u8> = (0..SIZE).map(pattern).collect();
        let moved = {
            let content = content.clone();
            tokio::spawn(async move {
                for (i, piece) in content.chunks(256 << 10).enumerate() {
                    window.write((i * (256 << 10)) as u64, piece).await?;
                }
                window.flush().await
            })
        };
        // Longer than it takes to look for the client in vain.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert!(client.content().iter().all(|byte| *byte == 0xee));
        client.connect(endpoint, 0, Mtu::Mtu4096);
        assert_eq!(moved.await.unwrap(), Ok(()));
        assert!(client.content() == content);

        assert!(fabric.answer_first(&header).await.unwrap().is_none(), "it is connected");
        let mut window = fabric.open(&header, RemoteAccess::Read).await.unwrap();
        assert_eq!(window.endpoint().unwrap().qpn, endpoint.qpn);
        let mut back = vec![0; SIZE - 1];
        window.read(1, &mut back).await.unwrap();
        assert!(back == content[1..]);
        drop(window);
        let mut window = fabric.open(&header, RemoteAccess::Write).await.unwrap();
        window.write(5, b"hello").await.unwrap();
        window.flush().await.unwrap();
        assert_eq!(client.content()[5..10], *b"hello");
        drop(window);

        // Beyond what is registered: the transfer fails, and the connection is gone.
        let longer = TokenHeader::A(Token { length: 2 * SIZE as u64, ..client.token() });
        let mut window = fabric.open(&longer, RemoteAccess::Write).await.unwrap();
        let failed = match window.write(SIZE as u64, b"beyond").await {
            Ok(()) => window.flush().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(failed.to_string().contains("REM_ACCESS_ERR"), "{failed}");
        drop(window);
        assert_eq!(fabric.open(&header, RemoteAccess::Write).await.err().unwrap().reason(), "unsupported");
    });
}

#[test]
#[ignore = "needs a device: ERNIC_VERBS_DEVICE"]
fn sessions_move_both_ways_with_the_immediate() {
    run(async {
        let fabric = Fabric::open(config()).unwrap();
        let content: Vec<u8> = (0..SIZE).map(pattern).collect();
        let mut client = Client::new(|_| 0xee);
        let mut session = fabric.prepare(&client.token(), 0x123, SIZE as u64, RemoteAccess::Write).await.unwrap();
        client.connect(session.local(), 0x123, client.mtu);
        session.write(0, &content).await.unwrap();
        let to = RcTarget { address: client.token().address, rkey: client.token().rkey };
        session.send(to, SIZE as u64, 0xcafe_0001).await.unwrap();
        assert_eq!(client.completion(), (0, u32::try_from(SIZE).unwrap(), 0xcafe_0001));
        assert!(client.content() == content);
        drop(session);

        let mut client = Client::new(pattern);
        let mut session = fabric.prepare(&client.token(), 0x456, SIZE as u64, RemoteAccess::Read).await.unwrap();
        let local = session.local();
        let staging = local.staging.unwrap();
        client.connect(local, 0x456, client.mtu);
        let (lkey, address) = (client.region.lkey(), client.region.get_ptr() as u64);
        let mut post = client.qp.start_post_send();
        let request = post.construct_wr(8, WorkRequestFlags::Signaled);
        let request = request.setup_write_imm(staging.rkey, staging.address, 0xcafe_0002_u32.to_be());
        // SAFETY: all of the client's region.
        unsafe { request.setup_sge(lkey, address, u32::try_from(SIZE).unwrap()) };
        post.post().unwrap();
        assert_eq!(session.received().await, Ok((SIZE as u64, 0xcafe_0002)));
        assert_eq!(client.completion().0, 0);
        let mut back = vec![0; SIZE];
        session.read(0, &mut back).await.unwrap();
        assert!(back == content);
    });
}

#[test]
#[ignore = "needs a device: ERNIC_VERBS_DEVICE"]
fn peers_that_are_not_there_end_in_time_and_leave_nothing() {
    run(async {
        let fabric = Fabric::open(config()).unwrap();
        let client = Client::new(|_| 0xee);
        let to = RcTarget { address: client.token().address, rkey: client.token().rkey };
        // One that never connects, one that does not exist, and numbers that cannot be.
        for qpn in [client.token().qpn, 0xff_fff0] {
            let token = Token { qpn, ..client.token() };
            let mut session = fabric.prepare(&token, 1, 4096, RemoteAccess::Write).await.unwrap();
            session.write(0, &[1; 4096]).await.unwrap();
            let error = session.send(to, 4096, 1).await.unwrap_err().to_string();
            // Soft-RoCE takes the 7 of `retry` for without end (Linux, `rxe_comp.c`), and `wait` ends it.
            let given_up = error.contains("RETRY_EXC_ERR") && error.contains("another MTU");
            assert!(given_up || error.contains("has not ended a transfer within 3s (wait=)"), "{error}");
        }
        for qpn in [0, 1, 0x100_0000, u32::MAX] {
            let token = Token { qpn, ..client.token() };
            let error = fabric.prepare(&token, 1, 4096, RemoteAccess::Write).await.err().unwrap();
            assert!(error.to_string().contains("is no number of a queue pair"), "{error}");
        }
        // Nothing comes: `wait` ends it.
        let mut session = fabric.prepare(&client.token(), 1, 4096, RemoteAccess::Read).await.unwrap();
        let error = session.received().await.unwrap_err().to_string();
        assert!(error.contains("has not ended a transfer within 3s (wait=)"), "{error}");
        drop(session);

        let dc = Token { transport: Transport::Dc, ..client.token() };
        assert_eq!(fabric.prepare(&dc, 1, 1, RemoteAccess::Write).await.err().unwrap().reason(), "unsupported");
        let large = fabric.prepare(&client.token(), 1, (4 << 20) + 1, RemoteAccess::Write).await.err();
        assert_eq!(large, Some(RemoteError::TooLarge { size: (4 << 20) + 1, most: 4 << 20 }));
        // Two buffers.
        let mut sessions = Vec::new();
        for _ in 0..2 {
            sessions.push(fabric.prepare(&client.token(), 1, 1, RemoteAccess::Read).await.unwrap());
        }
        let none = fabric.prepare(&client.token(), 1, 1, RemoteAccess::Read).await.err();
        assert_eq!(none, Some(RemoteError::Exhausted("buffer")));
        sessions.pop();
        drop(fabric.prepare(&client.token(), 1, 1, RemoteAccess::Read).await.unwrap());
    });
}
