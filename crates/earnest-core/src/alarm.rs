//! Kinds of events that want a person: money that moved at PayPal unasked, books that differ,
//! jobs that died. What was done on purpose, by somebody who knows, is a notice.

/// Every kind of alarm, sorted. What watches for them can begin before the first one comes; a test
/// compares the list with what the source emits.
pub const KINDS: [&str; 20] = [
    "alarm.balance_differs",
    "alarm.capture_given_back",
    "alarm.capture_of_closed_intent",
    "alarm.database_held",
    "alarm.dispute_money_withheld",
    "alarm.dispute_opened",
    "alarm.job_died",
    "alarm.lost_capture_unplaced",
    "alarm.lost_purchase_reported",
    "alarm.model_cost_above_reserve",
    "alarm.origin_contested",
    "alarm.origin_lost",
    "alarm.payment_unasked",
    "alarm.paypal_look_overdue",
    "alarm.reconciliation_more_unexplained",
    "alarm.reconciliation_unexplained",
    "alarm.reversal_above_capture",
    "alarm.reversal_recorded_by_hand",
    "alarm.settlement_refused",
    "alarm.webhook_not_followed_up",
];
