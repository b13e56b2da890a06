//! The settlement layer for AI agents.

fn main() {}
