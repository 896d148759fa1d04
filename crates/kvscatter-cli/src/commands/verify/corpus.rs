//! The descriptions of cases in the index of a corpus.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::json_file;
use crate::output::{count, table};

/// The name of the index, and the largest size that is read.
const INDEX: &str = "index.json";
const INDEX_BYTES: u64 = 8 << 20;

/// The index is in one of so many folders: the folder that the user names, and those around it.
const FOLDERS: usize = 4;

/// A corpus like `conformance/`.
pub(super) struct Corpus {
    folder: PathBuf,
    cases: BTreeMap<PathBuf, Note>,
}

/// The description of a case in the index.
#[derive(Clone)]
pub(super) struct Note {
    pub(super) rule: Rc<CorpusRule>,
    what: String,
    sees: Vec<String>,
}

/// A rule that a case tests.
#[derive(Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CorpusRule {
    id: String,
    rule: String,
}

#[derive(Deserialize)]
struct Index {
    rules: Vec<CorpusRule>,
    cases: Vec<IndexCase>,
}

#[derive(Deserialize)]
struct IndexCase {
    folder: PathBuf,
    rule: String,
    what: String,
    sees: Option<Vec<String>>,
}

impl Corpus {
    /// Finds the corpus that a folder belongs to. An index with other fields is not a corpus.
    pub(super) fn find(dir: &Path) -> Option<Self> {
        let dir = dir.canonicalize().ok()?;
        dir.ancestors().take(FOLDERS).find_map(|folder| {
            let index: Index = json_file::read(&folder.join(INDEX), INDEX_BYTES).ok()??;
            let rules: BTreeMap<_, _> =
                index.rules.into_iter().map(|rule| (rule.id.clone(), Rc::new(rule))).collect();
            let cases = index.cases.into_iter().filter_map(|case| {
                let rule = Rc::clone(rules.get(&case.rule)?);
                Some((case.folder, Note { rule, what: case.what, sees: case.sees.unwrap_or_default() }))
            });
            Some(Self { folder: folder.to_owned(), cases: cases.collect() })
        })
    }

    pub(super) fn note(&self, case: &Path) -> Option<&Note> {
        let case = case.canonicalize().ok()?;
        self.cases.get(case.strip_prefix(&self.folder).ok()?)
    }
}

impl Note {
    /// Returns what the case contains, and the slots that its queries see. Returns `None` if the reason for the verdict
    /// contains it, as the reason of a refusal does.
    pub(super) fn text_after(&self, reason: &str) -> Option<String> {
        match self.sees.as_slice() {
            [] if reason.contains(&self.what) => None,
            [] => Some(self.what.clone()),
            [one] => Some(format!("{} The query sees {one}.", self.what)),
            all => Some(format!("{} The queries see {}.", self.what, all.join(", "))),
        }
    }
}

/// Returns the table of the rules that cases break. Each item has the rule of a case, and whether the case failed.
pub(super) fn broken<'a>(cases: impl Iterator<Item = (&'a CorpusRule, bool)>) -> Option<String> {
    let mut counts: BTreeMap<&CorpusRule, [usize; 2]> = BTreeMap::new();
    for (rule, has_failed) in cases {
        let [all, failed] = counts.entry(rule).or_default();
        *all = all.saturating_add(1);
        *failed = failed.saturating_add(usize::from(has_failed));
    }
    let broken: Vec<_> = counts.into_iter().filter(|(_, [_, failed])| *failed > 0).collect();
    let rows = broken.iter().map(|(rule, [all, failed])| {
        vec![rule.id.clone(), format!("{failed} of {}", count(*all, "case")), rule.rule.clone()]
    });
    (!broken.is_empty()).then(|| table(&["rule of the corpus", "failed", ""], &[], rows))
}
