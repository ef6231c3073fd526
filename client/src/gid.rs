//! Which address of a port goes into a token.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

/// What kind of address an entry of a port's GID table is (rdma-core, `verbs.h`, `enum ibv_gid_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidType {
    /// InfiniBand.
    Ib,
    /// RoCE version 1: Ethernet frames of a type of their own.
    RoceV1,
    /// RoCE version 2: UDP.
    RoceV2,
    /// One that this client does not know.
    Other(u32),
}

impl GidType {
    /// From the number in `struct ibv_gid_entry`.
    #[must_use]
    pub fn new(number: u32) -> Self {
        match number {
            0 => Self::Ib,
            1 => Self::RoceV1,
            2 => Self::RoceV2,
            other => Self::Other(other),
        }
    }
}

/// An entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// Its place in the table.
    pub index: u32,
    /// The address, as it is on the wire.
    pub gid: [u8; 16],
    /// Its kind.
    pub kind: GidType,
}

impl GidEntry {
    /// The IP address that a RoCE GID is. Always an address: IPv4 is mapped into IPv6.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        Ipv6Addr::from(self.gid).to_canonical()
    }
}

/// As `ibv_devinfo -v` shows it, and the kind.
impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GID[{}] {}", self.index, Ipv6Addr::from(self.gid))?;
        match self.kind {
            GidType::Ib => f.write_str(" IB"),
            GidType::RoceV1 => f.write_str(" RoCE v1"),
            GidType::RoceV2 => f.write_str(" RoCE v2"),
            GidType::Other(number) => write!(f, " type {number}"),
        }
    }
}

/// Chooses the entry under which a RoCE port is reached best. The first of these that there is:
///
/// 1. RoCE v2 with the address `local`, from which this host reaches the server;
/// 2. RoCE v2 with an IPv4 address that is not link-local;
/// 3. RoCE v2 with an IPv6 address that is not link-local.
///
/// The link-local entry that often comes first is never chosen: a server that has an IPv4-mapped GID cannot connect to it
/// (wire document, section 5).
#[must_use]
pub fn choose(entries: &[GidEntry], local: Option<IpAddr>) -> Option<GidEntry> {
    let usable = |entry: &&GidEntry| entry.kind == GidType::RoceV2 && is_routable(entry.address());
    let local = local.map(|address| address.to_canonical());
    let first = |wanted: &dyn Fn(IpAddr) -> bool| entries.iter().filter(usable).find(|entry| wanted(entry.address()));
    first(&|address| Some(address) == local)
        .or_else(|| first(&|address| address.is_ipv4()))
        .or_else(|| first(&|_| true))
        .copied()
}

fn is_routable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_unspecified() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_unspecified() && !address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table as `show_gids` prints it: kinds and addresses in the order of their indices.
    fn table(rows: &[(u32, &str)]) -> Vec<GidEntry> {
        let entry = |(index, (kind, address)): (usize, &(u32, &str))| GidEntry {
            index: u32::try_from(index).unwrap(),
            gid: match address.parse().unwrap() {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            },
            kind: GidType::new(*kind),
        };
        rows.iter().enumerate().map(entry).collect()
    }

    fn chosen(rows: &[(u32, &str)], local: Option<&str>) -> Option<u32> {
        choose(&table(rows), local.map(|address| address.parse().unwrap())).map(|entry| entry.index)
    }

    #[test]
    fn link_local_and_roce_v1_entries_are_passed_over() {
        // The table of vgwrdma's user documentation, with both versions of the IPv4 address.
        let rows = [(1, "fe80::1"), (2, "fe80::1"), (1, "192.168.100.10"), (2, "192.168.100.10")];
        assert_eq!(chosen(&rows, None), Some(3));
        // The ionic driver's: version 2 only, link-local first.
        assert_eq!(chosen(&[(2, "fe80::d2:1dff:fec1:ae10"), (2, "192.168.200.9")], None), Some(1));
    }

    #[test]
    fn the_address_that_reaches_the_server_wins() {
        let rows = [(2, "fe80::1"), (2, "10.0.0.1"), (2, "192.168.200.9"), (2, "fd00::9")];
        assert_eq!(chosen(&rows, None), Some(1));
        assert_eq!(chosen(&rows, Some("192.168.200.9")), Some(2));
        assert_eq!(chosen(&rows, Some("::ffff:192.168.200.9")), Some(2));
        assert_eq!(chosen(&rows, Some("fd00::9")), Some(3));
        // One that is not in the table says nothing.
        assert_eq!(chosen(&rows, Some("127.0.0.1")), Some(1));
        // Version 1 of it does not count.
        assert_eq!(chosen(&[(2, "10.0.0.1"), (1, "10.0.0.2")], Some("10.0.0.2")), Some(0));
    }

    #[test]
    fn ipv6_is_the_last_resort_and_link_local_is_none() {
        assert_eq!(chosen(&[(2, "fe80::1"), (2, "fd00::9")], None), Some(1));
        assert_eq!(chosen(&[(2, "fd00::9"), (2, "10.0.0.1")], None), Some(1));
        assert_eq!(chosen(&[(2, "fe80::1"), (2, "169.254.7.7"), (2, "::"), (2, "0.0.0.0")], Some("fe80::1")), None);
        assert_eq!(chosen(&[(0, "fd00::9"), (7, "10.0.0.1")], None), None);
        assert_eq!(chosen(&[], None), None);
    }

    #[test]
    fn entries_are_shown_with_index_and_kind() {
        let table = table(&[(2, "192.168.200.9"), (9, "fe80::1")]);
        assert_eq!(table[0].to_string(), "GID[0] ::ffff:192.168.200.9 RoCE v2");
        assert_eq!(table[1].to_string(), "GID[1] fe80::1 type 9");
    }
}
