//! The results of every benchmark, as they are written to JSON and printed. `report.py` makes pages and plots of them.

use std::collections::BTreeMap;

use kvscatter_onnx::internal::text::units;
use serde::Serialize;

use crate::host;
use crate::measure::Measured;
use crate::statistics::{MedianSpread, Spread, Timings};
use crate::target::{Flat, Status, Target, Verdict, status};

/// Numbers by their names, such as the batch of a case.
pub(crate) type Numbers = BTreeMap<&'static str, f64>;

/// The results of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    pub(crate) suite: &'static str,
    /// Whether the run was complete and not quick, as pages require.
    pub(crate) is_complete: bool,
    /// The names and values of what a reader needs to know about the machine and the run.
    pub(crate) facts: Vec<(String, String)>,
    pub(crate) rows: Vec<RowResults>,
}

/// The results of cases that belong together.
#[derive(Debug, Serialize)]
pub(crate) struct RowResults {
    id: String,
    description: String,
    goal: String,
    plot: Option<String>,
    pub(crate) cases: Vec<CaseResults>,
}

/// The results of one case.
#[derive(Debug, Serialize)]
pub(crate) struct CaseResults {
    pub(crate) name: String,
    /// What tables and plots show about the case.
    numbers: Numbers,
    pub(crate) subjects: Vec<SubjectResults>,
    /// The A/A spread.
    noise: Option<MedianSpread>,
    pub(crate) verdicts: Vec<Verdict>,
    /// Why the case could not be measured.
    refused: Option<String>,
}

/// The results of one subject.
#[derive(Debug, Serialize)]
pub(crate) struct SubjectResults {
    pub(crate) name: String,
    /// The nanoseconds per call. `None` if the subject was not timed.
    pub(crate) time: Option<Spread>,
    /// The median of the ratios to each other subject within a round.
    over: BTreeMap<String, f64>,
    /// Why the subject was not timed.
    note: Option<String>,
}

impl Results {
    pub(crate) fn new(suite: &'static str, is_complete: bool, rows: Vec<RowResults>) -> Self {
        Self { suite, is_complete, facts: host::facts(), rows }
    }

    /// Adds a fact about the run.
    pub(crate) fn fact(mut self, name: &str, value: impl Into<String>) -> Self {
        self.facts.push((name.to_owned(), value.into()));
        self
    }

    /// Returns how many targets were met, and lists the others.
    pub(crate) fn summary(&self) -> String {
        let cases = || self.rows.iter().flat_map(|row| &row.cases);
        let verdicts = || cases().flat_map(|case| case.verdicts.iter().map(move |verdict| (case, verdict)));
        let count = |status| verdicts().filter(|(_, verdict)| verdict.status == status).count();
        let (met, missed) = (count(Status::Met), count(Status::Missed));
        let mut text = format!(
            "{met} targets met, {missed} missed, {} undecided, {} not measured\n",
            count(Status::Undecided),
            count(Status::NotMeasured)
        );
        for (case, verdict) in verdicts().filter(|(_, verdict)| verdict.status != Status::Met) {
            text += &format!("  {}: {}\n", case.name, verdict.line());
        }
        text
    }
}

impl RowResults {
    /// Creates a row without cases.
    pub(crate) fn new(id: &str, description: &str) -> Self {
        let (id, description) = (id.to_owned(), description.to_owned());
        Self { id, description, goal: String::new(), plot: None, cases: Vec::new() }
    }

    pub(crate) fn goal(self, goal: &str) -> Self {
        Self { goal: goal.to_owned(), ..self }
    }

    pub(crate) fn plot(self, plot: Option<&str>) -> Self {
        Self { plot: plot.map(str::to_owned), ..self }
    }

    /// Returns the description and the target.
    pub(crate) fn title(&self) -> String {
        match self.goal.as_str() {
            "" => format!("{}\n", self.description),
            goal => format!("{}; target {goal}\n", self.description),
        }
    }

    /// Prints and adds a case.
    pub(crate) fn push(&mut self, case: CaseResults) {
        println!("{}", case.table());
        self.cases.push(case);
    }
}

impl CaseResults {
    /// Summarises times and compares them with the targets.
    pub(crate) fn new(name: &str, measured: &Measured, targets: &[Target]) -> Self {
        let subject = |(name, times): &(String, Result<Timings, String>)| {
            let times = times.as_ref();
            let over = |(other, baseline): &(String, Result<Timings, String>)| {
                Some((other.clone(), times.ok()?.over(baseline.as_ref().ok()?)))
            };
            SubjectResults {
                name: name.clone(),
                time: times.ok().map(|times| times.spread()),
                over: measured.subjects.iter().filter(|(other, _)| other != name).filter_map(over).collect(),
                // Some libraries add a backtrace.
                note: times.err().map(|why| why.lines().next().unwrap_or_default().to_owned()),
            }
        };
        let noise = measured.subjects.iter().any(|(_, times)| times.is_ok()).then_some(measured.noise);
        Self {
            name: name.to_owned(),
            numbers: Numbers::new(),
            subjects: measured.subjects.iter().map(subject).collect(),
            noise,
            verdicts: targets.iter().map(|target| verdict(measured, target)).collect(),
            refused: None,
        }
    }

    /// Returns the results of a case that could not be measured.
    pub(crate) fn refused(name: &str, why: String) -> Self {
        let (subjects, verdicts) = (Vec::new(), Vec::new());
        let name = name.to_owned();
        Self { name, numbers: Numbers::new(), subjects, noise: None, verdicts, refused: Some(why) }
    }

    /// Returns a comparison of something else than times.
    pub(crate) fn untimed(name: &str, verdict: Verdict) -> Self {
        Self { verdicts: vec![verdict], refused: None, ..Self::refused(name, String::new()) }
    }

