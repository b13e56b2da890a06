//! What the API shows: one shape a noun, made from rows. Rows may change; these are promises.

use std::collections::BTreeMap;

use earnest_core::approval::{Approval, Grant};
use earnest_core::ledger::Account;
use earnest_core::money::Micros;
use earnest_core::party::{Agent, ApiKey, Owner, Seller};
use earnest_core::policy::dry_run::{Tried, Verdict};
use earnest_core::policy::{Limits, Policy};
use earnest_core::problem::Refusal;
use earnest_core::purchase::{Purchase, PurchaseState};
use earnest_core::settlement::Settlement;
use earnest_core::tab::Tab;
use earnest_core::vault::Vault;
use earnest_store::Page;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::csv::Columns;
use super::error::ApiResult;
use crate::app::App;
use crate::flow::policy::DryRun;

/// The most purchases of a dry run that are listed one by one.
const MAX_LISTED: usize = 100;

/// Some of a list.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct List<T: ToSchema> {
    /// In order, newest first unless the route says otherwise.
    pub data: Vec<T>,
    /// Give this as `cursor` to get what follows; null at the end.
    pub next_cursor: Option<String>,
}

impl<T: ToSchema> List<T> {
    /// A page of rows, each shown, if that can be.
    pub fn try_of<R>(page: Page<R>, show: impl FnMut(R) -> ApiResult<T>) -> ApiResult<Self> {
        let next_cursor = page.next.map(|cursor| cursor.to_string());
        let data = page.items.into_iter().map(show).collect::<ApiResult<_>>()?;
        Ok(Self { data, next_cursor })
    }

    /// A page of rows, each shown.
    pub fn of<R>(page: Page<R>, show: impl FnMut(R) -> T) -> Self {
        let next_cursor = page.next.map(|cursor| cursor.to_string());
        Self { data: page.items.into_iter().map(show).collect(), next_cursor }
    }
}

/// A row as it is, as JSON: for shapes that rows and API share.
fn value(row: &impl Serialize) -> Value {
    serde_json::to_value(row).unwrap_or_default()
}

pub(super) fn text(row: &impl Serialize) -> String {
    match value(row) {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// An RFC 9457 problem document. Further members carry the numbers behind it.
#[derive(Serialize, ToSchema)]
pub struct Problem {
    /// Where the code is explained.
    pub r#type: String,
    /// One sentence for the code.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// One sentence about this case.
    pub detail: String,
    /// What clients switch on.
    pub code: String,
    /// Beside `policy_denied`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The exchange, as the logs name it.
    pub trace_id: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// What to do next.
    pub next: Option<String>,
}

/// A purchase.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct PurchaseView {
    /// Its id.
    pub id: String,
    /// Who bought.
    pub agent: String,
    /// Whose money.
    pub owner: String,
    /// Who is paid.
    pub seller: String,
    /// The agent's name for it.
    pub request_id: String,
    /// What the seller calls the thing.
    pub listing: String,
    /// The method of the request.
    pub method: String,
    /// The URL of the request.
    pub url: String,
    /// The price, or its ceiling.
    pub amount_micros: i64,
    /// Whether the price is a ceiling.
    pub up_to: bool,
    /// The currency.
    pub currency: String,
    /// `denied`, `waiting`, `held`, `billed`, `released`, `expired` or `unbilled`.
    pub status: String,
    /// Why it was denied or waits, with the numbers.
    pub refusal: Option<Value>,
    /// The question put to the owner.
    pub approval_id: Option<String>,
    /// The tab.
    pub tab: Option<String>,
    /// What was billed.
    pub billed_micros: Option<i64>,
    /// When it was billed.
    pub billed_at: Option<String>,
    /// The number of its line on the tab.
    pub line: Option<u64>,
    /// When the voucher issued last ends.
    pub voucher_expires_at: Option<String>,
    /// When it was first asked for.
    pub created_at: String,
    /// When it last changed.
    pub updated_at: String,
}

impl Columns for PurchaseView {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "agent",
        "owner",
        "seller",
        "request_id",
        "listing",
        "method",
        "url",
        "amount_micros",
        "up_to",
        "currency",
        "status",
        "refusal",
        "approval_id",
        "tab",
        "billed_micros",
        "billed_at",
        "line",
        "voucher_expires_at",
        "created_at",
        "updated_at",
    ];
}

