use serde_json::Value;

use super::*;
use crate::id::{IntentId, OwnerId, SettlementId, TabId, TransferId};
use crate::intent::{IntentState, Purpose};
use crate::settlement::SettlementState;
use crate::time::Timestamp;

const ASKED: i64 = 950_000;

fn settlement(state: SettlementState) -> Settlement {
    let zero = Micros::ZERO;
    Settlement {
        id: SettlementId::from_value(1),
        owner: OwnerId::from_value(2),
        tab: TabId::from_value(3),
        n: 1,
        attempt: 1,
        state,
        lines: Vec::new(),
        lines_micros: Micros::constant(ASKED),
        carry_in_micros: zero,
        carry_out_micros: zero,
        lost_micros: zero,
        amount_micros: Micros::constant(ASKED),
        captured_micros: None,
        given_back_micros: zero,
        fee_predicted_micros: zero,
        fee_micros: None,
        intent: IntentId::from_value(4),
        hold: TransferId::from_value(5),
        why: String::new(),
        advice: None,
        since: None,
        invoice_id: "e1:tab:1:mark".to_owned(),
        paypal_order: None,
        paypal_capture: None,
        issue: None,
        receipt: None,
        created_at: Timestamp::UNIX_EPOCH,
        ended_at: None,
    }
}

fn intent(state: IntentState, order: Option<&str>, capture: Option<&str>) -> Intent {
    let purpose = Purpose::Settlement(SettlementId::from_value(1));
    let (id, owner) = (IntentId::from_value(4), OwnerId::from_value(2));
    let (key, now) = ("k".to_owned(), Timestamp::UNIX_EPOCH);
    let mut intent = Intent::planned(id, owner, purpose, key, Value::Null, now);
    intent.state = state;
    intent.paypal_order = order.map(str::to_owned);
    intent.paypal_capture = capture.map(str::to_owned);
    intent
}

/// The capture `C` of the order `O`, as asked.
fn with<T>(change: impl Fn(&mut Seen<'_>), test: impl Fn(&Seen<'_>) -> T) -> T {
    let mark = settlement(SettlementState::Open).mark();
    let mut seen = Seen {
        id: "C",
        order: Some("O"),
        invoice: Some("e1:tab:1:mark"),
        custom: Some(&mark),
        amount: Micros::constant(ASKED),
        currency: "USD",
    };
    change(&mut seen);
    test(&seen)
}

fn cent(seen: &mut Seen<'_>) {
    seen.amount = Micros::constant(10_000);
}

#[test]
fn whose_a_capture_is() {
    type Change = fn(&mut Seen<'_>);
    let asked: Change = |_| {};
    let unmarked: [Change; 4] = [
        |seen| seen.custom = None,
        |seen| seen.custom = Some("set_other.own_other"),
        |seen| seen.invoice = Some("e1:tab:2:mark"),
        |seen| seen.currency = "EUR",
    ];
    let state = IntentState::Unknown;
    // What is known of our own call, and whose a capture is as asked, and one of a cent.
    let shapes = [
        ((None, None), Whose::Ours, Whose::Doubtful),
        ((Some("O"), None), Whose::Ours, Whose::Ours),
        ((None, Some("C")), Whose::Ours, Whose::Ours),
        ((Some("O"), Some("C")), Whose::Ours, Whose::Ours),
        ((Some("P"), None), Whose::Strange, Whose::Strange),
        ((None, Some("D")), Whose::Strange, Whose::Strange),
        ((Some("O"), Some("D")), Whose::Strange, Whose::Strange),
        ((Some("P"), Some("C")), Whose::Strange, Whose::Strange),
    ];
    for ((order, capture), as_asked, as_cent) in shapes {
        let intent = intent(state, order, capture);
        let open = settlement(SettlementState::Open);
        let whose = |change: Change| with(change, |seen| seen.whose(&intent, &open));
        assert_eq!(whose(asked), as_asked, "{order:?} {capture:?}");
        assert_eq!(whose(cent), as_cent, "{order:?} {capture:?}");
        for change in unmarked {
            assert_eq!(whose(change), Whose::Strange, "{order:?} {capture:?}");
        }
    }
    // A capture that tells neither invoice nor order contradicts nothing, and names nothing.
    let bare: Change = |seen| (seen.invoice, seen.order) = (None, None);
    let ask = |order, amount: Change| {
        let change = |seen: &mut Seen<'_>| {
            bare(seen);
            amount(seen);
        };
        let open = settlement(SettlementState::Open);
        with(change, |seen| seen.whose(&intent(state, order, None), &open))
    };
    assert_eq!(ask(None, asked), Whose::Ours);
    assert_eq!(ask(Some("O"), cent), Whose::Doubtful);
}

