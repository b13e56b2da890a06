//! The tools that only read: the tab, an approval, a receipt.

use std::time::Duration;

use earnest_core::id::{ApprovalId, PurchaseId};
use earnest_core::money::Micros;
use earnest_core::problem::{Code, LocalCode};
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::door::{ApiFailure, Caller, Door};
use super::fetch::{amount_of, text_of};
use super::result::{
    AnswerState, ApprovalStatus, ReceiptState, ReceiptStatus, TabState, TabStatus,
};
use super::tools::AskReceipt;

/// How often an approval that is waited for is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How many of its latest purchases an agent is told of.
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

fn rows(list: &Value) -> impl Iterator<Item = &Value> {
    list.get("data").and_then(Value::as_array).into_iter().flatten()
}

/// The owner's open tab, and what of the caller's own waits or is under way.
pub(super) async fn tab(door: &Door, caller: &Caller) -> TabStatus {
    let empty = |status, text| TabStatus {
        status,
        tab: None,
        currency: None,
        owed_micros: None,
        held_micros: None,
        captured_micros: None,
        waiting_request_ids: None,
        waiting_approval_ids: None,
        held_request_ids: None,
        code: None,
        detail: None,
        text,
    };
    let own = format!("/v1/purchases?limit={LATEST}");
    let read = async {
        let tabs = door.get(caller, "/v1/tabs?limit=10").await?;
        Ok((tabs, door.get(caller, &own).await?))
    };
    let (tabs, purchases) = match read.await {
        Ok(read) => read,
        Err(failure) => {
            let (code, detail) = why(failure);
            let text = format!("The tab could not be read: {detail}.");
            let status = empty(TabState::Failed, text);
            return TabStatus { code: Some(code), detail: Some(detail), ..status };
        }
    };
    let in_state = |state: &str, member: &str| -> Vec<String> {
        let meant = rows(&purchases).filter(|row| text_of(row, "status").as_deref() == Some(state));
        meant.map(|row| text_of(row, member).unwrap_or_default()).collect()
    };
    let waiting = in_state("waiting", "request_id");
    let waits = match waiting.len() {
        0 => "nothing of yours waits for the owner".to_owned(),
        n => format!("{n} of your purchases wait for the owner"),
    };
    let open = rows(&tabs).find(|tab| text_of(tab, "status").as_deref() == Some("open"));
    let status = match open {
        Some(tab) => {
            let amount = |name| amount_of(tab, name);
            let owed = amount("owed_micros").unwrap_or(Micros::ZERO);
            let held = amount("held_micros").unwrap_or(Micros::ZERO);
            let text = format!("{owed} is owed on the open tab and {held} held; {waits}.");
            TabStatus {
                tab: text_of(tab, "id"),
                currency: Some("USD".to_owned()),
                owed_micros: Some(owed.get()),
                held_micros: Some(held.get()),
                captured_micros: amount("captured_micros").map(Micros::get),
                ..empty(TabState::Open, text)
            }
        }
        None => empty(TabState::NoOpenTab, format!("No tab is open: nothing is owed; {waits}.")),
    };
    TabStatus {
        waiting_request_ids: Some(waiting),
        waiting_approval_ids: Some(in_state("waiting", "approval_id")),
        held_request_ids: Some(in_state("held", "request_id")),
        ..status
    }
}

/// How an approval stands; waits for the answer as long as the caller likes.
pub(super) async fn approval(
    door: &Door,
    caller: &Caller,
    approval_id: &str,
    wait: Duration,
) -> ApprovalStatus {
    let empty = |status, text| ApprovalStatus {
        status,
        approval_id: approval_id.to_owned(),
        amount_micros: None,
        currency: None,
        url: None,
        expires_at: None,
        retry_after_s: None,
        detail: None,
        code: None,
        text,
    };
    let no = |code: String, detail: String| ApprovalStatus {
        code: Some(code),
        detail: Some(detail.clone()),
        ..empty(AnswerState::Failed, format!("The approval could not be read: {detail}."))
    };
    // What stands in a path of ours is one of our ids.
    let Ok(id) = approval_id.parse::<ApprovalId>() else {
        return no(Code::NotFound.as_str().to_owned(), "that is not an approval_id".to_owned());
    };
    let until = Instant::now().checked_add(wait);
    let view = loop {
        match door.get(caller, &format!("/v1/approvals/{id}")).await {
            Err(failure) => {
                let (code, detail) = why(failure);
                return no(code, detail);
            }
            Ok(view) => {
                let waits = text_of(&view, "status").as_deref() == Some("waiting");
                let next = Instant::now().checked_add(LOOK_EVERY);
                match next.filter(|next| waits && until.is_some_and(|until| *next <= until)) {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => break view,
                }
            }
        }
    };
    let amount = amount_of(&view, "amount_micros").unwrap_or(Micros::ZERO);
    let (state, text) = match text_of(&view, "status").as_deref() {
        Some("approved") => {
            (AnswerState::Approved, "call paid_fetch again with the same request_id".to_owned())
        }
        Some("denied") => (AnswerState::Denied, "do not buy it".to_owned()),
        Some("consumed") => (AnswerState::Consumed, "it was bought already".to_owned()),
        Some("expired") => {
            let next = "call paid_fetch again with the same request_id to ask anew";
            (AnswerState::Expired, next.to_owned())
        }
        _ => (AnswerState::Waiting, "ask again, or remind the owner".to_owned()),
    };
    let word = match state {
        AnswerState::Approved => "The owner approved",
        AnswerState::Denied => "The owner denied",
        AnswerState::Consumed => "The owner approved",
        AnswerState::Expired => "Nobody answered in time about",
        AnswerState::Waiting | AnswerState::Failed => "The owner has not answered about",
    };
    ApprovalStatus {
        amount_micros: Some(amount.get()),
        currency: text_of(&view, "currency"),
        url: text_of(&view, "url"),
        expires_at: text_of(&view, "expires_at"),
        retry_after_s: (state == AnswerState::Waiting).then_some(5),
        detail: text_of(&view, "why"),
        ..empty(state, format!("{word} the purchase of {amount}: {text}."))
    }
}

