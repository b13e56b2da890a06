//! The tower layer that puts a price on a route.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::BoxError;
use axum::body::Body;
use axum::extract::MatchedPath;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use earnest_core::money::Micros;
use earnest_core::problem::{Code, Refusal};
use earnest_core::quote::Price;
use http::Request;
use http_body::Body as HttpBody;
use tower::{Layer, Service};

use crate::gate::Offer;
use crate::problem::Problem;
use crate::seller::{Seller, read_price};
use crate::setup::SetupError;

/// Charges a fixed price for every 2xx answer of a route. The seller is taken from the router
/// ([`Seller::layer`]).
///
/// ```
/// # use axum::{Router, routing::get};
/// # use earnest_sdk::{Seller, price};
/// # async fn weather() -> &'static str { "sunny" }
/// # fn app(seller: &Seller) -> Router {
/// Router::new()
///     .route("/weather", get(weather).layer(price("$0.02")))
///     .layer(seller.layer())
/// # }
/// ```
///
/// Put CORS layers outside: a 402 must be readable by browsers too, and preflights are theirs to
/// answer.
///
/// # Panics
/// When the text is not an amount above zero: a shop whose price tag cannot be read does not open.
/// For prices from configuration use [`Seller::price`], which returns the error.
#[must_use]
#[track_caller]
pub fn price(text: &str) -> PriceLayer {
    PriceLayer::of(Price::Fixed(written_in_source(text)))
}

/// Holds a ceiling, and charges what the handler names with [`crate::Paid::charge`].
///
/// # Panics
/// As [`price()`].
#[must_use]
#[track_caller]
pub fn price_up_to(text: &str) -> PriceLayer {
    PriceLayer::of(Price::UpTo(written_in_source(text)))
}

#[track_caller]
#[allow(
    clippy::panic,
    reason = "runs while routes are built, before anything is served; \
    like a route's path, a price in source is right or the program does not start"
)]
fn written_in_source(text: &str) -> Micros {
    match read_price(text) {
        Ok(amount) => amount,
        Err(error) => panic!("{error}"),
    }
}

/// Puts a price on what is inside. Works on any [`tower::Service`] over `http` requests whose inner
/// service takes an [`axum::body::Body`].
#[derive(Clone, Debug)]
pub struct PriceLayer {
    price: Price,
    listing: Option<String>,
    seller: Option<Seller>,
}

impl PriceLayer {
    /// A layer for an amount that was read elsewhere.
    pub const fn of(price: Price) -> Self {
        Self { price, listing: None, seller: None }
    }

    /// What quotes and receipts call it; by default the method and the route, such as
    /// `GET /weather`. At most 200 bytes are kept.
    #[must_use]
    pub fn listing(mut self, name: &str) -> Self {
        self.listing = Some(name.to_owned());
        self
    }

    /// Whom it pays, where that is not the router's [`Seller::layer`].
    #[must_use]
    pub fn seller(mut self, seller: &Seller) -> Self {
        self.seller = Some(seller.clone());
        self
    }

    /// A fixed price of a text that need not be right.
    ///
    /// # Errors
    /// When the text is not an amount.
    pub fn fixed(text: &str) -> Result<Self, SetupError> {
        Ok(Self::of(Price::Fixed(read_price(text)?)))
    }

    fn offer<B>(&self, request: &Request<B>) -> Offer {
        let listing = self.listing.clone().unwrap_or_else(|| {
            let route = request.extensions().get::<MatchedPath>();
            let route = route.map_or_else(|| request.uri().path(), MatchedPath::as_str);
            format!("{} {route}", request.method())
        });
        Offer { price: self.price, listing }
    }
}

impl<S> Layer<S> for PriceLayer {
    type Service = Priced<S>;

    fn layer(&self, inner: S) -> Priced<S> {
        Priced { inner, layer: self.clone() }
    }
}

/// A service with a price; see [`PriceLayer`].
#[derive(Clone, Debug)]
pub struct Priced<S> {
    inner: S,
    layer: PriceLayer,
}

impl<S, B, R> Service<Request<B>> for Priced<S>
where
    S: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was polled ready must be the one that is called.
        let next = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, next);
        let offer = self.layer.offer(&request);
        let seller = self.layer.seller.clone().or_else(|| request.extensions().get().cloned());
        Box::pin(async move {
            match seller {
                Some(seller) => seller.sell(&offer, request, ready).await,
                None => Ok(no_seller()),
            }
        })
    }
}

/// A price without a seller is closed, not free.
fn no_seller() -> Response {
    tracing::error!("a route has a price, but no `Seller::layer` is around it");
    Problem::from(&Refusal::new(Code::Internal, "the route has a price but no seller"))
        .into_response()
}
