//! What the NIC does to frames: gathering, checksums, segmentation, scattering, tags, filters, hashes, MTU.

use ernic_emu::link::Offload;
use ionic_abi::*;
use ionic_driver::{Config, DriverError, Filter, Ionic, TxLayout, TxOffload, check};

use super::{Got, MAC, PEER, TestBus, device_config, drain, frames, inject, up, works};

/// Layouts with one piece, two, page-sized fragments, and the most that a descriptor holds.
const LAYOUTS: [TxLayout; 4] = [
    TxLayout::LINEAR,
    TxLayout { first: 66, rest: 100_000 },
    TxLayout { first: 54, rest: 4096 },
    TxLayout { first: 20, rest: 101 },
];

pub fn frames_are_gathered<T: TestBus>() {
    let mut nic = up::<T>(Config::default());
    for layout in LAYOUTS {
        nic.config.tx_layout = layout;
        for len in [14, 15, 59, 60, 61, 64, 65, 66, 67, 1000, 1513, 1514] {
            let mut frame = frames::pattern(len, len as u64);
            frame[..12].copy_from_slice(&[PEER, MAC].concat());
            nic.send(0, &frame, TxOffload::None, None).unwrap();
            assert_eq!(drain(&mut nic), [frame.clone()], "{len} bytes as {layout:?}");
            nic.send(0, &frame, TxOffload::None, Some(0x6fff)).unwrap();
            assert_eq!(drain(&mut nic), [frames::tagged(&frame, 0x6fff)], "{len} bytes and a tag");
        }
    }
    works(&mut nic);
}

pub fn checksums_are_completed<T: TestBus>() {
    let mut nic = up::<T>(Config::default());
    let wire = nic.bus.wire();
    for layout in LAYOUTS {
        nic.config.tx_layout = layout;
        for len in [0, 1, 2, 3, 99, 100, 1001, 1400] {
            let payload = frames::pattern(len, len as u64 + 7);
            let whole = [
                frames::udp(MAC, PEER, &payload),
                frames::udp6(MAC, PEER, &payload),
                frames::icmp6(MAC, PEER, &payload),
                frames::Tcp::plain(false).frame(MAC, PEER, &payload),
                frames::Tcp::plain(true).frame(MAC, PEER, &payload),
                frames::Tcp { tag: Some(9), ..frames::Tcp::plain(false) }.frame(MAC, PEER, &payload),
            ];
            for right in whole {
                for tci in [None, Some(0x2005)] {
                    let mut frame = right.clone();
                    let (start, offset) = frames::preload(&mut frame, false);
                    nic.send(0, &frame, TxOffload::Csum { start, offset }, tci).unwrap();
                    let expected = tci.map_or_else(|| right.clone(), |tci| frames::tagged(&right, tci));
                    assert_eq!(drain(&mut nic), [expected], "{len} bytes");
                }
            }
        }
    }
    // A UDP sum of zero means "none" and is sent as its other form (RFC 768).
    for len in [2, 3, 20, 21] {
        let mut payload = frames::pattern(len, 3);
        payload[..2].fill(0);
        let zeroed = frames::udp(MAC, PEER, &payload);
        let sum = u16::from_be_bytes([zeroed[40], zeroed[41]]);
        // Adding the checksum itself to the data makes the sum all ones, whose complement is zero.
        payload[..2].copy_from_slice(&sum.to_be_bytes());
        let mut frame = frames::udp(MAC, PEER, &payload);
        let (start, offset) = frames::preload(&mut frame, false);
        nic.send(0, &frame, TxOffload::Csum { start, offset }, None).unwrap();
        let sent = drain(&mut nic).remove(0);
        assert_eq!(sent[40..42], [0xff, 0xff], "{len} bytes");
        check::verify(&sent, None).unwrap();
    }
    // For the endpoint nothing is computed: the frame is handed over with what is left to do.
    let mut frame = frames::udp(MAC, PEER, b"offload");
    let (start, offset) = frames::preload(&mut frame, false);
    nic.send(0, &frame, TxOffload::Csum { start, offset }, Some(1)).unwrap();
    nic.bus.settle();
    let sent = wire.lock().sent.remove(0);
    assert_eq!(sent.offload, Offload::Checksum { start: start + 4, offset }, "offsets count with the inserted tag");
    works(&mut nic);
}

