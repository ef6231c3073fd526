//! The guest: QEMU, a kernel and an initramfs made of Debian packages, in the user's cache.
//!
//! The newest packages are looked up at most once a day. A new set must boot before it is used; while it does not, the
//! last set that did is used instead, and a message names what broke.

mod driver;
pub mod payload;
pub mod recipe;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use md5::{Digest as _, Md5};
use serde::{Deserialize, Serialize};

use crate::apt::{Apt, Deb, GO_ON};
use crate::cache::Cache;
use crate::cpio::{Archive, Node};
use crate::progress::{Step, megabytes, tree_bytes, watching};
use crate::tree::Tree;
use crate::vm::Accel;
use crate::{formats, process, say, vm};
use driver::Jail;

/// Where QEMU, the kernel and the initramfs come from.
#[derive(Debug, Clone, Default, Args)]
pub struct GuestArgs {
    /// Use this QEMU (10.1 or newer) instead of Debian's
    #[arg(long, value_name = "PATH")]
    pub qemu: Option<PathBuf>,
    /// Use this guest kernel (vmlinux or bzImage); needs --initrd
    #[arg(long, value_name = "PATH", requires = "initrd")]
    pub kernel: Option<PathBuf>,
    /// Use this initramfs, made by `cargo xtask guest` for that kernel
    #[arg(long, value_name = "PATH", requires = "kernel")]
    pub initrd: Option<PathBuf>,
    /// Fetch Debian packages from this mirror instead of the one that this machine's apt uses
    #[arg(long, value_name = "URL", env = "ERNIC_MIRROR")]
    pub mirror: Option<String>,
    /// Look for newer packages now (otherwise once a day)
    #[arg(long)]
    pub refresh: bool,
}

/// The QEMU to run.
#[derive(Debug, Clone)]
pub enum Qemu {
    /// From Debian packages.
    Tree(Tree),
    /// The user's own.
    Own(PathBuf),
}

impl Qemu {
    /// The command to which QEMU's options are added.
    pub fn command(&self) -> Command {
        match self {
            Self::Own(path) => Command::new(path),
            Self::Tree(tree) => {
                let mut command = tree.command("usr/bin/qemu-system-x86_64", "qemu-system-x86_64");
                for dir in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
                    command.arg("-L").arg(tree.path(dir));
                }
                command
            }
        }
    }
}

/// Everything that a VM is started from.
#[derive(Debug, Clone)]
pub struct Image {
    /// Names this combination of packages and recipe.
    pub id: String,
    /// QEMU.
    pub qemu: Qemu,
    /// The guest kernel.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initrd: PathBuf,
    /// User space from packages, of which the host can run programs; absent with `--initrd`.
    pub user: Option<Tree>,
    /// Why the initramfs has no RDMA driver, if it is known to have none.
    pub no_rdma: Option<String>,
}

/// A set of package files, by part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Set {
    kernel_version: String,
    qemu: Vec<Deb>,
    user: Vec<Deb>,
    kernel: Vec<Deb>,
    extras: bool,
    /// What the RDMA driver is built from, where there is that.
    #[serde(default)]
    driver: Option<driver::Packages>,
}

/// What is remembered between runs, in `state.json` in the cache.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    /// The newest set, and when (seconds since 1970) it was looked up.
    newest: Option<Set>,
    looked_up: u64,
    /// What was looked up, as a digest of the recipe's names.
    #[serde(default)]
    wanted: String,
    /// The last set that booted, and the image made of it.
    worked: Option<Set>,
    worked_image: String,
    /// The newest set's image, if it is known not to work, and why.
    broken_image: String,
    broken_why: String,
}

const DAY: u64 = 24 * 3600;

/// Twelve hexadecimal digits that name `text`.
pub fn digest(text: &str) -> String {
    let mut hex = hex::encode(Md5::digest(text.as_bytes()));
    hex.truncate(12);
    hex
}

/// The package files, one a line.
pub fn list(debs: &[Deb]) -> String {
    debs.iter().map(|d| format!("{}\n", d.file)).collect()
}

