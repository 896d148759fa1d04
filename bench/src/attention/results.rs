//! The results of a run.

use kvscatter_bench::{MedianSpread, Spread, Timings};
use serde::{Deserialize, Serialize};

use super::suite::{Parameters, Plot, Row};
use crate::host::Host;
use crate::suite::Target;
use crate::target::Verdict;

/// All rows, and the machine.
#[derive(Serialize, Deserialize)]
pub(crate) struct Results {
    pub(super) host: Host,
    /// The name and the version of the runtime.
    pub(super) runtime: String,
    /// The instruction set of kvscatter's kernels, if they are not limited.
    pub(super) isa: String,
    pub(super) quick: bool,
    pub(super) rows: Vec<RowResults>,
}

/// A row of the target table.
#[derive(Serialize, Deserialize)]
pub(super) struct RowResults {
    pub(super) id: String,
    pub(super) description: String,
    pub(super) goal: String,
    pub(super) plot: Option<Plot>,
    pub(super) cases: Vec<CaseResults>,
}

/// One case.
#[derive(Serialize, Deserialize)]
pub(super) struct CaseResults {
    pub(super) case: Parameters,
    pub(super) subjects: Vec<SubjectResults>,
    /// The A/A spread of the first subject.
    pub(super) noise: MedianSpread,
    pub(super) verdicts: Vec<Verdict>,
}

/// One subject in one case.
#[derive(Serialize, Deserialize)]
pub(super) struct SubjectResults {
    pub(super) name: String,
    /// The time of a call in nanoseconds, or why there is none.
    pub(super) time: Result<Spread, String>,
}

/// What was measured of one case.
pub(super) struct Measured {
    /// The name and the times of each subject, or why it has none.
    pub(super) subjects: Vec<(String, Result<Timings, String>)>,
    pub(super) noise: MedianSpread,
}

impl RowResults {
    pub(super) fn new(row: &Row) -> Self {
        Self {
            id: row.id.clone(),
            description: row.description.clone(),
            goal: row.goal.clone(),
            plot: row.plot,
            cases: Vec::new(),
        }
    }
}

impl CaseResults {
    pub(super) fn new(case: &Parameters, measured: &Measured, targets: &[Target]) -> Self {
        let subject = |(name, times): &(String, Result<Timings, String>)| SubjectResults {
            name: name.clone(),
            time: times.as_ref().map(Timings::spread).map_err(Clone::clone),
        };
        let times = |name: &str| {
            let found = measured.subjects.iter().find(|(subject, _)| subject == name);
            found.and_then(|(_, times)| times.as_ref().ok())
        };
        Self {
            case: case.clone(),
            subjects: measured.subjects.iter().map(subject).collect(),
            noise: measured.noise,
            verdicts: targets.iter().map(|target| Verdict::new(target, times, measured.noise)).collect(),
        }
    }

    pub(super) fn time(&self, subject: &str) -> Option<Spread> {
        self.subjects.iter().find(|entry| entry.name == subject)?.time.as_ref().ok().copied()
    }
}

impl Results {
    pub(super) fn verdicts(&self) -> impl Iterator<Item = (&CaseResults, &Verdict)> {
        let cases = self.rows.iter().flat_map(|row| &row.cases);
        cases.flat_map(|case| case.verdicts.iter().map(move |verdict| (case, verdict)))
    }
}
