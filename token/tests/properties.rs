//! Properties of the wire formats over arbitrary values and texts.

use proptest::{prelude::*, test_runner::FileFailurePersistence};
use rdma_token::{Descriptor, Family, Malformed, Qpn, Reply, Status, Token, TokenHeader, Transport, Window};

fn tokens() -> impl Strategy<Value = Token> {
    let transport = prop_oneof![Just(Transport::Dc), Just(Transport::Rc)];
    let rest = (any::<u32>(), any::<[u8; 16]>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<u8>(), any::<u16>());
    (transport, rest).prop_map(|(transport, (qpn, gid, rkey, address, length, port, lid))| Token {
        transport,
        qpn,
        gid,
        rkey,
        address,
        length,
        port,
        lid,
    })
}

fn descriptors() -> impl Strategy<Value = Descriptor> {
    let gid = prop::option::of(any::<[u8; 16]>());
    (any::<u64>(), any::<u32>(), any::<u32>(), any::<u16>(), 0u32..=0xff_ffff, gid).prop_map(
        |(address, length, rkey, lid, qpn, gid)| Descriptor {
            address,
            length,
            rkey,
            lid,
            qpn: Qpn::new(qpn).unwrap(),
            gid,
        },
    )
}

fn numbers() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), any::<u64>(), 0u64..0x1000]
}

fn windows() -> impl Strategy<Value = Window> {
    (numbers(), numbers()).prop_map(|(address, length)| Window { address, length })
}

/// Headers of all families that are not malformed.
fn headers() -> impl Strategy<Value = TokenHeader> {
    let all = prop_oneof![
        tokens().prop_map(TokenHeader::A),
        (tokens(), windows()).prop_map(|(token, window)| TokenHeader::B(token, window)),
        descriptors().prop_map(TokenHeader::C),
        (descriptors(), windows()).prop_map(|(descriptor, window)| TokenHeader::D(descriptor, window)),
        (descriptors(), windows()).prop_map(|(descriptor, window)| TokenHeader::E(descriptor, window)),
    ];
    all.prop_filter("a length of zero", |header| {
        matches!(header.family(), Family::A | Family::B) || header.window().length != 0
    })
}

/// Reads the values of a header's headers.
fn parse(values: &[impl AsRef<str>]) -> Result<TokenHeader, Malformed> {
    match values {
        [token] => TokenHeader::parse(token.as_ref()),
        [descr, length, address] => TokenHeader::from_cuobj(descr.as_ref(), length.as_ref(), address.as_ref()),
        _ => panic!("{} values", values.len()),
    }
}

fn values(header: &TokenHeader) -> Vec<String> {
    header.headers().into_iter().map(|(_, value)| value).collect()
}

/// Whether the two say the same: digits in the other case, zeros before a number of no fixed width, or the digits of a GID
/// that is not there.
fn same(header: &TokenHeader, n: usize, text: &str) -> bool {
    let canonical = |text: &str| {
        let text = text.to_lowercase();
        let fields: Vec<&str> = text.split(':').collect();
        match (header, n) {
            (TokenHeader::B(..), _) => {
                let number = |at: usize| fields.get(at).map(|digits| digits.trim_start_matches('0'));
                let short = fields[1..].iter().all(|digits| (1..=16).contains(&digits.len()));
                format!("{} {:?} {:?} {} {short}", fields[0], number(1), number(2), fields.len())
            }
            (TokenHeader::E(..), 1 | 2) => {
                format!("{} {}", text.trim_start_matches('0'), (1..=20).contains(&text.len()))
            }
            _ if header.gid().is_none() && text.is_ascii() && text.len() >= 81 => {
                let (before, rest) = text.split_at(49);
                let (gid, after) = rest.split_at(32);
                format!("{before} {} {after}", gid.chars().all(|c| c.is_ascii_hexdigit()))
            }
            _ => text,
        }
    };
    canonical(text) == canonical(&values(header)[n])
}

fn replies() -> impl Strategy<Value = Reply> {
    prop_oneof![
        Just(Reply::Ok),
        Just(Reply::Err),
        (100u16..600).prop_map(|status| Reply::Status(Status::new(status).unwrap())),
        tokens().prop_map(Reply::Token),
    ]
}