/// Shows a purchase.
pub fn purchase(row: &Purchase) -> PurchaseView {
    PurchaseView {
        id: row.id.to_string(),
        agent: row.agent.to_string(),
        owner: row.owner.to_string(),
        seller: row.seller.to_string(),
        request_id: row.request_id.clone(),
        listing: row.listing.clone(),
        method: row.request.method.clone(),
        url: row.request.url.clone(),
        amount_micros: row.price_micros.get(),
        up_to: row.up_to,
        currency: row.currency.to_string(),
        status: text(&row.state),
        refusal: row.refusal.as_ref().map(value),
        approval_id: row.approval.map(|id| id.to_string()),
        tab: row.tab.map(|id| id.to_string()),
        billed_micros: row.billed_micros.map(|amount| amount.get()),
        billed_at: row.billed_at.map(|at| at.to_string()),
        line: row.line,
        voucher_expires_at: row.voucher.as_ref().map(|issue| issue.expires_at.to_string()),
        created_at: row.created_at.to_string(),
        updated_at: row.updated_at.to_string(),
    }
}

/// Shows a purchase as it stands now: one whose question was answered with no, or expired, is denied.
pub fn purchase_now(app: &App, row: &Purchase) -> ApiResult<PurchaseView> {
    let mut view = purchase(row);
    let asked = row.approval.filter(|_| row.state == PurchaseState::Waiting);
    let Some(asked) = asked else { return Ok(view) };
    let approval = app.store.reader().row::<Approval>(asked)?;
    if let Some(refusal) = approval.and_then(|approval| approval.ended(app.now())) {
        view.status = text(&PurchaseState::Denied);
        view.refusal = Some(value(&refusal));
    }
    Ok(view)
}

/// A purchase as an agent, owner or seller sees it: a seller learns nothing of the owner's limits.
pub fn purchase_for_seller(row: &Purchase) -> PurchaseView {
    PurchaseView { refusal: None, approval_id: None, tab: None, ..purchase(row) }
}

/// A question put to an owner.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct ApprovalView {
    /// Its id.
    pub id: String,
    /// Who wants to buy.
    pub agent: String,
    /// The purchase that asked first.
    pub purchase: String,
    /// Who would be paid.
    pub seller: String,
    /// What the seller calls the thing.
    pub listing: String,
    /// The method of the request.
    pub method: String,
    /// The URL of the request.
    pub url: String,
    /// How much.
    pub amount_micros: i64,
    /// The currency.
    pub currency: String,
    /// Why it waits.
    pub why: String,
    /// `waiting`, `approved`, `denied`, `consumed` or `expired`.
    pub status: String,
    /// When it was asked.
    pub created_at: String,
    /// When the question, and an unused yes, stop counting.
    pub expires_at: String,
    /// When it was answered.
    pub decided_at: Option<String>,
    /// The grant that came of it.
    pub grant: Option<String>,
    /// For `If-Match`.
    pub version: u64,
}

/// Shows an approval at a moment.
pub fn approval(row: &Approval, now: earnest_core::time::Timestamp) -> ApprovalView {
    let status = if row.is_expired(now) { "expired".to_owned() } else { text(&row.state) };
    ApprovalView {
        id: row.id.to_string(),
        agent: row.agent.to_string(),
        purchase: row.purchase.to_string(),
        seller: row.seller.to_string(),
        listing: row.listing.clone(),
        method: row.method.clone(),
        url: row.url.clone(),
        amount_micros: row.amount_micros.get(),
        currency: row.currency.to_string(),
        why: row.why.clone(),
        status,
        created_at: row.created_at.to_string(),
        expires_at: row.expires_at.to_string(),
        decided_at: row.decided_at.map(|at| at.to_string()),
        grant: row.grant.map(|id| id.to_string()),
        version: row.version,
    }
}

