//! Writes sources that contain many of cargo-mutants' mutants at once, each with a switch that turns it on.
//!
//! A mutant then costs one run of the tests, and no build. The environment variable `KVSCATTER_MUTANT` chooses a
//! mutant when the tests start. Without it, the sources do what the original ones do.
//!
//! Usage: `mutant_switches SOURCES COPY ROOT_FILE LEFT_OUT < MUTANTS`
//!
//! `MUTANTS` is the output of `cargo mutants --list --json`. A mutant's number is its position there. `LEFT_OUT` is a
//! JSON list of numbers that get no switch. The files below `SOURCES` are read, and those with mutants are written
//! below `COPY`. `ROOT_FILE` is the root of their crate. The output is a JSON list of [`Region`]s.

mod mutant;
mod sites;
#[cfg(test)]
mod tests;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::Path;
use std::{env, fs, io};

use mutant::Mutant;
use text::Region;

/// What the switches call.
const SWITCH: &str = r#"
#[allow(warnings)]
pub mod kvscatter_mutant {
    extern crate std;
    use std::sync::atomic::{AtomicU32, Ordering};

    unsafe extern "C" {
        fn getenv(name: *const core::ffi::c_char) -> *const core::ffi::c_char;
    }

    static CHOSEN: AtomicU32 = AtomicU32::new(0);

    /// Returns whether this mutant is chosen.
    #[inline(never)]
    pub fn is(number: u32) -> bool {
        let mut chosen = CHOSEN.load(Ordering::Relaxed);
        if chosen == 0 {
            // Tests count allocations, and this allocates nothing.
            let text = unsafe { getenv(c"KVSCATTER_MUTANT".as_ptr()) };
            let text = if text.is_null() { c"" } else { unsafe { core::ffi::CStr::from_ptr(text) } };
            let named = core::str::from_utf8(text.to_bytes()).ok().and_then(|text| text.parse().ok());
            chosen = named.map_or(u32::MAX, |number: u32| number + 1);
            CHOSEN.store(chosen, Ordering::Relaxed);
        }
        chosen == number + 1
    }
}
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [sources, copy, root_file, left_out] = arguments.as_slice() else {
        return Err("usage: mutant_switches SOURCES COPY ROOT_FILE LEFT_OUT < MUTANTS".into());
    };
    let left_out: BTreeSet<u32> = serde_json::from_slice(&fs::read(left_out)?)?;
    let mutants: Vec<Mutant> = serde_json::from_reader(io::stdin())?;
    let mut files: BTreeMap<&str, Vec<(u32, &Mutant)>> = BTreeMap::from([(root_file.as_str(), Vec::new())]);
    for (number, mutant) in (0..).zip(&mutants) {
        // A file whose mutants are all left out is written as it is.
        let switched = files.entry(&mutant.file).or_default();
        if !left_out.contains(&number) {
            switched.push((number, mutant));
        }
    }
    let mut regions: Vec<Region> = Vec::new();
    for (file, mutants) in files {
        let source = fs::read_to_string(Path::new(sources).join(file))?;
        let sites = sites::find(&source, &mutants)?;
        let mut written = text::write(file, &source, &sites, &mut regions);
        if file == root_file {
            written.push_str(SWITCH);
        }
        fs::write(Path::new(copy).join(file), written)?;
    }
    println!("{}", serde_json::to_string(&regions)?);
    Ok(())
}