pub fn tso_segments_are_right<T: TestBus>() {
    let mut nic = up::<T>(Config::default());
    let wire = nic.bus.wire();
    let cases = [
        (1, 1460),
        (1460, 1460),
        (1461, 1460),
        (2920, 1460),
        (5000, 536),
        (60_000, 1448),
        (64_000, 8948),
        (10_000, 1000),
    ];
    for v6 in [false, true] {
        for (len, mss) in cases {
            for tag in [None, Some(0x3064)] {
                // Linux does not leave frames with two tags to the NIC (`vlan_features_check`); others may.
                for tci in [None, Some(0x4007)] {
                    let tcp = frames::Tcp {
                        // Sequence number and identification wrap in the middle.
                        seq: u32::MAX - 3000,
                        id: 0xfffe,
                        fin: len % 2 == 1,
                        psh: true,
                        cwr: true,
                        options: len % 3 != 0,
                        tag,
                        ..frames::Tcp::plain(v6)
                    };
                    let payload = frames::pattern(len, (len + mss) as u64);
                    let mut frame = tcp.frame(MAC, PEER, &payload);
                    frames::preload(&mut frame, true);
                    // Nine pages at most to a descriptor, as an skb has.
                    nic.config.tx_layout = TxLayout { first: 200, rest: 4096 };
                    let hdr_len = tcp.header_len() as u16;
                    nic.send(0, &frame, TxOffload::Tso { hdr_len, mss: mss as u16 }, tci).unwrap();
                    let expected: Vec<_> = tcp
                        .segments(MAC, PEER, &payload, mss)
                        .into_iter()
                        .map(|s| tci.map_or_else(|| s.clone(), |tci| frames::tagged(&s, tci)))
                        .collect();
                    nic.bus.settle();
                    let sent = wire.lock().sent.clone();
                    assert_eq!(sent.len(), 1, "the device does not cut it: whoever takes it may take it whole");
                    let shift = if tci.is_some() { 4 } else { 0 };
                    assert_eq!(sent[0].offload, Offload::Segment { hdr_len: hdr_len + shift, mss: mss as u16 });
                    let got = drain(&mut nic);
                    assert_eq!(got.len(), expected.len(), "{len} bytes, mss {mss}, v6 {v6}, tag {tag:?}, {tci:?}");
                    for (k, (got, expected)) in got.iter().zip(&expected).enumerate() {
                        assert_eq!(
                            got, expected,
                            "segment {k} of {len} bytes, mss {mss}, v6 {v6}, tag {tag:?}, {tci:?}"
                        );
                    }
                }
            }
        }
    }
    works(&mut nic);
}

