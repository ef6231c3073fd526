//! `cargo xtask abi-check`: the layout of the device's structures, printed by a C program that is compiled against the
//! kernel's own headers, compared with the committed table that the tests of `ionic-abi` use.
//!
//! The table names what to print; no number in it is typed by hand. The headers come from Debian's newest `linux-source`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::apt::Apt;
use crate::cache::Cache;
use crate::{process, say, source, workspace};

/// The table, from the root of the workspace.
const TABLE: &str = "ernic-emu/abi/tests/layout.tsv";
/// Debian suites that have kernel sources: the guest's kernel comes from backports.
const SUITES: [&str; 2] = ["trixie", "trixie-backports"];
/// The Ethernet driver's headers that are compiled, and `ionic.h`, of which only the PCI ids are taken: it includes half the kernel.
/// And the RDMA driver's.
const HEADERS: [&str; 4] = ["ionic_if.h", "ionic_regs.h", "ionic.h", RDMA_HEADER];
/// It has functions that translate from and to IB's constants, whose header is that of the whole of RDMA in the kernel.
const RDMA_HEADER: &str = "ionic_fw.h";
/// What the headers expect of the kernel: integer types, attributes, and register accessors that nothing calls.
const SHIM: &str = r"
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;
typedef uint16_t __le16; typedef uint32_t __le32; typedef uint64_t __le64;
typedef uint16_t __be16; typedef uint32_t __be32; typedef uint64_t __be64;
typedef uint8_t __u8;
#define cpu_to_be32(x) (x)
#define be32_to_cpu(x) (x)
#define static_assert(x) _Static_assert(x, #x)
#define __packed __attribute__((packed))
#define __iomem
#define BIT(n) (1UL << (n))
#define BIT_ULL(n) (1ULL << (n))
#define GENMASK(h, l) ((~0UL << (l)) & (~0UL >> (63 - (h))))
#define WARN_ON_ONCE(x) (x)
#define ioread32(p) (*(volatile u32 *)(p))
#define iowrite32(v, p) (*(volatile u32 *)(p) = (v))
#define writeq(v, p) (*(volatile u64 *)(p) = (v))
";

/// Options of `abi-check`.
#[derive(Debug, Clone, Default, Args)]
pub struct AbiArgs {
    /// Compile the headers in this folder (that of ionic_if.h) instead of those of Debian's newest linux-source
    #[arg(long, value_name = "DIR")]
    pub headers: Option<PathBuf>,
    /// Write the table instead of comparing with it
    #[arg(long)]
    pub write: bool,
    /// Fetch linux-source from this mirror instead of the one that this machine's apt uses
    #[arg(long, value_name = "URL", env = "ERNIC_MIRROR")]
    pub mirror: Option<String>,
}

/// One row of the table: what it is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    /// The size of a type.
    Size(String),
    /// The offset and size of a field.
    Field(String, String),
    /// The value of a constant.
    Const(String),
}

/// Rows and the numbers beside them, in order. Comment lines and empty ones are left out.
fn parse(table: &str) -> Result<Vec<(Row, String)>> {
    let mut rows = Vec::new();
    for line in table.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let words: Vec<&str> = line.split('\t').collect();
        rows.push(match words[..] {
            ["size", name, size] => (Row::Size(name.to_owned()), size.to_owned()),
            ["field", name, field, offset, size] => {
                (Row::Field(name.to_owned(), field.to_owned()), format!("{offset}\t{size}"))
            }
            ["const", name, value] => (Row::Const(name.to_owned()), value.to_owned()),
            _ => bail!("{TABLE}: bad row '{line}'"),
        });
    }
    Ok(rows)
}

/// Names of IB's constants in `header`, each with a value of its own: functions that nothing calls use them.
fn ib_constants(header: &str) -> String {
    let words = header.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names: BTreeSet<&str> = words.filter(|word| word.starts_with("IB_")).collect();
    let names: Vec<&str> = names.into_iter().collect();
    format!("enum {{ {} }};\nenum ib_qp_type {{ A }};\nenum ib_qp_state {{ B }};\n", names.join(", "))
}

