//! Settling tabs: the treasurer plans, one intent charges, its outcome is recorded.

use earnest_core::id::{IntentId, OwnerId, SettlementId, TabId, TransferId};
use earnest_core::intent::{Charge, Claimed, Evidence, Fate, Intent};
use earnest_core::ledger::Account;
use earnest_core::money::{Currency, Micros};
use earnest_core::party::Owner;
use earnest_core::policy::{Policy, PolicySubject};
use earnest_core::reversal::Note;
use earnest_core::settlement::{
    Among, Hinted, RecordOutcome, Seen, Settle, Settled, Settlement, Terms, Whose,
};
use earnest_core::suspense::BookUnasked;
use earnest_core::tab::{Tab, credit_line, room};
use earnest_core::treasurer::{self, Plan, Wish};
use earnest_core::unit::Key;
use earnest_paypal::evidence::{self as search, Evidence as Found};
use earnest_paypal::orders::OrderStatus;
use earnest_paypal::outcome::Decline;
use earnest_paypal::payments::{Capture, CaptureStatus};
use earnest_paypal::reporting::TransactionRow;
use earnest_paypal::{Exchange, Outcome, Resource, orders, payments};

use super::lost;
use super::paypal::{self, FlowError, claim, evidence, request_of};
use crate::app::App;

/// What the treasurer's rules say about a tab, by a plain read.
///
/// # Errors
/// When the books cannot be read.
pub fn plan_of(app: &App, tab: &Tab) -> Result<Plan, FlowError> {
    let reader = app.store.reader();
    let totals = reader.totals(&tab.owed())?;
    let missing = || FlowError::Broken(format!("owner {} is missing", tab.owner));
    let owner = reader.row::<Owner>(tab.owner)?.ok_or_else(missing)?;
    let room = room_of(app, &owner, tab.id)?;
    let wish = Wish { asked: false, schedule: terms(app, tab.owner)?.schedule };
    Ok(treasurer::plan(tab, &owner, &totals, room, wish, &app.settings, app.now()))
}

/// What a tab may owe now, by a plain read: as the next purchase on it will find it.
///
/// # Errors
/// When the books cannot be read.
pub fn room_of(app: &App, owner: &Owner, tab: TabId) -> Result<Micros, FlowError> {
    let debt = debt_of(app, owner.id)?;
    let mut earlier = debt.checked_add(owner.disputed_micros).unwrap_or(Micros::MAX);
    for id in owner.earlier_tabs.iter().filter(|id| **id != tab) {
        let owed = app.store.reader().totals(&Account::TabOwed(*id).usd())?.owed();
        earlier = earlier.checked_add(owed).unwrap_or(Micros::MAX);
    }
    Ok(room(terms(app, owner.id)?.limit, credit_line(owner, &app.settings), earlier))
}

/// What an owner owes for money that went back at PayPal.
///
/// # Errors
/// When the books cannot be read.
pub fn debt_of(app: &App, owner: OwnerId) -> Result<Micros, FlowError> {
    Ok(app.store.reader().totals(&Account::OwnerDebt(owner).usd())?.collectible())
}

/// What the owner's policy says about its tabs.
///
/// # Errors
/// When the books cannot be read.
pub fn terms(app: &App, owner: OwnerId) -> Result<Terms, FlowError> {
    let policy = app.store.reader().row::<Policy>(PolicySubject::Owner(owner))?;
    Ok(Terms::of(policy.as_ref()))
}

/// Asks the treasurer's rules about a tab and commits what they say. `asked` is somebody's wish.
///
/// # Errors
/// [`FlowError`].
pub async fn settle(
    app: &App,
    owner: OwnerId,
    tab: TabId,
    asked: bool,
    key: Option<Key>,
) -> Result<Settled, FlowError> {
    // What a lost life captured pays first: now, so that whoever asked need not ask again.
    if let Some(row) = app.store.reader().row::<Tab>(tab)?.filter(|row| !row.lost.is_empty()) {
        lost::clear(app, &row).await?;
    }
    let terms = terms(app, owner)?;
    let unit = Settle {
        owner,
        tab,
        settlement: SettlementId::new(app.seed()),
        intent: IntentId::new(app.seed()),
        hold: TransferId::new(app.seed()),
        epoch: app.store.epoch().to_owned(),
        marker: app.keys().marker.clone(),
        asked,
        key,
        terms,
        settings: app.settings.clone(),
    };
    let settled = app.store.submit(unit).await?;
    if let Settled::Planned(settlement) = &settled {
        tracing::info!(settlement = %settlement.id, tab = %tab, why = %settlement.why, "settlement planned");
        app.wake.notify();
    }
    Ok(settled)
}

