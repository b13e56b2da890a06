//! The table of `paypal.md` section 4, row by row: what an answer means.

use earnest_paypal::outcome::classify;
use earnest_paypal::{Operation, Outcome};

fn issue(status: u16, issue: &str) -> (u16, String) {
    let name = match status {
        400 => "INVALID_REQUEST",
        403 => "NOT_AUTHORIZED",
        404 => "RESOURCE_NOT_FOUND",
        409 => "RESOURCE_CONFLICT",
        _ => "UNPROCESSABLE_ENTITY",
    };
    let body = format!(
        r#"{{"name":"{name}","message":"m","debug_id":"d","details":[{{"issue":"{issue}","description":"words"}}]}}"#
    );
    (status, body)
}

/// The outcome in one word, with what tells its kinds apart.
pub fn word(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Declined { kind, .. } => format!("declined {kind:?}"),
        Outcome::Retry { wait, .. } => format!("retry {wait:?}"),
        Outcome::Unknown { sent, .. } => format!("unknown sent={sent}"),
        other => other.as_str().to_owned(),
    }
}

fn check(operation: Operation, (status, body): (u16, String), expect: &str) {
    let outcome = classify(operation, status, body.as_bytes(), None);
    assert_eq!(word(&outcome), expect, "{operation} {status} {body}");
}

const CHARGE: Operation = Operation::OrderChargeVaulted;

/// Outcomes and the issues that come out as them.
const TABLE: &[(&str, &[&str])] = &[
    (
        "already_done",
        &[
            "ORDER_ALREADY_CAPTURED",
            "ORDER_ALREADY_AUTHORIZED",
            "AUTHORIZATION_ALREADY_CAPTURED",
            "PREVIOUSLY_VOIDED",
            "PREVIOUSLY_CAPTURED",
            "CAPTURE_FULLY_REFUNDED",
            "DUPLICATE_INVOICE_ID",
            "ORDER_ALREADY_COMPLETED",
            "ORDER_COMPLETED_OR_VOIDED",
        ],
    ),
    (
        "declined PayerCanFix",
        &[
            "INSTRUMENT_DECLINED",
            "PAYER_ACTION_REQUIRED",
            "REDIRECT_PAYER_FOR_ALTERNATE_FUNDING",
            "ORDER_NOT_APPROVED",
        ],
    ),
    (
        "declined Final",
        &[
            "PAYER_CANNOT_PAY",
            "PAYER_ACCOUNT_RESTRICTED",
            "PAYER_ACCOUNT_LOCKED_OR_CLOSED",
            "TRANSACTION_REFUSED",
            "COMPLIANCE_VIOLATION",
            "TRANSACTION_LIMIT_EXCEEDED",
            "TRANSACTION_BLOCKED_BY_PAYEE",
            "MAX_NUMBER_OF_PAYMENT_ATTEMPTS_EXCEEDED",
            "AUTHORIZATION_DENIED",
        ],
    ),
    (
        "refused",
        &[
            "PAYEE_ACCOUNT_RESTRICTED",
            "PAYEE_ACCOUNT_LOCKED_OR_CLOSED",
            "PAYEE_ACCOUNT_INVALID",
            "AUTH_CAPTURE_NOT_ENABLED",
            "PERMISSION_DENIED",
            "TRANSACTION_RECEIVING_LIMIT_EXCEEDED",
            "NOT_ENABLED_TO_VAULT_PAYMENT_SOURCE",
            "AMOUNT_MISMATCH",
            "ITEM_TOTAL_MISMATCH",
            "TAX_TOTAL_MISMATCH",
            "DECIMAL_PRECISION",
            "DECIMALS_NOT_SUPPORTED",
            "MAX_CAPTURE_AMOUNT_EXCEEDED",
            "REFUND_AMOUNT_EXCEEDED",
            "AUTH_CAPTURE_CURRENCY_MISMATCH",
            "REFUND_CAPTURE_CURRENCY_MISMATCH",
            "PAYEE_SOMETHING_ADDED_LATER",
            "INVALID_PARAMETER_VALUE",
            "PAYPAL_REQUEST_ID_REQUIRED",
        ],
    ),
    ("declined HoldGone", &["AUTHORIZATION_VOIDED", "AUTHORIZATION_EXPIRED", "ORDER_EXPIRED"]),
    (
        "declined MethodGone",
        &[
            "TOKEN_ID_NOT_FOUND",
            "AGREEMENT_ALREADY_CANCELLED",
            "BILLING_AGREEMENT_NOT_FOUND",
            "TOKEN_EXPIRED",
            "MISMATCHED_VAULT_ID_TO_PAYMENT_SOURCE",
            "INVALID_RESOURCE_ID",
        ],
    ),
    (
        "retry NotYet",
        &["PENDING_CAPTURE", "REFUND_FAILED_INSUFFICIENT_FUNDS", "REAUTHORIZATION_TOO_SOON"],
    ),
    ("retry InProgress", &["ORDER_COMPLETION_IN_PROGRESS", "PREVIOUS_REQUEST_IN_PROGRESS"]),
    ("declined Unlisted", &["SOMETHING_PAYPAL_ADDED_LATER", ""]),
];

