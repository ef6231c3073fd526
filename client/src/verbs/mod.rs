//! Memory of a verbs device, by way of libibverbs.
//!
//! The library is loaded when a device is opened: a program that uses none starts without it, and says what is missing when it
//! does (`docs/decisions/004-verbs-binding.md`).
#![allow(unsafe_code)] // a C library is loaded and called, and memory is shared with a device

mod abi;
mod pair;

use std::{
    env,
    ffi::{CStr, c_int, c_uint, c_void},
    fmt, io,
    mem::ManuallyDrop,
    net::IpAddr,
    ptr::{self, NonNull},
    sync::Arc,
};

use crate::{
    gid::{self, GidEntry, GidType},
    mapping::Mapping,
    memory::{Layout, MemoryError, Port, QueuePair, Region, Registrar},
};

/// Name of the library; the number is its ABI.
const LIBRARY: &str = "libibverbs.so.1";

/// `ENODATA` of Linux, which an empty entry of a GID table gives.
const ENODATA: i32 = 61;

/// Most entries of a GID table that are asked for. Real ones have 16 to 1,024.
const MAX_GIDS: u32 = 4096;

/// Which device, and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Name of the device; the first one that there is, if none.
    pub device: Option<String>,
    /// Number of its port, from 1.
    pub port: u8,
    /// Index in the port's GID table; chosen by [`gid::choose`], if none.
    pub gid_index: Option<u32>,
    /// The address from which this host reaches the server.
    pub local: Option<IpAddr>,
}

impl Default for Options {
    fn default() -> Self {
        Self { device: None, port: 1, gid_index: None, local: None }
    }
}

/// An open device, with a protection domain, and a reliably connected queue pair in INIT: the state in which hipObject's waits
/// until it has read the reply (wire document, section 5).
#[derive(Debug)]
pub struct Device {
    inner: Arc<Inner>,
    name: String,
    gid: GidEntry,
    port: Port,
    /// `enum ibv_mtu` of the port.
    mtu: c_uint,
}

/// What libibverbs has given. Dropped in the order in which its documentation wants it.
struct Inner {
    functions: abi::Functions,
    context: NonNull<abi::Context>,
    pd: *mut abi::Pd,
    cq: *mut abi::Cq,
    qp: *mut abi::Qp,
}

// SAFETY: libibverbs may be called from any thread, on the same objects at once ("libibverbs is fully thread safe", rdma-core,
// Documentation/libibverbs.md). The pointers are only given to it.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // What cannot be destroyed stays until the process ends; there is nobody to tell.
        // SAFETY: each object was made by the library, is destroyed once, and after those that use it: regions hold an `Arc` of
        // this.
        unsafe {
            if !self.qp.is_null() {
                (self.functions.ibv_destroy_qp)(self.qp);
            }
            if !self.cq.is_null() {
                (self.functions.ibv_destroy_cq)(self.cq);
            }
            if !self.pd.is_null() {
                (self.functions.ibv_dealloc_pd)(self.pd);
            }
            (self.functions.ibv_close_device)(self.context.as_ptr());
        }
    }
}

/// Whether verbs exist where this program runs, with the structures that [`abi`] declares: on Linux, with 64-bit pointers.
fn supported(os: &str, bits: u32) -> Result<(), MemoryError> {
    if os == "linux" && bits == 64 { Ok(()) } else { Err(MemoryError::Platform(format!("{os}, {bits} bits"))) }
}

/// What the loader says: the error itself only says which of its functions failed.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// A verb that returns a pointer has failed: `errno` says why.
fn failed(verb: &'static str) -> MemoryError {
    verb_error(verb, io::Error::last_os_error())
}

/// A verb that returns an error number.
fn status(verb: &'static str, number: c_int) -> Result<(), MemoryError> {
    match number {
        0 => Ok(()),
        // The documented errors are positive; some providers give -1 and set `errno`.
        -1 => Err(failed(verb)),
        number => Err(verb_error(verb, io::Error::from_raw_os_error(number.abs()))),
    }
}

fn verb_error(verb: &'static str, source: io::Error) -> MemoryError {
    let hint = match (verb, source.kind()) {
        ("ibv_reg_mr", io::ErrorKind::OutOfMemory) => {
            "; raise the limit of locked memory (ulimit -l), or transfer less"
        }
        ("ibv_open_device", io::ErrorKind::PermissionDenied) => "; may this user open /dev/infiniband/uverbs*?",
        // libibverbs finds no RDMA in the kernel.
        ("ibv_get_device_list", io::ErrorKind::Unsupported) => {
            "; this kernel has no RDMA: modprobe ib_uverbs and, for the emulated NIC, ionic_rdma"
        }
        _ => "",
    };
    MemoryError::Verb { verb, source, hint }
}

