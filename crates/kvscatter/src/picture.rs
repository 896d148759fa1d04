//! Pictures of a write: one lane per sample, along the sequence axis, as [text](Picture::text) and as
//! [SVG](Picture::svg).
//!
//! Old, written, wrapped and skipped differ in glyph or hatching, not in colour alone. A cache wider than the
//! picture is scaled so that a single written slot stays visible. Positions are counted in slots of the
//! cache, from 0.

mod model;
mod scale;
mod svg;
mod text;
mod words;

pub use self::model::{Lane, Picture, SampleOutcome};
pub use self::svg::Svg;
pub use self::text::Text;

impl Picture {
    /// The picture as text, 80 columns of slots at most.
    #[must_use]
    pub const fn text(&self) -> Text<'_> {
        Text::new(self)
    }

    /// The picture as a standalone SVG document.
    #[must_use]
    pub const fn svg(&self) -> Svg<'_> {
        Svg::new(self)
    }
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, clippy::as_conversions, reason = "a test that overflows fails")]
mod tests;