#[test]
fn every_issue_of_the_table_has_its_class() {
    for (expect, issues) in TABLE {
        for code in *issues {
            check(CHARGE, issue(422, code), expect);
        }
    }
    check(Operation::OrderCapture, issue(422, "INVALID_RESOURCE_ID"), "declined HoldGone");
}

#[test]
fn statuses_without_a_business_answer() {
    check(CHARGE, issue(400, "INVALID_PARAMETER_SYNTAX"), "refused");
    check(CHARGE, issue(400, "DUPLICATE_INVOICE_ID"), "already_done");
    check(CHARGE, issue(403, "PERMISSION_DENIED"), "refused");
    check(CHARGE, issue(404, "INVALID_RESOURCE_ID"), "declined MethodGone");
    check(Operation::OrderCapture, issue(404, "INVALID_RESOURCE_ID"), "not_found");
    check(Operation::CaptureGet, issue(404, "INVALID_RESOURCE_ID"), "not_found");
    check(CHARGE, issue(409, "PREVIOUS_REQUEST_IN_PROGRESS"), "retry InProgress");
    check(CHARGE, issue(415, "UNSUPPORTED_MEDIA_TYPE"), "refused");
    check(CHARGE, issue(429, "RATE_LIMIT_REACHED"), "retry RateLimited");
    check(CHARGE, issue(500, "INTERNAL_SERVER_ERROR"), "unknown sent=true");
    check(CHARGE, issue(503, "SERVICE_UNAVAILABLE"), "unknown sent=true");
    check(CHARGE, issue(302, "x"), "unknown sent=true");
    check(CHARGE, issue(408, "x"), "unknown sent=true");
    // Somebody on the way answered, not PayPal.
    for status in [400, 404, 409, 422] {
        check(CHARGE, (status, "<html>gateway</html>".to_owned()), "unknown sent=true");
        check(Operation::CaptureGet, (status, "{}".to_owned()), "unknown sent=true");
    }
    for status in [401, 403, 405, 406, 413, 415] {
        // A proxy that looks at answers says so after PayPal has charged.
        check(CHARGE, (status, "<html>forbidden</html>".to_owned()), "unknown sent=true");
        check(CHARGE, (status, String::new()), "unknown sent=true");
        check(Operation::OrderGet, (status, String::new()), "refused");
    }
    check(
        CHARGE,
        (422, r#"{"name":"UNPROCESSABLE_ENTITY","details":[]}"#.to_owned()),
        "declined Unlisted",
    );
}

#[test]
fn of_several_issues_the_one_that_may_have_moved_money_decides() {
    let body = |issues: &[&str]| {
        let details: Vec<_> =
            issues.iter().map(|code| format!(r#"{{"issue":"{code}"}}"#)).collect();
        (422, format!(r#"{{"name":"UNPROCESSABLE_ENTITY","details":[{}]}}"#, details.join(",")))
    };
    check(CHARGE, body(&["INSTRUMENT_DECLINED", "DUPLICATE_INVOICE_ID"]), "already_done");
    check(CHARGE, body(&["NEW_THING", "AMOUNT_MISMATCH"]), "refused");
    check(CHARGE, body(&["NEW_THING", "PAYER_CANNOT_PAY"]), "declined Final");
}

fn order(capture_status: &str) -> (u16, String) {
    let body = format!(
        r#"{{"id":"O","status":"COMPLETED","purchase_units":[{{"payments":{{"captures":[
            {{"id":"C","status":"{capture_status}","status_details":{{"reason":"PENDING_REVIEW"}},
             "amount":{{"currency_code":"USD","value":"1.00"}}}}]}}}}]}}"#
    );
    (201, body)
}

