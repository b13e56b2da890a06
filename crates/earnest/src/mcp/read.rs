//! The tools that only read: the tab, an approval, a receipt. What Earnest answers is read as the
//! API's own types: an answer that does not fit is a failure and never an amount.

use std::time::Duration;

use earnest_core::id::{ApprovalId, PurchaseId};
use earnest_core::money::Micros;
use earnest_core::problem::{Code, LocalCode};
use earnest_core::receipt::{Claims, SELLER_LINES, SellerLines};
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::LONGEST_WAIT;
use super::door::{ApiFailure, Caller, Door};
use super::result::{
    AnswerState, ApprovalStatus, ReceiptState, ReceiptStatus, TabState, TabStatus,
};
use super::tools::AskReceipt;
use crate::api::receipts::Verdict;
use crate::api::view::{ApprovalView, List, PurchaseView, TabView};

/// How often an approval that is waited for is looked at: by a call, and by what waits longer.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_SELDOM: Duration = Duration::from_secs(3);
/// How many of its latest purchases an agent is told of; the schema names the number.
const LATEST: usize = 50;

/// Why something could not be read: a code and a sentence.
fn why(failure: ApiFailure) -> (String, String) {
    match failure {
        ApiFailure::Refused(problem) => (problem.code, problem.detail),
        ApiFailure::Unreachable(why) => (
            LocalCode::EarnestUnreachable.as_str().to_owned(),
            format!("no answer from Earnest: {why}"),
        ),
    }
}

/// An amount that Earnest named.
pub(super) fn money(micros: i64) -> Result<Micros, ApiFailure> {
    Micros::new(micros)
        .map_err(|_| ApiFailure::Unreachable(format!("an amount that is none: {micros}")))
}

/// An approval as it was seen.
pub(super) struct Seen {
    pub(super) state: AnswerState,
    amount: Micros,
    view: ApprovalView,
}

impl Seen {
    fn of(view: ApprovalView) -> Result<Self, ApiFailure> {
        let state = match view.status.as_str() {
            "waiting" => AnswerState::Waiting,
            "approved" => AnswerState::Approved,
            "denied" => AnswerState::Denied,
            "consumed" => AnswerState::Consumed,
            "expired" => AnswerState::Expired,
            other => {
                let why = format!("an approval in a state that is not known here: `{other}`");
                return Err(ApiFailure::Unreachable(why));
            }
        };
        Ok(Self { state, amount: money(view.amount_micros)?, view })
    }
}

impl Door {
    /// An approval once it is answered, or as it was seen last before `until`.
    pub(super) async fn answered(
        &self,
        caller: &Caller,
        approval: &str,
        until: Instant,
    ) -> Result<Seen, ApiFailure> {
        let path = format!("/v1/approvals/{approval}");
        let look = || async { Seen::of(self.get(caller, &path).await?) };
        let mut seen = look().await?;
        loop {
            let now = Instant::now();
            let long = until.saturating_duration_since(now) > LONGEST_WAIT;
            let next = now.checked_add(if long { LOOK_SELDOM } else { LOOK_EVERY });
            let next = next.filter(|next| seen.state == AnswerState::Waiting && *next <= until);
            let Some(next) = next else { return Ok(seen) };
            tokio::time::sleep_until(next).await;
            match timeout_at(until, look()).await {
                Ok(newer) => seen = newer?,
                Err(_) => return Ok(seen),
            }
        }
    }
}

/// The owner's open tab, and what of the caller's own waits or is under way.
pub(super) async fn tab(door: &Door, caller: &Caller) -> TabStatus {
    let own = format!("/v1/purchases?limit={LATEST}");
    let read = async {
        let tabs = door.get::<List<TabView>>(caller, "/v1/tabs?limit=10");
        let purchases = door.get::<List<PurchaseView>>(caller, &own);
        let (tabs, purchases) = tokio::try_join!(tabs, purchases)?;
        tab_of(&tabs.data, &purchases.data)
    };
    read.await.unwrap_or_else(|failure| {
        let (code, detail) = why(failure);
        TabStatus::failed(&code, &detail)
    })
}