impl Device {
    /// Opens a device. Errors: all kinds but [`MemoryError::Map`] and [`MemoryError::Unaligned`].
    pub fn open(options: &Options) -> Result<Self, MemoryError> {
        supported(env::consts::OS, usize::BITS)?;
        // SAFETY: the initialisers of libibverbs only set up its own tables.
        let library = unsafe { libloading::Library::new(LIBRARY) };
        // SAFETY: the name, with its ABI number, is libibverbs'.
        let functions = library.and_then(|library| unsafe { abi::Functions::find(library) });
        let functions = functions.map_err(|error| MemoryError::Library(reason(&error)))?;
        let (name, context) = open(&functions, options.device.as_deref())?;
        let null = ptr::null_mut();
        let mut inner = Inner { functions, context, pd: null, cq: ptr::null_mut(), qp: ptr::null_mut() };
        let attributes = inner.port(&name, options.port)?;
        let gid = inner.gid(&name, options, &attributes)?;
        inner.queue_pair(options.port)?;
        // SAFETY: the queue pair was made, and its number does not change.
        let qpn = unsafe { (*inner.qp).qp_num };
        let port = Port { qpn, gid: gid.gid, number: options.port, lid: attributes.lid };
        Ok(Self { inner: Arc::new(inner), name, gid, port, mtu: attributes.active_mtu })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address that goes into tokens.
    #[must_use]
    pub fn gid(&self) -> GidEntry {
        self.gid
    }
}

/// Opens the device of that name, or the first one.
fn open(functions: &abi::Functions, wanted: Option<&str>) -> Result<(String, NonNull<abi::Context>), MemoryError> {
    let mut count = 0;
    // SAFETY: the list has `count` devices and is freed below.
    let list = unsafe { (functions.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(failed("ibv_get_device_list"));
    }
    let mut names = Vec::new();
    let mut opened = None;
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: within the list; the name is a C string that lives as long as the list.
        let (device, name) = unsafe {
            let device = *list.add(index);
            let name = (functions.ibv_get_device_name)(device);
            (device, if name.is_null() { String::new() } else { CStr::from_ptr(name).to_string_lossy().into_owned() })
        };
        if opened.is_none() && wanted.is_none_or(|wanted| wanted == name) {
            // SAFETY: a device of the list; the context is closed by `Inner`, and outlives the list (ibv_get_device_list(3)).
            let context = NonNull::new(unsafe { (functions.ibv_open_device)(device) });
            opened = Some(context.ok_or_else(|| failed("ibv_open_device")).map(|context| (name.clone(), context)));
        }
        names.push(name);
    }
    // SAFETY: the library's list, freed once.
    unsafe { (functions.ibv_free_device_list)(list) };
    opened.unwrap_or_else(|| {
        let found = match names.is_empty() {
            true => "is its driver loaded (modprobe ib_uverbs and, for the emulated NIC, ionic_rdma)? See ibv_devices"
                .to_owned(),
            false => format!("there is {}", names.join(", ")),
        };
        Err(MemoryError::Device { wanted: wanted.map(str::to_owned), found })
    })
}

impl Inner {
    /// Asks for a port, which must be up.
    fn port(&self, device: &str, port: u8) -> Result<abi::PortAttr, MemoryError> {
        let error = |reason| MemoryError::Port { device: device.to_owned(), port, reason };
        let mut attributes = abi::PortAttr::default();
        // SAFETY: the exported function writes the members that it has had since version 1.1, which are among these.
        let result = unsafe { (self.functions.ibv_query_port)(self.context.as_ptr(), port, &raw mut attributes) };
        status("ibv_query_port", result).map_err(|source| error(source.to_string()))?;
        if !abi::PORT_ACTIVE.contains(&attributes.state) {
            let state = attributes.state;
            return Err(error(format!("the port is not active (state {state}); set its network interface up")));
        }
        Ok(attributes)
    }