impl Set {
    fn parts(&self) -> [(&'static str, String); 3] {
        [("qemu", &self.qemu), ("user", &self.user), ("kernel", &self.kernel)]
            .map(|(name, debs)| (name, format!("{name}-{}", digest(&list(debs)))))
    }

    fn driver_id(&self) -> Option<String> {
        self.driver.as_ref().map(|d| d.id(&self.kernel_version))
    }

    /// Names of all folders that its parts are kept in.
    fn folders(&self) -> Vec<String> {
        self.parts().into_iter().map(|(_, id)| id).chain(self.driver_id()).collect()
    }

    /// The same without the RDMA driver.
    fn bare(&self) -> Self {
        Self { driver: None, ..self.clone() }
    }

    /// Names the image: the packages and the recipe.
    fn image_id(&self) -> String {
        let parts = self.folders().join(" ");
        let recipe = format!(
            "{} {:?}",
            recipe::VERSION,
            (
                recipe::PROGRAMS,
                recipe::EXTRA_PROGRAMS,
                recipe::FILES,
                recipe::MODULES,
                recipe::OPTIONAL_MODULES,
                recipe::OWN_FILES,
                recipe::LINKS,
                recipe::FOLDERS
            ),
        );
        format!("{}-{}", self.kernel_version, digest(&format!("{parts} {recipe}")))
    }

    fn versions(&self) -> String {
        let mut words = vec![format!("linux {}", self.kernel_version)];
        for deb in self.qemu.iter().chain(&self.user) {
            let (name, version) = deb.name_version();
            let word = format!("{name} {version}");
            if recipe::SHOWN.contains(&name) && !words.contains(&word) {
                words.push(word);
            }
        }
        words.extend(self.driver.as_ref().map(|d| format!("{} {}", driver::MODULE, d.source_version())));
        words.join(", ")
    }
}

/// A version's numbers, to sort by.
fn version_key(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter(|w| !w.is_empty()).filter_map(|w| w.parse().ok()).collect()
}

/// The newest kernel all of whose packages are there: they come from two source packages that are not released together.
fn resolve_kernel(apt: &Apt) -> Result<(String, Vec<Deb>)> {
    let prefix = recipe::KERNEL_PACKAGES[0];
    let mut names = apt.names(prefix)?;
    names.retain(|n| n.ends_with(recipe::KERNEL_FLAVOUR));
    names.sort_by_key(|n| std::cmp::Reverse(version_key(n)));
    let mut why = anyhow!("no package {prefix}…{} on this mirror", recipe::KERNEL_FLAVOUR);
    for name in names {
        let version = name.trim_start_matches(prefix);
        let packages = recipe::KERNEL_PACKAGES.map(|p| format!("{p}{version}"));
        match apt.resolve(&packages.each_ref().map(String::as_str), false) {
            Ok(debs) => return Ok((version.to_owned(), debs)),
            Err(error) => why = error,
        }
    }
    Err(why)
}

fn user_packages(extras: bool) -> Vec<&'static str> {
    let mut packages = recipe::USER_PACKAGES.to_vec();
    if extras {
        packages.extend(recipe::USER_EXTRAS);
    }
    packages
}

/// Changes with the names of the packages to look up.
fn wanted() -> String {
    let names = (recipe::SUITES, recipe::PINS, recipe::QEMU_PACKAGES, recipe::USER_PACKAGES, recipe::USER_EXTRAS);
    digest(&format!("{names:?} {:?}", (recipe::KERNEL_PACKAGES, recipe::KERNEL_FLAVOUR, recipe::BUILD_PACKAGES)))
}

fn resolve(apt: &Apt) -> Result<Set> {
    let step = Step::begin("package indexes");
    apt.update()?;
    step.done("");
    let (kernel_version, kernel) = resolve_kernel(apt).context("guest kernel")?;
    let qemu = apt.resolve(&recipe::QEMU_PACKAGES, true).context("QEMU")?;
    let (user, extras) = match apt.resolve(&user_packages(true), true) {
        Ok(debs) => (debs, true),
        Err(_) => (apt.resolve(&user_packages(false), true).context("guest user space")?, false),
    };
    let driver = match driver::Packages::resolve(apt, &kernel_version) {
        Ok(packages) => Some(packages),
        Err(error) => {
            say!("the guest goes without its RDMA driver, whose packages are not there: {error:#}");
            None
        }
    };
    Ok(Set { kernel_version, qemu, user, kernel, extras, driver })
}