/// A bounded grant.
#[derive(Serialize, ToSchema)]
pub struct GrantView {
    /// Its id.
    pub id: String,
    /// Who may use it.
    pub agent: String,
    /// At which seller.
    pub seller: String,
    /// How much in total.
    pub cap_micros: i64,
    /// How much was used, holds included.
    pub used_micros: i64,
    /// Until when.
    pub until: String,
    /// When it was taken back.
    pub revoked_at: Option<String>,
}

/// Shows a grant.
pub fn grant(row: &Grant, used: i64) -> GrantView {
    GrantView {
        id: row.id.to_string(),
        agent: row.agent.to_string(),
        seller: row.seller.to_string(),
        cap_micros: row.cap_micros.get(),
        used_micros: used,
        until: row.until.to_string(),
        revoked_at: row.revoked_at.map(|at| at.to_string()),
    }
}

/// A tab.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct TabView {
    /// Its id.
    pub id: String,
    /// Whose.
    pub owner: String,
    /// `open`, `closing`, `closed`, `frozen`, `written_off` or `paid_off`.
    pub status: String,
    /// Posted and not captured.
    pub owed_micros: i64,
    /// Held for purchases under way.
    pub held_micros: i64,
    /// Under capture at PayPal.
    pub settling_micros: i64,
    /// Captured so far.
    pub captured_micros: i64,
    /// Left over below a cent from earlier settlements.
    pub carry_micros: i64,
    /// What the tab may owe now.
    pub room_micros: i64,
    /// Lines so far.
    pub lines: u64,
    /// Settlements so far.
    pub settlements: u64,
    /// What the treasurer would do now, in one sentence.
    pub treasurer: String,
    /// What one capture of what is owed would cost.
    pub fee_predicted_micros: i64,
    /// What capturing every line of the tab alone would have cost.
    pub fee_if_single_micros: i64,
    /// When it was opened.
    pub opened_at: String,
    /// When something was last bought on it.
    pub used_at: String,
    /// The tab that its rest was carried to.
    pub carried_to: Option<String>,
}

/// The state of a tab as the API says it.
pub fn tab_status(row: &Tab) -> String {
    text(&row.state)
}

/// A settlement.
#[derive(Serialize, ToSchema)]
pub struct SettlementView {
    /// Its id.
    pub id: String,
    /// Which tab.
    pub tab: String,
    /// The tab's first, second …
    pub n: u64,
    /// How often it was attempted.
    pub attempt: u64,
    /// `open`, `captured`, `amount_mismatch`, `declined`, `not_charged`, `refused` or `restored`; an open one
    /// whose outcome is not known says `unknown`.
    pub status: String,
    /// Why it was made.
    pub why: String,
    /// What the advisor had said, where there is one.
    pub advice: Option<String>,
    /// The sum of its lines.
    pub lines_micros: i64,
    /// Below a cent, from before.
    pub carry_in_micros: i64,
    /// Below a cent, left for the next.
    pub carry_out_micros: i64,
    /// What PayPal was asked for.
    pub amount_micros: i64,
    /// What PayPal captured.
    pub captured_micros: Option<i64>,
    /// What of it went back at PayPal afterwards.
    pub given_back_micros: i64,
    /// What PayPal was expected to take.
    pub fee_predicted_micros: i64,
    /// What PayPal took.
    pub fee_micros: Option<i64>,
    /// PayPal's id of the capture.
    pub paypal_capture: Option<String>,
    /// The invoice id that the capture carries. Agents are not shown it: whoever knows it can pay
    /// us under it.
    pub invoice_id: Option<String>,
    /// Why it was declined or refused.
    pub issue: Option<String>,
    /// The public address of its receipt.
    pub receipt_url: Option<String>,
    /// The PayPal call behind it.
    pub intent: String,
    /// When it was made.
    pub created_at: String,
    /// When its outcome was recorded.
    pub ended_at: Option<String>,
}

