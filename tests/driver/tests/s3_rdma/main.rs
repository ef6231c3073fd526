//! Lane `s3-rdma`: the rules of S3 over RDMA over the memory of a guest, registered through the NIC's admin queue; and the
//! whole way, from the guest's TCP to the bytes in its memory, with the real server in a process of its own.
#![allow(clippy::cast_possible_truncation, missing_debug_implementations, unreachable_pub)]

#[path = "../../../../s3-proto/tests/common/mod.rs"]
mod common;
#[path = "../../../../s3-proto/tests/common/lab.rs"]
mod lab;
#[path = "../../../../s3-proto/tests/rules/mod.rs"]
mod rules;
mod server;

use std::{cell::RefCell, collections::HashMap, sync::Arc, time::Duration};

use ernic_emu::{
    device::{DeviceConfig, GuestErrors},
    link::{Link, LinkPoll, RxSink, TxFrame},
    rdma::NicMemory,
};
use ionic_abi::MrFlags;
use ionic_driver::{Bus as _, Config, GuestRam, InProcess, Ionic, UserMem, Verbs, user::Placement, verbs::RegMr};
use rdma_token::{RemoteAccess, RemoteMemory};

/// Guest memory, and where it is. What is not touched is not there.
const RAM: usize = 512 << 20;
const IOVA: u64 = 0x12_3400_0000;

/// A wire with nothing on it: the rules are about the service, which has a connection of its own.
struct NoWire;

impl Link for NoWire {
    fn transmit(&mut self, _: &mut TxFrame<'_>) {}

    fn poll(&mut self, _: Duration, _: &mut dyn RxSink) -> LinkPoll {
        LinkPoll { more: false }
    }

    fn set_mtu(&mut self, _: u32) {}

    fn reset(&mut self) {}
}

/// A guest's memory as a client of its NIC registers it.
struct Guest {
    nic: Ionic<InProcess<NoWire>>,
    verbs: Verbs,
    pd: u32,
    memory: HashMap<u32, UserMem>,
}

impl lab::ClientMemory for RefCell<Guest> {
    fn remote(&self) -> Arc<dyn RemoteMemory> {
        let device = &self.borrow().nic.bus.device;
        Arc::new(NicMemory::new(device.regions().clone(), device.memory().clone()))
    }

    fn register(&self, address: u64, content: &[u8], rights: &[RemoteAccess]) -> u32 {
        let Guest { nic, verbs, pd, memory } = &mut *self.borrow_mut();
        // Pages in every shape, one after the other.
        let placement = [Placement::Scattered, Placement::Huge, Placement::Contiguous][memory.len() % 3];
        let mem = UserMem::new(nic.bus.ram(), address, content.len(), placement).unwrap();
        mem.write(0, content);
        let access = rights.iter().fold(MrFlags::LOCAL_WRITE, |access, right| {
            access
                | match right {
                    RemoteAccess::Read => MrFlags::REMOTE_READ,
                    RemoteAccess::Write => MrFlags::REMOTE_WRITE,
                }
        });
        let key = verbs.reg_mr(nic, *pd, &RegMr::all(&mem, access)).unwrap().key;
        assert!(memory.insert(key, mem).is_none(), "a key that was given out before");
        key
    }

    fn deregister(&self, rkey: u32) {
        let Guest { nic, verbs, .. } = &mut *self.borrow_mut();
        verbs.dereg_mr(nic, rkey).unwrap();
    }

    fn content(&self, rkey: u32) -> Vec<u8> {
        let guest = self.borrow();
        assert_eq!(guest.nic.bus.device.guest_errors(), GuestErrors::default());
        for (rkey, mem) in &guest.memory {
            assert!(mem.intact(), "bytes beside {rkey:#x} were touched: {mem:?}");
        }
        guest.memory[&rkey].content()
    }
}

/// The client's memory.
fn memory() -> Box<dyn lab::ClientMemory> {
    let config = DeviceConfig { mac: [0x02, 0, 0, 0xaa, 0xbb, 1], device_id: 0x1002, max_mtu: 9000 };
    let ram = GuestRam::new(RAM, IOVA).unwrap();
    let mut nic = Ionic::attach(InProcess::new(config, NoWire, ram).unwrap(), Config::default()).unwrap();
    let mut verbs = Verbs::open(&mut nic).unwrap();
    let pd = verbs.create_pd();
    Box::new(RefCell::new(Guest { nic, verbs, pd, memory: HashMap::new() }))
}
