//! Sizes as people write them: `256M`, `1GiB`, `4096`.

/// What every unit stands for: powers of 1024, with or without `iB`, so that `256M` and `256MiB` are both 268,435,456.
const UNITS: [(&str, u32); 9] =
    [("", 0), ("k", 10), ("m", 20), ("g", 30), ("t", 40), ("kib", 10), ("mib", 20), ("gib", 30), ("tib", 40)];

/// Why a size is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not digits followed by a known unit. Its text is empty: the caller names the value, and the value says it all.
    #[error("")]
    Malformed,
    /// Nothing would fit.
    #[error(": it must not be zero")]
    Zero,
    /// 2⁶⁴ bytes or more.
    #[error(": it is 2^64 bytes or more")]
    TooLarge,
}

/// Reads a size in bytes: decimal digits, then nothing, `K`, `M`, `G`, `T`, `KiB`, `MiB`, `GiB` or `TiB`, upper or lower
/// case alike. All units are powers of 1024. There are no signs, fractions, spaces, and no `KB`, of which nobody knows
/// whether it means 1000 or 1024.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(SizeError::Malformed);
    }
    let &(_, shift) = UNITS.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name)).ok_or(SizeError::Malformed)?;
    // Only digits are left, so the one thing that can go wrong is the number's size.
    let number: u64 = number.parse().map_err(|_| SizeError::TooLarge)?;
    match number.checked_mul(1 << shift) {
        Some(0) => Err(SizeError::Zero),
        Some(bytes) => Ok(bytes),
        None => Err(SizeError::TooLarge),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_unit_in_every_case() {
        for (text, bytes) in [
            ("1", 1),
            ("4096", 4096),
            ("007", 7),
            ("3K", 3 << 10),
            ("3k", 3 << 10),
            ("3KiB", 3 << 10),
            ("3kib", 3 << 10),
            ("256M", 268_435_456),
            ("256MiB", 268_435_456),
            ("256MIB", 268_435_456),
            ("2G", 2 << 30),
            ("2GiB", 2 << 30),
            ("1T", 1 << 40),
            ("1TiB", 1 << 40),
            ("18446744073709551615", u64::MAX),
            ("16777215T", 16_777_215 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refusals_say_why() {
        for text in
            ["", "bogus", "K", "-1", "+1", "1.5G", "1 G", " 1G", "1G ", "1GB", "1B", "1Ki", "0x10", "1_000", "١"]
        {
            assert_eq!(parse_size(text), Err(SizeError::Malformed), "{text:?}");
        }
        for text in ["0", "000", "0K", "0TiB"] {
            assert_eq!(parse_size(text), Err(SizeError::Zero), "{text:?}");
        }
        for text in ["18446744073709551616", "16777216T", "99999999999999999999999", "18014398509481984K"] {
            assert_eq!(parse_size(text), Err(SizeError::TooLarge), "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Against 128-bit arithmetic, over all units and all 64-bit numbers.
        #[test]
        fn agrees_with_wide_arithmetic(number: u64, unit in 0..UNITS.len(), upper: bool) {
            let (name, shift) = UNITS[unit];
            let name = if upper { name.to_uppercase() } else { name.to_owned() };
            let wide = u128::from(number) << shift;
            let expected = match u64::try_from(wide) {
                Ok(0) => Err(SizeError::Zero),
                Ok(bytes) => Ok(bytes),
                Err(_) => Err(SizeError::TooLarge),
            };
            prop_assert_eq!(parse_size(&format!("{number}{name}")), expected);
        }

        /// Whatever the text, an answer and no panic; what is accepted begins with a digit.
        #[test]
        fn never_panics(text in "\\PC*") {
            if parse_size(&text).is_ok() {
                prop_assert!(text.as_bytes()[0].is_ascii_digit());
            }
        }
    }
}
