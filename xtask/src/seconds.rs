//! The times of the last run of each step, in a file of the build folder.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};

use crate::cargo::target_dir;

/// How long a step took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spent {
    pub(crate) time: Duration,
    /// The time of processors that its programs used, or zero on systems without `/proc`.
    pub(crate) processor: Duration,
    pub(crate) has_failed: bool,
}

const FAILED: &str = "failed";

/// Returns the file, a table with a line for each step.
pub(crate) fn file() -> PathBuf {
    target_dir().join("steps").join("seconds.tsv")
}

/// Replaces the times of these steps.
pub(crate) fn record(steps: &[(&str, Spent)]) -> io::Result<()> {
    let mut all = read();
    all.extend(steps.iter().map(|&(name, spent)| (name.to_owned(), spent)));
    fs::create_dir_all(target_dir().join("steps"))?;
    fs::write(file(), table(&all))
}

/// Returns the times of the steps that the file has.
pub(crate) fn read() -> BTreeMap<String, Spent> {
    parse(&fs::read_to_string(file()).unwrap_or_default())
}

fn table(steps: &BTreeMap<String, Spent>) -> String {
    let lines = steps.iter().map(|(name, &Spent { time, processor, has_failed })| {
        let [time, processor] = [time, processor].map(|time| time.as_secs_f64());
        format!("{name}\t{time:.1}\t{processor:.1}\t{}\n", if has_failed { FAILED } else { "passed" })
    });
    ["step\tseconds\tprocessor seconds\tresult\n".to_owned()].into_iter().chain(lines).collect()
}

fn parse(text: &str) -> BTreeMap<String, Spent> {
    let seconds = |word: &str| Duration::try_from_secs_f64(word.parse().ok()?).ok();
    let line = |line: &str| {
        let mut words = line.split('\t');
        let name = words.next()?.to_owned();
        let [time, processor] = [seconds(words.next()?)?, seconds(words.next()?)?];
        Some((name, Spent { time, processor, has_failed: words.next() == Some(FAILED) }))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_times_are_left_out() {
        let text = "step\tseconds\tprocessor seconds\tresult\n\
                    c\t1.0\t2.0\tfailed\nunit\t1.5\t3.0\tpassed\n";
        let spent = |time, processor, has_failed| {
            let [time, processor] = [time, processor].map(Duration::from_secs_f64);
            Spent { time, processor, has_failed }
        };
        let steps = [("c", spent(1.0, 2.0, true)), ("unit", spent(1.5, 3.0, false))];
        let steps = BTreeMap::from(steps.map(|(name, spent)| (name.to_owned(), spent)));
        assert_eq!(parse(&format!("{text}fmt\t-1\t2\tpassed\nlint\t2\n")), steps);
        assert_eq!(table(&steps), text);
    }
}
