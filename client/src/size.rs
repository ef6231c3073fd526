//! Sizes as people write them.

/// Largest transfer, 1 GiB: that of vgwrdma and its clients (vgwrdma's user documentation, `rdma.MaxTransferSize`).
pub const MAX_TRANSFER: u64 = 1 << 30;

/// The text is no size of a transfer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSize {
    /// Not digits and a suffix.
    #[error("bad size '{0}': digits, then nothing, K, M, G, KiB, MiB or GiB (powers of 1024)")]
    Text(String),
    /// Not 1 to [`MAX_TRANSFER`] bytes.
    #[error("bad size '{0}': a transfer is 1 byte to 1 GiB")]
    Range(String),
}

/// Reads a size: decimal digits, then nothing, `K`, `M` or `G`, or `KiB`, `MiB` or `GiB`, in either case; all are powers of
/// 1024, as in the server's options. `KB` and the like are refused: nobody knows whether they mean 1000 or 1024.
pub fn parse(text: &str) -> Result<u64, BadSize> {
    let bad = || BadSize::Text(text.to_owned());
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, suffix) = text.split_at(end);
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(bad()),
    };
    if digits.is_empty() {
        return Err(bad());
    }
    let size = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    size.filter(|size| (1..=MAX_TRANSFER).contains(size)).ok_or_else(|| BadSize::Range(text.to_owned()))
}

/// Writes a size in the largest unit that divides it: `64 MiB`, `1000 B`.
#[must_use]
pub fn text(size: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| size > 0 && size.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", size / unit),
        None => format!("{size} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_suffixes() {
        for (written, size) in [
            ("1", 1),
            ("4096", 4096),
            ("4K", 4096),
            ("4k", 4096),
            ("4KiB", 4096),
            ("64m", 64 << 20),
            ("256MiB", 256 << 20),
            ("1G", 1 << 30),
            ("1gib", 1 << 30),
            ("1048576K", 1 << 30),
        ] {
            assert_eq!(parse(written), Ok(size), "{written}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_its_text() {
        for bad in ["", "K", "MiB", "4 K", "4KB", "4MB", "4T", "-1", "+1", "0x10", "1.5M", "4Ki"] {
            assert_eq!(parse(bad), Err(BadSize::Text(bad.into())), "{bad}");
        }
        for bad in ["0", "0K", "1073741825", "2G", "99999999999999999999", "18014398509481984K"] {
            assert_eq!(parse(bad), Err(BadSize::Range(bad.into())), "{bad}");
        }
        assert!(parse("4KB").unwrap_err().to_string().contains("'4KB'"));
    }

    #[test]
    fn sizes_are_written_in_the_unit_that_fits() {
        for (size, written) in
            [(0, "0 B"), (1000, "1000 B"), (1024, "1 KiB"), (1536, "1536 B"), (64 << 20, "64 MiB"), (1 << 30, "1 GiB")]
        {
            assert_eq!(text(size), written);
        }
    }
}
