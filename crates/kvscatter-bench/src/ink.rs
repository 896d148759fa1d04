//! What all pictures of measurements have in common: their colours, and text.

use std::io;

use plotters::coord::Shift;
use plotters::prelude::{DrawingArea, DrawingAreaErrorKind, IntoFont, RGBColor, SVGBackend, Text};
use plotters::style::FontStyle;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Titles and names.
pub const INK: RGBColor = RGBColor(0x1f, 0x23, 0x28);
/// Subtitles and ticks.
pub const GREY: RGBColor = RGBColor(0x59, 0x63, 0x6e);
/// Lines of the grid.
pub const GRID: RGBColor = RGBColor(0xd8, 0xde, 0xe4);
/// What is ours.
pub const OURS: RGBColor = RGBColor(0x09, 0x69, 0xda);

/// A picture that is being drawn.
pub type Area<'s> = DrawingArea<SVGBackend<'s>, Shift>;
/// What drawing returns.
pub type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;

/// How text looks.
#[derive(Clone, Copy)]
pub struct Look {
    /// In pixels.
    pub size: i32,
    /// Its colour.
    pub color: RGBColor,
    /// Whether it is bold.
    pub bold: bool,
    /// Which of its ends is at the point; upright text is centred there.
    pub at: HPos,
}

/// Writes text at a point, in pixels from the upper left corner.
///
/// # Errors
/// Those of the backend.
pub fn write(area: &Area<'_>, text: &str, place: (i32, i32), Look { size, color, bold, at }: Look) -> Drawn {
    let weight = if bold { FontStyle::Bold } else { FontStyle::Normal };
    let style = ("sans-serif", size).into_font().style(weight).color(&color).pos(Pos::new(at, VPos::Center));
    area.draw(&Text::new(text, place, style))
}
