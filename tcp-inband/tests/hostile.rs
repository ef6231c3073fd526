//! Property tests: no bytes and no order of calls make the endpoint panic, hang or forget how to serve the next.
#![allow(clippy::cast_possible_truncation)]

mod common;

use std::net::Ipv4Addr;

use common::*;
use etherparse::{IpNumber, TcpHeader};
use proptest::prelude::*;
use tcp_inband::{Config, Stream};

const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/hostile.txt");

/// A good connection after whatever happened.
fn serves(lab: &mut Lab) {
    lab.queue.room = usize::MAX;
    lab.endpoint.set_mtu(1500);
    // Retransmissions and timeouts of a few connections, and no busy loop.
    let deadlines = lab.sleep(secs(1_000));
    assert!(deadlines < 300, "{deadlines} deadlines");
    lab.take();
    while lab.endpoint.accept().is_some() {}
    lab.take();
    let guest = Guest { ip: Ipv4Addr::new(192, 168, 200, 200), mac: [2, 0, 0, 0, 0, 200], tci: None };
    let (mut peer, mut stream) = lab.connect(guest, 60_000, 1460);
    lab.give(&peer.segment(b"request"));
    assert_eq!(read(&mut stream), b"request");
    assert_eq!(write(&mut stream, b"answer"), 6);
    for out in lab.take() {
        if out.to == guest.ip {
            peer.took(&out);
        }
    }
    assert_eq!(peer.received, b"answer");
}

proptest! {
    #![proptest_config(cases(REGRESSIONS))]

    #[test]
    fn any_bytes(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..8), addressed in any::<bool>()) {
        let mut lab = Lab::new(config());
        for mut frame in frames {
            if addressed && frame.len() >= 14 {
                frame[..6].copy_from_slice(&MAC);
                frame[6] &= 0xfe;
                let ethertype = if frame[6] & 2 == 0 { [8, 0] } else { [8, 6] };
                frame[12..14].copy_from_slice(&ethertype);
            }
            let _ = lab.endpoint.wants(&frame);
            lab.give(&frame);
        }
        lab.take();
        serves(&mut lab);
    }
}

/// A frame that some part of the endpoint takes seriously.
fn valid_frame() -> impl Strategy<Value = Vec<u8>> {
    let guest = prop_oneof![Just(GUEST), any::<u16>().prop_map(|tci| GUEST.tagged(tci))];
    let payload = || prop::collection::vec(any::<u8>(), 0..400);
    (guest, payload(), any::<u16>()).prop_flat_map(|(guest, payload, port)| {
        let (p1, p2, p3) = (payload.clone(), payload.clone(), payload);
        prop_oneof![
            Just(guest.arp(BROADCAST, 1, guest.ip, IP)),
            Just(guest.ping(&p1)),
            Just(guest.udp(port, 68, &p2)),
            Just(guest.udp(68, 67, &p3)),
            Just(Peer::new(guest, port).syn(Some(port))),
            tcp_header().prop_map(move |header| guest.tcp(&header, &p2)),
        ]
    })
}

fn tcp_header() -> impl Strategy<Value = TcpHeader> {
    (any::<u16>(), any::<u32>(), any::<u32>(), any::<u16>(), any::<u8>()).prop_map(|(port, seq, ack, window, flags)| {
        let mut header = TcpHeader::new(port % 4 + 1000, PORT, seq, window);
        header.acknowledgment_number = ack;
        header.fin = flags & 1 != 0;
        header.syn = flags & 2 != 0;
        header.rst = flags & 4 != 0;
        header.psh = flags & 8 != 0;
        header.ack = flags & 16 != 0;
        header
    })
}

