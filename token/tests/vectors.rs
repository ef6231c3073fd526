//! Every byte of the wire formats against images assembled by hand from the wire document, sections 1 and 3.

use rdma_token::{Family, Malformed, MalformedReply, Reply, Status, Token, TokenError, TokenHeader, Transport, Window};

/// Vector A of the wire document: RC, QPN 0x123456, GID ::ffff:192.168.200.9, rkey 0xdeadbeef, address 0x7f1122334000,
/// 1 MiB, port 1, LID 0.
const VECTOR_A: &str = concat!(
    "0156341200",
    "00000000000000000000ffffc0a8c809",
    "efbeadde",
    "00403322117f0000",
    "0000100000000000",
    "01",
    "0000"
);

/// Vector C of the wire document.
const VECTOR_C: &str = "000073967e5ff000:00400000:01f2e973:0000:007a03:1:00000000000000000000ffff0f0f0fdf";

fn vector_a() -> Token {
    Token {
        transport: Transport::Rc,
        qpn: 0x12_3456,
        gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 200, 9],
        rkey: 0xdead_beef,
        address: 0x7f11_2233_4000,
        length: 1 << 20,
        port: 1,
        lid: 0,
    }
}

/// No two bytes alike, so that any two fields or bytes that were swapped show.
fn all_different() -> (Token, [u8; 44]) {
    let token = Token {
        transport: Transport::Dc,
        qpn: 0x0403_0201,
        gid: [0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f],
        rkey: 0x2423_2221,
        address: 0x3837_3635_3433_3231,
        length: 0x4847_4645_4443_4241,
        port: 0x51,
        lid: 0x6261,
    };
    #[rustfmt::skip]
    let image = [
        0x00,                                                       //  0  transport
        0x01, 0x02, 0x03, 0x04,                                     //  1  QPN
        0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17,             //  5  GID
        0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f,
        0x21, 0x22, 0x23, 0x24,                                     // 21  rkey
        0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,             // 25  address
        0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,             // 33  length
        0x51,                                                       // 41  port
        0x61, 0x62,                                                 // 42  LID
    ];
    (token, image)
}

fn malformed(value: &str) -> Malformed {
    match TokenHeader::parse(value) {
        Err(TokenError::Malformed(what)) => what,
        other => panic!("{value}: {other:?}"),
    }
}

#[test]
fn vector_a_of_the_wire_document() {
    let header = TokenHeader::parse(VECTOR_A).unwrap();
    assert_eq!(header, TokenHeader { token: vector_a(), overriding: None });
    assert_eq!(header.family(), Family::A);
    assert_eq!(header.window(), Window { address: 0x7f11_2233_4000, length: 1 << 20 });
    assert_eq!(header.to_string(), VECTOR_A);
    assert_eq!(VECTOR_A.to_uppercase().parse(), Ok(header));
}

#[test]
fn every_byte_of_the_image() {
    let (token, image) = all_different();
    assert_eq!(token.to_bytes(), image);
    assert_eq!(Token::from_bytes(&image), Ok(token));
    let digits: String = image.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(token.to_string(), digits);
    assert_eq!(TokenHeader::parse(&digits), Ok(token.into()));
    let mut ones = [0xff; 44];
    assert_eq!(Token::from_bytes(&ones), Err(Malformed::Transport(255)));
    ones[0] = 1;
    let most = Token::from_bytes(&ones).unwrap();
    assert_eq!((most.transport, most.qpn, most.rkey), (Transport::Rc, u32::MAX, u32::MAX));
    assert_eq!((most.address, most.length, most.port, most.lid), (u64::MAX, u64::MAX, u8::MAX, u16::MAX));
    assert_eq!(most.to_bytes(), ones);
}