/// Shows a settlement; `unknown` when its intent is.
pub fn settlement(row: &Settlement, unknown: bool, receipt_url: Option<String>) -> SettlementView {
    SettlementView {
        id: row.id.to_string(),
        tab: row.tab.to_string(),
        n: row.n,
        attempt: row.attempt,
        status: if unknown { "unknown".to_owned() } else { text(&row.state) },
        why: row.why.clone(),
        advice: row.advice.as_ref().map(|advice| advice.sentence.clone()),
        lines_micros: row.lines_micros.get(),
        carry_in_micros: row.carry_in_micros.get(),
        carry_out_micros: row.carry_out_micros.get(),
        amount_micros: row.amount_micros.get(),
        captured_micros: row.captured_micros.map(|amount| amount.get()),
        given_back_micros: row.given_back_micros.get(),
        fee_predicted_micros: row.fee_predicted_micros.get(),
        fee_micros: row.fee_micros.map(|amount| amount.get()),
        paypal_capture: row.paypal_capture.clone(),
        invoice_id: Some(row.invoice_id.clone()),
        issue: row.issue.clone(),
        receipt_url,
        intent: row.intent.to_string(),
        created_at: row.created_at.to_string(),
        ended_at: row.ended_at.map(|at| at.to_string()),
    }
}

/// A way to pay.
#[derive(Serialize, ToSchema)]
pub struct MethodView {
    /// Its id.
    pub id: String,
    /// `starting`, `awaiting_payer`, `confirming`, `active`, `failed` or `removed`.
    pub status: String,
    /// PayPal's page for the payer, while it waits for consent.
    pub approve_url: Option<String>,
    /// The payer's address, shortened.
    pub payer: Option<String>,
    /// Why it failed.
    pub issue: Option<String>,
    /// When it was begun.
    pub created_at: String,
}

/// Shows a way to pay.
pub fn method(row: &Vault) -> MethodView {
    MethodView {
        id: row.id.to_string(),
        status: text(&row.state),
        approve_url: row.approve_url.clone(),
        payer: row.payer.clone(),
        issue: row.issue.clone(),
        created_at: row.created_at.to_string(),
    }
}

/// An owner.
#[derive(Serialize, ToSchema)]
pub struct OwnerView {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Whether all its agents are paused.
    pub paused: bool,
    /// Why it is frozen.
    pub frozen: Option<String>,
    /// The open tab.
    pub open_tab: Option<String>,
    /// A tab whose settlement was declined.
    pub frozen_tab: Option<String>,
    /// Whether a way to pay is on file.
    pub funded: bool,
    /// Of the PayPal account behind it: `own`, `shared` with an owner who had it before, or `untold`.
    /// A shared or untold one gives no credit line by itself.
    pub payer: String,
    /// The credit line.
    pub credit_line_micros: i64,
    /// Captured so far.
    pub settled_micros: i64,
    /// What it owes for money that went back at PayPal; taken off what its tabs may owe.
    pub debt_micros: i64,
    /// What is disputed of its payments at PayPal; taken off as well.
    pub disputed_micros: i64,
    /// The zone its days are counted in.
    pub zone: String,
    /// The zone they are counted in from `next_zone_from` on, after a change.
    pub next_zone: Option<String>,
    /// When the day ends that the change waits for.
    pub next_zone_from: Option<String>,
    /// When it was created.
    pub created_at: String,
}

/// Shows an owner as it is now.
///
/// # Errors
/// When the books cannot be read.
pub fn owner(row: &Owner, app: &App) -> ApiResult<OwnerView> {
    let now = app.now();
    let coming = row.next_zone.as_ref().filter(|(_, from)| now < *from);
    let debt = app.store.reader().totals(&Account::OwnerDebt(row.id).usd())?;
    Ok(OwnerView {
        id: row.id.to_string(),
        name: row.name.clone(),
        paused: row.paused,
        frozen: row.frozen.clone(),
        open_tab: row.open_tab.map(|id| id.to_string()),
        frozen_tab: row.frozen_tab.map(|id| id.to_string()),
        funded: row.funding.is_some(),
        payer: text(&row.payer),
        credit_line_micros: earnest_core::tab::credit_line(row, &app.settings).get(),
        settled_micros: row.settled_micros.get(),
        debt_micros: debt.collectible().get(),
        disputed_micros: row.disputed_micros.get(),
        zone: row.zone_at(now).to_string(),
        next_zone: coming.map(|(zone, _)| zone.to_string()),
        next_zone_from: coming.map(|(_, from)| from.to_string()),
        created_at: row.created_at.to_string(),
    })
}

