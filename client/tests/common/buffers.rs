//! What sessions' buffers hold.
#![allow(unreachable_pub)]

use ernic_client::Buffer;

/// Bytes without a pattern, the same for each seed.
pub fn content(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// The beginning of a buffer.
pub fn bytes(buffer: &Buffer, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    buffer.read(0, &mut bytes);
    bytes
}

/// Sets every byte of it.
pub fn fill(buffer: &mut Buffer, byte: u8) {
    buffer.fill(0, buffer.size() as u64, |piece| piece.fill(byte));
}
