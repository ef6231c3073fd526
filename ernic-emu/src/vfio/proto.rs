//! Messages of the vfio-user protocol 0.1, as bytes.
//!
//! Source of every number: the vfio-user specification (QEMU, `docs/interop/vfio-user.rst`), sections "Header", "Commands" and one
//! per command; flags that it takes from VFIO: `<linux/vfio.h>`. All integers are in the byte order of the host.

use std::fmt;

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Protocol version spoken here: major, minor.
pub const VERSION: (u16, u16) = (0, 1);
/// Bytes in a message header.
pub const HEADER_LEN: usize = 16;
/// Most data bytes in one read or write, of a region or of guest memory: the specification's default for `max_data_xfer_size`.
pub const MAX_DATA_XFER: usize = 1 << 20;
/// Most descriptors in one message; what QEMU takes at most (`VFIO_USER_MAX_MAX_FDS` in its `hw/vfio-user/proxy.c`).
pub const MAX_MSG_FDS: usize = 16;
/// Longest message: a header, the 16 bytes of a region or DMA access, and [`MAX_DATA_XFER`].
pub const MAX_MESSAGE: usize = HEADER_LEN + 16 + MAX_DATA_XFER;
/// Longest JSON in a VERSION message. QEMU's is 177 bytes; nothing sensible is longer than this.
pub const MAX_VERSION_JSON: usize = 4096;

/// Regions of a PCI device (`VFIO_PCI_NUM_REGIONS`): six BARs, expansion ROM, configuration space, VGA.
pub const NUM_REGIONS: u32 = 9;
/// Interrupt indexes of a PCI device (`VFIO_PCI_NUM_IRQS`): INTx, MSI, MSI-X, error, request.
pub const NUM_IRQS: u32 = 5;

/// A command number; unknown ones are values like all others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Command(pub u16);

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl Command {
            $($(#[$doc])* pub const $name: Self = Self($value);)*
        }
        impl fmt::Debug for Command {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name => f.write_str(stringify!($name)),)*
                    Self(other) => write!(f, "command {other}"),
                }
            }
        }
    };
}

commands! {
    /// Versions and capabilities; the first message of a connection.
    VERSION = 1;
    /// Announces a range of guest memory.
    DMA_MAP = 2;
    /// Takes ranges back.
    DMA_UNMAP = 3;
    /// What kind of device it is.
    DEVICE_GET_INFO = 4;
    /// Size and rights of a region.
    DEVICE_GET_REGION_INFO = 5;
    /// Descriptors for parts of a region; not offered here.
    DEVICE_GET_REGION_IO_FDS = 6;
    /// Number of interrupts of an index.
    DEVICE_GET_IRQ_INFO = 7;
    /// Installs, removes and triggers interrupts.
    DEVICE_SET_IRQS = 8;
    /// Reads a region.
    REGION_READ = 9;
    /// Writes a region.
    REGION_WRITE = 10;
    /// Server to client: reads guest memory that has no descriptor.
    DMA_READ = 11;
    /// Server to client: writes guest memory that has no descriptor.
    DMA_WRITE = 12;
    /// Resets the device.
    DEVICE_RESET = 13;
    /// Several writes of at most 8 bytes in one message.
    REGION_WRITE_MULTI = 15;
    /// Migration features; not offered here.
    DEVICE_FEATURE = 16;
    /// Migration data; not offered here.
    MIG_DATA_READ = 17;
    /// Migration data; not offered here.
    MIG_DATA_WRITE = 18;
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Low four bits of [`Header::flags`]: the message is a command.
pub const TYPE_COMMAND: u32 = 0;
/// Low four bits of [`Header::flags`]: the message is a reply.
pub const TYPE_REPLY: u32 = 1;
/// Which bits of [`Header::flags`] hold the type.
pub const TYPE_MASK: u32 = 0xf;
/// Bit of [`Header::flags`]: the sender wants no reply (a posted write).
pub const NO_REPLY: u32 = 1 << 4;
/// Bit of [`Header::flags`] in a reply: the command failed, [`Header::error`] says why.
pub const ERROR: u32 = 1 << 5;

/// What every message starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// Chosen by the sender, echoed in the reply.
    pub id: u16,
    /// What to do; echoed in the reply.
    pub command: Command,
    /// Bytes of the whole message.
    pub size: u32,
    /// Type, [`NO_REPLY`], [`ERROR`].
    pub flags: u32,
    /// An errno in a reply with [`ERROR`].
    pub error: u32,
}

