//! When Transaction Search proves that a charge did not happen, and when it does not.

use earnest_core::time::Timestamp;
use earnest_paypal::evidence::{Evidence, prove_absent};
use serde_json::{Value, json};

use crate::server::{Reply, Seen, Server, json as answer};

const INVOICE: &str = "e1:tab_1:7:1";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn query(seen: &Seen, name: &str) -> String {
    let url = url::Url::parse("http://x").unwrap().join(&seen.path).unwrap();
    let found = url.query_pairs().find(|(other, _)| other == name);
    found.unwrap_or_else(|| panic!("no {name}")).1.into_owned()
}

fn row(invoice: &str, id: &str) -> Value {
    json!({"transaction_info": {
        "transaction_id": id, "transaction_event_code": "T0003", "transaction_status": "S",
        "transaction_amount": {"currency_code": "USD", "value": "0.95"},
        "fee_amount": {"currency_code": "USD", "value": "-0.52"},
        "invoice_id": invoice, "transaction_initiation_date": "2026-11-30T09:00:02+0000",
    }})
}

/// An honest report of one page, complete up to `refreshed`.
fn page(seen: &Seen, rows: &[Value], refreshed: &str) -> Value {
    json!({
        "transaction_details": rows, "account_number": "7KNGBPH2U58GQ",
        "start_date": query(seen, "start_date"), "end_date": query(seen, "end_date"),
        "last_refreshed_datetime": refreshed,
        "page": query(seen, "page").parse::<u32>().unwrap(),
        "total_items": rows.len(), "total_pages": 1,
    })
}

fn reply(page: &Value) -> Reply {
    answer(200, &page.to_string())
}

/// Sent at 9:00 and 10:00, asked at `now`.
async fn ask(server: &Server, now: &str) -> Evidence {
    let (first, last) = (at("2026-11-30T09:00:00Z"), at("2026-11-30T10:00:00Z"));
    prove_absent(&server.client(), INVOICE, first, last, at(now)).await
}

const LATER: &str = "2026-11-30T14:00:00Z";

#[tokio::test]
async fn a_complete_report_without_the_invoice_proves_absence() {
    let server = Server::with_tokens(|seen, _| {
        reply(&page(seen, &[row("e1:tab_2:1:1", "T1")], "2026-11-30T13:00:00+0000"))
    })
    .await;
    let Evidence::Absent(absence) = ask(&server, LATER).await else { panic!() };
    assert_eq!(absence.sought, INVOICE);
    assert_eq!(absence.last_refreshed, at("2026-11-30T13:00:00Z"));
    assert_eq!((absence.rows, absence.answers), (1, 1));
    assert_eq!(absence.answers_sha256.len(), 64);
    let calls = server.calls();
    assert_eq!(query(&calls[0], "start_date"), "2026-11-30T08:00:00Z");
    assert_eq!(query(&calls[0], "end_date"), "2026-11-30T11:00:00Z");
    assert_eq!(query(&calls[0], "balance_affecting_records_only"), "N");
    assert_eq!(query(&calls[0], "fields"), "transaction_info");
}

#[tokio::test]
async fn absence_is_claimed_only_of_a_report_complete_past_the_last_send() {
    // One second short of three hours after the last send.
    let server =
        Server::with_tokens(|seen, _| reply(&page(seen, &[], "2026-11-30T12:59:59Z"))).await;
    let evidence = ask(&server, LATER).await;
    assert_eq!(evidence, Evidence::NotYet { until: at("2026-11-30T14:10:00Z") });
    // Too early to ask at all: nothing is sent.
    let evidence = ask(&server, "2026-11-30T12:59:59Z").await;
    assert_eq!(evidence, Evidence::NotYet { until: at("2026-11-30T13:00:00Z") });
    assert_eq!(server.calls().len(), 1);
}

#[tokio::test]
async fn a_row_that_is_there_is_found_however_old_the_report() {
    let server = Server::with_tokens(|seen, _| {
        let rows = [row("other", "T1"), row(INVOICE, "3C679366HH908993F")];
        let mut page = page(seen, &rows, "2026-11-30T10:30:00Z");
        // As PayPal does when the window reaches past the report.
        page["end_date"] = json!("2026-11-30T10:30:00Z");
        reply(&page)
    })
    .await;
    let Evidence::Found { rows, .. } = ask(&server, LATER).await else { panic!() };
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].transaction_id, "3C679366HH908993F");
    assert_eq!(rows[0].amount_micros, Some(950_000));
    assert_eq!(rows[0].fee_micros, Some(-520_000));
    assert_eq!(rows[0].initiated, Some(at("2026-11-30T09:00:02Z")));
}

#[tokio::test]
async fn every_page_is_read() {
    let server = Server::with_tokens(|seen, _| {
        let number = query(seen, "page").parse::<u32>().unwrap();
        let invoice = if number == 3 { INVOICE } else { "other" };
        let mut page = page(seen, &[row(invoice, &format!("T{number}"))], "2026-11-30T13:30:00Z");
        page["total_pages"] = json!(3);
        page["total_items"] = json!(3);
        reply(&page)
    })
    .await;
    assert!(matches!(ask(&server, LATER).await, Evidence::Found { .. }));
    assert_eq!(server.calls().len(), 3);
}