/// Downloads and unpacks one part of a set.
fn part(
    cache: &Cache,
    apt: &Apt,
    name: &str,
    id: &str,
    debs: &[Deb],
    packages: &[&str],
    depends: bool,
) -> Result<Tree> {
    let folder = cache.folder(&format!("parts/{id}"), |dir| {
        let total = debs.iter().map(|d| d.size).sum();
        let into = dir.join("debs");
        let step = Step::begin(format!("{name}: download"));
        watching(&format!("{name}: download"), &into, total, || apt.fetch(packages, depends, &into))?;
        step.done(&format!("{} in {} packages", megabytes(tree_bytes(&into)), debs.len()));
        let step = Step::begin(format!("{name}: unpack"));
        let root = dir.join("tree");
        Tree::unpack(&into, &root)?;
        step.done(&megabytes(tree_bytes(&root)));
        fs::remove_dir_all(&into)?;
        Ok(())
    })?;
    Ok(Tree::at(folder.join("tree")))
}

/// Makes (or finds) the image of a set. `jail` is what the RDMA driver is built in.
fn make(cache: &Cache, apt: &Apt, set: &Set, jail: &Result<Jail>) -> Result<Image> {
    let [(_, qemu_id), (_, user_id), (_, kernel_id)] = set.parts();
    let kernel_packages = recipe::KERNEL_PACKAGES.map(|p| format!("{p}{}", set.kernel_version));
    let kernel_packages = kernel_packages.each_ref().map(String::as_str);
    let qemu = part(cache, apt, "qemu", &qemu_id, &set.qemu, &recipe::QEMU_PACKAGES, true)?;
    let user = part(cache, apt, "user space", &user_id, &set.user, &user_packages(set.extras), true)?;
    let kernel = part(cache, apt, "kernel", &kernel_id, &set.kernel, &kernel_packages, false)?;
    let (modules, no_rdma) = match (&set.driver, jail) {
        (Some(packages), _) => (Some(driver::build(cache, apt, packages, &set.kernel_version, jail)?), None),
        (_, Err(why)) => (None, Some(why.to_string())),
        (None, Ok(_)) => (None, Some("it could not be built from Debian's packages".to_owned())),
    };
    let id = set.image_id();
    let folder = cache.folder(&format!("images/{id}"), |dir| {
        let step = Step::begin("guest kernel");
        let files = format!("usr/lib/modules/{}", set.kernel_version);
        let boot = fs::read(kernel.path(&files).join("vmlinuz")).context("the kernel package has no vmlinuz")?;
        let elf = formats::vmlinux(&boot)?;
        fs::write(dir.join("vmlinux"), &elf)?;
        step.done(&megabytes(u64::try_from(elf.len())?));
        let step = Step::begin("guest initramfs");
        let staging = dir.join("staging");
        let archive = initramfs(&user, &kernel, &set.kernel_version, set.extras, modules.as_deref(), &staging)?;
        let path = dir.join("initrd.cpio");
        write_archive(&archive, &path)?;
        fs::remove_dir_all(staging)?;
        step.done(&megabytes(fs::metadata(&path)?.len()));
        Ok(())
    })?;
    Ok(Image {
        id,
        qemu: Qemu::Tree(qemu),
        kernel: folder.join("vmlinux"),
        initrd: folder.join("initrd.cpio"),
        user: Some(user),
        no_rdma,
    })
}

fn write_archive(archive: &Archive, path: &Path) -> Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    archive.write(&mut out)?;
    out.flush()?;
    Ok(())
}

/// Adds programs and libraries of `tree`, and all libraries that they need.
fn add_programs(archive: &mut Archive, tree: &Tree, mut programs: Vec<String>) -> Result<()> {
    let mut seen = BTreeSet::new();
    while let Some(program) = programs.pop() {
        if !seen.insert(program.clone()) {
            continue;
        }
        let data = fs::read(tree.path(&program)).with_context(|| format!("no package has {program}"))?;
        // A static program has no dynamic table and needs nothing.
        for library in formats::needed(&data).with_context(|| program.clone())? {
            programs.push(tree.library(&library).with_context(|| format!("needed by {program}"))?);
        }
        archive.add(&program, Node::File(0o755, data));
    }
    Ok(())
}

