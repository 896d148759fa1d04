//! Every step of continuous integration, runnable by hand.
fn main() {}