fn tab_of(tabs: &[TabView], purchases: &[PurchaseView]) -> Result<TabStatus, ApiFailure> {
    let in_state = |state: &'static str| purchases.iter().filter(move |row| row.status == state);
    let ids = |state| in_state(state).map(|row| row.request_id.clone()).collect::<Vec<_>>();
    let waits = match in_state("waiting").count() {
        0 => "nothing of yours waits for the owner".to_owned(),
        1 => "1 of your purchases waits for the owner".to_owned(),
        n => format!("{n} of your purchases wait for the owner"),
    };
    let status = match tabs.iter().find(|tab| tab.status == "open") {
        Some(tab) => {
            let (owed, held) = (money(tab.owed_micros)?, money(tab.held_micros)?);
            let text = format!("{owed} is owed on the open tab and {held} held; {waits}.");
            TabStatus {
                tab: Some(tab.id.clone()),
                currency: Some("USD".to_owned()),
                owed_micros: Some(owed.get()),
                held_micros: Some(held.get()),
                captured_micros: Some(money(tab.captured_micros)?.get()),
                ..TabStatus::new(TabState::Open, text)
            }
        }
        None => {
            let text = format!("No tab is open: nothing is bought on credit now; {waits}.");
            TabStatus::new(TabState::NoOpenTab, text)
        }
    };
    let approvals = in_state("waiting").map(|row| row.approval_id.clone().unwrap_or_default());
    Ok(TabStatus {
        waiting_request_ids: Some(ids("waiting")),
        waiting_approval_ids: Some(approvals.collect()),
        held_request_ids: Some(ids("held")),
        ..status
    })
}

/// How an approval stands; waits until then for the answer.
pub(super) async fn approval(
    door: &Door,
    caller: &Caller,
    approval_id: &str,
    until: Instant,
) -> ApprovalStatus {
    // What stands in a path of ours is one of our ids.
    let Ok(id) = approval_id.parse::<ApprovalId>() else {
        let why = "that is not an approval_id";
        return ApprovalStatus::failed(approval_id, Code::NotFound.as_str(), why);
    };
    match door.answered(caller, &id.to_string(), until).await {
        Ok(seen) => approval_of(approval_id, seen),
        Err(failure) => {
            let (code, detail) = why(failure);
            ApprovalStatus::failed(approval_id, &code, &detail)
        }
    }
}

fn approval_of(approval_id: &str, seen: Seen) -> ApprovalStatus {
    let Seen { state, amount, view } = seen;
    let (word, next) = match state {
        AnswerState::Approved => {
            ("The owner approved", "call paid_fetch again with the same request_id")
        }
        AnswerState::Denied => ("The owner denied", "do not buy it"),
        AnswerState::Consumed => ("The owner approved", "it was bought already"),
        AnswerState::Expired => (
            "Nobody answered in time about",
            "call paid_fetch again with the same request_id to ask anew",
        ),
        AnswerState::Waiting | AnswerState::Failed => {
            ("The owner has not answered about", "ask again, or remind the owner")
        }
    };
    ApprovalStatus {
        amount_micros: Some(amount.get()),
        currency: Some(view.currency),
        url: Some(view.url),
        expires_at: Some(view.expires_at),
        retry_after_s: (state == AnswerState::Waiting).then_some(5),
        detail: Some(view.why),
        ..ApprovalStatus::new(
            state,
            approval_id,
            format!("{word} the purchase of {amount}: {next}."),
        )
    }
}

fn no_receipt(failure: ApiFailure) -> ReceiptStatus {
    let (code, detail) = why(failure);
    ReceiptStatus::failed(&code, &detail)
}