/// The C program that prints every row; `more` are definitions that the headers want and that are made of headers.
fn program<'a>(rows: impl Iterator<Item = &'a Row>, more: &str) -> String {
    let mut text = format!(
        "{SHIM}{more}#include \"ionic_if.h\"\n#include \"ionic_regs.h\"\n#include \"{RDMA_HEADER}\"\nint main(void) {{\n"
    );
    for row in rows {
        // Names are C already; none has a quote or a percent sign.
        text.push_str(&match row {
            Row::Size(name) => format!("printf(\"size\\t{name}\\t%zu\\n\", sizeof({name}));\n"),
            Row::Field(name, field) => format!(
                "printf(\"field\\t{name}\\t{field}\\t%zu\\t%zu\\n\", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));\n"
            ),
            Row::Const(name) => format!("printf(\"const\\t{name}\\t%llu\\n\", (unsigned long long)({name}));\n"),
        });
    }
    text.push_str("return 0;\n}\n");
    text
}

/// Lines that say where two tables differ.
fn differences(table: &[(Row, String)], headers: &[(Row, String)]) -> Vec<String> {
    let theirs: BTreeMap<_, _> = headers.iter().map(|(row, numbers)| (row, numbers)).collect();
    let name = |row: &Row| match row {
        Row::Size(name) => format!("sizeof({name})"),
        Row::Field(name, field) => format!("{name}, {field} (offset, size)"),
        Row::Const(name) => name.clone(),
    };
    let show = |numbers: &str| numbers.replace('\t', ", ");
    table
        .iter()
        .filter_map(|(row, ours)| match theirs.get(row) {
            Some(theirs) if *theirs == ours => None,
            Some(theirs) => Some(format!("{}: table {}, headers {}", name(row), show(ours), show(theirs))),
            None => Some(format!("{}: not printed", name(row))),
        })
        .collect()
}

/// The headers of Debian's newest `linux-source`, and its name and version.
fn headers(mirror: Option<&str>) -> Result<(PathBuf, String)> {
    let cache = Cache::open()?;
    let apt = Apt::open(cache.path("apt-source"), mirror, &SUITES, "")?;
    apt.update()?;
    let key = |name: &str| -> Vec<u64> {
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
    };
    let package = apt
        .names("linux-source-")?
        .into_iter()
        .filter(|name| name.trim_start_matches("linux-source-").chars().all(|c| c.is_ascii_digit() || c == '.'))
        .max_by_key(|name| key(name))
        .context("apt knows no package linux-source-N.N")?;
    let debs = apt.resolve(&[&package], false)?;
    let deb = debs.first().context("apt names no file for it")?;
    let (_, version) = deb.name_version();
    let dir = source::drivers(&cache, &apt, &package, deb)?.join(source::ETHERNET);
    Ok((dir, format!("{package} {version}")))
}

/// Compiles and runs the program.
fn print(rows: &[(Row, String)], headers: &Path) -> Result<String> {
    let ids: String = fs::read_to_string(headers.join("ionic.h"))
        .with_context(|| format!("cannot read ionic.h in {}", headers.display()))?
        .lines()
        .filter(|l| l.starts_with("#define PCI_VENDOR_ID_PENSANDO") || l.starts_with("#define PCI_DEVICE_ID_PENSANDO"))
        .flat_map(|l| [l, "\n"])
        .collect();
    // Both are folders of the kernel's `drivers`.
    let rdma = headers.join("../../../..").join(source::RDMA.trim_start_matches("drivers/"));
    let rdma_header = fs::read_to_string(rdma.join(RDMA_HEADER))
        .with_context(|| format!("cannot read {RDMA_HEADER} in {}", rdma.display()))?;
    let dir = tempfile::tempdir()?;
    let (source, binary) = (dir.path().join("layout.c"), dir.path().join("layout"));
    for empty in ["linux/io.h", "linux/kernel.h", "rdma/ib_verbs.h"] {
        let path = dir.path().join(empty);
        fs::create_dir_all(path.parent().unwrap_or_else(|| dir.path()))?;
        fs::write(path, "")?;
    }
    fs::write(&source, program(rows.iter().map(|(row, _)| row), &(ids + &ib_constants(&rdma_header))))?;
    let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    if !process::on_path(&cc) {
        bail!("no C compiler: `{}` is not on this machine; install gcc or clang, or name one in CC", cc.display());
    }
    process::output(
        Command::new(&cc)
            .arg("-w")
            .args([Path::new("-I"), headers, Path::new("-I"), &rdma, Path::new("-I"), dir.path()])
            .arg("-o")
            .args([&binary, &source]),
    )
    .context("the headers do not have what the table names, or have it otherwise")?;
    process::stdout(&mut Command::new(&binary))
}

