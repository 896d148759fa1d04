//! The plots: time per decode step against the batch, time against the capacity, and bandwidth against the
//! size of the update. Each shows memcpy as the limit.

mod axis;
mod draw;
mod figure;

use kvscatter_bench::Case;
use kvscatter_bench::engines::{HAND_LOOP, KVSCATTER, MEMCPY};

use self::axis::{Axis, Unit};
pub(crate) use self::figure::{Figure, Look, PlotLine};
use crate::results::{CaseResults, Results};
use crate::suite::Plot;

/// A line of a plot: the rows that it is drawn from, the engine, its name in the plot, and its look.
type Drawn = (Plot, &'static str, &'static str, Look);

const SLICE_SET: &str = "candle slice_set";
const SCATTER_SET: &str = "candle scatter_set";
const ASSIGN: &str = "ndarray assign";
const SHARED: &str = "onnxruntime, shared buffer";
const PLAIN: &str = "onnxruntime, run()";

const INK: u32 = 0x57606a;
const ORANGE: u32 = 0xbc4c00;
const SAND: u32 = 0xd4a72c;
const GREEN: u32 = 0x1a7f37;
const PURPLE: u32 = 0x8250df;
const PINK: u32 = 0xbf3989;

fn drawn(plot: Plot) -> Vec<Drawn> {
    let in_place = |limit| {
        vec![
            (plot, MEMCPY, limit, Look::Limit),
            (plot, KVSCATTER, KVSCATTER, Look::Ours),
            (plot, HAND_LOOP, HAND_LOOP, Look::Peer(INK)),
            (plot, SLICE_SET, SLICE_SET, Look::Peer(ORANGE)),
            (plot, SCATTER_SET, SCATTER_SET, Look::Peer(SAND)),
            (plot, ASSIGN, ASSIGN, Look::Peer(GREEN)),
            (plot, SHARED, "onnxruntime, in place", Look::Peer(PURPLE)),
        ]
    };
    match plot {
        Plot::Batch | Plot::Update => in_place("memcpy: the limit"),
        Plot::Capacity | Plot::CapacityFunctional => vec![
            (Plot::Capacity, MEMCPY, "memcpy of the update", Look::Limit),
            (Plot::Capacity, KVSCATTER, KVSCATTER, Look::Ours),
            (Plot::Capacity, SLICE_SET, SLICE_SET, Look::Peer(ORANGE)),
            (Plot::Capacity, SHARED, "onnxruntime, in place", Look::Peer(PURPLE)),
            (Plot::Capacity, PLAIN, PLAIN, Look::Peer(PINK)),
            (Plot::CapacityFunctional, MEMCPY, "memcpy of the cache", Look::Limit),
            (Plot::CapacityFunctional, KVSCATTER, "kvscatter, new cache", Look::Ours),
        ],
    }
}

impl Figure {
    /// Returns the plots that have at least two cases in the results.
    pub(crate) fn all(results: &Results) -> Vec<Self> {
        [Plot::Batch, Plot::Capacity, Plot::Update]
            .into_iter()
            .filter_map(|kind| Self::new(kind, results))
            .collect()
    }

