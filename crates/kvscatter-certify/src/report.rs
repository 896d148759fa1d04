//! Renders a certificate as a page: [`html`] returns one file, which a browser can show and print without other files.
//!
//! As JSON a certificate is serialised as it is. The command line prints it as text. Sentences that the page and the
//! text share are in [`words`].

mod html;
#[cfg(test)]
pub(crate) mod sample;
pub mod words;

pub use html::html;
