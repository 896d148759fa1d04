//! The `kvscatter` command.
fn main() {}
