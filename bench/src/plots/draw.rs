//! Draws a figure as SVG. Lines are named at their right ends. The area beyond the limit is shaded.

use std::io;

use kvscatter_bench::ink::{self, Area, Drawn, GREY, GRID, INK, OURS, write};
use plotters::element::DashedPathElement;
use plotters::prelude::{
    Circle, Color, DrawingAreaErrorKind, IntoDrawingArea, PathElement, Polygon, RGBColor, SVGBackend, WHITE,
};
use plotters::style::text_anchor::HPos;

use super::figure::{Figure, Look, PlotLine};

const WIDTH: i32 = 760;
const HEIGHT: i32 = 460;
const LEFT: i32 = 76;
/// The right edge of the plot. The names of lines are to the right of it.
const RIGHT: i32 = 580;
const TOP: i32 = 64;
const BOTTOM: i32 = HEIGHT - 56;
/// The distance between the names of two lines.
const LEADING: i32 = 17;

const SHADE: RGBColor = RGBColor(0xee, 0xf0, 0xf2);

type Pixel = (i32, i32);

pub(super) fn svg(figure: &Figure) -> Result<String, DrawingAreaErrorKind<io::Error>> {
    let mut document = String::new();
    draw(figure, &mut document)?;
    Ok(document)
}

fn draw(figure: &Figure, document: &mut String) -> Drawn {
    let area = SVGBackend::with_string(document, (WIDTH as u32, HEIGHT as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    write(&area, figure.title, (16, 18), ink::Look { size: 16, color: INK, bold: true, at: HPos::Left })?;
    write(
        &area,
        &figure.subtitle,
        (16, 40),
        ink::Look { size: 12, color: GREY, bold: false, at: HPos::Left },
    )?;
    let limit = figure.lines.iter().find(|line| line.look == Look::Limit);
    limit.map_or(Ok(()), |line| shade(&area, figure, line))?;
    grid(&area, figure)?;
    // The lines of kvscatter and of the limit are drawn over the others.
    let order = |line: &&PlotLine| match line.look {
        Look::Peer(_) => 0,
        Look::Limit => 1,
        Look::Ours => 2,
    };
    let mut lines: Vec<_> = figure.lines.iter().collect();
    lines.sort_by_key(order);
    lines.iter().try_for_each(|line| curve(&area, line.look, &pixels(figure, line)))?;
    names(&area, figure)?;
    area.present()
}

/// Shades the area that is faster than the limit. It is below the limit in plots of times, and above it in
/// plots of bandwidths.
fn shade(area: &Area<'_>, figure: &Figure, limit: &PlotLine) -> Drawn {
    let mut outline = pixels(figure, limit);
    let beyond = if figure.y.is_better_above() { TOP } else { BOTTOM };
    outline.extend([(RIGHT, beyond), (LEFT, beyond)]);
    area.draw(&Polygon::new(outline, SHADE.filled()))
}

fn grid(area: &Area<'_>, figure: &Figure) -> Drawn {
    let small = |at| ink::Look { size: 12, color: GREY, bold: false, at };
    for tick in figure.x.ticks() {
        let x = x(figure, tick);
        area.draw(&PathElement::new([(x, TOP), (x, BOTTOM)], GRID.stroke_width(1)))?;
        write(area, &figure.x.label(tick), (x, BOTTOM + 14), small(HPos::Center))?;
    }
    for tick in figure.y.ticks() {
        let y = y(figure, tick);
        area.draw(&PathElement::new([(LEFT, y), (RIGHT, y)], GRID.stroke_width(1)))?;
        write(area, &figure.y.label(tick), (LEFT - 8, y), small(HPos::Right))?;
    }
    write(area, figure.x.name, ((LEFT + RIGHT) / 2, BOTTOM + 38), small(HPos::Center))
}

fn curve(area: &Area<'_>, look: Look, pixels: &[Pixel]) -> Drawn {
    let color = color(look);
    if look == Look::Limit {
        return area.draw(&DashedPathElement::new(pixels.iter().copied(), 7, 4, color.stroke_width(2)));
    }
    let width = if look == Look::Ours { 3 } else { 2 };
    area.draw(&PathElement::new(pixels.to_vec(), color.stroke_width(width)))?;
    pixels.iter().try_for_each(|&pixel| area.draw(&Circle::new(pixel, 3, color.filled())))
}

/// Writes each line's name where the line ends, and connects the two. Names move apart if they would overlap.
fn names(area: &Area<'_>, figure: &Figure) -> Drawn {
    let ends = figure.lines.iter().filter_map(|line| Some((line, *pixels(figure, line).last()?)));
    let mut ends: Vec<_> = ends.collect();
    ends.sort_by_key(|(_, (_, y))| *y);
    let wanted: Vec<_> = ends.iter().map(|(_, (_, y))| *y).collect();
    for ((line, end), y) in ends.into_iter().zip(spread_heights(&wanted)) {
        let color = color(line.look);
        let tie = [end, (RIGHT + 10, end.1), (RIGHT + 22, y), (RIGHT + 27, y)];
        area.draw(&PathElement::new(tie, color.stroke_width(1)))?;
        let bold = matches!(line.look, Look::Ours | Look::Limit);
        let look = ink::Look { size: 12, color, bold, at: HPos::Left };
        write(area, &line.name, (RIGHT + 31, y), look)?;
    }
    Ok(())
}

/// Returns the heights of names, in order and at least [`LEADING`] apart. Names are first moved down as far
/// as necessary, and names that are then below the plot are moved up again.
fn spread_heights(wanted: &[i32]) -> Vec<i32> {
    let mut heights = wanted.to_vec();
    let mut free = TOP;
    for height in &mut heights {
        *height = free.max(*height);
        free = *height + LEADING;
    }
    let mut free = BOTTOM;
    for height in heights.iter_mut().rev() {
        *height = free.min(*height);
        free = *height - LEADING;
    }
    heights
}

fn pixels(figure: &Figure, line: &PlotLine) -> Vec<Pixel> {
    line.points.iter().map(|&(at, value)| (x(figure, at), y(figure, value))).collect()
}

fn x(figure: &Figure, value: f64) -> i32 {
    LEFT + (f64::from(RIGHT - LEFT) * figure.x.fraction(value)).round() as i32
}

fn y(figure: &Figure, value: f64) -> i32 {
    BOTTOM - (f64::from(BOTTOM - TOP) * figure.y.fraction(value)).round() as i32
}

fn color(look: Look) -> RGBColor {
    match look {
        Look::Limit => INK,
        Look::Ours => OURS,
        Look::Peer(rgb) => {
            let [_, r, g, b] = rgb.to_be_bytes();
            RGBColor(r, g, b)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BOTTOM, LEADING, TOP, spread_heights};

    #[test]
    fn names_keep_apart_and_inside() {
        assert_eq!(spread_heights(&[100, 200, 300]), [100, 200, 300]);
        assert_eq!(spread_heights(&[100, 100, 101]), [100, 100 + LEADING, 100 + 2 * LEADING]);
        assert_eq!(spread_heights(&[BOTTOM - 1, BOTTOM]), [BOTTOM - LEADING, BOTTOM]);
        assert_eq!(spread_heights(&[0]), [TOP]);
    }
}