/// What stands at the address of a receipt.
#[derive(Deserialize)]
struct Shown {
    receipt: String,
}

/// Checks a receipt with the keys of this Earnest. Addresses lead to this Earnest only: their host
/// is not asked, only the token behind `/r/` counts.
pub(super) async fn receipt(door: &Door, caller: &Caller, args: AskReceipt) -> ReceiptStatus {
    let token = match args {
        AskReceipt { receipt: Some(receipt), url: None, purchase: None } => {
            return verify(door, caller, &receipt).await;
        }
        AskReceipt { receipt: None, url: Some(url), purchase: None } => match token_of(&url) {
            Some(token) => token,
            None => {
                let why = "that is not the address of a receipt, …/r/…";
                return ReceiptStatus::failed(Code::UrlInvalid.as_str(), why);
            }
        },
        AskReceipt { receipt: None, url: None, purchase: Some(purchase) } => {
            match of_purchase(door, caller, &purchase).await {
                Ok(token) => token,
                Err(status) => return *status,
            }
        }
        _ => {
            let why = "pass exactly one of `receipt`, `url` and `purchase`";
            return ReceiptStatus::failed(Code::ValidationFailed.as_str(), why);
        }
    };
    match door.get::<Shown>(caller, &format!("/r/{token}")).await {
        Ok(shown) => verify(door, caller, &shown.receipt).await,
        Err(failure) => no_receipt(failure),
    }
}

/// The token of `…/r/<token>`.
fn token_of(url: &str) -> Option<String> {
    let path = url.split(['?', '#']).next()?;
    let (before, token) = path.rsplit_once('/')?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let sound = before.ends_with("/r") && !token.is_empty() && token.bytes().all(plain);
    sound.then(|| token.to_owned())
}

/// The token of the receipt that lists a purchase of the caller's own.
async fn of_purchase(
    door: &Door,
    caller: &Caller,
    purchase: &str,
) -> Result<String, Box<ReceiptStatus>> {
    let Ok(id) = purchase.parse::<PurchaseId>() else {
        let why = "that is not the id of a purchase, pur_…";
        return Err(Box::new(ReceiptStatus::failed(Code::NotFound.as_str(), why)));
    };
    let failed = |failure| Box::new(no_receipt(failure));
    // Whose it is comes first: a receipt's address asks nobody.
    let view: PurchaseView =
        door.get(caller, &format!("/v1/purchases/{id}")).await.map_err(failed)?;
    match door.location(caller, &format!("/v1/purchases/{id}/receipt")).await {
        Ok(location) => location.as_deref().and_then(token_of).ok_or_else(|| {
            let why = "Earnest named no receipt";
            Box::new(ReceiptStatus::failed(Code::NotFound.as_str(), why))
        }),
        // It is on no receipt: the purchase says whether one comes.
        Err(ApiFailure::Refused(problem)) if problem.known_code() == Some(Code::NotFound) => {
            Err(Box::new(match given_up(door, caller, &view).await.map_err(failed)? {
                Some(none) => none,
                None => unsigned(&view.status),
            }))
        }
        Err(failure) => Err(failed(failure)),
    }
}

/// A purchase that was billed on a tab which nothing is captured for any more.
async fn given_up(
    door: &Door,
    caller: &Caller,
    purchase: &PurchaseView,
) -> Result<Option<ReceiptStatus>, ApiFailure> {
    let (Some(tab), "billed") = (&purchase.tab, purchase.status.as_str()) else { return Ok(None) };
    let tab: TabView = door.get(caller, &format!("/v1/tabs/{tab}")).await?;
    let how = match tab.status.as_str() {
        "written_off" => "was written off",
        "paid_off" => "was paid otherwise than by a capture of its own",
        _ => return Ok(None),
    };
    let text = format!("The tab of the purchase {how}: no receipt of a capture comes.");
    Ok(Some(ReceiptStatus::new(ReceiptState::None, text)))
}