    /// Reads the port's GID table and chooses.
    fn gid(&self, device: &str, options: &Options, attributes: &abi::PortAttr) -> Result<GidEntry, MemoryError> {
        let mut table = Vec::new();
        for index in 0..u32::try_from(attributes.gid_tbl_len).unwrap_or(0).min(MAX_GIDS) {
            let mut entry = abi::GidEntry::default();
            let (port, size) = (options.port.into(), size_of::<abi::GidEntry>());
            // SAFETY: the function writes at most `size` bytes to `entry`.
            let result = unsafe {
                (self.functions._ibv_query_gid_ex)(self.context.as_ptr(), port, index, &raw mut entry, 0, size)
            };
            match status("ibv_query_gid_ex", result) {
                Ok(()) => table.push(GidEntry { index, gid: entry.gid.0, kind: GidType::new(entry.gid_type) }),
                Err(MemoryError::Verb { source, .. }) if source.raw_os_error() == Some(ENODATA) => {}
                Err(error) => return Err(error),
            }
        }
        let chosen = match options.gid_index {
            Some(index) => table.iter().find(|entry| entry.index == index).copied(),
            None if attributes.link_layer == abi::LINK_LAYER_INFINIBAND => table.first().copied(),
            None => gid::choose(&table, options.local),
        };
        chosen.ok_or_else(|| {
            let rows: Vec<_> = table.iter().map(ToString::to_string).collect();
            MemoryError::Gid {
                device: device.to_owned(),
                port: options.port,
                reason: match options.gid_index {
                    Some(index) => format!("GID {index} is empty"),
                    None => "no RoCE v2 GID with an address that is not link-local; give its interface an IPv4 address"
                        .to_owned(),
                },
                table: if rows.is_empty() { "empty".to_owned() } else { rows.join(", ") },
            }
        })
    }

    /// Makes a protection domain, a completion queue and a queue pair, and moves it to INIT.
    fn queue_pair(&mut self, port: u8) -> Result<(), MemoryError> {
        let made = |null: bool, verb| if null { Err(failed(verb)) } else { Ok(()) };
        // SAFETY: an open context.
        self.pd = unsafe { (self.functions.ibv_alloc_pd)(self.context.as_ptr()) };
        made(self.pd.is_null(), "ibv_alloc_pd")?;
        // SAFETY: an open context; one entry, no user context, no channel, the first vector.
        self.cq =
            unsafe { (self.functions.ibv_create_cq)(self.context.as_ptr(), 1, ptr::null_mut(), ptr::null_mut(), 0) };
        made(self.cq.is_null(), "ibv_create_cq")?;
        self.qp = self.create_qp(self.cq, port)?;
        Ok(())
    }

    /// Makes a reliably connected queue pair with room for one work request each way, and moves it to INIT.
    fn create_qp(&self, cq: *mut abi::Cq, port: u8) -> Result<*mut abi::Qp, MemoryError> {
        let mut init = abi::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: ptr::null_mut(),
            cap: abi::QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
            qp_type: abi::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the domain and the queue are of this context; `init` is whole.
        let qp = unsafe { (self.functions.ibv_create_qp)(self.pd, &raw mut init) };
        if qp.is_null() {
            return Err(failed("ibv_create_qp"));
        }
        let access = abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_WRITE;
        let mut attributes = abi::QpAttr {
            qp_state: abi::QPS_INIT,
            qp_access_flags: c_uint::try_from(access).unwrap_or_default(),
            port_num: port,
            ..abi::QpAttr::default()
        };
        let mask = abi::QP_STATE | abi::QP_ACCESS_FLAGS | abi::QP_PKEY_INDEX | abi::QP_PORT;
        // SAFETY: the queue pair that was just made; only the members that the mask names are read.
        let moved = status("ibv_modify_qp", unsafe { (self.functions.ibv_modify_qp)(qp, &raw mut attributes, mask) });
        if moved.is_err() {
            // SAFETY: nobody else has it.
            unsafe { (self.functions.ibv_destroy_qp)(qp) };
        }
        moved.map(|()| qp)
    }
}

impl Registrar for Device {
    fn port(&self) -> Port {
        self.port
    }

    fn register(&self, layout: Layout) -> Result<Box<dyn Region>, MemoryError> {
        let Layout { length, offset, rights } = layout;
        let memory = Mapping::new(length, offset)?;
        let mut access = abi::ACCESS_LOCAL_WRITE;
        if rights.remote_read {
            access |= abi::ACCESS_REMOTE_READ;
        }
        if rights.remote_write {
            access |= abi::ACCESS_REMOTE_WRITE;
        }
        let pointer = memory.start().as_ptr().cast::<c_void>();
        // SAFETY: the bytes are mapped, and stay so until they have been deregistered.
        let mr = unsafe { (self.inner.functions.ibv_reg_mr)(self.inner.pd, pointer, length, access) };
        let mr = NonNull::new(mr).ok_or_else(|| failed("ibv_reg_mr"))?;
        // SAFETY: the library wrote the structure and keeps it until the region is deregistered.
        let (lkey, rkey) = unsafe { (mr.as_ref().lkey, mr.as_ref().rkey) };
        let device = Arc::clone(&self.inner);
        Ok(Box::new(Registered { device, mr: Some(mr), memory: ManuallyDrop::new(memory), lkey, rkey }))
    }

