//! Under which of its addresses the server connects to a client.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

/// What kind of address an entry of a port's GID table is (rdma-core, `verbs.h`, `enum ibv_gid_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// InfiniBand.
    Ib,
    /// RoCE version 1: Ethernet frames of a type of their own.
    RoceV1,
    /// RoCE version 2: UDP.
    RoceV2,
}

/// An entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its place in the table. Address handles have 8 bits for it.
    pub(crate) index: u8,
    /// The address, as it is on the wire.
    pub(crate) gid: [u8; 16],
    pub(crate) kind: Kind,
}

/// As `ibv_devinfo -v` shows it.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Ib => "IB",
            Kind::RoceV1 => "RoCE v1",
            Kind::RoceV2 => "RoCE v2",
        };
        write!(f, "GID[{}] {} {kind}", self.index, Ipv6Addr::from(self.gid))
    }
}

/// Addresses of one of these reach others of the same, and no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    V4,
    V6,
    /// fe80::/10, which is also what a RoCE port has without any IP address.
    LinkLocal,
}

fn scope(gid: [u8; 16]) -> Scope {
    let address = Ipv6Addr::from(gid);
    match address.to_canonical() {
        IpAddr::V4(_) => Scope::V4,
        IpAddr::V6(address) if address.is_unicast_link_local() => Scope::LinkLocal,
        IpAddr::V6(_) => Scope::V6,
    }
}

/// The first `n` bits that two addresses have in common.
fn common(a: [u8; 16], b: [u8; 16]) -> u32 {
    (u128::from_be_bytes(a) ^ u128::from_be_bytes(b)).leading_zeros()
}

/// The entry from which `peer` is reached: of its own address family, as the kernel finds no route from an IPv4-mapped source
/// to a link-local destination or back (`EINVAL`; wire document, section 5). Of several, RoCE version 2 before 1, then the one
/// that has most leading bits in common with the peer, as the subnet's does, then the first.
pub(crate) fn source(entries: &[Entry], peer: [u8; 16]) -> Option<Entry> {
    let fits = |entry: &&Entry| entry.kind == Kind::Ib || scope(entry.gid) == scope(peer);
    let rank = |entry: &Entry| (entry.kind == Kind::RoceV2, common(entry.gid, peer));
    entries.iter().filter(fits).rev().max_by_key(|entry| rank(entry)).copied()
}

/// The entry that the server calls itself by where no client is in sight.
pub(crate) fn own(entries: &[Entry]) -> Option<Entry> {
    let rank =
        |entry: &Entry| (entry.kind == Kind::RoceV2, scope(entry.gid) == Scope::V4, scope(entry.gid) == Scope::V6);
    entries.iter().rev().max_by_key(|entry| rank(entry)).copied()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn gid(address: &str) -> [u8; 16] {
        match address.parse().unwrap() {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        }
    }

    fn table(rows: &[(Kind, &str)]) -> Vec<Entry> {
        let row = |(index, (kind, address)): (usize, &(Kind, &str))| Entry {
            index: u8::try_from(index).unwrap(),
            gid: gid(address),
            kind: *kind,
        };
        rows.iter().enumerate().map(row).collect()
    }

    use Kind::{Ib, RoceV1, RoceV2};

    #[test]
    fn the_source_is_of_the_peers_family() {
        let rows = [
            (RoceV1, "fe80::1"),
            (RoceV2, "fe80::1"),
            (RoceV1, "192.168.200.9"),
            (RoceV2, "192.168.200.9"),
            (RoceV2, "10.0.0.7"),
            (RoceV2, "fd00::9"),
        ];
        let from = |peer| source(&table(&rows), gid(peer)).map(|entry| entry.index);
        assert_eq!(from("fe80::2"), Some(1));
        assert_eq!(from("192.168.200.1"), Some(3));
        assert_eq!(from("10.0.0.1"), Some(4), "the subnet's");
        assert_eq!(from("fd00::1"), Some(5));
        assert_eq!(source(&table(&rows[..2]), gid("10.0.0.1")), None);
        assert_eq!(source(&table(&rows[3..]), gid("fe80::1")), None);
        assert_eq!(
            source(&table(&rows[..1]), gid("fe80::2")).unwrap().index,
            0,
            "version 1 where there is nothing else"
        );
        assert_eq!(source(&[], gid("fe80::2")), None);
    }

    #[test]
    fn infiniband_has_no_families() {
        let rows = [(Ib, "fe80::2:c903:0:1")];
        assert_eq!(source(&table(&rows), gid("fec0::1")).unwrap().index, 0);
    }

    #[test]
    fn the_server_calls_itself_by_an_address_that_routes() {
        let rows = [
            (RoceV2, "fe80::1"),
            (RoceV2, "fd00::9"),
            (RoceV1, "10.0.0.1"),
            (RoceV2, "10.0.0.1"),
            (RoceV2, "10.0.0.2"),
        ];
        let of = |rows: &[(Kind, &str)]| own(&table(rows)).map(|entry| entry.index);
        assert_eq!(of(&rows), Some(3));
        assert_eq!(of(&rows[..3]), Some(1));
        assert_eq!(of(&rows[..1]), Some(0));
        assert_eq!(of(&[]), None);
        assert_eq!(table(&rows)[3].to_string(), "GID[3] ::ffff:10.0.0.1 RoCE v2");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Whatever the table, the chosen entry is one of it and of the peer's family, and there is one if any is.
        #[test]
        fn any_table_gives_a_source_that_fits(
            rows in prop::collection::vec((0..3u8, "(10\\.[0-2]\\.0|169\\.254\\.1)\\.[1-9]|fe80::[1-9]|fd0[0-2]::[1-9]"), 0..8),
            peer in "(10\\.[0-2]\\.0|169\\.254\\.1)\\.[1-9]|fe80::[1-9]|fd0[0-2]::[1-9]",
        ) {
            let rows: Vec<_> = rows.iter().map(|(v, a)| ([RoceV1, RoceV2, RoceV2][usize::from(*v)], a.as_str())).collect();
            let (table, peer) = (table(&rows), gid(&peer));
            let fitting = table.iter().filter(|entry| scope(entry.gid) == scope(peer));
            match source(&table, peer) {
                Some(entry) => {
                    prop_assert!(table.contains(&entry) && scope(entry.gid) == scope(peer));
                    let best = fitting.map(|e| (e.kind == RoceV2, common(e.gid, peer))).max().unwrap();
                    prop_assert_eq!((entry.kind == RoceV2, common(entry.gid, peer)), best);
                }
                None => prop_assert_eq!(fitting.count(), 0),
            }
        }
    }
}