fn receipt_status(status: ReceiptState, text: String) -> ReceiptStatus {
    ReceiptStatus {
        status,
        receipt_id: None,
        issuer: None,
        mode: None,
        tab: None,
        captured_micros: None,
        currency: None,
        paypal_capture: None,
        purchases: None,
        code: None,
        detail: None,
        text,
    }
}

/// A receipt that cannot be had.
fn no_receipt(status: ReceiptState, code: &str, detail: &str) -> ReceiptStatus {
    let text = format!("There is no receipt to rely on: {detail}.");
    ReceiptStatus {
        code: Some(code.to_owned()),
        detail: Some(detail.to_owned()),
        ..receipt_status(status, text)
    }
}

/// Checks a receipt with the keys of this Earnest. Addresses lead to this Earnest only: their host
/// is not asked, only the token behind `/r/` counts.
pub(super) async fn receipt(door: &Door, caller: &Caller, args: AskReceipt) -> ReceiptStatus {
    let token = match args {
        AskReceipt { receipt: Some(receipt), url: None, purchase: None } => {
            return verify(door, caller, receipt).await;
        }
        AskReceipt { receipt: None, url: Some(url), purchase: None } => match token_of(&url) {
            Some(token) => token,
            None => {
                let why = "that is not the address of a receipt, …/r/…";
                return no_receipt(ReceiptState::Failed, Code::UrlInvalid.as_str(), why);
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
            return no_receipt(ReceiptState::Failed, Code::ValidationFailed.as_str(), why);
        }
    };
    match door.get(caller, &format!("/r/{token}")).await {
        Ok(shown) => match text_of(&shown, "receipt") {
            Some(receipt) => verify(door, caller, receipt).await,
            None => no_receipt(
                ReceiptState::Failed,
                Code::NotFound.as_str(),
                "nothing signed stands there",
            ),
        },
        Err(failure) => {
            let (code, detail) = why(failure);
            no_receipt(ReceiptState::Failed, &code, &detail)
        }
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
    let failed =
        |code: &str, detail: &str| Err(Box::new(no_receipt(ReceiptState::Failed, code, detail)));
    let Ok(id) = purchase.parse::<PurchaseId>() else {
        return failed(Code::NotFound.as_str(), "that is not the id of a purchase, pur_…");
    };
    let view = match door.get(caller, &format!("/v1/purchases/{id}")).await {
        Ok(view) => view,
        Err(failure) => {
            let (code, detail) = why(failure);
            return failed(&code, &detail);
        }
    };
    let path = format!("/v1/purchases/{id}/receipt");
    match door.ask(caller, Method::GET, &path, None).await {
        Ok((Some(location), _)) => match token_of(&location) {
            Some(token) => Ok(token),
            None => failed(Code::NotFound.as_str(), "Earnest named no receipt"),
        },
        Ok((None, _)) => failed(Code::NotFound.as_str(), "Earnest named no receipt"),
        Err(_) => {
            let state = text_of(&view, "status").unwrap_or_default();
            let text = match state.as_str() {
                "billed" | "held" => "The purchase is not settled yet: its receipt comes with the \
                                      settlement of the tab; ask again later."
                    .to_owned(),
                state => {
                    format!("The purchase is {state}: nothing was charged, so there is no receipt.")
                }
            };
            Err(Box::new(receipt_status(ReceiptState::Pending, text)))
        }
    }
}

async fn verify(door: &Door, caller: &Caller, receipt: String) -> ReceiptStatus {
    let body = json!({ "receipt": receipt });
    let verdict = door.ask(caller, Method::POST, "/v1/receipts/verify", Some(body)).await;
    let verdict = match verdict {
        Ok((_, verdict)) => verdict,
        Err(failure) => {
            let (code, detail) = why(failure);
            return no_receipt(ReceiptState::Failed, &code, &detail);
        }
    };
    let claims = match (verdict.get("valid").and_then(Value::as_bool), verdict.get("claims")) {
        (Some(true), Some(claims)) if claims.is_object() => claims,
        _ => {
            let why = text_of(&verdict, "error").unwrap_or_default();
            return no_receipt(ReceiptState::Invalid, LocalCode::ReceiptInvalid.as_str(), &why);
        }
    };
    let captured = amount_of(claims, "captured_micros").unwrap_or(Micros::ZERO);
    let mode = text_of(claims, "mode").unwrap_or_default();
    let label = if mode == "live" { String::new() } else { format!(" ({mode} money)") };
    let lines = claims.get("lines").and_then(Value::as_array);
    let purchases = lines.into_iter().flatten().filter_map(|line| text_of(line, "purchase"));
    let text = format!("The receipt is valid: {captured} was captured{label}; nothing more to do.");
    ReceiptStatus {
        receipt_id: text_of(claims, "jti"),
        issuer: text_of(claims, "iss"),
        tab: text_of(claims, "tab"),
        captured_micros: Some(captured.get()),
        currency: text_of(claims, "currency"),
        paypal_capture: claims.get("paypal").and_then(|paypal| text_of(paypal, "capture")),
        purchases: Some(purchases.collect()),
        mode: Some(mode),
        ..receipt_status(ReceiptState::Valid, text)
    }
}
