//! What waits for an owner, and the owner's answers.
//!
//! A form carries the version of the question as it was shown (the API's `If-Match`). A second tap
//! of the same button changes nothing and is told what the first one did.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use earnest_core::approval::{Approval, ApprovalState, Grant};
use earnest_core::id::ApprovalId;
use earnest_core::money::{AmountInput, Micros};
use earnest_core::party::{Agent, Seller};
use earnest_core::problem::{Code, Refusal};
use earnest_core::purchase::Purchase;
use earnest_core::time::{Timestamp, after};
use http::StatusCode;
use serde::Deserialize;

use super::facts::{self, Row};
use super::{Fields, Frame, SignedIn, render, see_other};
use crate::api::auth::not_here;
use crate::api::error::{ApiError, ApiResult, refuse};
use crate::api::read::{Path, Query, id};
use crate::app::App;
use crate::flow::approval as flow;

/// At most so many questions are shown, and answered, at once.
const MOST: usize = 100;

/// A question, in words.
struct Question {
    id: String,
    version: u64,
    amount: String,
    agent: String,
    seller: String,
    listing: String,
    method: String,
    url: String,
    why: String,
    usual: String,
    left: String,
    until: String,
    until_utc: String,
}

impl Question {
    fn of(app: &App, by: &SignedIn, row: &Approval, before: &[Purchase]) -> ApiResult<Self> {
        let (reader, now) = (app.store.reader(), app.now());
        let agent = reader.row::<Agent>(row.agent)?.map(|agent| agent.name);
        let seller = reader.row::<Seller>(row.seller)?.map(|seller| seller.name);
        Ok(Self {
            id: row.id.to_string(),
            version: row.version,
            amount: row.amount_micros.to_string(),
            agent: agent.unwrap_or_else(|| row.agent.to_string()),
            seller: seller.unwrap_or_else(|| row.seller.to_string()),
            listing: row.listing.clone(),
            method: row.method.clone(),
            url: row.url.clone(),
            why: facts::sentence(&row.why),
            usual: facts::usual(before, row),
            left: facts::left(now, row.expires_at),
            until: facts::moment(by.owner.zone_at(now), row.expires_at),
            until_utc: row.expires_at.to_string(),
        })
    }
}

/// The owner's questions that wait, newest first.
fn waiting(app: &App, by: &SignedIn) -> ApiResult<Vec<Approval>> {
    let (scope, now) = (by.owner.id.to_string(), app.now());
    let list = "approvals.waiting";
    let page = app.store.reader().list::<Approval>(list, &scope, None, MOST, true)?;
    Ok(page.items.into_iter().filter(|row| !row.is_expired(now)).collect())
}

#[derive(Template)]
#[template(path = "approvals.html")]
struct ListPage {
    frame: Frame,
    title: String,
    notice: &'static str,
    questions: Vec<Question>,
}

/// Everything that waits.
pub(super) async fn list(State(app): State<App>, by: SignedIn) -> ApiResult<Response> {
    list_with(&app, &by, StatusCode::OK, "")
}

fn list_with(
    app: &App,
    by: &SignedIn,
    status: StatusCode,
    notice: &'static str,
) -> ApiResult<Response> {
    let before = facts::purchases(app, &by.owner)?;
    let waiting = waiting(app, by)?;
    let questions = waiting.iter().map(|row| Question::of(app, by, row, &before));
    let questions: Vec<_> = questions.collect::<ApiResult<_>>()?;
    let title = match questions.len() {
        0 => "Nothing waits for you".to_owned(),
        1 => "1 purchase waits for you".to_owned(),
        n => format!("{n} purchases wait for you"),
    };
    render(status, &ListPage { frame: Frame::of(app, by), title, notice, questions })
}

/// What is said beside a question, and where the form of a grant went wrong.
#[derive(Default)]
struct Remarks {
    notice: String,
    cap: String,
    cap_error: String,
}

#[derive(Template)]
#[template(path = "approval.html")]
struct ApprovalPage {
    frame: Frame,
    title: String,
    icon: &'static str,
    word: &'static str,
    question: Question,
    waits: bool,
    in_the_way: Option<String>,
    spent: Vec<Row>,
    next: Vec<String>,
    remarks: Remarks,
    others: usize,
}

