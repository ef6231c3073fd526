//! A DHCP responder (RFC 2131) for the subnet around the endpoint: addresses, mask and MTU; no router, no name servers.
//!
//! It is the only server on its wire, so it is authoritative: a client that comes with an address that is free gets it,
//! whether or not we remember the client (our memory ends with the process, the guest's lease does not). Clients are
//! known by their hardware address. Relays are not served.

use std::{net::Ipv4Addr, time::Duration};

use smoltcp::wire::{
    DHCP_CLIENT_PORT, DHCP_SERVER_PORT, DhcpMessageType, DhcpOption, DhcpPacket, DhcpRepr, EthernetAddress, IpProtocol,
    Ipv4Packet, Ipv4Repr, UdpPacket, UdpRepr,
};

use crate::{
    phy,
    wire::{BROADCAST, Mac, is_station, is_subnet_edge},
};

/// A lease's length. A guest renews after half of it, so it hardly matters; a day keeps logs quiet.
const LEASE: Duration = Duration::from_secs(86_400);
/// How long an offer keeps its address from others.
const OFFER: Duration = Duration::from_secs(60);
/// How long an address that a client found in use is not offered.
const DECLINED: Duration = Duration::from_secs(600);

/// Option codes of RFC 2132 that smoltcp does not name in public.
const OPT_INTERFACE_MTU: u8 = 26;
const OPT_BROADCAST: u8 = 28;
const OPT_REQUESTED_IP: u8 = 50;
const OPT_MESSAGE_TYPE: u8 = 53;
const OPT_SERVER_ID: u8 = 54;
const OPT_CLIENT_ID: u8 = 61;
/// "Magic cookie" before the options (RFC 2131, section 3).
const MAGIC: u32 = 0x6382_5363;
/// BOOTP's message length (RFC 951), which old clients insist on.
const MIN_MESSAGE: usize = 300;

const IP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;

/// What an address is used for. The order is the order in which addresses are given to a new client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hold {
    Never,
    /// Given back, expired, offered in vain, declined long ago; still the old client's if it comes again.
    Former,
    Offered,
    Declined,
    Leased,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    ip: Ipv4Addr,
    mac: Mac,
    hold: Hold,
    until: Duration,
    /// Order of use: the least is the oldest.
    touched: u64,
}

impl Entry {
    fn hold(&self, now: Duration) -> Hold {
        if self.hold != Hold::Never && now >= self.until { Hold::Former } else { self.hold }
    }
}

/// A message for a client.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) kind: DhcpMessageType,
    /// Where the frame goes.
    pub(crate) mac: Mac,
    /// The IP packet.
    pub(crate) packet: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Responder {
    server: Ipv4Addr,
    prefix_len: u8,
    entries: Vec<Entry>,
    uses: u64,
}

/// The parts of a client's message that matter.
struct Request<'a> {
    kind: DhcpMessageType,
    xid: u32,
    mac: Mac,
    client_ip: Ipv4Addr,
    requested: Option<Ipv4Addr>,
    server: Option<Ipv4Addr>,
    client_id: Option<&'a [u8]>,
    broadcast: bool,
}

impl<'a> Request<'a> {
    fn parse(packet: &'a DhcpPacket<&'a [u8]>) -> Option<Self> {
        let mac = packet.client_hardware_address().0;
        let ethernet = packet.hardware_len() == 6 && packet.hardware_type() == smoltcp::wire::ArpHardware::Ethernet;
        if packet.magic_number() != MAGIC
            || u8::from(packet.opcode()) != 1
            || !ethernet
            || !is_station(mac)
            || !packet.relay_agent_ip().is_unspecified()
        {
            return None;
        }
        let mut kind = None;
        let mut requested = None;
        let mut server = None;
        let mut client_id = None;
        let address = |data: &[u8]| data.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets));
        for option in packet.options() {
            match (option.kind, option.data.len()) {
                (OPT_MESSAGE_TYPE, 1) => kind = option.data.first().map(|&value| DhcpMessageType::from(value)),
                (OPT_REQUESTED_IP, 4) => requested = address(option.data),
                (OPT_SERVER_ID, 4) => server = address(option.data),
                // At least two bytes (RFC 2132, section 9.14).
                (OPT_CLIENT_ID, 2..) => client_id = Some(option.data),
                _ => {}
            }
        }
        Some(Self {
            kind: kind?,
            xid: packet.transaction_id(),
            mac,
            client_ip: packet.client_ip(),
            requested,
            server,
            client_id,
            broadcast: packet.flags().contains(smoltcp::wire::DhcpFlags::BROADCAST),
        })
    }
}