#[tokio::test]
async fn a_long_span_is_searched_in_parts() {
    let server =
        Server::with_tokens(|seen, _| reply(&page(seen, &[], "2027-02-01T00:00:00Z"))).await;
    let evidence = prove_absent(
        &server.client(),
        INVOICE,
        at("2026-11-01T00:00:00Z"),
        at("2026-12-20T00:00:00Z"),
        at("2027-02-01T00:00:00Z"),
    )
    .await;
    let Evidence::Absent(absence) = evidence else { panic!("{evidence:?}") };
    assert_eq!(absence.answers, 2);
    let calls = server.calls();
    assert_eq!(query(&calls[0], "end_date"), query(&calls[1], "start_date"));
    assert_eq!(query(&calls[0], "start_date"), "2026-10-31T23:00:00Z");
    assert_eq!(query(&calls[1], "end_date"), "2026-12-20T01:00:00Z");
}

#[tokio::test]
async fn too_many_rows_halve_the_window_until_they_fit() {
    let server = Server::with_tokens(|seen, _| {
        let (from, to) = (at(&query(seen, "start_date")), at(&query(seen, "end_date")));
        if to.duration_since(from).as_mins() > 50 {
            let body = r#"{"name":"RESULTSET_TOO_LARGE","message":"Result set size is greater than the maximum limit."}"#;
            return answer(400, body);
        }
        let hit = from <= at("2026-11-30T09:00:02Z") && to >= at("2026-11-30T09:00:02Z");
        let rows: &[Value] = if hit { &[row(INVOICE, "T1")] } else { &[] };
        reply(&page(seen, rows, "2026-11-30T13:30:00Z"))
    })
    .await;
    let Evidence::Found { rows, .. } = ask(&server, LATER).await else { panic!() };
    assert_eq!(rows.len(), 1);
    let read: Vec<_> = server
        .calls()
        .iter()
        .map(|seen| (at(&query(seen, "start_date")), at(&query(seen, "end_date"))))
        .filter(|(from, to)| to.duration_since(*from).as_mins() <= 50)
        .collect();
    assert_eq!(read.first().unwrap().0, at("2026-11-30T08:00:00Z"));
    assert_eq!(read.last().unwrap().1, at("2026-11-30T11:00:00Z"));
    assert!(read.windows(2).all(|pair| pair[0].1 == pair[1].0), "no gaps: {read:?}");
}

async fn check_unreadable(spoil: impl Fn(&mut Value) + Send + Sync + 'static) -> Evidence {
    let server = Server::with_tokens(move |seen, _| {
        let mut page = page(seen, &[row("other", "T1")], "2026-11-30T13:30:00Z");
        spoil(&mut page);
        reply(&page)
    })
    .await;
    ask(&server, LATER).await
}

#[tokio::test]
async fn a_report_that_cannot_be_trusted_proves_nothing() {
    type Spoil = fn(&mut Value);
    let spoilers: [(&str, Spoil); 7] = [
        ("fewer rows than the total", |page| page["total_items"] = json!(2)),
        ("no totals", |page| page["total_pages"] = Value::Null),
        ("another page", |page| page["page"] = json!(2)),
        ("a shorter window", |page| page["end_date"] = json!("2026-11-30T10:30:00Z")),
        ("no refresh time", |page| page["last_refreshed_datetime"] = Value::Null),
        ("a row that cannot be read", |page| {
            page["transaction_details"][0]["transaction_info"]["invoice_id"] = json!(7);
        }),
        ("a row without its info", |page| page["transaction_details"][0] = json!({})),
    ];
    for (what, spoil) in spoilers {
        let evidence = check_unreadable(spoil).await;
        assert!(matches!(evidence, Evidence::Unreadable { .. }), "{what}: {evidence:?}");
    }
    assert!(matches!(check_unreadable(|_| {}).await, Evidence::Absent(_)), "the control");
}

#[tokio::test]
async fn a_row_with_an_odd_amount_is_still_looked_at() {
    let evidence = check_unreadable(|page| {
        let info = &mut page["transaction_details"][0]["transaction_info"];
        info["transaction_amount"] = json!({"currency_code": "POINTS", "value": "x"});
        info["invoice_id"] = json!(INVOICE);
    })
    .await;
    let Evidence::Found { rows, .. } = evidence else { panic!("{evidence:?}") };
    assert_eq!(rows[0].amount_micros, None);
}

