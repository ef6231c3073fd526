//! `ernic-client` for C: the same calls as [`ernic_client::Session`], in a shared library `libernic_s3`.
//!
//! `include/ernic_s3.h` is made of this file; a test compares it.

#![allow(unsafe_code)] // pointers come from C

use std::{
    cell::RefCell,
    ffi::{CStr, CString, c_char, c_void},
    panic::{self, AssertUnwindSafe},
    ptr, slice,
    sync::{Arc, Mutex, MutexGuard, TryLockError},
};

use ernic_client::{
    Buffer, Carrier, ClientError, Protocol, Session, Transfer, Upload,
    memory::{MemoryError, Registrar},
    s3::Endpoint,
    sigv4::Credentials,
    transfer::Signal,
    verbs,
};

/// What a call came to. `ernic_last_error` says it in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum ErnicStatus {
    /// It is done.
    Ok = 0,
    /// An argument is NULL, no UTF-8, or out of its range, or the buffer is not of this session.
    InvalidArgument = 1,
    /// There are no verbs on this platform.
    Unsupported = 2,
    /// No RDMA device that can be used, or no memory.
    Memory = 3,
    /// The session, the buffer or the upload is in use by another thread.
    Busy = 4,
    /// No connection was made.
    Connect = 5,
    /// The connection broke, or nothing came in time.
    Broken = 6,
    /// The answer is not one of S3.
    BadAnswer = 7,
    /// The server said no. `ernic_last_http_status` has the HTTP status.
    Refused = 8,
    /// The answer contradicts itself or the request: nothing is known about the bytes.
    Violation = 9,
    /// The object is longer than the buffer.
    TooLong = 10,
    /// A fault of the library.
    Internal = 11,
}

/// What carried the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum ErnicCarrier {
    /// The body of an HTTP message.
    Http = 0,
    /// RDMA.
    Rdma = 1,
}

/// How bytes go by RDMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum ErnicProtocol {
    /// Not at all: a transfer that went by HTTP.
    None = 0,
    /// A token in the S3 request.
    Token = 1,
    /// hipobj-rc-v2: a connection for each transfer.
    RcV2 = 2,
    /// hipobj-rc-v2 if the server speaks it, and tokens if not. No transfer says that it went so.
    Auto = 3,
}

/// Why a transfer that asked for RDMA went by HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum ErnicSignal {
    /// It did not: it went by RDMA, or there is no device.
    None = 0,
    /// The server declined.
    Declined = 1,
    /// The transfer started and failed.
    Failed = 2,
    /// An error of S3 without a reply.
    NoReply = 3,
}

/// A transfer that was made.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ErnicTransfer {
    /// Bytes that moved.
    pub bytes: u64,
    /// What carried them.
    pub carrier: ErnicCarrier,
    /// By which protocol.
    pub protocol: ErnicProtocol,
    /// Why that was not RDMA.
    pub fell_back: ErnicSignal,
    /// ETag of the object or part, with a zero at its end.
    pub etag: [c_char; 128],
}

/// A connection to a server. Used by one thread at a time; a call while another thread's is under way is `ERNIC_STATUS_BUSY`.
#[derive(Debug)]
pub struct ErnicSession(Mutex<Session>);

/// Memory of a session, registered until it is freed.
#[derive(Debug)]
pub struct ErnicBuffer(Mutex<Buffer>);

/// A multipart upload.
#[derive(Debug)]
pub struct ErnicUpload(Mutex<Upload>);

/// For programs in Rust that hand a session on to C.
impl From<Session> for ErnicSession {
    fn from(session: Session) -> Self {
        Self(Mutex::new(session))
    }
}

/// Why a call failed.
struct Failure {
    status: ErnicStatus,
    /// Of a refusal; 0 of anything else.
    http: u16,
    text: String,
}

impl Failure {
    fn new(status: ErnicStatus, text: impl Into<String>) -> Self {
        Self { status, http: 0, text: text.into() }
    }