/// Puts the initramfs together, with the RDMA drivers in the folder `modules`. `staging` is an empty or missing folder to
/// work in.
fn initramfs(
    user: &Tree,
    kernel: &Tree,
    version: &str,
    extras: bool,
    modules: Option<&Path>,
    staging: &Path,
) -> Result<Archive> {
    let mut archive = Archive::default();
    for folder in recipe::FOLDERS {
        archive.add(folder, Node::Dir(if *folder == "tmp" { 0o1777 } else { 0o755 }));
    }
    for (name, target) in recipe::LINKS {
        archive.add(name, Node::Link((*target).to_owned()));
    }
    // The kernel opens this for init before anything is mounted.
    archive.add("dev/console", Node::Char(0o600, 5, 1));
    for (name, mode, text) in recipe::OWN_FILES {
        archive.add(name, Node::File(*mode, text.as_bytes().to_vec()));
    }
    let mut programs: Vec<String> = recipe::PROGRAMS.iter().map(|p| (*p).to_owned()).collect();
    if extras {
        programs.extend(recipe::EXTRA_PROGRAMS.iter().map(|p| (*p).to_owned()));
    }
    let providers = "usr/lib/x86_64-linux-gnu/libibverbs";
    for entry in fs::read_dir(user.path(providers)).context("ibverbs-providers has no providers")?.flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        if recipe::PROVIDERS.iter().any(|p| file.starts_with(&format!("lib{p}-rdmav"))) {
            programs.push(format!("/{providers}/{file}"));
        }
    }
    add_programs(&mut archive, user, programs)?;
    let drivers = recipe::PROVIDERS.map(|p| format!("/etc/libibverbs.d/{p}.driver"));
    for file in recipe::FILES.iter().copied().chain(drivers.iter().map(String::as_str)) {
        if user.path(file).exists() {
            archive.add_file(file, &user.path(file), 0o644)?;
        }
    }
    add_modules(&mut archive, user, kernel, version, modules, staging)?;
    Ok(archive)
}

/// Adds the kernel modules of the recipe, uncompressed, and the tables that modprobe reads. depmod runs here and not in
/// the guest: there it would cost every boot what it costs once here.
fn add_modules(
    archive: &mut Archive,
    user: &Tree,
    kernel: &Tree,
    version: &str,
    modules: Option<&Path>,
    staging: &Path,
) -> Result<()> {
    let top = format!("usr/lib/modules/{version}");
    let mut index = BTreeMap::new();
    let mut folders = vec![format!("{top}/kernel")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(kernel.path(&folder)).context("the kernel package has no modules")?.flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() {
                folders.push(format!("{folder}/{file}"));
            } else if let Some((stem, _)) = file.split_once(".ko") {
                index.insert(formats::module_name(stem), (format!("{folder}/{stem}.ko"), entry.path()));
            }
        }
    }
    let mut wanted: Vec<(String, bool)> = recipe::MODULES.iter().map(|m| ((*m).to_owned(), true)).collect();
    wanted.extend(recipe::OPTIONAL_MODULES.iter().map(|m| ((*m).to_owned(), false)));
    if let Some(folder) = modules {
        for (name, required) in [(driver::MODULE, true), (driver::SOFT, false)] {
            let path = folder.join(format!("{name}.ko"));
            if path.exists() {
                index.insert(name.to_owned(), (format!("{top}/extra/{name}.ko"), path));
            }
            wanted.push((name.to_owned(), required));
        }
    }
    while let Some((module, required)) = wanted.pop() {
        let Some((name, path)) = index.get(&module) else {
            if required {
                bail!("kernel {version} has no module {module}");
            }
            continue;
        };
        if archive.contains(name) {
            continue;
        }
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let data = formats::module_bytes(&file, fs::read(path)?).with_context(|| path.display().to_string())?;
        let depends = formats::module_depends(&data).with_context(|| path.display().to_string())?;
        wanted.extend(depends.into_iter().map(|d| (d, true)));
        let staged = staging.join(name);
        fs::create_dir_all(staged.parent().unwrap_or(staging))?;
        fs::write(&staged, &data)?;
        archive.add(name, Node::File(0o644, data));
    }
    let staged = staging.join(&top);
    for table in recipe::MODULE_TABLES {
        fs::copy(kernel.path(&top).join(table), staged.join(table))
            .with_context(|| format!("the kernel packages have no {table}"))?;
    }
    std::os::unix::fs::symlink("usr/lib", staging.join("lib"))?;
    process::output(user.command("usr/bin/kmod", "depmod").arg("-b").arg(staging).arg(version))?;
    for entry in fs::read_dir(&staged)?.flatten() {
        if entry.file_type()?.is_file() {
            archive.add_file(&format!("{top}/{}", entry.file_name().to_string_lossy()), &entry.path(), 0o644)?;
        }
    }
    Ok(())
}

