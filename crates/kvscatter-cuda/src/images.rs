//! The kernels, compiled ahead as machine code for the devices that the compiler knew, and as PTX for all
//! others.
//!
//! `kernels/images/made-by.txt` has the command that made them.

use std::io::Read as _;

use flate2::read::GzDecoder;

/// Bytes at an address with the alignment that machine code needs.
#[repr(C, align(16))]
struct Aligned<T: ?Sized>(T);

/// The PTX as gzip, at a twelfth of its size. It is needed only if the machine code does not run.
static PTX: &[u8] = include_bytes!("../kernels/images/kvscatter.ptx.gz");

/// The compute capability for which the PTX is made. Later devices run it too.
pub(crate) const MIN_CAPABILITY: (i32, i32) = (7, 5);

/// A limit above the size of the PTX.
const MAX_PTX: u64 = 8 << 20;

/// Returns machine code for several devices in one file. The driver chooses from it.
pub(crate) fn machine_code() -> &'static [u8] {
    static FATBIN: &Aligned<[u8]> = &Aligned(*include_bytes!("../kernels/images/kvscatter.fatbin"));
    &FATBIN.0
}

/// Returns PTX, which the driver compiles for its device. It ends with a zero.
pub(crate) fn ptx() -> Vec<u8> {
    let mut text = Vec::new();
    // A damaged file would give a text that ends too early, which the driver would reject. A test excludes
    // damage.
    let _ = GzDecoder::new(PTX).take(MAX_PTX).read_to_end(&mut text);
    text.push(0);
    text
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::{MAX_PTX, MIN_CAPABILITY, PTX, machine_code, ptx};

    #[test]
    fn the_driver_is_given_what_it_reads() {
        assert!(machine_code().starts_with(&[0x50, 0xED, 0x55, 0xBA]));
        assert_eq!(machine_code().as_ptr().addr() % 16, 0);
        let mut text = String::new();
        GzDecoder::new(PTX).read_to_string(&mut text).unwrap(); // Reads to the end, where the checksum is.
        assert!(text.contains(".version") && text.contains(".target") && !text.contains('\0'));
        assert!((text.len() as u64) < MAX_PTX);
        let (major, minor) = MIN_CAPABILITY;
        assert!(text.contains(&format!("\n.target sm_{major}{minor}\n")));
        assert_eq!(ptx(), [text.as_bytes(), &[0]].concat());
    }
}
