//! The model's histories in front of S3, as far as what S3 offers goes: no versions, no limits of its own, and content of
//! the length that was announced. Conditions are left out: the remote checks those of long content before the content.

use std::sync::Arc;

use ernic_store::{MemoryConfig, MemoryStore, RemoteStore, Store};
use proptest::{prelude::*, test_runner::FileFailurePersistence};

use crate::{
    common::wait,
    model::{BUCKETS, Subject, ops, run},
    server::Server,
};

struct Remote {
    /// Dropped before the server, whose connections it has.
    remote: RemoteStore,
    _server: Server,
}

impl Remote {
    fn new() -> Self {
        let behind = Arc::new(MemoryStore::new(MemoryConfig { capacity: 1 << 30, objects: 10_000 }));
        for bucket in BUCKETS {
            assert!(wait(Store::create_bucket(&*behind, bucket)).unwrap());
        }
        let server = Server::start(behind);
        let remote = RemoteStore::open(&server.url().parse().unwrap(), None).unwrap();
        Self { remote, _server: server }
    }
}

impl Subject for Remote {
    const VERSIONS: bool = false;
    const BUCKET_TAGS: bool = false;
    const MAKES_BUCKETS: bool = false;
    const LIMITS: bool = false;
    const COPIES: bool = false;
    const EXACT_INFO: bool = false;
    const FREE_SIZES: bool = false;
    const FREE_PARTS: bool = false;
    const HOLDS: bool = false;
    const CONDITIONS: bool = false;

    fn store(&self) -> &dyn Store {
        &self.remote
    }
}

/// Failing seeds are kept in the package's `proptest-regressions`. About 40,000 steps.
fn config() -> ProptestConfig {
    let seeds = FileFailurePersistence::Direct("proptest-regressions/remote.txt");
    ProptestConfig { cases: 1000, failure_persistence: Some(Box::new(seeds)), ..Default::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn histories(history in prop::collection::vec(ops(), 1..80)) {
        run(Remote::new(), history);
    }
}