impl Header {
    /// Whether the message is a reply.
    pub fn is_reply(&self) -> bool {
        self.flags & TYPE_MASK == TYPE_REPLY
    }
    /// Whether the message is a command.
    pub fn is_command(&self) -> bool {
        self.flags & TYPE_MASK == TYPE_COMMAND
    }
    /// Whether the sender wants no reply.
    pub fn no_reply(&self) -> bool {
        self.flags & NO_REPLY != 0
    }
    /// Whether the reply reports a failure.
    pub fn is_error(&self) -> bool {
        self.flags & ERROR != 0
    }
}

/// Start of a VERSION body; NUL-terminated JSON may follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Version {
    /// Incompatible changes.
    pub major: u16,
    /// Compatible changes.
    pub minor: u16,
}

/// DMA_MAP body.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaMap {
    /// Bytes in this struct.
    pub argsz: u32,
    /// Bit 0 readable, bit 1 writable ([`crate::mem::Prot`]).
    pub flags: u32,
    /// Offset in the file.
    pub offset: u64,
    /// First guest address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

/// DMA_UNMAP body, and its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaUnmap {
    /// Bytes that the reply may have.
    pub argsz: u32,
    /// [`UNMAP_DIRTY_BITMAP`], [`UNMAP_ALL`].
    pub flags: u32,
    /// First guest address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

/// Flag of [`DmaUnmap`]: also report dirty pages (`VFIO_DMA_UNMAP_FLAG_GET_DIRTY_BITMAP`); not offered here.
pub const UNMAP_DIRTY_BITMAP: u32 = 1 << 0;
/// Flag of [`DmaUnmap`]: every map; address and size are 0 (`VFIO_DMA_UNMAP_FLAG_ALL`).
pub const UNMAP_ALL: u32 = 1 << 1;

/// DEVICE_GET_INFO body, and its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceInfo {
    /// Bytes that the reply may have; in the reply: has.
    pub argsz: u32,
    /// [`DEVICE_RESET`], [`DEVICE_PCI`].
    pub flags: u32,
    /// Regions.
    pub num_regions: u32,
    /// Interrupt indexes.
    pub num_irqs: u32,
}

/// Flag of [`DeviceInfo`]: the device can be reset (`VFIO_DEVICE_FLAGS_RESET`).
pub const DEVICE_RESET: u32 = 1 << 0;
/// Flag of [`DeviceInfo`]: it is a PCI device (`VFIO_DEVICE_FLAGS_PCI`).
pub const DEVICE_PCI: u32 = 1 << 1;

/// DEVICE_GET_REGION_INFO body, and its reply (`struct vfio_region_info`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionInfoMsg {
    /// Bytes that the reply may have; in the reply: has.
    pub argsz: u32,
    /// [`REGION_READ`], [`REGION_WRITE`]. The mmap flag is never set: with one mappable region QEMU makes every write of the device
    /// wait for its reply.
    pub flags: u32,
    /// Region.
    pub index: u32,
    /// Where capabilities start; 0, there are none.
    pub cap_offset: u32,
    /// Bytes.
    pub size: u64,
    /// For mmap only; 0.
    pub offset: u64,
}

/// Flag of [`RegionInfoMsg`]: readable (`VFIO_REGION_INFO_FLAG_READ`).
pub const REGION_READ: u32 = 1 << 0;
/// Flag of [`RegionInfoMsg`]: writable (`VFIO_REGION_INFO_FLAG_WRITE`).
pub const REGION_WRITE: u32 = 1 << 1;

