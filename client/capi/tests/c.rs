//! The calls from C: a program in C against the real service, and the same calls on memory that the service reaches by RDMA.

#![allow(unsafe_code)] // the calls are C's

#[path = "../../tests/common/mod.rs"]
mod common;

use std::{
    env,
    ffi::{CStr, CString, c_char, c_void},
    fs,
    path::Path,
    process::{Command, Output},
    ptr,
    sync::Arc,
};

use common::{BUCKET, PairFault, Server, Setup, Table};
use ernic_client::{Session, memory::Registrar};
use ernic_s3::{
    ErnicBuffer, ErnicCarrier, ErnicProtocol, ErnicSession, ErnicSignal, ErnicStatus, ErnicTransfer, ErnicUpload,
};
use rdma_token::testing::{Fabric, Regions};

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// The checked-in header is the one that cbindgen makes. `ERNIC_WRITE_HEADER=1` writes it.
#[test]
fn the_header_is_current() {
    let config = cbindgen::Config::from_file(Path::new(FOLDER).join("cbindgen.toml")).unwrap();
    let made =
        cbindgen::Builder::new().with_src(Path::new(FOLDER).join("src/lib.rs")).with_config(config).generate().unwrap();
    let mut text = Vec::new();
    made.write(&mut text);
    let path = Path::new(FOLDER).join("include/ernic_s3.h");
    if env::var_os("ERNIC_WRITE_HEADER").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let stored = fs::read_to_string(path).unwrap();
    assert!(stored == String::from_utf8(text).unwrap(), "run this test once with ERNIC_WRITE_HEADER=1");
}

/// Compiles the example and runs it with these arguments. The shared library is where cargo puts those of tests: beside them.
fn example(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("sdk");
    let libraries = env::current_exe().unwrap().parent().unwrap().to_owned();
    let built = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o"])
        .arg(&program)
        .arg(Path::new(FOLDER).join("examples/sdk.c"))
        .arg("-I")
        .arg(Path::new(FOLDER).join("include"))
        .arg("-L")
        .arg(&libraries)
        .arg("-lernic_s3")
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Command::new(program).args(arguments).env("LD_LIBRARY_PATH", libraries).output().unwrap()
}

