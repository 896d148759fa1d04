//! Draws the histogram as a picture with one panel for each engine.

use plotters::prelude::{Color, IntoDrawingArea, PathElement, RGBColor, Rectangle, SVGBackend, WHITE};
use plotters::style::text_anchor::HPos;

use super::text::label;
use super::{Histogram, Lane};
use crate::engines::{KVSCATTER, SINGLE, UNWRAPPED};
use crate::ink::{Area, Drawn, GREY, GRID, INK, Look, OURS, write};
use kvscatter_onnx::text::units::time;

const WIDTH: i32 = 760;
/// The left and right ends of the panels. Engines are named to the left of them.
const LEFT: i32 = 180;
const RIGHT: i32 = WIDTH - 36;
const LINE: i32 = 20;
/// The number of characters of the title that always fit one line.
const TITLE: usize = 88;
const PANEL: i32 = 52;
const GAP: i32 = 14;
const FOOT: i32 = 56;

const OTHERS: RGBColor = RGBColor(0x8c, 0x95, 0x9f);

impl Histogram {
    /// Returns an SVG document with a title. kvscatter is blue, all other engines are grey, and each has its
    /// median.
    #[must_use]
    pub fn svg(&self, title: &str) -> String {
        let mut document = String::new();
        #[expect(clippy::expect_used, reason = "drawing into memory cannot fail")]
        self.draw(&mut document, title).expect("a picture in memory");
        document
    }

    fn draw(&self, document: &mut String, title: &str) -> Drawn {
        let title = lines(title);
        let top = 32 + LINE * title.len() as i32;
        let bottom = top + self.lanes.len() as i32 * (PANEL + GAP);
        let area =
            SVGBackend::with_string(document, (WIDTH as u32, (bottom + FOOT) as u32)).into_drawing_area();
        area.fill(&WHITE)?;
        for (index, line) in title.iter().enumerate() {
            let bold = Look { size: 14, color: INK, bold: true, at: HPos::Left };
            write(&area, line, (16, 18 + LINE * index as i32), bold)?;
        }
        for tick in self.axis.ticks() {
            let x = self.x(tick);
            area.draw(&PathElement::new([(x, top), (x, bottom)], GRID.stroke_width(1)))?;
        }
        for (index, lane) in self.lanes.iter().enumerate() {
            self.panel(&area, lane, top + index as i32 * (PANEL + GAP))?;
        }
        self.labels(&area, bottom)?;
        let caption = match self.beyond() {
            0 => "time per call".to_owned(),
            beyond => format!("time per call; times beyond the end: {beyond}"),
        };
        write(
            &area,
            &caption,
            ((LEFT + RIGHT) / 2, bottom + 32),
            Look { size: 12, color: GREY, bold: false, at: HPos::Center },
        )?;
        area.present()
    }

    fn panel(&self, area: &Area<'_>, lane: &Lane, top: i32) -> Drawn {
        let base = top + PANEL;
        let color =
            if [KVSCATTER, SINGLE, UNWRAPPED].contains(&lane.engine.as_str()) { OURS } else { OTHERS };
        let most = lane.counts.iter().copied().max().unwrap_or_default().max(1);
        let edge = |column: usize| LEFT + (RIGHT - LEFT) * column as i32 / self.axis.columns as i32;
        for (column, &count) in lane.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            // Every column that is not empty is visible.
            let height = ((count as f64 / most as f64 * f64::from(PANEL)) as i32).max(1);
            let corners = [(edge(column), base - height), (edge(column + 1), base)];
            area.draw(&Rectangle::new(corners, color.filled()))?;
        }
        area.draw(&PathElement::new([(LEFT, base), (RIGHT, base)], OTHERS.stroke_width(1)))?;
        let median = self.x(lane.median);
        area.draw(&PathElement::new([(median, top), (median, base)], INK.stroke_width(2)))?;
        let name = Look { size: 13, color: INK, bold: false, at: HPos::Right };
        write(area, &lane.engine, (LEFT - 12, top + 18), name)?;
        let median = format!("median {}", time(lane.median));
        write(area, &median, (LEFT - 12, top + 36), Look { size: 12, color: GREY, ..name })
    }

    /// Draws times under the axis, as long as there is room for them.
    fn labels(&self, area: &Area<'_>, bottom: i32) -> Drawn {
        const ROOM: i32 = 56;
        let mut free = i32::MIN;
        for tick in self.axis.ticks() {
            let x = self.x(tick);
            if x - ROOM / 2 >= free {
                write(
                    area,
                    &label(tick),
                    (x, bottom + 12),
                    Look { size: 12, color: GREY, bold: false, at: HPos::Center },
                )?;
                free = x + ROOM / 2;
            }
        }
        Ok(())
    }

    fn x(&self, nanoseconds: f64) -> i32 {
        let part = self.axis.part(nanoseconds).clamp(0.0, 1.0);
        LEFT + (part * f64::from(RIGHT - LEFT)).round() as i32
    }
}

/// Splits a title into lines after commas.
fn lines(title: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in title.split_inclusive(", ") {
        match lines.last_mut() {
            Some(line) if line.chars().count() + part.chars().count() <= TITLE => line.push_str(part),
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, Histogram, Lane};
    use super::lines;

    #[test]
    fn long_titles_are_broken_behind_commas() {
        let title = format!("{}, b, c", "a".repeat(85));
        assert_eq!(lines(&title), [format!("{}, ", "a".repeat(85)), "b, c".to_owned()]);
        assert_eq!(lines("a, b"), ["a, b"]);
    }

    #[test]
    fn every_engine_has_a_panel_and_text_is_escaped() {
        let lane =
            |engine: &str| Lane { engine: engine.to_owned(), median: 20.0, counts: vec![0, 3, 1], beyond: 2 };
        let axis = Axis { from: 9.0, to: 120.0, columns: 3 };
        let histogram = Histogram { axis, lanes: vec![lane("memcpy"), lane("<ours>")] };
        let svg = histogram.svg("1 & 2");
        for text in ["1 &amp; 2", "memcpy", "&lt;ours&gt;", "median 20.0 ns", "100 ns", "beyond the end: 4"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    }
}
