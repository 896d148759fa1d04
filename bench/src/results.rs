//! The results of a run, as in the JSON file. Tables, plots and pages are made from them.

use kvscatter_bench::engines::{HAND_LOOP, MEMCPY};
use kvscatter_bench::{
    EngineOutcome, MedianSpread, Medians, Outcome, Parameters, Report, Spread, Timings, Variation,
};
use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::suite::{Flat, Plot, Row, Suite, Target, TestedTarget};
use crate::target::{Status, Verdict, limit, status};

/// The results of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) host: Host,
    /// Whether times were measured with the small budget.
    pub(crate) quick: bool,
    /// Lines about engines that were missing.
    pub(crate) absent: Vec<String>,
    pub(crate) rows: Vec<RowResults>,
    /// Targets that tests check, and that are not timed.
    pub(crate) tested: Vec<TestedTarget>,
}

/// The results of one row of the target table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RowResults {
    pub(crate) id: String,
    pub(crate) description: String,
    pub(crate) goal: String,
    pub(crate) plot: Option<Plot>,
    pub(crate) cases: Vec<CaseResults>,
}

/// The results of one case with every engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CaseResults {
    pub(crate) case: Parameters,
    /// The instruction set that the library used. `None` if the case was not run.
    pub(crate) isa: Option<String>,
    /// The bytes that one call moves.
    pub(crate) moved_bytes: usize,
    pub(crate) engines: Vec<EngineResults>,
    /// The A/A spread.
    pub(crate) noise: Option<MedianSpread>,
    /// The medians that this process contributes to the variation.
    #[serde(default)]
    pub(crate) medians: Option<Medians>,
    /// How far the medians of blocks of rounds and of processes differ. `None` if the case was not measured
    /// in several processes.
    #[serde(default)]
    pub(crate) variation: Option<Variation>,
    pub(crate) verdicts: Vec<Verdict>,
    /// Why the case could not be measured.
    pub(crate) refused: Option<String>,
}

/// The results of one engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct EngineResults {
    pub(crate) name: String,
    /// The nanoseconds per call. `None` if the engine was not timed.
    pub(crate) time: Option<Spread>,
    pub(crate) over_memcpy: Option<Spread>,
    pub(crate) over_hand_loop: Option<Spread>,
    /// In cold cases, the ratio to the hand loop if the time includes reading the written rows.
    pub(crate) with_read_over_hand_loop: Option<Spread>,
    /// Why the engine was not timed.
    pub(crate) note: Option<Note>,
}

/// Why an engine was not timed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Note {
    Unsupported(String),
    Wrong(String),
    Failed(String),
}

impl Results {
    /// Checks that the results have every case of the suite, measured with the full budget, as pages require.
    pub(crate) fn check_complete(&self, suite: &Suite) -> Result<(), String> {
        if self.quick {
            return Err("--write-docs: the results are those of a --quick run".to_owned());
        }
        let mut measured = self.rows.iter().flat_map(|row| &row.cases).map(|case| &case.case);
        let expected = suite.rows.iter().flat_map(|row| &row.cases);
        match expected.into_iter().find(|case| measured.next() != Some(*case)) {
            Some(case) => Err(format!("--write-docs: the results lack case {} as it is now", case.name)),
            None => Ok(()),
        }
    }
}

impl Results {
    /// Returns the name of the machine in pages: its processor, and the instruction set that the library
    /// used. Rows that are limited to a smaller set name theirs.
    pub(crate) fn machine(&self) -> String {
        let cpu = self.host.cpu();
        let isa = self.rows.iter().flat_map(|row| &row.cases).find_map(|case| case.isa.as_deref());
        isa.map_or_else(|| cpu.to_owned(), |isa| format!("{cpu}, {isa}"))
    }

    /// Returns the machine's name for file names.
    pub(crate) fn machine_in_files(&self) -> String {
        let machine = self.machine().to_lowercase().replace("(r)", "").replace("(tm)", "");
        let words = machine.split(|letter: char| !letter.is_ascii_alphanumeric());
        words.filter(|word| !word.is_empty() && *word != "processor").collect::<Vec<_>>().join("-")
    }
}