pub fn tso_chains_may_come_in_two_doorbells<T: TestBus>() {
    let mut nic = up::<T>(Config { tx_entries: 64, ..Config::default() });
    let wire = nic.bus.wire();
    let tcp = frames::Tcp::plain(false);
    let payload = frames::pattern(4321, 5);
    let mut frame = tcp.frame(MAC, PEER, &payload);
    frames::preload(&mut frame, true);
    let (hdr, mss) = (tcp.header_len(), 1000);
    // Around the end of the ring, and cut after each descriptor in turn.
    for cut in 1..5 {
        for _ in 0..14 {
            let buf = nic.bus.ram().alloc(frame.len()).unwrap();
            buf.write(0, &frame);
            for k in 0..5 {
                let start = if k == 0 { 0 } else { hdr + k * mss };
                let end = (hdr + (k + 1) * mss).min(frame.len());
                let mut flags = TxqFlags::empty();
                flags.set(TxqFlags::TSO_SOT, k == 0);
                flags.set(TxqFlags::TSO_EOT, k == 4);
                let desc = TxqDesc {
                    cmd: TxqDesc::pack(TxqOpcode::TSO, flags, 0, buf.iova() + start as u64).into(),
                    len: ((end - start) as u16).into(),
                    hword1: (hdr as u16).into(),
                    hword2: (mss as u16).into(),
                    ..TxqDesc::default()
                };
                nic.pairs[0].tx.post_raw(&desc, &[]).unwrap();
                if k + 1 == cut {
                    nic.flush(0).unwrap();
                    nic.bus.settle();
                    // The driver frees everything up to a completion: none may come in the middle.
                    while nic.poll(&mut |_| {}).unwrap() {}
                    assert!(wire.lock().sent.is_empty());
                    assert_eq!(usize::from(nic.pairs[0].tx.in_flight()), cut);
                }
            }
            nic.flush(0).unwrap();
            assert_eq!(drain(&mut nic), tcp.segments(MAC, PEER, &payload, mss));
        }
    }
    works(&mut nic);
}

pub fn received_frames_are_scattered<T: TestBus>() {
    // (mtu, piece): the usual, jumbo in pages, and pieces so small that a full frame needs eight elements.
    for (mtu, piece) in [(1500, 4096), (9000, 4096), (1500, 200), (1500, 256), (4078, 4096), (9000, 1024)] {
        let mut nic =
            Ionic::attach(T::make(device_config()), Config { rx_piece: piece, rx_entries: 64, ..Config::default() })
                .unwrap();
        nic.set_mtu(mtu).unwrap();
        nic.up().unwrap();
        let most = mtu as usize + 14;
        let mut lens = vec![14, 15, 60, most - 1, most];
        for k in 1..=8 {
            lens.extend([k * piece - 1, k * piece, k * piece + 1].into_iter().filter(|n| (14..=most).contains(n)));
        }
        let frames: Vec<Vec<u8>> = lens
            .iter()
            .map(|&len| {
                let mut frame = frames::pattern(len, len as u64);
                frame[..14].copy_from_slice(&[&MAC[..], &PEER, &[0x88, 0xb5]].concat());
                frame
            })
            .collect();
        let got = inject(&mut nic, frames.clone());
        assert_eq!(got.len(), frames.len());
        for (got, frame) in got.iter().zip(&frames) {
            assert_eq!(&got.bytes, frame, "{} bytes in pieces of {piece}", frame.len());
            let elements = frame.len().saturating_sub(piece).div_ceil(piece);
            assert_eq!(usize::from(got.sg), elements);
        }
        works(&mut nic);
    }
}

pub fn tags_are_stripped_where_negotiated<T: TestBus>() {
    let mut nic = up::<T>(Config::default());
    for vid in [5, 4094] {
        nic.add_filter(Filter::Vlan(vid)).unwrap();
    }
    let plain = frames::udp(PEER, MAC, b"hello");
    let ping = |nic: &mut Ionic<T>, frame: &[u8]| inject(nic, [frame.to_vec()]).pop();
    for tci in [5, 0xe005, 0x1005, 4094, 0xfffe, 0xa000] {
        let got = ping(&mut nic, &frames::tagged(&plain, tci));
        if matches!(tci & 0xfff, 5 | 4094 | 0) {
            let got = got.unwrap();
            assert_eq!((got.bytes.as_slice(), got.vlan), (plain.as_slice(), Some(tci)));
            assert_eq!(got.pkt_type, PktType::IPV4_UDP.0);
        } else {
            assert_eq!(got, None);
        }
    }
    assert_eq!(ping(&mut nic, &plain).unwrap().vlan, None);
    // A service tag is not one of ours.
    let mut service = frames::tagged(&plain, 5);
    service[12..14].copy_from_slice(&[0x88, 0xa8]);
    let got = ping(&mut nic, &service).unwrap();
    assert_eq!((got.bytes, got.vlan), (service, None));
    // Two tags: only the outer one goes.
    let double = frames::tagged(&frames::tagged(&plain, 7), 5);
    let got = ping(&mut nic, &double).unwrap();
    assert_eq!((got.bytes, got.vlan), (frames::tagged(&plain, 7), Some(5)));
    // `ethtool -K rxvlan off`.
    let features = nic.config.features - EthFeatures::VLAN_RX_STRIP;
    nic.set_features(features).unwrap();
    let got = ping(&mut nic, &frames::tagged(&plain, 5)).unwrap();
    assert_eq!((got.bytes, got.vlan), (frames::tagged(&plain, 5), None));
    // A frame that ends within its tag.
    nic.set_features(nic.config.features).unwrap();
    let short = frames::tagged(&plain, 5);
    inject(
        &mut nic,
        [short[..14].to_vec(), short[..15].to_vec(), short[..16].to_vec(), short[..17].to_vec(), short[..18].to_vec()],
    );
    works(&mut nic);
}