    fn argument(text: impl Into<String>) -> Self {
        Self::new(ErnicStatus::InvalidArgument, text)
    }
}

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        let status = match error {
            MemoryError::Platform(_) => ErnicStatus::Unsupported,
            _ => ErnicStatus::Memory,
        };
        Self::new(status, error.to_string())
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let (status, http) = match &error {
            ClientError::Connect { .. } => (ErnicStatus::Connect, 0),
            ClientError::Broken { .. } => (ErnicStatus::Broken, 0),
            ClientError::BadAnswer(_) => (ErnicStatus::BadAnswer, 0),
            ClientError::Refused(refusal) => (ErnicStatus::Refused, refusal.status),
            ClientError::Violation(_) => (ErnicStatus::Violation, 0),
            ClientError::TooLong { .. } => (ErnicStatus::TooLong, 0),
            ClientError::Memory(MemoryError::Platform(_)) => (ErnicStatus::Unsupported, 0),
            // The connection of hipobj-rc-v2.
            ClientError::Memory(MemoryError::Completion { .. } | MemoryError::Silence { .. }) => {
                (ErnicStatus::Broken, 0)
            }
            ClientError::Memory(_) => (ErnicStatus::Memory, 0),
            // What is left is about arguments.
            _ => (ErnicStatus::InvalidArgument, 0),
        };
        Self { status, http, text: error.to_string() }
    }
}

thread_local! {
    /// Text and HTTP status of this thread's last failure.
    static LAST: RefCell<(CString, u16)> = RefCell::new((CString::default(), 0));
}

/// Runs a call: keeps what went wrong, and lets no panic into C.
fn run(call: impl FnOnce() -> Result<(), Failure>) -> ErnicStatus {
    let failure = match panic::catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return ErnicStatus::Ok,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(ErnicStatus::Internal, "the library has panicked; its message is on stderr"),
    };
    // A server's text may have zeros in it.
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    LAST.with(|last| *last.borrow_mut() = (text, failure.http));
    failure.status
}

/// A string.
///
/// # Safety
/// NULL, or a C string that stays as it is for the call.
unsafe fn text<'a>(name: &str, pointer: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    let text = unsafe { optional(name, pointer) }?;
    text.ok_or_else(|| Failure::argument(format!("{name} is NULL")))
}

/// A string that may be NULL.
///
/// # Safety
/// As of [`text`].
unsafe fn optional<'a>(name: &str, pointer: *const c_char) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|_| Failure::argument(format!("{name} is not UTF-8")))
}

/// What is behind a handle, for this call alone.
///
/// # Safety
/// NULL, or a handle that was given out and not freed.
unsafe fn lock<'a, H, T: 'a>(
    name: &str,
    handle: *const H,
    inner: impl FnOnce(&'a H) -> &'a Mutex<T>,
) -> Result<MutexGuard<'a, T>, Failure>
where
    H: 'a,
{
    // SAFETY: the caller's promise. Handles are only ever borrowed shared.
    let handle = unsafe { handle.as_ref() }.ok_or_else(|| Failure::argument(format!("{name} is NULL")))?;
    inner(handle).try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => Failure::new(ErnicStatus::Busy, format!("{name} is in use by another thread")),
        TryLockError::Poisoned(_) => Failure::new(ErnicStatus::Internal, format!("{name} has panicked before")),
    })
}

/// Gives a handle out.
///
/// # Safety
/// NULL, or a place for a pointer.
unsafe fn give<T>(out: *mut *mut T, make: impl FnOnce() -> Result<T, Failure>) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::argument("the place for the result is NULL"));
    }
    // SAFETY: not NULL, and the caller's promise.
    unsafe { out.write(ptr::null_mut()) };
    let handle = Box::into_raw(Box::new(make()?));
    // SAFETY: as above.
    unsafe { out.write(handle) };
    Ok(())
}

/// Takes a handle back.
///
/// # Safety
/// NULL, or a handle that was given out, is not freed, and is in nobody's use.
unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: made by `Box::into_raw` in `give`, and the caller's promise.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// Tells a transfer.
///
/// # Safety
/// NULL, or a place for the structure.
unsafe fn tell(out: *mut ErnicTransfer, transfer: &Transfer) -> Result<(), Failure> {
    if out.is_null() {
        return Ok(());
    }
    let mut etag = [0; 128];
    let bytes = transfer.etag.as_bytes();
    if bytes.len() >= etag.len() {
        return Err(Failure::new(ErnicStatus::BadAnswer, format!("an etag of {} bytes", bytes.len())));
    }
    for (to, from) in etag.iter_mut().zip(bytes) {
        *to = c_char::from_ne_bytes([*from]);
    }
    let carrier = match transfer.carrier {
        Carrier::Rdma => ErnicCarrier::Rdma,
        Carrier::Http => ErnicCarrier::Http,
    };
    let fell_back = match &transfer.fell_back {
        None => ErnicSignal::None,
        Some((Signal::Declined, _)) => ErnicSignal::Declined,
        Some((Signal::Failed, _)) => ErnicSignal::Failed,
        Some((Signal::NoReply, _)) => ErnicSignal::NoReply,
    };
    let protocol = match transfer.protocol {
        None => ErnicProtocol::None,
        Some(Protocol::Token) => ErnicProtocol::Token,
        Some(Protocol::RcV2) => ErnicProtocol::RcV2,
        Some(Protocol::Auto) => ErnicProtocol::Auto,
    };
    // SAFETY: not NULL, and the caller's promise.
    unsafe { out.write(ErnicTransfer { bytes: transfer.bytes, carrier, protocol, fell_back, etag }) };
    Ok(())
}