#[test]
fn the_example_in_c_runs_and_says_what_is_missing() {
    let server = Server::start(Setup::default());
    let endpoint = format!("http://{}", server.address);
    let output = example(&[&endpoint, BUCKET]);
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let lines: Vec<_> = stdout.lines().collect();
    assert!(lines[0].starts_with("13 bytes by HTTP, etag \""), "{stdout}");
    assert_eq!(lines[1..], ["memory"]);
    let metrics = server.service.metrics();
    assert_eq!((metrics.body_reads(), metrics.body_writes()), (1, 1));

    let stderr = |arguments: &[&str]| {
        let output = example(arguments);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let text = stderr(&[&endpoint, "none"]);
    assert!(text.starts_with("upload: refused with status 404 NoSuchBucket"), "{text}");
    assert_eq!(stderr(&["ftp://x", "b"]), "session: bad endpoint 'ftp://x': http://HOST[:PORT] is what can be used\n");
    // What is missing differs from machine to machine.
    let text = stderr(&[&endpoint, BUCKET, "no_such_device"]);
    let missing = ["libibverbs.so.1", "this kernel has no RDMA", "no RDMA device 'no_such_device'"];
    assert!(text.starts_with("session: ") && missing.iter().any(|what| text.contains(what)), "{text}");

    let guide = include_str!("../../../docs/src/guide/sdk.md");
    assert!(guide.contains(&format!("```c\n{}```", include_str!("../examples/sdk.c"))), "the guide shows what has run");
}

fn c(text: &str) -> CString {
    CString::new(text).unwrap()
}

fn last_error() -> String {
    // SAFETY: a C string, which the next failure of this thread ends.
    unsafe { CStr::from_ptr(ernic_s3::ernic_last_error()) }.to_str().unwrap().to_owned()
}

fn etag(transfer: &ErnicTransfer) -> String {
    // SAFETY: it has a zero at its end.
    unsafe { CStr::from_ptr(transfer.etag.as_ptr()) }.to_str().unwrap().to_owned()
}

/// A session with a device whose memory the server reaches, and a buffer of it.
fn handles(server: &Server, device: &Arc<dyn Registrar>, size: u64) -> (*mut ErnicSession, *mut ErnicBuffer) {
    let session = Session::new(server.address.into(), None, Some(Arc::clone(device)), size).unwrap();
    let session = Box::into_raw(Box::new(ErnicSession::from(session)));
    let mut buffer = ptr::null_mut();
    // SAFETY: a handle, and a place for another.
    assert_eq!(unsafe { ernic_s3::ernic_buffer_new(session, &raw mut buffer) }, ErnicStatus::Ok);
    (session, buffer)
}

fn none() -> ErnicTransfer {
    let (carrier, protocol, fell_back) = (ErnicCarrier::Http, ErnicProtocol::None, ErnicSignal::None);
    ErnicTransfer { bytes: 0, carrier, protocol, fell_back, etag: [0; 128] }
}

#[test]
fn calls_go_by_rdma_and_tell_what_carried_the_bytes() {
    let regions = Regions::new();
    let memory = Some(Arc::new(regions.clone()) as _);
    let server = Server::start(Setup { memory, faults: Some("decline@4"), ..Setup::default() });
    let device: Arc<dyn Registrar> = Arc::new(Table::new(&regions));
    let size = 5 << 20;
    let (session, buffer) = handles(&server, &device, size);
    let (bucket, key) = (c(BUCKET), c("key"));
    let (bucket, key) = (bucket.as_ptr(), key.as_ptr());
    let mut done = none();
    let mut text = [0_u8; 6];
    let mut upload: *mut ErnicUpload = ptr::null_mut();
    // SAFETY: handles that live until they are freed below, C strings, and places for what comes.
    unsafe {
        use ernic_s3::*;
        assert_eq!(ernic_buffer_size(buffer), size);
        assert!(ernic_session_rdma_available(session));
        let hello = b"hello, memory";
        assert_eq!(ernic_buffer_write(buffer, 0, hello.as_ptr().cast::<c_void>(), 13), ErnicStatus::Ok);
        assert_eq!(ernic_upload(session, bucket, key, buffer, 13, &raw mut done), ErnicStatus::Ok);
        assert_eq!((done.bytes, done.carrier, done.fell_back), (13, ErnicCarrier::Rdma, ErnicSignal::None));
        assert_eq!(done.protocol, ErnicProtocol::Token);
        let stored = etag(&done);
        assert_eq!(ernic_download(session, bucket, key, buffer, &raw mut done), ErnicStatus::Ok);
        assert_eq!((done.bytes, done.carrier, etag(&done)), (13, ErnicCarrier::Rdma, stored));
        assert_eq!(ernic_download_range(session, bucket, key, 7, 6, buffer, &raw mut done), ErnicStatus::Ok);
        assert_eq!((done.bytes, done.carrier), (6, ErnicCarrier::Rdma));
        assert_eq!(ernic_buffer_read(buffer, 0, text.as_mut_ptr().cast::<c_void>(), 6), ErnicStatus::Ok);
        assert_eq!(&text, b"memory");
        // The fourth is declined.
        assert_eq!(ernic_download_range(session, bucket, key, 0, 5, buffer, &raw mut done), ErnicStatus::Ok);
        assert_eq!((done.bytes, done.carrier, done.fell_back), (5, ErnicCarrier::Http, ErnicSignal::Declined));
        assert!(!ernic_session_rdma_available(session));

        assert_eq!(ernic_upload_create(session, bucket, key, &raw mut upload), ErnicStatus::Ok);
        assert_eq!(ernic_upload_part(session, upload, 1, buffer, size, &raw mut done), ErnicStatus::Ok);
        assert_eq!(ernic_upload_part(session, upload, 2, buffer, 5, ptr::null_mut()), ErnicStatus::Ok);
        assert_eq!(ernic_upload_part(session, upload, 0, buffer, 5, ptr::null_mut()), ErnicStatus::InvalidArgument);
        assert_eq!(last_error(), "bad part number 0: parts are numbered from 1 to 10000");
        assert_eq!(ernic_upload_complete(session, upload), ErnicStatus::Ok);
        ernic_upload_free(upload);
        assert_eq!(ernic_download(session, bucket, key, buffer, ptr::null_mut()), ErnicStatus::TooLong);
        assert_eq!(last_error(), format!("the object of {} bytes is longer than the buffer of {size} bytes", size + 5));
        assert_eq!(ernic_upload_create(session, bucket, key, &raw mut upload), ErnicStatus::Ok);
        assert_eq!(ernic_upload_abort(session, upload), ErnicStatus::Ok);
        ernic_upload_free(upload);
        ernic_buffer_free(buffer);
        ernic_session_close(session);
    }
    let [reads, _, writes, written] = server.counts();
    assert_eq!((reads, writes, written), (3, 3, 13 + size + 5));
    assert_eq!(server.service.metrics().body_reads(), 1);
    assert_eq!(Arc::strong_count(&device), 1, "everything was given back");
}

#[test]
fn a_session_connects_where_it_is_told_to() {
    let regions = Regions::new();
    let fabric = Fabric::new(&regions);
    let server = Server::connecting(&fabric);
    let table = Table::connecting(&regions, &fabric);
    let device: Arc<dyn Registrar> = Arc::new(table.clone());
    let (session, buffer) = handles(&server, &device, 4096);
    let (bucket, key) = (c(BUCKET), c("key"));
    let (bucket, key) = (bucket.as_ptr(), key.as_ptr());
    let mut done = none();
    // SAFETY: handles that live until they are freed below, C strings, and places for what comes.
    unsafe {
        use ernic_s3::*;
        for (protocol, due) in [(2, ErnicProtocol::RcV2), (3, ErnicProtocol::RcV2), (1, ErnicProtocol::Token)] {
            assert_eq!(ernic_session_set_protocol(session, protocol), ErnicStatus::Ok);
            assert_eq!(ernic_upload(session, bucket, key, buffer, 100, &raw mut done), ErnicStatus::Ok);
            assert_eq!((done.bytes, done.carrier, done.protocol), (100, ErnicCarrier::Rdma, due));
            assert_eq!(ernic_download(session, bucket, key, buffer, &raw mut done), ErnicStatus::Ok);
            assert_eq!((done.bytes, done.carrier, done.protocol), (100, ErnicCarrier::Rdma, due));
        }
        for wrong in [0, 4, u32::MAX] {
            assert_eq!(ernic_session_set_protocol(session, wrong), ErnicStatus::InvalidArgument);
            assert_eq!(last_error(), format!("{wrong} is no protocol"));
        }
        assert_eq!(ernic_session_set_protocol(ptr::null(), 1), ErnicStatus::InvalidArgument);
        // A connection that breaks is no matter of memory.
        *table.fault.lock().unwrap() = Some(PairFault::Write);
        assert_eq!(ernic_session_set_protocol(session, 2), ErnicStatus::Ok);
        assert_eq!(ernic_upload(session, bucket, key, buffer, 100, &raw mut done), ErnicStatus::Broken);
        ernic_buffer_free(buffer);
        ernic_session_close(session);
    }
    let [reads, _, writes, _] = server.counts();
    assert_eq!((reads, writes, table.pairs.lock().unwrap().1), (3, 3, 0));
}

#[test]
fn what_is_wrong_is_a_status_and_a_text() {
    let server = Server::start(Setup::default());
    let device: Arc<dyn Registrar> = Arc::new(Table::new(&Regions::new()));
    let (session, buffer) = handles(&server, &device, 4096);
    let (_, other) = handles(&server, &device, 8192);
    let (bucket, key, bad) = (c(BUCKET), c("key"), c("\u{e4}").into_bytes());
    let (bucket, key) = (bucket.as_ptr(), key.as_ptr());
    let latin = CString::new(&bad[..1]).unwrap();
    let (invalid, nobody) = (ErnicStatus::InvalidArgument, ptr::null_mut());
    // SAFETY: handles that live, C strings or NULL, and places for what comes or NULL.
    unsafe {
        use ernic_s3::*;
        assert_eq!(ernic_upload(ptr::null(), bucket, key, buffer, 1, nobody), invalid);
        assert_eq!(last_error(), "session is NULL");
        assert_eq!(ernic_upload(session, ptr::null(), key, buffer, 1, nobody), invalid);
        assert_eq!(last_error(), "bucket is NULL");
        assert_eq!(ernic_upload(session, bucket, latin.as_ptr(), buffer, 1, nobody), invalid);
        assert_eq!(last_error(), "key is not UTF-8");
        assert_eq!(ernic_upload(session, bucket, key, other, 1, nobody), invalid);
        assert_eq!(last_error(), "a buffer of 8192 bytes in a session of 4096 bytes: take one from this session");
        assert_eq!(ernic_buffer_read(buffer, u64::MAX, nobody.cast(), 2), invalid);
        assert_eq!(last_error(), format!("2 bytes at {} of a buffer of 4096 bytes", u64::MAX));
        assert_eq!(ernic_last_http_status(), 0);
        assert_eq!(ernic_download(session, bucket, key, buffer, nobody), ErnicStatus::Refused);
        assert_eq!(ernic_last_http_status(), 404);
        // Nobody but this thread has failed.
        std::thread::spawn(|| assert_eq!((last_error(), ernic_last_http_status()), (String::new(), 0))).join().unwrap();
        ernic_buffer_free(other);
        ernic_buffer_free(ptr::null_mut());

        let open = |endpoint: &str, access: *const c_char, size, out| {
            let null = ptr::null();
            ernic_session_new(c(endpoint).as_ptr(), access, null, null, null, size, out)
        };
        let mut opened = ptr::null_mut();
        assert_eq!(open("http://127.0.0.1:1", ptr::null(), 0, &raw mut opened), invalid);
        assert!(last_error().starts_with("bad session size 0: ") && opened.is_null());
        assert_eq!(open("http://127.0.0.1:1", key, 1, &raw mut opened), invalid);
        assert_eq!(open("http://127.0.0.1:1", ptr::null(), 1, ptr::null_mut()), invalid);
        assert_eq!(open("http://127.0.0.1:1", ptr::null(), 1, &raw mut opened), ErnicStatus::Ok);
        let mut byte = ptr::null_mut();
        assert_eq!(ernic_buffer_new(opened, &raw mut byte), ErnicStatus::Ok);
        assert_eq!(ernic_buffer_data(byte).addr() % 4096, 0);
        assert_eq!(ernic_upload(opened, bucket, key, byte, 1, nobody), ErnicStatus::Connect);
        ernic_buffer_free(byte);
        ernic_session_close(opened);
        ernic_buffer_free(buffer);
        ernic_session_close(session);
    }
}
