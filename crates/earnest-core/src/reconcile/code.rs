//! What PayPal's event codes and statuses mean to the comparison. Their spelling is read at the edge,
//! where PayPal is spoken to; what is not known there stays unknown here.

/// What kind of movement a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Several payments at once.
    MassPayment,
    /// A charge of a saved wallet.
    PreApprovedPayment,
    /// A payment at a checkout.
    CheckoutPayment,
    /// Another payment.
    Payment,
    /// The fee of a chargeback.
    ChargebackFee,
    /// Another fee.
    Fee,
    /// Money changed from one currency to another.
    CurrencyConversion,
    /// Money from a bank.
    BankDeposit,
    /// Money to a bank.
    BankWithdrawal,
    /// A debit card.
    DebitCard,
    /// Money from a card.
    CardDeposit,
    /// A bonus.
    Bonus,
    /// PayPal took a payment back.
    PaymentReversed,
    /// A payment was refunded.
    PaymentRefunded,
    /// A fee came back.
    FeeReturned,
    /// Money is withheld for a dispute.
    DisputeHold,
    /// Money of a dispute is released.
    DisputeRelease,
    /// Another reversal or hold.
    ReversalOrHold,
    /// A chargeback.
    Chargeback,
    /// Another adjustment.
    Adjustment,
    /// An authorization or its end: nothing moves.
    Authorization,
    /// A general hold, or its release.
    HoldOrRelease,
    /// Money moved between accounts.
    Transfer,
    /// A code that was not known when this was written.
    Unknown,
}

impl EventKind {
    /// What it is, in words.
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::MassPayment => "mass payment",
            Self::PreApprovedPayment => "pre-approved payment",
            Self::CheckoutPayment => "checkout payment",
            Self::Payment => "payment",
            Self::ChargebackFee => "chargeback fee",
            Self::Fee => "fee",
            Self::CurrencyConversion => "currency conversion",
            Self::BankDeposit => "deposit from a bank",
            Self::BankWithdrawal => "withdrawal to a bank",
            Self::DebitCard => "debit card",
            Self::CardDeposit => "deposit from a card",
            Self::Bonus => "bonus",
            Self::PaymentReversed => "payment reversed by PayPal",
            Self::PaymentRefunded => "payment refunded",
            Self::FeeReturned => "fee given back",
            Self::DisputeHold => "money withheld for a dispute",
            Self::DisputeRelease => "money of a dispute released",
            Self::ReversalOrHold => "reversal or hold",
            Self::Chargeback => "chargeback",
            Self::Adjustment => "adjustment",
            Self::Authorization => "authorization",
            Self::HoldOrRelease => "hold or release",
            Self::Transfer => "transfer between accounts",
            Self::Unknown => "a code that Earnest does not know",
        }
    }

    /// Whether it gives a payment back. Holds of a dispute and fees take nothing back from anybody.
    pub const fn gives_back(self) -> bool {
        matches!(self, Self::PaymentReversed | Self::PaymentRefunded | Self::Chargeback)
    }
}

/// PayPal's code of a row, and what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventCode {
    /// As PayPal wrote it: `T0006`, `T1107` …
    pub text: String,
    /// What it means.
    pub kind: EventKind,
}

/// How a row stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowStatus {
    /// Done.
    Success,
    /// Not done yet.
    Pending,
    /// Never done.
    Denied,
    /// Done, and taken back by a row of its own.
    Reversed,
    /// Done, and given back in part by rows of their own.
    PartlyRefunded,
    /// PayPal says nothing about it: done, as its records of done things have it.
    Unsaid,
    /// A status that was not known when this was written, as PayPal wrote it.
    Unknown(String),
}

impl RowStatus {
    /// Whether the row moved the balance.
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Success | Self::Reversed | Self::PartlyRefunded | Self::Unsaid)
    }

    /// Whether nobody here can say so.
    pub const fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }
}
