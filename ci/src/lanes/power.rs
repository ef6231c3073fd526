//! The lane `vm-store-power`: `ernic serve` with a disk store on a virtio disk inside a guest, whose power fails under load.
//!
//! The disk has a volatile cache ([`crate::disk`]), and with the power goes what the guest had not flushed: all of it, or
//! each sector with probability one half. What the clients in the guest ask for and what is acknowledged to them leaves the
//! guest as it happens, through a virtio port, whose writer does not go on before this process has the line.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use ernic_load::{Book, Event, Random};
use serde_json::json;
use tempfile::TempDir;

use super::{Bench, Skip};
use crate::demo::Parts;
use crate::disk::{Disk, Powered};
use crate::ext4::Ext4;
use crate::guest::payload;
use crate::vm::{self, Config, Guest, Lines};
use crate::{process, say};

const NAME: &str = "vm-store-power";

/// Bytes of the disk. The objects of the load have at most 130 MB.
const DISK: u64 = 512 << 20;

/// The server in the guest.
const ADDRESS: &str = "127.0.0.1:9000";
const BACKEND: &str = "s3:size=400M,objects=1000,store=disk:/disk/store,durability=full";

/// The least that ext4 promises: it journals its own structures only, and does not guess which files want to be written before
/// they are renamed.
const OPTIONS: &str = "data=writeback,noauto_da_alloc";

/// Longest time until so many writes are acknowledged, and of one check. Measured under TCG: seconds.
const LIMIT: Duration = Duration::from_secs(180);

/// What every boot of the guest is made of.
struct Site<'a> {
    parts: &'a Parts,
    config: Config,
    /// The initramfs is the user's own, which may be older than this lane.
    own: bool,
    folder: TempDir,
}

/// The guest with its disk mounted and the server running.
struct Running {
    guest: Guest,
    disk: Powered,
    record: Lines,
}

impl Site<'_> {
    fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Boots, mounts the disk and starts the server.
    fn start(&self, disk: Disk) -> Result<Running> {
        let disk = disk.power_on(&self.socket("disk"))?;
        let guest = Guest::boot(&self.parts.image, &self.config)?;
        let record = Lines::new(UnixStream::connect(self.socket("record")).context("QEMU's port for the record")?);
        let mut running = Running { guest, disk, record };
        match running.guest.ok("modprobe virtio_blk") {
            Err(error) if self.own => bail!(Skip(format!("{error:#}"))),
            loaded => loaded?,
        };
        running.guest.ok("n=0; until [ -b /dev/vda ]; do n=$((n+1)); [ $n -lt 100 ] || exit 9; sleep 0.1; done")?;
        let cache = running.guest.ok("cat /sys/block/vda/queue/write_cache")?;
        ensure!(cache.trim() == "write back", "the guest does not know that its disk has a cache: {cache}");
        running.guest.ok(&format!("mkdir -p /disk && mount -t ext4 -o {OPTIONS} /dev/vda /disk"))?;
        let serve = format!("ernic serve --listen {ADDRESS} --backend {BACKEND} </dev/null >/tmp/ernic.log 2>&1");
        running.ok(&format!("({serve} & echo $! >/tmp/pid; wait $!; echo $? >/tmp/status) </dev/null >/dev/null 2>&1 & until grep -q ' bytes at http://' /tmp/ernic.log; do [ ! -e /tmp/status ] || exit 9; sleep 0.1; done"))?;
        Ok(running)
    }
}

impl Running {
    /// Runs a command that must succeed; an error has the server's last words.
    fn ok(&mut self, line: &str) -> Result<String> {
        self.guest.ok_for(line, LIMIT).map_err(|error| {
            let log = self.guest.sh("tail -n 12 /tmp/ernic.log; tail -n 3 /tmp/load.log 2>/dev/null");
            match log {
                Ok(log) => anyhow!("{error:#}\nthe server's last lines:\n{}", process::tail(&log.text, 15)),
                Err(_) => error,
            }
        })
    }

    /// The store has what the book says and nothing else; what was in doubt is in the book afterwards.
    fn check(&mut self, book: &mut Book) -> Result<()> {
        let now = self.ok(&format!("ernic-load check {ADDRESS} /disk/store {book}").replace('?', "\\?"))?;
        *book = now.parse()?;
        Ok(())
    }

    /// Starts the load, cuts the power after `enough` answers and `bit`, and takes down what was acknowledged until then.
    /// Returns the disk and the number of answers.
    fn fail(mut self, book: &mut Book, seed: u64, enough: usize, bit: Duration) -> Result<(Disk, usize)> {
        self.ok(&format!("for p in /sys/class/virtio-ports/*; do if [ \"$(cat $p/name)\" = record ]; then ernic-load run {ADDRESS} {seed} /dev/${{p##*/}} </dev/null >/tmp/load.log 2>&1 & fi; done"))?;
        let mut answers = 0;
        let mut note = |line: &[u8]| -> Result<bool> {
            let event: Event = String::from_utf8_lossy(line).trim_end().parse()?;
            book.note(&event)?;
            let answer = matches!(event, Event::Done(_));
            answers += usize::from(answer);
            Ok(answer)
        };
        let end = Instant::now() + LIMIT;
        let mut left = enough;
        while left > 0 {
            let noted = self.record.line(end).and_then(|line| note(&line));
            match noted {
                Ok(answer) => left -= usize::from(answer),
                Err(error) => {
                    self.ok("true")?;
                    let log = self.guest.ok("cat /tmp/load.log /tmp/ernic.log")?;
                    bail!("{left} of {enough} answers are missing: {error:#}\n{}", process::tail(&log, 15));
                }
            }
        }
        std::thread::sleep(bit);
        self.disk.cut();
        self.guest.kill()?;
        let disk = self.disk.off()?;
        // What was on its way. The last line may be a part of one.
        while let Ok(line) = self.record.line(end) {
            note(&line)?;
        }
        Ok((disk, answers))
    }
}

