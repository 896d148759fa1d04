//! The cases and their targets, which `cases.toml` defines.

use std::collections::BTreeSet;

use kvscatter_bench::{Case, Parameters, crosses_halves};
use serde::{Deserialize, Serialize};

/// All rows of the target table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Suite {
    #[serde(rename = "row")]
    pub(crate) rows: Vec<Row>,
    /// Targets that tests check, and that are not timed.
    #[serde(default)]
    pub(crate) tested: Vec<TestedTarget>,
}

/// A target that a test checks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestedTarget {
    pub(crate) description: String,
    pub(crate) goal: String,
    /// The test, and how it checks the target.
    pub(crate) by: String,
}

/// Cases that share a line of the target table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) id: String,
    /// Describes what is measured.
    pub(crate) description: String,
    /// The target in words. Empty if the row has none.
    #[serde(default)]
    pub(crate) goal: String,
    /// Limits the instructions that the library may use. The row is then measured in a separate process.
    #[serde(default)]
    pub(crate) isa: Option<String>,
    /// Whether every 4-bit run must move to the other half of its bytes.
    #[serde(default)]
    crosses_halves: bool,
    #[serde(default)]
    pub(crate) plot: Option<Plot>,
    #[serde(default = "yes")]
    pub(crate) peers: bool,
    #[serde(default = "yes")]
    quick: bool,
    #[serde(default, rename = "target")]
    pub(crate) targets: Vec<Target>,
    #[serde(default)]
    pub(crate) flat: Option<Flat>,
    #[serde(rename = "case")]
    pub(crate) cases: Vec<Parameters>,
}

/// The plot that a row is drawn in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Plot {
    /// Time per decode step against the batch.
    Batch,
    /// Time against the capacity.
    Capacity,
    /// Time against the capacity in functional form.
    CapacityFunctional,
    /// Bandwidth against the size of the update.
    Update,
}

/// Compares an engine with another in the same case.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    pub(crate) engine: String,
    pub(crate) baseline: String,
    /// The largest ratio of times.
    pub(crate) at_most: f64,
    /// The nanoseconds above the baseline that are allowed if they are more than the ratio allows.
    #[serde(default)]
    pub(crate) slack_ns: Option<f64>,
}

/// Compares an engine in every case of a row with itself in the first case.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Flat {
    pub(crate) engine: String,
    pub(crate) at_most: f64,
}

/// The layers of a cold case with `--quick`: two for each engine, and two for the one that has two turns.
const QUICK_LAYERS: usize = 8;

impl Suite {
    /// Parses the file, and checks every case and that names are unique.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let suite: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut names = BTreeSet::new();
        for (row, case) in suite.rows.iter().flat_map(|row| row.cases.iter().map(move |case| (row, case))) {
            // The number of threads depends on the machine, so it is not checked here.
            let single = Parameters { threads: case.threads.min(1), ..case.clone() };
            let valid = Case::new(single).map_err(|error| error.to_string())?;
            if row.crosses_halves && !crosses_halves(&valid) {
                return Err(format!(
                    "case {}: a run lies in the half of a byte that it comes from",
                    case.name
                ));
            }
            if !names.insert(&case.name) {
                return Err(format!("case {}: the name comes twice", case.name));
            }
        }
        Ok(suite)
    }

    /// Keeps the wanted cases, by their names or the ids of their rows. An empty list keeps all.
    pub(crate) fn select(&mut self, wanted: &[String]) -> Result<(), String> {
        if wanted.is_empty() {
            return Ok(());
        }
        for word in wanted {
            if !self.rows.iter().any(|row| row.has(word)) {
                return Err(format!("--case {word}: no row and no case is called that, see --list"));
            }
        }
        for row in &mut self.rows {
            if !wanted.contains(&row.id) {
                row.cases.retain(|case| wanted.contains(&case.name));
            }
        }
        self.rows.retain(|row| !row.cases.is_empty());
        Ok(())
    }

    /// Leaves out slow rows, and returns a line about each. Cold cases get as few layers as they need,
    /// because painting gigabytes takes most of their time.
    pub(crate) fn leave_out_slow(&mut self) -> Vec<String> {
        self.rows
            .iter_mut()
            .flat_map(|row| &mut row.cases)
            .for_each(|case| case.layers = case.layers.min(QUICK_LAYERS));
        let slow = |row: &mut Row| !row.quick;
        self.rows.extract_if(.., slow).map(|row| format!("--quick leaves {} out", row.id)).collect()
    }

    /// Returns all rows and their cases for `--list`.
    pub(crate) fn list(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            text += &format!("{}: {}\n", row.id, row.title());
            for case in &row.cases {
                text += &format!("    {}\n", case.name);
            }
        }
        text
    }
}

