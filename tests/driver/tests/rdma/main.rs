//! Lane `rdma`: the RDMA half of the device, driven as `ionic_rdma` and libionic drive it, on both buses.
#![allow(clippy::cast_possible_truncation, missing_debug_implementations, unreachable_pub)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/rdma.rs"]
mod kit;

mod hostile;
mod queues;
mod regions;
mod transfers;
mod verbs;

use common::{SocketBus, device_config};
use kit::Guest;

/// Each test on both buses.
macro_rules! both {
    ($($module:ident: $($name:ident),* $(,)?;)*) => {
        mod in_process {
            $(mod $module { $(
                #[test]
                fn $name() {
                    crate::$module::$name::<crate::common::Direct>();
                }
            )* })*
        }
        mod vfio_user {
            $(mod $module { $(
                #[test]
                fn $name() {
                    crate::$module::$name::<crate::common::SocketBus>();
                }
            )* })*
        }
    };
}

both! {
    regions: start_and_stop, bytes_go_where_the_page_list_says, huge_pages, more_than_a_gigabyte,
        case_12_the_table_is_full, case_12_the_page_tables_are_full, keys_are_never_good_twice, rights_are_kept,
        regions_without_memory, many_at_once;
    queues: queue_pairs_live_through_their_states, a_drained_send_queue_is_told, address_handles, many_come_and_go, numbers_beyond_the_tables,
        requests_that_are_none_fail_aloud, rings_wrap, events_follow_arms, a_full_completion_queue_is_told,
        doorbells_are_their_owners, destroyed_queue_pairs_are_silent;
    verbs: messages_of_every_shape, unsignalled_batches, writes_and_reads, every_error_has_its_status,
        waiting_for_the_other_side, datagrams, atomics, keys_that_come_and_go, solicited_events, turns_are_shared,
        random_requests;
    transfers: the_registration_goes, case_02_the_memory_goes, the_driver_goes, the_function_is_reset;
    hostile: every_opcode_with_hostile_fields, page_lists_outside_memory, rings_that_are_nowhere, ten_thousand_tokens;
}

/// Guest memory in small maps, or without a descriptor: every access crosses maps or goes by message.
#[test]
fn memory_in_pieces_and_by_message() {
    use ionic_driver::vfio_user::{Maps, Writes};
    for maps in [Maps::Pieces(4096), Maps::Pieces(64 << 10), Maps::Messages] {
        // A map for each page of all of it would be more than a guest has.
        let ram = if maps == Maps::Pieces(4096) { 8 << 20 } else { 64 << 20 };
        let mut guest = Guest::on(SocketBus::shaped_with(device_config(), ram, maps, Writes::Posted));
        regions::every_shape(&mut guest, 60_000);
    }
}
