//! Interrupt control: masking, credits and the latch in front of each MSI-X vector.
//!
//! One block of 32 bytes a vector at BAR0 + 0x2000 (`ionic_regs.h: struct ionic_intr`). The model, and why it is exactly
//! this one: an event that finds its vector masked is *latched*, never dropped, and is delivered on unmask; credits that
//! are given back say how far the driver has looked, so that completions it left behind interrupt again; but giving back
//! 0 credits means "I looked and found nothing" and never re-fires, or event queues would storm.

use crate::vfio::IrqTable;

/// Vectors, and MSI-X table entries.
pub const VECTORS: usize = crate::pci::VECTORS as usize;
/// Bytes of one control block.
pub const BLOCK_SIZE: u64 = 32;

const COAL_INIT: u64 = 0x00;
const MASK: u64 = 0x04;
const CREDITS: u64 = 0x08;
const MASK_ASSERT: u64 = 0x0c;
const COAL: u64 = 0x10;

const CREDITS_COUNT: u32 = 0x7fff;
const CREDITS_UNMASK: u32 = 1 << 16;

#[derive(Debug, Clone, Copy)]
struct Vector {
    mask: bool,
    mask_assert: bool,
    pending: bool,
    /// Completions written and not yet given back as credits.
    outstanding: u32,
    coal_init: u32,
    coal: u32,
    raised: u64,
    /// `raised` when the driver last unmasked with a credit write.
    handled: u64,
}

impl Default for Vector {
    fn default() -> Self {
        Self {
            mask: true,
            mask_assert: false,
            pending: false,
            outstanding: 0,
            coal_init: 0,
            coal: 0,
            raised: 0,
            handled: 0,
        }
    }
}

/// The interrupt control array.
#[derive(Debug)]
pub struct Interrupts {
    vectors: [Vector; VECTORS],
    irqs: IrqTable,
    /// Bus mastering and MSI-X are on.
    open: bool,
}

impl Interrupts {
    /// All vectors masked, nothing pending; interrupts go to `irqs`.
    #[must_use]
    pub fn new(irqs: IrqTable) -> Self {
        Self { vectors: [Vector::default(); VECTORS], irqs, open: false }
    }

    /// Where interrupts go.
    #[must_use]
    pub fn irqs(&self) -> &IrqTable {
        &self.irqs
    }

    /// Back to power-on values; eventfds stay.
    pub fn reset(&mut self) {
        self.vectors = [Vector::default(); VECTORS];
    }

    /// Masks one vector and forgets its latch: its queue is gone, and the guest may have freed its interrupt.
    pub fn silence(&mut self, vector: u16) {
        if let Some(v) = self.vectors.get_mut(usize::from(vector)) {
            v.mask = true;
            v.pending = false;
            v.outstanding = 0;
        }
    }

    /// Opens or closes the way to the guest (bus mastering and MSI-X enable); opening delivers what was latched.
    pub fn set_open(&mut self, open: bool) {
        self.open = open;
        if open {
            self.retry();
        }
    }

    /// Eventfds were installed: delivers what was latched for want of one.
    pub fn retry(&mut self) {
        for vector in 0..VECTORS {
            self.try_fire(vector);
        }
    }

    /// `count` completions were written for the queue of this vector.
    pub fn completions(&mut self, vector: u16, count: u32) {
        if let Some(v) = self.vectors.get_mut(usize::from(vector)) {
            v.outstanding = v.outstanding.saturating_add(count);
        }
    }

    /// Something happened that the driver of this vector should look at. Call it once a batch, after the batch is
    /// visible in guest memory.
    pub fn event(&mut self, vector: u16) {
        let vector = usize::from(vector);
        if let Some(v) = self.vectors.get_mut(vector) {
            v.pending = true;
            self.try_fire(vector);
        }
    }

    /// Interrupts delivered on this vector since the device was made or reset.
    #[must_use]
    pub fn raised(&self, vector: u16) -> u64 {
        self.vectors.get(usize::from(vector)).map_or(0, |v| v.raised)
    }

    /// The interrupt on this vector, counted as [`Interrupts::raised`] counts them, that the driver last said it has handled, by
    /// unmasking with a credit write.
    #[must_use]
    pub fn handled(&self, vector: u16) -> u64 {
        self.vectors.get(usize::from(vector)).map_or(0, |v| v.handled)
    }

    /// Whether an event waits for this vector to be unmasked.
    #[must_use]
    pub fn pending(&self, vector: u16) -> bool {
        self.vectors.get(usize::from(vector)).is_some_and(|v| v.pending)
    }

    fn try_fire(&mut self, index: usize) {
        let Some(v) = self.vectors.get_mut(index) else { return };
        if !v.pending || v.mask || !self.open {
            return;
        }
        // Without an eventfd the event stays latched until one is installed.
        if self.irqs.trigger(u32::try_from(index).unwrap_or(u32::MAX)) {
            v.pending = false;
            v.mask = v.mask_assert;
            v.raised += 1;
        }
    }

    /// Reads the 32-bit register at `offset` from the start of the array; what is not there reads 0.
    #[must_use]
    pub fn read(&self, offset: u64) -> u32 {
        let Some(v) = usize::try_from(offset / BLOCK_SIZE).ok().and_then(|i| self.vectors.get(i)) else { return 0 };
        match offset % BLOCK_SIZE {
            COAL_INIT => v.coal_init,
            MASK => v.mask.into(),
            CREDITS => v.outstanding & CREDITS_COUNT,
            MASK_ASSERT => v.mask_assert.into(),
            COAL => v.coal,
            _ => 0,
        }
    }

