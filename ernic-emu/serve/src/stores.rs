//! From options to a store, and to the service over it.

use std::sync::Arc;

use anyhow::Context;
#[cfg(not(feature = "remote"))]
use anyhow::bail;
use ernic_store::{DiskConfig, DiskStore, MemoryConfig, MemoryStore, Store};
#[cfg(feature = "remote")]
use ernic_store::{RemoteStore, RemoteUrl};
use s3_proto::{Credentials, S3Builder, S3Config, S3Service};

use crate::backend::{Durability, S3Options, StoreKind};

/// Opens the store that the options name, and makes sure of its bucket.
///
/// # Errors
///
/// The store cannot be opened, or not make the bucket: in one line that names the option.
pub async fn open(s3: &S3Options) -> anyhow::Result<Arc<dyn Store>> {
    let store: Arc<dyn Store> = match &s3.store {
        StoreKind::Memory => Arc::new(MemoryStore::new(MemoryConfig { capacity: s3.size, objects: s3.objects })),
        StoreKind::Disk(path) => {
            let durability = match s3.durability {
                Durability::Full => ernic_store::Durability::Full,
                Durability::Os => ernic_store::Durability::Os,
            };
            let config = DiskConfig { path: path.clone(), capacity: s3.size, objects: s3.objects, durability };
            Arc::new(DiskStore::open(config).context("s3 backend: cannot open the store")?)
        }
        #[cfg(feature = "remote")]
        StoreKind::Remote(url) => return remote(url),
        #[cfg(feature = "remote")]
        StoreKind::Dir(path) => Arc::new(RemoteStore::folder(path, &s3.bucket).context("s3 backend: bad store")?),
        #[cfg(not(feature = "remote"))]
        other => bail!("s3 backend: bad store '{other}': this build does not have it"),
    };
    // It is there already where the store outlives the server.
    store
        .create_bucket(&s3.bucket)
        .await
        .with_context(|| format!("s3 backend: cannot make bucket '{}' in store '{}'", s3.bucket, s3.store))?;
    Ok(store)
}

/// A store in front of the one at `url`. Its buckets are that one's, so none is made here, and it may come up later.
#[cfg(feature = "remote")]
fn remote(url: &str) -> anyhow::Result<Arc<dyn Store>> {
    let url: RemoteUrl = url.parse().context("s3 backend: bad store")?;
    let credentials = ernic_store::Credentials::from_env().context("s3 backend: bad store")?;
    let store = RemoteStore::open(&url, credentials).context("s3 backend: bad store")?;
    Ok(Arc::new(store))
}

/// [`open`] where there is no runtime: waits on this thread.
///
/// # Errors
///
/// Those of [`open`]; and the system refuses what waiting needs.
pub fn open_blocking(s3: &S3Options) -> anyhow::Result<Arc<dyn Store>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().context("cannot wait for the store")?;
    runtime.block_on(open(s3))
}

/// How the service behaves by the options.
#[must_use]
pub fn service_config(s3: &S3Options) -> S3Config {
    S3Config { max_part: s3.maxpart, etag: s3.etag, domain: s3.domain.clone(), web: s3.web, ..S3Config::default() }
}

/// A service over `store` that is still to be set up; with credentials, only for those who sign with them.
#[must_use]
pub fn service(store: Arc<dyn Store>, config: S3Config, credentials: Option<Credentials>) -> S3Builder {
    let builder = S3Service::builder(store, config);
    match credentials {
        Some(credentials) => builder.with_credentials(credentials),
        None => builder,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_has_its_limits_and_its_bucket() {
        let options = S3Options { bucket: "bench".to_owned(), size: 4096, objects: 3, ..S3Options::default() };
        let store = open_blocking(&options).unwrap();
        let usage = store.usage();
        assert_eq!((usage.capacity, usage.objects, usage.bytes), (4096, 0, 0));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let buckets = runtime.block_on(store.list_buckets()).unwrap();
        assert_eq!(buckets.iter().map(|bucket| bucket.name.as_str()).collect::<Vec<_>>(), ["bench"]);
    }

    #[cfg(feature = "remote")]
    #[test]
    fn a_remote_store_needs_no_remote_yet() {
        let of = |url: &str| {
            let store = StoreKind::Remote(url.to_owned());
            open_blocking(&S3Options { store, ..S3Options::default() }).map(|store| store.usage().capacity)
        };
        // Port 1 of this machine: nobody is there.
        assert_eq!(of("s3+http://127.0.0.1:1").unwrap(), u64::MAX);
        let error = format!("{:#}", of("s3+http://user:hush@127.0.0.1:1").unwrap_err());
        assert!(error.starts_with("s3 backend: bad store: bad remote 's3+http://…'"), "{error}");
        assert!(!error.contains("hush"), "{error}");
    }
}