    pub(crate) fn numbers(self, numbers: Numbers) -> Self {
        Self { numbers, ..self }
    }

    pub(crate) fn time(&self, subject: &str) -> Option<Spread> {
        self.subjects.iter().find(|found| found.name == subject)?.time
    }

    /// Compares the time of a subject with its time in the first case of the row.
    pub(crate) fn compare(&mut self, first: &Self, flat: &Flat) {
        let ratio_of = |subject: &str| Some(self.time(subject)?.median / first.time(subject)?.median);
        let compared = || {
            let ratio = ratio_of(&flat.subject)?;
            // The two cases are measured at different times, between which the machine's speed may change.
            let drift = 1.0 / ratio_of(&flat.yardstick)?;
            let drift = MedianSpread { lowest: drift.min(1.0), highest: drift.max(1.0) };
            Some((ratio, status(ratio, flat.at_most, self.noise?.joined(first.noise?).joined(drift))))
        };
        let compared = compared();
        self.verdicts.push(Verdict {
            subject: flat.subject.clone(),
            baseline: format!("the same in {}", first.name),
            limit: flat.at_most,
            ratio: compared.map(|(ratio, _)| ratio),
            status: compared.map_or(Status::NotMeasured, |(_, status)| status),
        });
    }

    /// Returns the table of all subjects, and then the targets.
    fn table(&self) -> String {
        let mut text = format!("{}\n", self.name);
        let first = self.subjects.iter().find(|subject| subject.time.is_some()).map(|first| &first.name);
        for SubjectResults { name, time, over, note } in &self.subjects {
            let cells = match (time, note) {
                (Some(time), _) => {
                    let range = format!("{} – {}", units::time(time.p10), units::time(time.p90));
                    let over = first.and_then(|first| {
                        Some(format!("{} × {first}", units::three_digits(*over.get(first)?)))
                    });
                    format!("{:>9} {range:>21}  {}", units::time(time.median), over.unwrap_or_default())
                }
                (None, note) => note.clone().unwrap_or_default(),
            };
            text += &format!("  {name:<34} {}\n", cells.trim_end());
        }
        if let Some(MedianSpread { lowest, highest }) = self.noise {
            text += &format!("  A/A spread {lowest:.2} – {highest:.2}\n");
        }
        self.verdicts.iter().for_each(|verdict| text += &format!("  {}\n", verdict.line()));
        self.refused.iter().for_each(|why| text += &format!("  not measured: {why}\n"));
        text
    }
}

/// Compares two subjects of one case.
fn verdict(measured: &Measured, target: &Target) -> Verdict {
    let times = measured.times(&target.subject).zip(measured.times(&target.baseline));
    let limit = times.map_or(target.at_most, |(_, baseline)| target.limit(baseline.spread().median));
    Verdict::new(target, limit, times.map(|(subject, baseline)| subject.over(baseline)), measured.noise)
}

#[cfg(test)]
mod tests {
    use super::{CaseResults, Measured, RowResults, Status};
    use crate::results::Results;
    use crate::statistics::{MedianSpread, Timings};
    use crate::target::{Flat, Target};

    fn measured(times: &[(&str, f64)]) -> Measured {
        let timings = |&(name, time): &(&str, f64)| (name.to_owned(), Ok(Timings::new(vec![time; 9])));
        let mut subjects: Vec<_> = times.iter().map(timings).collect();
        subjects.push(("absent".to_owned(), Err("too old\nbacktrace".to_owned())));
        Measured { subjects, noise: MedianSpread { lowest: 0.99, highest: 1.01 } }
    }

    #[test]
    fn tables_have_times_ratios_and_reasons() {
        let targets = [Target::new("ours", "memcpy", 1.1), Target::new("ours", "absent", 1.0)];
        let case = CaseResults::new("decode", &measured(&[("memcpy", 160.0), ("ours", 200.0)]), &targets);
        let table = case.table();
        for line in [
            "  ours                                  200 ns       200 ns – 200 ns  1.25 × memcpy",
            "  absent                             too old",
            "  A/A spread 0.99 – 1.01",
            "  ours is 1.25 × memcpy, at most 1.10: missed",
            "  ours is – × absent, at most 1.00: not measured",
        ] {
            assert!(table.lines().any(|printed| printed == line), "{line}:\n{table}");
        }
        let mut row = RowResults::new("a", "b");
        row.cases = vec![case];
        let summary = Results::new("write", true, vec![row]).summary();
        assert!(
            summary.starts_with("0 targets met, 1 missed, 0 undecided, 1 not measured\n  decode: ours is"),
            "{summary}"
        );
    }

    #[test]
    fn a_case_is_compared_with_the_first_one() {
        let flat = Flat { subject: "ours".to_owned(), yardstick: "memcpy".to_owned(), at_most: 1.1 };
        let case =
            |memcpy, ours| CaseResults::new("a", &measured(&[("memcpy", memcpy), ("ours", ours)]), &[]);
        let first = case(20.0, 20.0);
        for (memcpy, ours, expected) in
            [(20.0, 20.2, Status::Met), (20.0, 30.0, Status::Missed), (30.0, 30.0, Status::Undecided)]
        {
            let mut other = case(memcpy, ours);
            other.compare(&first, &flat);
            assert_eq!(
                (other.verdicts[0].status, other.verdicts[0].baseline.as_str()),
                (expected, "the same in a")
            );
        }
        let mut without = CaseResults::refused("b", "no memory".to_owned());
        without.compare(&first, &flat);
        assert_eq!(without.verdicts[0].status, Status::NotMeasured);
    }
}
