//! Draws pictures of a write as [text](Picture::text) and as [SVG](Picture::svg).
//!
//! A picture has one lane per sample, along the sequence axis. Old, written, wrapped and skipped slots differ
//! in glyph or hatching, not only in colour, and so do the slots that [`visible`](Picture::visible) marks.
//! [`RingPicture`] shows which position each slot of a ring contains, and what a window still finds there. If
//! the cache is wider than the picture, the scale keeps a single written slot visible. Slots are counted from
//! 0.

mod model;
mod ring;
mod scale;
mod svg;
mod text;
mod words;

pub use self::model::{Lane, Picture, SampleOutcome};
pub use self::ring::{RingLane, RingOutcome, RingPicture, RingStep, RingText, Seen};
pub use self::svg::Svg;
pub use self::text::Text;

impl Picture {
    /// Returns the picture as text, with at most 80 columns of slots.
    #[must_use]
    pub const fn text(&self) -> Text<'_> {
        Text::new(self)
    }

    /// Returns the picture as a standalone SVG document.
    #[must_use]
    pub const fn svg(&self) -> Svg<'_> {
        Svg::new(self)
    }
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, clippy::as_conversions, reason = "a test that overflows fails")]
mod tests;
