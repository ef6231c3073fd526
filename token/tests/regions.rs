//! `testing::Regions` keeps the promises of `RemoteMemory` and `RemoteWindow`.

use futures_util::FutureExt;
use proptest::{prelude::*, test_runner::FileFailurePersistence};
use rdma_token::{
    CHUNK, Descriptor, RemoteAccess, RemoteError, RemoteMemory, RemoteWindow, Token, TokenHeader, Window,
    testing::{Moved, Regions},
};

const BASE: u64 = 0x7f11_2233_4000;
const BOTH: &[RemoteAccess] = &[RemoteAccess::Read, RemoteAccess::Write];

/// The work never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("ready at once")
}

fn open(
    memory: &dyn RemoteMemory,
    header: TokenHeader,
    access: RemoteAccess,
) -> Result<Box<dyn RemoteWindow>, RemoteError> {
    now(memory.open(&header, access))
}

/// The error of an open that has to fail.
fn refusal(memory: &dyn RemoteMemory, header: TokenHeader, access: RemoteAccess) -> RemoteError {
    open(memory, header, access).err().expect("a refusal")
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| u8::try_from(n % 251).unwrap()).collect()
}

#[test]
fn bytes_arrive_where_they_belong() {
    let memory = Regions::new();
    let content = pattern(10_000);
    let rkey = memory.register(BASE, &content, BOTH);
    let other = memory.register(BASE + 10_000, &content, BOTH);
    assert_ne!(rkey, other);

    let mut window = open(&memory, TokenHeader::A(memory.token(rkey)), RemoteAccess::Read).unwrap();
    assert_eq!((window.len(), window.is_empty()), (10_000, false));
    let mut bytes = vec![0; 777];
    now(window.read(123, &mut bytes)).unwrap();
    assert_eq!(bytes, content[123..900]);

    let overriding = Window { address: BASE + 5000, length: 1000 };
    let header = TokenHeader::D(memory.descriptor(rkey), overriding);
    let mut window = open(&memory, header, RemoteAccess::Write).unwrap();
    assert_eq!(window.len(), 1000);
    now(window.write(10, &[0xee; 20])).unwrap();
    let mut expected = content.clone();
    expected[5010..5030].fill(0xee);
    assert_eq!(memory.content(rkey), expected);
    assert_eq!(memory.content(other), content);
    assert_eq!(memory.moved(), Moved { opened: 2, read: 777, written: 20, largest: 777 });

    memory.fill(rkey, &[1, 2, 3]);
    expected[..3].copy_from_slice(&[1, 2, 3]);
    assert_eq!(memory.content(rkey), expected);
}

#[test]
fn a_window_is_cut_off_where_the_registration_ends() {
    let memory = Regions::new();
    let rkey = memory.register(BASE, &pattern(100), BOTH);
    let window = |address, length| {
        let header = TokenHeader::E(memory.descriptor(rkey), Window { address, length });
        open(&memory, header, RemoteAccess::Write).map(|window| window.len())
    };
    assert_eq!(window(BASE, 100), Ok(100));
    assert_eq!(window(BASE, 101), Ok(100));
    assert_eq!(window(BASE + 99, u64::MAX), Ok(1));
    for (address, length) in [(BASE + 100, 1), (BASE - 1, 2), (0, u64::MAX), (u64::MAX, u64::MAX)] {
        assert_eq!(window(address, length), Err(RemoteError::Bounds(Window { address, length })));
    }
    // Which holds for an empty one wherever it is.
    assert_eq!(window(0, 0), Ok(0));
    let header = TokenHeader::E(memory.descriptor(rkey), Window { address: 0, length: 0 });
    let mut empty = open(&memory, header, RemoteAccess::Write).unwrap();
    assert!(empty.is_empty());
    assert_eq!(now(empty.write(0, &[])), Ok(()));
    assert_eq!(now(empty.write(0, &[1])), Err(RemoteError::Bounds(Window { address: 0, length: 1 })));
    assert_eq!(memory.content(rkey), pattern(100));
}

