//! What the machine itself can do, measured beside ours in the same run.
#![allow(unsafe_code)] // maps memfds

use std::{
    hint::black_box,
    ptr::NonNull,
    time::{Duration, Instant},
};

use anyhow::Context;
use md5::{Digest, Md5};
use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

/// Copies rotate over at least this much, so that no cache holds what comes next.
const ROTATE: usize = 256 << 20;

/// A shared mapping of a memfd, as guest memory is.
struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is ours alone and moves between threads as a whole.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(len: usize) -> anyhow::Result<Self> {
        let fd = memfd_create("limit", MemfdFlags::CLOEXEC).context("memfd")?;
        ftruncate(&fd, u64::try_from(len)?).context("memfd size")?;
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let at =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0) };
        let at = NonNull::new(at.context("mapping a memfd")?.cast()).context("mapping at 0")?;
        Ok(Self { at, len })
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped, `len` long, and nobody else has it: the file has no other mapping.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, whose slices borrow from `self`.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// Time of copying `size` bytes from one memfd mapping to another, cache-cold, the destination last touched by another
/// thread.
pub fn memcpy(size: usize) -> anyhow::Result<Duration> {
    let slots = ROTATE.div_ceil(size).max(1);
    let mut from = Mapping::new(slots * size)?;
    from.bytes().fill(0x5a);
    let to = Mapping::new(slots * size)?;
    let mut to = std::thread::spawn(move || {
        let mut to = to;
        to.bytes().fill(1);
        to
    })
    .join()
    .ok()
    .context("the touching thread failed")?;
    let start = Instant::now();
    for (to, from) in to.bytes().chunks_exact_mut(size).zip(from.bytes().chunks_exact(size)) {
        to.copy_from_slice(from);
        black_box(&to[0]);
    }
    Ok(start.elapsed() / u32::try_from(slots)?)
}

/// Time of the MD5 of `size` cache-cold bytes on one core, with the MD5 that the server uses.
pub fn md5(size: usize) -> anyhow::Result<Duration> {
    let mut from = Mapping::new(size.max(ROTATE))?;
    from.bytes().fill(0xa5);
    let part = from.bytes().get(..size).context("too large")?;
    let start = Instant::now();
    black_box(Md5::digest(part));
    Ok(start.elapsed())
}
