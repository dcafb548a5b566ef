//! The `tier` command.
fn main() {}
