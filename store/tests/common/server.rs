//! An S3 server on a loopback port, in a thread of its own, which can be ended at any moment and started again.

#![allow(dead_code)]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
};

use ernic_store::Store;
use hyper_util::rt::TokioIo;
use s3_proto::{S3Config, S3Service};
use tokio::{net::TcpListener, runtime::Builder, sync::oneshot, task::LocalSet};

pub struct Server {
    pub address: SocketAddr,
    pub service: S3Service,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    pub connections: Arc<AtomicU64>,
}

impl Server {
    /// Serves `store` on a free port.
    pub fn start(store: Arc<dyn Store>) -> Self {
        Self::start_at(store, "127.0.0.1:0".parse().unwrap())
    }

    pub fn start_at(store: Arc<dyn Store>, address: SocketAddr) -> Self {
        let service = S3Service::new(store, S3Config::default());
        let listener = std::net::TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (end, ended) = oneshot::channel();
        let connections = Arc::new(AtomicU64::new(0));
        let (serve, count) = (service.clone(), Arc::clone(&connections));
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            // Dropping the set drops all connections, wherever they are.
            let local = LocalSet::new();
            local.block_on(&runtime, async {
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::task::spawn_local(async move {
                    loop {
                        let (stream, _) = listener.accept().await.unwrap();
                        count.fetch_add(1, Relaxed);
                        let connection = serve.serve(TokioIo::new(stream));
                        tokio::task::spawn_local(async move {
                            let _ = connection.await;
                        });
                    }
                });
                let _ = ended.await;
            });
        });
        Self { address, service, end: Some(end), thread: Some(thread), connections }
    }

    /// A URL for `RemoteStore`.
    pub fn url(&self) -> String {
        format!("s3+http://{}", self.address)
    }

    /// Ends the server in the middle of whatever it does.
    pub fn kill(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
