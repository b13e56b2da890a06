//! Moving the books of this Earnest to a database, while it runs.

use std::sync::Arc;

use axum::extract::State;
use earnest_core::problem::Code;
use earnest_store::{MoveError, OpenError, Place, Url};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::AsOperator;
use super::error::{ApiError, ApiResult, refuse};
use super::read::Json;
use super::view::Problem;
use crate::app::App;
use crate::migrate::{MigrateError, Migrated, migrate};

/// Where to.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MigrateBody {
    /// The PostgreSQL database, `postgres://…`, with its password if it needs one. It holds no books
    /// yet.
    to: String,
}

/// Books that were moved.
#[derive(Serialize, ToSchema)]
pub struct MigratedView {
    /// Where they are, without who and with what password.
    to: String,
    /// The installation's epoch there.
    epoch: String,
    /// Entries of the log.
    entries: u64,
    /// Accounts.
    accounts: u64,
    /// Rows.
    rows: u64,
}

/// Moves the books to a database: what is queued is carried out, everything is copied, compared and
/// audited on both sides. This Earnest then serves nothing any more; start it on the new ones. Whatever
/// fails before leaves the books here.
#[utoipa::path(post, path = "/v1/migrate", tag = "operator", security(("key" = [])), request_body = MigrateBody,
    responses((status = 200, body = MigratedView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The database does not answer", body = Problem, content_type = "application/problem+json")))]
pub async fn begin(
    State(app): State<App>,
    _: AsOperator,
    Json(body): Json<MigrateBody>,
) -> ApiResult<axum::Json<MigratedView>> {
    let url = Url::parse(&body.to);
    let url = url.map_err(|why| refuse(Code::ValidationFailed, &format!("`to`: {why}")))?;
    let place = Place::Server(url);
    let (store, to) = (app.store.clone(), place.clone());
    let clock = Arc::new({
        let app = app.clone();
        move || app.now()
    });
    let moved = tokio::task::spawn_blocking(move || migrate(&store, &to, clock)).await;
    let moved = moved.map_err(|why| {
        tracing::error!(%why, "moving the books ended early");
        refuse(Code::Internal, "moving the books ended early; /readyz says where they are")
    })?;
    let Migrated { copied, epoch, aside: _ } = moved.map_err(refusal)?;
    tracing::warn!(to = place.name(), "the books were moved; nothing is served here any more");
    let (entries, accounts, rows) = (copied.entries, copied.accounts, copied.rows);
    Ok(axum::Json(MigratedView { to: place.name(), epoch, entries, accounts, rows }))
}

/// What stands in the way is the state of one of two places, both of which the operator knows.
fn refusal(why: MigrateError) -> ApiError {
    let code = match &why {
        MigrateError::Move(MoveError::Open(OpenError::Address(_))) => Code::ValidationFailed,
        MigrateError::Audit { .. } => Code::DatabaseUnavailable,
        _ => Code::StateConflict,
    };
    refuse(code, &why.to_string())
}