/// Power failures under load: what was acknowledged is there, byte for byte; what was not is wholly there or not at all; and
/// room and figures are those of what is there.
pub fn store(bench: &Bench<'_>) -> Result<()> {
    let parts = bench.parts()?;
    let ext4 = Ext4::acquire(bench.args().guest.mirror.as_deref()).map_err(|error| Skip(format!("{error:#}")))?;
    let load = bench.args().server.load("quick")?;
    vm::clear_logs(NAME)?;
    let folder = tempfile::Builder::new().prefix("ernic-").tempdir()?;
    let medium = folder.path().join("medium");
    ext4.make(&medium, DISK)?;
    let mut config = Config::new(NAME, parts.chosen.accel);
    config.payloads.push(payload::built(&[&parts.program, &load], NAME)?);
    let own = bench.args().guest.initrd.is_some();
    let site = Site { parts, config: with_disk(config, folder.path()), own, folder };
    let rounds = if bench.args().full { 20 } else { 3 };
    rounds_of(&site, &medium, rounds)?;
    ext4.check(&medium).context("the file system that the power failures leave")
}

/// Adds the disk and the port of the record to a VM.
fn with_disk(mut config: Config, folder: &Path) -> Config {
    let disk = json!({"driver": "nbd", "node-name": "disk", "export": "disk", "server": {"type": "unix", "path": folder.join("disk")}});
    let record = format!("socket,id=record,path={},server=on,wait=off", folder.join("record").display());
    let options = ["-blockdev", &disk.to_string(), "-device", "virtio-blk-pci,drive=disk,write-cache=on"];
    config.extra.extend(options.map(str::to_owned));
    let options = ["-chardev", &record, "-device", "virtserialport,chardev=record,name=record"];
    config.extra.extend(options.map(str::to_owned));
    config
}

fn rounds_of(site: &Site<'_>, medium: &Path, rounds: usize) -> Result<()> {
    let mut random = Random(0x0bad_c0de);
    let (mut book, mut disk) = (Book::default(), Disk::open(medium)?);
    let (mut answers, mut doubts) = (0, 0);
    for round in 1..=rounds {
        let mut running = site.start(disk)?;
        running.check(&mut book).with_context(|| format!("before power failure {round}"))?;
        // Anywhere in the work of the clients.
        let (enough, bit) = (random.below(150), Duration::from_micros(u64::try_from(random.below(200_000))?));
        let (back, said) = running.fail(&mut book, u64::try_from(round)?, enough, bit)?;
        disk = back;
        let some = round % 2 == 0;
        let (kept, lost) = disk.lose(|| some && random.below(2) == 0)?;
        let (objects, asked) = book.counts();
        say!(
            "power failure {round}: {said} writes acknowledged and {asked} in doubt, {objects} objects; {lost} sectors lost, {kept} more kept"
        );
        (answers, doubts) = (answers + said, doubts + asked);
    }
    ensure!(answers > rounds && doubts > 0, "the load was none: {answers} answers, {doubts} writes without");
    // One failure may come right after a flush, and lose nothing.
    ensure!(disk.most() > 0, "the disk's cache was never used");
    let mut running = site.start(disk)?;
    running.check(&mut book).context("after the last power failure")?;
    running.ok(&format!("ernic-load clear {ADDRESS} /disk/store {book}"))?;
    // What is left is the tables, with nothing in them.
    let status =
        running.ok("kill -TERM $(cat /tmp/pid); until [ -s /tmp/status ]; do sleep 0.1; done; cat /tmp/status")?;
    ensure!(status.trim() == "0", "the server ended with status {status}");
    let left = running.ok("du -s -k /disk/store")?;
    let kilobytes: u64 = left.split_whitespace().next().context("du says nothing")?.parse()?;
    ensure!(kilobytes < 32 << 10, "{kilobytes} KiB are taken by an empty store");
    running.ok("umount /disk")?;
    running.guest.poweroff()?;
    // Unmounting has flushed the cache.
    let (kept, lost) = running.disk.off()?.lose(|| false)?;
    ensure!((kept, lost) == (0, 0), "{lost} sectors were not flushed when the disk was unmounted");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::Accel;

    #[test]
    fn the_guest_is_given_the_disk_and_told_of_its_cache() {
        let config = with_disk(Config::new("t", Accel::Tcg), Path::new("/run/x,y"));
        assert!(config.extra.contains(&"virtio-blk-pci,drive=disk,write-cache=on".to_owned()));
        let disk: serde_json::Value = serde_json::from_str(&config.extra[1]).unwrap();
        assert_eq!(disk["server"], json!({"type": "unix", "path": "/run/x,y/disk"}));
    }
}
