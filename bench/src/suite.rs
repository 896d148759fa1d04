//! Cases, subjects and targets as data, and the loop that measures them.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::measure::{Budget, Prepared, Scene, measure};
use crate::results::{CaseResults, Numbers, RowResults};
use crate::target::{Flat, Target};

/// A case, and how it is measured.
pub(crate) trait Case: DeserializeOwned {
    /// The memory of a case.
    type Scene: Scene;
    /// What subjects need besides the memory, such as loaded libraries.
    type Libraries;

    fn name(&self) -> &str;

    /// Returns the reason why the case makes no sense.
    fn check(&self) -> Result<(), String>;

    /// Returns what tables and plots show about the case.
    fn numbers(&self) -> Numbers;

    /// Paints the memory. An error is the reason why this machine cannot measure the case.
    fn scene(&self) -> Result<Self::Scene, String>;

    /// Prepares the subject with this name. An error is the reason why it does not do the case.
    fn subject(name: &str, scene: &Self::Scene, libraries: &Self::Libraries) -> Prepared<Self::Scene>;

    fn budget(&self, quick: bool) -> Budget;

    /// Makes the case shorter, for a quick run.
    fn shorten(&mut self) {}
}

/// All rows of a file of cases.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Suite<C> {
    /// The subjects of rows that name none.
    #[serde(default)]
    subjects: Vec<String>,
    #[serde(rename = "row")]
    pub(crate) rows: Vec<Row<C>>,
}

/// Cases with the same subjects and targets.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row<C> {
    pub(crate) id: String,
    /// Describes what is measured.
    pub(crate) description: String,
    /// The targets in words. Empty if the row has none.
    #[serde(default)]
    pub(crate) goal: String,
    /// The instruction set to which the process must be limited.
    #[serde(default)]
    isa: Option<String>,
    /// The plot that the row is drawn in.
    #[serde(default)]
    pub(crate) plot: Option<String>,
    #[serde(default = "yes")]
    quick: bool,
    /// The names of what is timed in turn. The first one is timed twice.
    #[serde(default)]
    pub(crate) subjects: Vec<String>,
    #[serde(default, rename = "target")]
    pub(crate) targets: Vec<Target>,
    #[serde(default)]
    flat: Option<Flat>,
    #[serde(rename = "case")]
    pub(crate) cases: Vec<C>,
}