/// An agent.
#[derive(Serialize, ToSchema)]
pub struct AgentView {
    /// Its id.
    pub id: String,
    /// Whose.
    pub owner: String,
    /// Its name.
    pub name: String,
    /// Whether it is paused.
    pub paused: bool,
    /// How many live keys it has.
    pub keys: usize,
    /// How many of its purchases wait.
    pub waiting: usize,
    /// When it was created.
    pub created_at: String,
}

/// Shows an agent.
pub fn agent(row: &Agent) -> AgentView {
    AgentView {
        id: row.id.to_string(),
        owner: row.owner.to_string(),
        name: row.name.clone(),
        paused: row.paused,
        keys: row.keys.len(),
        waiting: row.waiting.len(),
        created_at: row.created_at.to_string(),
    }
}

/// A seller.
#[derive(Serialize, ToSchema)]
pub struct SellerView {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its origins; quotes count under those that are proved.
    pub origins: Vec<OriginView>,
    /// What the platform keeps, in millionths.
    pub commission_ppm: u32,
    /// Where its earnings go.
    pub payout_recipient: Option<String>,
    /// Earned, not yet due.
    pub accrued_micros: i64,
    /// Held for purchases under way.
    pub pending_micros: i64,
    /// Due.
    pub payable_micros: i64,
    /// When it was created.
    pub created_at: String,
}

/// Where a seller's resources live.
#[derive(Serialize, ToSchema)]
pub struct OriginView {
    /// `https://host[:port]`.
    pub origin: String,
    /// When it was proved.
    pub proved_at: Option<String>,
}

/// Shows a seller with its earnings.
pub fn seller(row: &Seller, accrued: i64, pending: i64, payable: i64) -> SellerView {
    let origins = row.origins.iter().map(|known| OriginView {
        origin: known.origin.clone(),
        proved_at: known.proved_at.map(|at| at.to_string()),
    });
    SellerView {
        id: row.id.to_string(),
        name: row.name.clone(),
        origins: origins.collect(),
        commission_ppm: row.commission_ppm,
        payout_recipient: row.payout_recipient.clone(),
        accrued_micros: accrued,
        pending_micros: pending,
        payable_micros: payable,
        created_at: row.created_at.to_string(),
    }
}

/// An API key without its secret.
#[derive(Serialize, ToSchema)]
pub struct KeyView {
    /// Its id.
    pub id: String,
    /// For people.
    pub label: String,
    /// The key itself: only in the answer that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// When it was made.
    pub created_at: String,
    /// When it stopped counting.
    pub revoked_at: Option<String>,
}

/// Shows a key.
pub fn key(row: &ApiKey, secret: Option<String>) -> KeyView {
    KeyView {
        id: row.id.to_string(),
        label: row.label.clone(),
        key: secret,
        created_at: row.created_at.to_string(),
        revoked_at: row.revoked_at.map(|at| at.to_string()),
    }
}

/// A policy in force.
#[derive(Serialize, ToSchema)]
pub struct PolicyView {
    /// Whose: an owner's or an agent's id.
    pub subject: String,
    /// For `If-Match`.
    pub version: u64,
    /// When it was set.
    pub set_at: String,
    /// The limits as written; null inherits or sets no limit.
    pub limits: Value,
    /// Constraints that are not obeyed here, and why: each denies every purchase.
    pub not_obeyed: Vec<String>,
}