impl RowResults {
    /// Returns the row without its cases.
    pub(crate) fn new(row: &Row) -> Self {
        let Row { id, description, goal, plot, .. } = row;
        Self {
            id: id.clone(),
            description: description.clone(),
            goal: goal.clone(),
            plot: *plot,
            cases: Vec::new(),
        }
    }

    /// Adds a case, and compares it with the first one if the row requires this.
    pub(crate) fn push(&mut self, mut case: CaseResults, flat: Option<&Flat>) {
        if let (Some(flat), Some(first)) = (flat, self.cases.first()) {
            case.verdicts.push(case.against(first, flat));
        }
        self.cases.push(case);
    }
}

impl CaseResults {
    /// Summarises a report and compares it with the targets.
    pub(crate) fn new(report: &Report, targets: &[Target]) -> Self {
        let noise = report.noise.as_ref().map(|noise| noise.spread);
        Self {
            case: report.case.parameters().clone(),
            isa: report.isa.clone(),
            moved_bytes: report.case.moved_bytes(),
            engines: report.entries.iter().map(|entry| EngineResults::new(report, entry)).collect(),
            verdicts: targets.iter().map(|target| verdict(report, target, noise)).collect(),
            noise,
            medians: Medians::of(report),
            variation: None,
            refused: None,
        }
    }

    /// Adds the measurements of fresh processes. Verdicts that one of them contradicts count as undecided.
    pub(crate) fn compare(&mut self, others: &[Self]) {
        let medians = [&*self].into_iter().chain(others).filter_map(|case| case.medians.clone());
        self.variation = Variation::over(&medians.collect::<Vec<_>>());
        for (index, verdict) in self.verdicts.iter_mut().enumerate() {
            let (Some(ratio), Some(noise)) = (verdict.ratio, self.noise) else { continue };
            // A limit in nanoseconds is a different ratio in each process, because the baselines differ. So
            // each ratio is divided by its process's limit before it is compared.
            let elsewhere = others.iter().filter_map(|case| case.verdicts.get(index));
            let elsewhere = elsewhere.filter_map(|other| Some((other.ratio?, other.ratio? / other.limit)));
            let own = ratio / verdict.limit;
            let mut ratios = MedianSpread { lowest: ratio, highest: ratio };
            let mut spread = MedianSpread { lowest: 1.0, highest: 1.0 };
            for (ratio, part) in elsewhere {
                ratios = ratios.joined(MedianSpread { lowest: ratio, highest: ratio });
                spread = spread.joined(MedianSpread { lowest: part / own, highest: part / own });
            }
            verdict.processes = Some(ratios);
            verdict.status = status(ratio, verdict.limit, noise.joined(spread));
        }
    }

    /// Returns the results of a case that could not be measured.
    pub(crate) fn refused(case: &Parameters, why: String, targets: &[Target]) -> Self {
        let unknown = |target: &Target| Verdict {
            engine: target.engine.clone(),
            baseline: target.baseline.clone(),
            limit: target.at_most,
            ratio: None,
            processes: None,
            status: Status::NotMeasured,
        };
        Self {
            case: case.clone(),
            isa: None,
            moved_bytes: 0,
            engines: Vec::new(),
            noise: None,
            medians: None,
            variation: None,
            verdicts: targets.iter().map(unknown).collect(),
            refused: Some(why),
        }
    }

    /// Returns the time of the engine with this name, if it was timed.
    pub(crate) fn time(&self, engine: &str) -> Option<Spread> {
        self.engines.iter().find(|result| result.name == engine)?.time
    }

    /// Compares the time of an engine in this case with its time in the first case of the row.
    fn against(&self, first: &Self, flat: &Flat) -> Verdict {
        let compared = || {
            let ratio = self.time(&flat.engine)?.median / first.time(&flat.engine)?.median;
            // The two cases are measured at different times, between which the machine's speed may change.
            // This shows in the memcpy of the same bytes, which does not depend on the capacity.
            let [a, b] = [self.noise?, first.noise?];
            let drift = self.time(MEMCPY)?.median / first.time(MEMCPY)?.median;
            let noise = MedianSpread {
                lowest: a.lowest.min(b.lowest).min(1.0 / drift),
                highest: a.highest.max(b.highest).max(1.0 / drift),
            };
            Some((ratio, status(ratio, flat.at_most, noise)))
        };
        let compared = compared();
        Verdict {
            engine: flat.engine.clone(),
            baseline: format!("the same in {}", first.case.name),
            limit: flat.at_most,
            ratio: compared.map(|(ratio, _)| ratio),
            processes: None,
            status: compared.map_or(Status::NotMeasured, |(_, status)| status),
        }
    }
}