/// A file that the user named with `option`.
fn own(option: &str, path: &Path) -> Result<PathBuf> {
    if !path.is_file() {
        bail!("--{option} {}: no such file", path.display());
    }
    Ok(std::path::absolute(path)?)
}

/// The image to use: the user's own files where given, else the newest set that boots.
///
/// # Errors
/// When there is none; the message says what is missing and how to go on.
pub fn acquire(args: &GuestArgs, accel: Option<Accel>) -> Result<Image> {
    let qemu = args.qemu.as_deref().map(|path| own("qemu", path)).transpose()?;
    let boot = match (&args.kernel, &args.initrd) {
        (Some(kernel), Some(initrd)) => Some((own("kernel", kernel)?, own("initrd", initrd)?)),
        _ => None,
    };
    if let (Some(qemu), Some((kernel, initrd))) = (&qemu, &boot) {
        let facts: Vec<String> = [qemu, kernel, initrd]
            .iter()
            .map(|p| format!("{} {:?}", p.display(), fs::metadata(p).and_then(|m| m.modified()).ok()))
            .collect();
        let id = format!("own-{}", digest(&facts.join(" ")));
        return Ok(Image {
            id,
            qemu: Qemu::Own(qemu.clone()),
            kernel: kernel.clone(),
            initrd: initrd.clone(),
            user: None,
            no_rdma: None,
        });
    }
    if std::env::consts::ARCH != "x86_64" {
        bail!("the guest's packages are for x86_64 machines, and this is {}. {GO_ON}", std::env::consts::ARCH);
    }
    let mut image = from_packages(args, accel)?;
    if let Some(qemu) = qemu {
        image.id.push_str("-own-qemu");
        image.qemu = Qemu::Own(qemu);
    }
    if let Some((kernel, initrd)) = boot {
        image.id.push_str("-own-kernel");
        (image.kernel, image.initrd, image.no_rdma) = (kernel, initrd, None);
    }
    Ok(image)
}

