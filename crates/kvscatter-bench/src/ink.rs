//! Colours and text for pictures of measurements.

use std::io;

use plotters::coord::Shift;
use plotters::prelude::{DrawingArea, DrawingAreaErrorKind, IntoFont, RGBColor, SVGBackend, Text};
use plotters::style::FontStyle;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// The colour of titles and names.
pub const INK: RGBColor = RGBColor(0x1f, 0x23, 0x28);
/// The colour of subtitles and ticks.
pub const GREY: RGBColor = RGBColor(0x59, 0x63, 0x6e);
/// The colour of grid lines.
pub const GRID: RGBColor = RGBColor(0xd8, 0xde, 0xe4);
/// The colour of kvscatter.
pub const OURS: RGBColor = RGBColor(0x09, 0x69, 0xda);

/// An area of a picture that is being drawn.
pub type Area<'s> = DrawingArea<SVGBackend<'s>, Shift>;
/// The result of a drawing function.
pub type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;

/// The style of a text.
#[derive(Clone, Copy)]
pub struct Look {
    /// The size of the letters, in pixels.
    pub size: i32,
    /// The colour of the letters.
    pub color: RGBColor,
    /// Whether the letters are bold.
    pub bold: bool,
    /// The end of the text that is at the given point. Upright text is centred there.
    pub at: HPos,
}

/// Writes text at a point, in pixels from the upper left corner.
///
/// # Errors
/// Returns the errors of the backend.
pub fn write(area: &Area<'_>, text: &str, place: (i32, i32), Look { size, color, bold, at }: Look) -> Drawn {
    let weight = if bold { FontStyle::Bold } else { FontStyle::Normal };
    let style = ("sans-serif", size).into_font().style(weight).color(&color).pos(Pos::new(at, VPos::Center));
    area.draw(&Text::new(text, place, style))
}
