//! Transfers that lose what they transfer to: the registration, the memory, the driver, the guest. What was open fails from then
//! on, not a byte is written any more, and whoever comes next finds a device that works.

use ionic_abi::{DevResetCmd, LifResetCmd, Opcode};
use ionic_driver::{Config, Ionic, UserMem, Verbs, user::Placement, verbs::RegMr};
use rdma_token::{RemoteAccess, RemoteError, RemoteWindow, Window};

use super::{
    common::{TestBus, frames},
    kit::{ALL, Guest, now},
};

const LEN: usize = 100_000;

/// Two windows, one for each direction, in the middle of their transfers.
struct Open {
    mem: UserMem,
    key: u32,
    write: Option<Box<dyn RemoteWindow>>,
    read: Option<Box<dyn RemoteWindow>>,
}

impl Open {
    fn new<T: TestBus>(guest: &mut Guest<T>) -> Self {
        let pd = guest.verbs.create_pd();
        let mem = UserMem::new(guest.nic.bus.ram(), 0x7f00_0000_0ffe, LEN, Placement::Scattered).unwrap();
        mem.write(0, &vec![1; LEN]);
        let mr = guest.verbs.reg_mr(&mut guest.nic, pd, &RegMr::all(&mem, ALL)).unwrap();
        let window = Window { address: mr.va, length: LEN as u64 };
        let write = guest.open(mr.key, window, RemoteAccess::Write).unwrap();
        let read = guest.open(mr.key, window, RemoteAccess::Read).unwrap();
        let mut open = Self { mem, key: mr.key, write: Some(write), read: Some(read) };
        assert_eq!(open.go_on(&mut guest.nic.bus), [Ok(()), Ok(())]);
        assert_eq!(open.mem.content()[..4096], [2; 4096]);
        open
    }

    /// A piece more each way, in the device's thread.
    fn go_on<T: TestBus>(&mut self, bus: &mut T) -> [Result<(), RemoteError>; 2] {
        let (mut write, mut read) = (self.write.take().unwrap(), self.read.take().unwrap());
        let (write, read, results) = bus.with_device(move |_| {
            let results = [now(write.write(0, &[2; 4096])), now(read.read(8192, &mut [0; 4096]))];
            (write, read, results)
        });
        (self.write, self.read) = (Some(write), Some(read));
        results
    }

    /// Both have ended: with this error, more than once, and without a byte.
    fn ended<T: TestBus>(&mut self, bus: &mut T, expected: impl Fn(&RemoteError) -> bool) {
        self.mem.write(0, &vec![3; LEN]);
        for _ in 0..2 {
            for result in self.go_on(bus) {
                assert!(result.as_ref().is_err_and(&expected), "{result:?}");
            }
        }
        assert!(self.mem.content().iter().all(|byte| *byte == 3) && self.mem.intact());
    }
}

fn works<T: TestBus>(guest: &mut Guest<T>) {
    let pd = guest.verbs.create_pd();
    let mem = UserMem::new(guest.nic.bus.ram(), 0x1005, LEN, Placement::Huge).unwrap();
    let mr = guest.verbs.reg_mr(&mut guest.nic, pd, &RegMr::all(&mem, ALL)).unwrap();
    let bytes = frames::pattern(LEN, 5);
    guest.put(mr.key, mr.va, &bytes).unwrap();
    assert!(mem.content() == bytes && mem.intact());
    guest.verbs.dereg_mr(&mut guest.nic, mr.key).unwrap();
}

fn stale(error: &RemoteError) -> bool {
    matches!(error, RemoteError::Stale(_))
}

pub fn the_registration_goes<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let mut open = Open::new(&mut guest);
    guest.verbs.dereg_mr(&mut guest.nic, open.key).unwrap();
    open.ended(&mut guest.nic.bus, stale);
    // Another one of the same index, over the same memory.
    let mut open = Open::new(&mut guest);
    guest.verbs.dereg_mr(&mut guest.nic, open.key).unwrap();
    let pd = guest.verbs.create_pd();
    let again = guest.verbs.reg_mr(&mut guest.nic, pd, &RegMr::all(&open.mem, ALL)).unwrap();
    assert_eq!(again.key >> 8, open.key >> 8);
    open.ended(&mut guest.nic.bus, stale);
    guest.put(again.key, again.va, &[4; 10]).unwrap();
    works(&mut guest);
}

pub fn case_02_the_memory_goes<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    for _ in 0..3 {
        let mut open = Open::new(&mut guest);
        guest.nic.bus.settle();
        guest.nic.bus.unmap_ram();
        open.ended(&mut guest.nic.bus, |error| matches!(error, RemoteError::Transport(_)));
        // What is new fails too, while there is nothing.
        let gone = guest.put(open.key, 0x7f00_0000_0ffe, &[5; 100]);
        assert!(matches!(gone, Err(RemoteError::Transport(_))), "{gone:?}");
        guest.nic.bus.map_ram();
        // What had failed does not come back to life; what is new works, and the registration is what it was.
        open.ended(&mut guest.nic.bus, |error| matches!(error, RemoteError::Transport(_)));
        guest.put(open.key, 0x7f00_0000_0ffe, &[6; LEN]).unwrap();
        assert!(open.mem.content().iter().all(|byte| *byte == 6) && open.mem.intact());
        guest.verbs.dereg_mr(&mut guest.nic, open.key).unwrap();
        works(&mut guest);
    }
}

/// The driver of the RDMA half goes, that of the NIC, or the device forgets by command.
pub fn the_driver_goes<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    for round in 0..4 {
        let mut open = Open::new(&mut guest);
        let Guest { mut nic, verbs } = guest;
        match round {
            0 => verbs.close(&mut nic).unwrap(),
            1 => nic.remove().unwrap(),
            2 => drop(nic.devcmd(&LifResetCmd { opcode: Opcode::LIF_RESET, ..LifResetCmd::default() }).unwrap()),
            _ => drop(nic.devcmd(&DevResetCmd { opcode: Opcode::RESET, ..DevResetCmd::default() }).unwrap()),
        }
        open.ended(&mut nic.bus, stale);
        assert!(nic.bus.with_device(|device| device.regions().is_empty()));
        if round > 0 {
            nic.probe().unwrap();
            nic.up().unwrap();
        }
        let verbs = Verbs::open(&mut nic).unwrap();
        guest = Guest { nic, verbs };
        works(&mut guest);
    }
}

/// Function-level reset, and a reset by the machine.
pub fn the_function_is_reset<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    for round in 0..4 {
        let mut open = Open::new(&mut guest);
        let Guest { mut nic, .. } = guest;
        if round % 2 == 0 {
            nic.flr().unwrap();
        } else {
            nic.bus.reset().unwrap();
            nic.bus.settle();
        }
        open.ended(&mut nic.bus, stale);
        if round % 2 == 1 {
            let config = Config { tx_entries: 64, rx_entries: 64, ..Config::default() };
            nic = Ionic::attach(nic.into_bus(), config).unwrap();
            nic.up().unwrap();
        }
        let verbs = Verbs::open(&mut nic).unwrap();
        guest = Guest { nic, verbs };
        works(&mut guest);
    }
}
