//! The books on disk: one writer, group commit, a hash chain; the only SQL.