#[test]
fn keys_rights_and_staleness() {
    let memory = Regions::new();
    let content = pattern(64);
    let readable = memory.register(BASE, &content, &[RemoteAccess::Read]);
    let writable = memory.register(BASE, &content, &[RemoteAccess::Write]);
    let local = memory.register(BASE, &content, &[]);
    let token = |rkey| TokenHeader::A(Token { rkey, ..memory.token(readable) });

    assert_eq!(refusal(&memory, token(0), RemoteAccess::Read), RemoteError::ReservedKey);
    for rkey in [1, readable + 1, readable ^ 0x100, local + 0x101, u32::MAX] {
        assert_eq!(refusal(&memory, token(rkey), RemoteAccess::Read), RemoteError::UnknownKey(rkey));
    }
    let write = RemoteError::Access(RemoteAccess::Write);
    let read = RemoteError::Access(RemoteAccess::Read);
    assert_eq!(refusal(&memory, token(readable), RemoteAccess::Write), write);
    assert_eq!(refusal(&memory, token(writable), RemoteAccess::Read), read);
    assert_eq!(refusal(&memory, token(local), RemoteAccess::Read), read);
    // The right counts, not what the window says.
    let outside = TokenHeader::A(Token { address: 0, ..memory.token(local) });
    assert_eq!(refusal(&memory, outside, RemoteAccess::Write), write);

    let mut reading = open(&memory, token(readable), RemoteAccess::Read).unwrap();
    let mut writing = open(&memory, token(writable), RemoteAccess::Write).unwrap();
    now(reading.read(0, &mut [0; 8])).unwrap();
    memory.deregister(readable);
    memory.deregister(writable);
    let mut bytes = [7; 8];
    assert_eq!(now(reading.read(0, &mut bytes)), Err(RemoteError::Stale(readable)));
    assert_eq!(bytes, [7; 8]);
    assert_eq!(now(writing.write(0, &[9; 8])), Err(RemoteError::Stale(writable)));
    assert_eq!(memory.content(writable), content);
    assert_eq!(refusal(&memory, token(readable), RemoteAccess::Read), RemoteError::Stale(readable));
    assert_eq!(memory.moved(), Moved { opened: 2, read: 8, written: 0, largest: 8 });

    let again = memory.register(BASE, &content, BOTH);
    assert!(![readable, writable, local].contains(&again));
}

#[test]
fn a_window_is_open_for_one_access_and_fails_for_good() {
    let memory = Regions::new();
    let rkey = memory.register(BASE, &pattern(64), BOTH);
    let header = TokenHeader::C(memory.descriptor(rkey));
    let mut window = open(&memory, header, RemoteAccess::Read).unwrap();
    let error = RemoteError::Access(RemoteAccess::Write);
    assert_eq!(now(window.write(0, &[1])), Err(error.clone()));
    assert_eq!(now(window.read(0, &mut [0])), Err(error));

    let mut window = open(&memory, header, RemoteAccess::Read).unwrap();
    let error = RemoteError::Bounds(Window { address: BASE + 60, length: 5 });
    assert_eq!(now(window.read(60, &mut [0; 5])), Err(error.clone()));
    assert_eq!(now(window.read(0, &mut [0])), Err(error));
    assert_eq!(memory.content(rkey), pattern(64));
    assert_eq!(memory.moved(), Moved { opened: 2, ..Moved::default() });
}

#[test]
fn faults_come_at_their_byte() {
    let memory = Regions::new();
    let rkey = memory.register(BASE, &[0; 100], BOTH);
    let header = TokenHeader::A(memory.token(rkey));
    let error = RemoteError::Transport("retries ran out".to_owned());
    memory.fail_after(30, error.clone());
    let mut window = open(&memory, header, RemoteAccess::Write).unwrap();
    assert_eq!(now(window.write(0, &[1; 10])), Ok(()));
    assert_eq!(now(window.write(10, &[2; 20])), Ok(()));
    assert_eq!(now(window.write(30, &[])), Ok(()));
    assert_eq!(now(window.write(30, &[3; 10])), Err(error.clone()));
    assert_eq!(now(window.write(0, &[4; 10])), Err(error));
    assert_eq!(
        memory.content(rkey),
        [[1; 10], [2; 10], [2; 10]].concat().into_iter().chain([0; 70]).collect::<Vec<_>>()
    );

    memory.fail_after(5, RemoteError::Stale(rkey));
    let mut window = open(&memory, header, RemoteAccess::Read).unwrap();
    let mut bytes = [9; 10];
    assert_eq!(now(window.read(0, &mut bytes)), Err(RemoteError::Stale(rkey)));
    assert_eq!(bytes, [1, 1, 1, 1, 1, 9, 9, 9, 9, 9]);
    // It came once.
    let mut window = open(&memory, header, RemoteAccess::Read).unwrap();
    assert_eq!(now(window.read(20, &mut bytes)), Ok(()));
    assert_eq!(bytes, [2; 10]);
    assert_eq!(memory.moved(), Moved { opened: 3, read: 15, written: 30, largest: 20 });
}