impl<C: Case> Suite<C> {
    /// Parses a file. Checks every case, the subjects of targets, and that names are unique.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut suite: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut names = BTreeSet::new();
        for row in &mut suite.rows {
            if row.subjects.is_empty() {
                row.subjects.clone_from(&suite.subjects);
            }
            for case in &row.cases {
                case.check().map_err(|why| format!("case {}: {why}", case.name()))?;
                if !names.insert(case.name().to_owned()) {
                    return Err(format!("case {}: the name comes twice", case.name()));
                }
            }
            let targets = row.targets.iter().flat_map(|target| [&target.subject, &target.baseline]);
            let flat = row.flat.iter().flat_map(|flat| [&flat.subject, &flat.yardstick]);
            if let Some(name) = targets.chain(flat).find(|name| !row.subjects.contains(name)) {
                return Err(format!("row {}: a target names {name}, which is no subject", row.id));
            }
        }
        Ok(suite)
    }

    /// Keeps the wanted cases, by their names or the ids of their rows. An empty list keeps all.
    pub(crate) fn select(&mut self, wanted: &[String]) -> Result<(), String> {
        for word in wanted {
            if !self
                .rows
                .iter()
                .any(|row| row.id == *word || row.cases.iter().any(|case| case.name() == word))
            {
                return Err(format!("--case {word}: no row and no case is called that, see --list"));
            }
        }
        if !wanted.is_empty() {
            for row in self.rows.iter_mut().filter(|row| !wanted.contains(&row.id)) {
                row.cases.retain(|case| wanted.iter().any(|word| word == case.name()));
            }
        }
        self.rows.retain(|row| !row.cases.is_empty());
        Ok(())
    }

    /// Leaves out the rows that need another limit of instructions than `isa`, and returns a line about each.
    pub(crate) fn leave_out_other_isas(&mut self, isa: &str) -> Vec<String> {
        let others = self.rows.extract_if(.., |row| row.isa.as_deref().is_some_and(|needed| needed != isa));
        let line =
            |row: Row<C>| format!("{} is left out: it needs --isa {}", row.id, row.isa.unwrap_or_default());
        others.map(line).collect()
    }

    /// Leaves out slow rows, shortens the cases of the others, and returns a line about each row that is left out.
    pub(crate) fn shorten(&mut self) -> Vec<String> {
        self.rows.iter_mut().flat_map(|row| &mut row.cases).for_each(C::shorten);
        let slow = self.rows.extract_if(.., |row| !row.quick);
        slow.map(|row| format!("{} is left out of --quick", row.id)).collect()
    }

    /// Returns all rows and their cases for `--list`.
    pub(crate) fn list(&self) -> String {
        let line = |row: &Row<C>| {
            let cases: String = row.cases.iter().map(|case| format!("    {}\n", case.name())).collect();
            format!("{}: {}\n{cases}", row.id, row.description)
        };
        self.rows.iter().map(line).collect()
    }

    /// Measures every case, and prints its results.
    pub(crate) fn measure(&self, libraries: &C::Libraries, quick: bool) -> Vec<RowResults> {
        let mut rows = Vec::new();
        for row in &self.rows {
            let mut results =
                RowResults::new(&row.id, &row.description).goal(&row.goal).plot(row.plot.as_deref());
            println!("{}", results.title());
            for case in &row.cases {
                let measured = case.scene().and_then(|mut scene| {
                    let names = row.subjects.iter();
                    let subjects =
                        names.map(|name| (name.clone(), C::subject(name, &scene, libraries))).collect();
                    measure(&mut scene, subjects, case.budget(quick))
                });
                let mut of_case = match measured {
                    Ok(measured) => CaseResults::new(case.name(), &measured, &row.targets),
                    Err(why) => CaseResults::refused(case.name(), why),
                };
                if let (Some(flat), Some(first)) = (&row.flat, results.cases.first()) {
                    of_case.compare(first, flat);
                }
                results.push(of_case.numbers(case.numbers()));
            }
            rows.push(results);
        }
        rows
    }
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::Suite;
    use crate::attention::{self, Attention};
    use crate::write::{self, Write};

    #[test]
    fn every_case_of_every_file_is_valid() {
        for text in [write::CASES, write::CANDLE_CASES] {
            assert!(Suite::<Write>::parse(text).unwrap().rows.len() >= 2);
        }
        assert!(Suite::<Attention>::parse(attention::CASES).unwrap().rows.len() > 5);
        assert!(Suite::<Attention>::parse(attention::CACHE_TYPES).unwrap().rows.len() > 2);
    }

    #[test]
    fn an_invalid_file_is_refused() {
        let with = |row: &str| {
            let text = format!("subjects = ['memcpy']\n[[row]]\nid = 'a'\ndescription = 'b'\n{row}");
            Suite::<Write>::parse(&text).err().unwrap_or_default()
        };
        let case = "{ name = 'c', shape = [1, 4, 2], rows = 1 }";
        assert_eq!(with(&format!("case = [{case}]")), "");
        let target = "target = [{ subject = 'memcpy', baseline = 'cp', at_most = 1 }]";
        for (row, expected) in [
            ("case = [{ name = 'c', shape = [1, 4, 2], rows = 5 }]", "case c: update has 5 rows"),
            ("case = [{ name = 'c', shape = [1, 4, 2], rows = 1, colour = 1 }]", "colour"),
            (&format!("case = [{case}, {case}]"), "case c: the name comes twice"),
            (&format!("{target}\ncase = [{case}]"), "row a: a target names cp"),
        ] {
            assert!(with(row).contains(expected), "{row}: {}", with(row));
        }
    }

    #[test]
    fn rows_and_cases_are_selected_by_name() {
        let names = |suite: &Suite<Write>| -> Vec<_> {
            suite.rows.iter().flat_map(|row| &row.cases).map(|case| case.name.clone()).collect()
        };
        let suite = || Suite::<Write>::parse(write::CASES).unwrap();
        for (wanted, expected) in [
            (&["fixed", "decode-b8"], ["fixed", "decode-b8"].as_slice()),
            (&["wrap", "wrap-16"], &["wrap-16", "wrap-512"]),
        ] {
            let mut suite = suite();
            suite.select(&wanted.map(str::to_owned)).unwrap();
            assert_eq!(names(&suite), expected);
        }
        assert!(suite().select(&["decode-b3".to_owned()]).unwrap_err().contains("--list"));

        let mut quick = suite();
        assert!(quick.shorten().contains(&"prefill-large is left out of --quick".to_owned()));
        assert!(quick.rows.iter().flat_map(|row| &row.cases).all(|case| case.layers <= 8));
        let left_out = quick.leave_out_other_isas("avx2");
        assert_eq!(left_out, ["nibbles-sse2 is left out: it needs --isa sse2"]);
    }
}
