//! One planted bug at a time: a suite that does not catch it proves nothing.
//!
//! Compiled under the feature `planted` only. The bug belongs to the thread that plants it, so
//! tests beside each other do not meet.

use std::cell::Cell;

/// The bugs: in the ledger and the engine, then in the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The ledger resolves a hold that was resolved before.
    ResolveTwice,
    /// The ledger posts more than was held.
    PostAboveHold,
    /// The engine does not store the key.
    SkipKeyInsert,
    /// The engine answers before the commit that holds the answer.
    AnswerBeforeCommit,
    /// The engine goes on when SQLite has ended the whole transaction.
    IgnoreRollback,
    /// The engine binds a key to a refusal.
    RefusalAsResult,
    /// The engine commits without waiting for the disk.
    NoSync,
    /// The engine remembers a key as used before what it is used for is written.
    KeyBeforeWrite,
    /// The engine goes on with the rows it knows when another node has written.
    IgnoreForeign,
    /// A settlement whose outcome is unknown gives its money back.
    ReleaseOnUnknown,
    /// A capture that waits counts as captured.
    CreditOnPending,
    /// An intent is sent again when PayPal has forgotten its key.
    PostAfterRetention,
    /// *Not charged* is believed while the key may still be sent.
    NotChargedEarly,
    /// A report posts a hold that was given up.
    PostAfterExpiry,
    /// A hold does not count under its owner's day.
    SkipCapLeg,
    /// A declined settlement does not give back the lines that were carried to it.
    LoseCarriedLines,
}

impl Bug {
    /// Those of the ledger and the engine.
    pub const ALL: &'static [Self] = &[
        Self::ResolveTwice,
        Self::PostAboveHold,
        Self::SkipKeyInsert,
        Self::AnswerBeforeCommit,
        Self::IgnoreRollback,
        Self::RefusalAsResult,
    ];

    /// Those that show only when a disk fails, a machine stops, or another node writes.
    pub const PLACE: &'static [Self] = &[Self::NoSync, Self::KeyBeforeWrite, Self::IgnoreForeign];

    /// Those of the rules.
    pub const RULES: &'static [Self] = &[
        Self::ReleaseOnUnknown,
        Self::CreditOnPending,
        Self::PostAfterRetention,
        Self::NotChargedEarly,
        Self::PostAfterExpiry,
        Self::SkipCapLeg,
        Self::LoseCarriedLines,
    ];

    /// The name, as given on a command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ResolveTwice => "resolve_twice",
            Self::PostAboveHold => "post_above_hold",
            Self::SkipKeyInsert => "skip_key_insert",
            Self::AnswerBeforeCommit => "answer_before_commit",
            Self::IgnoreRollback => "ignore_rollback",
            Self::RefusalAsResult => "refusal_as_result",
            Self::NoSync => "no_sync",
            Self::KeyBeforeWrite => "key_before_write",
            Self::IgnoreForeign => "ignore_foreign",
            Self::ReleaseOnUnknown => "release_on_unknown",
            Self::CreditOnPending => "credit_on_pending",
            Self::PostAfterRetention => "post_after_retention",
            Self::NotChargedEarly => "not_charged_early",
            Self::PostAfterExpiry => "post_after_expiry",
            Self::SkipCapLeg => "skip_cap_leg",
            Self::LoseCarriedLines => "lose_carried_lines",
        }
    }

    /// The bug of that name.
    pub fn parse(name: &str) -> Option<Self> {
        let every = Self::ALL.iter().chain(Self::PLACE).chain(Self::RULES);
        every.copied().find(|bug| bug.as_str() == name)
    }
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Plants a bug in this thread, or takes it out.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether this bug is planted in this thread.
pub fn on(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}
