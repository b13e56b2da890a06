//! What is kept of a comparison, who is told of it, what the operator may acknowledge, and what a
//! dispute does to the books.

use std::collections::BTreeSet;

use earnest_core::cash::{CashKind, RecordCash};
use earnest_core::dispute::{BookWithheld, Withheld, Withholding};
use earnest_core::ledger::Account;
use earnest_core::reconcile::{
    Acknowledge, Acknowledged, Begin, Compared, EventCode, EventKind, Keep, Line, Movement,
    Reconciliation, Row, RowStatus, Sides, Why, compare,
};
use earnest_core::unit::{Fingerprint, Key};
use earnest_store::SubmitError;
use serde_json::Value;

use crate::world::{World, each, micros, said};

const UNEXPLAINED: &str = "alarm.reconciliation_unexplained";
const MORE: &str = "alarm.reconciliation_more_unexplained";

fn row(id: &str, gross: i64, currency: &str) -> Row {
    Row {
        id: id.to_owned(),
        event: EventCode { text: "T0006".to_owned(), kind: EventKind::CheckoutPayment },
        status: RowStatus::Success,
        reference: None,
        invoice: None,
        amount: Some((gross, currency.to_owned())),
        fee_micros: 0,
        initiated: None,
        updated: None,
    }
}

/// Compares and keeps, as the flow does it.
fn keep(world: &World, ours: &[Movement], theirs: &[Row]) -> Reconciliation {
    let state: Reconciliation = world.row(Reconciliation::ID);
    let known = world.all::<Acknowledged>();
    let Compared { report, unexplained, next_from, next_earlier } = compare(&Sides {
        ours,
        theirs,
        awaited: &|_| false,
        acknowledged: &|row| known.iter().any(|one| one.covers(row)),
        from: state.from,
        horizon: world.now(),
        earlier: &[],
        books_micros: 0,
        paypal_micros: None,
    });
    world.pass(1);
    world.run(Keep { report, unexplained, before: state.at, next_from, next_earlier }).unwrap()
}

/// What was alarmed since: lines by id, and the figures of sums.
fn alarms(world: &World, since: u64) -> (Vec<String>, Vec<Value>) {
    let events = world.store.reader().events(since, 100_000).unwrap().events;
    let of = |kind: &'static str| events.iter().filter(move |event| event.event.kind == kind);
    let ids = of(UNEXPLAINED).map(|it| it.event.data["id"].as_str().unwrap().to_owned());
    (ids.collect(), of(MORE).map(|it| it.event.data.clone()).collect())
}

fn head(world: &World) -> u64 {
    world.store.reader().head().unwrap().seq
}

fn begun(world: &World) {
    world.run(Begin { began: world.now() }).unwrap();
    world.pass(10);
}

#[test]
fn every_unexplained_line_is_alarmed_once() {
    each(|world| {
        begun(world);
        let theirs: Vec<Row> = (1..=130).map(|n| row(&format!("N{n}"), n * 10, "USD")).collect();
        let missing = movement(world, "GONE", 5);
        let ours = std::slice::from_ref(&missing);
        let mut told = Vec::new();
        for (fit, more, total) in [(50, 81, 81 * 82 * 5), (50, 31, 31 * 32 * 5), (31, 0, 0)] {
            let since = head(world);
            keep(world, ours, &theirs);
            let (ids, sums) = alarms(world, since);
            assert_eq!(ids.len(), fit);
            let sums: Vec<_> =
                sums.iter().map(|it| (&it["more_lines"], &it["total_micros"])).collect();
            let expect = (Value::from(more), Value::from(total));
            let expect = if more == 0 { vec![] } else { vec![(&expect.0, &expect.1)] };
            assert_eq!(sums, expect);
            told.extend(ids);
        }
        assert_eq!(told[..3], ["GONE", "N130", "N129"].map(str::to_owned), "the worst first");
        assert_eq!(told.iter().collect::<BTreeSet<_>>().len(), 131, "each, and each once");
        // Nothing new, nothing to say; but another figure of a known line is news.
        let since = head(world);
        keep(world, ours, &theirs);
        assert_eq!(alarms(world, since), (vec![], vec![]));
        keep(world, &[movement(world, "GONE", 6)], &theirs);
        assert_eq!(alarms(world, since).0, ["GONE"]);
        // Explained, it is forgotten: should it come back, somebody hears of it again.
        let since = head(world);
        let state = keep(world, &[], &theirs[..1]);
        assert_eq!(state.alarmed.len(), 1);
        keep(world, ours, &theirs[..1]);
        assert_eq!(alarms(world, since).0, ["GONE"]);
        keep(world, &[], &[]);
    });
}

/// Booked once the comparison began.
fn movement(world: &World, id: &str, gross: i64) -> Movement {
    let at = world.row::<Reconciliation>(Reconciliation::ID).from;
    Movement { id: id.to_owned(), gross_micros: gross, fee_micros: 0, at }
}

fn acknowledge(
    world: &World,
    id: &str,
    reason: &str,
    name: &str,
) -> Result<Acknowledged, SubmitError> {
    let print = [id.as_bytes(), reason.as_bytes()];
    let fingerprint = Fingerprint::of(&print);
    let scope = "operator".to_owned();
    let key = Key { scope, family: "acknowledge", name: name.to_owned(), fingerprint };
    let (paypal_id, reason) = (id.to_owned(), reason.to_owned());
    world.run(Acknowledge { paypal_id, reason, by: "key_1".to_owned(), key })
}

