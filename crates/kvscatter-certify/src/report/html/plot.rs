//! The coordinates of a plot of decode times, with a logarithmic horizontal axis.

use serde::Serialize;

use crate::certificate::{ComparedModel, DecodeTimes};

const LEFT: f64 = 76.0;
const RIGHT: f64 = 500.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 232.0;
/// The smallest distance between two names.
const LEADING: f64 = 16.0;

/// A plot of times over lengths.
#[derive(Serialize)]
pub(super) struct Plot {
    left: f64,
    right: f64,
    bottom: f64,
    /// Times in nanoseconds that are labelled, each with its height.
    times: Vec<(f64, f64)>,
    /// The lengths, each with its horizontal position.
    lengths: Vec<(f64, usize)>,
    lines: Vec<Line>,
}

/// The times of one model.
#[derive(Serialize)]
struct Line {
    of: ComparedModel,
    points: Vec<(f64, f64)>,
    /// The height of the line's name.
    name_at: f64,
}

impl Plot {
    /// Returns the plot, or `None` if there are no times.
    pub(super) fn new(times: &DecodeTimes) -> Option<Self> {
        let (first, last) = (times.at.first()?.context, times.at.last()?.context);
        let originals = times.at.iter().filter_map(|at| Some((at.context, at.original_ns?))).collect();
        let models: Vec<_> = times.at.iter().map(|at| (at.context, at.model_ns)).collect();
        let lines = [(ComparedModel::Model, models), (ComparedModel::Original, originals)];
        let most = lines.iter().flat_map(|(_, points)| points).map(|point| point.1).fold(1.0, f64::max);
        let step = nice(most / 4.0);
        let rows = (most / step).ceil().max(1.0);
        let log = |length: usize| (length.max(1) as f64).ln();
        let across = (log(last) - log(first)).max(f64::MIN_POSITIVE);
        let x =
            |length| rounded(LEFT + (RIGHT - LEFT) * ((log(length) - log(first)) / across).clamp(0.0, 1.0));
        let y = |time: f64| rounded(BOTTOM - (BOTTOM - TOP) * time / (step * rows));
        let line = |(of, points): (ComparedModel, Vec<(usize, f64)>)| {
            let points: Vec<_> = points.into_iter().map(|(length, time)| (x(length), y(time))).collect();
            let name_at = points.last()?.1;
            Some(Line { of, points, name_at })
        };
        let mut lines: Vec<_> = lines.into_iter().filter_map(line).collect();
        separate_names(&mut lines);
        Some(Self {
            left: LEFT,
            right: RIGHT,
            bottom: BOTTOM,
            times: (0..=rows as usize).map(|row| step * row as f64).map(|time| (y(time), time)).collect(),
            lengths: times.at.iter().map(|at| (x(at.context), at.context)).collect(),
            lines,
        })
    }
}

/// Moves names up so that no two overlap. Each stays beside the end of its line as far as possible.
fn separate_names(lines: &mut [Line]) {
    let mut by_height: Vec<_> = lines.iter_mut().map(|line| &mut line.name_at).collect();
    by_height.sort_by(|a, b| b.total_cmp(a));
    let mut free = BOTTOM;
    for height in by_height {
        *height = height.min(free);
        free = *height - LEADING;
    }
}

/// Rounds to one digit, finer than any pixel.
fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Returns the smallest number that is at least `value` and is 1, 2 or 5 times a power of ten.
fn nice(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1.0).log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().find(|step| step * power >= value);
    step.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::{ComparedModel, LEADING, Line, nice, separate_names};

    #[test]
    fn steps_are_round() {
        assert_eq!([0.1, 1.0, 1.1, 30.0, 51.0, 7e6].map(nice), [1.0, 1.0, 2.0, 50.0, 100.0, 1e7]);
    }

    #[test]
    fn names_keep_apart() {
        let line = |name_at| Line { of: ComparedModel::Model, points: vec![], name_at };
        let mut lines = [190.0, 189.5, 110.0].map(line);
        separate_names(&mut lines);
        assert_eq!(lines.map(|line| line.name_at), [190.0, 190.0 - LEADING, 110.0]);
    }
}
