//! Chores of the workspace: `cargo xtask deps` holds the import table against `cargo metadata`.
fn main() {}