/// DEVICE_GET_IRQ_INFO body, and its reply (`struct vfio_irq_info`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqInfoMsg {
    /// Bytes that the reply may have; in the reply: has.
    pub argsz: u32,
    /// [`IRQ_EVENTFD`]. "No resize" is never set: vectors may be added one by one.
    pub flags: u32,
    /// Interrupt index.
    pub index: u32,
    /// Interrupts of that index.
    pub count: u32,
}

/// Flag of [`IrqInfoMsg`]: signalled by eventfd (`VFIO_IRQ_INFO_EVENTFD`).
pub const IRQ_EVENTFD: u32 = 1 << 0;

/// Start of a DEVICE_SET_IRQS body (`struct vfio_irq_set`); `count` booleans of one byte may follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqSet {
    /// Bytes of this struct and its data.
    pub argsz: u32,
    /// One [`IrqSetFlags`] data bit and one action bit.
    pub flags: u32,
    /// Interrupt index.
    pub index: u32,
    /// First interrupt.
    pub start: u32,
    /// How many.
    pub count: u32,
}

bitflags::bitflags! {
    /// [`IrqSet::flags`] (`VFIO_IRQ_SET_*`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct IrqSetFlags: u32 {
        /// No data: the action is for all of the range. Count 0 with `TRIGGER`: disable all.
        const DATA_NONE = 1 << 0;
        /// One byte per interrupt says whether the action is for it.
        const DATA_BOOL = 1 << 1;
        /// One eventfd per interrupt in the message's descriptors, or none at all to remove them.
        const DATA_EVENTFD = 1 << 2;
        /// Mask. No index offers it.
        const ACTION_MASK = 1 << 3;
        /// Unmask. No index offers it.
        const ACTION_UNMASK = 1 << 4;
        /// Trigger now, or install what the device's trigger signals.
        const ACTION_TRIGGER = 1 << 5;
    }
}

/// Start of REGION_READ and REGION_WRITE bodies and their replies; data may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionAccess {
    /// First byte in the region.
    pub offset: u64,
    /// Region.
    pub region: u32,
    /// Data bytes.
    pub count: u32,
}

/// Start of DMA_READ and DMA_WRITE bodies and their replies; data may follow. QEMU and libvfio-user agree on 8 bytes of count in
/// both; the specification's table of the DMA_WRITE reply says 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaAccess {
    /// First guest address.
    pub address: u64,
    /// Data bytes.
    pub count: u64,
}

/// One write of a REGION_WRITE_MULTI, after a 64-bit count of them.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteOne {
    /// First byte in the region.
    pub offset: u64,
    /// Region.
    pub region: u32,
    /// Data bytes, at most 8.
    pub count: u32,
    /// Data.
    pub data: [u8; 8],
}

const _: () = {
    assert!(size_of::<Header>() == HEADER_LEN);
    assert!(size_of::<DmaMap>() == 32);
    assert!(size_of::<DmaUnmap>() == 24);
    assert!(size_of::<DeviceInfo>() == 16);
    assert!(size_of::<RegionInfoMsg>() == 32);
    assert!(size_of::<IrqInfoMsg>() == 16);
    assert!(size_of::<IrqSet>() == 20);
    assert!(size_of::<RegionAccess>() == 16);
    assert!(size_of::<DmaAccess>() == 16);
    assert!(size_of::<WriteOne>() == 24);
};

/// The JSON of a VERSION message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionData {
    /// What the sender can do.
    #[serde(default)]
    pub capabilities: Capabilities,
}

/// Capabilities known here; others are ignored. An absent one has the specification's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Descriptors that the sender takes per message (default 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_msg_fds: Option<u64>,
    /// Data bytes per message that the sender takes (default 1 MiB).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_data_xfer_size: Option<u64>,
    /// Maps at a time (default 65,535).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_dma_maps: Option<u64>,
    /// Page sizes of maps, or-ed (default 4096).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pgsizes: Option<u64>,
    /// REGION_WRITE_MULTI works (default false).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_multiple: Option<bool>,
}
