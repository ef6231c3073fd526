//! Frames in, frames out: each made and checked byte by byte without smoltcp.
#![allow(clippy::cast_possible_truncation)]

mod common;

use std::{io::ErrorKind, net::Ipv4Addr, task::Poll};

use common::*;
use etherparse::{IpNumber, TcpHeader};
use tcp_inband::{Config, ConfigError, Endpoint, FrameSink, Timeouts};

// ARP, ICMP, UDP

#[test]
fn arp_is_answered_for_our_address_only() {
    let mut lab = Lab::new(config());
    let request = GUEST.arp(BROADCAST, 1, GUEST.ip, IP);
    assert!(lab.endpoint.wants(&request) && lab.endpoint.wants(&request[..42]));
    lab.give(&request);
    let reply = lab.one();
    assert_eq!((reply.dst, reply.tci), (GUEST.mac, None));
    let Content::Arp(bytes) = reply.content else { panic!() };
    let mut expected = vec![0, 1, 8, 0, 6, 4, 0, 2];
    expected.extend(MAC);
    expected.extend(IP.octets());
    expected.extend(GUEST.mac);
    expected.extend(GUEST.ip.octets());
    assert_eq!(bytes, expected);

    // A probe before the address is taken (RFC 5227), a refresh by unicast, one with trailing padding.
    lab.give(&GUEST.arp(BROADCAST, 1, Ipv4Addr::UNSPECIFIED, IP));
    lab.give(&GUEST.arp(MAC, 1, GUEST.ip, IP));
    let mut padded = request.clone();
    padded.resize(60, 0);
    lab.give(&padded);
    assert_eq!(lab.take().len(), 3);

    let other = GUEST.arp(BROADCAST, 1, GUEST.ip, Ipv4Addr::new(192, 168, 200, 9));
    assert!(!lab.endpoint.wants(&other));
    lab.give(&other);
    lab.give(&GUEST.arp(BROADCAST, 2, GUEST.ip, IP));
    lab.nothing();
    assert_eq!((lab.endpoint.stats().arp, lab.endpoint.stats().not_ours), (4, 2));

    for end in 14..42 {
        lab.give(&request[..end]);
    }
    lab.nothing();
    assert_eq!(lab.endpoint.stats().malformed, 28);
}

#[test]
fn echo_of_any_size_up_to_the_mtu() {
    let mut lab = Lab::new(Config { mtu: 9000, ..config() });
    for len in [0, 1, 2, 17, 56, 1471, 1472, 1473, 8971, 8972] {
        let payload = pattern(len, len as u64);
        lab.give(&GUEST.ping(&payload));
        let reply = lab.one();
        assert_eq!((reply.dst, reply.to, reply.ip_len), (GUEST.mac, GUEST.ip, 28 + len));
        let Content::Icmp(kind, code, rest) = reply.content else { panic!() };
        assert_eq!((kind, code, &rest[..4], &rest[4..]), (0, 0, &[0x12, 0x34, 0, 7][..], &payload[..]));
    }
    lab.give(&GUEST.ping(&pattern(8973, 1)));
    lab.nothing();
    lab.endpoint.set_mtu(1500);
    lab.give(&GUEST.ping(&pattern(1473, 1)));
    lab.nothing();
    lab.give(&GUEST.ping(&pattern(1472, 1)));
    assert_eq!(lab.one().ip_len, 1500);
}

#[test]
fn what_nobody_listens_to_is_refused_by_icmp() {
    let mut lab = Lab::new(config());
    lab.give(&GUEST.udp(5000, 53, b"query"));
    let Content::Icmp(kind, code, rest) = lab.one().content else { panic!() };
    // Port unreachable, with the head of what was sent.
    assert_eq!((kind, code), (3, 3));
    assert_eq!(rest[4 + 20..][..4], [5000u16.to_be_bytes(), 53u16.to_be_bytes()].concat());
    lab.give(&GUEST.ip(IpNumber::GRE, b"tunnel"));
    let Content::Icmp(kind, code, _) = lab.one().content else { panic!() };
    assert_eq!((kind, code), (3, 2));
    assert_eq!((lab.endpoint.stats().udp, lab.endpoint.stats().unsupported), (1, 1));
}

// TCP