/// Shows a policy.
pub fn policy(row: &Policy) -> PolicyView {
    PolicyView {
        subject: row.subject.to_string(),
        version: row.version,
        set_at: row.set_at.to_string(),
        limits: row.limits.clone(),
        not_obeyed: row.limits().map(Limits::not_obeyed).unwrap_or_default(),
    }
}

/// What limits would have said to the purchases of the last days.
#[derive(Serialize, ToSchema)]
pub struct DryRunView {
    /// From when on.
    pub since: String,
    /// How many purchases were asked for since.
    pub purchases: usize,
    /// Whether there were more, of which only the newest were tried.
    pub truncated: bool,
    /// What became of them.
    pub was: VerdictView,
    /// What would have.
    pub would: VerdictView,
    /// How many would have had another answer.
    pub changed: usize,
    /// The newest of those, 100 at most.
    pub changes: Vec<TriedView>,
}

/// Purchases by their answer.
#[derive(Default, Serialize, ToSchema)]
pub struct VerdictView {
    /// They passed.
    pub allowed: usize,
    /// They waited for their owner.
    pub waiting: usize,
    /// They were refused, by reason.
    pub denied: BTreeMap<String, usize>,
    /// What those that passed cost.
    pub spent_micros: i64,
}

/// A purchase that would have had another answer.
#[derive(Serialize, ToSchema)]
pub struct TriedView {
    /// Which.
    pub purchase: String,
    /// Whose.
    pub agent: String,
    /// When it was asked for.
    pub at: String,
    /// Its price.
    pub price_micros: i64,
    /// `allowed`, `waiting`, or the reason of the refusal.
    pub was: String,
    /// The same under the limits that were tried.
    pub would: String,
    /// Why it would have been refused.
    pub why: Option<String>,
}

/// What became of a trial, summed up.
pub fn dry_run(run: &DryRun) -> DryRunView {
    let tried = &run.tried;
    let of = |verdict: fn(&Tried) -> &Verdict| {
        let mut view = VerdictView::default();
        let mut spent = Micros::ZERO;
        for one in tried {
            match verdict(one) {
                Verdict::Allowed => {
                    view.allowed = view.allowed.saturating_add(1);
                    spent = spent.checked_add(one.cost).unwrap_or(Micros::MAX);
                }
                Verdict::Waiting => view.waiting = view.waiting.saturating_add(1),
                Verdict::Denied(why) => {
                    let count = view.denied.entry(reason_of(why)).or_default();
                    *count = count.saturating_add(1);
                }
            }
        }
        view.spent_micros = spent.get();
        view
    };
    let changed = tried.iter().rev().filter(|one| word(&one.was) != word(&one.would));
    let listed = changed.clone().take(MAX_LISTED).map(|one| TriedView {
        purchase: one.purchase.to_string(),
        agent: one.agent.to_string(),
        at: one.at.to_string(),
        price_micros: one.price.get(),
        was: word(&one.was),
        would: word(&one.would),
        why: match &one.would {
            Verdict::Denied(why) => Some(why.detail.clone()),
            _ => None,
        },
    });
    DryRunView {
        since: run.since.to_string(),
        purchases: tried.len(),
        truncated: run.truncated,
        was: of(|one| &one.was),
        would: of(|one| &one.would),
        changed: changed.clone().count(),
        changes: listed.collect(),
    }
}

fn reason_of(why: &Refusal) -> String {
    why.reason.map_or_else(|| why.code.as_str(), |reason| reason.as_str()).to_owned()
}

/// `allowed`, `waiting`, or the reason of a refusal.
fn word(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Allowed => "allowed".to_owned(),
        Verdict::Waiting => "waiting".to_owned(),
        Verdict::Denied(why) => reason_of(why),
    }
}

/// Where a receipt of a settlement is shown, if it is signed.
pub fn receipt_url(app: &App, row: &Settlement) -> ApiResult<Option<String>> {
    let Some(id) = row.receipt else { return Ok(None) };
    let receipt = app.store.reader().row::<earnest_core::receipt::Receipt>(id)?;
    Ok(receipt.map(|receipt| format!("{}/r/{}", app.public_url, receipt.token)))
}
