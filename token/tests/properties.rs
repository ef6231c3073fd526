//! Properties of the wire formats over arbitrary values and texts.

use proptest::{prelude::*, test_runner::FileFailurePersistence};
use rdma_token::{Reply, Status, Token, TokenError, TokenHeader, Transport, Window};

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

fn headers() -> impl Strategy<Value = TokenHeader> {
    let number = prop_oneof![Just(0), any::<u64>(), 0u64..0x1000];
    let overriding = prop::option::of((number.clone(), number));
    (tokens(), overriding).prop_map(|(token, overriding)| TokenHeader {
        token,
        overriding: overriding.map(|(address, length)| Window { address, length }),
    })
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
        "[0-9a-f]{16}:[0-9a-f]{8}:[0-9a-f]{8}:[0-9a-f]{4}:[0-9a-f]{6}:[01g]:[0-9a-f]{32}(:[0-9a-f]{1,17}){0,3}",
        "(200|206|404|ok|err):?(0[012][0-9a-f]{86})?",
    ]
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
        let text = header.to_string();
        prop_assert_eq!(&text, &text.to_lowercase());
        let text = if upper { text.to_uppercase() } else { text };
        prop_assert_eq!(TokenHeader::parse(&text), Ok(header));
        prop_assert_eq!(Token::from_bytes(&header.token.to_bytes()), Ok(header.token));
    }

    #[test]
    fn replies_round_trip(reply in replies()) {
        prop_assert_eq!(Reply::parse(reply.to_string()), Ok(reply));
    }

    #[test]
    fn what_parses_is_what_it_says(text in near_headers()) {
        match TokenHeader::parse(&text) {
            Ok(header) => {
                prop_assert_eq!(text.chars().filter(|&c| c == ':').count(), if header.overriding.is_some() { 2 } else { 0 });
                prop_assert_eq!(text[..88].to_lowercase(), header.token.to_string());
                if let Some(Window { address, length }) = header.overriding {
                    let numbers: Vec<_> =
                        text[89..].split(':').map(|digits| u64::from_str_radix(digits, 16).unwrap()).collect();
                    prop_assert_eq!(numbers, [address, length]);
                }
            }
            Err(TokenError::UnsupportedFamily(_)) => prop_assert!(text.matches(':').count() >= 6),
            Err(_) => {}
        }
        if let Ok(reply) = Reply::parse(&text) {
            prop_assert_eq!(reply.to_string(), text.to_lowercase());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..1200)) {
        prop_assert!(TokenHeader::parse(&bytes).is_err());
        let _ = Reply::parse(&bytes);
    }

    #[test]
    fn one_changed_character_is_never_overlooked(header in headers(), at in any::<prop::sample::Index>(), to in any::<char>(), hex in "[0-9a-fA-F: ]") {
        let text = header.to_string();
        let at = at.index(text.len());
        for to in [to, hex.chars().next().unwrap()] {
            let changed: String = text.chars().enumerate().map(|(n, c)| if n == at { to } else { c }).collect();
            if !changed.eq_ignore_ascii_case(&text) {
                prop_assert_ne!(TokenHeader::parse(&changed), Ok(header));
            }
        }
    }

    #[test]
    fn one_lost_or_added_character_is_never_overlooked(header in headers(), at in any::<prop::sample::Index>(), c in "[0-9a-f: ]") {
        let text = header.to_string();
        let at = at.index(text.len() + 1);
        let more = format!("{}{c}{}", &text[..at], &text[at..]);
        // A leading zero of a number in the suffix says nothing.
        if !(c == "0" && at > Token::DIGITS) {
            prop_assert_ne!(TokenHeader::parse(&more), Ok(header));
        }
        if at < text.len() {
            let less = format!("{}{}", &text[..at], &text[at + 1..]);
            prop_assert_ne!(TokenHeader::parse(&less), Ok(header));
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
