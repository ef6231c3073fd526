//! What completions say went wrong.

use rdma_mummy_sys::ibv_wc_status as wc;

/// Names of the statuses in `verbs.h`, `enum ibv_wc_status`, without `IBV_WC_`; and what each means to a server that reads and
/// writes its clients' memory (InfiniBand Architecture Specification, section 11.6.2, "Completion return status").
const STATUSES: [(u32, &str, &str); 24] = [
    (wc::IBV_WC_SUCCESS, "SUCCESS", "it is done"),
    (wc::IBV_WC_LOC_LEN_ERR, "LOC_LEN_ERR", "more came than there was room for"),
    (wc::IBV_WC_LOC_QP_OP_ERR, "LOC_QP_OP_ERR", "the device refused the work request"),
    (wc::IBV_WC_LOC_EEC_OP_ERR, "LOC_EEC_OP_ERR", "the device refused the work request"),
    (wc::IBV_WC_LOC_PROT_ERR, "LOC_PROT_ERR", "the device does not know the server's buffer"),
    (wc::IBV_WC_WR_FLUSH_ERR, "WR_FLUSH_ERR", "the connection broke before its turn came"),
    (wc::IBV_WC_MW_BIND_ERR, "MW_BIND_ERR", "a memory window could not be bound"),
    (wc::IBV_WC_BAD_RESP_ERR, "BAD_RESP_ERR", "the client's device answered with what is no answer"),
    (wc::IBV_WC_LOC_ACCESS_ERR, "LOC_ACCESS_ERR", "the client wrote outside of the buffer"),
    (
        wc::IBV_WC_REM_INV_REQ_ERR,
        "REM_INV_REQ_ERR",
        "the client's queue pair refuses such requests: is remote access among its flags, and is its MTU the same?",
    ),
    (wc::IBV_WC_REM_ACCESS_ERR, "REM_ACCESS_ERR", "the client's key does not allow it, or does not have these bytes"),
    (wc::IBV_WC_REM_OP_ERR, "REM_OP_ERR", "the client's device failed"),
    (
        wc::IBV_WC_RETRY_EXC_ERR,
        "RETRY_EXC_ERR",
        "the client does not acknowledge: its queue pair does not exist, is not connected, has gone, or has another MTU",
    ),
    (wc::IBV_WC_RNR_RETRY_EXC_ERR, "RNR_RETRY_EXC_ERR", "the client has not posted a receive"),
    (wc::IBV_WC_LOC_RDD_VIOL_ERR, "LOC_RDD_VIOL_ERR", "of another transport"),
    (wc::IBV_WC_REM_INV_RD_REQ_ERR, "REM_INV_RD_REQ_ERR", "of another transport"),
    (wc::IBV_WC_REM_ABORT_ERR, "REM_ABORT_ERR", "the client gave up"),
    (wc::IBV_WC_INV_EECN_ERR, "INV_EECN_ERR", "of another transport"),
    (wc::IBV_WC_INV_EEC_STATE_ERR, "INV_EEC_STATE_ERR", "of another transport"),
    (wc::IBV_WC_FATAL_ERR, "FATAL_ERR", "the device failed"),
    (wc::IBV_WC_RESP_TIMEOUT_ERR, "RESP_TIMEOUT_ERR", "the client does not respond"),
    (wc::IBV_WC_GENERAL_ERR, "GENERAL_ERR", "the device failed"),
    (wc::IBV_WC_TM_ERR, "TM_ERR", "of another transport"),
    (wc::IBV_WC_TM_RNDV_INCOMPLETE, "TM_RNDV_INCOMPLETE", "of another transport"),
];

/// The name of a status, and what it means.
pub(crate) fn describe(status: u32) -> (&'static str, &'static str) {
    let known = STATUSES.iter().find(|(number, ..)| *number == status);
    known.map_or(("UNKNOWN", "a status that verbs.h does not have"), |(_, name, means)| (name, means))
}

/// Its place in a table of counters.
pub(crate) fn index(status: u32) -> usize {
    STATUSES.iter().position(|(number, ..)| *number == status).unwrap_or(STATUSES.len())
}

/// How many places such a table has: one for each status, and one for all others.
pub(crate) const COUNT: usize = STATUSES.len() + 1;

/// The name at each place.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    STATUSES.iter().map(|(_, name, _)| *name).chain(["UNKNOWN"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_name_and_place() {
        // The numbers of verbs.h are those of the InfiniBand specification, from 0 on without a gap.
        for status in 0..24 {
            assert_eq!(index(status), usize::try_from(status).unwrap());
            assert_eq!(names().nth(index(status)), Some(describe(status).0));
        }
        assert_eq!(describe(12).0, "RETRY_EXC_ERR");
        assert_eq!(describe(10).0, "REM_ACCESS_ERR");
        assert_eq!(describe(5).0, "WR_FLUSH_ERR");
        for status in [24, u32::MAX] {
            assert_eq!((index(status), describe(status).0), (COUNT - 1, "UNKNOWN"));
        }
        assert_eq!(names().count(), COUNT);
    }
}
