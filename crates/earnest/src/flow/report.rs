//! A seller reports what became of vouchers: one unit each, and a second one for a late line.

use earnest_core::id::{SellerId, TabId, TransferId};
use earnest_core::lost::KeepLost;
use earnest_core::problem::{Code, Refusal};
use earnest_core::purchase::Purchase;
use earnest_core::report::{LateLine, Resolve, Step, Told};
use earnest_core::voucher::{self, Report, ReportAnswer, ReportOutcome, ReportResult};
use earnest_store::SubmitError;
use futures_util::future::join_all;

use super::paypal::FlowError;
use crate::app::App;

/// How often a purchase may move between two reads of one report.
const MAX_ROUNDS: usize = 4;

/// Takes in a batch: reports that were read, and why others could not be. Each stands alone; one
/// that is not acceptable, or that fails, does not hold up the rest.
///
/// # Errors
/// When the books took in none of them: the seller keeps all and sends them again.
pub async fn take_in(
    app: &App,
    seller: SellerId,
    reports: Vec<Result<Report, Refusal>>,
) -> Result<ReportAnswer, FlowError> {
    let read = |report: Result<Report, Refusal>| async move {
        match report {
            Ok(report) => one(app, seller, report).await,
            Err(why) => Ok(rejected(why.code)),
        }
    };
    let results = join_all(reports.into_iter().map(read)).await;
    if results.iter().all(Result::is_err)
        && let Some(Err(error)) = results.first()
    {
        return Err(error.clone().into());
    }
    let results = results.into_iter().map(|result| result.unwrap_or_else(again)).collect();
    Ok(ReportAnswer { epoch: app.store.epoch().to_owned(), results })
}

/// What failed inside is logged, not told: nothing was recorded, so the seller repeats it.
fn again(error: SubmitError) -> ReportResult {
    tracing::error!(%error, "a report was not taken in");
    ReportResult { outcome: ReportOutcome::Again, ..rejected(error.code()) }
}

fn rejected(code: Code) -> ReportResult {
    ReportResult {
        jti: None,
        purchase: None,
        outcome: ReportOutcome::Rejected,
        code: Some(code),
        amount_micros: None,
    }
}

async fn one(app: &App, seller: SellerId, report: Report) -> Result<ReportResult, SubmitError> {
    let claims = match app.verify(|keys| voucher::read(&report.voucher, keys, app.now())) {
        Ok(claims) => claims,
        Err(refusal) => return Ok(rejected(refusal.code)),
    };
    let (jti, purchase) = (claims.jti, claims.sub);
    let told = Told {
        seller,
        claims,
        fate: report.fate,
        claimed_at: report.claimed_at,
        amount: report.amount_micros,
    };
    let known = |step| {
        let (outcome, code, amount_micros) = match step {
            Step::Done(outcome, amount) => (outcome, None, amount),
            Step::Rejected(code) => (ReportOutcome::Rejected, Some(code), None),
            // Not resolved within a few rounds: nothing was recorded, the seller repeats it.
            Step::Late | Step::Lost | Step::Moved => {
                (ReportOutcome::Again, Some(Code::IdempotencyInFlight), None)
            }
            Step::Wait => (ReportOutcome::Again, Some(Code::Quarantined), None),
        };
        ReportResult { jti: Some(jti), purchase: Some(purchase), outcome, code, amount_micros }
    };
    for _ in 0..MAX_ROUNDS {
        let row = app.store.reader().row::<Purchase>(purchase);
        let row = row.map_err(|why| SubmitError::Unavailable(why.to_string()))?;
        let settings = app.settings.clone();
        let step = match &row {
            // Restored books may have lost it.
            None => Step::Lost,
            Some(row) => {
                let (told, tab) = (told.clone(), row.tab);
                app.store.submit(Resolve { told, tab, settings: settings.clone() }).await?
            }
        };
        let step = match (step, row) {
            (Step::Late, Some(row)) => {
                let late = LateLine {
                    told: told.clone(),
                    owner: row.owner,
                    agent: row.agent,
                    chain: TransferId::new(app.seed()),
                    no_tab: TabId::new(app.seed()),
                    settings,
                };
                app.store.submit(late).await?
            }
            (step, _) => step,
        };
        let step = match step {
            Step::Lost => app.store.submit(KeepLost { told: told.clone() }).await?,
            step => step,
        };
        if step != Step::Moved {
            app.wake.notify();
            return Ok(known(step));
        }
    }
    Ok(known(Step::Moved))
}