#[test]
fn errors_say_what_was_wrong() {
    for (error, text, reason) in [
        (RemoteError::UnknownKey(0x1a7), "unknown rkey 0x1a7", "unknown_key"),
        (RemoteError::ReservedKey, "rkey 0 is reserved", "reserved_key"),
        (RemoteError::Bounds(Window { address: 0x1000, length: 16 }), "16 bytes at 0x1000 are out of bounds", "bounds"),
        (RemoteError::Access(RemoteAccess::Read), "the registration does not allow a remote read", "access"),
        (RemoteError::Access(RemoteAccess::Write), "the registration does not allow a remote write", "access"),
        (RemoteError::Stale(0x1a7), "rkey 0x1a7 is no longer valid", "stale"),
        (RemoteError::Transport("no path".to_owned()), "transfer failed: no path", "transport"),
        (RemoteError::Unsupported("DC tokens".to_owned()), "DC tokens are not supported", "unsupported"),
    ] {
        assert_eq!((error.to_string().as_str(), error.reason()), (text, reason));
    }
    assert_eq!(CHUNK, 262_144);
}

/// Failing seeds are kept in the package's `proptest-regressions`.
fn config(cases: u32) -> ProptestConfig {
    let seeds = FileFailurePersistence::Direct("proptest-regressions/regions.txt");
    ProptestConfig { cases, failure_persistence: Some(Box::new(seeds)), ..Default::default() }
}

/// Distances around the two regions below, and any number.
fn numbers() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0u64..400, 1 => any::<u64>(), 1 => (u64::MAX - 400)..=u64::MAX]
}

proptest! {
    #![proptest_config(config(4000))]

    /// Whatever a token says, a transfer moves all of its bytes within one registration, or none.
    #[test]
    fn never_a_byte_outside_a_registration(
        which in 0usize..4,
        at in numbers(),
        length in numbers(),
        offset in numbers(),
        count in 0usize..300,
        family in 0..3,
    ) {
        let memory = Regions::new();
        // Two neighbours, and one that nobody may write.
        let content = pattern(200);
        let keys = [
            memory.register(BASE, &content, BOTH),
            memory.register(BASE + 200, &content, BOTH),
            memory.register(BASE, &content, &[RemoteAccess::Read]),
        ];
        let rkey = keys.get(which).copied().unwrap_or(0x1234_5678);
        let address = BASE.wrapping_sub(100).wrapping_add(at);
        let window = Window { address, length };
        let descriptor = Descriptor { rkey, ..memory.descriptor(keys[0]) };
        let header = match family {
            0 => TokenHeader::A(Token { rkey, address, length, ..memory.token(keys[0]) }),
            1 => TokenHeader::B(Token { rkey, ..memory.token(keys[0]) }, window),
            _ => TokenHeader::E(descriptor, window),
        };
        let from = vec![0xaa; count];
        let mut expected = [content.clone(), content.clone(), content];
        if let Ok(mut opened) = open(&memory, header, RemoteAccess::Write) {
            prop_assert!(which < 2);
            let meant = header.window();
            prop_assert!(opened.len() <= meant.length.min(200));
            if now(opened.write(offset, &from)).is_ok() && count > 0 {
                prop_assert!(offset + count as u64 <= opened.len());
                let start = usize::try_from(meant.address - (BASE + 200 * which as u64) + offset).unwrap();
                expected[which][start..start + count].copy_from_slice(&from);
                prop_assert_eq!(memory.moved().written, count as u64);
            } else {
                prop_assert_eq!(memory.moved().written, 0);
            }
        } else {
            prop_assert_eq!(memory.moved(), Moved::default());
        }
        for (rkey, expected) in keys.into_iter().zip(expected) {
            prop_assert_eq!(memory.content(rkey), expected);
        }
    }
}