pub fn filters_and_modes<T: TestBus>() {
    let mut nic = up::<T>(Config::default());
    let other = [2, 1, 2, 3, 4, 5];
    let (group, unknown) = ([0x01, 0, 0x5e, 0, 0, 1], [0x01, 0, 0x5e, 1, 2, 3]);
    // Which of these addresses reach the driver?
    let reach = |nic: &mut Ionic<T>| {
        let frames = [MAC, other, group, unknown, [0xff; 6]].map(|dst| frames::udp(PEER, dst, b"x"));
        let got = inject(nic, frames.clone());
        frames.map(|f| got.iter().any(|g| g.bytes == f))
    };
    let normal = RxMode::UNICAST | RxMode::MULTICAST | RxMode::BROADCAST;
    assert_eq!(reach(&mut nic), [true, false, true, false, true]);
    nic.set_rx_mode(normal | RxMode::ALLMULTI).unwrap();
    assert_eq!(reach(&mut nic), [true, false, true, true, true]);
    nic.set_rx_mode(normal | RxMode::PROMISC).unwrap();
    assert_eq!(reach(&mut nic), [true; 5]);
    nic.set_rx_mode(RxMode::UNICAST).unwrap();
    assert_eq!(reach(&mut nic), [true, false, false, false, false]);
    nic.set_rx_mode(RxMode::BROADCAST).unwrap();
    assert_eq!(reach(&mut nic), [false, false, false, false, true]);
    nic.set_rx_mode(RxMode::empty()).unwrap();
    assert_eq!(reach(&mut nic), [false; 5]);
    nic.set_rx_mode(normal).unwrap();
    // A new address of the interface comes as filters only: the identity's address does not count.
    nic.add_filter(Filter::Mac(other)).unwrap();
    nic.remove_filter(Filter::Mac(MAC)).unwrap();
    assert_eq!(reach(&mut nic), [false, true, true, false, true]);
    // Twice the same is refused as "exists", which the driver takes for success; an id that is gone is no error.
    let again = nic.add_filter(Filter::Mac(other)).unwrap();
    assert!(again.is_some());
    let del =
        RxFilterDelCmd { opcode: Opcode::RX_FILTER_DEL, filter_id: 0xdead_beef.into(), ..RxFilterDelCmd::default() };
    nic.admin(&del).unwrap();
    nic.add_filter(Filter::Mac(MAC)).unwrap();
    nic.remove_filter(Filter::Mac(other)).unwrap();
    assert_eq!(reach(&mut nic), [true, false, true, false, true]);
    works(&mut nic);
}

