//! Notify queue entries.

use crate::{U16, U32, U64, wire};

wire! {
    /// Notify queue entry (`struct ionic_notifyq_event`, the header of `union ionic_notifyq_comp`). New when `eid` is
    /// greater than the last one seen; there is no color.
    pub struct NotifyqEntry, 64 {
        /// Event number: 1, 2, 3 …; written last.
        pub eid: U64,
        /// [`EventCode`].
        pub ecode: U16,
        /// Depends on `ecode`.
        pub data: [u8; 54],
    }

    /// Link change (`struct ionic_link_change_event`).
    pub struct LinkChangeEvent, 64 {
        /// Event number.
        pub eid: U64,
        /// [`EventCode::LINK_CHANGE`].
        pub ecode: U16,
        /// [`crate::PortOperStatus`] as a u16.
        pub link_status: U16,
        /// Mb/s.
        pub link_speed: U32,
        /// Reserved.
        pub rsvd: [u8; 48],
    }

    /// The device was or will be reset (`struct ionic_reset_event`).
    pub struct ResetEvent, 64 {
        /// Event number.
        pub eid: U64,
        /// [`EventCode::RESET`].
        pub ecode: U16,
        /// Why.
        pub reset_code: u8,
        /// 0 pending, 1 complete, 2 error.
        pub state: u8,
        /// Reserved.
        pub rsvd: [u8; 52],
    }

    /// What lies in the notify queue's *descriptor* ring (`struct ionic_notifyq_cmd`); never used.
    pub struct NotifyqCmd, 4 {
        /// Unused.
        pub data: U32,
    }
}

/// Notify queue event codes (`enum ionic_notifyq_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventCode(pub u16);

impl EventCode {
    /// Link up or down (`IONIC_EVENT_LINK_CHANGE`).
    pub const LINK_CHANGE: Self = Self(1);
    /// Reset (`IONIC_EVENT_RESET`).
    pub const RESET: Self = Self(2);
    /// Heartbeat (`IONIC_EVENT_HEARTBEAT`).
    pub const HEARTBEAT: Self = Self(3);
    /// Log (`IONIC_EVENT_LOG`).
    pub const LOG: Self = Self(4);
    /// Transceiver (`IONIC_EVENT_XCVR`).
    pub const XCVR: Self = Self(5);
}
