//! Cases from data, checked and measured.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test they help")]

mod cases;
mod engines;
mod support;
