//! A recording of the wire, for tcpdump and Wireshark.
//!
//! The classic file format (draft-ietf-opsawg-pcap): a header of 24 bytes, then for each frame 16 bytes and the frame.
//! Little endian, times in nanoseconds, link type Ethernet.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Says "little endian as read, nanoseconds" (draft-ietf-opsawg-pcap, section 4).
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
/// `LINKTYPE_ETHERNET`.
const LINKTYPE_ETHERNET: u32 = 1;
/// Most bytes of a frame that are kept: what tcpdump itself takes as the most. Frames of the wire are far shorter.
pub const SNAPLEN: usize = 262_144;
/// Bytes that are collected before they are written.
const BUFFER: usize = 256 << 10;
/// How long a frame may wait in the buffer.
const FLUSH_AFTER: Duration = Duration::from_secs(1);

/// Why a recording cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("--pcap: cannot write '{path}': {source}", path = .path.display())]
pub struct PcapError {
    /// The file.
    path: PathBuf,
    /// The reason.
    source: io::Error,
}

/// A recording in progress. Where its file can no longer be written it says so once and records no more; it never
/// fails the caller.
#[derive(Debug)]
pub struct Pcap {
    path: PathBuf,
    /// `None` once writing has failed.
    file: Option<File>,
    /// Whole records that are not in the file yet.
    pending: Vec<u8>,
    /// When the oldest of them came.
    since: Option<Instant>,
    /// Bytes of the file, all of them whole records.
    written: u64,
    frames: u64,
}

impl Pcap {
    /// Starts a recording, replacing the file.
    pub fn create(path: &Path) -> Result<Self, PcapError> {
        let start = || -> io::Result<Self> {
            let mut pcap = Self::into_file(File::create(path)?, path);
            pcap.pending.extend(file_header());
            // The header at once: a file that cannot be written is refused now, and the file can be read from now on.
            pcap.write_pending()?;
            Ok(pcap)
        };
        start().map_err(|source| PcapError { path: path.to_owned(), source })
    }

    fn into_file(file: File, path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            file: Some(file),
            pending: Vec::with_capacity(BUFFER),
            since: None,
            written: 0,
            frames: 0,
        }
    }

    /// Records a frame, from its destination address on and without frame check sequence. `at` is the wall clock.
    pub fn record(&mut self, at: SystemTime, frame: &[u8]) {
        if self.file.is_none() {
            return;
        }
        let kept = frame.get(..SNAPLEN).unwrap_or(frame);
        if self.pending.len() + 16 + kept.len() > BUFFER {
            self.flush();
        }
        let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        // The format has 32 bits for each; the seconds last until 2106.
        for field in [
            u32::try_from(at.as_secs()).unwrap_or(u32::MAX),
            at.subsec_nanos(),
            u32::try_from(kept.len()).unwrap_or(u32::MAX),
            u32::try_from(frame.len()).unwrap_or(u32::MAX),
        ] {
            self.pending.extend(field.to_le_bytes());
        }
        self.pending.extend(kept);
        self.frames += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    /// When [`Pcap::flush_if_due`] has something to do; `None` while every frame is in the file.
    #[must_use]
    pub fn flush_at(&self) -> Option<Instant> {
        self.since.map(|since| since + FLUSH_AFTER)
    }

    /// Writes out what has waited long enough.
    pub fn flush_if_due(&mut self, now: Instant) {
        if self.flush_at().is_some_and(|at| at <= now) {
            self.flush();
        }
    }

    /// Writes out everything.
    pub fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        if let Err(error) = self.write_pending() {
            tracing::error!(file = %self.path.display(), %error, frames = self.frames, "pcap: cannot write, recording stops");
            // A torn record at the end would hide nothing, but readers complain about it. Not every file can be cut.
            if let Some(file) = self.file.take() {
                let _ = file.set_len(self.written);
            }
            self.pending = Vec::new();
            self.since = None;
        }
    }

    fn write_pending(&mut self) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            file.write_all(&self.pending)?;
            self.written += u64::try_from(self.pending.len()).unwrap_or(u64::MAX);
            self.pending.clear();
            self.since = None;
        }
        Ok(())
    }

    /// Whether frames are still being recorded.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.file.is_some()
    }

    /// Frames recorded so far.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames
    }
}

