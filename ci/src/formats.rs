//! What making a guest image needs to know of file formats: ELF, compressed kernel modules, the Linux boot image.

use std::io::{Cursor, Read};

use anyhow::{Context, Result, bail};
use object::elf::DT_NEEDED;
use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSection as _};

fn parse(data: &[u8]) -> Result<ElfFile64<'_, Endianness>> {
    ElfFile64::<Endianness>::parse(data).context("not a 64-bit ELF file")
}

/// The file names of the shared libraries and the program interpreter that an ELF program or library asks for.
///
/// # Errors
/// When `data` is not a well-formed 64-bit ELF file.
pub fn needed(data: &[u8]) -> Result<Vec<String>> {
    let elf = parse(data)?;
    let table = elf.elf_dynamic_table()?;
    let mut names = Vec::new();
    for entry in &table {
        if entry.tag == DT_NEEDED {
            names.push(String::from_utf8_lossy(table.string(entry)?).into_owned());
        }
    }
    for segment in elf.elf_program_headers() {
        if let Some(path) = segment.interpreter(elf.endian(), data)? {
            let path = String::from_utf8_lossy(path);
            names.push(path.rsplit('/').next().unwrap_or_default().to_owned());
        }
    }
    Ok(names)
}

/// The names of the modules that a kernel module depends on: `depends=` in its section `.modinfo`, which is a run of
/// NUL-terminated `name=value` (Linux `include/linux/moduleparam.h`, `__MODULE_INFO`).
///
/// # Errors
/// When `data` is not a well-formed module.
pub fn module_depends(data: &[u8]) -> Result<Vec<String>> {
    let elf = parse(data)?;
    let section = elf.section_by_name(".modinfo").context("a kernel module without .modinfo")?;
    for entry in section.data()?.split(|b| *b == 0) {
        if let Some(list) = entry.strip_prefix(b"depends=") {
            let list = String::from_utf8_lossy(list);
            return Ok(list.split(',').filter(|n| !n.is_empty()).map(module_name).collect());
        }
    }
    Ok(Vec::new())
}

/// The name under which the kernel knows a module: dashes are underscores.
pub fn module_name(name: &str) -> String {
    name.replace('-', "_")
}

/// The module in a file named `.ko`, `.ko.xz` or `.ko.zst`.
///
/// # Errors
/// When the compressed data is broken.
pub fn module_bytes(file_name: &str, data: Vec<u8>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    if file_name.ends_with(".xz") {
        lzma_rust2::XzReader::new(Cursor::new(data), true).read_to_end(&mut out)?;
    } else if file_name.ends_with(".zst") {
        out = unzstd(&data)?;
    } else {
        out = data;
    }
    Ok(out)
}

fn unzstd(data: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    ruzstd::decoding::StreamingDecoder::new(data)?.read_to_end(&mut out)?;
    Ok(out)
}

/// The ELF kernel inside a `vmlinuz`, which QEMU starts faster than the boot image, by its PVH entry. Setup header
/// fields (Linux `Documentation/arch/x86/boot.rst`): setup_sects at 0x1f1, payload_offset at 0x248, payload_length at
/// 0x24c; the payload starts that far behind the setup sectors.
///
/// # Errors
/// When `image` is not a Linux boot image, or its payload is not zstd.
pub fn vmlinux(image: &[u8]) -> Result<Vec<u8>> {
    let word = |at: usize| -> Option<usize> {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let cut = || {
        if image.get(0x202..0x206).is_none() || &image[0x202..0x206] == b"\0\0\0\0" {
            return None;
        }
        let setup = (usize::from(*image.get(0x1f1)?) + 1) * 512;
        let start = setup.checked_add(word(0x248)?)?;
        image.get(start..start.checked_add(word(0x24c)?)?)
    };
    let payload = cut().context("not a Linux boot image")?;
    if !payload.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        bail!("the kernel's payload is not zstd (it starts with {:02x?})", payload.get(..4).unwrap_or_default());
    }
    let kernel = unzstd(payload)?;
    if !kernel.starts_with(b"\x7fELF") {
        bail!("the kernel's payload is not an ELF file");
    }
    Ok(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_program_needs_libc_and_its_loader() {
        let me = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let names = needed(&me).unwrap();
        assert!(names.contains(&"libc.so.6".to_owned()), "{names:?}");
        assert!(names.iter().any(|n| n.starts_with("ld-linux")), "{names:?}");
    }

    #[test]
    fn what_is_not_elf_is_refused() {
        assert!(needed(b"#!/bin/sh\n").is_err());
        assert!(module_depends(&[0x7f, b'E', b'L', b'F']).is_err());
    }

    #[test]
    fn a_boot_image_is_cut_at_its_payload() {
        // Two setup sectors beside the boot sector; payload 16 bytes behind them.
        let mut image = vec![0u8; 3 * 512 + 16];
        image[0x1f1] = 2;
        image[0x202..0x206].copy_from_slice(&0x0000_020fu32.to_le_bytes());
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        // A zstd frame with one raw block: magic, descriptor (single segment, 1-byte size), size 5, block header (last, raw, 5).
        let frame = [&[0x28, 0xb5, 0x2f, 0xfd, 0x20, 5, 0x29, 0, 0][..], b"\x7fELF!"].concat();
        // The payload ends with the length of what is inside.
        let payload = [&frame[..], &5u32.to_le_bytes()].concat();
        image[0x24c..0x250].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        image.extend(&payload);
        assert_eq!(vmlinux(&image).unwrap(), b"\x7fELF!");
        image.truncate(image.len() - 1);
        assert!(vmlinux(&image).is_err());
        assert!(vmlinux(b"").is_err());
    }
}
