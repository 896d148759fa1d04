//! A line plot with a logarithmic horizontal axis, in the page's own colours.

use maud::{Markup, html};

/// A plot: times over lengths.
pub(super) struct Plot<'p> {
    /// A description for readers who cannot see the plot.
    pub(super) label: &'p str,
    /// The quantity on the horizontal axis.
    pub(super) across: &'p str,
    /// The lines. The first one belongs to the examined model.
    pub(super) lines: Vec<Line<'p>>,
}

/// A line: a time in nanoseconds at each length.
pub(super) struct Line<'p> {
    pub(super) name: &'p str,
    pub(super) points: Vec<(usize, f64)>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 500.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 232.0;
/// The smallest distance between two names.
const LEADING: f64 = 16.0;

impl Plot<'_> {
    pub(super) fn draw(&self) -> Markup {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let mut lengths: Vec<_> = points().map(|point| point.0).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let (Some(&first), Some(&last)) = (lengths.first(), lengths.last()) else { return html! {} };
        let step = nice(points().map(|point| point.1).fold(1.0, f64::max) / 4.0);
        let most = points().map(|point| point.1).fold(1.0, f64::max);
        let rows = (most / step).ceil().max(1.0);
        let log = |length: usize| (length.max(1) as f64).ln();
        let across = (log(last) - log(first)).max(f64::MIN_POSITIVE);
        let x = |length: usize| LEFT + (RIGHT - LEFT) * ((log(length) - log(first)) / across).clamp(0.0, 1.0);
        let y = |time: f64| BOTTOM - (BOTTOM - TOP) * time / (step * rows);
        html! {
            svg.plot viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(self.label) {
                @for row in 0..=rows as usize {
                    @let time = step * row as f64;
                    path.gridline d=(format!("M{LEFT} {:.1}H{RIGHT}", y(time))) {}
                    text.end x=(LEFT - 8.0) y=(format!("{:.1}", y(time) + 4.0)) { (kvscatter_onnx::text::units::time(time)) }
                }
                @for &length in &lengths {
                    path.gridline d=(format!("M{:.1} {BOTTOM}v5", x(length))) {}
                    text.middle x=(format!("{:.1}", x(length))) y=(BOTTOM + 20.0) { (length) }
                }
                text.middle x=((LEFT + RIGHT) / 2.0) y=(BOTTOM + 42.0) { (self.across) }
                @for (place, (line, name)) in self.lines.iter().zip(self.names(y)).enumerate() {
                    @let class = if place == 0 { "ours" } else { "theirs" };
                    polyline.(class) points=(path(line, x, y)) {}
                    @for &(length, time) in &line.points {
                        circle.(class) cx=(format!("{:.1}", x(length))) cy=(format!("{:.1}", y(time))) r="3" {}
                    }
                    text.(class) x=(RIGHT + 10.0) y=(format!("{:.1}", name + 4.0)) { (line.name) }
                }
            }
        }
    }

    /// Returns the heights of the lines' names. Each name is beside the end of its line, and no two names
    /// overlap.
    fn names(&self, y: impl Fn(f64) -> f64) -> Vec<f64> {
        let ends = self.lines.iter().map(|line| line.points.last().map_or(BOTTOM, |&(_, time)| y(time)));
        let mut names: Vec<(usize, f64)> = ends.enumerate().collect();
        names.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut free = BOTTOM;
        for (_, height) in &mut names {
            *height = height.min(free);
            free = *height - LEADING;
        }
        names.sort_by_key(|(line, _)| *line);
        names.into_iter().map(|(_, height)| height).collect()
    }
}

fn path(line: &Line<'_>, x: impl Fn(usize) -> f64, y: impl Fn(f64) -> f64) -> String {
    let place = |&(length, time): &(usize, f64)| format!("{:.1},{:.1}", x(length), y(time));
    line.points.iter().map(place).collect::<Vec<_>>().join(" ")
}

/// Returns the smallest number that is at least `value` and is 1, 2 or 5 times a power of ten.
fn nice(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1.0).log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().find(|step| step * power >= value);
    step.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::{LEADING, Line, Plot, nice};

    #[test]
    fn steps_are_round() {
        assert_eq!([0.1, 1.0, 1.1, 30.0, 51.0, 7e6].map(nice), [1.0, 1.0, 2.0, 50.0, 100.0, 1e7]);
    }

    #[test]
    fn names_keep_apart() {
        let line = |time| Line { name: "", points: vec![(1, time)] };
        let plot = Plot { label: "", across: "", lines: vec![line(10.0), line(10.5), line(90.0)] };
        let names = plot.names(|time| 200.0 - time);
        assert_eq!(names, [190.0, 190.0 - LEADING, 110.0]);
    }
}
