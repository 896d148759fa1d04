//! The checked-in counts, and the comparison with them.
//!
//! The first line of the table is the output of `rustc --version`, because the counts depend on the compiler. Every
//! other line has the instructions of one call and the name of a case.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::fs;

use crate::Result;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions/counts.txt");

/// A change is reported if it exceeds these limits. The changes from another version of the C library or of
/// valgrind are smaller.
const TOLERANCE: Tolerance = Tolerance { instructions: 4, percent: 3 };

struct Tolerance {
    instructions: u64,
    percent: u64,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) rustc: String,
    pub(crate) instructions: BTreeMap<String, u64>,
}

impl Counts {
    pub(crate) fn read() -> Result<Self> {
        let text = fs::read_to_string(PATH).map_err(|why| format!("{PATH}: {why}"))?;
        let mut counts = Self::default();
        for line in text.lines() {
            match line.trim_start().split_once(' ').map(|(count, name)| (count.parse(), name)) {
                Some((Ok(count), name)) => _ = counts.instructions.insert(name.to_owned(), count),
                _ if counts.rustc.is_empty() => line.clone_into(&mut counts.rustc),
                _ => return Err(format!("{PATH}: '{line}' is not a count and a name").into()),
            }
        }
        Ok(counts)
    }

    pub(crate) fn write(&self) -> Result<()> {
        let mut text = format!("{}\n", self.rustc);
        for (name, count) in &self.instructions {
            writeln!(text, "{count:>6} {name}")?;
        }
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
