//! Every byte of the wire formats against images assembled by hand from the wire document, sections 1 and 3.

use rdma_token::{
    Descriptor, Family, MAX_HEADER, Malformed, MalformedReply, Qpn, Reply, Status, Token, TokenHeader, Transport,
    Window, names,
};

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

/// Vector C of the wire document: address 0x73967e5ff000, 4 MiB, rkey 0x1f2e973, LID 0, QPN 0x7a03, GID ::ffff:15.15.15.223.
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

fn vector_c() -> Descriptor {
    Descriptor {
        address: 0x7396_7e5f_f000,
        length: 4 << 20,
        rkey: 0x01f2_e973,
        lid: 0,
        qpn: Qpn::new(0x7a03).unwrap(),
        gid: Some([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 15, 15, 15, 223]),
    }
}

/// As [`all_different`], for the seven fields.
fn all_different_fields() -> (Descriptor, &'static str) {
    let descriptor = Descriptor {
        address: 0x0102_0304_0506_0708,
        length: 0x1112_1314,
        rkey: 0x2122_2324,
        lid: 0x3132,
        qpn: Qpn::new(0x41_4243).unwrap(),
        gid: Some([0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf]),
    };
    let image = "0102030405060708:11121314:21222324:3132:414243:1:a0a1a2a3a4a5a6a7a8a9aaabacadaeaf";
    (descriptor, image)
}

fn malformed(value: &str) -> Malformed {
    match TokenHeader::parse(value) {
        Err(what) => what,
        other => panic!("{value}: {other:?}"),
    }
}

fn malformed_cuobj(descr: &str, content_length: &str, remote_buf_start: &str) -> Malformed {
    match TokenHeader::from_cuobj(descr, content_length, remote_buf_start) {
        Err(what) => what,
        other => panic!("{descr} {content_length} {remote_buf_start}: {other:?}"),
    }
}

