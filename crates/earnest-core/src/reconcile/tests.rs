use proptest::prelude::*;

use super::*;

const DAY: i64 = 24 * 3_600;
/// Up to when PayPal's records are complete in these tests, in seconds.
const HORIZON: i64 = 10 * DAY;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn event(text: &str, kind: EventKind) -> EventCode {
    EventCode { text: text.to_owned(), kind }
}

fn movement(id: &str, gross: i64, fee: i64, booked: i64) -> Movement {
    Movement { id: id.to_owned(), gross_micros: gross, fee_micros: fee, at: at(booked) }
}

fn row(id: &str, gross: i64, fee: i64, initiated: i64) -> Row {
    Row {
        id: id.to_owned(),
        event: event("T0003", EventKind::PreApprovedPayment),
        status: RowStatus::Success,
        reference: None,
        invoice: None,
        amount: Some((gross, "USD".to_owned())),
        fee_micros: fee,
        initiated: Some(at(initiated)),
        updated: Some(at(initiated)),
    }
}

fn compared(ours: &[Movement], theirs: &[Row], books: i64, paypal: Option<i64>) -> Compared {
    let awaited = |row: &Row| row.invoice.as_deref() == Some("open");
    compare(&Sides {
        ours,
        theirs,
        awaited: &awaited,
        acknowledged: &|row| row.reference.as_deref() == Some("acknowledged"),
        from: at(0),
        horizon: at(HORIZON),
        earlier: &[],
        books_micros: books,
        paypal_micros: paypal,
    })
}

fn check(ours: &[Movement], theirs: &[Row], transit: &[Why], unexplained: &[Why]) {
    let report = compared(ours, theirs, 0, None).report;
    let whys = |lines: &[Line]| lines.iter().map(|line| line.why).collect::<Vec<_>>();
    assert_eq!(whys(&report.in_transit), transit, "{report:#?}");
    assert_eq!(whys(&report.unexplained), unexplained, "{report:#?}");
}

#[test]
fn every_way_to_differ_is_named() {
    let mine = || movement("A", 950_000, -520_000, 100);
    let theirs = || row("A", 950_000, -520_000, 100);
    check(&[mine()], &[theirs()], &[], &[]);
    check(&[mine()], &[], &[], &[Why::MissingThere]);
    check(&[], &[theirs()], &[], &[Why::MissingHere]);
    check(&[mine()], &[row("A", 950_000, -510_000, 100)], &[], &[Why::FeeDiffers]);
    check(&[mine()], &[row("A", 940_000, -520_000, 100)], &[], &[Why::AmountDiffers]);
    check(&[mine()], &[row("B", 1, 0, 100)], &[], &[Why::MissingThere, Why::MissingHere]);
    // One id for two movements, on either side.
    check(&[mine(), mine()], &[theirs()], &[], &[Why::Doubled]);
    check(&[mine()], &[theirs(), row("A", -10_000, 0, 100)], &[], &[Why::Doubled]);
    // The same row shown twice is one row.
    check(&[mine()], &[theirs(), theirs()], &[], &[]);
    let pounds = Row { amount: Some((1, "GBP".to_owned())), ..theirs() };
    check(&[], std::slice::from_ref(&pounds), &[], &[Why::OtherCurrency]);
    check(&[mine()], &[pounds], &[], &[Why::OtherCurrency]);
    check(&[], &[Row { amount: None, ..theirs() }], &[], &[Why::Unreadable]);
}