/// Looks at one tab for the treasurer: by a plain read first, since most tabs only wait.
///
/// # Errors
/// [`FlowError`].
pub async fn look_at(app: &App, tab: &Tab) -> Result<(), FlowError> {
    if let Plan::Wait { .. } = plan_of(app, tab)? {
        return Ok(());
    }
    settle(app, tab.owner, tab.id, false, None).await.map(|_| ())
}

/// Carries out a settlement's intent: sends, or reads what became of it.
pub(super) async fn carry_out(
    app: &App,
    intent: Intent,
    id: SettlementId,
) -> Result<(), FlowError> {
    let missing = || FlowError::Broken(format!("settlement {id} is missing"));
    let settlement = app.store.reader().row::<Settlement>(id)?.ok_or_else(missing)?;
    if paypal::may_send(app, &intent) {
        send(app, intent, &settlement).await
    } else {
        read_back(app, intent, &settlement).await
    }
}

async fn send(app: &App, intent: Intent, settlement: &Settlement) -> Result<(), FlowError> {
    let no_method = || FlowError::Broken(format!("intent {} names no payment method", intent.id));
    let vault_id = intent.facts.get("vault_id").and_then(|id| id.as_str()).ok_or_else(no_method)?;
    let write = |key: &str| {
        let charge = orders::VaultedCharge {
            vault_id,
            amount: settlement.amount_micros,
            currency: Currency::Usd,
            invoice_id: &settlement.invoice_id,
            custom_id: &settlement.mark(),
            description: &format!("Tab settlement {}", settlement.n),
            payee: None,
        };
        orders::charge_vaulted(&charge, key)
    };
    let request = request_of(&intent, || write(&intent.key))?;
    #[cfg(feature = "planted")]
    let request = crate::planted::rekeyed(app, &intent, request, write)?;
    let (claimed, exchange) = paypal::send(app, intent.id, &request).await?;
    let how = evidence("answer", &exchange, app.now());
    let fate = match judge(&claimed, &exchange) {
        Fate::Done(charge) => confirm(app, charge, settlement).await,
        fate => fate,
    };
    record(app, settlement, &claimed, fate, how).await
}

/// What an answer to the charge means. Never better than what PayPal said in so many words.
fn judge(claimed: &Claimed, exchange: &Exchange) -> Fate<Charge> {
    if paypal::certainly_not_run(claimed, exchange) {
        return Fate::NotRun;
    }
    let repeated = claimed.intent.sends > 1;
    let settles = !repeated || exchange.settles_earlier_sends();
    match &exchange.outcome {
        Outcome::Done { resource } | Outcome::Pending { resource, .. } => {
            let order = resource.order().map(|order| order.id.clone());
            match resource.capture() {
                Some(capture) => of_capture(capture, order),
                None => Fate::Pending { paypal_order: order, paypal_capture: None },
            }
        }
        // What is checked before PayPal looks for an earlier call with the key (the method may be
        // gone since), and what nobody knew when this was written, says nothing about that call.
        Outcome::Declined { kind, issue, resource: None, .. }
            if repeated && matches!(kind, Decline::MethodGone | Decline::Unlisted) =>
        {
            Fate::DoubtfulDecline { issue: issue.clone() }
        }
        Outcome::Declined { issue, .. } if settles => Fate::Declined { issue: issue.clone() },
        Outcome::Refused { issue, .. } if settles => Fate::Refused { issue: issue.clone() },
        Outcome::NotFound { issue, .. } if settles => Fate::Refused { issue: issue.clone() },
        Outcome::AlreadyDone { issue, .. } => Fate::AlreadyDone { issue: issue.clone() },
        _ => Fate::Unknown,
    }
}