    /// Writes the 32-bit register at `offset`; what is not there is ignored.
    pub fn write(&mut self, offset: u64, value: u32) {
        let Ok(index) = usize::try_from(offset / BLOCK_SIZE) else { return };
        let Some(v) = self.vectors.get_mut(index) else { return };
        match offset % BLOCK_SIZE {
            COAL_INIT => v.coal_init = value,
            MASK => {
                v.mask = value & 1 != 0;
                self.try_fire(index);
            }
            CREDITS => {
                let count = value & CREDITS_COUNT;
                v.outstanding = v.outstanding.saturating_sub(count);
                if value & CREDITS_UNMASK != 0 {
                    if count == 0 {
                        v.outstanding = 0;
                    } else if v.outstanding > 0 {
                        v.pending = true;
                    }
                    v.mask = false;
                    v.handled = v.raised;
                    self.try_fire(index);
                }
            }
            MASK_ASSERT => v.mask_assert = value & 1 != 0,
            COAL => v.coal = value,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn eventfd_pair() -> (OwnedFd, OwnedFd) {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let other = fd.try_clone().unwrap();
        (fd, other)
    }

    fn fired(fd: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(fd, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }

    /// Vector 3 with an eventfd, unmasked, auto-masking, as the driver sets it up.
    fn ready() -> (Interrupts, OwnedFd) {
        let mut intr = Interrupts::new(IrqTable::new(VECTORS));
        let (fd, kept) = eventfd_pair();
        intr.irqs().install(3, fd).unwrap();
        intr.set_open(true);
        intr.write(3 * BLOCK_SIZE + MASK_ASSERT, 1);
        intr.write(3 * BLOCK_SIZE + MASK, 0);
        (intr, kept)
    }

    #[test]
    fn an_event_while_masked_waits_for_the_unmask() {
        let (mut intr, fd) = ready();
        intr.event(3);
        assert_eq!((fired(&fd), intr.read(3 * BLOCK_SIZE + MASK)), (1, 1), "asserted and masked itself");
        intr.event(3);
        intr.event(3);
        assert_eq!(fired(&fd), 0);
        intr.write(3 * BLOCK_SIZE + MASK, 0);
        assert_eq!(fired(&fd), 1, "once for both");
        intr.write(3 * BLOCK_SIZE + MASK, 0);
        assert_eq!((fired(&fd), intr.raised(3)), (0, 2));
    }

    #[test]
    fn credits_refire_for_what_was_left_and_stay_quiet_for_zero() {
        let (mut intr, fd) = ready();
        let credits = 3 * BLOCK_SIZE + CREDITS;
        intr.completions(3, 10);
        intr.event(3);
        assert_eq!((fired(&fd), intr.read(credits)), (1, 10));
        intr.write(credits, 4);
        assert_eq!((fired(&fd), intr.read(credits), intr.read(3 * BLOCK_SIZE + MASK)), (0, 6, 1), "no unmask asked");
        intr.write(credits, 2 | CREDITS_UNMASK);
        assert_eq!((fired(&fd), intr.read(credits)), (1, 4), "4 were left behind");
        intr.write(credits, CREDITS_UNMASK);
        assert_eq!(
            (fired(&fd), intr.read(credits), intr.read(3 * BLOCK_SIZE + MASK)),
            (0, 0, 0),
            "looked, found nothing"
        );
        intr.write(credits, 0x7fff | CREDITS_UNMASK | 1 << 17);
        assert_eq!((fired(&fd), intr.read(credits)), (0, 0), "more than was owed");
    }

    #[test]
    fn nothing_leaves_while_closed_or_without_an_eventfd() {
        let (mut intr, fd) = ready();
        intr.set_open(false);
        intr.event(3);
        assert!(fired(&fd) == 0 && intr.pending(3));
        intr.set_open(true);
        assert!(fired(&fd) == 1 && !intr.pending(3));

        intr.write(5 * BLOCK_SIZE + MASK, 0);
        intr.event(5);
        assert!(intr.pending(5), "latched across a missing eventfd");
        let (new, kept) = eventfd_pair();
        intr.irqs().install(5, new).unwrap();
        intr.retry();
        assert_eq!(fired(&kept), 1);
    }

    #[test]
    fn reset_masks_and_forgets_and_odd_places_are_harmless() {
        let (mut intr, fd) = ready();
        intr.write(3 * BLOCK_SIZE + COAL_INIT, 16);
        assert_eq!(intr.read(3 * BLOCK_SIZE + COAL_INIT), 16);
        intr.silence(3);
        intr.event(3);
        intr.reset();
        intr.write(3 * BLOCK_SIZE + MASK, 0);
        assert_eq!((fired(&fd), intr.read(3 * BLOCK_SIZE + COAL_INIT)), (0, 0));
        intr.write(u64::MAX, 1);
        intr.write(64 * BLOCK_SIZE, 1);
        intr.write(0x14, 1);
        intr.event(u16::MAX);
        intr.silence(u16::MAX);
        assert_eq!((intr.read(u64::MAX), intr.read(64 * BLOCK_SIZE), intr.read(0x14)), (0, 0, 0));
    }
}
