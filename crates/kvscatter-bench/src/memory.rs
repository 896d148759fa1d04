//! Mapped memory on pages of a known size.

use std::fs;
use std::io;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

use crate::{BenchError, Pages};

/// The larger of the two page sizes. Every buffer begins at a multiple of it.
const ALIGN: usize = 2 << 20;

/// An owned buffer of zeros, aligned to 2 MiB. Every page of it has been touched.
#[derive(Debug)]
pub(crate) struct Region {
    map: MmapMut,
    start: usize,
    len: usize,
}

impl Region {
    pub(crate) fn new(len: usize, pages: Pages) -> Result<Self, BenchError> {
        let system = |what| move |cause| BenchError::System { what, cause };
        // The mapping consists of whole large pages, with room to begin at a multiple of `ALIGN`.
        let room = len.next_multiple_of(ALIGN) + ALIGN;
        let mut map = MmapMut::map_anon(room).map_err(system("memory map"))?;
        advise(&map, pages).map_err(system("page size"))?;
        let start = map.as_ptr().align_offset(ALIGN);
        let end = start + len.next_multiple_of(ALIGN);
        map[start..end].iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        map[start..end].iter_mut().step_by(4096).for_each(|byte| *byte = 0);
        Ok(Self { map, start, len })
    }

    /// Returns the number of bytes that a region of this length takes.
    pub(crate) fn size(len: usize) -> u64 {
        len.next_multiple_of(ALIGN) as u64
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[self.start..self.start + self.len]
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.start..self.start + self.len]
    }
}

#[cfg(target_os = "linux")]
fn advise(map: &MmapMut, pages: Pages) -> io::Result<()> {
    map.advise(match pages {
        Pages::Small => memmap2::Advice::NoHugePage,
        Pages::Huge => memmap2::Advice::HugePage,
    })
}

/// Returns an error, because only Linux lets a program choose the page size.
#[cfg(not(target_os = "linux"))]
fn advise(_map: &MmapMut, _pages: Pages) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns the number of bytes that can be allocated without swapping.
pub(crate) fn available() -> Result<u64, BenchError> {
    let text = read("/proc/meminfo")?;
    text.lines().find_map(|line| kib(line, "MemAvailable:")).ok_or_else(|| BenchError::System {
        what: "/proc/meminfo",
        cause: io::Error::other("no MemAvailable"),
    })
}

/// Returns the number of bytes of these regions that are on 2 MiB pages.
pub(crate) fn on_huge_pages<'r>(regions: impl IntoIterator<Item = &'r Region>) -> Result<u64, BenchError> {
    let mappings = mappings(&read("/proc/self/smaps")?);
    let of_region = |region: &Region| {
        let (first, size) = (region.as_ptr().addr() as u64, Region::size(region.len));
        let overlaps = |mapping: &&Mapping| mapping.first < first + size && first < mapping.end;
        // A mapping may contain several regions. It then reports the sum over all of them.
        mappings.iter().filter(overlaps).map(|mapping| mapping.huge).sum::<u64>().min(size)
    };
    Ok(regions.into_iter().map(of_region).sum())
}

/// A range of addresses, and the number of its bytes on 2 MiB pages.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    first: u64,
    end: u64,
    huge: u64,
}

fn mappings(smaps: &str) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in smaps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
        if let Some((first, end)) = range.and_then(|(first, end)| hex(first).zip(hex(end))) {
            mappings.push(Mapping { first, end, huge: 0 });
        } else if let (Some(huge), Some(mapping)) = (kib(line, "AnonHugePages:"), mappings.last_mut()) {
            mapping.huge = huge;
        }
    }
    mappings
}

/// Returns the number of bytes in a line such as `MemAvailable:   24010032 kB`.
fn kib(line: &str, key: &str) -> Option<u64> {
    let kib: u64 = line.strip_prefix(key)?.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

fn read(file: &'static str) -> Result<String, BenchError> {
    fs::read_to_string(file).map_err(|cause| BenchError::System { what: file, cause })
}

#[cfg(test)]
mod tests {
    use super::{ALIGN, Mapping, Region, available, mappings, on_huge_pages};
    use crate::Pages;

    #[test]
    fn aligned_zeroed_and_as_long_as_asked_for() {
        for pages in [Pages::Small, Pages::Huge] {
            for len in [0, 1, 4096, ALIGN, ALIGN + 1] {
                let region = Region::new(len, pages).unwrap();
                assert_eq!((region.len(), region.as_ptr().align_offset(ALIGN)), (len, 0));
                assert!(region.iter().all(|&byte| byte == 0));
            }
        }
    }

    #[test]
    fn pages_are_those_that_were_asked_for() {
        let region = |pages| Region::new(2 * ALIGN, pages).unwrap();
        let (small, huge) = (region(Pages::Small), region(Pages::Huge));
        assert_eq!(on_huge_pages([&small]).unwrap(), 0);
        let never =
            super::read("/sys/kernel/mm/transparent_hugepage/enabled").is_ok_and(|it| it.contains("[never]"));
        assert_eq!(on_huge_pages([&huge]).unwrap(), if never { 0 } else { 2 * ALIGN as u64 });
        assert!(available().unwrap() > 1 << 20);
    }

    #[test]
    fn mappings_as_the_kernel_lists_them() {
        let smaps = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \nSize: 4096 kB\nAnonHugePages:      2048 kB\nVmFlags: rd wr mr
7fff00000000-7fff00001000 r-xp 00000000 00:00 0                          [vdso]\nAnonHugePages:         0 kB\n";
        let first = Mapping { first: 0x7f00_0000_0000, end: 0x7f00_0040_0000, huge: 2 << 20 };
        let vdso = Mapping { first: 0x7fff_0000_0000, end: 0x7fff_0000_1000, huge: 0 };
        assert_eq!(mappings(smaps), [first, vdso]);
    }
}