pub fn vlan_filters<T: TestBus>() {
    let mut nic = up::<T>(Config::default());
    let plain = frames::udp(PEER, MAC, b"x");
    let reach = |nic: &mut Ionic<T>, tci: u16| inject(nic, [frames::tagged(&plain, tci)]).len() == 1;
    assert!(!reach(&mut nic, 5) && reach(&mut nic, 0x2000));
    nic.add_filter(Filter::Vlan(5)).unwrap();
    assert!(reach(&mut nic, 5) && reach(&mut nic, 0xf005) && !reach(&mut nic, 6));
    nic.remove_filter(Filter::Vlan(5)).unwrap();
    assert!(!reach(&mut nic, 5));
    // `ethtool -K rx-vlan-filter off`: all VLANs pass.
    nic.set_features(nic.config.features - EthFeatures::VLAN_RX_FILTER).unwrap();
    assert!(reach(&mut nic, 5) && reach(&mut nic, 6));
    works(&mut nic);
}

/// Queues of frames of different flows, by the driver's own hash.
pub fn rss_spreads_by_toeplitz<T: TestBus>() {
    let mut nic = up::<T>(Config { queues: 4, rx_entries: 256, tx_entries: 64, ..Config::default() });
    let key = nic.config.rss_key;
    let flows: Vec<Vec<u8>> = (0..200_u16)
        .map(|i| {
            let [a, b] = i.to_be_bytes();
            match i % 4 {
                0 => frames::udp_flow(PEER, MAC, ([10, 0, a, b], 1000 + i), ([10, 9, 9, 9], 53), b"q"),
                1 => {
                    let mut f = frames::Tcp::plain(false).frame(PEER, MAC, b"tcp");
                    f[34..36].copy_from_slice(&i.to_be_bytes());
                    f
                }
                2 => {
                    let mut f = frames::Tcp::plain(true).frame(PEER, MAC, b"tcp6");
                    f[54..56].copy_from_slice(&i.to_be_bytes());
                    f
                }
                _ => {
                    let mut f = frames::udp6(PEER, MAC, b"udp6");
                    f[37] = b;
                    f
                }
            }
        })
        .collect();
    let table: Vec<u8> = (0..128).map(|i| i % 4).collect();
    let check_with = |nic: &mut Ionic<T>, types: RssTypes, table: &[u8]| {
        let got = inject(nic, flows.clone());
        assert_eq!(got.len(), flows.len());
        for frame in &flows {
            let got: &Got = got.iter().find(|g| &g.bytes == frame).unwrap();
            let hash = check::rss_hash(&key, types, frame);
            assert_eq!(got.hash, hash);
            assert_eq!(got.queue, usize::from(table[hash as usize % 128]), "hash {hash:#x}");
        }
        got.iter().map(|g| g.queue).collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!(check_with(&mut nic, RssTypes::all(), &table), 4);
    // Another table, and hashes of addresses only.
    let skewed: Vec<u8> = (0..128).map(|i| u8::from(i % 3 == 0) * 2).collect();
    nic.set_rss_table(RssTypes::all(), &skewed).unwrap();
    assert_eq!(check_with(&mut nic, RssTypes::all(), &skewed), 2);
    nic.set_rss_table(RssTypes::IPV4 | RssTypes::IPV6, &table).unwrap();
    check_with(&mut nic, RssTypes::IPV4 | RssTypes::IPV6, &table);
    nic.set_rss_table(RssTypes::IPV4_TCP, &table).unwrap();
    check_with(&mut nic, RssTypes::IPV4_TCP, &table);
    // Off: everything to queue 0.
    nic.set_rss_table(RssTypes::empty(), &table).unwrap();
    assert!(inject(&mut nic, flows.clone()).iter().all(|g| g.queue == 0 && g.hash == 0));
    // Frames that are not IP, and fragments, whose ports are not ports.
    nic.set_rss_table(RssTypes::all(), &table).unwrap();
    let mut arp = frames::udp(PEER, MAC, &[0; 40]);
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    let mut fragment = frames::udp(PEER, MAC, b"fragment");
    fragment[20..22].copy_from_slice(&0x2000_u16.to_be_bytes());
    fragment[24..26].fill(0);
    let sum = !check::sum(&fragment[14..34]);
    fragment[24..26].copy_from_slice(&sum.to_le_bytes());
    let got = inject(&mut nic, [arp, fragment.clone()]);
    assert_eq!((got.len(), got[0].queue.min(got[1].queue)), (2, 0));
    let of_fragment = got.iter().find(|g| g.bytes == fragment).unwrap();
    assert_eq!(of_fragment.hash, check::rss_hash(&key, RssTypes::all(), &fragment));
    works(&mut nic);
}

pub fn checksum_complete_is_right<T: TestBus>() {
    let mut nic = up::<T>(Config::default());
    nic.add_filter(Filter::Vlan(5)).unwrap();
    let mut all: Vec<Vec<u8>> = Vec::new();
    for len in [0, 1, 2, 3, 17, 18, 100, 1001, 1471] {
        let payload = frames::pattern(len, len as u64);
        all.push(frames::udp(PEER, MAC, &payload));
        all.push(frames::Tcp::plain(true).frame(PEER, MAC, &payload[..len.min(1400)]));
        all.push(frames::tagged(&frames::udp(PEER, MAC, &payload), 5));
        // Not IP, and a wrong checksum: the sum is of the bytes whatever they mean.
        let mut raw = frames::pattern(14 + len, 9);
        raw[..14].copy_from_slice(&[&MAC[..], &PEER, &[0x88, 0xb5]].concat());
        all.push(raw);
        let mut wrong = frames::udp(PEER, MAC, &payload);
        wrong[40] ^= 0x55;
        all.push(wrong);
    }
    let got = inject(&mut nic, all.clone());
    assert_eq!(got.len(), all.len());
    for got in &got {
        let sum = check::sum(&got.bytes[14..]);
        assert_eq!(got.csum, Some(sum), "{} bytes", got.bytes.len());
    }
    assert_eq!(nic.stats.rx_csum_complete, all.len() as u64);
    // `ethtool -K rx off`: no sum, and Linux computes it.
    nic.set_features(nic.config.features - EthFeatures::RX_CSUM).unwrap();
    assert!(inject(&mut nic, all).iter().all(|g| g.csum.is_none()));
    works(&mut nic);
}

pub fn mtu_changes<T: TestBus>() {
    let mut nic = up::<T>(Config { rx_entries: 64, tx_entries: 64, ..Config::default() });
    let wire = nic.bus.wire();
    for mtu in [9000, 68, 1500, 576, 9000, 1500] {
        nic.set_mtu(mtu).unwrap();
        nic.bus.settle();
        assert_eq!(wire.lock().mtus.last(), Some(&mtu));
        let info = nic.bus.with_device(|d| d.mtu());
        assert_eq!(info, mtu);
        let largest = mtu as usize - 28;
        let out = frames::udp(MAC, PEER, &frames::pattern(largest, 1));
        nic.send(0, &out, TxOffload::None, None).unwrap();
        assert_eq!(drain(&mut nic), [out]);
        let into = frames::udp(PEER, MAC, &frames::pattern(largest, 2));
        assert_eq!(inject(&mut nic, [into.clone()]).pop().unwrap().bytes, into);
        // With a tag in the frame, too.
        nic.set_features(nic.config.features - EthFeatures::VLAN_RX_STRIP - EthFeatures::VLAN_RX_FILTER).unwrap();
        let tagged = frames::tagged(&into, 5);
        assert_eq!(inject(&mut nic, [tagged.clone()]).pop().unwrap().bytes, tagged);
        nic.set_features(nic.config.features).unwrap();
    }
    for mtu in [9001, 0, 67, u32::MAX] {
        let refused = nic.set_mtu(mtu).unwrap_err();
        assert!(matches!(refused, DriverError::Refused { opcode: Opcode::LIF_SETATTR, .. }), "{mtu}: {refused}");
        assert_eq!(nic.bus.with_device(|d| d.mtu()), 1500, "nothing changed");
    }
    works(&mut nic);
}