/// What the state of a capture means.
fn of_capture(capture: &Capture, order: Option<String>) -> Fate<Charge> {
    let paypal_order = order.or_else(|| capture.order_id.clone());
    let pending =
        |paypal_order| Fate::Pending { paypal_order, paypal_capture: Some(capture.id.clone()) };
    match capture.status {
        CaptureStatus::Completed | CaptureStatus::PartiallyRefunded | CaptureStatus::Refunded => {
            // Only the representation of a finished capture names the fee; until then it is unknown,
            // not zero.
            match capture.fee {
                Some(fee) => Fate::Done(Charge {
                    paypal_order,
                    paypal_capture: capture.id.clone(),
                    amount: capture.amount,
                    fee,
                    given_back: capture.status != CaptureStatus::Completed,
                }),
                None => pending(paypal_order),
            }
        }
        CaptureStatus::Declined | CaptureStatus::Failed => {
            let reason = capture.reason.clone();
            Fate::Declined { issue: reason.unwrap_or_else(|| capture.status.as_str().to_owned()) }
        }
        _ => pending(paypal_order),
    }
}

/// Every money-moving result is confirmed by reading the resource.
async fn confirm(app: &App, charge: Charge, settlement: &Settlement) -> Fate<Charge> {
    let order = charge.paypal_order.clone();
    match read_capture(app, &charge.paypal_capture).await {
        Some((Resource::Capture(capture), _)) if seen(&capture).is_marked(settlement) => {
            of_capture(&capture, order)
        }
        // Not readable right now: PayPal is still asked, and nothing is booked on one answer alone.
        _ => Fate::Pending { paypal_order: order, paypal_capture: Some(charge.paypal_capture) },
    }
}

/// A capture in the words of the books.
fn seen(capture: &Capture) -> Seen<'_> {
    Seen {
        id: &capture.id,
        order: capture.order_id.as_deref(),
        invoice: capture.invoice_id.as_deref(),
        custom: capture.custom_id.as_deref(),
        amount: capture.amount,
        currency: capture.currency.as_str(),
    }
}

pub(super) async fn read_capture(app: &App, id: &str) -> Option<(Resource, Exchange)> {
    let request = payments::get_capture(id).ok()?;
    let exchange = app.paypal.send(&request).await;
    exchange.resource().cloned().map(|resource| (resource, exchange))
}

/// Reads a capture that something named.
///
/// # Errors
/// [`FlowError::Broken`] where PayPal knows no such capture, [`FlowError::NotNow`] where it cannot be
/// asked: that says nothing.
pub(super) async fn need_capture(
    app: &App,
    id: &str,
) -> Result<(Box<Capture>, Exchange), FlowError> {
    let exchange = app.paypal.send(&payments::get_capture(id)?).await;
    match &exchange.outcome {
        Outcome::NotFound { .. } => {
            Err(FlowError::Broken(format!("capture {id} could not be read: there is none")))
        }
        outcome => match outcome.resource() {
            Some(Resource::Capture(capture)) => Ok((capture.clone(), exchange)),
            _ => {
                let issue = outcome.issue().unwrap_or(outcome.as_str());
                Err(FlowError::NotNow(format!("capture {id} could not be read: {issue}")))
            }
        },
    }
}

/// The key may not be sent any more, or PayPal is deciding: only reading can tell.
async fn read_back(app: &App, intent: Intent, settlement: &Settlement) -> Result<(), FlowError> {
    #[cfg(feature = "planted")]
    crate::planted::repost(app, &intent).await;
    let claimed = claim(app, intent.id).await?;
    let (fate, how) = match (&intent.paypal_capture, &intent.paypal_order) {
        (Some(capture), _) => read_by_capture(app, capture, settlement).await,
        (None, Some(order)) => read_by_order(app, order, &intent, settlement).await?,
        (None, None) => look_for(app, &intent, settlement).await,
    };
    record(app, settlement, &claimed, fate, how).await
}