/// One question.
pub(super) async fn show(
    State(app): State<App>,
    by: SignedIn,
    Path(text): Path<String>,
) -> ApiResult<Response> {
    let row = flow::find(&app, by.owner.id, id::<ApprovalId>(&text)?)?;
    let status = if row.is_expired(app.now()) { StatusCode::GONE } else { StatusCode::OK };
    show_with(&app, &by, &row, status, Remarks::default()).await
}

async fn show_with(
    app: &App,
    by: &SignedIn,
    row: &Approval,
    status: StatusCode,
    remarks: Remarks,
) -> ApiResult<Response> {
    let reader = app.store.reader();
    let agent = reader.row::<Agent>(row.agent)?.ok_or_else(not_here)?;
    let before = facts::purchases(app, &by.owner)?;
    let question = Question::of(app, by, row, &before)?;
    let (icon, word) = in_a_word(row, app.now());
    let waits = row.check_open(app.now()).is_ok();
    let title = match waits {
        true => format!("Approve {}?", question.amount),
        false => format!("{word}: {}", question.amount),
    };
    let page = ApprovalPage {
        frame: Frame::of(app, by),
        title,
        icon,
        word,
        waits,
        in_the_way: if waits { facts::in_the_way(app, row).await? } else { None },
        spent: facts::spent(app, &by.owner, &agent, row)?,
        next: next(app, by, row, &question, &agent)?,
        question,
        remarks,
        others: waiting(app, by)?.iter().filter(|other| other.id != row.id).count(),
    };
    render(status, &page)
}

/// Where a question stands: an icon and a word, never colour alone.
fn in_a_word(row: &Approval, now: Timestamp) -> (&'static str, &'static str) {
    match row.state {
        _ if row.is_expired(now) => ("\u{29d6}", "Expired"),
        ApprovalState::Waiting => ("\u{25f7}", "Waits for you"),
        ApprovalState::Approved => ("\u{2713}", "Approved"),
        ApprovalState::Denied => ("\u{2715}", "Denied"),
        ApprovalState::Consumed => ("\u{2713}", "Approved and used"),
    }
}

/// What happens next, once it was answered or nobody may answer it any more.
fn next(
    app: &App,
    by: &SignedIn,
    row: &Approval,
    question: &Question,
    agent: &Agent,
) -> ApiResult<Vec<String>> {
    let name = &question.agent;
    let mut said = match row.state {
        _ if row.is_expired(app.now()) => vec![
            "It was not answered, or not used, in time. Nothing was charged.".to_owned(),
            format!("If {name} still wants it, it asks again and you get another question."),
        ],
        ApprovalState::Waiting => Vec::new(),
        ApprovalState::Approved => vec![
            format!("Nothing is charged yet. {name} now repeats its request by itself."),
            "Your limits are checked again then, and only after that the money is held.".to_owned(),
            format!("The yes counts once, until {}.", question.until),
        ],
        ApprovalState::Denied => vec![format!("{name} is told no. Nothing was charged.")],
        ApprovalState::Consumed => {
            vec![format!("{name} used the yes, and bought this once. A yes never counts twice.")]
        }
    };
    let reader = app.store.reader();
    if let Some(grant) = row.grant.map(|grant| reader.row::<Grant>(grant)).transpose()?.flatten() {
        let until = facts::moment(by.owner.zone_at(app.now()), grant.until);
        said.push(format!(
            "{name} may spend up to {} at {} without asking, until {until}. To take that back: \
             earnest approvals revoke {}",
            grant.cap_micros, question.seller, grant.id
        ));
    }
    if agent.paused && row.state == ApprovalState::Denied {
        said.push(format!(
            "{name} is paused and buys nothing more. To let it buy again: earnest agent resume {}",
            agent.id
        ));
    }
    Ok(said)
}

/// The answer of a form.
pub(super) async fn answer(
    State(app): State<App>,
    by: SignedIn,
    Path(text): Path<String>,
    fields: Fields,
) -> ApiResult<Response> {
    fields.prove(&by.form)?;
    let id = id::<ApprovalId>(&text)?;
    let row = flow::find(&app, by.owner.id, id)?;
    let version = version(fields.one("version"))?;
    let (cap, for_seconds) = match fields.one("decision") {
        "grant" => (Some(amount(fields.one("cap"))?), Some(seconds(fields.one("for"))?)),
        _ => (None, None),
    };
    let written = flow::Written { decision: fields.one("decision"), cap, for_seconds };
    match flow::answer(&app, by.owner.id, id, version, written).await {
        Ok(_) => Ok(see_other(&format!("/approvals/{}", row.id))),
        Err(ApiError(refusal)) => refused(&app, &by, id, *refusal).await,
    }
}

