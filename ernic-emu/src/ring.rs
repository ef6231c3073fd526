//! The indices of the rings that a driver fills: its Ethernet, admin and work queues all count alike.

/// Entries from the consumer index up to the producer index wait for the device. Both wrap at the ring's length, and one
/// entry stays free, so that a full ring differs from an empty one (`ionic_dev.h: ionic_q_space_avail`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Indices {
    mask: u16,
    prod: u16,
    cons: u16,
}

impl Indices {
    /// Those of an empty ring of `1 << log2` entries; indices are 16 bits wide.
    pub(crate) fn new(log2: u8) -> Option<Self> {
        let last = 1u32.checked_shl(log2.into())?.checked_sub(1)?;
        let mask = u16::try_from(last).ok().filter(|&mask| mask > 0)?;
        Some(Self { mask, prod: 0, cons: 0 })
    }

    /// Takes a doorbell's producer index; `false` if it is beyond the ring.
    pub(crate) fn set_producer(&mut self, prod: u16) -> bool {
        let fits = prod <= self.mask;
        if fits {
            self.prod = prod;
        }
        fits
    }

    /// Entries that wait.
    pub(crate) fn available(&self) -> u16 {
        self.prod.wrapping_sub(self.cons) & self.mask
    }

    /// Index of the next entry.
    pub(crate) fn next(&self) -> u16 {
        self.cons
    }

    /// Index of the entry `ahead` places after the next one.
    pub(crate) fn after(&self, ahead: u16) -> u16 {
        self.cons.wrapping_add(ahead) & self.mask
    }

    /// Moves past `count` entries.
    pub(crate) fn advance(&mut self, count: u16) {
        self.cons = self.after(count);
    }

    /// Forgets what waits: nothing of it will be processed.
    pub(crate) fn discard(&mut self) {
        self.cons = self.prod;
    }

    /// Empties the ring and starts it anew at its first entry.
    pub(crate) fn reset(&mut self) {
        (self.prod, self.cons) = (0, 0);
    }
}