/// A purchase that is on no receipt so far.
fn unsigned(state: &str) -> ReceiptStatus {
    match state {
        "billed" | "held" => {
            let text = "The purchase is not settled yet: its receipt comes with the settlement of \
                        the tab; ask again later."
                .to_owned();
            ReceiptStatus::new(ReceiptState::Pending, text)
        }
        "waiting" => {
            let text =
                "The purchase still waits for its owner: nothing is charged, so there is no \
                        receipt yet."
                    .to_owned();
            ReceiptStatus::new(ReceiptState::Pending, text)
        }
        "denied" | "released" | "expired" | "unbilled" => {
            let text = format!(
                "The purchase is {state}: nothing was charged for it, so no receipt comes."
            );
            ReceiptStatus::new(ReceiptState::None, text)
        }
        other => {
            let why = format!("the purchase is in a state that is not known here: `{other}`");
            ReceiptStatus::failed(LocalCode::AnswerUnreadable.as_str(), &why)
        }
    }
}

async fn verify(door: &Door, caller: &Caller, receipt: &str) -> ReceiptStatus {
    let body = json!({ "receipt": receipt });
    let verdict: Verdict = match door.post(caller, "/v1/receipts/verify", &body).await {
        Ok(verdict) => verdict,
        Err(failure) => return no_receipt(failure),
    };
    let status = match (verdict.valid, verdict.claims) {
        (true, Some(claims)) if claims.get("kind").is_some_and(|kind| kind == SELLER_LINES) => {
            serde_json::from_value::<SellerLines>(claims).map(listed)
        }
        (true, Some(claims)) => serde_json::from_value::<Claims>(claims).map(stated),
        (true, None) => {
            let why = "Earnest did not say what the receipt states";
            return ReceiptStatus::failed(LocalCode::AnswerUnreadable.as_str(), why);
        }
        (false, _) => {
            let why = verdict.error.unwrap_or_default();
            let code = LocalCode::ReceiptInvalid.as_str();
            return ReceiptStatus::no(ReceiptState::Invalid, code, &why);
        }
    };
    status.unwrap_or_else(|why| {
        let why = format!("what the receipt states cannot be read: {why}");
        ReceiptStatus::failed(LocalCode::AnswerUnreadable.as_str(), &why)
    })
}

/// What a seller is shown of a receipt, signed as that is.
fn listed(claims: SellerLines) -> ReceiptStatus {
    let (count, sum, id) = (claims.lines.len(), claims.lines_micros, claims.jti);
    let text = format!(
        "These are one seller's lines of receipt {id}, validly signed: {count} of {sum} together. \
         What was captured stands on the receipt itself."
    );
    ReceiptStatus {
        receipt_id: Some(id.to_string()),
        issuer: Some(claims.iss),
        currency: Some(claims.currency.to_string()),
        purchases: Some(claims.lines.iter().map(|line| line.purchase.to_string()).collect()),
        mode: Some(claims.mode),
        ..ReceiptStatus::new(ReceiptState::Valid, text)
    }
}

fn stated(claims: Claims) -> ReceiptStatus {
    let (captured, mode) = (claims.captured_micros, claims.mode);
    let label = if mode == "live" { String::new() } else { format!(" ({mode} money)") };
    let text = format!("The receipt is valid: {captured} was captured{label}; nothing more to do.");
    ReceiptStatus {
        receipt_id: Some(claims.jti.to_string()),
        issuer: Some(claims.iss),
        tab: Some(claims.tab.to_string()),
        captured_micros: Some(captured.get()),
        currency: Some(claims.currency.to_string()),
        paypal_capture: Some(claims.paypal.capture),
        purchases: Some(claims.lines.iter().map(|line| line.purchase.to_string()).collect()),
        mode: Some(mode),
        ..ReceiptStatus::new(ReceiptState::Valid, text)
    }
}