#[tokio::test]
async fn errors_of_the_search_prove_nothing() {
    for (status, body, not_yet) in [
        (500, "{}", false),
        (403, r#"{"name":"NOT_AUTHORIZED"}"#, false),
        (429, "{}", false),
        (400, r#"{"name":"INVALID_REQUEST","message":"x"}"#, false),
        (
            400,
            r#"{"name":"INVALID_REQUEST","message":"Data for the given start date is not available."}"#,
            true,
        ),
        (200, "<html>", false),
    ] {
        let server = Server::with_tokens(move |_, _| answer(status, body)).await;
        let evidence = ask(&server, LATER).await;
        let expected = match not_yet {
            true => matches!(evidence, Evidence::NotYet { .. }),
            false => matches!(evidence, Evidence::Unreadable { .. }),
        };
        assert!(expected, "{status} {body}: {evidence:?}");
    }
}

/// A report of so many rows, each of them this long, cut into the pages that are asked for.
fn cut(seen: &Seen, total: usize, long: usize) -> Value {
    let number = |name: &str| query(seen, name).parse::<usize>().unwrap();
    let (size, at) = (number("page_size"), number("page"));
    let rows = (0..total).skip((at - 1) * size).take(size).map(|n| {
        let mut row = row(if n == 7 { INVOICE } else { "other" }, &format!("T{n}"));
        row["transaction_info"]["transaction_note"] = json!("x".repeat(long));
        row
    });
    let rows: Vec<Value> = rows.collect();
    let mut page = page(seen, &rows, "2026-11-30T13:30:00Z");
    page["total_items"] = json!(total);
    page["total_pages"] = json!(total.div_ceil(size));
    page
}

/// PayPal may write more about a row than a page of 500 has room for here: smaller pages are asked for,
/// every row is seen once, and the span is not given up.
#[tokio::test]
async fn a_page_too_long_to_read_is_asked_for_in_smaller_ones() {
    // 500 and 250 of them are more than 8 MiB, 125 are not.
    let server = Server::with_tokens(|seen, _| reply(&cut(seen, 300, 50_000))).await;
    let Evidence::Found { rows, complete } = ask(&server, LATER).await else { panic!() };
    assert_eq!((rows.len(), complete), (1, true));
    let asked: Vec<_> = server
        .calls()
        .iter()
        .map(|call| format!("{}/{}", query(call, "page_size"), query(call, "page")))
        .collect();
    assert_eq!(asked, ["500/1", "250/1", "125/1", "125/2", "125/3"]);
    let absent = prove_absent(
        &server.client(),
        "nobody's",
        at("2026-11-30T09:00:00Z"),
        at("2026-11-30T10:00:00Z"),
        at(LATER),
    )
    .await;
    let Evidence::Absent(absence) = absent else { panic!("{absent:?}") };
    assert_eq!((absence.rows, absence.answers), (300, 3));
}

/// Where even the smallest page is too long, that is said, and proves nothing.
#[tokio::test]
async fn what_no_page_is_small_enough_for_is_unreadable() {
    let server = Server::with_tokens(|seen, _| reply(&cut(seen, 25, 400_000))).await;
    let evidence = ask(&server, LATER).await;
    let Evidence::Unreadable { why } = evidence else { panic!("{evidence:?}") };
    assert_eq!(why, "25 rows are longer than 8388608 bytes");
    let sizes: Vec<_> = server.calls().iter().map(|call| query(call, "page_size")).collect();
    assert_eq!(sizes, ["500", "250", "125", "62", "31", "25"]);
}

/// Codes and statuses are read here once; what is not known stays unknown.
#[test]
fn codes_and_statuses_are_read_into_what_they_mean() {
    use earnest_core::reconcile::{EventKind, RowStatus};
    use earnest_paypal::reporting::{TransactionPage, event};
    for (code, kind, says) in [
        ("T0003", EventKind::PreApprovedPayment, "pre-approved payment"),
        ("T0099", EventKind::Payment, "payment"),
        ("T1107", EventKind::PaymentRefunded, "payment refunded"),
        ("T1110", EventKind::DisputeHold, "money withheld for a dispute"),
        ("T1300", EventKind::Authorization, "authorization"),
        ("T2103", EventKind::HoldOrRelease, "hold or release"),
        ("T9999", EventKind::Unknown, "a code that Earnest does not know"),
        ("", EventKind::Unknown, "a code that Earnest does not know"),
    ] {
        let read = event(code);
        assert_eq!((read.kind, read.kind.in_words(), read.text.as_str()), (kind, says, code));
    }
    for (status, state) in [
        (json!("S"), RowStatus::Success),
        (json!("P"), RowStatus::Pending),
        (json!("D"), RowStatus::Denied),
        (json!("V"), RowStatus::Reversed),
        (json!("F"), RowStatus::PartlyRefunded),
        (Value::Null, RowStatus::Unsaid),
        (json!("Q"), RowStatus::Unknown("Q".to_owned())),
    ] {
        let mut row = row("i", "T1");
        row["transaction_info"]["transaction_status"] = status;
        let page = json!({ "transaction_details": [row] }).to_string();
        let page = TransactionPage::parse(page.as_bytes()).unwrap();
        assert_eq!(page.rows[0].state(), state);
    }
}
