//! The proof that a seller controls its origin: one line of text that Earnest fetches.
//!
//! Earnest accepts quotes only for URLs under an origin that lists the seller's id at
//! [`ORIGIN_PROOF_PATH`]. The id is public, and the page says nothing else.

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use earnest_core::problem::{Code, Refusal};
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, StatusCode};

use crate::problem::Problem;
use crate::seller::Seller;

/// Where Earnest looks whether an origin is the seller's.
pub const ORIGIN_PROOF_PATH: &str = "/.well-known/earnest-origin";

impl Seller {
    /// A router with the one route that proves the origin to Earnest. Merge it into the router
    /// that is served at the public origin, outside priced routes; `earnest sell` serves it by
    /// itself.
    ///
    /// ```
    /// # use axum::{Router, routing::get};
    /// # use earnest_sdk::{Seller, price};
    /// # async fn weather() -> &'static str { "sunny" }
    /// # fn app(seller: &Seller) -> Router {
    /// Router::new()
    ///     .route("/weather", get(weather).layer(price("$0.02")))
    ///     .layer(seller.layer())
    ///     .merge(seller.origin_proof())
    /// # }
    /// ```
    pub fn origin_proof<S: Clone + Send + Sync + 'static>(&self) -> Router<S> {
        let seller = self.clone();
        let prove = move |method: Method| {
            let answer = seller.prove_origin(&method);
            async move { answer }
        };
        Router::new().route(ORIGIN_PROOF_PATH, any(prove))
    }

    /// The answer at [`ORIGIN_PROOF_PATH`].
    pub(crate) fn prove_origin(&self, method: &Method) -> Response {
        if !matches!(*method, Method::GET | Method::HEAD) {
            let refusal = Refusal::new(Code::MethodNotAllowed, "this page is only read");
            let mut response = Problem::from(&refusal).into_response();
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        let line = format!("{}\n", self.0.config.seller);
        let mut response = Response::new(Body::from(line));
        *response.status_mut() = StatusCode::OK;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        // A seller that changes hands is looked at anew.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }
}