#[test]
fn what_is_not_money_is_no_line() {
    let with = |event: EventCode, status| Row { event, status, ..row("A", 950_000, 0, 100) };
    let charge = || event("T0003", EventKind::PreApprovedPayment);
    for quiet in [
        with(event("T1300", EventKind::Authorization), RowStatus::Success),
        with(charge(), RowStatus::Pending),
        with(charge(), RowStatus::Denied),
    ] {
        check(&[], &[quiet], &[], &[]);
    }
    // A status that nobody knows is not quiet: it may have moved money.
    let odd = || with(charge(), RowStatus::Unknown("Q".to_owned()));
    check(&[], &[odd()], &[], &[Why::StatusUnknown]);
    check(&[movement("A", 950_000, 0, 100)], &[odd()], &[], &[Why::StatusUnknown]);
    // Money that is withheld, and not booked, is shown by what it is.
    let held = with(event("T1110", EventKind::DisputeHold), RowStatus::Success);
    let held = compared(&[], &[held], 0, None).report;
    assert_eq!(
        held.unexplained.first().unwrap().code_says.as_deref(),
        Some("money withheld for a dispute")
    );
    // A partly refunded capture came in all the same.
    check(
        &[movement("A", 950_000, 0, 100)],
        &[with(charge(), RowStatus::PartlyRefunded)],
        &[],
        &[],
    );
    check(&[movement("A", 950_000, 0, 100)], &[with(charge(), RowStatus::Reversed)], &[], &[]);
    check(
        &[movement("A", 950_000, 0, 100)],
        &[with(charge(), RowStatus::Denied)],
        &[],
        &[Why::NotFinalThere],
    );
}

#[test]
fn in_transit_is_what_the_report_cannot_know_or_a_call_still_decides() {
    let late = HORIZON + 60;
    check(&[movement("A", 1, 0, late)], &[], &[Why::AfterHorizon], &[]);
    check(&[movement("A", 1, 0, late)], &[row("A", 1, 0, late)], &[Why::AfterHorizon], &[]);
    check(&[movement("A", 1, 0, HORIZON)], &[], &[], &[Why::MissingThere]);
    // Found late, in PayPal's balance all the same: matched.
    check(&[movement("A", 1, 0, late)], &[row("A", 1, 0, 100)], &[], &[]);
    // Final late: not in that balance yet.
    let became = Row { updated: Some(at(late)), ..row("A", 1, 0, 100) };
    check(&[movement("A", 1, 0, late)], std::slice::from_ref(&became), &[Why::AfterHorizon], &[]);
    // Booked in time, and touched later by a refund: in that balance.
    check(&[movement("A", 1, 0, 100)], &[became], &[], &[]);
    check(&[], &[row("A", 1, 0, late)], &[], &[]);
    let open = |id: &str| Row { invoice: Some("open".to_owned()), ..row(id, 1, 0, 100) };
    check(&[], &[open("A")], &[Why::CallOpen], &[]);
    // What is booked otherwise is not excused by an open call.
    check(&[movement("A", 2, 0, 100)], &[open("A")], &[], &[Why::AmountDiffers]);
}

#[test]
fn the_balance_must_follow_from_the_lines() {
    let ours = [movement("A", 950_000, -520_000, 100), movement("B", 10, 0, HORIZON + 1)];
    let theirs = [row("A", 950_000, -520_000, 100)];
    let said = |books, paypal| compared(&ours, &theirs, books, paypal).report.difference_micros();
    assert_eq!(said(1_430_010, Some(1_430_000)), Some(0));
    assert_eq!(said(1_430_010, Some(1_430_001)), Some(-1), "a micro-dollar that no line names");
    assert_eq!(said(1_430_010, None), None);
    assert!(!compared(&ours, &theirs, 0, Some(7)).report.is_explained());
    assert!(compared(&ours, &theirs, 0, None).report.is_explained());
}