fn refusal<T: std::fmt::Debug>(done: Result<T, SubmitError>) -> String {
    match done {
        Err(SubmitError::Refused(refusal)) => said(&refusal),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_acknowledgement_covers_what_moves_no_money_of_ours() {
    each(|world| {
        begun(world);
        assert_eq!(refusal(acknowledge(world, "P", "ours in London", "a")), "state_conflict");
        let ours = [
            movement(world, "GONE", 5),
            movement(world, "DIFFERS", 5),
            movement(world, "MIXED", 5),
        ];
        let theirs = [
            row("P", 700, "GBP"),
            row("CASH", 700, "USD"),
            row("DIFFERS", 6, "USD"),
            row("MIXED", 700, "GBP"),
            Row { amount: None, ..row("BLANK", 0, "USD") },
            Row { status: RowStatus::Unknown("Q".to_owned()), ..row("ODD", 7, "USD") },
        ];
        keep(world, &ours, &theirs);
        for other in ["GONE", "CASH", "DIFFERS", "MIXED", "BLANK", "ODD", "NOTHING"] {
            let done = acknowledge(world, other, "known", other);
            assert_eq!(refusal(done), "state_conflict", "{other}");
        }
        for (name, bad) in ["", "  ", "two\nlines", &"x".repeat(501)].into_iter().enumerate() {
            let done = acknowledge(world, "P", bad, &name.to_string());
            assert_eq!(refusal(done), "validation_failed", "{bad:?}");
        }
        let done = || acknowledge(world, "P", "ours in London", "c");
        let row_of = done().unwrap();
        assert_eq!((row_of.reason.as_str(), row_of.by.as_str()), ("ours in London", "key_1"));
        assert_eq!(done().unwrap(), row_of, "a repeat is the same");
        assert_eq!(refusal(acknowledge(world, "P", "again", "d")), "state_conflict");
        assert_eq!(refusal(acknowledge(world, "P", "other words", "c")), "idempotency_conflict");
        // At once, and when both sides are compared again.
        let shown: Reconciliation = world.row(Reconciliation::ID);
        for report in [shown.last.unwrap(), keep(world, &ours, &theirs).last.unwrap()] {
            assert_eq!((report.acknowledged_lines, report.unexplained_lines), (1, 6));
            assert!(report.unexplained.iter().all(|line: &Line| line.id != "P"));
        }
        // Something else under that id is something else.
        let other = [row("P", 700, "GBP"), row("P", 701, "GBP")];
        let report = keep(world, &[], &other).last.unwrap();
        assert_eq!((report.acknowledged_lines, report.unexplained_lines), (1, 1));
        assert_eq!(report.unexplained.first().map(|line| line.why), Some(Why::OtherCurrency));
        acknowledge(world, "P", "that too", "e").unwrap();
        assert!(keep(world, &[], &other).last.unwrap().is_explained());
        assert_eq!(world.breaches(), []);
    });
}

/// What PayPal withholds for a dispute leaves the balance, and comes back: in the books too, once.
#[test]
fn a_dispute_moves_money_off_the_balance_and_back() {
    each(|world| {
        let fingerprint = Fingerprint::of(&[]);
        let key = |name: &str| {
            let scope = "operator".to_owned();
            Key { scope, family: "cash", name: name.to_owned(), fingerprint }
        };
        let by_hand = |id: &str, kind, amount| {
            let (paypal_id, amount, fee) = (id.to_owned(), micros(amount), micros(0));
            world.run(RecordCash { paypal_id, kind, owner: None, amount, fee, key: key(id) })
        };
        by_hand("DEP", CashKind::Deposit, 1_000_000).unwrap();
        by_hand("OLD", CashKind::Withdrawal, 100_000).unwrap();
        let book = |id: &str, way, amount| {
            let reference = Some("CAP".to_owned());
            let (paypal_id, amount) = (id.to_owned(), micros(amount));
            world.run(BookWithheld { paypal_id, way, amount, reference, of: None }).unwrap();
        };
        for _ in 0..2 {
            book("H", Withholding::Hold, 300_000);
            // Recorded by hand before Earnest booked such things.
            book("OLD", Withholding::Hold, 100_000);
        }
        assert_eq!(world.thousandths(Account::Disputes), "0/300/0/0");
        assert_eq!(world.thousandths(Account::PaypalCash), "0/1000/0/400");
        assert_eq!(refusal(by_hand("H", CashKind::Withdrawal, 1)), "state_conflict");
        book("R", Withholding::Release, 300_000);
        assert_eq!(world.thousandths(Account::Disputes), "0/300/0/300");
        assert_eq!(world.thousandths(Account::PaypalCash), "0/1300/0/400");
        let movements: Vec<i64> =
            world.all::<Withheld>().iter().map(|row| row.movement().gross_micros).collect();
        assert_eq!(movements, [-300_000, 300_000]);
        let kinds = world.events_since(0);
        let count = |kind: &str| kinds.iter().filter(|it| *it == kind).count();
        assert_eq!(count("alarm.dispute_money_withheld"), 1);
        assert_eq!(count("dispute.money_released"), 1);
        assert_eq!(world.breaches(), []);
    });
}
