//! Prints one lane of blocks for each engine.

use std::fmt;

use super::{Axis, Histogram, Lane};
use kvscatter_onnx::text::units::time;

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Prints one line for each engine, and the axis. The most frequent column of a line has the tallest block.
impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.lanes.iter().map(|lane| lane.engine.chars().count()).max().unwrap_or_default();
        for lane in &self.lanes {
            writeln!(f, "{:width$}  {}", lane.engine, blocks(lane).trim_end())?;
        }
        let [marks, labels] = axis(&self.axis);
        writeln!(f, "{:width$}  {marks}", "")?;
        writeln!(f, "{:width$}  {}", "", labels.trim_end())?;
        match self.beyond() {
            0 => Ok(()),
            1 => writeln!(f, "1 time is beyond the end of the axis"),
            beyond => writeln!(f, "{beyond} times are beyond the end of the axis"),
        }
    }
}

fn blocks(lane: &Lane) -> String {
    let most = lane.counts.iter().copied().max().unwrap_or_default().max(1);
    let block = |&count: &usize| match count {
        0 => ' ',
        // Every column that is not empty is visible.
        _ => BLOCKS[(count * BLOCKS.len()).div_ceil(most) - 1],
    };
    lane.counts.iter().map(block).collect()
}

/// Returns tick marks, and below them labels where there is room.
fn axis(axis: &Axis) -> [String; 2] {
    let mut marks = vec!['─'; axis.columns];
    let mut labels = String::new();
    let mut end = 0;
    for tick in axis.ticks() {
        let Some(column) = axis.column(tick) else { continue };
        marks[column] = '┬';
        if column >= end {
            labels.extend(std::iter::repeat_n(' ', column - labels.chars().count()));
            labels.push_str(&label(tick));
            end = labels.chars().count() + 2;
        }
    }
    [marks.into_iter().collect(), labels]
}

/// Formats a round time without trailing zeros.
pub(super) fn label(tick: f64) -> String {
    let text = time(tick);
    let (number, unit) = text.split_once(' ').unwrap_or((&text, ""));
    let number =
        if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{number} {unit}")
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, Histogram, Lane};
    use super::label;

    fn lane(engine: &str, counts: &[usize], beyond: usize) -> Lane {
        Lane { engine: engine.to_owned(), median: 2.0, counts: counts.to_vec(), beyond }
    }

    #[test]
    fn lanes_over_one_axis() {
        let axis = Axis { from: 9.5, to: 9.5 * 32.0, columns: 20 };
        let counts = |first: usize| {
            let mut counts = [0; 20];
            counts[first..first + 4].copy_from_slice(&[1, 800, 400, 300]);
            counts
        };
        let histogram =
            Histogram { axis, lanes: vec![lane("memcpy", &counts(0), 0), lane("ours", &counts(4), 3)] };
        let text = histogram.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "memcpy  ▁█▄▃",
                "ours        ▁█▄▃",
                "        ┬───┬────┬───┬───┬──",
                "        10 ns    50 ns   200 ns",
                "3 times are beyond the end of the axis",
            ]
        );
    }

    #[test]
    fn labels_are_short() {
        assert_eq!(
            [1.0, 20.0, 500.0, 1000.0, 2500.0, 1e6].map(label),
            ["1 ns", "20 ns", "500 ns", "1 µs", "2.5 µs", "1 ms"]
        );
    }
}
