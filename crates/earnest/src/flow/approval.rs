//! An owner answers a question: the one road for the API and the pages.

use earnest_core::answer::{AnswerApproval, Verdict};
use earnest_core::approval::Approval;
use earnest_core::id::{ApprovalId, GrantId, OwnerId};
use earnest_core::money::AmountInput;
use earnest_core::problem::{Code, Refusal};

use crate::api::auth::not_here;
use crate::api::error::{ApiResult, refuse};
use crate::app::App;

/// An answer as it was written.
#[derive(Clone, Copy, Debug)]
pub struct Written<'a> {
    /// `approve`, `grant`, `deny` or `deny_and_pause`.
    pub decision: &'a str,
    /// With `grant`: how much in total.
    pub cap: Option<AmountInput>,
    /// With `grant`: for how long.
    pub for_seconds: Option<i64>,
}

/// A question put to that owner; for anybody else it is not there.
///
/// # Errors
/// `not_found`.
pub fn find(app: &App, owner: OwnerId, id: ApprovalId) -> ApiResult<Approval> {
    let row = app.store.reader().row::<Approval>(id)?;
    row.filter(|row| row.owner == owner).ok_or_else(not_here)
}

/// Answers a question, if it is still as it was read. Approving books nothing.
///
/// # Errors
/// Any refusal of the answer; `validation_failed` for one that makes no sense.
pub async fn answer(
    app: &App,
    owner: OwnerId,
    id: ApprovalId,
    version: u64,
    written: Written<'_>,
) -> ApiResult<Approval> {
    let row = find(app, owner, id)?;
    let unit = AnswerApproval {
        owner,
        agent: row.agent,
        approval: row.id,
        version: Some(version),
        verdict: verdict(app, written)?,
    };
    Ok(app.store.submit(unit).await?)
}

/// What an answer means.
///
/// # Errors
/// `validation_failed` for one that makes no sense, or the code of its amount.
pub fn verdict(app: &App, written: Written<'_>) -> ApiResult<Verdict> {
    let bounded = written.cap.is_some() || written.for_seconds.is_some();
    let invalid = |why: &str| refuse(Code::ValidationFailed, why);
    match written.decision {
        "grant" => {
            let cap = written.cap.ok_or_else(|| invalid("a grant needs a `cap`"))?;
            let seconds = written.for_seconds;
            let seconds = seconds.ok_or_else(|| invalid("a grant needs `for_seconds`"))?;
            let cap = cap.price(app.settings.max_price_micros).map_err(Refusal::from)?;
            Ok(Verdict::Grant { id: GrantId::new(app.seed()), cap, seconds })
        }
        _ if bounded => Err(invalid("`cap` and `for_seconds` go with `grant`")),
        "approve" => Ok(Verdict::Approve),
        "deny" => Ok(Verdict::Deny),
        "deny_and_pause" => Ok(Verdict::DenyAndPause),
        _ => Err(invalid("`decision` is `approve`, `grant`, `deny` or `deny_and_pause`")),
    }
}