/// What a hint comes to, for every state of the attempt and the settlement.
#[test]
fn a_settlement_answers_for_its_own_capture_only() {
    use Hinted::{Nothing, Outcome};
    let unasked = |claims| Hinted::Unasked { claims };
    let open =
        [IntentState::Planned, IntentState::Sent, IntentState::Pending, IntentState::Unknown];
    let hint = |change: fn(&mut Seen<'_>), done, intent: &Intent, state| {
        with(change, |seen| seen.hinted(done, intent, &settlement(state)))
    };
    for state in open {
        let stands = SettlementState::Open;
        for done in [true, false] {
            let known = intent(state, Some("O"), Some("C"));
            assert_eq!(hint(|_| {}, done, &known, stands), Outcome);
            let other = intent(state, None, Some("D"));
            assert_eq!(hint(|_| {}, done, &other, stands), unasked(false));
            assert_eq!(hint(cent, done, &intent(state, None, None), stands), unasked(true));
            let ours = if done { Outcome } else { Nothing };
            assert_eq!(hint(|_| {}, done, &intent(state, None, None), stands), ours);
        }
    }
    let captured = [
        (IntentState::Done, SettlementState::Captured),
        (IntentState::Done, SettlementState::AmountMismatch),
        (IntentState::Done, SettlementState::Restored),
    ];
    for (state, stands) in captured {
        let own = intent(state, Some("O"), Some("C"));
        assert_eq!(hint(|_| {}, true, &own, stands), Nothing);
        // With every id that a receipt shows, for a cent or the whole.
        let other = intent(state, Some("P"), Some("D"));
        for change in [cent, |_: &mut Seen<'_>| {}] {
            assert_eq!(hint(change, true, &other, stands), unasked(false), "{stands:?}");
        }
    }
    let nothing_came = [
        (IntentState::NotCharged, SettlementState::NotCharged),
        (IntentState::Refused, SettlementState::Refused),
        (IntentState::Declined, SettlementState::Declined),
    ];
    for (state, stands) in nothing_came {
        let closed = intent(state, None, None);
        assert_eq!(hint(|_| {}, true, &closed, stands), Outcome, "{stands:?}");
        assert_eq!(hint(|_| {}, false, &closed, stands), Nothing);
        assert_eq!(hint(cent, true, &closed, stands), unasked(true));
        // The attempt before it may have made it.
        assert_eq!(hint(|_| {}, true, &intent(state, Some("P"), None), stands), Outcome);
    }
}

#[test]
fn what_a_search_says_of_our_charge() {
    let done = || {
        let (paypal_capture, amount) = ("C".to_owned(), Micros::constant(ASKED));
        let (fee, given_back) = (Micros::ZERO, false);
        Fate::Done(Charge { paypal_order: None, paypal_capture, amount, fee, given_back })
    };
    let declined = || Fate::Declined { issue: "NO".to_owned() };
    let pending = || Fate::Pending { paypal_order: None, paypal_capture: None };
    let taken = |doubtful| Fate::InvoiceTaken { doubtful };
    let (ours, doubtful, strange) = (Whose::Ours, Whose::Doubtful, Whose::Strange);
    let judge = |complete, found: &[(Whose, Fate<Charge>)], missed: bool| {
        let mut among = Among::new(complete);
        if missed {
            among.missed();
        }
        for (whose, fate) in found {
            if let Some(fate) = among.take(*whose, fate.clone()) {
                return fate;
            }
        }
        among.verdict()
    };
    // What was found, and what it says where the report is complete.
    let shapes = [
        (vec![], Fate::Unknown),
        (vec![(ours, done())], done()),
        (vec![(strange, done()), (ours, done())], done()),
        (vec![(doubtful, done()), (ours, done())], done()),
        (vec![(ours, declined())], declined()),
        (vec![(strange, done()), (ours, declined())], declined()),
        // Which of the two was ours?
        (vec![(doubtful, done()), (ours, declined())], taken(true)),
        (vec![(ours, pending())], Fate::Unknown),
        (vec![(ours, declined()), (ours, pending())], Fate::Unknown),
        (vec![(strange, done()), (strange, declined())], taken(false)),
        (vec![(strange, pending()), (doubtful, done())], taken(true)),
    ];
    for (found, says) in shapes {
        assert_eq!(judge(true, &found, false), says, "{found:?}");
        // A report that is not complete, or a payment that cannot be read, proves only what it shows.
        let shown = if says == done() { done() } else { Fate::Unknown };
        assert_eq!(judge(false, &found, false), shown, "{found:?}");
        assert_eq!(judge(true, &found, true), shown, "{found:?}");
    }
}