impl EngineResults {
    fn new(report: &Report, entry: &EngineOutcome) -> Self {
        let name = &entry.engine;
        let (time, note) = match &entry.outcome {
            Outcome::Measured(times) => (Some(times.write.spread()), None),
            Outcome::Unsupported(why) => (None, Some(Note::Unsupported(why.clone()))),
            Outcome::Wrong(why) => (None, Some(Note::Wrong(why.clone()))),
            Outcome::Failed(why) => (None, Some(Note::Failed(why.clone()))),
        };
        Self {
            name: name.clone(),
            time,
            over_memcpy: report.ratio(name, MEMCPY),
            over_hand_loop: report.ratio(name, HAND_LOOP),
            with_read_over_hand_loop: report.ratio_with_read(name, HAND_LOOP),
            note,
        }
    }
}

fn verdict(report: &Report, target: &Target, noise: Option<MedianSpread>) -> Verdict {
    let compared = || {
        let ratio = report.ratio(&target.engine, &target.baseline)?.median;
        let baseline = report.times(&target.baseline).map(|times| median(&times.write))?;
        let limit = limit(target.at_most, target.slack_ns, baseline);
        Some((limit, ratio, status(ratio, limit, noise?)))
    };
    let compared = compared();
    Verdict {
        engine: target.engine.clone(),
        baseline: target.baseline.clone(),
        limit: compared.map_or(target.at_most, |(limit, ..)| limit),
        ratio: compared.map(|(_, ratio, _)| ratio),
        processes: None,
        status: compared.map_or(Status::NotMeasured, |(.., status)| status),
    }
}

fn median(samples: &Timings) -> f64 {
    samples.spread().median
}

#[cfg(test)]
pub(crate) mod tests {
    use kvscatter_bench::{MedianSpread, Medians, Parameters, Spread};

    use super::{CaseResults, EngineResults, Note, Results, RowResults};
    use crate::host::Host;
    use crate::suite::{Flat, Plot, TestedTarget};
    use crate::target::{Status, Verdict};

    const NOISE: MedianSpread = MedianSpread { lowest: 0.99, highest: 1.01 };

    fn engine(name: &str, nanoseconds: f64, memcpy: f64) -> EngineResults {
        let exact = |value| Some(Spread { p10: value, median: value, p90: value });
        EngineResults {
            name: name.to_owned(),
            time: exact(nanoseconds),
            over_memcpy: exact(nanoseconds / memcpy),
            over_hand_loop: None,
            with_read_over_hand_loop: None,
            note: None,
        }
    }

    fn absent(name: &str, note: Note) -> EngineResults {
        EngineResults { time: None, over_memcpy: None, note: Some(note), ..engine(name, 1.0, 1.0) }
    }

    fn case(name: &str, batch: usize, memcpy: f64, ours: f64) -> CaseResults {
        let text = format!("name = '{name}'\nshape = [{batch}, 8, 2048, 128]\nrows = 1");
        let status = if ours / memcpy <= 1.1 { Status::Met } else { Status::Missed };
        let ratio = Some(ours / memcpy);
        let [kvscatter, yardstick] = ["kvscatter", "memcpy"].map(str::to_owned);
        CaseResults {
            case: toml::from_str::<Parameters>(&text).unwrap(),
            isa: Some("avx2".to_owned()),
            moved_bytes: batch * 2048,
            engines: vec![
                engine("memcpy", memcpy, memcpy),
                engine("kvscatter", ours, memcpy),
                absent("wrong one", Note::Wrong("byte 0".to_owned())),
                absent("unable one", Note::Unsupported("too old".to_owned())),
            ],
            noise: Some(NOISE),
            medians: None,
            variation: None,
            verdicts: vec![Verdict {
                engine: kvscatter,
                baseline: yardstick,
                limit: 1.1,
                ratio,
                processes: None,
                status,
            }],
            refused: None,
        }
    }

