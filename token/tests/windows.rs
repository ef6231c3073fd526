//! Arithmetic of windows against the same in 128 bits.

use proptest::{prelude::*, test_runner::FileFailurePersistence};
use rdma_token::Window;

/// Numbers at both ends of the address space, small ones, and any.
fn numbers() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..32, (u64::MAX - 32)..=u64::MAX, any::<u64>()]
}

fn windows() -> impl Strategy<Value = Window> {
    (numbers(), numbers()).prop_map(|(address, length)| Window { address, length })
}

fn start(window: Window) -> u128 {
    window.address.into()
}

/// The address behind the last byte, which may be behind the address space.
fn end(window: Window) -> u128 {
    u128::from(window.address) + u128::from(window.length)
}

const SPACE: u128 = 1 << 64;

/// Failing seeds are kept in the package's `proptest-regressions`.
fn config(cases: u32) -> ProptestConfig {
    let seeds = FileFailurePersistence::Direct("proptest-regressions/windows.txt");
    ProptestConfig { cases, failure_persistence: Some(Box::new(seeds)), ..Default::default() }
}

proptest! {
    #![proptest_config(config(20_000))]

    #[test]
    fn clipping_is_intersection_from_the_start(window in windows(), region in windows()) {
        let end = end(window).min(end(region)).min(SPACE);
        let inside = start(window) >= start(region) && start(window) < end;
        let expected = if window.length == 0 {
            Some(window)
        } else {
            inside.then(|| Window { address: window.address, length: u64::try_from(end - start(window)).unwrap() })
        };
        prop_assert_eq!(window.clip(region), expected);
    }

    #[test]
    fn containing_is_having_every_byte(window in windows(), other in windows()) {
        let inside = start(other) >= start(window) && end(other) <= end(window).min(SPACE);
        prop_assert_eq!(window.contains(other), other.length == 0 || inside);
    }

    #[test]
    fn a_part_stays_inside(window in windows(), offset in numbers(), length in numbers()) {
        let (from, to) = (start(window) + u128::from(offset), start(window) + u128::from(offset) + u128::from(length));
        let expected = (to <= end(window) && from < SPACE).then(|| Window { address: from.try_into().unwrap(), length });
        prop_assert_eq!(window.part(offset, length), expected);
    }

    #[test]
    fn a_part_of_what_was_clipped_is_in_the_region(
        window in windows(), region in windows(), offset in numbers(), length in numbers(),
    ) {
        if let Some(part) = window.clip(region).and_then(|clipped| clipped.part(offset, length)) {
            prop_assert!(region.contains(part));
            prop_assert!(window.contains(part));
            prop_assert!(end(part) <= SPACE);
        }
    }
}

fn w(address: u64, length: u64) -> Window {
    Window { address, length }
}

#[test]
fn clipping_at_the_edges() {
    let region = w(0x1000, 0x100);
    for (window, clipped) in [
        (w(0x1000, 0x100), Some(w(0x1000, 0x100))),
        (w(0x1000, 0x101), Some(w(0x1000, 0x100))),
        (w(0x10ff, 1), Some(w(0x10ff, 1))),
        (w(0x10ff, u64::MAX), Some(w(0x10ff, 1))),
        (w(0x1100, 1), None),
        (w(0x0fff, 2), None),
        (w(0, u64::MAX), None),
        (w(u64::MAX, 0x2000), None),
        (w(0, 0), Some(w(0, 0))),
        (w(0x1100, 0), Some(w(0x1100, 0))),
    ] {
        assert_eq!(window.clip(region), clipped, "{window:x?}");
    }
    let last = w(u64::MAX, 1);
    assert_eq!(w(u64::MAX, u64::MAX).clip(last), Some(last));
    assert_eq!(w(u64::MAX, 2).clip(w(u64::MAX - 1, 10)), Some(last));
    assert_eq!(w(0, 1).clip(w(u64::MAX, 2)), None);
}

#[test]
fn parts_at_the_edges() {
    let window = w(0x1000, 0x100);
    assert_eq!(window.part(0, 0x100), Some(window));
    assert_eq!(window.part(0xff, 1), Some(w(0x10ff, 1)));
    assert_eq!(window.part(0x100, 0), Some(w(0x1100, 0)));
    for (offset, length) in
        [(0, 0x101), (0xff, 2), (0x100, 1), (0x101, 0), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)]
    {
        assert_eq!(window.part(offset, length), None, "{offset:x} {length:x}");
    }
    assert_eq!(w(u64::MAX, 1).part(0, 1), Some(w(u64::MAX, 1)));
    assert_eq!(w(u64::MAX, 2).part(1, 1), None);
}
