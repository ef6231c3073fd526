//! The wire format of the ionic device: what is in its registers, its command mailbox, its rings and the blocks it
//! writes into host memory. Structures and names only; no behaviour. The device (`ernic-emu`) and the test driver
//! (`ionic-driver`) share this crate.
//!
//! Names follow the Linux driver's headers (`drivers/net/ethernet/pensando/ionic/ionic_if.h` and `ionic_regs.h`, Linux
//! 7.3) without the `ionic_` prefix and in Rust case: `struct ionic_q_init_cmd` is [`QInitCmd`]. Every structure is
//! little-endian, has alignment 1 and is checked against a table that `cargo xtask abi-check` makes by compiling those
//! headers (`tests/layout.tsv`); no offset here was typed from memory.
//!
//! Values that a guest chooses are *open* newtypes ([`Opcode`], [`QType`], …): an unknown value is a value, not an error.

// zerocopy's derives make private helper types without `Debug`, at the span of our types.
#![allow(missing_debug_implementations)]

mod cmd;
mod eth;
mod event;
mod ident;
mod info;
mod rdma;
mod regs;

pub use cmd::*;
pub use eth::*;
pub use event::*;
pub use ident::*;
pub use info::*;
pub use rdma::*;
pub use regs::*;

pub use zerocopy::little_endian::{U16, U32, U64};

/// Declares an open enumeration: a transparent integer newtype with named values.
macro_rules! open_enum {
    ($(#[$meta:meta])* $vis:vis struct $name:ident($int:ty) { $($(#[$vmeta:meta])* $value:ident = $num:expr,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[derive(
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        $vis struct $name(pub $int);
        #[allow(missing_docs, reason = "the kernel's names; the type says what they are")]
        impl $name {
            $($(#[$vmeta])* pub const $value: Self = Self($num);)*
            /// Every known value, with its name.
            pub const ALL: &'static [(&'static str, Self)] = &[$((stringify!($value), Self::$value),)*];
            /// The name of a known value.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$value => Some(stringify!($value)),)*
                    _ => None,
                }
            }
        }
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($name), "({:#x})"), self.0),
                }
            }
        }
        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{name} ({})", self.0),
                    None => write!(f, "{}", self.0),
                }
            }
        }
    };
}
pub(crate) use open_enum;

/// Declares a wire structure: `#[repr(C)]`, alignment 1, the zerocopy traits, and an assertion of its size.
macro_rules! wire {
    ($($(#[$meta:meta])* pub struct $name:ident, $size:literal { $($body:tt)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[derive(
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name { $($body)* }
        const _: () = assert!(size_of::<$name>() == $size);
        impl Default for $name {
            /// All bytes zero.
            #[inline]
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    )*};
}
pub(crate) use wire;
