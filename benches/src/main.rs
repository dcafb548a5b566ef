//! The `tier-bench` command.
fn main() {}