/// Texts near to a header: of the alphabet of headers, with the lengths of their fields.
fn near_headers() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[0-9a-fA-F: ]{0,200}",
        "0[01][0-9a-f]{86}(:[0-9a-fA-F]{0,17}){0,3}",
        "[0-9a-f]{16}:[0-9a-f]{8}:[0-9a-fA-F]{8}:[0-9a-f]{4}:[0-9a-f]{6}:[01]:[0-9a-fA-F]{32}",
        "[0-9a-f]{16}:0{8}:[0-9a-f]{8}:[0-9a-f]{4}:[0-9a-f]{6}:[01]:[0-9a-f]{32}(:[0-9a-f]{16}:0{15}[01])?",
        "[0-9a-f]{16}:[0-9a-f]{8}:[0-9a-f]{8}:[0-9a-f]{4}:[0-9a-f]{6}:[012g]:[0-9a-f]{32}(:[0-9a-fA-F]{16}){1,3}",
        "[0-9a-f]{15,17}:[0-9a-f]{8}:[0-9a-f]{7,8}:[0-9a-f]{4}:[0-9a-f]{6,7}:[01]?:[0-9a-f]{32}(:[0-9a-f]{1,17}){0,3}",
        "(200|206|404|ok|err):?(0[012][0-9a-f]{86})?",
    ]
}

/// Texts near to a decimal number of 64 bits.
fn near_decimals() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[0-9]{0,22}", "1844674407370955161[0-9]", "[+ -]?[0-9]{1,4}[ .a]?"]
}

/// Failing seeds are kept in the package's `proptest-regressions`.
fn config(cases: u32) -> ProptestConfig {
    let seeds = FileFailurePersistence::Direct("proptest-regressions/properties.txt");
    ProptestConfig { cases, failure_persistence: Some(Box::new(seeds)), ..Default::default() }
}