proptest! {
    #![proptest_config(cases(REGRESSIONS))]

    #[test]
    fn damaged_frames(
        frames in prop::collection::vec(
            (valid_frame(), prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), any::<prop::sample::Index>(), any::<bool>()),
            1..20,
        ),
    ) {
        let mut lab = Lab::new(Config { max_connections: 4, max_parked: 4, ..config() });
        for (mut frame, changes, end, cut) in frames {
            for (at, value) in changes {
                let at = at.index(frame.len());
                frame[at] = value;
            }
            if cut {
                frame.truncate(end.index(frame.len()));
            }
            lab.give(&frame);
            lab.take();
        }
        serves(&mut lab);
    }
}

/// What a hostile guest, an impatient user and a moody sink can do, on a few connections.
#[derive(Debug, Clone)]
enum Step {
    Syn {
        port: u16,
        fresh: bool,
    },
    /// A segment near where the connection is: offsets from the right sequence and acknowledgement numbers.
    Segment {
        port: u16,
        seq: i32,
        ack: i32,
        flags: u8,
        window: u16,
        len: usize,
    },
    Wild {
        port: u16,
        seq: u32,
        ack: u32,
        flags: u8,
        len: usize,
    },
    Write {
        index: usize,
        len: usize,
    },
    Read {
        index: usize,
        len: usize,
    },
    Close {
        index: usize,
    },
    Drop {
        index: usize,
    },
    Busy {
        index: usize,
        busy: bool,
    },
    Poll {
        room: usize,
    },
    Time {
        millis: u64,
    },
    Mtu {
        mtu: usize,
    },
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    let port = || 1000u16..1004;
    let near = || prop_oneof![4 => Just(0i32), 2 => -3i32..4, 2 => -70_000i32..70_000, 1 => any::<i32>()];
    let len = || prop_oneof![Just(0usize), 1usize..10, 1usize..3000, Just(60_000usize)];
    let flags = || prop_oneof![6 => Just(16u8), 2 => Just(17u8), 1 => any::<u8>()];
    prop_oneof![
        2 => (port(), any::<bool>()).prop_map(|(port, fresh)| Step::Syn { port, fresh }),
        12 => (port(), near(), near(), flags(), prop_oneof![Just(0u16), Just(0xffff), any::<u16>()], len())
            .prop_map(|(port, seq, ack, flags, window, len)| Step::Segment { port, seq, ack, flags, window, len }),
        1 => (port(), any::<u32>(), any::<u32>(), any::<u8>(), len())
            .prop_map(|(port, seq, ack, flags, len)| Step::Wild { port, seq, ack, flags, len }),
        4 => (0usize..4, len()).prop_map(|(index, len)| Step::Write { index, len }),
        4 => (0usize..4, len()).prop_map(|(index, len)| Step::Read { index, len }),
        1 => (0usize..4).prop_map(|index| Step::Close { index }),
        1 => (0usize..4).prop_map(|index| Step::Drop { index }),
        1 => (0usize..4, any::<bool>()).prop_map(|(index, busy)| Step::Busy { index, busy }),
        6 => prop_oneof![Just(0usize), 1usize..4, Just(10_000)].prop_map(|room| Step::Poll { room }),
        3 => prop_oneof![0u64..50, 500u64..3_000, Just(70_000u64)].prop_map(|millis| Step::Time { millis }),
        1 => prop_oneof![Just(68usize), Just(1500), Just(9000), 68usize..9199].prop_map(|mtu| Step::Mtu { mtu }),
        1 => Just(Step::Reset),
    ]
}