/// Why an answer did not count, beside the question as it stands now.
async fn refused(
    app: &App,
    by: &SignedIn,
    id: ApprovalId,
    refusal: Refusal,
) -> ApiResult<Response> {
    // Read again: what was read before is why it was refused.
    let row = flow::find(app, by.owner.id, id)?;
    let at = row.decided_at.map(|at| facts::moment(by.owner.zone_at(app.now()), at));
    let at = at.map(|at| format!(" at {at}")).unwrap_or_default();
    let notice = match refusal.code {
        Code::ApprovalAlreadyDecided | Code::ApprovalConsumed => {
            let word = if row.state == ApprovalState::Denied { "denied" } else { "approved" };
            format!("It was already {word}{at}. Nothing was done twice.")
        }
        Code::VersionConflict => {
            let now = row.version;
            format!("It changed since you opened it (version {now} now). This is how it stands.")
        }
        Code::ApprovalExpired => "It expired before you answered. Nothing was charged.".to_owned(),
        Code::ValidationFailed | Code::AmountOutOfRange => facts::sentence(&refusal.detail),
        _ => return Err(refusal.into()),
    };
    let status = StatusCode::from_u16(refusal.code.status()).unwrap_or(StatusCode::CONFLICT);
    show_with(app, by, &row, status, Remarks { notice, ..Remarks::default() }).await
}

fn version(text: &str) -> ApiResult<u64> {
    text.parse().map_err(|_| {
        let refusal = Refusal::new(
            Code::PreconditionRequired,
            "the form does not say which version it shows",
        );
        refusal.next("open the page again and repeat").into()
    })
}

fn amount(text: &str) -> ApiResult<AmountInput> {
    Ok(AmountInput::of(Micros::parse(text.trim()).map_err(Refusal::from)?))
}

fn seconds(text: &str) -> ApiResult<i64> {
    text.parse().map_err(|_| refuse(Code::ValidationFailed, "choose for how long"))
}

#[derive(Deserialize)]
pub(super) struct Bounds {
    #[serde(default)]
    version: String,
    #[serde(default)]
    cap: String,
    #[serde(default, rename = "for")]
    seconds: String,
}

#[derive(Template)]
#[template(path = "grant.html")]
struct GrantPage {
    frame: Frame,
    question: Question,
    version: u64,
    cap: String,
    cap_decimal: String,
    seconds: i64,
    until: String,
}

/// A grant, read back before it is given. Changes nothing.
pub(super) async fn review_grant(
    State(app): State<App>,
    by: SignedIn,
    Path(text): Path<String>,
    Query(bounds): Query<Bounds>,
) -> ApiResult<Response> {
    let row = flow::find(&app, by.owner.id, id::<ApprovalId>(&text)?)?;
    if let Err(refusal) = row.check_open(app.now()) {
        return refused(&app, &by, row.id, refusal).await;
    }
    let (cap, seconds) = match read_bounds(&app, &bounds, &row) {
        Ok(read) => read,
        Err(ApiError(refusal)) => {
            let (cap, cap_error) = (bounds.cap.clone(), facts::sentence(&refusal.detail));
            let remarks = Remarks { cap, cap_error, ..Remarks::default() };
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            return show_with(&app, &by, &row, status, remarks).await;
        }
    };
    let before = facts::purchases(&app, &by.owner)?;
    let page = GrantPage {
        frame: Frame::of(&app, &by),
        question: Question::of(&app, &by, &row, &before)?,
        version: version(&bounds.version)?,
        cap: cap.to_string(),
        cap_decimal: cap.to_decimal(),
        seconds,
        until: facts::moment(by.owner.zone_at(app.now()), after(app.now(), seconds)),
    };
    render(StatusCode::OK, &page)
}

