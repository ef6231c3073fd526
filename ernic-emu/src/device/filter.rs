//! Receive filters: which frames the guest wants.

use ionic_abi::RxMode;

use super::stats::{Cast, cast};
use crate::offload::ETHERTYPE_VLAN;

/// What a filter lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    Vlan(u16),
    Mac([u8; 6]),
    MacVlan([u8; 6], u16),
}

/// The receive filters of the LIF.
#[derive(Debug, Default)]
pub(super) struct Filters {
    list: Vec<(u32, Match)>,
    last_id: u32,
}

/// Filters that the identity offers (`max_ucast_filters`, `max_mcast_filters`) together, with room for one per VLAN.
const MAX: usize = 512 + 512 + 4096;

/// Why a filter was not added.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Exists,
    Full,
}

impl Filters {
    pub(super) fn add(&mut self, filter: Match) -> Result<u32, Refused> {
        if self.list.iter().any(|(_, known)| *known == filter) {
            return Err(Refused::Exists);
        }
        if self.list.len() >= MAX {
            return Err(Refused::Full);
        }
        // Unique among the live ones even after 2^32 additions: the driver hashes by it.
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            if self.last_id != 0 && self.list.iter().all(|(id, _)| *id != self.last_id) {
                break;
            }
        }
        self.list.push((self.last_id, filter));
        Ok(self.last_id)
    }

    pub(super) fn remove(&mut self, id: u32) {
        self.list.retain(|(known, _)| *known != id);
    }

    fn any(&self, wanted: impl Fn(&Match) -> bool) -> bool {
        self.list.iter().any(|(_, m)| wanted(m))
    }

    /// Whether the guest wants this frame; `vlan_filter`: it negotiated VLAN filtering.
    pub(super) fn accept(&self, frame: &[u8], mode: RxMode, vlan_filter: bool) -> bool {
        if mode.contains(RxMode::PROMISC) {
            return true;
        }
        let Some(mac) = frame.first_chunk::<6>() else { return false };
        let vid = match (frame.get(12..14), frame.get(14..16)) {
            (Some(t), Some(&[hi, lo])) if *t == ETHERTYPE_VLAN.to_be_bytes() => u16::from_be_bytes([hi, lo]) & 0x0fff,
            _ => 0,
        };
        // Untagged frames and those of VLAN 0 need no VLAN filter (IEEE 802.1Q: priority-tagged).
        let vlan_ok =
            vid == 0 || !vlan_filter || self.any(|m| matches!(m, Match::Vlan(v) | Match::MacVlan(_, v) if *v == vid));
        let known = || {
            self.any(|m| match m {
                Match::Mac(known) => known == mac,
                Match::MacVlan(known, v) => known == mac && *v == vid,
                Match::Vlan(_) => false,
            })
        };
        vlan_ok
            && match cast(frame) {
                Cast::Broadcast => mode.contains(RxMode::BROADCAST),
                Cast::Multicast => mode.contains(RxMode::ALLMULTI) || mode.contains(RxMode::MULTICAST) && known(),
                Cast::Unicast => mode.contains(RxMode::UNICAST) && known(),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const NORMAL: RxMode = RxMode::UNICAST.union(RxMode::MULTICAST).union(RxMode::BROADCAST);

    fn frame(dst: [u8; 6], vid: Option<u16>) -> Vec<u8> {
        let mut f = dst.to_vec();
        f.extend([2, 0, 0, 0, 0, 9]);
        if let Some(vid) = vid {
            f.extend([0x81, 0]);
            f.extend((vid | 0x6000).to_be_bytes());
        }
        f.extend([8, 0, 0, 0]);
        f
    }

    #[test]
    fn modes_and_matches() {
        let mut f = Filters::default();
        let multicast = [1, 0, 0x5e, 0, 0, 1];
        assert!(!f.accept(&frame(OWN, None), NORMAL, true), "no station filter, no unicast");
        let id = f.add(Match::Mac(OWN)).unwrap();
        assert_eq!(f.add(Match::Mac(OWN)), Err(Refused::Exists));
        assert!(f.accept(&frame(OWN, None), NORMAL, true));
        assert!(!f.accept(&frame(OWN, None), RxMode::BROADCAST, true));
        assert!(!f.accept(&frame([2, 0, 0, 0, 0, 2], None), NORMAL, true));
        assert!(f.accept(&frame([2, 0, 0, 0, 0, 2], None), RxMode::PROMISC, true));
        assert!(f.accept(&frame([0xff; 6], None), NORMAL, true));
        assert!(!f.accept(&frame([0xff; 6], None), RxMode::UNICAST, true));
        assert!(!f.accept(&frame(multicast, None), NORMAL, true));
        assert!(f.accept(&frame(multicast, None), NORMAL | RxMode::ALLMULTI, true));
        let second = f.add(Match::Mac(multicast)).unwrap();
        assert!(second != id && f.accept(&frame(multicast, None), NORMAL, true));
        f.remove(id);
        f.remove(12345);
        assert!(!f.accept(&frame(OWN, None), NORMAL, true));
        assert!(!f.accept(&[0; 5], NORMAL, true), "no address at all");
    }

    #[test]
    fn vlans_need_a_filter_where_filtering_was_negotiated() {
        let mut f = Filters::default();
        f.add(Match::Mac(OWN)).unwrap();
        assert!(!f.accept(&frame(OWN, Some(5)), NORMAL, true));
        assert!(f.accept(&frame(OWN, Some(5)), NORMAL, false));
        assert!(f.accept(&frame(OWN, Some(0)), NORMAL, true), "priority-tagged");
        f.add(Match::Vlan(5)).unwrap();
        assert!(f.accept(&frame(OWN, Some(5)), NORMAL, true));
        assert!(!f.accept(&frame(OWN, Some(6)), NORMAL, true));
    }

    #[test]
    fn a_full_table_refuses() {
        let mut f = Filters::default();
        for i in 0..MAX {
            let [a, b] = u16::try_from(i).unwrap().to_be_bytes();
            f.add(Match::Mac([2, 1, 0, 0, a, b])).unwrap();
        }
        assert_eq!(f.add(Match::Mac(OWN)), Err(Refused::Full));
    }
}
