//! The cases of attention and their targets, which `attention.toml` defines.

use std::collections::BTreeSet;

use kvscatter::ElementType;
use serde::{Deserialize, Serialize};

use crate::suite::Target;

/// The number of elements of a head's row, for keys and values.
pub(super) const HEAD_SIZE: usize = 128;

/// All rows of the target table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Suite {
    #[serde(rename = "row")]
    pub(super) rows: Vec<Row>,
}

/// Cases that share a line of the target table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    pub(super) id: String,
    /// Describes what is measured.
    pub(super) description: String,
    /// The targets in words.
    pub(super) goal: String,
    #[serde(default)]
    pub(super) plot: Option<Plot>,
    #[serde(default = "yes")]
    quick: bool,
    /// The names of what is timed in turn.
    pub(super) subjects: Vec<String>,
    #[serde(rename = "target")]
    pub(super) targets: Vec<Target>,
    #[serde(rename = "case")]
    pub(super) cases: Vec<Parameters>,
}

/// The plot that a row is drawn in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Plot {
    /// Time against the valid slots.
    Valid,
    /// Time against the capacity.
    Capacity,
}

/// One call of attention over a static cache.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameters {
    pub(super) name: String,
    pub(super) element: Element,
    /// The number of query heads.
    pub(super) query_heads: usize,
    /// The number of heads of keys and values.
    pub(super) heads: usize,
    /// The slots of each sample.
    pub(super) capacity: usize,
    /// The new tokens of each sample. They are in the last valid slots.
    #[serde(default = "one")]
    pub(super) queries: usize,
    /// The valid slots of each sample, with the new tokens.
    pub(super) valid: Vec<usize>,
    #[serde(default = "one")]
    pub(super) threads: usize,
}

/// The element types that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Element {
    Float32,
    Float16,
}

impl Suite {
    /// Parses the file, and checks every case and that names are unique.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let suite: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut names = BTreeSet::new();
        for case in suite.rows.iter().flat_map(|row| &row.cases) {
            case.check().map_err(|why| format!("case {}: {why}", case.name))?;
            if !names.insert(&case.name) {
                return Err(format!("case {}: the name comes twice", case.name));
            }
        }
        for row in &suite.rows {
            let named = row.targets.iter().flat_map(|target| [&target.engine, &target.baseline]);
            if let Some(name) = named.into_iter().find(|name| !row.subjects.contains(name)) {
                return Err(format!("row {}: a target names {name}, which is no subject", row.id));
            }
        }
        Ok(suite)
    }

    /// Keeps the wanted cases, by their names or the ids of their rows. An empty list keeps all.
    pub(super) fn select(&mut self, wanted: &[String]) -> Result<(), String> {
        for word in wanted {
            if !self.rows.iter().any(|row| row.id == *word || row.cases.iter().any(|case| case.name == *word))
            {
                return Err(format!(
                    "--case {word}: no row and no case is called that, see bench/attention.toml"
                ));
            }
        }
        if !wanted.is_empty() {
            for row in self.rows.iter_mut().filter(|row| !wanted.contains(&row.id)) {
                row.cases.retain(|case| wanted.contains(&case.name));
            }
        }
        self.rows.retain(|row| !row.cases.is_empty());
        Ok(())
    }

    /// Leaves out rows that take long.
    pub(super) fn leave_out_slow(&mut self) {
        self.rows.retain(|row| row.quick);
    }
}

impl Parameters {
    /// Returns the number of samples.
    pub(super) fn batch(&self) -> usize {
        self.valid.len()
    }

    /// Returns the number of keys that the queries of one query head see, in all samples together.
    pub(super) fn seen(&self) -> usize {
        let of_sample =
            |valid: &usize| (0..self.queries).map(|query| valid - self.queries + query + 1).sum::<usize>();
        self.valid.iter().map(of_sample).sum()
    }

    fn check(&self) -> Result<(), &'static str> {
        let bad = |valid: &usize| *valid < self.queries || *valid > self.capacity;
        match () {
            () if self.heads == 0 || !self.query_heads.is_multiple_of(self.heads) => Err("heads disagree"),
            () if self.queries == 0 || self.threads == 0 || self.valid.is_empty() => Err("nothing to do"),
            () if self.valid.iter().any(bad) => {
                Err("valid slots are outside the cache, or fewer than queries")
            }
            () => Ok(()),
        }
    }
}

impl Element {
    pub(super) fn onnx(self) -> ElementType {
        match self {
            Self::Float32 => ElementType::Float32,
            Self::Float16 => ElementType::Float16,
        }
    }

    /// Returns the bytes of one element.
    pub(super) fn size(self) -> usize {
        match self {
            Self::Float32 => 4,
            Self::Float16 => 2,
        }
    }
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::Suite;
    use crate::attention::{CASES, subjects};

    #[test]
    fn every_case_is_valid_and_every_subject_exists() {
        let suite = Suite::parse(CASES).unwrap();
        for row in &suite.rows {
            assert!(!row.goal.is_empty() && !row.targets.is_empty(), "{}", row.id);
            for name in &row.subjects {
                assert!(subjects::NAMES.contains(&name.as_str()), "{}: {name}", row.id);
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let with = |case: &str| {
            Suite::parse(&format!(
                "[[row]]\nid = 'a'\ndescription = 'b'\ngoal = 'c'\nsubjects = ['d']\ntarget = []\ncase = [{case}]"
            ))
        };
        let case = |valid: &str, heads: usize| {
            format!(
                "{{ name = 'c', element = 'float32', query_heads = 8, heads = {heads}, capacity = 9, valid = {valid} }}"
            )
        };
        assert!(with(&case("[9, 1]", 4)).is_ok());
        assert!(with(&case("[10]", 4)).unwrap_err().contains("outside"));
        assert!(with(&case("[0]", 4)).unwrap_err().contains("outside"));
        assert!(with(&case("[1]", 3)).unwrap_err().contains("heads disagree"));
        assert!(with(&case("[]", 4)).unwrap_err().contains("nothing"));
        assert!(with(&format!("{0}, {0}", case("[1]", 4))).unwrap_err().contains("twice"));
    }

    #[test]
    fn rows_and_cases_are_selected_by_name() {
        let mut suite = Suite::parse(CASES).unwrap();
        suite.select(&["capacity-512".to_owned(), "batch".to_owned()]).unwrap();
        let names: Vec<_> = suite.rows.iter().flat_map(|row| &row.cases).map(|case| &case.name).collect();
        assert_eq!(names, ["capacity-512", "batch-float32", "batch-float16"]);
        assert!(suite.select(&["none".to_owned()]).is_err());
    }

    #[test]
    fn a_query_sees_the_keys_up_to_its_own() {
        let suite = Suite::parse(CASES).unwrap();
        let seen = |name: &str| {
            suite.rows.iter().flat_map(|row| &row.cases).find(|case| case.name == name).unwrap().seen()
        };
        assert_eq!(seen("8-float32-64"), 64);
        assert_eq!(seen("prefill-512"), 512 * 513 / 2);
        assert_eq!(seen("prefill-128-into-2000"), 128 * 2000 + 128 * 129 / 2);
    }
}