/// Compares the committed table with the headers, or writes it.
///
/// # Errors
/// When the table differs from the headers, or the headers cannot be fetched or compiled.
pub fn run(args: &AbiArgs) -> Result<()> {
    let path = workspace().join(TABLE);
    let table = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let rows = parse(&table)?;
    let (headers, version) = match &args.headers {
        Some(dir) => (std::path::absolute(dir)?, format!("headers in {}", dir.display())),
        None => headers(args.mirror.as_deref())?,
    };
    let printed = print(&rows, &headers)?;
    if args.write {
        let head = format!(
            "# Made by `cargo xtask abi-check --write` from {version}, {}; the numbers are not to be edited.\n\
             # size TYPE SIZE | field TYPE FIELD OFFSET SIZE | const NAME VALUE, all in bytes, on a 64-bit little-endian machine.\n",
            HEADERS.join(", ")
        );
        fs::write(&path, head + &printed)?;
        say!("wrote {} rows to {TABLE} from {version}", rows.len());
        return Ok(());
    }
    let differences = differences(&rows, &parse(&printed)?);
    for line in &differences {
        println!("{line}");
    }
    if !differences.is_empty() {
        bail!(
            "{} of {} rows of {TABLE} differ from {version}; if the kernel changed, run `cargo xtask abi-check --write` and make `ionic-abi` agree",
            differences.len(),
            rows.len()
        );
    }
    println!("abi-check: {} rows agree with {version}", rows.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "# a comment\nsize\tstruct a\t8\nfield\tstruct a\tb.c\t4\t2\nconst\tD\t7\n";

    #[test]
    fn the_program_prints_every_row() {
        let rows = parse(ROWS).unwrap();
        let text = program(rows.iter().map(|(row, _)| row), "#define D 7\n");
        assert!(text.contains("printf(\"size\\tstruct a\\t%zu\\n\", sizeof(struct a));"), "{text}");
        assert!(text.contains("offsetof(struct a, b.c), sizeof(((struct a *)0)->b.c)"), "{text}");
        assert!(text.contains("printf(\"const\\tD\\t%llu\\n\", (unsigned long long)(D));"), "{text}");
        assert!(text.contains("#define D 7\n#include \"ionic_if.h\""), "{text}");
    }

    #[test]
    fn constants_of_other_headers_are_made_up() {
        let header = "if (a & IB_B) return IB_B; case IB_A: NOT_IB_C";
        assert!(ib_constants(header).starts_with("enum { IB_A, IB_B };\n"), "{}", ib_constants(header));
    }

    #[test]
    fn a_difference_names_field_and_numbers() {
        let table = parse(ROWS).unwrap();
        assert_eq!(differences(&table, &table), [""; 0]);
        let headers = parse(&ROWS.replace("b.c\t4", "b.c\t6").replace("const\tD\t7\n", "")).unwrap();
        assert_eq!(
            differences(&table, &headers),
            ["struct a, b.c (offset, size): table 4, 2, headers 6, 2", "D: not printed"]
        );
    }

    #[test]
    fn a_bad_row_is_refused() {
        assert!(parse("size\tstruct a\n").is_err());
        assert!(parse("offset\tstruct a\t1\n").is_err());
    }

    #[test]
    fn the_committed_table_is_well_formed() {
        let rows = parse(&fs::read_to_string(workspace().join(TABLE)).unwrap()).unwrap();
        assert!(rows.iter().all(|(_, numbers)| numbers.split('\t').all(|n| n.parse::<u64>().is_ok())));
        for name in ["union ionic_lif_identity", "struct ionic_admin_create_mr"] {
            assert!(rows.iter().any(|(row, _)| *row == Row::Size(name.to_owned())), "{name}");
        }
    }
}
