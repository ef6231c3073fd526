//! Lane `vfio-user`: the same tests over the vfio-user socket, and what only a socket has: other ways to map memory and to write.

mod common;

use common::{Got, MAC, PEER, SocketBus, TestBus, device_config, drain, frames, inject, works};
use ionic_driver::{
    Config, Ionic, TxOffload,
    vfio_user::{Maps, Writes},
};

lane!(crate::common::SocketBus);

/// As in process, but fewer: each needs a server.
#[test]
fn guests_that_do_anything() {
    common::chaos::guests_that_do_anything::<SocketBus>(100);
}

/// Every shape that guest memory can have, with every way to write registers.
#[test]
fn maps_and_writes_of_every_kind() {
    for maps in [Maps::Whole, Maps::Pieces(2 << 20), Maps::Pieces(64 << 10), Maps::Messages] {
        for writes in [Writes::Posted, Writes::Multi(1), Writes::Multi(64), Writes::Synchronous] {
            let config = Config { queues: 2, tx_entries: 64, rx_entries: 64, ..Config::default() };
            let mut nic = Ionic::attach(SocketBus::shaped(device_config(), maps, writes), config).unwrap();
            nic.up().unwrap();
            let out: Vec<_> = (0..20).map(|i| frames::udp(MAC, PEER, &frames::pattern(50 * i, i as u64))).collect();
            for frame in &out {
                nic.send(0, frame, TxOffload::None, None).unwrap();
            }
            assert_eq!(drain(&mut nic), out, "{maps:?} {writes:?}");
            let into: Vec<_> = (0..20).map(|i| frames::udp(PEER, MAC, &frames::pattern(50 * i, i as u64))).collect();
            let mut got: Vec<_> = inject(&mut nic, into.clone()).into_iter().map(|g: Got| g.bytes).collect();
            let mut into = into;
            got.sort();
            into.sort();
            assert_eq!(got, into);
            nic.remove().unwrap();
            nic.probe().unwrap();
            nic.up().unwrap();
            works(&mut nic);
        }
    }
}

/// The guest changes its IOMMU domain between bursts of traffic: all maps go and come in another shape.
#[test]
fn maps_come_and_go() {
    let mut nic = common::up::<SocketBus>(Config { tx_entries: 64, rx_entries: 64, ..Config::default() });
    for maps in [Maps::Pieces(4096 * 16), Maps::Whole, Maps::Messages, Maps::Pieces(1 << 20), Maps::Whole]
        .into_iter()
        .cycle()
        .take(15)
    {
        works(&mut nic);
        nic.bus.settle();
        nic.bus.inner.remap(maps).unwrap();
        works(&mut nic);
    }
    assert_eq!(nic.bus.errors(), ernic_emu::device::GuestErrors::default());
}

/// The client goes with everything set up, and another one comes.
#[test]
fn a_client_goes_and_the_next_one_starts_afresh() {
    let mut bus = SocketBus::make(device_config());
    for _ in 0..5 {
        let mut nic = Ionic::attach(bus, Config { tx_entries: 64, rx_entries: 64, ..Config::default() }).unwrap();
        nic.up().unwrap();
        works(&mut nic);
        nic.bus.wire().lock().inbound.extend(vec![frames::udp(PEER, MAC, b"for nobody"); 10]);
        bus = nic.into_bus().reconnect();
        bus.wire().lock().inbound.clear();
    }
}
