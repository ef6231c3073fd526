//! Lane `rdma`: the RDMA half of the device, driven as `ionic_rdma` and libionic drive it, on both buses.
#![allow(clippy::cast_possible_truncation, missing_debug_implementations, unreachable_pub)]

#[path = "../common/mod.rs"]
mod common;

mod hostile;
mod queues;
mod regions;
mod transfers;
mod verbs;

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

use common::{SocketBus, TestBus, device_config};
use ernic_emu::rdma::NicMemory;
use ionic_abi::MrFlags;
use ionic_driver::{Config, Ionic, Verbs, user::Placement};
use rdma_token::{RemoteAccess, RemoteError, RemoteMemory, RemoteWindow, Token, TokenHeader, Transport, Window};

/// Every right that a token may need.
const ALL: MrFlags = MrFlags::LOCAL_WRITE.union(MrFlags::REMOTE_READ).union(MrFlags::REMOTE_WRITE);
/// How the pages of a process may lie.
const PLACEMENTS: [Placement; 3] = [Placement::Contiguous, Placement::Scattered, Placement::Huge];

/// A guest with its verbs device open.
struct Guest<T: TestBus> {
    nic: Ionic<T>,
    verbs: Verbs,
}

impl<T: TestBus> Guest<T> {
    fn new() -> Self {
        Self::on(T::make(device_config()))
    }

    fn on(bus: T) -> Self {
        let mut nic = Ionic::attach(bus, Config { tx_entries: 64, rx_entries: 64, ..Config::default() }).unwrap();
        nic.up().unwrap();
        let verbs = Verbs::open(&mut nic).unwrap();
        Self { nic, verbs }
    }

    /// Looks at what a token reaches, in the device's thread.
    fn with_memory<R: Send + 'static>(&mut self, f: impl FnOnce(&NicMemory) -> R + Send + 'static) -> R {
        self.nic.bus.with_device(|device| f(&NicMemory::new(device.regions().clone(), device.memory().clone())))
    }

    /// Opens a window with the token of `rkey`.
    fn open(&mut self, rkey: u32, window: Window, access: RemoteAccess) -> Result<Box<dyn RemoteWindow>, RemoteError> {
        let header = token(rkey, window);
        self.with_memory(move |memory| now(memory.open(&header, access)))
    }

    /// Writes to a client's memory as a GET with its token does. All of it, or the window is shorter.
    fn put(&mut self, rkey: u32, address: u64, bytes: &[u8]) -> Result<(), RemoteError> {
        let window = Window { address, length: bytes.len() as u64 };
        let mut open = self.open(rkey, window, RemoteAccess::Write)?;
        if open.len() < window.length {
            return Err(RemoteError::Bounds(window));
        }
        let bytes = bytes.to_vec();
        self.nic.bus.with_device(move |_| now(open.write(0, &bytes)))
    }

    /// Reads from it as a PUT does.
    fn get(&mut self, rkey: u32, address: u64, length: usize) -> Result<Vec<u8>, RemoteError> {
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
fn token(rkey: u32, window: Window) -> TokenHeader {
    let Window { address, length } = window;
    TokenHeader::A(Token { transport: Transport::Rc, qpn: 2, gid: [0; 16], rkey, address, length, port: 1, lid: 0 })
}

/// The result of a future that never waits: the memory of a NIC answers at once.
fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("a transfer waits"),
    }
}

/// Each test on both buses.
macro_rules! both {
    ($($module:ident: $($name:ident),* $(,)?;)*) => {
        mod in_process {
            $(mod $module { $(
                #[test]
                fn $name() {
                    crate::$module::$name::<crate::common::Direct>();
                }
            )* })*
        }
        mod vfio_user {
            $(mod $module { $(
                #[test]
                fn $name() {
                    crate::$module::$name::<crate::common::SocketBus>();
                }
            )* })*
        }
    };
}

both! {
    regions: start_and_stop, bytes_go_where_the_page_list_says, huge_pages, more_than_a_gigabyte,
        case_12_the_table_is_full, case_12_the_page_tables_are_full, keys_are_never_good_twice, rights_are_kept,
        regions_without_memory, many_at_once;
    queues: queue_pairs_live_through_their_states, a_drained_send_queue_is_told, address_handles, many_come_and_go, numbers_beyond_the_tables,
        requests_that_are_none_fail_aloud, rings_wrap, events_follow_arms, a_full_completion_queue_is_told,
        doorbells_are_their_owners, destroyed_queue_pairs_are_silent;
    verbs: messages_of_every_shape, unsignalled_batches, writes_and_reads, every_error_has_its_status,
        waiting_for_the_other_side, datagrams, atomics, keys_that_come_and_go, solicited_events, turns_are_shared,
        random_requests;
    transfers: the_registration_goes, case_02_the_memory_goes, the_driver_goes, the_function_is_reset;
    hostile: every_opcode_with_hostile_fields, page_lists_outside_memory, rings_that_are_nowhere, ten_thousand_tokens;
}

/// Guest memory in small maps, or without a descriptor: every access crosses maps or goes by message.
#[test]
fn memory_in_pieces_and_by_message() {
    use ionic_driver::vfio_user::{Maps, Writes};
    for maps in [Maps::Pieces(4096), Maps::Pieces(64 << 10), Maps::Messages] {
        // A map for each page of all of it would be more than a guest has.
        let ram = if maps == Maps::Pieces(4096) { 8 << 20 } else { 64 << 20 };
        let mut guest = Guest::on(SocketBus::shaped_with(device_config(), ram, maps, Writes::Posted));
        regions::every_shape(&mut guest, 60_000);
    }
}