fn read_bounds(app: &App, bounds: &Bounds, row: &Approval) -> ApiResult<(Micros, i64)> {
    let (cap, seconds) = (amount(&bounds.cap)?, seconds(&bounds.seconds)?);
    let cap = cap.price(app.settings.max_price_micros).map_err(Refusal::from)?;
    row.check_grant(cap, seconds)?;
    Ok((cap, seconds))
}

/// What became of one of several.
struct Outcome {
    icon: &'static str,
    line: String,
    place: String,
}

#[derive(Template)]
#[template(path = "answered.html")]
struct AnsweredPage {
    frame: Frame,
    title: String,
    outcomes: Vec<Outcome>,
    after: &'static str,
}

/// One answer to several questions, each by itself: some may count and others not.
pub(super) async fn answer_several(
    State(app): State<App>,
    by: SignedIn,
    fields: Fields,
) -> ApiResult<Response> {
    fields.prove(&by.form)?;
    let decision = fields.one("decision");
    let after = match decision {
        "approve" => {
            "Nothing is charged yet. Agents now repeat their requests by themselves; your limits are \
             checked again then."
        }
        "deny" => "The agents are told no. Nothing was charged.",
        _ => return Err(refuse(Code::ValidationFailed, "choose to approve or to deny")),
    };
    let picked: Vec<&str> = fields.all("pick").take(MOST).collect();
    if picked.is_empty() {
        let notice = "Choose at least one purchase first. Nothing was changed.";
        return list_with(&app, &by, StatusCode::UNPROCESSABLE_ENTITY, notice);
    }
    let (mut outcomes, mut counted) = (Vec::with_capacity(picked.len()), 0_usize);
    for text in &picked {
        let (outcome, counts) = one_of_several(&app, &by, text, decision).await;
        outcomes.push(outcome);
        counted = counted.saturating_add(usize::from(counts));
    }
    let word = if decision == "approve" { "approved" } else { "denied" };
    let title = match outcomes.len().saturating_sub(counted) {
        0 => format!("{counted} {word}"),
        not => format!("{counted} {word}, {not} not"),
    };
    let after = if counted == 0 { "The page of each says how it stands." } else { after };
    let page = AnsweredPage { frame: Frame::of(&app, &by), title, outcomes, after };
    render(StatusCode::OK, &page)
}

/// Answers one question named as `apr_….VERSION`; whether it counted. Whatever goes wrong is a matter
/// of this question alone: what counted before it has to be told.
async fn one_of_several(app: &App, by: &SignedIn, text: &str, decision: &str) -> (Outcome, bool) {
    let (name, seen) = text.split_once('.').unwrap_or((text, ""));
    let row = match id::<ApprovalId>(name).and_then(|id| flow::find(app, by.owner.id, id)) {
        Ok(row) => row,
        Err(ApiError(refusal)) => {
            // No more than of an address: whether there is such a question is its owner's to know.
            let why = match refusal.code {
                Code::NotFound => "there is no such question for you",
                _ => refusal.detail.as_str(),
            };
            let line = format!("One that was chosen: not changed, {why}");
            return (Outcome { icon: "\u{2014}", line, place: "/approvals".to_owned() }, false);
        }
    };
    let place = format!("/approvals/{}", row.id);
    let agent = app.store.reader().row::<Agent>(row.agent).ok().flatten();
    let agent = agent.map_or_else(|| row.agent.to_string(), |agent| agent.name);
    let what = format!("{} for {agent}", row.amount_micros);
    let answered = match version(seen) {
        Ok(version) => {
            let written = flow::Written { decision, cap: None, for_seconds: None };
            flow::answer(app, by.owner.id, row.id, version, written).await
        }
        Err(error) => Err(error),
    };
    let (icon, word) = match (answered, decision) {
        (Ok(_), "approve") => ("\u{2713}", "approved".to_owned()),
        (Ok(_), _) => ("\u{2715}", "denied".to_owned()),
        // Whether it was recorded before something broke, its own page says.
        (Err(ApiError(refusal)), _) if refusal.code.status() >= 500 => {
            let line = format!("{what}: open it to see whether it counted, {}", refusal.detail);
            return (Outcome { icon: "?", line, place }, false);
        }
        (Err(ApiError(refusal)), _) => {
            let line = format!("{what}: not changed, {}", refusal.detail);
            return (Outcome { icon: "\u{2014}", line, place }, false);
        }
    };
    (Outcome { icon, line: format!("{what}: {word}"), place }, true)
}