#[test]
fn a_completed_order_is_worth_what_its_capture_is() {
    for (status, expect) in [
        ("COMPLETED", "done"),
        ("REFUNDED", "done"),
        ("PARTIALLY_REFUNDED", "done"),
        ("PENDING", "pending"),
        ("DECLINED", "declined Final"),
        ("FAILED", "declined Final"),
        ("SETTLING", "unknown sent=true"),
    ] {
        check(CHARGE, order(status), expect);
        check(Operation::OrderCapture, order(status), expect);
        // A read is done when it was read; what it shows is its caller's to judge.
        check(Operation::OrderGet, order(status), "done");
    }
    let Outcome::Pending { reason, .. } =
        classify(CHARGE, 201, order("PENDING").1.as_bytes(), None)
    else {
        panic!()
    };
    assert_eq!(reason, "PENDING_REVIEW");
}

#[test]
fn an_amount_that_cannot_be_read_makes_the_answer_unknown() {
    for value in ["-1.00", "1e2", "", "1,00"] {
        let body = order("COMPLETED").1.replace("1.00", value);
        check(CHARGE, (201, body), "unknown sent=true");
    }
    let body = order("COMPLETED").1.replace("\"1.00\"", "1.00");
    check(CHARGE, (201, body), "unknown sent=true");
}

#[test]
fn authorizations_and_refunds_follow_their_own_status() {
    let order = |status: &str| {
        let body = format!(
            r#"{{"id":"O","status":"COMPLETED","purchase_units":[{{"payments":{{"authorizations":[
                {{"id":"A","status":"{status}","amount":{{"currency_code":"USD","value":"6.00"}}}}]}}}}]}}"#
        );
        (201, body)
    };
    for (status, expect) in [
        ("CREATED", "done"),
        ("PENDING", "pending"),
        ("DENIED", "declined Final"),
        ("VOIDED", "declined HoldGone"),
        ("NEW", "unknown sent=true"),
    ] {
        check(Operation::OrderAuthorize, order(status), expect);
    }
    let refund = |status: &str| (201, format!(r#"{{"id":"R","status":"{status}"}}"#));
    for (status, expect) in [
        ("COMPLETED", "done"),
        ("PENDING", "pending"),
        ("FAILED", "refused"),
        ("CANCELLED", "refused"),
        ("NEW", "unknown sent=true"),
    ] {
        check(Operation::CaptureRefund, refund(status), expect);
        check(Operation::RefundGet, refund(status), "done");
    }
    check(Operation::AuthorizationVoid, (204, String::new()), "done");
    check(
        Operation::AuthorizationVoid,
        (200, r#"{"id":"A","status":"VOIDED"}"#.to_owned()),
        "done",
    );
    check(
        Operation::AuthorizationVoid,
        (200, r#"{"id":"A","status":"CREATED"}"#.to_owned()),
        "unknown sent=true",
    );
}

#[test]
fn no_bytes_make_it_panic() {
    let bodies: [&[u8]; 8] = [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{\"details\":null}",
        b"{\"id\":1,\"status\":[]}",
        &[b'['; 100_000],
    ];
    for operation in Operation::ALL {
        for status in [200, 201, 204, 400, 401, 403, 404, 409, 422, 429, 500, 700, 0] {
            for body in bodies {
                classify(*operation, status, body, None);
            }
        }
    }
}
