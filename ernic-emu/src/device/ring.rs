//! Index arithmetic that all rings share.

use crate::{
    mem::{Access, DmaError},
    ring::Indices,
};

/// The driver-written side of a ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ring {
    base: u64,
    indices: Indices,
}

impl Ring {
    /// Descriptor and completion rings start empty. `log2` is at most 15.
    pub(super) fn new(base: u64, log2: u8) -> Option<Self> {
        let indices = Indices::new(log2).filter(|_| log2 <= 15)?;
        Some(Self { base, indices })
    }

    /// Takes a doorbell's producer index; `false` if it is beyond the ring.
    pub(super) fn set_producer(&mut self, prod: u16) -> bool {
        self.indices.set_producer(prod)
    }

    /// Descriptors that wait.
    pub(super) fn available(&self) -> u16 {
        self.indices.available()
    }

    /// Index of the next descriptor.
    pub(super) fn index(&self) -> u16 {
        self.indices.next()
    }

    /// Address of the next descriptor's entry in a ring of `stride` bytes at `base`.
    pub(super) fn entry(&self, base: u64, stride: u64) -> u64 {
        base.wrapping_add(u64::from(self.index()) * stride)
    }

    /// Address of the next descriptor, `stride` bytes each.
    pub(super) fn descriptor(&self, stride: u64) -> u64 {
        self.entry(self.base, stride)
    }

    /// Address of the entry `ahead` places after the next descriptor's, if it waits too.
    pub(super) fn entry_ahead(&self, base: u64, stride: u64, ahead: u16) -> Option<u64> {
        let index = self.indices.after(ahead);
        (ahead < self.available()).then(|| base.wrapping_add(u64::from(index) * stride))
    }

    /// As [`Ring::entry_ahead`], of a descriptor, `stride` bytes each.
    pub(super) fn descriptor_ahead(&self, stride: u64, ahead: u16) -> Option<u64> {
        self.entry_ahead(self.base, stride, ahead)
    }

    /// Moves past the next descriptor.
    pub(super) fn advance(&mut self) {
        self.indices.advance(1);
    }

    /// Forgets what waits: nothing of it will be processed.
    pub(super) fn discard(&mut self) {
        self.indices.discard();
    }
}

/// The device-written side: completions of 16 bytes whose colour, bit 7 of the last byte, flips at each wrap, starting
/// with 1 (`ionic_dev.h: color_match`).
#[derive(Debug, Clone, Copy)]
pub(super) struct CompRing {
    base: u64,
    mask: u16,
    index: u16,
    color: bool,
}

/// Bit 7 of byte 15 of a completion (`IONIC_COMP_COLOR_MASK`).
const COLOR: u8 = 0x80;

impl CompRing {
    pub(super) fn new(base: u64, log2: u8) -> Option<Self> {
        (1..=15).contains(&log2).then(|| Self { base, mask: (1 << log2) - 1, index: 0, color: true })
    }

    /// Begins to fetch the entry `ahead` places after the next one.
    pub(super) fn prefetch(&self, mem: &mut Access<'_>, ahead: u16) {
        let index = self.index.wrapping_add(ahead) & self.mask;
        mem.prefetch(self.base.wrapping_add(u64::from(index) * 16), 16);
    }

    /// Writes a completion; its colour bit is set here. The word with the colour becomes visible last.
    pub(super) fn post(&mut self, mem: &mut Access<'_>, mut entry: [u8; 16]) -> Result<(), DmaError> {
        entry[15] = (entry[15] & !COLOR) | if self.color { COLOR } else { 0 };
        let at = self.base.wrapping_add(u64::from(self.index) * 16);
        self.index = (self.index + 1) & self.mask;
        if self.index == 0 {
            self.color = !self.color;
        }
        mem.write_completion(at, &entry)
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn ring_matches_a_queue(log2 in 1u8..=15, steps in proptest::collection::vec((any::<u16>(), any::<u16>()), 1..60)) {
            let mut ring = Ring::new(0x1000, log2).unwrap();
            let len = 1u32 << log2;
            let (mut prod, mut cons) = (0u32, 0u32);
            for (post, take) in steps {
                let free = len - 1 - (prod - cons);
                prod += u32::from(post) % (free + 1);
                prop_assert!(ring.set_producer((prod % len) as u16));
                prop_assert_eq!(u32::from(ring.available()), prod - cons);
                for _ in 0..u32::from(take).min(prod - cons) {
                    prop_assert_eq!(ring.descriptor(16), 0x1000 + u64::from(cons % len) * 16);
                    ring.advance();
                    cons += 1;
                }
            }
            if len <= u32::from(u16::MAX) {
                let before = ring.available();
                prop_assert!(!ring.set_producer(len as u16));
                prop_assert_eq!(ring.available(), before);
            }
        }
    }

    #[test]
    fn sizes_are_bounded() {
        assert!(Ring::new(0, 0).is_none() && Ring::new(0, 16).is_none() && CompRing::new(0, 255).is_none());
    }
}
