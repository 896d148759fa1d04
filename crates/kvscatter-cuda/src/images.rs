//! The kernels, compiled ahead: machine code for the devices that the compiler knew, and PTX for all others.
//!
//! `kernels/images/made-by.txt` has the command that made them.

/// What the driver may read at any address that it is given machine code at.
#[repr(C, align(16))]
struct Aligned<T: ?Sized>(T);

/// Machine code for several devices in one file: the driver takes what fits.
pub(crate) fn machine_code() -> &'static [u8] {
    static FATBIN: &Aligned<[u8]> = &Aligned(*include_bytes!("../kernels/images/kvscatter.fatbin"));
    &FATBIN.0
}

/// PTX, which the driver compiles for whatever device there is. It ends with a zero.
pub(crate) fn ptx() -> &'static [u8] {
    concat!(include_str!("../kernels/images/kvscatter.ptx"), "\0").as_bytes()
}

#[cfg(test)]
mod tests {
    use super::{machine_code, ptx};

    #[test]
    fn the_driver_is_given_what_it_reads() {
        assert!(machine_code().starts_with(&[0x50, 0xED, 0x55, 0xBA]));
        assert_eq!(machine_code().as_ptr().addr() % 16, 0);
        assert_eq!(ptx().iter().position(|&byte| byte == 0), Some(ptx().len() - 1));
        let text = std::str::from_utf8(ptx()).unwrap();
        assert!(text.contains(".version") && text.contains(".target"));
    }
}