/// The next comparison begins later once all before is matched, and nothing is missed or named anew
/// by that.
#[test]
fn a_window_moves_on_only_behind_what_is_matched() {
    let horizon = 100 * DAY;
    let run = |ours: &[Movement], theirs: &[Row], from: i64, earlier: &[String]| {
        let in_window = |row: &&Row| row.initiated > Some(at(from));
        let theirs: Vec<Row> = theirs.iter().filter(in_window).cloned().collect();
        compare(&Sides {
            ours,
            theirs: &theirs,
            awaited: &|_| false,
            acknowledged: &|row| row.reference.as_deref() == Some("acknowledged"),
            from: at(from),
            horizon: at(horizon),
            earlier,
            books_micros: 0,
            paypal_micros: None,
        })
    };
    // Booked long after it happened: on either side of where the next window begins.
    let ours = [movement("A", 5, 0, DAY), movement("B", 7, 0, 90 * DAY)];
    let theirs = [row("A", 5, 0, DAY), row("B", 7, 0, 2 * DAY)];
    let first = run(&ours, &theirs, 0, &[]);
    assert!(first.report.is_explained());
    assert_eq!(first.next_from, at(69 * DAY));
    assert_eq!(first.next_earlier, ["B"]);
    let second = run(&ours, &theirs, 69 * DAY, &first.next_earlier);
    assert!(second.report.is_explained(), "{:#?}", second.report);
    assert_eq!(second.next_earlier, ["B"], "kept as long as it could be missed");
    assert!(!run(&ours, &theirs, 69 * DAY, &[]).report.is_explained(), "that is what it is for");
    // What waits at PayPal, and what is not explained, holds the window where it is.
    let pending = Row { status: RowStatus::Pending, ..row("C", 9, 0, 3 * DAY) };
    let with = |extra: Row| [theirs.to_vec(), vec![extra]].concat();
    // Just before it, so that the next one sees it: what begins at `from` is not read again.
    assert_eq!(run(&ours, &with(pending), 0, &[]).next_from, at(3 * DAY - 1));
    let done = [ours.to_vec(), vec![movement("C", 9, 0, 95 * DAY)]].concat();
    let seen = run(&done, &with(row("C", 9, 0, 3 * DAY)), 3 * DAY - 1, &["B".to_owned()]);
    assert!(seen.report.is_explained(), "{:#?}", seen.report);
    assert_eq!(run(&ours, &with(row("C", 9, 0, 3 * DAY)), 0, &[]).next_from, at(0));
}

/// What was explained without an entry in the books does not hold the window either; and a hold is
/// left behind only together with its release.
#[test]
fn a_window_moves_on_behind_what_is_explained() {
    let run = |theirs: &[Row], horizon: i64| {
        compare(&Sides {
            ours: &[],
            theirs,
            awaited: &|_| false,
            acknowledged: &|row| row.reference.as_deref() == Some("acknowledged"),
            from: at(0),
            horizon: at(horizon),
            earlier: &[],
            books_micros: 0,
            paypal_micros: None,
        })
    };
    let pounds = Row {
        amount: Some((5, "GBP".to_owned())),
        reference: Some("acknowledged".to_owned()),
        ..row("P", 5, 0, DAY)
    };
    let nothing = row("Z", 0, 0, DAY);
    let theirs = [pounds, nothing];
    let moved = run(&theirs, 100 * DAY);
    assert_eq!((moved.report.acknowledged_lines, moved.next_from), (1, at(69 * DAY)));
    let long = [hold("H", -7, 2 * DAY), hold("R", 7, 80 * DAY)];
    assert_eq!(run(&long, 100 * DAY).next_from, at(2 * DAY - 1), "the release is not a month old");
    assert_eq!(run(&long, 120 * DAY).next_from, at(89 * DAY));
}

/// A general hold of PayPal's about the capture `CAP`, or its release.
fn hold(id: &str, gross: i64, initiated: i64) -> Row {
    Row {
        event: event("T1500", EventKind::HoldOrRelease),
        reference: Some("CAP".to_owned()),
        ..row(id, gross, 0, initiated)
    }
}

