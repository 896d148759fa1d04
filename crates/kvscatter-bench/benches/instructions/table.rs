//! The checked-in counts, and the comparison with them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

use serde::{Deserialize, Serialize};

use crate::Result;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions/counts.toml");

const HEADER: &str = "\
# Instructions per call of the AVX2 kernels, counted by `cargo xtask instructions --bless`.
# The counts depend on the compiler, so its version is recorded.

";

/// A change is reported if it exceeds these limits. The changes from another version of the C library or of
/// valgrind are smaller.
const TOLERANCE: Tolerance = Tolerance { instructions: 4, percent: 3 };

struct Tolerance {
    instructions: u64,
    percent: u64,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Counts {
    /// The compiler of the counts: the output of `rustc --version`.
    pub(crate) rustc: String,
    /// The number of instructions of one call, for each case.
    pub(crate) instructions: BTreeMap<String, u64>,
}

impl Counts {
    pub(crate) fn read() -> Result<Self> {
        let text = fs::read_to_string(PATH).map_err(|why| format!("{PATH}: {why}"))?;
        Ok(toml::from_str(&text).map_err(|why| format!("{PATH}: {why}"))?)
    }

    pub(crate) fn write(&self) -> Result<()> {
        let text = format!("{HEADER}{}", toml::to_string(self)?);
        Ok(fs::write(PATH, text).map_err(|why| format!("{PATH}: {why}"))?)
    }
}

/// The counts of one case, before and now.
pub(crate) struct Change {
    pub(crate) name: &'static str,
    /// The checked-in count, or `None` if the table does not contain the case.
    pub(crate) was: Option<u64>,
    pub(crate) is: u64,
}

impl Change {
    pub(crate) fn is_regression(&self) -> bool {
        self.was.is_some_and(|was| self.is > was + tolerated(was))
    }

    pub(crate) fn is_gain(&self) -> bool {
        self.was.is_some_and(|was| self.is + tolerated(was) < was)
    }
}

fn tolerated(was: u64) -> u64 {
    TOLERANCE.instructions.max(was * TOLERANCE.percent / 100)
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, was, is } = self;
        let word = match was {
            None => "NEW",
            Some(_) if self.is_regression() => "SLOWER",
            Some(_) if self.is_gain() => "faster",
            Some(_) => "",
        };
        let was = was.map_or_else(|| "-".to_owned(), |was| was.to_string());
        write!(f, "{name:<44} was {was:>7} is {is:>7} {word}")
    }
}
