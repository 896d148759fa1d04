//! What the files of a run reached. One process writes it as JSON, and another reads it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Counts, and the most time and memory that each pass took.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Counts {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// The number of files for which each pass succeeded.
    pub(crate) passed: BTreeMap<String, u64>,
    /// The number of times that each error was returned.
    pub(crate) errors: BTreeMap<String, u64>,
    /// The most time and memory of each pass, as a share of its limit, with the seed.
    pub(crate) most: BTreeMap<String, (f64, u64)>,
    pub(crate) failures: Vec<String>,
}

impl Counts {
    pub(crate) fn passed(&mut self, pass: &str) {
        *self.passed.entry(pass.to_owned()).or_default() += 1;
    }

    pub(crate) fn error(&mut self, error: String) {
        *self.errors.entry(error).or_default() += 1;
    }

    pub(crate) fn most(&mut self, what: String, share: f64, seed: u64) {
        let most = self.most.entry(what).or_insert((share, seed));
        if share > most.0 {
            *most = (share, seed);
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.files += other.files;
        self.bytes += other.bytes;
        for (pass, count) in other.passed {
            *self.passed.entry(pass).or_default() += count;
        }
        for (error, count) in other.errors {
            *self.errors.entry(error).or_default() += count;
        }
        for (what, (share, seed)) in other.most {
            self.most(what, share, seed);
        }
        self.failures.extend(other.failures);
    }

    /// Returns the share of the files for which a pass succeeded, in percent.
    pub(crate) fn percent(&self, pass: &str) -> f64 {
        let passed = self.passed.get(pass).copied().unwrap_or_default();
        100.0 * number(passed) / number(self.files.max(1))
    }

    /// Prints what was reached.
    pub(crate) fn print(&self) {
        println!("{} files of {} bytes together", self.files, self.bytes);
        for (pass, count) in &self.passed {
            println!("  {pass}: succeeded for {count} ({:.1} %)", self.percent(pass));
        }
        println!("{} different errors", self.errors.len());
        for (error, count) in &self.errors {
            println!("  {error}: {count}");
        }
        println!("the most time and memory, as a share of the limit");
        for (what, (share, seed)) in &self.most {
            println!("  {what}: {:.1} % (seed {seed})", 100.0 * share);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "shares need no more precision")]
pub(crate) fn number(count: u64) -> f64 {
    count as f64
}
