//! Ranges of a client's memory, in arithmetic that cannot wrap.

/// A range of the client's memory. Any two numbers are a window; one that leaves the address space is contained in nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Window {
    /// Virtual address of the first byte, in the client.
    pub address: u64,
    /// Bytes.
    pub length: u64,
}

impl Window {
    /// What of the window lies in `region`, cut off where the region ends (wire document, section 4, rule 1).
    ///
    /// `None` if the first byte is outside: a window is shortened, but never moved. An empty window touches nothing and is
    /// inside of everything.
    #[must_use]
    pub fn clip(self, region: Self) -> Option<Self> {
        if self.length == 0 {
            return Some(self);
        }
        let offset = self.address.checked_sub(region.address)?;
        let room = region.length.checked_sub(offset).filter(|&room| room > 0)?;
        // Not behind the address space, even if the region says that it goes there.
        let room = room.min((u64::MAX - self.address).saturating_add(1));
        Some(Self { address: self.address, length: self.length.min(room) })
    }

    /// Whether every byte of `other` is in the window.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        other.clip(self) == Some(other)
    }

    /// `length` bytes from `offset` on. `None` if they leave the window, or if they begin behind the address space.
    #[must_use]
    pub fn part(self, offset: u64, length: u64) -> Option<Self> {
        let room = self.length.checked_sub(offset)?;
        let address = self.address.checked_add(offset)?;
        (length <= room).then_some(Self { address, length })
    }
}