/// The value of the one header.
fn value(header: TokenHeader) -> String {
    match &header.headers()[..] {
        [("x-amz-rdma-token", value)] => value.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn vector_a_of_the_wire_document() {
    let header = TokenHeader::parse(VECTOR_A).unwrap();
    assert_eq!(header, TokenHeader::A(vector_a()));
    assert_eq!(header.family(), Family::A);
    assert_eq!((header.rkey(), header.qpn(), header.lid()), (0xdead_beef, 0x12_3456, 0));
    assert_eq!((header.gid(), header.transport()), (Some(vector_a().gid), Some(Transport::Rc)));
    assert_eq!(header.window(), Window { address: 0x7f11_2233_4000, length: 1 << 20 });
    assert_eq!(header.headers(), [("x-amz-rdma-token", VECTOR_A.to_owned())]);
    assert_eq!(VECTOR_A.to_uppercase().parse(), Ok(header));
}

#[test]
fn every_byte_of_the_image() {
    let (token, image) = all_different();
    assert_eq!(token.to_bytes(), image);
    assert_eq!(Token::from_bytes(&image), Ok(token));
    let digits: String = image.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(token.to_string(), digits);
    assert_eq!(TokenHeader::parse(&digits), Ok(TokenHeader::A(token)));
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
        assert!(matches!(header, TokenHeader::B(token, _) if token == vector_a()));
        assert_eq!(header.window(), Window { address, length }, "{suffix}");
        assert_eq!((header.rkey(), header.qpn(), header.lid()), (0xdead_beef, 0x12_3456, 0));
        assert_eq!((header.gid(), header.transport()), (Some(vector_a().gid), Some(Transport::Rc)));
    }
    let header = TokenHeader::B(vector_a(), Window { address: 0xABC0, length: 0 });
    assert_eq!(value(header), format!("{VECTOR_A}:abc0:0"));
    // A zero is a length in A and B.
    let nothing = TokenHeader::B(Token { length: 0, ..vector_a() }, Window::default());
    assert_eq!(TokenHeader::parse(value(nothing)), Ok(nothing));
    assert_eq!(nothing.window(), Window { address: 0x7f11_2233_4000, length: 0 });
}

#[test]
fn vector_c_of_the_wire_document() {
    let header = TokenHeader::parse(VECTOR_C).unwrap();
    assert_eq!(header, TokenHeader::C(vector_c()));
    assert_eq!(header.family(), Family::C);
    assert_eq!(header.window(), Window { address: 0x7396_7e5f_f000, length: 4 << 20 });
    assert_eq!((header.rkey(), header.qpn(), header.lid()), (0x01f2_e973, 0x7a03, 0));
    assert_eq!((header.gid(), header.transport()), (vector_c().gid, None));
    assert_eq!(header.headers(), [("x-amz-rdma-token", VECTOR_C.to_owned())]);
    assert_eq!(VECTOR_C.len(), Descriptor::CHARACTERS);
    assert_eq!(VECTOR_C.to_uppercase().parse(), Ok(header));
}

#[test]
fn every_byte_of_the_seven_fields() {
    let (descriptor, image) = all_different_fields();
    assert_eq!(descriptor.to_string(), image);
    assert_eq!(TokenHeader::parse(image), Ok(TokenHeader::C(descriptor)));

    let most = "ffffffffffffffff:ffffffff:ffffffff:ffff:ffffff:1:ffffffffffffffffffffffffffffffff";
    let TokenHeader::C(descriptor) = TokenHeader::parse(most).unwrap() else { panic!("not C") };
    assert_eq!((descriptor.address, descriptor.length, descriptor.rkey), (u64::MAX, u32::MAX, u32::MAX));
    assert_eq!((descriptor.lid, descriptor.qpn, descriptor.gid), (u16::MAX, Qpn::MAX, Some([0xff; 16])));
    assert_eq!(descriptor.to_string(), most);

    let least = "0000000000000000:00000001:00000000:0000:000000:1:00000000000000000000000000000000";
    let TokenHeader::C(descriptor) = TokenHeader::parse(least).unwrap() else { panic!("not C") };
    assert_eq!((descriptor.address, descriptor.length, descriptor.rkey, descriptor.lid), (0, 1, 0, 0));
    assert_eq!((descriptor.qpn.get(), descriptor.gid), (0, Some([0; 16])));
    assert_eq!(descriptor.to_string(), least);

    assert_eq!([0, 0xff_ffff, 0x100_0000].map(|n| Qpn::new(n).map(Qpn::get)), [Some(0), Some(0xff_ffff), None]);
}

#[test]
fn without_a_gid_the_digits_of_the_gid_say_nothing() {
    let without = VECTOR_C.replace(":1:", ":0:");
    let header = TokenHeader::parse(&without).unwrap();
    assert_eq!(header, TokenHeader::C(Descriptor { gid: None, ..vector_c() }));
    assert_eq!(header.gid(), None);
    assert_eq!(value(header), format!("{}:0:{}", &VECTOR_C[..46], "0".repeat(32)));
    // They must be there all the same.
    assert_eq!(malformed(&without[..80]), Malformed::Width { field: 7, digits: 31 });
    assert_eq!(malformed(&format!("{}g", &without[..80])), Malformed::Digit { field: 7 });
    for digit in ["2", "9", "a", "F"] {
        assert_eq!(malformed(&VECTOR_C.replace(":1:", &format!(":{digit}:"))), Malformed::GidPresent);
    }
    assert_eq!(malformed(&VECTOR_C.replace(":1:", "::")), Malformed::Width { field: 6, digits: 0 });
    assert_eq!(malformed(&VECTOR_C.replace(":1:", ":01:")), Malformed::Width { field: 6, digits: 2 });
}

#[test]
fn family_d_overrides_by_fields_of_fixed_width() {
    let (address, length) = (0x7396_7e5f_f000, 4 << 20);
    for (suffix, window) in [
        (":0000000000000000:0000000000000000", Window { address, length }),
        (":000073967e600000:0000000000000000", Window { address: 0x7396_7e60_0000, length }),
        (":0000000000000000:0000000000001000", Window { address, length: 0x1000 }),
        (":000073967E600000:00000000000ABCDE", Window { address: 0x7396_7e60_0000, length: 0xabcde }),
        (":ffffffffffffffff:ffffffffffffffff", Window { address: u64::MAX, length: u64::MAX }),
    ] {
        let text = format!("{VECTOR_C}{suffix}");
        let header = TokenHeader::parse(&text).unwrap();
        assert_eq!(header.family(), Family::D);
        assert!(matches!(header, TokenHeader::D(descriptor, _) if descriptor == vector_c()));
        assert_eq!(header.window(), window, "{suffix}");
        assert_eq!((header.rkey(), header.qpn(), header.lid()), (0x01f2_e973, 0x7a03, 0));
        assert_eq!((header.gid(), header.transport()), (vector_c().gid, None));
        assert_eq!(value(header), text.to_lowercase());
    }
    assert_eq!(malformed(&format!("{VECTOR_C}:0:0000000000000000")), Malformed::Width { field: 8, digits: 1 });
    assert_eq!(
        malformed(&format!("{VECTOR_C}:{}:0000000000000000", "0".repeat(17))),
        Malformed::Width { field: 8, digits: 17 }
    );
    assert_eq!(malformed(&format!("{VECTOR_C}:0000000000000000:1000")), Malformed::Width { field: 9, digits: 4 });
    assert_eq!(malformed(&format!("{VECTOR_C}:000000000000000g:0000000000000000")), Malformed::Digit { field: 8 });
}

#[test]
fn family_e_is_three_headers() {
    let header = TokenHeader::from_cuobj(VECTOR_C, "4096", "127090202509312").unwrap();
    let window = Window { address: 0x7396_7e60_0000, length: 4096 };
    assert_eq!(header, TokenHeader::E(vector_c(), window));
    assert_eq!(header.family(), Family::E);
    assert_eq!(header.window(), window);
    assert_eq!((header.rkey(), header.qpn(), header.lid()), (0x01f2_e973, 0x7a03, 0));
    assert_eq!((header.gid(), header.transport()), (vector_c().gid, None));
    assert_eq!(
        header.headers(),
        [
            ("x-cuobj-rdma-descr", VECTOR_C.to_owned()),
            ("x-cuobj-content-length", "4096".to_owned()),
            ("x-cuobj-remote-buf-start", "127090202509312".to_owned()),
        ]
    );
    assert_eq!(TokenHeader::from_cuobj(VECTOR_C.to_uppercase(), "4096", "127090202509312"), Ok(header));

    // The window is what the two headers say: nothing is left to the descriptor, whatever its length.
    let zero = TokenHeader::from_cuobj(VECTOR_C.replace("00400000", "00000000"), "1", "0").unwrap();
    assert_eq!(zero.window(), Window { address: 0, length: 1 });
    let most = TokenHeader::from_cuobj(VECTOR_C, "18446744073709551615", "18446744073709551615").unwrap();
    assert_eq!(most.window(), Window { address: u64::MAX, length: u64::MAX });
    let padded = TokenHeader::from_cuobj(VECTOR_C, "00000000000000004096", "007").unwrap();
    assert_eq!(padded.window(), Window { address: 7, length: 4096 });
}

#[test]
fn family_e_takes_nothing_but_decimals_and_a_descriptor() {
    for bad in [
        "",
        " ",
        "-1",
        "+1",
        " 1",
        "1 ",
        "1\n",
        "0x10",
        "1e3",
        "1.0",
        "1,000",
        "1_000",
        "f",
        "１",
        "18446744073709551616",
        "99999999999999999999",
        "000000000000000000001",
    ] {
        assert_eq!(malformed_cuobj(VECTOR_C, bad, "0"), Malformed::Decimal(names::CUOBJ_CONTENT_LENGTH), "{bad}");
        assert_eq!(malformed_cuobj(VECTOR_C, "1", bad), Malformed::Decimal(names::CUOBJ_REMOTE_BUF_START), "{bad}");
    }
    assert_eq!(malformed_cuobj("", "1", "0"), Malformed::Fields(1));
    assert_eq!(malformed_cuobj(VECTOR_A, "1", "0"), Malformed::Fields(1));
    assert_eq!(malformed_cuobj(&format!("{VECTOR_A}:0:0"), "1", "0"), Malformed::Fields(3));
    assert_eq!(malformed_cuobj(&format!("{VECTOR_C}:{:016x}:{:016x}", 0, 0), "1", "0"), Malformed::Fields(9));
    assert_eq!(malformed_cuobj(&format!("{VECTOR_C} "), "1", "0"), Malformed::Width { field: 7, digits: 33 });
    assert_eq!(malformed_cuobj(&" ".repeat(1025), "1", "0"), Malformed::TooLong(1025));
    assert_eq!(malformed_cuobj(VECTOR_C, &"0".repeat(1025), "0"), Malformed::Decimal(names::CUOBJ_CONTENT_LENGTH));
    assert_eq!(
        Malformed::Decimal(names::CUOBJ_CONTENT_LENGTH).to_string(),
        "malformed token: x-cuobj-content-length is not a decimal number of 64 bits"
    );
}

#[test]
fn empty_windows_of_c_d_and_e_are_malformed() {
    let empty = VECTOR_C.replace("00400000", "00000000");
    assert_eq!(malformed(&empty), Malformed::ZeroLength);
    assert_eq!(malformed(&format!("{empty}:000073967e600000:0000000000000000")), Malformed::ZeroLength);
    assert_eq!(malformed_cuobj(VECTOR_C, "0", "4096"), Malformed::ZeroLength);
    assert_eq!(malformed_cuobj(&empty, "00", "4096"), Malformed::ZeroLength);
    // A suffix may say what the descriptor does not.
    let header = TokenHeader::parse(format!("{empty}:0000000000000000:0000000000000001")).unwrap();
    assert_eq!(header.window(), Window { address: 0x7396_7e5f_f000, length: 1 });
}

#[test]
fn names_of_headers() {
    for (name, documented) in [
        (names::TOKEN, "x-amz-rdma-token"),
        (names::CUOBJ_DESCR, "X-CuObj-RDMA-Descr"),
        (names::CUOBJ_CONTENT_LENGTH, "X-CuObj-Content-Length"),
        (names::CUOBJ_REMOTE_BUF_START, "X-CuObj-Remote-Buf-Start"),
        (names::REPLY, "x-amz-rdma-reply"),
        (names::BYTES, "x-amz-rdma-bytes"),
        (names::BYTES_TRANSFERRED, "x-amz-rdma-bytes-transferred"),
        (names::PROTOCOL, "x-amz-rdma-protocol"),
        (names::PROTOCOL_STATUS, "x-amz-rdma-protocol-status"),
    ] {
        assert_eq!(name, documented.to_lowercase());
        assert!(names::SIGNED_PREFIXES.iter().any(|prefix| name.starts_with(prefix)), "{name}");
    }
}

/// One token of each family that is one header.
fn one_of_each() -> [(Family, String); 4] {
    [
        (Family::A, VECTOR_A.to_owned()),
        (Family::B, format!("{VECTOR_A}:7f1122335000:1000")),
        (Family::C, VECTOR_C.to_owned()),
        (Family::D, format!("{VECTOR_C}:000073967e600000:0000000000001000")),
    ]
}

#[test]
fn case_08_every_family_in_either_case() {
    for (family, text) in one_of_each() {
        let header = TokenHeader::parse(&text).unwrap();
        assert_eq!(header.family(), family);
        assert_eq!(family.to_string(), format!("{family:?}"));
        assert_ne!(text.to_uppercase(), text);
        assert_eq!(TokenHeader::parse(text.to_uppercase()), Ok(header));
        let mixed: String =
            text.chars().enumerate().map(|(n, c)| if n % 2 == 0 { c.to_ascii_uppercase() } else { c }).collect();
        assert_eq!(TokenHeader::parse(mixed), Ok(header));
        assert_eq!(value(header), text);
    }
    let header = TokenHeader::from_cuobj(VECTOR_C, "4096", "0").unwrap();
    assert_eq!(header.family(), Family::E);
    assert_eq!(TokenHeader::from_cuobj(VECTOR_C.to_uppercase(), "4096", "0"), Ok(header));
}

/// `text` with `stray` put in before each character and at the end, and in place of each character.
fn with_stray(text: &str, stray: char) -> impl Iterator<Item = String> {
    let inserted = (0..=text.len()).map(move |at| format!("{}{stray}{}", &text[..at], &text[at..]));
    let replaced = (0..text.len())
        .filter(move |&at| !text[at..].starts_with(stray))
        .map(move |at| format!("{}{stray}{}", &text[..at], &text[at + 1..]));
    inserted.chain(replaced)
}

#[test]
fn case_08_a_space_anywhere_and_padding_are_malformed() {
    for (_, text) in one_of_each() {
        for stray in [' ', '\t', '\r', '\n', '\0', '=', '+', '-', '.', ',', ';', '"'] {
            for text in with_stray(&text, stray) {
                malformed(&text);
            }
        }
    }
    for text in with_stray(VECTOR_C, ' ') {
        malformed_cuobj(&text, "4096", "0");
    }
    for text in with_stray("4096", ' ') {
        malformed_cuobj(VECTOR_C, &text, "0");
        malformed_cuobj(VECTOR_C, "4096", &text);
    }
}

#[test]
fn case_08_one_stray_colon_anywhere_is_malformed() {
    for (_, text) in one_of_each() {
        for text in with_stray(&text, ':') {
            malformed(&text);
        }
    }
    for text in with_stray(VECTOR_C, ':') {
        malformed_cuobj(&text, "4096", "0");
    }
    for text in with_stray("4096", ':') {
        malformed_cuobj(VECTOR_C, &text, "0");
        malformed_cuobj(VECTOR_C, "4096", &text);
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
    assert_eq!(malformed(&format!("{VECTOR_C}:0000000000000001:")), Malformed::Width { field: 9, digits: 0 });
    assert_eq!(malformed(&format!("{VECTOR_C}:1:2:3")), Malformed::Fields(10));
    assert_eq!(malformed(&format!("{}é", &a[2..])), Malformed::Digit { field: 1 });
}

#[test]
fn long_headers_are_not_looked_at() {
    assert_eq!(malformed(&"0".repeat(1024)), Malformed::Width { field: 1, digits: 1024 });
    assert_eq!(MAX_HEADER, 1024);
    assert_eq!(malformed(&"0".repeat(1025)), Malformed::TooLong(1025));
    assert_eq!(malformed(&":".repeat(1_000_000)), Malformed::TooLong(1_000_000));
    assert_eq!(Malformed::TooLong(1025).to_string(), "malformed token: 1025 bytes are more than 1024");
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