/// The text of this thread's last failure; empty if there was none. Good until this thread's next failure.
#[unsafe(no_mangle)]
pub extern "C" fn ernic_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().0.as_ptr())
}

/// The HTTP status of this thread's last failure, if that was `ERNIC_STATUS_REFUSED`; 0 otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn ernic_last_http_status() -> u16 {
    LAST.with(|last| last.borrow().1)
}

/// Whether this machine has an RDMA device that can be used. If not, the status and `ernic_last_error` say why.
#[unsafe(no_mangle)]
pub extern "C" fn ernic_rdma_available() -> ErnicStatus {
    run(|| Ok(ernic_client::rdma_available()?))
}

/// Opens a session.
///
/// `endpoint` is `http://HOST[:PORT]`. `access`, `secret` and `region` sign requests; all three are NULL for none. `device` is the
/// name of an RDMA device, empty for the first that there is, or NULL for none: then everything goes by HTTP. `size` is the
/// size of each of its buffers, 1 byte to 1 GiB.
///
/// # Safety
/// Strings are C strings or NULL; `session` is a place for the handle, to be given to `ernic_session_close` in the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_session_new(
    endpoint: *const c_char,
    access: *const c_char,
    secret: *const c_char,
    region: *const c_char,
    device: *const c_char,
    size: u64,
    session: *mut *mut ErnicSession,
) -> ErnicStatus {
    let make = || {
        // SAFETY: the caller's promise.
        let endpoint = unsafe { text("endpoint", endpoint) }?;
        // SAFETY: as above.
        let keys = unsafe { [optional("access", access)?, optional("secret", secret)?, optional("region", region)?] };
        // SAFETY: as above.
        let device = unsafe { optional("device", device) }?;
        let endpoint: Endpoint = endpoint.parse().map_err(|error| Failure::argument(format!("{error}")))?;
        let credentials = match keys {
            [None, None, None] => None,
            [Some(access), Some(secret), Some(region)] => {
                Some(Credentials { access: access.into(), secret: secret.into(), region: region.into() })
            }
            _ => return Err(Failure::argument("access, secret and region are all NULL or none of them is")),
        };
        let device = match device {
            None => None,
            Some(name) => {
                let device = Some(name.to_owned()).filter(|name| !name.is_empty());
                let local = endpoint.local_address();
                let options = verbs::Options { device, local, ..verbs::Options::default() };
                Some(Arc::new(verbs::Device::open(&options)?) as Arc<dyn Registrar>)
            }
        };
        Ok(ErnicSession::from(Session::new(endpoint, credentials, device, size)?))
    };
    // SAFETY: the caller's promise.
    run(|| unsafe { give(session, make) })
}

/// Ends a session; NULL is fine. Its buffers stay registered until they are freed.
///
/// # Safety
/// A handle that is in nobody's use, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_session_close(session: *mut ErnicSession) {
    // SAFETY: the caller's promise.
    unsafe { free(session) }
}

/// Chooses how the session asks for RDMA from the next transfer on: `ERNIC_PROTOCOL_TOKEN`, which is what it does without this,
/// `ERNIC_PROTOCOL_RC_V2` or `ERNIC_PROTOCOL_AUTO`.
///
/// # Safety
/// A handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_session_set_protocol(session: *const ErnicSession, protocol: u32) -> ErnicStatus {
    // Any number may come from C.
    const TOKEN: u32 = ErnicProtocol::Token as u32;
    const RC_V2: u32 = ErnicProtocol::RcV2 as u32;
    const AUTO: u32 = ErnicProtocol::Auto as u32;
    run(|| {
        let protocol = match protocol {
            TOKEN => Protocol::Token,
            RC_V2 => Protocol::RcV2,
            AUTO => Protocol::Auto,
            other => return Err(Failure::argument(format!("{other} is no protocol"))),
        };
        // SAFETY: the caller's promise.
        unsafe { lock("session", session, |session| &session.0) }?.set_protocol(protocol);
        Ok(())
    })
}

/// Whether the session has a device and the server has not declined its last transfer that asked for RDMA. False for NULL, and
/// while another thread uses it.
///
/// # Safety
/// A handle or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_session_rdma_available(session: *const ErnicSession) -> bool {
    // SAFETY: the caller's promise.
    unsafe { lock("session", session, |session| &session.0) }.is_ok_and(|session| session.rdma_available())
}