#[test]
fn a_suffix_overrides_what_it_does_not_leave_at_zero() {
    let token = (0x7f11_2233_4000, 1 << 20);
    for (suffix, address, length) in [
        (":0:0", token.0, token.1),
        (":0000000000000000:0000000000000000", token.0, token.1),
        (":7f1122335000:0", 0x7f11_2233_5000, token.1),
        (":0:1000", token.0, 0x1000),
        (":7F1122335000:00001000", 0x7f11_2233_5000, 0x1000),
        (":ffffffffffffffff:ffffffffffffffff", u64::MAX, u64::MAX),
    ] {
        let header = TokenHeader::parse(format!("{VECTOR_A}{suffix}")).unwrap();
        assert_eq!(header.family(), Family::B);
        assert_eq!(header.token, vector_a());
        assert_eq!(header.window(), Window { address, length }, "{suffix}");
    }
    let header = TokenHeader { token: vector_a(), overriding: Some(Window { address: 0xABC0, length: 0 }) };
    assert_eq!(header.to_string(), format!("{VECTOR_A}:abc0:0"));
}

#[test]
fn families_that_are_not_supported() {
    let d = format!("{VECTOR_C}:000073967e600000:0000000000001000");
    for (value, family) in [(VECTOR_C.to_owned(), Family::C), (VECTOR_C.to_uppercase(), Family::C), (d, Family::D)] {
        let error = TokenHeader::parse(&value).unwrap_err();
        assert_eq!(error, TokenError::UnsupportedFamily(family), "{value}");
        assert_eq!(error.to_string(), format!("tokens of family {family} are not supported"));
    }
}

#[test]
fn case_08_stray_characters_and_wrong_lengths_are_malformed() {
    let a = VECTOR_A;
    assert_eq!(malformed(""), Malformed::Width { field: 1, digits: 0 });
    assert_eq!(malformed(&a[1..]), Malformed::Width { field: 1, digits: 87 });
    assert_eq!(malformed(&format!("{a}0")), Malformed::Width { field: 1, digits: 89 });
    assert_eq!(malformed(&format!("{a}00")), Malformed::Width { field: 1, digits: 90 });
    // Padding, which over HTTP is trimmed before.
    assert_eq!(malformed(&format!(" {a}")), Malformed::Width { field: 1, digits: 89 });
    assert_eq!(malformed(&format!("{a}\n")), Malformed::Width { field: 1, digits: 89 });
    assert_eq!(malformed(&format!("{}=", &a[1..])), Malformed::Digit { field: 1 });
    // An inner space, inserted or in place of a digit, and a sign.
    assert_eq!(malformed(&format!("{} {}", &a[..10], &a[10..])), Malformed::Width { field: 1, digits: 89 });
    assert_eq!(malformed(&format!("{} {}", &a[..10], &a[11..])), Malformed::Digit { field: 1 });
    assert_eq!(malformed(&format!("{a}:+1:0")), Malformed::Digit { field: 2 });
    assert_eq!(malformed(&format!("{a}:1: 2")), Malformed::Digit { field: 3 });
    assert_eq!(malformed(&format!("{a}:1:0x2")), Malformed::Digit { field: 3 });
    // A stray colon, wherever it stands.
    assert_eq!(malformed(&format!("{a}:")), Malformed::Fields(2));
    assert_eq!(malformed(&format!(":{a}")), Malformed::Fields(2));
    assert_eq!(malformed(&format!("{}:{}", &a[..10], &a[10..])), Malformed::Fields(2));
    assert_eq!(malformed(&format!("{a}::")), Malformed::Width { field: 2, digits: 0 });
    assert_eq!(malformed(&format!("{a}:1:")), Malformed::Width { field: 3, digits: 0 });
    assert_eq!(malformed(&format!("{a}:1:2:")), Malformed::Fields(4));
    assert_eq!(malformed(&format!("{a}:00000000000000001:2")), Malformed::Width { field: 2, digits: 17 });
    // Other transports.
    assert_eq!(malformed(&format!("02{}", &a[2..])), Malformed::Transport(2));
    assert_eq!(malformed(&format!("ff{}:1:2", &a[2..])), Malformed::Transport(255));
    // The shapes of C and D, nearly.
    assert_eq!(malformed(&VECTOR_C[1..]), Malformed::Width { field: 1, digits: 15 });
    assert_eq!(malformed(&format!("{VECTOR_C}0")), Malformed::Width { field: 7, digits: 33 });
    assert_eq!(malformed(&VECTOR_C.replace(":1:", ":g:")), Malformed::Digit { field: 6 });
    assert_eq!(malformed(&format!("{VECTOR_C}:1")), Malformed::Fields(8));
    assert_eq!(malformed(&format!("{VECTOR_C}:1:")), Malformed::Width { field: 9, digits: 0 });
    assert_eq!(malformed(&format!("{VECTOR_C}:1:2:3")), Malformed::Fields(10));
    assert_eq!(malformed(&format!("{}é", &a[2..])), Malformed::Digit { field: 1 });
}