    fn queue_pair(&self) -> Result<Box<dyn QueuePair>, MemoryError> {
        // A table of GIDs has 256 entries at most where this number has 8 bits.
        let gid_index = u8::try_from(self.gid.index).map_err(|_| MemoryError::Gid {
            device: self.name.clone(),
            port: self.port.number,
            reason: format!("GID {} cannot be connected from: 255 is the last that can", self.gid.index),
            table: self.gid.to_string(),
        })?;
        let path = pair::Path { port: self.port, gid_index, mtu: self.mtu };
        Ok(Box::new(pair::Pair::new(&self.inner, path)?))
    }
}

/// A registered mapping of anonymous memory.
struct Registered {
    device: Arc<Inner>,
    mr: Option<NonNull<abi::Mr>>,
    /// Unmapped only once it is not registered any more.
    memory: ManuallyDrop<Mapping>,
    lkey: u32,
    rkey: u32,
}

// SAFETY: the mapping belongs to this structure alone, and libibverbs may be called from any thread.
unsafe impl Send for Registered {}

impl Region for Registered {
    fn address(&self) -> u64 {
        self.memory.start().addr().get() as u64
    }

    fn length(&self) -> usize {
        self.memory.length()
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }

    fn lkey(&self) -> u32 {
        self.lkey
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.memory.write(offset, bytes);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.memory.read(offset, into);
    }

    fn pointer(&mut self) -> Option<NonNull<u8>> {
        Some(self.memory.start())
    }

    fn deregister(&mut self) -> Result<(), MemoryError> {
        let Some(mr) = self.mr else { return Ok(()) };
        // SAFETY: registered, and deregistered once: it is forgotten below where that succeeds.
        let result = unsafe { (self.device.functions.ibv_dereg_mr)(mr.as_ptr()) };
        status("ibv_dereg_mr", result)?;
        self.mr = None;
        Ok(())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.deregister().is_ok() {
            // SAFETY: dropped once, here, and no device may reach the memory any more. Where that failed, one may: then the mapping
            // stays.
            unsafe { ManuallyDrop::drop(&mut self.memory) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said() {
        // Where there is no library or no device, which is usual where tests run, the message says so. Where there is one, this
        // name is not among them.
        let options = Options { device: Some("no_such_device".into()), ..Options::default() };
        let text = Device::open(&options).unwrap_err().to_string();
        // The loader names the file.
        let library =
            text.starts_with("cannot use libibverbs.so.1: libibverbs.so.1") && text.contains("install rdma-core");
        let device = text.starts_with("no RDMA device 'no_such_device'; ");
        assert!(library || device || text.starts_with("ibv_get_device_list failed: "), "{text}");
    }

    #[test]
    fn platforms_without_verbs_are_refused_by_name() {
        assert!(supported("linux", 64).is_ok());
        for (os, bits) in [("macos", 64), ("windows", 64), ("linux", 32)] {
            let text = supported(os, bits).unwrap_err().to_string();
            let due = format!("RDMA is not supported on this platform ({os}, {bits} bits): ");
            assert!(text.starts_with(&due), "{text}");
        }
    }

    #[test]
    fn failed_verbs_say_why_and_what_to_do() {
        assert!(status("ibv_query_port", 0).is_ok());
        let text = status("ibv_modify_qp", 22).unwrap_err().to_string();
        assert!(text.starts_with("ibv_modify_qp failed: Invalid argument"), "{text}");
        // A provider that negates it says the same.
        assert_eq!(status("ibv_modify_qp", -22).unwrap_err().to_string(), text);
        let text = verb_error("ibv_reg_mr", io::Error::from_raw_os_error(12)).to_string();
        assert!(text.contains("ulimit -l"), "{text}");
        let text = verb_error("ibv_get_device_list", io::Error::from_raw_os_error(38)).to_string();
        assert!(text.contains("modprobe ib_uverbs"), "{text}");
        assert!(!verb_error("ibv_create_qp", io::Error::from_raw_os_error(12)).to_string().contains("ulimit"));
    }
}
