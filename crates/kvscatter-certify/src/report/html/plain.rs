//! Shows text from a model's file on the page.

use maud::{Escaper, Render};

use kvscatter_onnx::text::names::one_line;

/// Text from files. It is shown unchanged, except for characters that would move or reverse the text around
/// them.
#[derive(Clone, Copy)]
pub(super) struct Plain<'a>(pub(super) &'a str);

impl Render for Plain<'_> {
    fn render_to(&self, page: &mut String) {
        use std::fmt::Write as _;
        // Writing to a string cannot fail.
        let _ = Escaper::new(page).write_str(&one_line(self.0));
    }
}
