//! Asking the treasurer's advisor: reserve what the question may cost, ask, book what it cost, keep
//! what was said, and let the treasurer's rules look again.
//!
//! A tab is asked about only where a yes would change something: what the rules settle by
//! themselves, and what no advice can settle, costs nothing. Whatever goes wrong, rules go on as if
//! there were no advisor.

use earnest_core::id::ModelCallId;
use earnest_core::model::{
    CALL_SECONDS, EndCall, Ended, ModelCall, NewCall, TryCall, cap_account, day_of,
};
use earnest_core::money::Micros;
use earnest_core::party::Owner;
use earnest_core::tab::Tab;
use earnest_core::time::{Timestamp, seconds_between};
use earnest_core::treasurer::{Advice, AskAdvice, Plan, TakeAdvice, may_ask, threshold};
use earnest_store::{Store, SubmitError};
use futures_util::StreamExt as _;

use super::paypal::FlowError;
use super::{lost, settle};
use crate::app::App;
use crate::lead::Right;
use crate::models::advisor::{Figures, Said};
use crate::models::{Asked, Cost, Gateway, ModelError, Spend};

/// How many questions are under way at once.
const QUESTIONS: usize = 4;
/// How many rows are read at once, and how many tabs one look asks about.
const PAGE: usize = 500;

/// Ends calls that nobody spoke of in time, and asks about every tab where that may be of use.
///
/// # Errors
/// When the books cannot be read; what fails for one tab is logged and skipped.
pub async fn look(app: &App) -> Result<(), FlowError> {
    abandoned(app).await?;
    // Nothing is settled then, whatever anybody advises.
    if lost::in_force(app)? {
        return Ok(());
    }
    let Some(advisor) = &app.models.advisor else { return Ok(()) };
    let tabs = worth_asking(app, advisor)?;
    let questions = tabs.into_iter().map(|tab| async move {
        if let Err(error) = ask(app, advisor, &tab).await {
            tracing::error!(tab = %tab.id, %error, "asking the advisor failed");
        }
    });
    futures_util::stream::iter(questions).for_each_concurrent(QUESTIONS, |one| one).await;
    Ok(())
}

/// Calls of a process that is gone: what was reserved counts as their cost.
async fn abandoned(app: &App) -> Result<(), FlowError> {
    let now = app.now();
    let reader = app.store.reader();
    let page = reader.list::<ModelCall>("model_calls.open", "", None, PAGE, false)?;
    for call in page.items.into_iter().take_while(|call| call.lost_at <= now) {
        app.submit_leading(EndCall { id: call.id, ended: None }).await?;
    }
    Ok(())
}

/// The tabs about which a question may be asked now and could change something.
fn worth_asking(app: &App, advisor: &Gateway) -> Result<Vec<Tab>, FlowError> {
    let (now, role) = (app.now(), advisor.role());
    let used = app.store.reader().totals(&cap_account(day_of(now)))?.owed();
    let mut found = Vec::new();
    if used.checked_add(role.reserve).is_none_or(|sum| sum > app.models.daily_cap) {
        return Ok(found);
    }
    let mut cursor = None;
    loop {
        let page = app.store.reader().list::<Tab>("tabs.live", "", cursor.as_ref(), PAGE, false)?;
        for tab in page.items {
            if may_ask(&tab, role.ask_seconds, now) && matters(app, &tab, now)? {
                found.push(tab);
            }
        }
        cursor = page.next;
        if cursor.is_none() || found.len() >= PAGE {
            return Ok(found);
        }
    }
}

/// Whether a yes would settle a tab that the rules leave alone: it owes at least the minimum, its
/// owner can pay, and nothing stands in the way.
fn matters(app: &App, tab: &Tab, now: Timestamp) -> Result<bool, FlowError> {
    if !matches!(settle::plan_of(app, tab)?, Plan::Wait { .. }) {
        return Ok(false);
    }
    let (sentence, by) = (String::new(), String::new());
    let yes = Advice { settle: true, sentence, by, at: now, settlements: tab.settlements };
    let tab = Tab { advice: Some(yes), ..tab.clone() };
    let settles = matches!(settle::plan_of(app, &tab)?, Plan::Settle { .. });
    let owner = app.store.reader().row::<Owner>(tab.owner)?;
    Ok(settles && owner.is_some_and(|owner| owner.funding.is_some()))
}

