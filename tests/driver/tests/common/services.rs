//! The real thing at the other end of the wire: the in-band endpoint with S3 over the memory store.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use ernic::wire::Wire;
use ernic_store::{MemoryConfig, MemoryStore};
use ionic_driver::{Config, GuestNet, Ionic, net::NetConfig};
use s3_proto::{S3Config, S3Service};
use tcp_inband::Endpoint;

use super::{TestBus, TestLink, device_config, frames};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 200, 1);
const PORT: u16 = 9000;

/// A wire with the endpoint on it. What it serves lives in the device's thread.
fn service() -> Wire {
    let store = MemoryStore::new(MemoryConfig { capacity: 128 << 20, objects: 64 });
    store.create_bucket("ernic");
    let service = S3Service::new(Arc::new(store), S3Config::default());
    let endpoint = Endpoint::new(tcp_inband::Config::new(SERVER, PORT), Duration::ZERO).unwrap();
    let mut wire = Wire::new();
    // Nothing here wakes the loop from another thread: the store answers at once.
    wire.serve(endpoint, service, Arc::new(|| {}));
    wire
}

fn guest<T: TestBus>(config: Config, net: NetConfig) -> GuestNet<T> {
    let bus = T::make_with(device_config(), TestLink::default(), service);
    GuestNet::new(Ionic::attach(bus, config).unwrap(), net).unwrap()
}

/// No frame was refused, and every one came with the device's sum.
fn check<T: TestBus>(net: &GuestNet<T>) {
    assert_eq!(net.refused(), 0, "{:?}", net.stats.refused);
    assert_eq!(net.nic.stats.rx_dropped, 0);
    assert_eq!(net.nic.stats.rx_csum_complete, net.nic.stats.rx_frames);
}

pub fn arp_ping_and_dhcp<T: TestBus>() {
    let mut net = guest::<T>(Config { queues: 4, ..Config::default() }, NetConfig::default());
    let (address, server) = net.dhcp().unwrap();
    assert_eq!((address.prefix_len(), server), (24, SERVER));
    assert_ne!(address.address(), SERVER);
    for (i, len) in [0, 1, 56, 57, 1471, 1472].into_iter().enumerate() {
        net.ping(SERVER, len, i as u16).unwrap();
    }
    net.set_mtu(9000).unwrap();
    for len in [1473, 8971, 8972] {
        net.ping(SERVER, len, 100).unwrap();
    }
    check(&net);
    assert!(net.stats.sent_partial > 0, "DHCP is UDP with its checksum left to the NIC");
}

fn put_and_get<T: TestBus>(net: &mut GuestNet<T>, key: &str, len: usize) {
    let body = frames::pattern(len, len as u64);
    let connection = net.connect(SERVER, PORT).unwrap();
    let path = format!("/ernic/{key}");
    let put = net.http_put(connection, &path, &body).unwrap();
    assert_eq!(put.status, 200, "{put:?}");
    let mut back = Vec::with_capacity(len);
    let get = net.http_get(connection, &path, &mut |b| back.extend_from_slice(b)).unwrap();
    assert_eq!((get.status, get.length), (200, len as u64));
    assert!(back == body, "{key}: {len} bytes came back different");
    // The same connection once more, and a refusal on it.
    let missing = net.http_get(connection, "/ernic/missing", &mut |_| {}).unwrap();
    assert_eq!(missing.status, 404);
    net.close(connection).unwrap();
}

pub fn http_both_ways_with_every_offload<T: TestBus>() {
    for (mtu, net_config, sizes) in [
        (1500, NetConfig::default(), &[0, 1, 1460, 100_000, 5_000_000][..]),
        (1500, NetConfig { tso: false, ..NetConfig::default() }, &[1000, 1_000_000]),
        (1500, NetConfig { tx_csum: false, ..NetConfig::default() }, &[1000, 1_000_000]),
        (9000, NetConfig::default(), &[9000, 5_000_000]),
        (576, NetConfig::default(), &[100_000]),
    ] {
        let mut net = guest::<T>(Config { mtu: 1500, ..Config::default() }, net_config);
        net.set_mtu(mtu).unwrap();
        net.dhcp().unwrap();
        for len in sizes {
            put_and_get(&mut net, "object", *len);
        }
        check(&net);
        let tso = net_config.tso && net_config.tx_csum;
        assert_eq!(net.stats.sent_tso > 0, tso, "mtu {mtu} {net_config:?}");
        let errors = net.nic.bus.errors();
        assert_eq!(errors, ernic_emu::device::GuestErrors::default());
        // A segment that the peer did not get would be sent again after a second: none was.
        let stats = net.nic.bus.with_device(|d| *d.lif_stats());
        assert_eq!((stats.rx_queue_empty.get(), stats.tx_desc_data_error.get()), (0, 0));
    }
}

