//! Reserves room on the disk for bytes that are about to be stored through a memory map.
//!
//! A store into a hole of a sparse file needs a new block. If the disk is full, the operating system ends the
//! command with a signal, after other bytes have changed. Therefore the blocks are reserved first, and a full
//! disk is an error before any byte changes.

use std::fs::File;
use std::io;
use std::ops::Range;

use kvscatter::WritePlan;

/// Reserves ranges of a file. Ranges in neighbouring pages are reserved in one call.
struct Pages<'a> {
    file: &'a File,
    wanted: Option<Range<u64>>,
    result: io::Result<()>,
}

/// The usual page size. Another size only changes how often the operating system is called.
const PAGE: u64 = 4096;

/// Reserves the bytes that a plan writes, in a file whose tensor begins at `offset`.
///
/// # Errors
/// Returns the errors of the file system. No byte has changed then.
pub(super) fn reserve(file: &File, offset: u64, plan: &WritePlan<'_>) -> io::Result<()> {
    let mut pages = Pages { file, wanted: None, result: Ok(()) };
    // A plan of strings writes no bytes.
    let Some(width) = plan.geometry().element().bits() else { return Ok(()) };
    // P1: every run is inside its buffer, whose size in bits fits u64.
    let wide = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let bits = |elements: usize| wide(elements).saturating_mul(wide(width));
    plan.for_each_block(|block| {
        block.for_each_run(|to, _| {
            let [start, end] = [bits(to) / 8, bits(to.saturating_add(block.len)).div_ceil(8)];
            pages.add(offset.saturating_add(start)..offset.saturating_add(end));
        });
    });
    pages.ask();
    pages.result
}

impl Pages<'_> {
    fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        match &mut self.wanted {
            Some(wanted) if is_next_to(wanted, &range) => {
                wanted.start = wanted.start.min(range.start);
                wanted.end = wanted.end.max(range.end);
            }
            _ => {
                self.ask();
                self.wanted = Some(range);
            }
        }
    }

    fn ask(&mut self) {
        if let (Some(range), Ok(())) = (self.wanted.take(), &self.result) {
            self.result = allocate(self.file, range);
        }
    }
}

/// Returns whether there is no page between the two.
fn is_next_to(one: &Range<u64>, other: &Range<u64>) -> bool {
    let pages = |range: &Range<u64>| (range.start / PAGE, range.end.saturating_sub(1) / PAGE);
    let ((first, last), (other_first, other_last)) = (pages(one), pages(other));
    other_first <= last.saturating_add(1) && first <= other_last.saturating_add(1)
}

#[cfg(target_os = "linux")]
fn allocate(file: &File, range: Range<u64>) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::{Errno, retry_on_intr};
    let len = range.end.saturating_sub(range.start);
    match retry_on_intr(|| fallocate(file, FallocateFlags::KEEP_SIZE, range.start, len)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_again(file, range),
        result => Ok(result?),
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
fn allocate(file: &File, range: Range<u64>) -> io::Result<()> {
    write_again(file, range)
}

/// Writes one byte of every block again with its old value, so that the file system allocates the block. C
/// libraries do the same on file systems that cannot reserve. The file is locked against other commands of
/// this program.
#[cfg(unix)]
fn write_again(file: &File, range: Range<u64>) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    // No file system has smaller blocks.
    const BLOCK: u64 = 512;
    let mut at = range.start;
    while at < range.end {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at)?;
        file.write_all_at(&byte, at)?;
        at = (at / BLOCK).saturating_add(1).saturating_mul(BLOCK);
    }
    Ok(())
}

#[cfg(not(unix))]
fn allocate(_: &File, _: Range<u64>) -> io::Result<()> {
    // Files have no holes here unless a program asks for them.
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use kvscatter::ElementType;
    use kvscatter::spec::onnx::TensorScatter;

    use super::{reserve, write_again};

    /// Writes 8193 4-bit rows into each of 16 samples of 512 KiB, in a file with a hole after its first 100
    /// bytes.
    #[test]
    fn planned_bytes_are_reserved_and_nothing_changes() {
        let write =
            TensorScatter::new().axis(1).prepare(ElementType::Int4, &[16, 1 << 20], &[16, 8193]).unwrap();
        let starts = [5_i64; 16];
        let plan = write.plan(&starts).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 100]).unwrap();
        let len = 100 + (16 << 19);
        file.set_len(len).unwrap();
        let before = file.metadata().unwrap().blocks();
        reserve(&file, 100, &plan).unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!(meta.len(), len);
        // Each sample has 4097 bytes, and at most one block more at either end.
        let got = (meta.blocks() - before) * 512;
        assert!((16 * 4097..16 * 4 * 4096).contains(&got), "{got}");
    }

    #[test]
    fn writing_again_reserves_too() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 100]).unwrap();
        file.set_len(1 << 20).unwrap();
        let before = file.metadata().unwrap().blocks();
        write_again(&file, 50..(64 << 10) + 1).unwrap();
        assert!((file.metadata().unwrap().blocks() - before) * 512 >= 60 << 10);
        let mut bytes = vec![1; 1 << 20];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
        assert!(bytes[..100] == [7; 100] && bytes[100..].iter().all(|&byte| byte == 0));
    }
}