fn from_packages(args: &GuestArgs, accel: Option<Accel>) -> Result<Image> {
    let cache = Cache::open()?;
    let apt = Apt::open(cache.path("apt"), args.mirror.as_deref(), &recipe::SUITES, recipe::PINS)?;
    let state_path = cache.path("state.json");
    let mut state: State = fs::read(&state_path).ok().and_then(|t| serde_json::from_slice(&t).ok()).unwrap_or_default();
    let save = |state: &State| -> Result<()> { Ok(fs::write(&state_path, serde_json::to_vec_pretty(state)?)?) };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();

    let mut fresh = false;
    let old = now.saturating_sub(state.looked_up) > DAY || state.wanted != wanted();
    if args.refresh || state.newest.is_none() || old {
        match resolve(&apt) {
            Ok(set) => {
                fresh = true;
                state.newest = Some(set);
                state.looked_up = now;
                state.wanted = wanted();
                state.broken_image.clear();
                save(&state)?;
            }
            Err(error) if state.worked.is_some() => {
                say!("cannot look for newer packages ({error:#}); going on with the last set that worked");
                state.newest.clone_from(&state.worked);
            }
            Err(error) => bail!("cannot get the guest's packages: {error:#}\n{GO_ON}"),
        }
    }
    let jail = Jail::find();
    // A driver that was built before, perhaps by root, needs no jail.
    let usable = |set: &Set| {
        let built = set.driver_id().is_some_and(|id| cache.path(format!("parts/{id}")).is_dir());
        if built || jail.is_ok() { set.clone() } else { set.bare() }
    };
    let found = state.newest.as_ref().context("no set of packages is known")?;
    let mut newest = usable(found);
    if let Err(why) = &jail
        && newest != *found
    {
        say!("the guest goes without its RDMA driver: {why}");
    }
    say!("packages: {}", newest.versions());

    let attempt = |set: &Set, state: &State| -> Result<Image> {
        if set.image_id() == state.broken_image {
            bail!("{}", state.broken_why);
        }
        let image = make(&cache, &apt, set, &jail)?;
        if image.id != state.worked_image {
            vm::trial(&image, accel)?;
        }
        Ok(image)
    };
    let mut tried = attempt(&newest, &state);
    if tried.is_err() && !fresh && state.worked.as_ref() != Some(&newest) {
        // A mirror drops a package when a newer one comes: what was looked up earlier today may be gone.
        if let Ok(set) = resolve(&apt)
            && usable(&set) != newest
        {
            newest = usable(&set);
            say!("newer packages: {}", newest.versions());
            tried = attempt(&newest, &state);
            state.newest = Some(set);
            state.looked_up = now;
            save(&state)?;
        }
    }
    let none_else = state.worked.as_ref().is_none_or(|worked| usable(worked) == newest);
    if let Err(error) = &tried
        && newest.driver.is_some()
        && none_else
    {
        say!("the guest goes without its RDMA driver: {error:#}");
        newest = newest.bare();
        tried = attempt(&newest, &state);
        // Not tried again until the next look-up.
        state.newest = Some(newest.clone());
        save(&state)?;
    }
    match tried {
        Ok(image) => {
            if state.worked_image != image.id {
                state.worked = Some(newest.clone());
                state.worked_image.clone_from(&image.id);
                save(&state)?;
                cache.prune("parts", &newest.folders());
                cache.prune("images", std::slice::from_ref(&image.id));
            }
            Ok(image)
        }
        Err(error) => {
            match state.worked.as_ref().map(usable) {
                Some(worked) if worked != newest => {
                    // Not tried again until the next look-up.
                    state.broken_image = newest.image_id();
                    state.broken_why = format!("{error:#}");
                    save(&state)?;
                    say!("the newest packages do not work: {error:#}");
                    say!(
                        "falling back to the last set that worked: {} (`--refresh` tries the newest again)",
                        worked.versions()
                    );
                    make(&cache, &apt, &worked, &jail)
                }
                _ => bail!(
                    "the newest packages ({}) do not work, and no earlier set is kept: {error:#}\n{GO_ON}",
                    newest.versions()
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(kernel: &str, debs: &[&str]) -> Set {
        let debs: Vec<Deb> = debs.iter().map(|d| Deb { file: (*d).to_owned(), size: 1 }).collect();
        let (qemu, user) = (debs.clone(), debs.clone());
        Set { kernel_version: kernel.into(), qemu, user, kernel: debs, extras: true, driver: None }
    }

    #[test]
    fn an_image_is_named_by_its_packages() {
        let a = set("7.3.4+deb13-cloud-amd64", &["curl_1_amd64.deb"]);
        assert!(a.image_id().starts_with("7.3.4+deb13-cloud-amd64-"));
        assert_eq!(a.image_id(), a.clone().image_id());
        assert_ne!(a.image_id(), set("7.3.4+deb13-cloud-amd64", &["curl_2_amd64.deb"]).image_id());
        assert_eq!(a.versions(), "linux 7.3.4+deb13-cloud-amd64, curl 1");
    }

    #[test]
    fn kernels_sort_by_number() {
        let mut names = [
            "linux-binary-7.3.10+deb13-cloud-amd64",
            "linux-binary-7.10.1+deb13-cloud-amd64",
            "linux-binary-7.3.4+deb13-cloud-amd64",
        ];
        names.sort_by_key(|n| std::cmp::Reverse(version_key(n)));
        assert_eq!(names[0], "linux-binary-7.10.1+deb13-cloud-amd64");
        assert_eq!(names[2], "linux-binary-7.3.4+deb13-cloud-amd64");
    }
}
