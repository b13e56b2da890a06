//! Figures for Prometheus, for the operator; on an address of their own, see [`figures::alone`].

use axum::extract::State;
use axum::response::Response;

use super::auth::AsOperator;
use super::view::Problem;
use crate::app::App;
use crate::figures;

/// Figures for Prometheus. On the address of `metrics_listen` no key is asked for.
#[utoipa::path(get, path = "/metrics", tag = "operations", security(("key" = [])),
    responses((status = 200, description = "Figures in Prometheus' text format", body = String, content_type = "text/plain"),
        (status = "4XX", description = "Not for you", body = Problem, content_type = "application/problem+json")))]
pub async fn show(State(app): State<App>, _: AsOperator) -> Response {
    figures::answer(&app).await
}
