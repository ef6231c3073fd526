//! Memory that is copied in and out and never borrowed, because others may write it at any time: a device, or a program that
//! has its address.
#![allow(unsafe_code)] // memory is shared with others than this program's references

use std::{
    io,
    ptr::{self, NonNull},
};

use memmap2::MmapMut;

use crate::memory::{MemoryError, PAGE};

/// Anonymous memory of the system. Dropping it unmaps it.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// Kept for its `Drop`.
    _memory: MmapMut,
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to this structure alone.
unsafe impl Send for Mapping {}

impl Mapping {
    /// `length` zeros, at least 1, that begin `offset` bytes into a page. Errors: [`MemoryError::Map`].
    pub(crate) fn new(length: usize, offset: usize) -> Result<Self, MemoryError> {
        let map = |source| MemoryError::Map { length, source };
        let size = length.checked_add(offset).filter(|_| length > 0 && offset < PAGE);
        let size = size.ok_or_else(|| map(io::ErrorKind::InvalidInput.into()))?;
        let mut memory = MmapMut::map_anon(size).map_err(map)?;
        // SAFETY: within the mapping. The slice that the pointer comes from is not used again, here or anywhere.
        let start = unsafe { NonNull::new_unchecked(memory.as_mut_ptr().add(offset)) };
        Ok(Self { _memory: memory, start, length })
    }

    /// The first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Panics unless `length` bytes at `offset` are in the mapping.
    fn check(&self, offset: usize, length: usize) {
        let room = self.length.checked_sub(offset);
        assert!(
            room.is_some_and(|room| length <= room),
            "{length} bytes at {offset} of a region of {} bytes",
            self.length
        );
    }

    /// Copies `bytes` to `offset`. Panics if they do not fit there.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        // SAFETY: in the mapping, which nobody has a reference to; `bytes` is elsewhere. A device may read at the same time: then
        // it reads either byte.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(offset), bytes.len()) }
    }

    /// Copies from `offset`. Panics if there are not as many bytes.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        // SAFETY: in the mapping, which nobody has a reference to; `into` is elsewhere. Where a device may write, the pointer is
        // known to its library, so that the compiler takes no byte for one that it has seen before. A server that writes after
        // its answer makes either byte come out.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), into.as_mut_ptr(), into.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_begins_where_it_was_asked_to_and_is_copied() {
        let mut memory = Mapping::new(5000, 0).unwrap();
        assert_eq!((memory.start().addr().get() % PAGE, memory.length()), (0, 5000));
        memory.write(4990, b"0123456789");
        let mut end = [0xff; 12];
        memory.read(4988, &mut end);
        assert_eq!(&end, b"\0\x000123456789");
        assert_eq!(Mapping::new(1, 4095).unwrap().start().addr().get() % PAGE, 4095);
        for (length, offset) in [(0, 0), (1, PAGE), (usize::MAX, 1)] {
            assert!(matches!(Mapping::new(length, offset), Err(MemoryError::Map { .. })), "{length} {offset}");
        }
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4999 of a region of 5000 bytes")]
    fn nothing_is_written_behind_the_end() {
        Mapping::new(5000, 0).unwrap().write(4999, b"ab");
    }
}