#[test]
fn handshake_request_answer() {
    for (mtu, mss) in [(1500, 1460), (9000, 8960)] {
        let mut lab = Lab::new(Config { mtu, ..config() });
        let mut peer = Peer::new(GUEST, 40_000);
        lab.give(&peer.syn(Some(1460)));
        assert!(lab.endpoint.accept().is_none());
        let syn_ack = lab.one();
        assert_eq!((syn_ack.mss(), syn_ack.window_scale(), syn_ack.dst), (Some(mss), Some(1), GUEST.mac));
        assert_eq!(syn_ack.tcp().0.window_size, 0xffff);
        peer.took(&syn_ack);
        lab.give(&peer.segment(b""));
        lab.nothing();
        let mut stream = lab.accept();
        assert_eq!(stream.peer().to_string(), "192.168.200.2:40000");
        assert!(lab.endpoint.accept().is_none());

        assert!(poll_read(&mut stream, 10).is_pending());
        lab.give(&peer.segment(b"GET / HTTP/1.1\r\n\r\n"));
        assert_eq!(read(&mut stream), b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(write(&mut stream, b"HTTP/1.1 200 OK\r\n\r\n"), 19);
        // The acknowledgement travels with the answer.
        let answer = lab.one();
        assert_eq!(answer.tcp().1, b"HTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(answer.tcp().0.acknowledgment_number, peer.seq);
        assert!(answer.tcp().0.psh);
        peer.took(&answer);
        lab.give(&peer.segment(b""));
        lab.nothing();
        let stats = lab.endpoint.stats();
        assert_eq!((stats.accepted, stats.live, stats.syns, stats.strays), (1, 1, 1, 0));
        assert_eq!((stats.frames_in, stats.frames_out), (4, 2));
        assert_eq!(stats.bytes_out, (14 + 20 + 20 + 8 + 4) + (14 + 20 + 20 + 19));
    }
}

#[test]
fn case_07_small_writes_are_acknowledged_and_readable_at_once() {
    let mut lab = Lab::new(config());
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    let request = b"GET /a HTTP/1.1\r\nhost: b\r\n\r\n";
    // Two writes, then a byte at a time: no timer is needed for any of them.
    for piece in [&request[..10], &request[10..]].into_iter().chain(request.chunks(1)) {
        lab.give(&peer.segment(piece));
        assert_eq!(read(&mut stream), piece);
        let ack = lab.one();
        assert_eq!((ack.tcp().0.acknowledgment_number, ack.tcp().1.len()), (peer.seq, 0));
    }
    // Two requests in one segment; two answers written one after the other go at once, in order (no Nagle).
    lab.give(&peer.segment(&[&request[..], &request[..]].concat()));
    assert_eq!(read(&mut stream).len(), 2 * request.len());
    for answer in [b"first ", b"second"] {
        assert_eq!(write(&mut stream, answer), 6);
        let out = lab.one();
        assert_eq!(out.tcp().1, answer);
        peer.took(&out);
    }
    assert_eq!(peer.received, b"first second");
}

#[test]
fn segments_follow_the_peers_mss_and_our_mtu() {
    // (MTU, peer's MSS, largest segment); without the option it is 536 (RFC 9293, section 3.7.1).
    for (mtu, mss, expected) in [
        (1500, Some(1460), 1460),
        (1500, Some(536), 536),
        (1500, Some(8960), 1460),
        (9000, Some(8960), 8960),
        (9000, Some(1460), 1460),
        (9000, None, 536),
        (576, Some(1460), 536),
    ] {
        let mut lab = Lab::new(Config { mtu, ..config() });
        let mut peer = Peer::new(GUEST, 40_000);
        lab.give(&peer.syn(mss));
        let syn_ack = lab.one();
        peer.took(&syn_ack);
        lab.give(&peer.segment(b""));
        let mut stream = lab.accept();
        let body = pattern(64 << 10, 7);
        assert_eq!(write(&mut stream, &body), body.len());
        let out = lab.take();
        for segment in &out {
            peer.took(segment);
        }
        let sizes: Vec<usize> = out.iter().map(|segment| segment.tcp().1.len()).collect();
        let (last, full) = sizes.split_last().unwrap();
        assert!(full.iter().all(|&size| size == expected), "{mtu} {mss:?}: {sizes:?}");
        assert_eq!(*last, (64 << 10) - full.len() * expected);
        assert!(peer.received == body);
    }
}

#[test]
fn the_peers_window_is_respected_and_probed() {
    let mut lab = Lab::new(config());
    let mut peer = Peer { window: 3000, scale: 0, ..Peer::new(GUEST, 40_000) };
    lab.give(&peer.syn(Some(1460)));
    let syn_ack = lab.one();
    peer.took(&syn_ack);
    lab.give(&peer.segment(b""));
    let mut stream = lab.accept();
    let body = pattern(10_000, 3);
    assert_eq!(write(&mut stream, &body), body.len());
    for segment in lab.take() {
        peer.took(&segment);
    }
    assert_eq!(peer.received.len(), 3000);
    // The window closes; after a while a single byte asks whether it still is.
    peer.window = 0;
    lab.give(&peer.segment(b""));
    lab.nothing();
    lab.sleep(ms(1_100));
    let probe = lab.one();
    assert_eq!(probe.tcp().1, &body[3000..3001]);
    lab.give(&peer.segment(b""));
    lab.nothing();
    peer.window = 0xffff;
    lab.give(&peer.segment(b""));
    for segment in lab.take() {
        peer.took(&segment);
    }
    assert!(peer.received == body);
}

#[test]
fn a_super_frame_of_the_guest_is_taken_whole() {
    let mut lab = Lab::new(config());
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    let body = pattern(65_535 - 40, 9);
    lab.give(&peer.segment(&body));
    assert_eq!(lab.one().tcp().0.acknowledgment_number, peer.seq);
    assert!(read(&mut stream) == body);
    // Reading opened the window: the peer is told.
    assert!(usize::from(lab.one().tcp().0.window_size) << 1 > 60_000);
}

#[test]
fn data_without_an_acknowledgement_is_sent_again() {
    let mut lab = Lab::new(config());
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    write(&mut stream, b"answer");
    let first = lab.one();
    lab.sleep(ms(990));
    lab.nothing();
    lab.sleep(ms(20));
    let again = lab.one();
    assert_eq!(again.tcp().0.sequence_number, first.tcp().0.sequence_number);
    assert_eq!(again.tcp().1, b"answer");
    // And again after twice the time.
    lab.sleep(ms(1_900));
    lab.nothing();
    lab.sleep(ms(200));
    peer.took(&lab.one());
    lab.give(&peer.segment(b""));
    lab.sleep(secs(20));
    lab.nothing();
    assert_eq!(peer.received, b"answer");
}

#[test]
fn three_repeated_acknowledgements_fetch_a_lost_segment_without_a_timer() {
    let mut lab = Lab::new(config());
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    let body = pattern(5 * 1460, 5);
    write(&mut stream, &body);
    let out = lab.take();
    peer.took(&out[0]);
    // The second is lost: the others repeat the same acknowledgement.
    for _ in &out[1..] {
        lab.give(&peer.segment(b""));
    }
    let again = lab.one();
    assert_eq!(again.tcp().1, out[1].tcp().1);
    for segment in [&again, &out[2], &out[3], &out[4]] {
        peer.took(segment);
    }
    assert!(peer.received == body);
}

#[test]
fn a_fast_retransmission_without_room_is_not_forgotten() {
    // By smoltcp 0.14 alone it would be, and with it the timer.
    let mut lab = Lab::new(config());
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    write(&mut stream, &pattern(5 * 1460, 5));
    let out = lab.take();
    peer.took(&out[0]);
    for _ in &out[1..] {
        lab.give(&peer.segment(b""));
    }
    lab.queue.room = 0;
    lab.nothing();
    lab.now += secs(3);
    lab.nothing();
    lab.queue.room = 100;
    assert_eq!(lab.one().tcp().1, out[1].tcp().1);
    // Lost again: the timer runs.
    lab.sleep(ms(1_100));
    assert_eq!(lab.take()[0].tcp().1, out[1].tcp().1);
}

#[test]
fn segments_out_of_order_and_repeated_are_put_right() {
    let mut lab = Lab::new(config());
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    let pieces: Vec<Vec<u8>> = (0..4).map(|n| peer.segment(&pattern(1000, n))).collect();
    for n in [0, 2, 3, 3, 1, 0] {
        lab.give(&pieces[n]);
    }
    let expected: Vec<u8> = (0..4).flat_map(|n| pattern(1000, n)).collect();
    assert!(read(&mut stream) == expected);
    assert_eq!(lab.take().last().unwrap().tcp().0.acknowledgment_number, peer.seq);
}

#[test]
fn other_ports_and_unknown_connections_are_reset() {
    let mut lab = Lab::new(config());
    let closed = Peer { to_port: 80, ..Peer::new(GUEST, 40_000) };
    lab.give(&closed.syn(Some(1460)));
    let reset = lab.one();
    let (header, _) = reset.tcp();
    assert!(header.rst && header.ack);
    assert_eq!((header.source_port, header.acknowledgment_number), (80, closed.isn.wrapping_add(1)));

    let mut unknown = Peer { ack: 77, ..Peer::new(GUEST, 40_001) };
    lab.give(&unknown.segment(b"hello"));
    let reset = lab.one();
    assert!(reset.tcp().0.rst && !reset.tcp().0.ack);
    assert_eq!(reset.tcp().0.sequence_number, 77);
    // Never a reset for a reset.
    lab.give(&unknown.rst());
    lab.nothing();
    assert_eq!((lab.endpoint.stats().strays, lab.endpoint.stats().live), (3, 0));
}

#[test]
fn the_guest_closes_first() {
    let mut lab = Lab::new(config());
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    lab.give(&peer.segment(b"last request"));
    lab.give(&peer.fin());
    assert_eq!(read(&mut stream), b"last request");
    assert!(is_end_of_file(&mut stream));
    // Its half is closed, ours is not.
    assert_eq!(lab.one().tcp().0.acknowledgment_number, peer.seq);
    write(&mut stream, b"answer");
    peer.took(&lab.one());
    close(stream);
    let fin = lab.one();
    assert!(fin.tcp().0.fin);
    peer.took(&fin);
    lab.give(&peer.segment(b""));
    lab.nothing();
    assert_eq!(peer.received, b"answer");
    assert_eq!(lab.endpoint.stats().live, 0);
    assert_eq!(lab.endpoint.poll_at(), None);
}

#[test]
fn we_close_first() {
    let mut lab = Lab::new(config());
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    write(&mut stream, b"answer");
    close(stream);
    // Data and FIN in one segment.
    let last = lab.one();
    assert!(last.tcp().0.fin);
    peer.took(&last);
    lab.give(&peer.segment(b""));
    lab.nothing();
    assert_eq!(lab.endpoint.stats().live, 1);
    lab.give(&peer.fin());
    let ack = lab.one();
    assert_eq!((ack.tcp().0.acknowledgment_number, ack.tcp().0.rst), (peer.seq, false));
    assert_eq!(lab.endpoint.stats().live, 0);
    // Had our last ACK been lost, its FIN would come again and be acknowledged again.
    peer.seq = peer.seq.wrapping_sub(1);
    lab.give(&peer.fin());
    let ack = lab.one();
    assert_eq!((ack.tcp().0.acknowledgment_number, ack.tcp().0.rst), (peer.seq, false));
    // After TIME-WAIT (10 s) nobody remembers, and nothing is left to wait for.
    lab.sleep(secs(11));
    assert_eq!(lab.endpoint.poll_at(), None);
    lab.give(&peer.fin());
    assert!(lab.one().tcp().0.rst);
}

#[test]
fn both_close_at_once() {
    let mut lab = Lab::new(config());
    let (mut peer, stream) = lab.connect(GUEST, 40_000, 1460);
    close(stream);
    let fin = lab.one();
    // The guest's FIN crosses ours.
    lab.give(&peer.fin());
    assert_eq!(lab.one().tcp().0.acknowledgment_number, peer.seq);
    peer.took(&fin);
    lab.give(&peer.segment(b""));
    lab.nothing();
    assert_eq!(lab.endpoint.stats().live, 0);
}

#[test]
fn a_fin_after_which_the_answer_still_flows() {
    let mut lab = Lab::new(config());
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    lab.give(&peer.segment(b"GET"));
    lab.give(&peer.fin());
    let body = pattern(200_000, 1);
    let mut sent = write(&mut stream, &body);
    while peer.received.len() < body.len() {
        for out in lab.take() {
            peer.took(&out);
        }
        lab.give(&peer.segment(b""));
        sent += write(&mut stream, &body[sent..]);
    }
    assert!(peer.received == body);
}

#[test]
fn a_reset_ends_the_stream_and_frees_the_place() {
    let mut lab = Lab::new(config());
    let (peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    lab.give(&peer.rst());
    lab.nothing();
    assert_eq!(read_error(&mut stream), ErrorKind::ConnectionReset);
    assert!(matches!(poll_write(&mut stream, b"x"), Poll::Ready(Err(e)) if e.kind() == ErrorKind::ConnectionReset));
    let stats = lab.endpoint.stats();
    assert_eq!((stats.peer_resets, stats.live, stats.aborted), (1, 0, 0));
    // The stream's end is not the end of the connection that has its place now.
    let (mut second, mut used) = lab.connect(GUEST, 40_001, 1460);
    drop(stream);
    lab.give(&second.segment(b"still here"));
    assert_eq!(read(&mut used), b"still here");
    lab.one();
}

#[test]
fn dropping_a_stream_without_shutdown_resets() {
    let mut lab = Lab::new(config());
    let (_, stream) = lab.connect(GUEST, 40_000, 1460);
    drop(stream);
    assert!(lab.one().tcp().0.rst);
    assert_eq!((lab.endpoint.stats().aborted, lab.endpoint.stats().live), (1, 0));
    // One that was never accepted goes the same way as any other once it is.
    let mut peer = Peer::new(GUEST, 40_001);
    lab.give(&peer.syn(Some(1460)));
    let syn_ack = lab.one();
    peer.took(&syn_ack);
    lab.give(&peer.segment(b""));
    drop(lab.accept());
    assert!(lab.one().tcp().0.rst);
}

#[test]
fn a_repeated_syn_makes_no_second_connection() {
    let mut lab = Lab::new(config());
    let mut peer = Peer::new(GUEST, 40_000);
    for _ in 0..3 {
        lab.give(&peer.syn(Some(1460)));
    }
    let syn_ack = lab.one();
    peer.took(&syn_ack);
    lab.give(&peer.segment(b""));
    let mut stream = lab.accept();
    // One that was on its way for long.
    lab.give(&peer.syn(Some(1460)));
    lab.nothing();
    lab.give(&peer.segment(b"data"));
    assert_eq!(read(&mut stream), b"data");
    let stats = lab.endpoint.stats();
    assert_eq!((stats.accepted, stats.live, stats.syns, stats.replaced), (1, 1, 4, 0));
}

#[test]
fn case_22_same_port_again_while_the_old_connection_is_busy() {
    let mut lab = Lab::new(config());
    let (_, mut old) = lab.connect(GUEST, 40_000, 1460);
    write(&mut old, &pattern(50_000, 1));
    assert!(lab.take().len() > 30);
    // The guest rebooted without a word and picks the same port.
    let mut peer = Peer { isn: 12345, seq: 12345, ..Peer::new(GUEST, 40_000) };
    lab.give(&peer.syn(Some(1460)));
    let syn_ack = lab.one();
    peer.took(&syn_ack);
    lab.give(&peer.segment(b"hello"));
    assert_eq!(read_error(&mut old), ErrorKind::ConnectionReset);
    let mut new = lab.accept();
    assert_eq!(read(&mut new), b"hello");
    write(&mut new, b"fresh");
    drop(old);
    let answer = lab.one();
    peer.took(&answer);
    assert_eq!(peer.received, b"fresh");
    assert_eq!((lab.endpoint.stats().replaced, lab.endpoint.stats().live), (1, 1));
    // Nothing of the old one ever comes again.
    lab.give(&peer.segment(b""));
    lab.sleep(secs(30));
    lab.nothing();
}

#[test]
fn case_22_same_port_again_after_a_device_reset() {
    let mut lab = Lab::new(config());
    let (_, mut old) = lab.connect(GUEST, 40_000, 1460);
    write(&mut old, &pattern(50_000, 1));
    lab.endpoint.reset();
    lab.nothing();
    assert_eq!(read_error(&mut old), ErrorKind::ConnectionReset);
    drop(old);
    lab.sleep(secs(100));
    lab.nothing();
    assert_eq!((lab.endpoint.stats().live, lab.endpoint.poll_at()), (0, None));
    // Even with the same sequence number.
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    lab.give(&peer.segment(b"again"));
    assert_eq!(read(&mut stream), b"again");
}

#[test]
fn a_syn_in_time_wait_connects_at_once() {
    let mut lab = Lab::new(config());
    let (mut peer, stream) = lab.connect(GUEST, 40_000, 1460);
    close(stream);
    peer.took(&lab.one());
    lab.give(&peer.fin());
    lab.one();
    // Also with the old sequence number, which a rebooted guest may come to choose.
    for isn in [peer.isn, 99] {
        let mut peer = Peer { isn, ..Peer::new(GUEST, 40_000) };
        lab.give(&peer.syn(Some(1460)));
        let syn_ack = lab.one();
        peer.took(&syn_ack);
        lab.give(&peer.segment(b""));
        close(lab.accept());
        peer.took(&lab.one());
        lab.give(&peer.fin());
        lab.one();
    }
    assert_eq!(lab.endpoint.stats().accepted, 3);
}

#[test]
fn more_than_the_window_right_after_the_handshake() {
    // smoltcp 0.14 alone panics here: it believes twice the window until its first ACK.
    for buffer in [64 << 10, 1 << 20] {
        let mut lab = Lab::new(Config { buffer, ..config() });
        let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
        let body = pattern(buffer + 50_000, 4);
        for piece in body.chunks(50_000) {
            lab.give(&peer.segment(piece));
        }
        assert!(lab.endpoint.stats().overruns > 0);
        let taken = read(&mut stream);
        assert!(taken.len() <= buffer && body.starts_with(&taken));
        // A peer that sends the rest again is served.
        let mut all = taken;
        while all.len() < body.len() {
            let first = peer.isn.wrapping_add(1);
            let ack = lab.take().last().map_or(first, |out| out.tcp().0.acknowledgment_number);
            assert_eq!(ack, first.wrapping_add(all.len() as u32));
            peer.seq = ack;
            let end = body.len().min(all.len() + 50_000);
            lab.give(&peer.segment(&body[all.len()..end]));
            all.extend(read(&mut stream));
        }
        assert!(all == body);
    }
}

#[test]
fn a_window_probe_does_not_announce_our_window() {
    // Found by `any_order_of_steps`: the same panic, after our only segment so far was a probe.
    let mut lab = Lab::new(config());
    let mut peer = Peer { window: 0, ..Peer::new(GUEST, 40_000) };
    lab.give(&peer.syn(Some(1460)));
    let syn_ack = lab.one();
    peer.took(&syn_ack);
    lab.give(&peer.segment(b""));
    let mut stream = lab.accept();
    write(&mut stream, b"four");
    assert_eq!(lab.one().tcp().1, b"f");
    peer.seq = peer.seq.wrapping_add(10_000);
    lab.give(&peer.segment(&pattern(60_000, 1)));
    assert_eq!(lab.endpoint.stats().overruns, 1);
}

// DHCP

fn dhcp(kind: u8, client_ip: Ipv4Addr, broadcast: bool, options: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; 240];
    bytes[..3].copy_from_slice(&[1, 1, 6]);
    bytes[4..8].copy_from_slice(&[0xca, 0xfe, 0xba, 0xbe]);
    bytes[10] = if broadcast { 0x80 } else { 0 };
    bytes[12..16].copy_from_slice(&client_ip.octets());
    bytes[28..34].copy_from_slice(&GUEST.mac);
    bytes[236..240].copy_from_slice(&[0x63, 0x82, 0x53, 0x63]);
    bytes.extend([53, 1, kind]);
    for (code, data) in options {
        bytes.extend([*code, data.len() as u8]);
        bytes.extend(*data);
    }
    bytes.push(255);
    bytes
}

fn dhcp_frame(guest: Guest, to: Ipv4Addr, dst: [u8; 6], message: &[u8]) -> Vec<u8> {
    let mut datagram = [68, 67, message.len() as u16 + 8, 0].map(u16::to_be_bytes).concat();
    datagram.extend(message);
    guest.frame(dst, 0x0800, &guest.packet(to, IpNumber::UDP, &datagram))
}

/// (message type, address given, options) of a DHCP reply.
fn dhcp_reply(out: &Out) -> (u8, Ipv4Addr, Vec<(u8, Vec<u8>)>) {
    let Content::Udp(header, message) = &out.content else { panic!("{out:?}") };
    assert_eq!((header.source_port, header.destination_port), (67, 68));
    assert!(message.len() >= 300);
    assert_eq!(message[..8], [2, 1, 6, 0, 0xca, 0xfe, 0xba, 0xbe]);
    assert_eq!(message[28..34], GUEST.mac);
    assert_eq!(message[20..28], [0; 8], "next server and relay");
    assert_eq!(message[236..240], [0x63, 0x82, 0x53, 0x63]);
    let mut options = Vec::new();
    let mut rest = &message[240..];
    while rest[0] != 255 {
        let len = usize::from(rest[1]);
        options.push((rest[0], rest[2..2 + len].to_vec()));
        rest = &rest[2 + len..];
    }
    assert_eq!(options[0].0, 53);
    let kind = options.remove(0).1[0];
    (kind, Ipv4Addr::new(message[16], message[17], message[18], message[19]), options)
}

#[test]
fn dhcp_gives_address_mask_and_mtu_and_nothing_else() {
    let new = Guest { ip: Ipv4Addr::UNSPECIFIED, ..GUEST };
    for (tci, broadcast) in [(None, false), (None, true), (Some(0x6064), false)] {
        let mut lab = Lab::new(Config { mtu: 9000, ..config() });
        let guest = Guest { tci, ..new };
        let client_id = [255, 1, 2, 3, 4, 5, 6, 7];
        let discover = dhcp(1, Ipv4Addr::UNSPECIFIED, broadcast, &[(61, &client_id), (55, &[1, 3, 6, 26])]);
        let frame = dhcp_frame(guest, Ipv4Addr::BROADCAST, BROADCAST, &discover);
        assert!(lab.endpoint.wants(&frame) && lab.endpoint.wants(&frame[..82]));
        lab.give(&frame);
        let offer = lab.one();
        let expected = if broadcast { (BROADCAST, Ipv4Addr::BROADCAST) } else { (GUEST.mac, GUEST.ip) };
        assert_eq!((offer.dst, offer.to, offer.tci), (expected.0, expected.1, tci));
        let (kind, ip, options) = dhcp_reply(&offer);
        assert_eq!((kind, ip), (2, GUEST.ip));
        let mut sorted = options.clone();
        sorted.sort();
        assert_eq!(
            sorted,
            [
                (1, vec![255, 255, 255, 0]),
                (26, 9000u16.to_be_bytes().to_vec()),
                (28, vec![192, 168, 200, 255]),
                (51, 86_400u32.to_be_bytes().to_vec()),
                (54, IP.octets().to_vec()),
                (61, client_id.to_vec()),
            ]
        );
        let request =
            dhcp(3, Ipv4Addr::UNSPECIFIED, broadcast, &[(50, &ip.octets()), (54, &IP.octets()), (61, &client_id)]);
        lab.endpoint.set_mtu(1500);
        lab.give(&dhcp_frame(guest, Ipv4Addr::BROADCAST, BROADCAST, &request));
        let ack = lab.one();
        let (kind, given, mut options) = dhcp_reply(&ack);
        options.sort();
        sorted[1].1 = 1500u16.to_be_bytes().to_vec();
        assert_eq!((kind, given, options, ack.tci), (5, ip, sorted, tci));
    }
}

#[test]
fn dhcp_renewal_refusal_inform_and_another_server() {
    let mut lab = Lab::new(config());
    // Renewing by unicast, from the address itself, although we never saw the client: it is free.
    let held = Guest { ip: Ipv4Addr::new(192, 168, 200, 50), ..GUEST };
    lab.give(&dhcp_frame(held, IP, MAC, &dhcp(3, held.ip, false, &[])));
    let ack = lab.one();
    assert_eq!((dhcp_reply(&ack).0, dhcp_reply(&ack).1, ack.to, ack.dst), (5, held.ip, held.ip, GUEST.mac));
    // Another address than its own, one outside, ours.
    for wrong in [[192, 168, 200, 51], [10, 0, 0, 1], IP.octets()] {
        let request = dhcp(3, Ipv4Addr::UNSPECIFIED, false, &[(50, &wrong)]);
        lab.give(&dhcp_frame(GUEST, Ipv4Addr::BROADCAST, BROADCAST, &request));
        let nak = lab.one();
        let (kind, ip, options) = dhcp_reply(&nak);
        assert_eq!((kind, ip, nak.to, nak.dst), (6, Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, BROADCAST));
        assert_eq!(options, [(54, IP.octets().to_vec())]);
    }
    lab.give(&dhcp_frame(held, IP, MAC, &dhcp(8, held.ip, false, &[])));
    let inform = lab.one();
    let (kind, ip, options) = dhcp_reply(&inform);
    assert_eq!((kind, ip, inform.to), (5, Ipv4Addr::UNSPECIFIED, held.ip));
    assert!(options.iter().all(|(code, _)| *code != 51), "no lease time for who has an address");

    lab.give(&dhcp_frame(held, IP, MAC, &dhcp(7, held.ip, false, &[])));
    let request = dhcp(3, Ipv4Addr::UNSPECIFIED, false, &[(50, &held.ip.octets()), (54, &[10, 0, 0, 1])]);
    lab.give(&dhcp_frame(GUEST, Ipv4Addr::BROADCAST, BROADCAST, &request));
    lab.nothing();
    let stats = lab.endpoint.stats();
    assert_eq!((stats.dhcp, stats.dhcp_acks, stats.dhcp_naks, stats.dhcp_offers), (7, 2, 3, 0));

    // A lease outlives a device reset.
    lab.endpoint.reset();
    lab.give(&dhcp_frame(GUEST, Ipv4Addr::BROADCAST, BROADCAST, &dhcp(1, Ipv4Addr::UNSPECIFIED, false, &[])));
    assert_eq!(dhcp_reply(&lab.one()).1, held.ip);
}

#[test]
fn dhcp_cut_short_is_dropped_and_off_means_off() {
    let mut lab = Lab::new(config());
    let discover = dhcp(1, Ipv4Addr::UNSPECIFIED, false, &[]);
    for len in [0, 1, 100, 239, 242] {
        lab.give(&dhcp_frame(GUEST, Ipv4Addr::BROADCAST, BROADCAST, &discover[..len]));
    }
    // A UDP length beyond the packet.
    let mut datagram = [68u16, 67, 900, 0].map(u16::to_be_bytes).concat();
    datagram.extend(&discover);
    lab.give(&GUEST.frame(BROADCAST, 0x0800, &GUEST.packet(Ipv4Addr::BROADCAST, IpNumber::UDP, &datagram)));
    lab.nothing();
    lab.give(&dhcp_frame(GUEST, Ipv4Addr::BROADCAST, BROADCAST, &discover));
    assert_eq!(dhcp_reply(&lab.one()).0, 2);
    assert_eq!(lab.endpoint.stats().malformed, 1);

    let mut lab = Lab::new(Config { dhcp: false, ..config() });
    let frame = dhcp_frame(GUEST, Ipv4Addr::BROADCAST, BROADCAST, &discover);
    assert!(!lab.endpoint.wants(&frame));
    lab.give(&frame);
    lab.nothing();
    assert_eq!(lab.endpoint.stats().dhcp, 0);
}

// VLAN, MTU

#[test]
fn answers_go_out_on_the_tag_that_the_peer_last_used() {
    let mut lab = Lab::new(config());
    // VLAN 5 with priority 3; a priority tag without VLAN; none.
    for tci in [Some(0x6005), Some(0xa000), None] {
        let guest = Guest { tci, ..GUEST };
        lab.give(&guest.arp(BROADCAST, 1, GUEST.ip, IP));
        assert_eq!(lab.one().tci, tci);
        lab.give(&guest.ping(b"ping"));
        assert_eq!(lab.one().tci, tci);
        lab.give(&Peer { to_port: 80, ..Peer::new(guest, 1) }.syn(None));
        assert_eq!(lab.one().tci, tci);
    }
    let (mut peer, mut stream) = lab.connect(GUEST.tagged(7), 40_000, 1460);
    write(&mut stream, &pattern(3000, 1));
    let out = lab.take();
    // The tag does not shrink the segments: the MTU counts the IP packet.
    assert!(out.iter().all(|segment| segment.tci == Some(7)));
    assert_eq!(out[0].ip_len, 1500);
    for segment in &out {
        peer.took(segment);
    }
    // The guest moves to another VLAN, then to another interface without one.
    peer.guest = GUEST.tagged(8);
    lab.give(&peer.segment(b"x"));
    assert_eq!(lab.one().tci, Some(8));
    peer.guest = Guest { mac: [0x52, 0x54, 0, 9, 9, 9], ..GUEST };
    lab.give(&peer.segment(b"x"));
    let moved = lab.one();
    assert_eq!((moved.tci, moved.dst), (None, peer.guest.mac));
    // Others stay where they are.
    let (_, mut other) = lab.connect(GUEST.tagged(9), 40_001, 1460);
    write(&mut other, b"other");
    write(&mut stream, b"first");
    let tags: Vec<Option<u16>> = lab.take().iter().map(|segment| segment.tci).collect();
    assert!(tags.contains(&None) && tags.contains(&Some(9)) && tags.len() == 2);
}

#[test]
fn a_new_mtu_holds_at_once_for_live_connections() {
    let mut lab = Lab::new(config());
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 8960);
    let body = pattern(300_000, 2);
    let mut sent = 0;
    for mtu in [1500, 9000, 1500, 576, 68, 9198, 9000] {
        lab.endpoint.set_mtu(mtu);
        sent += write(&mut stream, &body[sent..sent + 40_000]);
        let out = lab.take();
        let largest = out.iter().map(|segment| segment.ip_len).max().unwrap();
        assert_eq!(largest, mtu.min(9000), "MTU {mtu}");
        for segment in &out {
            peer.took(segment);
        }
        lab.give(&peer.segment(b""));
        // And for those to come.
        let (other, stream) = {
            let mut peer = Peer::new(GUEST, 41_000);
            lab.give(&peer.syn(Some(8960)));
            let syn_ack = lab.one();
            assert_eq!(syn_ack.mss(), Some(mtu as u16 - 40));
            peer.took(&syn_ack);
            lab.give(&peer.segment(b""));
            (peer, lab.accept())
        };
        lab.give(&other.rst());
        drop(stream);
        lab.nothing();
    }
    assert_eq!(sent, 280_000);
    assert!(peer.received == body[..sent]);
    // Shrunk while large segments are not yet acknowledged: what is sent again fits.
    write(&mut stream, &body[sent..sent + 18_000]);
    assert_eq!(lab.take().len(), 3);
    lab.endpoint.set_mtu(1500);
    lab.sleep(ms(1_100));
    let again = lab.take();
    assert!(again.iter().all(|segment| segment.ip_len <= 1500));
    for segment in &again {
        peer.took(segment);
    }
    assert!(peer.received == body[..sent + 18_000]);
    // Out of range.
    for (mtu, expected) in [(0, 68), (100_000, 9198)] {
        lab.endpoint.set_mtu(mtu);
        lab.give(&Peer { ..Peer::new(GUEST, 42_000) }.syn(None));
        assert_eq!(lab.one().mss(), Some(expected - 40));
        lab.give(&Peer { seq: Peer::new(GUEST, 42_000).isn.wrapping_add(1), ..Peer::new(GUEST, 42_000) }.rst());
    }
}

// Bad frames

#[test]
fn bad_frames_are_counted_and_change_nothing() {
    let mut lab = Lab::new(config());
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    let good = peer.clone().segment(b"payload");
    let mut expect = lab.endpoint.stats();

    let mut malformed = |lab: &mut Lab, frame: &[u8]| {
        lab.give(frame);
        expect.malformed += 1;
        assert_eq!(lab.endpoint.stats().malformed, expect.malformed, "{frame:02x?}");
    };
    // Cut anywhere.
    for end in 0..good.len() {
        malformed(&mut lab, &good[..end]);
    }
    let with = |at: usize, value: &[u8]| {
        let mut frame = good.clone();
        frame[at..at + value.len()].copy_from_slice(value);
        frame
    };
    malformed(&mut lab, &with(14, &[0x65])); // version 6
    malformed(&mut lab, &with(14, &[0x44])); // header shorter than a header
    malformed(&mut lab, &with(14, &[0x4f])); // longer than the packet's TCP leaves room for
    malformed(&mut lab, &with(16, &[0, 19])); // total length shorter than the header
    malformed(&mut lab, &with(16, &[0xff, 0xff])); // longer than the frame
    malformed(&mut lab, &with(46, &[0x40])); // data offset 4
    malformed(&mut lab, &with(46, &[0xf0])); // data offset 15, beyond the end
    malformed(&mut lab, &with(34, &[0, 0])); // source port 0
    malformed(&mut lab, &with(6, &[1])); // sent by a group
    malformed(&mut lab, &with(6, &[0; 6])); // by nobody
    for src in [[0, 0, 0, 0], [255; 4], [224, 0, 0, 1], [127, 0, 0, 1], [192, 168, 200, 255], [192, 168, 200, 0]] {
        malformed(&mut lab, &with(26, &src));
    }
    malformed(&mut lab, &with(26, &IP.octets())); // from ourselves
    let mut syn = Peer::new(GUEST, 50_000).syn(Some(1460));
    syn[14 + 20 + 20 + 1] = 0; // an option of length 0
    malformed(&mut lab, &syn);

    let others = lab.endpoint.stats().not_ours;
    lab.give(&with(30, &[192, 168, 200, 77]));
    lab.give(&with(30, &[255; 4]));
    lab.give(&with(0, &[2, 0, 0, 0, 0, 1]));
    lab.give(&with(0, &BROADCAST));
    lab.give(&with(0, &[0x01, 0, 0x5e, 0, 0, 1]));
    assert_eq!(lab.endpoint.stats().not_ours, others + 5);
    lab.give(&with(20, &[0x20, 0])); // more fragments
    lab.give(&with(20, &[0, 1])); // a later fragment
    assert_eq!(lab.endpoint.stats().fragments, 2);
    lab.give(&GUEST.frame(MAC, 0x86dd, &[0x60; 60])); // IPv6
    lab.give(&GUEST.frame(MAC, 0x8100, &[0, 1, 8, 0, 0x45])); // the inner type of a tag within a tag is unknown to us
    lab.give(&GUEST.tagged(3).frame(MAC, 0x8100, &[0, 1, 8, 0, 0x45]));
    assert_eq!(lab.endpoint.stats().malformed, expect.malformed + 1);
    assert_eq!(lab.endpoint.stats().unsupported, 2);
    lab.nothing();

    lab.give(&peer.segment(b"payload"));
    assert_eq!(read(&mut stream), b"payload");
    assert_eq!(lab.one().tcp().0.acknowledgment_number, peer.seq);
    assert_eq!(lab.endpoint.stats().live, 1);
}

#[test]
fn padding_and_ip_options_are_not_data() {
    let mut lab = Lab::new(config());
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    // An Ethernet card's padding to 60 bytes.
    let mut frame = peer.segment(b"abc");
    frame.resize(60, 0xee);
    lab.give(&frame);
    assert_eq!(read(&mut stream), b"abc");
    // A header with a router alert, 24 bytes long.
    let mut frame = peer.segment(b"def");
    frame.splice(34..34, [0x94, 4, 0, 0]);
    frame[14] = 0x46;
    frame[17] += 4;
    lab.give(&frame);
    assert_eq!(read(&mut stream), b"def");
    assert_eq!(lab.one().tcp().0.acknowledgment_number, peer.seq);
}

#[test]
fn flags_that_make_no_sense_open_nothing() {
    let mut lab = Lab::new(config());
    for bits in 0u8..64 {
        let mut header = TcpHeader::new(50_000, PORT, 1, 1000);
        header.fin = bits & 1 != 0;
        header.syn = bits & 2 != 0;
        header.rst = bits & 4 != 0;
        header.psh = bits & 8 != 0;
        header.ack = bits & 16 != 0;
        header.urg = bits & 32 != 0;
        lab.give(&GUEST.tcp(&header, b""));
        // Only SYN with or without PSH and URG is a beginning.
        let opens = bits & 0b10111 == 2;
        let out = lab.take();
        assert_eq!(lab.endpoint.stats().live, usize::from(opens), "{bits:06b}");
        assert_eq!(out.iter().any(|segment| segment.tcp().0.syn), opens);
        if header.rst {
            assert!(out.is_empty());
        }
        lab.endpoint.reset();
    }
}

#[test]
fn answers_wait_for_room_and_are_limited() {
    let mut lab = Lab::new(config());
    lab.queue.room = 0;
    for n in 0..300u16 {
        lab.give(&GUEST.ping(&n.to_be_bytes()));
    }
    lab.nothing();
    assert_eq!(lab.endpoint.stats().answers_dropped, 44);
    assert_eq!(lab.endpoint.poll_at(), None, "room is the guest's to give");
    lab.queue.room = 10;
    assert_eq!(lab.take().len(), 10);
    lab.queue.room = usize::MAX;
    let rest = lab.take();
    assert_eq!(rest.len(), 246);
    let Content::Icmp(0, 0, last) = &rest[245].content else { panic!() };
    assert_eq!(last[4..], 255u16.to_be_bytes());
}

#[test]
fn a_sink_that_breaks_its_word_costs_a_frame_and_nothing_else() {
    struct Broken(usize);
    impl FrameSink for Broken {
        fn room(&self) -> usize {
            1
        }
        fn send(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) {
            self.0 += 1;
            match self.0 % 3 {
                0 => {}
                1 => fill(&mut vec![0; len - 1]),
                _ => {
                    fill(&mut []);
                    fill(&mut []);
                }
            }
        }
    }
    let mut lab = Lab::new(config());
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    let body = pattern(10_000, 1);
    write(&mut stream, &body);
    lab.give(&GUEST.ping(b"lost"));
    let mut broken = Broken(0);
    while lab.endpoint.poll(lab.now, &mut broken).more {}
    assert_eq!((broken.0, lab.endpoint.stats().sink_lost), (8, 8));
    // As after any loss.
    lab.sleep(ms(1_100));
    for out in lab.take() {
        peer.took(&out);
    }
    assert!(peer.received == body);
}

// Room, time, places

#[test]
fn connections_take_turns_however_little_room_there_is() {
    for room in [1, 2, 3, 4, 16] {
        let mut lab = Lab::new(config());
        let mut pairs: Vec<_> = (0..16).map(|n| lab.connect(GUEST, 40_000 + n, 1460)).collect();
        let body = pattern(60_000, 1);
        for (_, stream) in &mut pairs {
            write(stream, &body);
        }
        for round in 1..=30 {
            // The guest posts a few buffers at a time.
            for _ in 0..16usize.div_ceil(room) {
                lab.queue.room = room;
                for out in lab.take() {
                    let port = out.tcp().0.destination_port;
                    pairs[usize::from(port - 40_000)].0.took(&out);
                }
            }
            let counts: Vec<usize> = pairs.iter().map(|(peer, _)| peer.received.len() / 1460).collect();
            let (least, most) = (*counts.iter().min().unwrap(), *counts.iter().max().unwrap());
            assert!(most - least <= 1 && least >= round, "room {room}, round {round}: {counts:?}");
        }
    }
}

#[test]
fn a_guest_without_buffers_is_not_taken_for_a_loss() {
    let mut lab = Lab::new(config());
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    let body = pattern(60_000, 6);
    write(&mut stream, &body);
    lab.queue.room = 5;
    for out in lab.take() {
        peer.took(&out);
    }
    // Ten seconds without a buffer, then one at a time every second: nothing is ever sent twice.
    for _ in 0..100 {
        lab.now += ms(100);
        lab.nothing();
        assert_eq!(lab.endpoint.poll_at(), None);
    }
    let mut frames = 5;
    while peer.received.len() < body.len() {
        lab.now += secs(1);
        lab.queue.room = 1;
        for out in lab.take() {
            frames += 1;
            peer.took(&out);
        }
    }
    assert_eq!(frames, 60_000usize.div_ceil(1460));
    assert!(peer.received == body);
    assert_eq!(lab.endpoint.stats().live, 1, "nor for idleness");
}

#[test]
fn case_21_nine_connections_at_once() {
    let mut lab = Lab::new(config());
    let mut peers: Vec<Peer> = (0..9).map(|n| Peer::new(GUEST, 40_000 + n)).collect();
    for peer in &peers {
        lab.give(&peer.syn(Some(1460)));
    }
    for (peer, syn_ack) in peers.iter_mut().zip(lab.take()) {
        peer.took(&syn_ack);
    }
    for peer in &mut peers {
        lab.give(&peer.segment(b"hello"));
    }
    for peer in &mut peers {
        let mut stream = lab.accept();
        assert_eq!(stream.peer().port(), peer.port);
        assert_eq!(read(&mut stream), b"hello");
        close(stream);
    }
    assert_eq!(lab.endpoint.stats().accepted, 9);
}

#[test]
fn syns_beyond_the_places_wait_and_are_never_refused() {
    let mut lab = Lab::new(Config { max_connections: 4, max_parked: 3, ..config() });
    let mut open: Vec<_> = (0..4).map(|n| lab.connect(GUEST, 40_000 + n, 1460)).collect();
    let waiting: Vec<Peer> = (0..4).map(|n| Peer::new(GUEST.tagged(n), 41_000 + n)).collect();
    for _ in 0..3 {
        // Repeated, as a client does: each waits once.
        for peer in &waiting {
            lab.give(&peer.syn(Some(536)));
        }
        lab.nothing();
        assert_eq!(lab.endpoint.stats().parked, 3);
    }
    assert_eq!(lab.endpoint.stats().syns_dropped, 3);
    // One that gave up.
    lab.give(&waiting[1].rst());
    lab.nothing();
    assert_eq!(lab.endpoint.stats().parked, 2);

    // A place is free as soon as nothing of its connection is left.
    let (mut peer, stream) = open.remove(0);
    lab.give(&peer.fin());
    close(stream);
    for out in lab.take() {
        peer.took(&out);
    }
    lab.give(&peer.segment(b""));
    let syn_ack = lab.one();
    let mut first = waiting[0].clone();
    first.took(&syn_ack);
    assert_eq!(syn_ack.tci, Some(0));
    lab.give(&first.segment(b"finally"));
    assert_eq!(read(&mut lab.accept()), b"finally");
}

#[test]
fn the_longest_quiet_connection_makes_room() {
    let mut lab = Lab::new(Config { max_connections: 3, ..config() });
    let mut open: Vec<_> = (0..3)
        .map(|n| {
            let pair = lab.connect(GUEST, 40_000 + n, 1460);
            lab.now += ms(10);
            pair
        })
        .collect();
    // The oldest has an unanswered request, so the second is the longest quiet one.
    lab.give(&open[0].0.segment(b"GET"));
    assert_eq!(read(&mut open[0].1), b"GET");
    lab.one();
    let newcomer = Peer::new(GUEST, 41_000);
    lab.give(&newcomer.syn(Some(1460)));
    lab.nothing();
    let at = lab.endpoint.poll_at().unwrap();
    assert_eq!(at, lab.now - ms(20) + secs(1), "as soon as it was quiet for a second");
    lab.sleep(ms(970));
    assert!(!is_end_of_file(&mut open[1].1));
    lab.sleep(ms(20));
    assert!(is_end_of_file(&mut open[1].1));
    assert!(!is_end_of_file(&mut open[0].1) && !is_end_of_file(&mut open[2].1));
    // No more than needed go.
    lab.sleep(secs(1));
    assert!(!is_end_of_file(&mut open[2].1));
    assert_eq!(lab.endpoint.stats().evicted, 1);

    let (mut peer, stream) = open.remove(1);
    close(stream);
    let fin = lab.take();
    assert!(fin[0].tcp().0.fin && !fin[0].tcp().0.rst);
    peer.took(&fin[0]);
    lab.give(&peer.segment(b""));
    // Its client is in no hurry to close: the place is used after a moment all the same.
    lab.sleep(ms(90));
    lab.nothing();
    lab.sleep(ms(20));
    assert!(lab.one().tcp().0.syn);
}

#[test]
fn a_request_that_crosses_the_eviction_is_still_answered() {
    let mut lab = Lab::new(Config { max_connections: 1, ..config() });
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    lab.give(&Peer::new(GUEST, 41_000).syn(Some(1460)));
    lab.sleep(ms(1_010));
    assert_eq!(lab.endpoint.stats().evicted, 1);
    // It arrives before the user has noticed the end of file.
    lab.give(&peer.segment(b"GET"));
    assert_eq!(read(&mut stream), b"GET");
    assert!(is_end_of_file(&mut stream));
    // However long the answer takes.
    lab.sleep(secs(5));
    lab.take();
    write(&mut stream, b"answer");
    close(stream);
    for out in lab.take() {
        peer.took(&out);
    }
    assert_eq!(peer.received, b"answer");
}

#[test]
fn stalled_connections_make_room_after_longer() {
    let mut lab = Lab::new(Config { max_connections: 2, ..config() });
    // One whose request head never ends, one whose client does not take its answer.
    let (mut slow, mut head) = lab.connect(GUEST, 40_000, 1460);
    lab.give(&slow.segment(b"GET / HT"));
    assert_eq!(read(&mut head), b"GET / HT");
    lab.one();
    let (_, mut stuck) = lab.connect(GUEST, 40_001, 1460);
    write(&mut stuck, &pattern(1000, 1));
    lab.take();
    for port in [41_000, 41_001] {
        lab.give(&Peer::new(GUEST, port).syn(Some(1460)));
    }
    lab.sleep(ms(9_900));
    lab.take();
    assert_eq!(lab.endpoint.stats().evicted, 0);
    lab.sleep(ms(200));
    assert!(is_end_of_file(&mut head));
    assert_eq!(lab.endpoint.stats().evicted, 1);
    // The other only after a minute: it may be a download that somebody paused.
    lab.sleep(ms(49_700));
    lab.take();
    assert_eq!(lab.endpoint.stats().evicted, 1);
    lab.sleep(ms(300));
    assert_eq!(read_error(&mut stuck), ErrorKind::ConnectionReset);
    let out = lab.take();
    assert!(out.iter().any(|o| o.tcp().0.rst && o.tcp().0.destination_port == 40_001));
    assert!(out.iter().any(|o| o.tcp().0.syn && o.tcp().0.destination_port == 41_000));
    assert_eq!(lab.endpoint.stats().evicted, 2);
}

#[test]
fn a_busy_connection_never_makes_room() {
    let mut lab = Lab::new(Config { max_connections: 1, ..config() });
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    lab.give(&Peer::new(GUEST, 41_000).syn(Some(1460)));
    // A byte now and then, either way, for as long as it takes.
    for round in 0..20 {
        lab.sleep(ms(900));
        if round % 2 == 0 {
            lab.give(&peer.segment(b"x"));
            read(&mut stream);
        } else {
            write(&mut stream, b"y");
        }
        for out in lab.take() {
            peer.took(&out);
        }
        lab.give(&peer.segment(b""));
    }
    assert_eq!((lab.endpoint.stats().evicted, peer.received.len()), (0, 10));
}

#[test]
fn half_open_connections_are_given_up() {
    let mut lab = Lab::new(Config { max_connections: 1, ..config() });
    let peer = Peer::new(GUEST, 40_000);
    lab.give(&peer.syn(Some(1460)));
    lab.give(&Peer::new(GUEST, 40_001).syn(Some(1460)));
    lab.sleep(ms(9_900));
    // SYN|ACK, repeated after 1, 3 and 7 s.
    assert_eq!(lab.take().len(), 4);
    lab.sleep(ms(200));
    let out = lab.one();
    assert_eq!((out.tcp().0.destination_port, out.tcp().0.syn), (40_001, true));
    assert_eq!(lab.endpoint.stats().half_open_dropped, 1);
    // One that its peer refuses goes at once.
    let mut refused = Peer::new(GUEST, 40_001);
    refused.took(&out);
    lab.give(&refused.rst());
    lab.nothing();
    assert_eq!((lab.endpoint.stats().live, lab.endpoint.poll_at()), (0, None));
}

#[test]
fn idle_connections_end_after_a_minute() {
    let mut lab = Lab::new(config());
    let (_, mut ignored) = lab.connect(GUEST, 40_000, 1460);
    let (mut peer, mut stream) = lab.connect(GUEST, 40_001, 1460);
    lab.sleep(secs(30));
    lab.give(&peer.segment(b"x"));
    read(&mut stream);
    lab.take();
    lab.sleep(ms(29_900));
    assert!(!is_end_of_file(&mut ignored));
    lab.sleep(ms(200));
    assert!(is_end_of_file(&mut ignored) && !is_end_of_file(&mut stream));
    lab.nothing();
    // Whoever does not react to that is closed over his head.
    lab.sleep(secs(2));
    assert!(lab.one().tcp().0.fin);
    assert_eq!(read_error(&mut ignored), ErrorKind::ConnectionReset);
    lab.sleep(secs(40));
    assert!(is_end_of_file(&mut stream));
    assert_eq!(lab.endpoint.stats().idle_closed, 2);
    // Never accepted: closed at once.
    let mut peer = Peer::new(GUEST, 40_002);
    lab.take();
    lab.give(&peer.syn(Some(1460)));
    let syn_ack = lab.one();
    peer.took(&syn_ack);
    lab.give(&peer.segment(b""));
    lab.sleep(secs(61));
    assert!(lab.take().iter().any(|out| out.tcp().0.fin && out.tcp().0.destination_port == 40_002));
    assert!(lab.endpoint.accept().is_none());
}

#[test]
fn a_request_head_that_trickles_ends_with_its_deadline() {
    let mut lab = Lab::new(config());
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    let activity = stream.activity();
    // Served requests may take any time, and so may the pauses between them.
    for _ in 0..3 {
        lab.sleep(secs(25));
        lab.give(&peer.segment(b"GET"));
        read(&mut stream);
        activity.request_started();
        lab.sleep(secs(40));
        write(&mut stream, b"ok");
        activity.request_finished();
        for out in lab.take() {
            peer.took(&out);
        }
        lab.give(&peer.segment(b""));
    }
    let mut trickled = 0;
    while !is_end_of_file(&mut stream) {
        lab.give(&peer.segment(b"x"));
        read(&mut stream);
        trickled += 1;
        lab.sleep(secs(1));
        lab.take();
        assert!(trickled < 100);
    }
    assert_eq!((trickled, lab.endpoint.stats().idle_closed), (30, 1));
}

#[test]
fn a_silent_peer_with_data_on_its_way_is_given_up() {
    let mut lab = Lab::new(config());
    let (_, mut stream) = lab.connect(GUEST, 40_000, 1460);
    write(&mut stream, b"into the void");
    lab.sleep(secs(119));
    assert!(lab.take().len() > 3);
    assert_eq!(lab.endpoint.stats().live, 1);
    lab.sleep(secs(2));
    assert!(lab.take().last().unwrap().tcp().0.rst);
    assert_eq!((lab.endpoint.stats().live, lab.endpoint.stats().aborted), (0, 1));
    assert_eq!(read_error(&mut stream), ErrorKind::ConnectionReset);

    // The same after our side closed.
    let (_, mut stream) = lab.connect(GUEST, 40_001, 1460);
    write(&mut stream, b"into the void");
    close(stream);
    lab.sleep(secs(121));
    assert!(lab.take().last().unwrap().tcp().0.rst);
    assert_eq!((lab.endpoint.stats().live, lab.endpoint.poll_at()), (0, None));
}

#[test]
fn a_closed_connection_swallows_a_little_and_for_a_while() {
    let mut lab = Lab::new(Config { linger_bytes: 100_000, ..config() });
    let (mut peer, mut stream) = lab.connect(GUEST, 40_000, 1460);
    write(&mut stream, b"413 too large");
    close(stream);
    for out in lab.take() {
        peer.took(&out);
    }
    // The peer goes on with its body.
    let mut window = 60_000;
    let mut sent = 0;
    while window > 0 {
        let piece = window.min(30_000);
        lab.give(&peer.segment(&vec![1; piece]));
        sent += piece;
        let ack = lab.take().pop().unwrap();
        assert_eq!(ack.tcp().0.acknowledgment_number, peer.seq);
        window = usize::from(ack.tcp().0.window_size) << 1;
        assert!(sent < 300_000);
    }
    assert!((100_000..200_000).contains(&sent), "{sent}");
    lab.sleep(ms(2_100));
    assert!(lab.one().tcp().0.rst);
    assert_eq!((lab.endpoint.stats().live, lab.endpoint.stats().aborted), (0, 1));

    // One that sends nothing and does not close is forgotten without a word.
    let (mut peer, stream) = lab.connect(GUEST, 40_001, 1460);
    close(stream);
    peer.took(&lab.one());
    lab.give(&peer.segment(b""));
    lab.sleep(ms(2_100));
    lab.nothing();
    assert_eq!((lab.endpoint.stats().live, lab.endpoint.stats().aborted), (0, 1));
}

#[test]
fn an_idle_endpoint_has_no_deadlines() {
    let mut lab = Lab::new(config());
    assert_eq!(lab.endpoint.poll_at(), None);
    lab.give(&GUEST.ping(b"x"));
    assert_eq!(lab.endpoint.poll_at(), Some(lab.now));
    lab.one();
    assert_eq!(lab.endpoint.poll_at(), None);
    // One quiet connection: its idle timeout and nothing before.
    let (_, _stream) = lab.connect(GUEST, 40_000, 1460);
    lab.nothing();
    assert_eq!(lab.endpoint.poll_at(), Some(lab.now + secs(60)));
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    let check = |config: Config| Endpoint::new(config, secs(0)).map(drop);
    assert_eq!(check(config()), Ok(()));
    let cases = [
        (Config { mac: [1, 0, 0, 0, 0, 0], ..config() }, ConfigError::Mac([1, 0, 0, 0, 0, 0])),
        (
            Config { ip: Ipv4Addr::new(10, 0, 0, 255), ..config() },
            ConfigError::Address(Ipv4Addr::new(10, 0, 0, 255), 24),
        ),
        (Config { ip: Ipv4Addr::new(224, 0, 0, 1), ..config() }, ConfigError::Address(Ipv4Addr::new(224, 0, 0, 1), 24)),
        (Config { prefix_len: 31, ..config() }, ConfigError::Prefix(31)),
        (Config { port: 0, ..config() }, ConfigError::Port),
        (Config { mtu: 67, ..config() }, ConfigError::Mtu(67)),
        (Config { mtu: 9199, ..config() }, ConfigError::Mtu(9199)),
        (Config { max_connections: 65, ..config() }, ConfigError::Connections(65)),
        (Config { buffer: 0, ..config() }, ConfigError::Buffer(0)),
    ];
    for (config, error) in cases {
        assert_eq!(check(config), Err(error));
    }
    assert_eq!(ConfigError::Mtu(67).to_string(), "bad MTU 67: use 68 to 9198");
    assert_eq!(Timeouts::default(), config().timeouts);
}