/// Allocates a buffer of the session's size and registers it. It starts with a page and holds zeros.
///
/// # Safety
/// A handle; `buffer` is a place for the new one, to be given to `ernic_buffer_free` in the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_buffer_new(session: *const ErnicSession, buffer: *mut *mut ErnicBuffer) -> ErnicStatus {
    // SAFETY: the caller's promise.
    let make = || Ok(ErnicBuffer(Mutex::new(unsafe { lock("session", session, |s| &s.0) }?.buffer()?)));
    // SAFETY: the caller's promise.
    run(|| unsafe { give(buffer, make) })
}

/// Gives the registration up and the memory back; NULL is fine.
///
/// # Safety
/// A handle that is in nobody's use, or NULL. The pointer of `ernic_buffer_data` is worthless afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_buffer_free(buffer: *mut ErnicBuffer) {
    // SAFETY: the caller's promise.
    unsafe { free(buffer) }
}

/// The buffer's memory, as many bytes as the session's size, to be filled and read in place while no transfer uses it. NULL if
/// the buffer is NULL, or in use by another thread.
///
/// # Safety
/// A handle or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_buffer_data(buffer: *const ErnicBuffer) -> *mut c_void {
    // SAFETY: the caller's promise.
    let buffer = unsafe { lock("buffer", buffer, |buffer| &buffer.0) };
    let pointer = buffer.ok().and_then(|mut buffer| buffer.pointer());
    pointer.map_or(ptr::null_mut(), |pointer| pointer.as_ptr().cast())
}

/// Bytes of the buffer; 0 if it is NULL, or in use by another thread.
///
/// # Safety
/// A handle or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_buffer_size(buffer: *const ErnicBuffer) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { lock("buffer", buffer, |buffer| &buffer.0) }.map_or(0, |buffer| buffer.size() as u64)
}

/// The range is in the buffer.
fn room(buffer: &Buffer, offset: u64, length: u64) -> Result<(usize, usize), Failure> {
    let (size, end) = (buffer.size() as u64, offset.checked_add(length));
    let ends = end.filter(|end| *end <= size).and_then(|_| Some((offset.try_into().ok()?, length.try_into().ok()?)));
    ends.ok_or_else(|| Failure::argument(format!("{length} bytes at {offset} of a buffer of {size} bytes")))
}

/// Copies `length` bytes to the buffer's byte `offset`.
///
/// # Safety
/// A handle; `bytes` has `length` bytes, none of them in the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_buffer_write(
    buffer: *const ErnicBuffer,
    offset: u64,
    bytes: *const c_void,
    length: u64,
) -> ErnicStatus {
    run(|| {
        // SAFETY: the caller's promise.
        let mut buffer = unsafe { lock("buffer", buffer, |buffer| &buffer.0) }?;
        let (offset, length) = room(&buffer, offset, length)?;
        if bytes.is_null() {
            return Err(Failure::argument("bytes is NULL"));
        }
        // SAFETY: not NULL, and the caller's promise.
        buffer.write(offset, unsafe { slice::from_raw_parts(bytes.cast(), length) });
        Ok(())
    })
}

/// Copies `length` bytes from the buffer's byte `offset`.
///
/// # Safety
/// A handle; `bytes` has room for `length` bytes, none of it in the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_buffer_read(
    buffer: *const ErnicBuffer,
    offset: u64,
    bytes: *mut c_void,
    length: u64,
) -> ErnicStatus {
    run(|| {
        // SAFETY: the caller's promise.
        let buffer = unsafe { lock("buffer", buffer, |buffer| &buffer.0) }?;
        let (offset, length) = room(&buffer, offset, length)?;
        if bytes.is_null() {
            return Err(Failure::argument("bytes is NULL"));
        }
        // SAFETY: not NULL, and the caller's promise. What the memory holds before may not be initialised: it is, with zeros.
        let into = unsafe {
            ptr::write_bytes(bytes.cast::<u8>(), 0, length);
            slice::from_raw_parts_mut(bytes.cast(), length)
        };
        buffer.read(offset, into);
        Ok(())
    })
}