#[test]
fn only_holds_that_net_to_zero_are_explained() {
    let netted = |theirs: &[Row]| {
        let report = compared(&[], theirs, 0, Some(0)).report;
        (report.netted_lines, report.unexplained_lines, report.difference_micros())
    };
    let (held, back) = (|| hold("H", -95, 100), || hold("R", 95, 200));
    assert_eq!(netted(&[held(), back()]), (2, 0, Some(0)));
    assert_eq!(netted(&[back(), held()]), (2, 0, Some(0)), "in any order of the report");
    // Named by the hold's own id.
    let named = Row { reference: Some("H".to_owned()), ..back() };
    assert_eq!(netted(&[held(), named]), (2, 0, Some(0)));
    for other in [
        hold("R", 94, 200),
        hold("R", 95, 99),
        Row { reference: Some("ELSE".to_owned()), ..back() },
        Row { reference: None, ..back() },
        Row { fee_micros: -1, ..back() },
        Row { event: event("T0003", EventKind::PreApprovedPayment), ..back() },
        Row { event: event("T1111", EventKind::DisputeRelease), ..back() },
        Row { amount: Some((95, "GBP".to_owned())), ..back() },
    ] {
        assert_eq!(netted(&[held(), other.clone()]).0, 0, "{other:?}");
    }
    // One release ends one hold.
    let twice = [held(), hold("H2", -95, 101), back()];
    assert_eq!(netted(&twice), (2, 1, Some(-95)), "PayPal's balance is none of it");
    // What the books have is matched, and nobody's half.
    let booked = compared(&[movement("H", -95, 0, 100)], &[held(), back()], 0, None).report;
    assert_eq!((booked.matched, booked.netted_lines, booked.unexplained_lines), (1, 0, 1));
}

#[test]
fn an_acknowledgement_covers_no_money_of_ours() {
    let acknowledged = |row: Row| Row { reference: Some("acknowledged".to_owned()), ..row };
    let pounds = Row { amount: Some((5, "GBP".to_owned())), ..row("A", 0, 0, 100) };
    let report = compared(&[], &[acknowledged(pounds.clone())], 0, None).report;
    assert_eq!((report.acknowledged_lines, report.unexplained_lines), (1, 0));
    // Under the id of a movement of ours, beside it.
    let both = [row("A", 950_000, 0, 100), acknowledged(pounds.clone())];
    let report = compared(&[movement("A", 950_000, 0, 100)], &both, 0, None).report;
    assert_eq!((report.matched, report.acknowledged_lines, report.unexplained_lines), (1, 1, 0));
    // Whatever somebody said of it: ours is ours.
    check(&[], &[acknowledged(row("A", 1, 0, 100))], &[], &[Why::MissingHere]);
    let mine = [movement("A", 950_000, 0, 100)];
    check(&mine, &[acknowledged(pounds)], &[], &[Why::OtherCurrency]);
    check(&[], &[acknowledged(Row { amount: None, ..row("A", 0, 0, 1) })], &[], &[Why::Unreadable]);
}

/// However many lines there are, the worst stand first, and only the least are not kept.
#[test]
fn the_worst_lines_are_named_first() {
    let pounds = Row { amount: Some((5, "GBP".to_owned())), ..row("GBP", 0, 0, 100) };
    let mut theirs: Vec<Row> = (1..=300).map(|n| row(&format!("N{n}"), n, 0, 100)).collect();
    theirs.push(pounds);
    theirs.push(row("D", 4, 0, 100));
    let ours = [movement("Z", 1, 0, 100), movement("Y", 2, 0, 100), movement("D", 3, 0, 100)];
    let found = compared(&ours, &theirs, 0, None);
    let ids = |lines: &[Line]| lines.iter().map(|line| line.id.clone()).collect::<Vec<_>>();
    let kept = ids(&found.report.unexplained);
    assert_eq!(found.report.unexplained_lines, 304);
    assert_eq!(
        (kept.len(), &kept[..4]),
        (MAX_LINES, &["Y", "Z", "N300", "N299"].map(str::to_owned)[..])
    );
    let all = ids(&found.unexplained);
    assert_eq!((all.len(), &all[302..]), (304, &["D", "GBP"].map(str::to_owned)[..]));
    assert_eq!(all[..MAX_LINES], kept);
}