fn nothing(app: &App, how: &str, said: &str) -> (Fate<Charge>, Evidence) {
    let said = serde_json::json!({ "said": said });
    (Fate::Unknown, Evidence { at: app.now(), how: how.to_owned(), said })
}

async fn read_by_capture(app: &App, id: &str, settlement: &Settlement) -> (Fate<Charge>, Evidence) {
    match read_capture(app, id).await {
        Some((Resource::Capture(capture), exchange)) if seen(&capture).is_marked(settlement) => {
            (of_capture(&capture, None), evidence("read", &exchange, app.now()))
        }
        _ => nothing(app, "read", "the capture could not be read"),
    }
}

/// An order that holds no capture may still get one; one that is void, or that PayPal has forgotten,
/// gets none. Whether it ever had one then only a search can tell.
async fn read_by_order(
    app: &App,
    id: &str,
    intent: &Intent,
    settlement: &Settlement,
) -> Result<(Fate<Charge>, Evidence), FlowError> {
    let exchange = app.paypal.send(&orders::get(id)?).await;
    let how = evidence("read", &exchange, app.now());
    let capture = exchange.resource().and_then(Resource::capture);
    let over = match &exchange.outcome {
        Outcome::NotFound { .. } => true,
        outcome => outcome
            .resource()
            .and_then(Resource::order)
            .is_some_and(|order| order.status == OrderStatus::Voided),
    };
    let fate = match capture {
        Some(capture) if seen(capture).is_marked(settlement) => {
            of_capture(capture, Some(id.to_owned()))
        }
        None if over => return Ok(look_for(app, intent, settlement).await),
        _ => Fate::Pending { paypal_order: Some(id.to_owned()), paypal_capture: None },
    };
    Ok((fate, how))
}

/// No capture is known: Transaction Search has to show the charge, or that there is none.
async fn look_for(app: &App, intent: &Intent, settlement: &Settlement) -> (Fate<Charge>, Evidence) {
    let Some((first, last)) = intent.sent_between() else {
        return nothing(app, "search", "never sent");
    };
    let found =
        search::prove_absent(&app.paypal, &settlement.invoice_id, first, last, app.now()).await;
    let said = serde_json::to_value(&found).unwrap_or_default();
    let how = Evidence { at: app.now(), how: "search".to_owned(), said };
    let fate = match found {
        Found::Absent(_) => Fate::NotCharged,
        Found::NotYet { until } => Fate::NotYet { until },
        Found::Unreadable { .. } => Fate::Unknown,
        Found::Found { rows, complete } => among(app, &rows, complete, intent, settlement).await,
    };
    (fate, how)
}

/// Our charge among the rows that carry our invoice.
async fn among(
    app: &App,
    rows: &[TransactionRow],
    complete: bool,
    intent: &Intent,
    settlement: &Settlement,
) -> Fate<Charge> {
    let mut among = Among::new(complete);
    // Money that came in; what refers to it says nothing of its own.
    for row in rows.iter().filter(|row| row.came_in()) {
        let Some((Resource::Capture(capture), _)) = read_capture(app, &row.transaction_id).await
        else {
            among.missed();
            continue;
        };
        let whose = seen(&capture).whose(intent, settlement);
        if let Some(fate) = among.take(whose, of_capture(&capture, None)) {
            return fate;
        }
        // It is in our balance, and no webhook may ever tell: into the books with it.
        let booked = match whose {
            Whose::Ours => Ok(()),
            Whose::Doubtful => unasked(app, &capture, Some((settlement.id, intent.id))).await,
            Whose::Strange => unasked(app, &capture, None).await,
        };
        if booked.is_err() {
            among.missed();
        }
    }
    among.verdict()
}