/// Stores the first `length` bytes of the buffer as an object.
///
/// # Safety
/// Handles, C strings, and a place for the result or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_upload(
    session: *const ErnicSession,
    bucket: *const c_char,
    key: *const c_char,
    buffer: *const ErnicBuffer,
    length: u64,
    transfer: *mut ErnicTransfer,
) -> ErnicStatus {
    // SAFETY: the caller's promise.
    run(|| unsafe {
        let (bucket, key) = (text("bucket", bucket)?, text("key", key)?);
        let mut session = lock("session", session, |session| &session.0)?;
        let buffer = lock("buffer", buffer, |buffer| &buffer.0)?;
        tell(transfer, &session.upload(bucket, key, &buffer, length)?)
    })
}

/// Fetches a whole object into the beginning of the buffer. `ERNIC_STATUS_TOO_LONG` if it has no room there.
///
/// # Safety
/// As of `ernic_upload`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_download(
    session: *const ErnicSession,
    bucket: *const c_char,
    key: *const c_char,
    buffer: *const ErnicBuffer,
    transfer: *mut ErnicTransfer,
) -> ErnicStatus {
    // SAFETY: the caller's promise.
    run(|| unsafe {
        let (bucket, key) = (text("bucket", bucket)?, text("key", key)?);
        let mut session = lock("session", session, |session| &session.0)?;
        let mut buffer = lock("buffer", buffer, |buffer| &buffer.0)?;
        tell(transfer, &session.download(bucket, key, &mut buffer)?)
    })
}

/// Fetches `length` bytes of an object from its byte `offset` on into the beginning of the buffer. All of them must be there.
///
/// # Safety
/// As of `ernic_upload`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_download_range(
    session: *const ErnicSession,
    bucket: *const c_char,
    key: *const c_char,
    offset: u64,
    length: u64,
    buffer: *const ErnicBuffer,
    transfer: *mut ErnicTransfer,
) -> ErnicStatus {
    // SAFETY: the caller's promise.
    run(|| unsafe {
        let (bucket, key) = (text("bucket", bucket)?, text("key", key)?);
        let mut session = lock("session", session, |session| &session.0)?;
        let mut buffer = lock("buffer", buffer, |buffer| &buffer.0)?;
        tell(transfer, &session.download_range(bucket, key, offset, length, &mut buffer)?)
    })
}

/// Begins a multipart upload.
///
/// # Safety
/// A handle, C strings, and a place for the new handle, to be given to `ernic_upload_free` in the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_upload_create(
    session: *const ErnicSession,
    bucket: *const c_char,
    key: *const c_char,
    upload: *mut *mut ErnicUpload,
) -> ErnicStatus {
    // SAFETY: the caller's promise.
    let make = || unsafe {
        let (bucket, key) = (text("bucket", bucket)?, text("key", key)?);
        let mut session = lock("session", session, |session| &session.0)?;
        Ok(ErnicUpload(Mutex::new(session.create_upload(bucket, key)?)))
    };
    // SAFETY: the caller's promise.
    run(|| unsafe { give(upload, make) })
}

/// Stores the first `length` bytes of the buffer as part `number`, 1 to 10000.
///
/// # Safety
/// Handles, and a place for the result or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_upload_part(
    session: *const ErnicSession,
    upload: *const ErnicUpload,
    number: u32,
    buffer: *const ErnicBuffer,
    length: u64,
    transfer: *mut ErnicTransfer,
) -> ErnicStatus {
    // SAFETY: the caller's promise.
    run(|| unsafe {
        let mut session = lock("session", session, |session| &session.0)?;
        let mut upload = lock("upload", upload, |upload| &upload.0)?;
        let buffer = lock("buffer", buffer, |buffer| &buffer.0)?;
        tell(transfer, &session.upload_part(&mut upload, number, &buffer, length)?)
    })
}

/// Makes an object of the parts.
///
/// # Safety
/// Handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_upload_complete(
    session: *const ErnicSession,
    upload: *const ErnicUpload,
) -> ErnicStatus {
    // SAFETY: the caller's promise.
    run(|| unsafe {
        let mut session = lock("session", session, |session| &session.0)?;
        session.complete_upload(&*lock("upload", upload, |upload| &upload.0)?)?;
        Ok(())
    })
}

/// Gives the upload up on the server, with all of its parts.
///
/// # Safety
/// Handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_upload_abort(session: *const ErnicSession, upload: *const ErnicUpload) -> ErnicStatus {
    // SAFETY: the caller's promise.
    run(|| unsafe {
        let mut session = lock("session", session, |session| &session.0)?;
        Ok(session.abort_upload(&*lock("upload", upload, |upload| &upload.0)?)?)
    })
}

/// Frees the handle; NULL is fine. Nothing changes on the server.
///
/// # Safety
/// A handle that is in nobody's use, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ernic_upload_free(upload: *mut ErnicUpload) {
    // SAFETY: the caller's promise.
    unsafe { free(upload) }
}
