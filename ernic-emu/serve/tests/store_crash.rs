//! Lane `store-crash`: `kill -9` of a server with a disk store, over and over, under load. What was acknowledged is there,
//! byte for byte; what was not is wholly there or not at all; and the room of what came to nothing comes back.

mod common;

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use common::{Scratch, Server, TIMEOUT};
use ernic_load::{Book, CLIENTS, Event, Random, check, clear, files, load, settles};

fn start(scratch: &Scratch, store: &Path) -> (Server, SocketAddr) {
    let backend = format!("s3:size=1G,store=disk:{}", store.display());
    let mut server = Server::start(scratch, &["serve", "--listen", "127.0.0.1:0", "-b", &backend]);
    let line = server.line(" bytes at http://");
    let address = line.split("http://").nth(1).and_then(|rest| rest.strip_suffix('/')).expect("an address");
    (server, address.parse().expect("an address"))
}

/// The server has what the book says, and nothing else.
fn verify(address: SocketAddr, store: &Path, book: &mut Book, round: usize) {
    check(address, book).and_then(|()| settles(store, book)).unwrap_or_else(|error| panic!("round {round}: {error:#}"));
}

fn crashes(rounds: usize) {
    let scratch = Scratch::new();
    let store = scratch.path().join("store");
    let mut random = Random(0x00c0_ffee);
    let mut book = Book::default();
    let mut total = 0;
    for round in 0..rounds {
        let (mut server, address) = start(&scratch, &store);
        verify(address, &store, &mut book, round);
        let shared = Mutex::new(std::mem::take(&mut book));
        let (acknowledged, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let note = |event: Event| {
            shared.lock().expect("no client panics here").note(&event)?;
            if let Event::Done(_) = event {
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        // The end comes after so many answers, and a bit: anywhere in the work of the others.
        let (enough, bit) = (random.below(60), Duration::from_micros(random.below(20_000) as u64));
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let seed = (round * CLIENTS + client) as u64 * 7919;
                let (note, stop) = (&note, &stop);
                scope.spawn(move || load(address, client, seed, note, stop).expect("right answers"));
            }
            let begin = Instant::now();
            while acknowledged.load(Ordering::Relaxed) < enough {
                assert!(begin.elapsed() < TIMEOUT, "only {acknowledged:?} of {enough} answers");
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(bit);
            server.kill();
            stop.store(true, Ordering::Relaxed);
        });
        total += acknowledged.into_inner();
        book = shared.into_inner().expect("no client has panicked");
    }
    assert!(total >= rounds, "the load was none: {total} answers in {rounds} rounds");
    let (mut server, address) = start(&scratch, &store);
    verify(address, &store, &mut book, rounds);
    clear(address, &mut book).expect("deletes");
    verify(address, &store, &mut book, rounds);
    assert_eq!(server.terminate().code(), Some(0));
    // What is left is the tables, with nothing in them.
    let (bytes, number) = files(&store).expect("a folder");
    assert!(bytes < 32 << 20, "{bytes} bytes in {number} files of an empty store");
    println!("{rounds} kills, {total} answers");
}

#[test]
fn nothing_that_was_acknowledged_is_lost_in_20_kills() {
    crashes(20);
}

#[test]
#[ignore = "takes minutes: cargo xtask test --full"]
fn nothing_that_was_acknowledged_is_lost_in_200_kills() {
    crashes(200);
}