pub(crate) async fn record(
    app: &App,
    settlement: &Settlement,
    claimed: &Claimed,
    fate: Fate<Charge>,
    evidence: Evidence,
) -> Result<(), FlowError> {
    #[cfg(feature = "planted")]
    let fate = crate::planted::twisted(app, settlement, fate);
    let unit = RecordOutcome {
        owner: settlement.owner,
        tab: settlement.tab,
        settlement: settlement.id,
        intent: claimed.intent.id,
        fence: claimed.fence,
        fate,
        evidence,
        settings: app.settings.clone(),
    };
    let settlement = app.store.submit(unit).await?;
    tracing::info!(settlement = %settlement.id, state = ?settlement.state, "outcome recorded");
    app.wake.notify();
    Ok(())
}

/// A webhook named a capture: reads it, and records what it says about the settlement whose invoice
/// it carries. The webhook itself is only a hint. A payment that no settlement asked for goes to
/// suspense: it is in our balance, so it is in the books.
///
/// # Errors
/// [`FlowError`].
pub async fn capture_hinted(app: &App, capture_id: &str) -> Result<Option<IntentId>, FlowError> {
    // An event may come before its capture can be read.
    let (capture, exchange) = need_capture(app, capture_id).await?;
    let Some((intent, settlement)) = asked_for(app, &capture)? else {
        let how = evidence("read", &exchange, app.now());
        if !lost::take_in(app, &capture, of_capture(&capture, None), how).await? {
            unasked(app, &capture, None).await?;
        }
        return Ok(None);
    };
    let fate = of_capture(&capture, None);
    let done = matches!(fate, Fate::Done(_));
    match seen(&capture).hinted(done, &intent, &settlement) {
        Hinted::Outcome => {}
        Hinted::Nothing => {
            let known = intent.paypal_capture.as_deref() == Some(capture_id);
            return Ok(known.then_some(intent.id));
        }
        Hinted::Unasked { claims } => {
            let claims = claims.then_some((settlement.id, intent.id));
            unasked(app, &capture, claims).await?;
            return Ok(None);
        }
    }
    let how = evidence("read after webhook", &exchange, app.now());
    let claimed = if intent.state.is_open() {
        claim(app, intent.id).await?
    } else {
        Claimed { intent: intent.clone(), fence: intent.fence }
    };
    record(app, &settlement, &claimed, fate, how).await?;
    Ok(Some(intent.id))
}

/// The settlement that a capture is for, with the attempt it belongs to: one that is open, else the
/// newest under its invoice.
fn asked_for(app: &App, capture: &Capture) -> Result<Option<(Intent, Settlement)>, FlowError> {
    let Some(invoice) = &capture.invoice_id else { return Ok(None) };
    let page = app.store.reader().list::<Intent>("intents.invoice", invoice, None, 100, true)?;
    let open = page.items.iter().find(|intent| intent.state.is_open());
    let Some(intent) = open.or(page.items.first()) else { return Ok(None) };
    let earnest_core::intent::Purpose::Settlement(id) = intent.purpose else { return Ok(None) };
    let settlement = app.store.reader().row::<Settlement>(id)?;
    let ours = settlement.filter(|settlement| seen(capture).is_marked(settlement));
    Ok(ours.map(|settlement| (intent.clone(), settlement)))
}

/// Books a payment that nobody asked for, once it is money in the currency of the books; `claims` is
/// what it says it is for, where that may be true.
async fn unasked(
    app: &App,
    capture: &Capture,
    claims: Option<(SettlementId, IntentId)>,
) -> Result<(), FlowError> {
    let Fate::Done(charge) = of_capture(capture, None) else { return Ok(()) };
    if capture.currency.as_str() != Currency::Usd.code() {
        tracing::error!(capture = %capture.id, currency = %capture.currency.as_str(),
            "a payment in another currency is not in the books");
        return Ok(());
    }
    tracing::error!(capture = %capture.id, "a payment that nobody asked for");
    let given_back = charge.given_back;
    let unit = BookUnasked {
        capture: charge.paypal_capture,
        amount: charge.amount,
        fee: charge.fee,
        invoice_id: capture.invoice_id.clone(),
        claims,
    };
    app.store.submit(unit).await?;
    if given_back {
        let note = Note { capture: capture.id.clone(), of: None, named: None };
        app.store.submit(note).await?;
        app.wake.notify();
    }
    Ok(())
}