    /// Returns results with two cases of one row.
    pub(crate) fn example() -> Results {
        Results {
            host: Host { facts: vec![("CPU".to_owned(), "Example 9000".to_owned())] },
            quick: false,
            absent: Vec::new(),
            rows: vec![RowResults {
                id: "decode".to_owned(),
                description: "decode".to_owned(),
                goal: "≤ 1.10".to_owned(),
                plot: Some(Plot::Batch),
                cases: vec![case("decode-b1", 1, 20.0, 20.0), case("decode-b8", 8, 160.0, 200.0)],
            }],
            tested: vec![TestedTarget {
                description: "locks".to_owned(),
                goal: "none".to_owned(),
                by: "a test".to_owned(),
            }],
        }
    }

    #[test]
    fn a_machine_is_a_processor_and_its_instructions() {
        let mut results = example();
        assert_eq!(results.machine(), "Example 9000, avx2");
        results.host.facts[0].1 = "Intel(R) Xeon(R) Processor".to_owned();
        assert_eq!(results.machine_in_files(), "intel-xeon-avx2");
    }

    #[test]
    fn results_survive_the_file() {
        let text = serde_json::to_string_pretty(&example()).unwrap();
        assert_eq!(serde_json::from_str::<Results>(&text).unwrap(), example());
    }

    /// The hand loop takes 370 to 448 ns in different processes, and each process is steady.
    #[test]
    fn what_moves_between_processes_is_no_verdict() {
        let process = |time: f64, ratio: f64| {
            let mut case = case("decode-b8", 8, time, time * ratio);
            let ratios = vec![("kvscatter".to_owned(), ratio)];
            case.medians = Some(Medians { baseline: "hand loop".to_owned(), blocks: vec![time; 8], ratios });
            case
        };
        let mut first = process(448.0, 0.9);
        assert_eq!(first.verdicts[0].status, Status::Met);
        first.compare(&[process(370.0, 1.12), process(401.0, 1.0)]);
        let variation = first.variation.unwrap();
        assert_eq!((variation.lowest, variation.highest, variation.processes), (370.0, 448.0, 3));
        assert_eq!(first.verdicts[0].status, Status::MetWithinSpread);
        assert_eq!(first.verdicts[0].processes, Some(MedianSpread { lowest: 0.9, highest: 1.12 }));
    }

    #[test]
    fn a_flat_row_is_compared_with_its_first_case() {
        let flat = Flat { engine: "kvscatter".to_owned(), at_most: 1.1 };
        let mut row = RowResults { cases: Vec::new(), ..example().rows.remove(0) };
        for (name, memcpy, ours) in
            [("first", 20.0, 20.0), ("flat", 20.0, 20.2), ("rising", 20.0, 30.0), ("slow moment", 30.0, 30.0)]
        {
            row.push(CaseResults { verdicts: Vec::new(), ..case(name, 1, memcpy, ours) }, Some(&flat));
        }
        let statuses: Vec<Vec<_>> = row
            .cases
            .iter()
            .map(|case| case.verdicts.iter().map(|verdict| verdict.status).collect())
            .collect();
        let expected = [Status::Met, Status::Missed, Status::MissedWithinSpread].map(|status| vec![status]);
        assert_eq!((&statuses[0], &statuses[1..]), (&vec![], &expected[..]));
        assert_eq!(row.cases[1].verdicts[0].baseline, "the same in first");
    }

    #[test]
    fn a_flat_row_without_its_first_case_is_not_measured() {
        let flat = Flat { engine: "none".to_owned(), at_most: 1.1 };
        let mut row = RowResults { cases: Vec::new(), ..example().rows.remove(0) };
        row.push(CaseResults { verdicts: Vec::new(), ..case("first", 1, 20.0, 20.0) }, Some(&flat));
        row.push(CaseResults { verdicts: Vec::new(), ..case("second", 1, 20.0, 20.0) }, Some(&flat));
        assert_eq!(row.cases[1].verdicts[0].status, Status::NotMeasured);
    }
}