impl Row {
    /// Returns the description and the target.
    pub(crate) fn title(&self) -> String {
        if self.goal.is_empty() {
            self.description.clone()
        } else {
            format!("{}; target {}", self.description, self.goal)
        }
    }

    fn has(&self, word: &str) -> bool {
        self.id == word || self.cases.iter().any(|case| case.name == word)
    }
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use kvscatter_bench::{Case, engines};

    use super::Suite;

    const CASES: &str = include_str!("../cases.toml");

    #[test]
    fn every_case_is_valid_and_every_target_names_engines_that_its_cases_have() {
        let suite = Suite::parse(CASES).unwrap();
        for row in &suite.rows {
            for parameters in &row.cases {
                // A machine with fewer cores than a case has threads cannot measure it.
                let Ok(case) = Case::new(parameters.clone()) else { continue };
                let engines = engines::built_in(&case);
                let has = |name: &str| engines.iter().any(|engine| engine.name() == name);
                for target in &row.targets {
                    assert!(has(&target.engine), "{}: {}", parameters.name, target.engine);
                    assert!(has(&target.baseline), "{}: {}", parameters.name, target.baseline);
                }
                assert!(row.flat.iter().all(|flat| has(&flat.engine)));
            }
            assert!(row.targets.is_empty() && row.flat.is_none() || !row.goal.is_empty(), "{}", row.id);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let with = |case: &str| {
            Suite::parse(&format!("[[row]]\nid = 'a'\ndescription = 'b'\ncase = [{case}]")).unwrap_err()
        };
        assert!(with("{ name = 'c', shape = [1, 4, 2], rows = 5 }").contains("rows = 5"));
        assert!(with("{ name = 'c', shape = [1, 4, 2], rows = 1, colour = 1 }").contains("colour"));
        let case = "{ name = 'c', shape = [1, 4, 2], rows = 1 }";
        assert!(with(&format!("{case}, {case}")).contains("twice"));
        let level = "{ name = 'c', shape = [1, 4, 3], rows = 1, type = 'int4', starts = [2] }";
        let row = |case: &str| {
            format!("[[row]]\nid = 'a'\ndescription = 'b'\ncrosses_halves = true\ncase = [{case}]")
        };
        assert!(Suite::parse(&row(level)).unwrap_err().contains("half of a byte"));
        assert!(Suite::parse(&row(&level.replace("[2]", "[3]"))).is_ok());
    }

    #[test]
    fn rows_and_cases_are_selected_by_name() {
        let names = |wanted: &[&str]| -> Result<Vec<String>, String> {
            let mut suite = Suite::parse(CASES)?;
            suite.select(&wanted.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())?;
            Ok(suite.rows.into_iter().flat_map(|row| row.cases).map(|case| case.name).collect())
        };
        assert_eq!(names(&["fixed", "decode-b8"]).unwrap(), ["fixed", "decode-b8"]);
        assert_eq!(names(&["wrap"]).unwrap(), ["wrap-16", "wrap-512"]);
        assert!(names(&["decode-b3"]).unwrap_err().contains("--list"));
        assert!(names(&[]).unwrap().len() > 40);
        let mut suite = Suite::parse(CASES).unwrap();
        assert!(suite.leave_out_slow().contains(&"--quick leaves prefill-large out".to_owned()));
        assert!(suite.rows.iter().flat_map(|row| &row.cases).all(|case| case.layers <= 8));
        assert!(suite.select(&["prefill-large".to_owned()]).is_err() && suite.leave_out_slow().is_empty());
    }
}
