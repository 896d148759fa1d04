//! Renders a certificate as a page. [`html`] returns one file that a browser can show and print without other
//! files.
//!
//! The other two forms are produced elsewhere. `serde` writes a certificate as JSON, and the command line
//! prints it as text. Sentences that the page and the text have in common are in [`words`].

mod html;
#[cfg(test)]
pub(crate) mod sample;
pub mod words;

pub use html::html;