impl Drop for Pcap {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Version 2.4; the two reserved words are zero.
fn file_header() -> [u8; 24] {
    let mut header = [0; 24];
    header[0..4].copy_from_slice(&MAGIC_NANOSECONDS.to_le_bytes());
    header[4..6].copy_from_slice(&2u16.to_le_bytes());
    header[6..8].copy_from_slice(&4u16.to_le_bytes());
    header[16..20].copy_from_slice(&u32::try_from(SNAPLEN).unwrap_or(u32::MAX).to_le_bytes());
    header[20..24].copy_from_slice(&LINKTYPE_ETHERNET.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation)]

    use std::fs;

    use pcap_file::{DataLink, TsResolution, pcap::PcapReader};

    use super::*;

    /// Reads a recording with an independent reader: time, original length, bytes.
    fn read(path: &Path) -> Vec<(Duration, u32, Vec<u8>)> {
        let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
        let header = reader.header();
        assert_eq!((header.datalink, header.ts_resolution), (DataLink::ETHERNET, TsResolution::NanoSecond));
        assert_eq!((header.version_major, header.version_minor, header.snaplen), (2, 4, SNAPLEN as u32));
        let mut packets = Vec::new();
        while let Some(packet) = reader.next_packet() {
            let packet = packet.unwrap();
            packets.push((packet.timestamp, packet.orig_len, packet.data.into_owned()));
        }
        packets
    }

    #[test]
    fn an_independent_reader_finds_every_frame() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pcap");
        let mut pcap = Pcap::create(&path).unwrap();
        assert!(read(&path).is_empty(), "readable from the start");
        assert_eq!(pcap.flush_at(), None, "nothing to flush");

        let frames: Vec<Vec<u8>> = [14u32, 60, 1514, 9216].map(|length| (0..length).map(|i| i as u8).collect()).into();
        let at = |i: usize| Duration::new(1_790_000_000 + i as u64, 123_456_789 + i as u32);
        for (i, frame) in frames.iter().enumerate() {
            pcap.record(UNIX_EPOCH + at(i), frame);
        }
        assert_eq!(pcap.frames(), 4);

        let due = pcap.flush_at().expect("frames wait");
        pcap.flush_if_due(due - Duration::from_millis(1));
        assert!(read(&path).is_empty(), "not yet due");
        pcap.flush_if_due(due);
        assert_eq!(pcap.flush_at(), None);
        let expected: Vec<_> = frames.iter().enumerate().map(|(i, f)| (at(i), f.len() as u32, f.clone())).collect();
        assert_eq!(read(&path), expected);
    }

    #[test]
    fn a_full_buffer_is_written_and_the_end_flushes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b.pcap");
        let mut pcap = Pcap::create(&path).unwrap();
        for i in 0..400u32 {
            let mut frame = vec![0; 1514];
            frame[..4].copy_from_slice(&i.to_le_bytes());
            pcap.record(UNIX_EPOCH, &frame);
        }
        let before = read(&path).len();
        assert!((1..400).contains(&before), "{before} frames in the file while the buffer holds the rest");
        drop(pcap);
        let numbers: Vec<_> = read(&path).iter().map(|p| u32::from_le_bytes(p.2[..4].try_into().unwrap())).collect();
        assert_eq!(numbers, (0..400).collect::<Vec<_>>());
    }

    #[test]
    fn a_longer_frame_is_cut_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.pcap");
        let mut pcap = Pcap::create(&path).unwrap();
        pcap.record(UNIX_EPOCH, &vec![7; SNAPLEN + 5]);
        drop(pcap);
        // By hand: the reader used above takes an original length beyond the snap length for an error.
        let file = fs::read(&path).unwrap();
        let field = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        assert_eq!((field(24 + 8), field(24 + 12)), (SNAPLEN as u32, SNAPLEN as u32 + 5));
        assert_eq!(file.len(), 24 + 16 + SNAPLEN);
    }

    #[test]
    fn a_full_disk_ends_the_recording_only() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut pcap = Pcap::into_file(full, Path::new("/dev/full"));
        pcap.record(UNIX_EPOCH, &[1; 60]);
        assert!(pcap.is_recording());
        pcap.flush();
        assert!(!pcap.is_recording());
        assert_eq!(pcap.flush_at(), None, "no timer for a recording that is over");
        pcap.record(UNIX_EPOCH, &[2; 60]);
        pcap.flush();
        assert_eq!(pcap.frames(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_refused_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("no/such/dir.pcap");
        let error = Pcap::create(&path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--pcap: cannot write '{}': No such file", path.display())), "{error}");
        let error = Pcap::create(Path::new("/dev/full")).unwrap_err().to_string();
        assert!(error.starts_with("--pcap: cannot write '/dev/full': No space left"), "{error}");
        assert!(fs::read_dir(dir.path()).unwrap().next().is_none());
    }
}