pub fn http_on_a_vlan<T: TestBus>() {
    let net = NetConfig { vlan: Some(42), ..NetConfig::default() };
    let mut net = guest::<T>(Config { queues: 2, ..Config::default() }, net);
    net.dhcp().unwrap();
    net.ping(SERVER, 100, 1).unwrap();
    put_and_get(&mut net, "tagged", 300_000);
    check(&net);
}

pub fn mtu_change_under_a_download<T: TestBus>() {
    let mut net = guest::<T>(Config::default(), NetConfig { buffer: 64 << 10, ..NetConfig::default() });
    net.dhcp().unwrap();
    let body = frames::pattern(3_000_000, 1);
    let upload = net.connect(SERVER, PORT).unwrap();
    assert_eq!(net.http_put(upload, "/ernic/big", &body).unwrap().status, 200);
    // Read a little, change the MTU, read on: several times while the answer is under way.
    let socket = net.connect(SERVER, PORT).unwrap();
    net.socket(socket).send_slice(b"GET /ernic/big HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let mut mtus = [9000, 1500, 4000, 1500, 9000, 1500].into_iter();
    let mut next = 100_000;
    let want = body.len();
    let header = loop {
        let got = net.wait_for("more of the body", Duration::from_secs(30), &mut |net| {
            let n = net.socket(socket).recv(|b| (b.len(), b.to_vec())).unwrap();
            Ok((!n.is_empty()).then_some(n))
        });
        answer.extend(got.unwrap());
        if answer.len() > next
            && let Some(mtu) = mtus.next()
        {
            net.set_mtu(mtu).unwrap();
            next += 400_000;
        }
        if let Some(at) = answer.windows(4).position(|w| w == b"\r\n\r\n")
            && answer.len() >= at + 4 + want
        {
            break at + 4;
        }
    };
    assert!(mtus.next().is_none(), "all changes were made");
    assert!(answer[header..] == body[..]);
    // Frames that were made before the guest lowered its MTU may be too long for the new buffers; Linux drops them too.
    let too_long =
        net.stats.refused.iter().filter(|(why, _)| !matches!(why, ionic_driver::check::Refusal::TooLong { .. }));
    assert_eq!(too_long.count(), 0, "{:?}", net.stats.refused);
}

/// A guest that vanishes with a download under way, and a new one that uses the same source port.
pub fn case_22_a_new_guest_takes_an_old_port<T: TestBus>() {
    let mut net = guest::<T>(Config::default(), NetConfig { buffer: 64 << 10, ..NetConfig::default() });
    net.dhcp().unwrap();
    let body = frames::pattern(2_000_000, 9);
    let upload = net.connect(SERVER, PORT).unwrap();
    assert_eq!(net.http_put(upload, "/ernic/big", &body).unwrap().status, 200);
    for _ in 0..3 {
        let old = net.connect_from(40_000, SERVER, PORT).unwrap();
        net.socket(old).send_slice(b"GET /ernic/big HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        net.wait_for("the first bytes", Duration::from_secs(30), &mut |net| {
            Ok(net.socket(old).can_recv().then_some(()))
        })
        .unwrap();
        // The guest reboots in the middle of it.
        let mut bus = net.into_nic().into_bus();
        bus.reset().unwrap();
        bus.settle();
        net = GuestNet::new(Ionic::attach(bus, Config::default()).unwrap(), NetConfig::default()).unwrap();
        net.dhcp().unwrap();
        let new = net.connect_from(40_000, SERVER, PORT).unwrap();
        let mut back = Vec::new();
        let get = net.http_get(new, "/ernic/big", &mut |b| back.extend_from_slice(b)).unwrap();
        assert_eq!(get.status, 200);
        assert!(back == body, "nothing of the old connection is in it");
        net.close(new).unwrap();
        check(&net);
    }
}
