//! Mapped memory on pages of a known size.

use std::fs;
use std::io;
use std::ops::{Deref, DerefMut};

use memmap2::{Advice, MmapMut};

use crate::{Error, Pages};

/// The larger of the two page sizes; every buffer begins on such a boundary.
const ALIGN: usize = 2 << 20;

/// A zeroed buffer of its own, aligned to 2 MiB, every page of it touched.
#[derive(Debug)]
pub(crate) struct Region {
    map: MmapMut,
    start: usize,
    len: usize,
}

impl Region {
    pub(crate) fn new(len: usize, pages: Pages) -> Result<Self, Error> {
        let system = |what| move |cause| Error::System { what, cause };
        // Whole large pages, and room to begin on a boundary.
        let room = len.next_multiple_of(ALIGN) + ALIGN;
        let mut map = MmapMut::map_anon(room).map_err(system("memory map"))?;
        map.advise(advice(pages)).map_err(system("page size"))?;
        let start = map.as_ptr().align_offset(ALIGN);
        let end = start + len.next_multiple_of(ALIGN);
        map[start..end].iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        map[start..end].iter_mut().step_by(4096).for_each(|byte| *byte = 0);
        Ok(Self { map, start, len })
    }

    /// Bytes that a region of this length takes.
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

fn advice(pages: Pages) -> Advice {
    match pages {
        Pages::Small => Advice::NoHugePage,
        Pages::Huge => Advice::HugePage,
    }
}

/// Bytes that can be allocated without swapping.
pub(crate) fn available() -> Result<u64, Error> {
    counted("/proc/meminfo", "MemAvailable:")
}

/// Bytes of this process on large pages.
pub(crate) fn on_huge_pages() -> Result<u64, Error> {
    counted("/proc/self/smaps_rollup", "AnonHugePages:")
}

/// A line such as `MemAvailable:   24010032 kB`.
fn counted(file: &'static str, key: &str) -> Result<u64, Error> {
    let text = fs::read_to_string(file).map_err(|cause| Error::System { what: file, cause })?;
    let kib =
        text.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix("kB")?.trim().parse().ok());
    let missing = || Error::System { what: file, cause: io::Error::other(format!("no {key}")) };
    kib.map(|kib: u64| kib << 10).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::{ALIGN, Region, available, on_huge_pages};
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
    fn the_system_counts() {
        assert!(available().unwrap() > 1 << 20);
        on_huge_pages().unwrap();
    }
}
