//! A certificate as a page: [`html`] is one file that a browser shows and prints, with nothing outside it.
//!
//! As JSON a certificate is itself, and the command line prints it as text. What all of them say in the same words is
//! in [`words`].

mod html;
#[cfg(test)]
pub(crate) mod sample;
pub mod words;

pub use html::html;