/// One question, from its reserve to what the rules make of its answer.
async fn ask(app: &App, advisor: &Gateway, tab: &Tab) -> Result<(), FlowError> {
    let role = advisor.role();
    let question = figures(app, tab)?.question();
    let call = NewCall {
        id: ModelCallId::new(app.seed()),
        role: role.name,
        model: role.model.clone(),
        reserve: role.reserve,
        daily_cap: app.models.daily_cap,
    };
    let ask = AskAdvice { tab: tab.id, interval_seconds: role.ask_seconds, call };
    // Somebody else asked meanwhile, or the day's cap is used up.
    let right = Right::ask(app, CALL_SECONDS);
    let Some(call) = app.submit_leading(ask).await? else { return Ok(()) };
    // INVARIANT: a_node_whose_claim_passed_sends_nothing
    if !right.lasts(app, advisor.patience()) {
        let ended = Some(not_asked());
        app.store.submit(EndCall { id: call.id, ended }).await?;
        return Ok(());
    }
    let (said, spend) = read(advisor.ask(&question).await);
    app.store.submit(EndCall { id: call.id, ended: Some(ended(&said, spend)) }).await?;
    let Said { settle, sentence } = match said {
        Ok(said) => said,
        Err(why) => {
            tracing::warn!(tab = %tab.id, model = %role.model, %why, "no advice");
            return Ok(());
        }
    };
    // By the figures that were told: `tab` as it was read before the question.
    let (by, settlements) = (role.model.clone(), tab.settlements);
    let advice = Advice { settle, sentence, by, at: app.now(), settlements };
    app.store.submit(TakeAdvice { tab: tab.id, advice }).await?;
    match app.store.reader().row::<Tab>(tab.id)? {
        Some(tab) if settle => settle::look_at(app, &tab).await,
        _ => Ok(()),
    }
}

/// What was said, by its schema, and what it cost.
fn read(asked: Asked) -> (Result<Said, ModelError>, Spend) {
    (asked.said.and_then(|text| Said::read(&text)), asked.spend)
}

fn ended(said: &Result<Said, ModelError>, spend: Spend) -> Ended {
    Ended {
        cost: match spend.cost {
            Cost::Known(cost) => Some(cost),
            Cost::Unknown => None,
        },
        input_tokens: spend.input_tokens,
        output_tokens: spend.output_tokens,
        outcome: said.as_ref().map_or_else(|why| why.word(), |_| "answered").to_owned(),
    }
}

/// A question that nobody asked, since so much time went by that its cost may be booked by now.
fn not_asked() -> Ended {
    let (cost, outcome) = (Some(Micros::ZERO), "not_asked".to_owned());
    Ended { cost, input_tokens: None, output_tokens: None, outcome }
}

/// What came of trying a model.
pub type Tried = (Result<Said, ModelError>, Spend);

/// Asks a model about a made-up tab, in books that nobody else has open: reserve, ask, book. `None`
/// where the day's cap has no room for it.
///
/// # Errors
/// When the books do not take it.
pub async fn try_out(
    store: &Store,
    gateway: &Gateway,
    daily_cap: Micros,
    id: ModelCallId,
) -> Result<Option<Tried>, SubmitError> {
    let role = gateway.role();
    let (model, reserve) = (role.model.clone(), role.reserve);
    let call = NewCall { id, role: role.name, model, reserve, daily_cap };
    if store.submit(TryCall(call)).await?.is_none() {
        return Ok(None);
    }
    let (said, spend) = read(gateway.ask(&Figures::example().question()).await);
    store.submit(EndCall { id, ended: Some(ended(&said, spend)) }).await?;
    Ok(Some((said, spend)))
}

/// What the advisor is told about a tab.
fn figures(app: &App, tab: &Tab) -> Result<Figures, FlowError> {
    let reader = app.store.reader();
    let missing = || FlowError::Broken(format!("owner {} is missing", tab.owner));
    let owner = reader.row::<Owner>(tab.owner)?.ok_or_else(missing)?;
    let owed = reader.totals(&tab.owed())?.collectible().floor_to_cent();
    let minutes = |at| seconds_between(at, app.now()) / 60;
    let purchases = tab.unsettled().into_iter().map(|range| range.to.saturating_sub(range.from));
    Ok(Figures {
        owed: owed.to_decimal(),
        room: settle::room_of(app, &owner, tab.id)?.to_decimal(),
        purchases: purchases.sum(),
        purchases_under_way: tab.pending_holds,
        minutes_since_first_purchase: tab.unsettled_since.map_or(0, minutes),
        minutes_since_last_purchase: minutes(tab.used_at),
        fee_now: app.settings.fee.predict(owed).to_decimal(),
        settlements_so_far: tab.settlements,
        paid_before: owner.settled_micros.to_decimal(),
        rule_amount: threshold(&owner, &app.settings).to_decimal(),
        rule_age_minutes: app.settings.exposure_seconds / 60,
        rule_idle_minutes: app.settings.idle_seconds / 60,
    })
}
