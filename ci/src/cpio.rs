//! The kernel's initramfs archive format, "newc" (Linux `Documentation/driver-api/early-userspace/buffer-format.rst`):
//! a 110-byte header of ASCII hexadecimal fields, the name, the data, each padded to 4 bytes.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// What one name in the archive is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A folder with its permission bits.
    Dir(u32),
    /// A file: permission bits and contents.
    File(u32, Vec<u8>),
    /// A symbolic link and its target.
    Link(String),
    /// A character device: permission bits, major, minor.
    Char(u32, u32, u32),
}

/// An archive in the making: names without a leading slash, sorted, so that equal contents make equal bytes.
#[derive(Debug, Default)]
pub struct Archive {
    nodes: BTreeMap<String, Node>,
}

// File type bits of inode(7).
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;
const S_IFCHR: u32 = 0o020_000;

impl Archive {
    /// Adds `node` under `name` (a leading slash is dropped) and the folders above it (0755) where missing. A later
    /// entry replaces an earlier one of the same name.
    pub fn add(&mut self, name: &str, node: Node) {
        let name = name.trim_matches('/').to_owned();
        for (at, _) in name.match_indices('/') {
            self.nodes.entry(name[..at].to_owned()).or_insert(Node::Dir(0o755));
        }
        self.nodes.insert(name, node);
    }

    /// Whether `name` is in the archive.
    pub fn contains(&self, name: &str) -> bool {
        self.nodes.contains_key(name.trim_matches('/'))
    }

    /// Adds the file at `source`, following links, with permission bits `mode`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn add_file(&mut self, name: &str, source: &Path, mode: u32) -> Result<()> {
        let data = std::fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
        self.add(name, Node::File(mode, data));
        Ok(())
    }

    /// Writes the archive. Everything belongs to root and has time stamp 0.
    ///
    /// # Errors
    /// When writing fails, or a file is larger than the format's 4 GiB.
    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        let mut inode = 0;
        for (name, node) in &self.nodes {
            inode += 1;
            let (mode, data, device): (u32, &[u8], (u32, u32)) = match node {
                Node::Dir(mode) => (S_IFDIR | mode, &[], (0, 0)),
                Node::File(mode, data) => (S_IFREG | mode, data, (0, 0)),
                Node::Link(target) => (S_IFLNK | 0o777, target.as_bytes(), (0, 0)),
                Node::Char(mode, major, minor) => (S_IFCHR | mode, &[], (*major, *minor)),
            };
            entry(out, inode, name, mode, data, device)?;
        }
        entry(out, 0, "TRAILER!!!", 0, &[], (0, 0))
    }
}

fn entry(out: &mut impl Write, inode: u32, name: &str, mode: u32, data: &[u8], device: (u32, u32)) -> Result<()> {
    let (Ok(name_len), Ok(data_len)) = (u32::try_from(name.len() + 1), u32::try_from(data.len())) else {
        bail!("{name}: too large for a cpio archive ({} bytes)", data.len());
    };
    // ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
    let fields = [inode, mode, 0, 0, 1, 0, data_len, 0, 0, device.0, device.1, name_len, 0];
    let mut header = String::from("070701");
    for field in fields {
        header.push_str(&format!("{field:08X}"));
    }
    out.write_all(header.as_bytes())?;
    out.write_all(name.as_bytes())?;
    out.write_all(&[0])?;
    pad(out, header.len() + name.len() + 1)?;
    out.write_all(data)?;
    pad(out, data.len())?;
    Ok(())
}

fn pad(out: &mut impl Write, len: usize) -> io::Result<()> {
    out.write_all(&[0; 3][..len.next_multiple_of(4) - len])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation)]
    use super::*;
    use proptest::prelude::*;

    /// Name, mode, data, device.
    type Entry = (String, u32, Vec<u8>, (u32, u32));

    /// An independent reader: offsets from the format's own table.
    fn read(mut bytes: &[u8]) -> Vec<Entry> {
        let mut all = Vec::new();
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let field = |i: usize| {
                u32::from_str_radix(std::str::from_utf8(&bytes[6 + 8 * i..14 + 8 * i]).unwrap(), 16).unwrap()
            };
            let (mode, size, major, minor, name_len) =
                (field(1), field(6) as usize, field(9), field(10), field(11) as usize);
            assert_eq!(bytes[110 + name_len - 1], 0);
            let name = String::from_utf8(bytes[110..110 + name_len - 1].to_vec()).unwrap();
            let data_at = (110 + name_len).next_multiple_of(4);
            let data = bytes[data_at..data_at + size].to_vec();
            bytes = &bytes[(data_at + size).next_multiple_of(4)..];
            if name == "TRAILER!!!" {
                assert!(bytes.is_empty());
                return all;
            }
            all.push((name, mode, data, (major, minor)));
        }
    }

    #[test]
    fn one_file_is_these_bytes() {
        let mut archive = Archive::default();
        archive.add("init", Node::File(0o755, b"#!".to_vec()));
        let mut bytes = Vec::new();
        archive.write(&mut bytes).unwrap();
        let expect = concat!(
            "07070100000001000081ED000000000000000000000001000000000000000200000000000000000000000000000000",
            "0000000500000000",
        );
        assert_eq!(&bytes[..110], expect.as_bytes());
        assert_eq!(&bytes[110..120], b"init\0\0#!\0\0");
        assert_eq!(bytes.len(), 120 + 124);
    }

    #[test]
    fn folders_above_come_first_and_once() {
        let mut archive = Archive::default();
        archive.add("/a/b/c", Node::Link("x".into()));
        archive.add("a/b/d", Node::Char(0o600, 5, 1));
        archive.add("a", Node::Dir(0o1777));
        let mut bytes = Vec::new();
        archive.write(&mut bytes).unwrap();
        let all = read(&bytes);
        assert_eq!(all[0], ("a".into(), 0o041_777, vec![], (0, 0)));
        assert_eq!(all[1], ("a/b".into(), 0o040_755, vec![], (0, 0)));
        assert_eq!(all[2], ("a/b/c".into(), 0o120_777, b"x".to_vec(), (0, 0)));
        assert_eq!(all[3], ("a/b/d".into(), 0o020_600, vec![], (5, 1)));
        assert_eq!(all.len(), 4);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn what_is_written_reads_back(files in proptest::collection::btree_map("[a-z]{1,9}", proptest::collection::vec(any::<u8>(), 0..40), 0..8)) {
            let mut archive = Archive::default();
            for (name, data) in &files {
                archive.add(name, Node::File(0o644, data.clone()));
            }
            let mut bytes = Vec::new();
            archive.write(&mut bytes).unwrap();
            let expect: Vec<_> = files.into_iter().map(|(n, d)| (n, 0o100_644, d, (0, 0))).collect();
            prop_assert_eq!(read(&bytes), expect);
        }
    }
}