proptest! {
    #![proptest_config(cases(REGRESSIONS))]

    #[test]
    fn any_order_of_steps(
        steps in prop::collection::vec(step(), 1..80),
        seed in any::<u64>(),
        buffer in prop_oneof![Just(4096usize), Just(64 << 10), Just(100_000), Just(1 << 20)],
        scaled in any::<bool>(),
    ) {
        let mut lab = Lab::new(Config { max_connections: 3, max_parked: 2, buffer, seed, ..config() });
        let mut peers: Vec<Peer> = (1000..1004).map(|port| Peer::new(GUEST, port)).collect();
        let mut streams: Vec<Stream> = Vec::new();
        let body = pattern(60_000, 1);
        for step in steps {
            match step {
                Step::Syn { port, fresh } => {
                    let peer = &mut peers[usize::from(port - 1000)];
                    if fresh {
                        *peer = Peer { isn: peer.isn.wrapping_add(77_777), ..Peer::new(GUEST, port) };
                    }
                    peer.scale = if scaled { 7 } else { 14 };
                    let frame = peer.syn(Some(port));
                    lab.give(&frame);
                }
                Step::Segment { port, seq, ack, flags, window, len } => {
                    let peer = &mut peers[usize::from(port - 1000)];
                    let mut header = peer.header();
                    header.sequence_number = peer.seq.wrapping_add_signed(seq);
                    header.acknowledgment_number = peer.ack.wrapping_add_signed(ack);
                    header.window_size = window;
                    header.fin = flags & 1 != 0;
                    header.syn = flags & 2 != 0;
                    header.rst = flags & 4 != 0;
                    header.psh = flags & 8 != 0;
                    header.ack = flags & 16 != 0;
                    if seq == 0 && flags & 6 == 0 {
                        peer.seq = peer.seq.wrapping_add(len as u32 + u32::from(header.fin));
                    }
                    lab.give(&GUEST.tcp(&header, &body[..len]));
                }
                Step::Wild { port, seq, ack, flags, len } => {
                    let mut header = TcpHeader::new(port, PORT, seq, 1000);
                    header.acknowledgment_number = ack;
                    header.ack = flags & 16 != 0;
                    header.fin = flags & 1 != 0;
                    let mut bytes = header.to_bytes().to_vec();
                    bytes.extend(&body[..len]);
                    lab.give(&GUEST.ip(IpNumber::TCP, &bytes));
                }
                Step::Write { index, len } => {
                    if let Some(stream) = streams.get_mut(index) {
                        let _ = poll_write(stream, &body[..len]);
                    }
                }
                Step::Read { index, len } => {
                    if let Some(stream) = streams.get_mut(index) {
                        let _ = poll_read(stream, len);
                    }
                }
                Step::Close { index } => {
                    if index < streams.len() {
                        close(streams.remove(index));
                    }
                }
                Step::Drop { index } => {
                    if index < streams.len() {
                        drop(streams.remove(index));
                    }
                }
                Step::Busy { index, busy } => {
                    if let Some(stream) = streams.get(index) {
                        let activity = stream.activity();
                        if busy { activity.request_started() } else { activity.request_finished() }
                    }
                }
                Step::Poll { room } => {
                    lab.queue.room = room;
                    for out in lab.take() {
                        let port = out.tcp().0.destination_port;
                        let peer = &mut peers[usize::from(port - 1000)];
                        let (header, payload) = out.tcp();
                        if header.syn {
                            peer.seq = peer.isn.wrapping_add(1);
                            peer.ack = header.sequence_number.wrapping_add(1);
                        } else if header.sequence_number == peer.ack {
                            peer.ack = peer.ack.wrapping_add(payload.len() as u32 + u32::from(header.fin));
                        }
                    }
                    // After a poll that ended, there is nothing to be done at once.
                    let at = lab.endpoint.poll_at();
                    prop_assert!(at.is_none_or(|at| at > lab.now), "{at:?} at {:?}", lab.now);
                }
                Step::Time { millis } => lab.now += ms(millis),
                Step::Mtu { mtu } => lab.endpoint.set_mtu(mtu),
                Step::Reset => {
                    lab.endpoint.reset();
                    lab.queue.room = 1_000;
                    prop_assert!(lab.take().is_empty());
                }
            }
            while let Some(stream) = lab.endpoint.accept() {
                streams.push(stream);
            }
            prop_assert!(lab.endpoint.stats().live <= 3 && lab.endpoint.stats().parked <= 2);
        }
        drop(streams);
        serves(&mut lab);
    }
}
