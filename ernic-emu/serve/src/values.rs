//! `key=value,…`: the syntax of a backend's options.
//!
//! A value goes to the next comma. In it, `%XX` stands for the byte of that number, and what is between `"` and `"` is taken
//! as it is, commas and percent signs too, but for `\"` and `\\`. Colons and equals signs need neither.

/// One option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item<'a> {
    /// As it was written.
    pub written: &'a str,
    /// What is before the `=`.
    pub key: &'a str,
    /// What is behind it, without quotes; `None` where there is no `=`.
    pub value: Option<String>,
}

/// Why a text is no list of options.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    /// Two commas in a row, one at an end, or nothing at all.
    #[error("empty option in '{0}'")]
    Empty(String),
    /// A quote without its end.
    #[error("the quote in '{0}' does not end")]
    Quote(String),
    /// A backslash within quotes before something else.
    #[error("bad backslash in '{0}': within quotes, write \\\" for a quote and \\\\ for a backslash")]
    Backslash(String),
    /// A percent sign without its digits.
    #[error("bad percent sign in '{0}': use two hexadecimal digits behind it, %25 for itself, or quotes around it")]
    Percent(String),
    /// Percent signs that make no text.
    #[error("the percent signs in '{0}' make no UTF-8")]
    Encoding(String),
}

/// Reads a list of at least one option.
///
/// # Errors
///
/// See [`SyntaxError`]; each names the text that it is about.
pub fn items(text: &str) -> Result<Vec<Item<'_>>, SyntaxError> {
    let mut items = Vec::new();
    let mut rest = text;
    loop {
        let key_end = rest.find(['=', ',']).unwrap_or(rest.len());
        let (key, behind) = rest.split_at(key_end);
        let (value, length) = match behind.strip_prefix('=') {
            Some(from) => {
                let (value, length) = value(from)?;
                (Some(value), key_end + 1 + length)
            }
            None => (None, key_end),
        };
        let (written, behind) = rest.split_at(length);
        if written.is_empty() {
            return Err(SyntaxError::Empty(text.to_owned()));
        }
        items.push(Item { written, key, value });
        match behind.strip_prefix(',') {
            Some(behind) => rest = behind,
            None => return Ok(items),
        }
    }
}

/// The value at the beginning of `text`, and how many bytes of it that takes.
fn value(text: &str) -> Result<(String, usize), SyntaxError> {
    let (mut bytes, mut quoted, mut at) = (Vec::new(), false, 0);
    let input = text.as_bytes();
    let end = loop {
        match (input.get(at), quoted) {
            (None | Some(b','), false) => break at,
            (None, true) => return Err(SyntaxError::Quote(text.to_owned())),
            (Some(b'"'), _) => quoted = !quoted,
            (Some(b'\\'), true) => {
                at += 1;
                match input.get(at) {
                    Some(byte @ (b'"' | b'\\')) => bytes.push(*byte),
                    _ => return Err(SyntaxError::Backslash(text.to_owned())),
                }
            }
            (Some(b'%'), false) => {
                let digit = |at: usize| input.get(at).and_then(|digit| char::from(*digit).to_digit(16));
                match (digit(at + 1), digit(at + 2)) {
                    // Two digits fit a byte.
                    (Some(high), Some(low)) => bytes.push(u8::try_from(high * 16 + low).unwrap_or_default()),
                    _ => return Err(SyntaxError::Percent(text.to_owned())),
                }
                at += 2;
            }
            (Some(byte), _) => bytes.push(*byte),
        }
        at += 1;
    };
    let written = text.get(..end).unwrap_or(text);
    let value = String::from_utf8(bytes).map_err(|_| SyntaxError::Encoding(written.to_owned()))?;
    Ok((value, end))
}

/// A value as it can be written in a list: as it is where that is possible, else within quotes.
#[must_use]
pub fn quoted(value: &str) -> String {
    if value.contains([',', '"', '%']) {
        format!("\"{}\"", value.replace('\\', r"\\").replace('"', "\\\""))
    } else {
        value.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Vec<(String, Option<String>)> {
        let items = items(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        items.into_iter().map(|item| (item.key.to_owned(), item.value)).collect()
    }

    #[test]
    fn values_in_every_spelling() {
        for (text, value) in [
            ("k=v", "v"),
            ("k=", ""),
            ("k=disk:/a=b:c", "disk:/a=b:c"),
            (r#"k="a,b""#, "a,b"),
            (r#"k=disk:"/a,b"/c"#, "disk:/a,b/c"),
            (r#"k="\"\\%41,""#, "\"\\%41,"),
            (r"k=a\b", r"a\b"),
            ("k=a%2Cb%25%22%c3%a9", "a,b%\"é"),
            (r#"k="""#, ""),
        ] {
            assert_eq!(read(text), [("k".to_owned(), Some(value.to_owned()))], "{text}");
        }
        let two = items(r#"a="x,y",b"#).unwrap();
        assert_eq!((two[0].written, two[0].key), (r#"a="x,y""#, "a"));
        assert_eq!((two[1].written, two[1].key, &two[1].value), ("b", "b", &None));
    }

    #[test]
    fn refusals_name_the_text() {
        for (text, error) in [
            ("", "empty option in ''"),
            ("a=1,", "empty option in 'a=1,'"),
            (",a=1", "empty option in ',a=1'"),
            ("a=1,,b=2", "empty option in 'a=1,,b=2'"),
            (r#"a="x,b=1"#, r#"the quote in '"x,b=1' does not end"#),
            (r#"a="\x""#, r#"bad backslash in '"\x"': within quotes, write \" for a quote and \\ for a backslash"#),
            (
                "a=50%,b=1",
                "bad percent sign in '50%,b=1': use two hexadecimal digits behind it, %25 for itself, or quotes around it",
            ),
            ("a=%ff,b=1", "the percent signs in '%ff' make no UTF-8"),
        ] {
            assert_eq!(items(text).map_err(|error| error.to_string()), Err(error.to_owned()), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Any values come back, quoted or percent-encoded.
        #[test]
        fn any_values_come_back(values in prop::collection::vec("[a-c,\"%\\\\=:/é ]{0,12}", 1..5), percent: bool) {
            let encode = |value: &str| match percent {
                true => value.replace('%', "%25").replace(',', "%2C").replace('"', "%22"),
                false => quoted(value),
            };
            let text = values.iter().map(|value| format!("k={}", encode(value))).collect::<Vec<_>>().join(",");
            let back: Vec<_> = read(&text).into_iter().map(|(_, value)| value.unwrap()).collect();
            prop_assert_eq!(back, values);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[a=,\"%\\\\0é]{0,20}") {
            if let Ok(items) = items(&text) {
                let written: Vec<_> = items.iter().map(|item| item.written).collect();
                prop_assert_eq!(written.join(","), text);
            }
        }
    }
}