impl Responder {
    /// Leases the addresses that `server`/`prefix_len` and the /24 around `server` have in common, without `server`
    /// and without those that end in 0 or 255.
    pub(crate) fn new(server: Ipv4Addr, prefix_len: u8) -> Self {
        let [a, b, c, _] = server.octets();
        let hosts = u32::MAX >> prefix_len;
        let entries = (1..=254)
            .map(|host| Ipv4Addr::new(a, b, c, host))
            .filter(|&ip| ip != server && u32::from(ip) | hosts == u32::from(server) | hosts)
            .filter(|&ip| !is_subnet_edge(ip, prefix_len))
            .map(|ip| Entry { ip, mac: [0; 6], hold: Hold::Never, until: Duration::ZERO, touched: 0 })
            .collect();
        Self { server, prefix_len, entries, uses: 0 }
    }

    /// The answer to `message` (a UDP payload), if it has one. `mtu` is offered to the client.
    pub(crate) fn answer(&mut self, now: Duration, mtu: usize, message: &[u8]) -> Option<Reply> {
        let packet = DhcpPacket::new_checked(message).ok()?;
        let request = Request::parse(&packet)?;
        match request.kind {
            DhcpMessageType::Discover => {
                let ip = self.choose(now, request.mac, request.requested)?;
                // A client that has a lease keeps it while it looks around.
                let kept = self.entry(ip).is_some_and(|e| e.mac == request.mac && e.hold(now) == Hold::Leased);
                if !kept {
                    self.hold(ip, request.mac, Hold::Offered, now + OFFER);
                }
                Some(self.reply(&request, DhcpMessageType::Offer, ip, mtu))
            }
            DhcpMessageType::Request => {
                if request.server.is_some_and(|server| server != self.server) {
                    // It took another server's offer: ours is free again.
                    self.give_back(now, request.mac);
                    return None;
                }
                // SELECTING and INIT-REBOOT name the address in an option, RENEWING and REBINDING in the header.
                let wanted = request.requested.unwrap_or(request.client_ip);
                let granted = self.may_have(now, request.mac, wanted);
                if !granted {
                    return Some(self.reply(&request, DhcpMessageType::Nak, Ipv4Addr::UNSPECIFIED, mtu));
                }
                self.hold(wanted, request.mac, Hold::Leased, now + LEASE);
                Some(self.reply(&request, DhcpMessageType::Ack, wanted, mtu))
            }
            DhcpMessageType::Release => {
                if self.entry(request.client_ip).is_some_and(|e| e.mac == request.mac) {
                    self.give_back(now, request.mac);
                }
                None
            }
            DhcpMessageType::Decline => {
                let ip = request.requested?;
                if self.entry(ip).is_some_and(|e| e.mac == request.mac && e.hold != Hold::Never) {
                    self.hold(ip, [0; 6], Hold::Declined, now + DECLINED);
                }
                None
            }
            DhcpMessageType::Inform => Some(self.reply(&request, DhcpMessageType::Ack, Ipv4Addr::UNSPECIFIED, mtu)),
            _ => None,
        }
    }