#[test]
fn long_headers_are_not_looked_at() {
    assert_eq!(malformed(&"0".repeat(1024)), Malformed::Width { field: 1, digits: 1024 });
    assert_eq!(malformed(&"0".repeat(1025)), Malformed::TooLong(1025));
    assert_eq!(malformed(&":".repeat(1_000_000)), Malformed::TooLong(1_000_000));
    assert_eq!(Malformed::TooLong(1025).to_string(), "1025 bytes are more than 1024");
}

#[test]
fn the_servers_own_token() {
    let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 200, 1];
    let token = Token::endpoint(0xd0_0007, gid, 0);
    let image = concat!(
        "010700d000",
        "00000000000000000000ffffc0a8c801",
        "00000000",
        "0000000000000000",
        "0000000000000000",
        "00",
        "0000"
    );
    assert_eq!(token.to_string(), image);
    assert_eq!(Reply::Token(token).to_string(), format!("200:{image}"));
}

#[test]
fn replies() {
    let status = |n| Reply::Status(Status::new(n).unwrap());
    let with_token = format!("200:{VECTOR_A}");
    for (text, reply) in [
        ("ok", Reply::Ok),
        ("err", Reply::Err),
        ("100", status(100)),
        ("200", Reply::Status(Status::OK)),
        ("206", status(206)),
        ("501", status(501)),
        ("599", status(599)),
        (&with_token, Reply::Token(vector_a())),
    ] {
        assert_eq!(Reply::parse(text), Ok(reply), "{text}");
        assert_eq!(reply.to_string(), text);
    }
    assert_eq!(Reply::parse(format!("200:{}", VECTOR_A.to_uppercase())), Ok(Reply::Token(vector_a())));
    assert_eq!([99, 100, 599, 600].map(|n| Status::new(n).map(Status::get)), [None, Some(100), Some(599), None]);
}

#[test]
fn malformed_replies() {
    let bad_transport = format!("200:02{}", &VECTOR_A[2..]);
    let token = |prefix: &str, suffix: &str| format!("{prefix}{VECTOR_A}{suffix}");
    for text in [
        "",
        "o",
        "OK",
        "Ok",
        "okay",
        " ok",
        "ok ",
        "ERR",
        "error",
        "0",
        "99",
        "099",
        "600",
        "999",
        "1000",
        "0200",
        "+20",
        "-20",
        "2 0",
        "20a",
        "200 ",
        " 200",
        "200:",
        "200:0",
        "２００",
        &token("", ""),
        &token("206:", ""),
        &token("404:", ""),
        &token("ok:", ""),
        &token("200: ", ""),
        &token("200:", " "),
        &token("200:", ":0:0"),
        &token("200:", "0"),
        &token("200::", ""),
        &bad_transport,
        &format!("200:{VECTOR_C}"),
    ] {
        assert_eq!(Reply::parse(text), Err(MalformedReply), "{text}");
    }
}