/// What truly happened to one movement, in seconds.
#[derive(Clone, Debug)]
struct Truth {
    gross: i64,
    fee: i64,
    began: i64,
    /// When it became final.
    done: i64,
    /// When it was booked; never for some.
    booked: Option<i64>,
    /// Whether PayPal knows it.
    at_paypal: bool,
    /// Whether the books have another fee.
    wrong: bool,
}

fn truth() -> impl Strategy<Value = Truth> {
    let times = (1..HORIZON + 2 * 3_600, 0..DAY, prop::option::weighted(0.9, 0..DAY));
    let facts =
        (-5_000..5_000i64, -600..0i64, prop::bool::weighted(0.9), prop::bool::weighted(0.1));
    (times, facts).prop_map(|((began, takes, books), (gross, fee, at_paypal, wrong))| {
        let (gross, fee) = (gross * 10_000 + 5_000, fee * 1_000);
        let done = began + takes;
        let booked = books.map(|later| done + later);
        Truth { gross, fee, began, done, booked, at_paypal, wrong }
    })
}

impl Truth {
    fn ours(&self, id: &str) -> Option<Movement> {
        let fee = if self.wrong { self.fee - 10_000 } else { self.fee };
        self.booked.map(|booked| movement(id, self.gross, fee, booked))
    }

    /// What a report shows that is asked for three hours after the horizon.
    fn theirs(&self, id: &str) -> Option<Row> {
        let seen = HORIZON + 3 * 3_600;
        let shown = self.at_paypal && self.began <= HORIZON + 3_600;
        let is_final = self.done <= seen;
        let changed = if is_final { self.done } else { self.began };
        shown.then(|| Row {
            status: if is_final { RowStatus::Success } else { RowStatus::Pending },
            updated: Some(at(changed)),
            ..row(id, self.gross, self.fee, self.began)
        })
    }

    /// What is in PayPal's balance at the horizon.
    fn in_balance(&self) -> i64 {
        if self.at_paypal && self.done <= HORIZON { self.gross + self.fee } else { 0 }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happened, the books are PayPal's balance plus the lines that are named, to the
    /// micro-dollar; and each line that is wrong is among them once its time has come.
    #[test]
    fn every_difference_is_named(truths in prop::collection::vec(truth(), 0..12), opening in 0..9_000_000i64) {
        let ids: Vec<String> = (0..truths.len()).map(|n| format!("ID{n}")).collect();
        let named = || truths.iter().zip(&ids);
        let ours: Vec<Movement> = named().filter_map(|(truth, id)| truth.ours(id)).collect();
        let theirs: Vec<Row> = named().filter_map(|(truth, id)| truth.theirs(id)).collect();
        let books = opening + ours.iter().map(|own| own.figures().net()).sum::<i64>();
        let paypal = opening + truths.iter().map(Truth::in_balance).sum::<i64>();
        let report = compared(&ours, &theirs, books, Some(paypal)).report;
        prop_assert_eq!(report.difference_micros(), Some(0), "{:#?}", report);
        for (truth, id) in named() {
            let is_named = report.unexplained.iter().any(|line| line.id == *id);
            let old = truth.done <= HORIZON && truth.booked.is_none_or(|booked| booked <= HORIZON);
            let right = truth.at_paypal == truth.booked.is_some() && !truth.wrong;
            let nowhere = !truth.at_paypal && truth.booked.is_none();
            if old && !nowhere {
                let wrong = truth.at_paypal != truth.booked.is_some() || truth.wrong;
                prop_assert_eq!(is_named, wrong, "{:?}", truth);
            }
            if right {
                prop_assert!(!is_named, "{:?} {:#?}", truth, report);
            }
        }
    }
}
