//! How the device is used.

use std::time::Duration;

/// What one packet may carry, in bytes (InfiniBand Architecture Specification, section 5.2.1, "PMTU").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mtu {
    /// 256.
    Mtu256,
    /// 512.
    Mtu512,
    /// 1024: the most that fits into Ethernet frames of the usual 1500 bytes.
    Mtu1024,
    /// 2048.
    Mtu2048,
    /// 4096: needs jumbo frames, 4200 bytes and more.
    Mtu4096,
}

impl Mtu {
    /// The one of so many bytes, if there is one.
    #[must_use]
    pub fn new(bytes: u64) -> Option<Self> {
        [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096]
            .into_iter()
            .find(|mtu| u64::from(mtu.bytes()) == bytes)
    }

    /// Bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            Self::Mtu256 => 256,
            Self::Mtu512 => 512,
            Self::Mtu1024 => 1024,
            Self::Mtu2048 => 2048,
            Self::Mtu4096 => 4096,
        }
    }
}

/// How a [`Fabric`](crate::Fabric) is set up. [`Config::default`] says what is usual.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Name of the device; the first with an active port, if none.
    pub device: Option<String>,
    /// Number of its port, from 1.
    pub port: u8,
    /// Index in the port's GID table; for each client the one that reaches it, if none.
    pub gid: Option<u8>,
    /// How many buffers are registered.
    pub buffers: usize,
    /// Bytes of each, at most 1 GiB.
    pub buffer_size: usize,
    /// How long a transfer waits for a buffer.
    pub buffer_wait: Duration,
    /// Whether hipObject's first protocol is spoken: GetObject is answered before its bytes are written.
    pub v1: bool,
    /// Whether tokens of families C, D and E may name reliable connections.
    pub rc_c: bool,
    /// Most bytes of a packet; the port's active MTU is another bound.
    pub mtu: Option<Mtu>,
    /// Local ACK timeout: 4.096 µs · 2^timeout, 1 to 31 (InfiniBand Architecture Specification, section 9.7.6.1.3). Devices may take up
    /// to four times as long.
    pub timeout: u8,
    /// How often a packet is sent again that nobody acknowledges, 0 to 7.
    pub retry: u8,
    /// How often one is sent again for which the client had no receive, 0 to 7; 7 is without end.
    pub rnr_retry: u8,
    /// Traffic class of packets over Ethernet: DSCP in the upper six bits, ECN in the lower two (RFC 2474, RFC 3168).
    pub traffic_class: u8,
    /// Work requests that a queue pair may have under way.
    pub depth: u32,
    /// How long a connection is kept that nobody uses.
    pub idle: Duration,
    /// Longest time of one work request, and that a client may take to connect or to send what it has announced.
    pub wait: Duration,
    /// Most queue pairs in all.
    pub connections: usize,
    /// Most queue pairs of one client.
    pub per_client: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device: None,
            port: 1,
            gid: None,
            buffers: 4,
            buffer_size: 64 << 20,
            buffer_wait: Duration::from_secs(1),
            v1: false,
            rc_c: false,
            mtu: None,
            timeout: 14,
            retry: 7,
            rnr_retry: 7,
            traffic_class: 0,
            depth: 16,
            idle: Duration::from_secs(60),
            wait: Duration::from_secs(10),
            connections: 256,
            per_client: 64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_five_mtus() {
        let all: Vec<_> = (0..10_000).filter_map(Mtu::new).map(Mtu::bytes).collect();
        assert_eq!(all, [256, 512, 1024, 2048, 4096]);
        assert!(Mtu::Mtu1024 < Mtu::Mtu4096);
    }
}