    fn entry(&self, ip: Ipv4Addr) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.ip == ip)
    }

    /// The address for a client: its former one, else the one it asks for if nobody has it, else the first that nobody
    /// ever had, else the one unused for longest.
    fn choose(&self, now: Duration, mac: Mac, asked: Option<Ipv4Addr>) -> Option<Ipv4Addr> {
        let own = self.entries.iter().find(|e| e.hold != Hold::Never && e.mac == mac);
        let asked = || self.entry(asked?).filter(|e| e.hold(now) <= Hold::Former);
        let oldest = || self.entries.iter().min_by_key(|e| (e.hold(now), e.touched));
        own.or_else(asked).or_else(oldest).map(|e| e.ip)
    }

    /// Whether `ip` is the client's, or free and the client has no other.
    fn may_have(&self, now: Duration, mac: Mac, ip: Ipv4Addr) -> bool {
        match self.entries.iter().find(|e| e.hold != Hold::Never && e.mac == mac) {
            Some(own) => own.ip == ip,
            None => self.entry(ip).is_some_and(|e| e.hold(now) <= Hold::Former),
        }
    }

    /// Makes `ip` the client's, and nothing else.
    fn hold(&mut self, ip: Ipv4Addr, mac: Mac, hold: Hold, until: Duration) {
        self.uses += 1;
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.ip == ip) {
            *entry = Entry { ip, mac, hold, until, touched: self.uses };
        }
    }

    fn give_back(&mut self, now: Duration, mac: Mac) {
        for entry in self.entries.iter_mut().filter(|e| e.hold != Hold::Never && e.mac == mac) {
            entry.until = now;
        }
    }

    /// Builds a message. `ip` unspecified: none is given (refusals, answers to INFORM).
    fn reply(&self, request: &Request<'_>, kind: DhcpMessageType, ip: Ipv4Addr, mtu: usize) -> Reply {
        let refusal = kind == DhcpMessageType::Nak;
        let inform = request.kind == DhcpMessageType::Inform;
        let mask = Ipv4Addr::from(!(u32::MAX >> self.prefix_len));
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX).to_be_bytes();
        let broadcast = Ipv4Addr::from(u32::from(self.server) | !u32::from(mask)).octets();
        let mut options = [DhcpOption { kind: 0, data: &[] }; 3];
        let mut count = 0;
        let mut add = |kind, data| {
            options[count] = DhcpOption { kind, data };
            count += 1;
        };
        if !refusal {
            add(OPT_INTERFACE_MTU, &mtu);
            add(OPT_BROADCAST, &broadcast);
        }
        // RFC 6842: a server returns the client's identifier.
        if let Some(id) = request.client_id {
            add(OPT_CLIENT_ID, id);
        }
        let repr = DhcpRepr {
            message_type: kind,
            transaction_id: request.xid,
            secs: 0,
            client_hardware_address: EthernetAddress(request.mac),
            client_ip: if refusal { Ipv4Addr::UNSPECIFIED } else { request.client_ip },
            your_ip: ip,
            server_ip: Ipv4Addr::UNSPECIFIED,
            router: None,
            subnet_mask: (!refusal).then_some(mask),
            relay_agent_ip: Ipv4Addr::UNSPECIFIED,
            broadcast: request.broadcast,
            requested_ip: None,
            client_identifier: None,
            server_identifier: Some(self.server),
            parameter_request_list: None,
            dns_servers: None,
            max_size: None,
            lease_duration: (!refusal && !inform).then_some(u32::try_from(LEASE.as_secs()).unwrap_or(u32::MAX)),
            renew_duration: None,
            rebind_duration: None,
            additional_options: &options[..count],
        };
        // RFC 2131, section 4.1, in its order.
        let (to, mac) = if refusal {
            (Ipv4Addr::BROADCAST, BROADCAST)
        } else if !request.client_ip.is_unspecified() {
            (request.client_ip, request.mac)
        } else if request.broadcast || ip.is_unspecified() {
            (Ipv4Addr::BROADCAST, BROADCAST)
        } else {
            (ip, request.mac)
        };
        Reply { kind, mac, packet: self.packet(&repr, to) }
    }

    fn packet(&self, repr: &DhcpRepr<'_>, to: Ipv4Addr) -> Vec<u8> {
        let caps = phy::capabilities(crate::MAX_MTU).checksum;
        let len = repr.buffer_len().max(MIN_MESSAGE);
        let ip = Ipv4Repr {
            src_addr: self.server,
            dst_addr: to,
            next_header: IpProtocol::Udp,
            payload_len: UDP_HEADER + len,
            hop_limit: 64,
        };
        let udp = UdpRepr { src_port: DHCP_SERVER_PORT, dst_port: DHCP_CLIENT_PORT };
        let mut bytes = vec![0; IP_HEADER + UDP_HEADER + len];
        ip.emit(&mut Ipv4Packet::new_unchecked(&mut bytes[..]), &caps);
        udp.emit(
            &mut UdpPacket::new_unchecked(&mut bytes[IP_HEADER..]),
            &self.server.into(),
            &to.into(),
            len,
            |buffer| {
                // The buffer is as long as the message says, and options are at most 255 bytes: it cannot fail.
                let _ = repr.emit(&mut DhcpPacket::new_unchecked(buffer));
            },
            &caps,
        );
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 200, 1);

    fn mac(n: u16) -> Mac {
        let [hi, lo] = n.to_be_bytes();
        [2, 0, 0, 0, hi, lo]
    }

    fn message(kind: u8, from: Mac, client_ip: Ipv4Addr, options: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 240];
        bytes[..3].copy_from_slice(&[1, 1, 6]);
        bytes[4..8].copy_from_slice(&0x1234_5678u32.to_be_bytes());
        bytes[12..16].copy_from_slice(&client_ip.octets());
        bytes[28..34].copy_from_slice(&from);
        bytes[236..240].copy_from_slice(&MAGIC.to_be_bytes());
        bytes.extend([OPT_MESSAGE_TYPE, 1, kind]);
        for (code, data) in options {
            bytes.extend([*code, u8::try_from(data.len()).unwrap()]);
            bytes.extend(*data);
        }
        bytes.push(255);
        bytes
    }

    fn given(reply: &Reply) -> Ipv4Addr {
        DhcpPacket::new_checked(&reply.packet[28..]).unwrap().your_ip()
    }

    fn lease(responder: &mut Responder, now: Duration, from: Mac) -> Ipv4Addr {
        let offer = responder.answer(now, 1500, &message(1, from, Ipv4Addr::UNSPECIFIED, &[])).expect("offer");
        assert_eq!(offer.kind, DhcpMessageType::Offer);
        let ip = given(&offer);
        let options: [(u8, &[u8]); 2] = [(OPT_REQUESTED_IP, &ip.octets()), (OPT_SERVER_ID, &SERVER.octets())];
        let ack = responder.answer(now, 1500, &message(3, from, Ipv4Addr::UNSPECIFIED, &options)).expect("ack");
        assert_eq!((ack.kind, given(&ack)), (DhcpMessageType::Ack, ip));
        ip
    }

    #[test]
    fn the_pool_is_the_24_around_the_server() {
        let pool = |ip: &str, prefix| {
            let responder = Responder::new(ip.parse().unwrap(), prefix);
            let all: Vec<String> = responder.entries.iter().map(|e| e.ip.to_string()).collect();
            (all.len(), all.first().unwrap().clone(), all.last().unwrap().clone())
        };
        assert_eq!(pool("192.168.200.1", 24), (253, "192.168.200.2".into(), "192.168.200.254".into()));
        assert_eq!(pool("192.168.200.254", 24), (253, "192.168.200.1".into(), "192.168.200.253".into()));
        assert_eq!(pool("10.1.2.3", 8), (253, "10.1.2.1".into(), "10.1.2.254".into()));
        assert_eq!(pool("10.1.2.18", 28), (13, "10.1.2.17".into(), "10.1.2.30".into()));
    }

    #[test]
    fn a_client_keeps_its_address_and_a_full_pool_reuses_the_oldest() {
        let mut responder = Responder::new(SERVER, 24);
        let first = lease(&mut responder, Duration::ZERO, mac(1));
        assert_eq!(first, Ipv4Addr::new(192, 168, 200, 2));
        for n in 2..=253 {
            let ip = lease(&mut responder, Duration::from_secs(u64::from(n)), mac(n));
            assert_eq!(ip.octets()[3], u8::try_from(n + 1).unwrap());
        }
        // Renewed by the first client: now the second's is the oldest.
        assert_eq!(lease(&mut responder, Duration::from_secs(300), mac(1)), first);
        assert_eq!(lease(&mut responder, Duration::from_secs(301), mac(900)), Ipv4Addr::new(192, 168, 200, 3));
        assert_eq!(lease(&mut responder, Duration::from_secs(302), mac(1)), first);
        // The second client lost its address and is told so.
        let options: [(u8, &[u8]); 1] = [(OPT_REQUESTED_IP, &[192, 168, 200, 3])];
        let nak = responder
            .answer(Duration::from_secs(303), 1500, &message(3, mac(2), Ipv4Addr::UNSPECIFIED, &options))
            .unwrap();
        assert_eq!((nak.kind, nak.mac), (DhcpMessageType::Nak, BROADCAST));
    }

    #[test]
    fn offers_do_not_push_leases_out() {
        let mut responder = Responder::new(SERVER, 24);
        let held = lease(&mut responder, Duration::ZERO, mac(1));
        for n in 2..1_002 {
            let discover = message(1, mac(n), Ipv4Addr::UNSPECIFIED, &[]);
            let offer = responder.answer(Duration::from_secs(1), 1500, &discover).unwrap();
            assert_ne!(given(&offer), held);
        }
        assert_eq!(responder.entries.len(), 253);
        assert_eq!(lease(&mut responder, Duration::from_secs(2), mac(1)), held);
    }

    #[test]
    fn release_and_decline() {
        let mut responder = Responder::new(SERVER, 24);
        let ip = lease(&mut responder, Duration::ZERO, mac(1));
        // Somebody else's release changes nothing.
        assert!(responder.answer(Duration::ZERO, 1500, &message(7, mac(2), ip, &[])).is_none());
        assert_eq!(responder.entry(ip).unwrap().hold(Duration::ZERO), Hold::Leased);
        assert!(responder.answer(Duration::ZERO, 1500, &message(7, mac(1), ip, &[])).is_none());
        assert_eq!(responder.entry(ip).unwrap().hold(Duration::ZERO), Hold::Former);
        // A new client gets one that nobody ever had; the old one its own.
        assert_ne!(lease(&mut responder, Duration::ZERO, mac(2)), ip);
        assert_eq!(lease(&mut responder, Duration::ZERO, mac(1)), ip);

        let decline = message(4, mac(1), Ipv4Addr::UNSPECIFIED, &[(OPT_REQUESTED_IP, &ip.octets())]);
        assert!(responder.answer(Duration::ZERO, 1500, &decline).is_none());
        let next = lease(&mut responder, Duration::from_secs(1), mac(1));
        assert_ne!(next, ip);
        assert_eq!(responder.entry(ip).unwrap().hold(DECLINED), Hold::Former);
    }

    #[test]
    fn a_renewal_that_we_do_not_remember_is_granted_if_the_address_is_free() {
        let mut responder = Responder::new(SERVER, 24);
        let ip = Ipv4Addr::new(192, 168, 200, 77);
        let ack = responder.answer(Duration::ZERO, 9000, &message(3, mac(1), ip, &[])).unwrap();
        assert_eq!((ack.kind, given(&ack), ack.mac), (DhcpMessageType::Ack, ip, mac(1)));
        for wrong in [SERVER, Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::new(192, 168, 200, 78)] {
            let nak = responder.answer(Duration::ZERO, 9000, &message(3, mac(1), wrong, &[])).unwrap();
            assert_eq!((nak.kind, given(&nak)), (DhcpMessageType::Nak, Ipv4Addr::UNSPECIFIED), "{wrong}");
        }
    }

    #[test]
    fn messages_cut_anywhere_and_from_nowhere_are_ignored() {
        let mut responder = Responder::new(SERVER, 24);
        let whole = message(1, mac(1), Ipv4Addr::UNSPECIFIED, &[(OPT_CLIENT_ID, &[1; 19])]);
        // Up to the end of the message type there is nothing to answer; after it, an option cut short is skipped.
        for end in 0..243 {
            assert!(responder.answer(Duration::ZERO, 1500, &whole[..end]).is_none(), "cut at {end}");
        }
        for end in 243..=whole.len() {
            assert!(responder.answer(Duration::ZERO, 1500, &whole[..end]).is_some(), "cut at {end}");
        }
        for (at, value) in [(0, 2), (1, 6), (2, 16), (24, 10), (28, 3), (236, 0), (242, 9)] {
            let mut wrong = whole.clone();
            wrong[at] = value;
            assert!(responder.answer(Duration::ZERO, 1500, &wrong).is_none(), "byte {at}");
        }
        assert_eq!(responder.entries.iter().filter(|e| e.hold != Hold::Never).count(), 1);
    }
}
