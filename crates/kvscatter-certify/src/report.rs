//! Renders a certificate as a page. [`html`] returns one file that a browser can show and print without other
//! files.
//!
//! This module does not handle the other two forms: `serde` writes a certificate as JSON, and the command
//! line prints it as text. Sentences that the page and the text share are in [`words`].

mod html;
#[cfg(test)]
pub(crate) mod sample;
pub mod words;

pub use html::html;