    pub(crate) fn title(&self) -> &'static str {
        self.title
    }

    pub(crate) fn file_stem(&self) -> &str {
        &self.file_stem
    }

    /// Returns the SVG document.
    pub(crate) fn svg(&self) -> Result<String, String> {
        draw::svg(self).map_err(|error| format!("{}.svg: {error}", self.file_stem))
    }

    /// Returns a plot of times over context lengths.
    pub(crate) fn of_models(
        title: &'static str,
        subtitle: String,
        file_stem: &'static str,
        lines: Vec<PlotLine>,
    ) -> Option<Self> {
        Self::of_times(title, subtitle, file_stem, "tokens in the caches", lines)
    }

    /// Returns a plot of times over counts.
    pub(crate) fn of_times(
        title: &'static str,
        subtitle: String,
        file_stem: &'static str,
        counted: &'static str,
        lines: Vec<PlotLine>,
    ) -> Option<Self> {
        let points = || lines.iter().flat_map(|line| &line.points);
        let x = Axis::over(Unit::Count, counted, points().map(|point| point.0))?;
        let y = Axis::over(Unit::Time, "time per step", points().map(|point| point.1))?;
        Some(Self { title, subtitle, file_stem: file_stem.to_owned(), x, y, lines })
    }

    fn new(kind: Plot, results: &Results) -> Option<Self> {
        let line = |(plot, engine, name, look): Drawn| {
            let cases = results.rows.iter().filter(|row| row.plot == Some(plot)).flat_map(|row| &row.cases);
            let mut points: Vec<_> = cases.filter_map(|case| point(kind, case, engine)).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            (points.len() > 1).then(|| PlotLine { name: name.to_owned(), look, points })
        };
        let lines: Vec<_> = drawn(kind).into_iter().filter_map(line).collect();
        let points = || lines.iter().flat_map(|line| &line.points);
        let (title, subtitle, file_stem, x, y) = match kind {
            Plot::Batch => (
                "Time per decode step against the batch",
                "8 heads, head size 128, float16, one new row per sample; one cache, hot",
                "batch",
                (Unit::Count, "batch"),
                (Unit::Time, "time per step"),
            ),
            Plot::Capacity | Plot::CapacityFunctional => (
                "Time per decode step against the cache's capacity",
                "batch 4, 1 head, head size 128, float16, one new row per sample; hot",
                "capacity",
                (Unit::Count, "capacity in rows"),
                (Unit::Time, "time per step"),
            ),
            Plot::Update => (
                "Bandwidth against the size of the update",
                "batch 1, 8 heads, head size 128, float16, 1 to 8192 rows into 8192; hot",
                "update",
                (Unit::Bytes, "size of the update"),
                (Unit::Bandwidth, "bandwidth"),
            ),
        };
        let x = Axis::over(x.0, x.1, points().map(|point| point.0))?;
        let y = Axis::over(y.0, y.1, points().map(|point| point.1))?;
        let subtitle = format!("{subtitle}; {}", results.machine());
        let file_stem = format!("{file_stem}-{}", results.machine_in_files());
        Some(Self { title, subtitle, file_stem, x, y, lines })
    }
}

fn point(kind: Plot, case: &CaseResults, engine: &str) -> Option<(f64, f64)> {
    let dims = Case::new(case.case.clone()).ok()?.dims();
    let time = case.time(engine)?.median;
    let moved = case.moved_bytes as f64;
    Some(match kind {
        Plot::Batch => (dims.batch as f64, time),
        Plot::Capacity | Plot::CapacityFunctional => (dims.capacity as f64, time),
        Plot::Update => (moved, moved / time),
    })
}

#[cfg(test)]
mod tests {
    use super::Figure;
    use crate::results::tests::example;

    #[test]
    fn a_plot_has_the_engines_that_were_timed_by_growing_batch() {
        let mut results = example();
        results.rows[0].cases.reverse();
        let figures = Figure::all(&results);
        assert_eq!(figures.iter().map(Figure::file_stem).collect::<Vec<_>>(), ["batch-example-9000-avx2"]);
        let lines: Vec<_> =
            figures[0].lines.iter().map(|line| (line.name.as_str(), line.points.as_slice())).collect();
        assert_eq!(
            lines,
            [
                ("memcpy: the limit", &[(1.0, 20.0), (8.0, 160.0)][..]),
                ("kvscatter", &[(1.0, 20.0), (8.0, 200.0)])
            ]
        );
        let svg = figures[0].svg().unwrap();
        assert!(
            svg.contains("kvscatter") && svg.contains("100 ns") && svg.contains("Example 9000, avx2"),
            "{svg}"
        );
    }

    #[test]
    fn one_case_is_no_plot() {
        let mut results = example();
        results.rows[0].cases.truncate(1);
        assert!(Figure::all(&results).is_empty());
    }
}