proptest! {
    #![proptest_config(config(4000))]

    #[test]
    fn headers_round_trip(header in headers(), upper in any::<bool>()) {
        let mut values = values(&header);
        for value in &mut values {
            prop_assert_eq!(&*value, &value.to_lowercase());
            if upper {
                *value = value.to_uppercase();
            }
        }
        prop_assert_eq!(parse(&values), Ok(header));
    }

    #[test]
    fn tokens_and_descriptors_have_their_lengths(token in tokens(), descriptor in descriptors()) {
        prop_assert_eq!(Token::from_bytes(&token.to_bytes()), Ok(token));
        prop_assert_eq!(token.to_string().len(), Token::DIGITS);
        prop_assert_eq!(descriptor.to_string().len(), Descriptor::CHARACTERS);
    }

    #[test]
    fn zeros_override_nothing(token in tokens(), descriptor in descriptors(), window in windows()) {
        let Window { address, length } = window;
        for (plain, overridden) in [
            (TokenHeader::A(token), TokenHeader::B(token, window)),
            (TokenHeader::C(descriptor), TokenHeader::D(descriptor, window)),
        ] {
            let (plain, overridden) = (plain.window(), overridden.window());
            prop_assert_eq!(overridden.address, if address == 0 { plain.address } else { address });
            prop_assert_eq!(overridden.length, if length == 0 { plain.length } else { length });
        }
        prop_assert_eq!(TokenHeader::E(descriptor, window).window(), window);
    }

    #[test]
    fn replies_round_trip(reply in replies()) {
        prop_assert_eq!(Reply::parse(reply.to_string()), Ok(reply));
    }

    #[test]
    fn what_parses_is_what_it_says(text in near_headers()) {
        let hex = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
        if let Ok(header) = TokenHeader::parse(&text) {
            let fields: Vec<&str> = text.split(':').collect();
            prop_assert!(fields.iter().all(|field| field.bytes().all(|byte| byte.is_ascii_hexdigit())));
            match (header, &fields[..]) {
                (TokenHeader::A(token), [digits]) => prop_assert_eq!(token.to_string(), digits.to_lowercase()),
                (TokenHeader::B(token, window), &[digits, address, length]) => {
                    prop_assert_eq!(token.to_string(), digits.to_lowercase());
                    prop_assert_eq!(window, Window { address: hex(address), length: hex(length) });
                }
                (TokenHeader::C(descriptor) | TokenHeader::D(descriptor, _), &[address, length, rkey, lid, qpn, present, gid, ..]) => {
                    prop_assert_eq!(fields[..7].iter().map(|field| field.len()).collect::<Vec<_>>(), [16, 8, 8, 4, 6, 1, 32]);
                    prop_assert_eq!(descriptor.address, hex(address));
                    prop_assert_eq!(u64::from(descriptor.length), hex(length));
                    prop_assert_eq!(u64::from(descriptor.rkey), hex(rkey));
                    prop_assert_eq!(u64::from(descriptor.lid), hex(lid));
                    prop_assert_eq!(u64::from(descriptor.qpn.get()), hex(qpn));
                    prop_assert_eq!(descriptor.gid.is_some(), present == "1");
                    if let Some(bytes) = descriptor.gid {
                        prop_assert_eq!(u128::from_be_bytes(bytes), u128::from_str_radix(gid, 16).unwrap());
                    }
                    if let TokenHeader::D(_, window) = header {
                        prop_assert_eq!(fields[7..].iter().map(|field| field.len()).collect::<Vec<_>>(), [16, 16]);
                        prop_assert_eq!(window, Window { address: hex(fields[7]), length: hex(fields[8]) });
                    } else {
                        prop_assert_eq!(fields.len(), 7);
                    }
                    prop_assert_ne!(header.window().length, 0);
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
        if let Ok(reply) = Reply::parse(&text) {
            prop_assert_eq!(reply.to_string(), text.to_lowercase());
        }
    }

    #[test]
    fn decimals_are_what_they_say(descriptor in descriptors(), length in near_decimals(), address in near_decimals()) {
        let number = |text: &str| {
            let plain = (1..=20).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| text.parse::<u64>().ok()).flatten()
        };
        let expected = match (number(&length), number(&address)) {
            (Some(length @ 1..), Some(address)) => Some(TokenHeader::E(descriptor, Window { address, length })),
            _ => None,
        };
        prop_assert_eq!(TokenHeader::from_cuobj(descriptor.to_string(), &length, &address).ok(), expected);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..1200),
        colons in prop::collection::vec(prop_oneof![Just(b':'), any::<u8>()], 0..40),
    ) {
        for bytes in [bytes, colons] {
            prop_assert!(TokenHeader::parse(&bytes).is_err());
            prop_assert!(TokenHeader::from_cuobj(&bytes, "1", "0").is_err());
            let _ = Reply::parse(&bytes);
            let _ = TokenHeader::from_cuobj("", &bytes, &bytes);
        }
    }

    #[test]
    fn one_changed_character_is_never_overlooked(
        header in headers(),
        n in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        to in prop_oneof![any::<char>(), prop::char::ranges(vec!['0'..='9', 'a'..='f', 'A'..='F', ':'..=':', ' '..=' '].into())],
    ) {
        let mut values = values(&header);
        let n = n.index(values.len());
        let at = at.index(values[n].len());
        values[n] = values[n].chars().enumerate().map(|(n, c)| if n == at { to } else { c }).collect();
        prop_assert_eq!(parse(&values) == Ok(header), same(&header, n, &values[n]), "{:?}", values);
    }

    #[test]
    fn one_lost_or_added_character_is_never_overlooked(
        header in headers(),
        n in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        c in "[0-9a-f: ]",
    ) {
        let whole = values(&header);
        let n = n.index(whole.len());
        let text = &whole[n];
        let at = at.index(text.len() + 1);
        let mut changed = vec![format!("{}{c}{}", &text[..at], &text[at..])];
        if at < text.len() {
            changed.push(format!("{}{}", &text[..at], &text[at + 1..]));
        }
        for changed in changed {
            let mut values = whole.clone();
            values[n] = changed;
            prop_assert_eq!(parse(&values) == Ok(header), same(&header, n, &values[n]), "{:?}", values);
        }
    }

    #[test]
    fn one_changed_character_of_a_reply_is_never_overlooked(reply in replies(), at in any::<prop::sample::Index>(), to in any::<char>()) {
        let text = reply.to_string();
        let at = at.index(text.len());
        let changed: String = text.chars().enumerate().map(|(n, c)| if n == at { to } else { c }).collect();
        if !changed.eq_ignore_ascii_case(&text) {
            prop_assert_ne!(Reply::parse(&changed), Ok(reply));
        }
    }
}
