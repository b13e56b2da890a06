//! A stand-in for Earnest: signs vouchers, replays ids, books reports, and does as it is told.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use earnest_core::authorize::{AuthorizeRequest, Authorized};
use earnest_core::id::{PurchaseId, QuoteId, Seed, SellerId, VoucherId};
use earnest_core::jws::{Jwks, KeySet, Purpose, Signer};
use earnest_core::money::{Currency, Micros};
use earnest_core::quote::{Price, Quote, body_digest};
use earnest_core::time::Timestamp;
use earnest_core::voucher::{
    self, Claims, Fate, Report, ReportAnswer, ReportBatch, ReportOutcome, ReportResult,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

pub const SELLER: &str = "sel_00000000000000000000000001";
pub const AGENT_KEY: &str = "ek_agent_test";
pub const SELLER_KEY: &str = "ek_seller_test";
/// The longest a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone)]
pub struct Earnest {
    pub url: String,
    pub signer: Signer,
    books: Arc<Mutex<Books>>,
    changed: watch::Sender<()>,
}

#[derive(Default)]
pub struct Books {
    pub epoch: String,
    /// By request id.
    pub purchases: BTreeMap<String, Purchase>,
    /// Every report, in the order it came; a repeated one twice.
    pub reports: Vec<Report>,
    /// Per purchase, what is on the tab.
    pub billed: BTreeMap<PurchaseId, Micros>,
    pub released: Vec<PurchaseId>,
    pub authorizes: Vec<AuthorizeRequest>,
    /// Answers to give instead of deciding, in turn.
    pub scripted: VecDeque<(StatusCode, Value)>,
    /// Statuses to give instead of taking reports in, in turn.
    pub report_faults: VecDeque<StatusCode>,
    pub report_batches: Vec<usize>,
    /// A batch that holds this voucher is answered 400.
    pub poison: Option<String>,
    /// A report of this voucher is answered `rejected`.
    pub reject: Option<String>,
    /// A report of this voucher is answered `again`.
    pub again: Option<String>,
    pub key_fetches: u32,
    seeds: u128,
}

#[derive(Clone)]
pub struct Purchase {
    pub id: PurchaseId,
    pub voucher: String,
}

impl Books {
    /// What the owner owes.
    pub fn outstanding(&self) -> i64 {
        self.billed.values().map(|amount| amount.get()).sum()
    }

    pub fn fates(&self) -> Vec<Fate> {
        self.reports.iter().map(|report| report.fate).collect()
    }

    fn seed(&mut self) -> Seed {
        self.seeds += 1;
        Seed { unix_ms: 1, random: self.seeds }
    }
}

impl Earnest {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::serve_on(listener)
    }

    pub fn serve_on(listener: TcpListener) -> Self {
        let url = format!("http://{}", listener.local_addr().unwrap());
        let books = Books { epoch: "e1".to_owned(), ..Books::default() };
        let earnest = Self {
            url,
            signer: Signer::new(Purpose::Voucher, &[7; 32]),
            books: Arc::new(Mutex::new(books)),
            changed: watch::channel(()).0,
        };
        let app = Router::new()
            .route("/.well-known/jwks.json", get(jwks))
            .route("/v1/authorize", post(authorize))
            .route("/v1/vouchers/report", post(report))
            .with_state(earnest.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        earnest
    }

    pub fn books<T>(&self, look: impl FnOnce(&mut Books) -> T) -> T {
        let seen = look(&mut self.books.lock().unwrap());
        self.changed.send_replace(());
        seen
    }

    /// Waits until the books are as expected; panics when they never are.
    pub async fn until(&self, what: &str, mut is: impl FnMut(&Books) -> bool) {
        let mut changed = self.changed.subscribe();
        let waiting = async {
            loop {
                changed.mark_unchanged();
                if is(&self.books.lock().unwrap()) {
                    return;
                }
                changed.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            panic!("never came to be: {what}");
        }
    }

    pub fn jwks(&self) -> Jwks {
        Jwks { keys: vec![self.signer.jwk()] }
    }

    /// The claims of a good voucher for a GET.
    pub fn claims(&self, url: &str, micros: i64) -> Claims {
        let (purchase, jti) = self.books(|b| (PurchaseId::new(b.seed()), VoucherId::new(b.seed())));
        let now = Timestamp::now().as_second();
        Claims {
            iss: self.url.clone(),
            aud: SELLER.parse().unwrap(),
            sub: purchase,
            jti,
            iat: now,
            exp: now + 120,
            amount_micros: Micros::new(micros).unwrap(),
            max_micros: None,
            currency: Currency::Usd,
            quote: QuoteId::new(Seed { unix_ms: 1, random: 1 }),
            // What a route without a listing of its own is called.
            listing: format!("GET {}", url::Url::parse(url).unwrap().path()),
            method: "GET".to_owned(),
            resource: url.to_owned(),
            body: body_digest(b""),
        }
    }

    pub fn sign(&self, claims: &Claims) -> String {
        self.signer.sign(claims).unwrap()
    }

    /// Another voucher on the same hold, as Earnest issues it when the last one ran out and nothing
    /// was reported.
    pub fn reissued(&self, claims: &Claims) -> Claims {
        let jti = self.books(|books| VoucherId::new(books.seed()));
        Claims { jti, ..claims.clone() }
    }

    /// A good voucher for a GET.
    pub fn voucher(&self, url: &str, micros: i64) -> String {
        self.sign(&self.claims(url, micros))
    }

    /// A good voucher for a GET of a listing that its seller named.
    pub fn voucher_of(&self, listing: &str, url: &str, micros: i64) -> String {
        let listing = listing.to_owned();
        self.sign(&Claims { listing, ..self.claims(url, micros) })
    }

    /// A good voucher for a GET with a ceiling.
    pub fn voucher_up_to(&self, url: &str, micros: i64) -> String {
        let mut claims = self.claims(url, micros);
        claims.max_micros = Some(claims.amount_micros);
        self.sign(&claims)
    }

    fn claims_of(&self, quote: &Quote) -> Claims {
        let mut claims = self.claims(&quote.request.url, quote.price.most().get());
        claims.aud = quote.seller;
        claims.quote = quote.id;
        claims.listing.clone_from(&quote.listing);
        claims.method.clone_from(&quote.request.method);
        claims.body.clone_from(&quote.request.body_sha256);
        claims.max_micros = match quote.price {
            Price::UpTo(ceiling) => Some(ceiling),
            Price::Fixed(_) => None,
        };
        claims
    }
}

pub fn problem(status: u16, code: &str) -> (StatusCode, Value) {
    let body = json!({"type": format!("/problems/{code}"), "title": code, "status": status,
        "detail": format!("as scripted: {code}"), "code": code, "trace_id": "trc_x",
        "retryable": false});
    (StatusCode::from_u16(status).unwrap(), body)
}

fn bearer(headers: &HeaderMap, key: &str) -> bool {
    headers.get("authorization").is_some_and(|value| *value == format!("Bearer {key}"))
}

async fn jwks(State(earnest): State<Earnest>) -> Json<Jwks> {
    earnest.books(|books| books.key_fetches += 1);
    Json(earnest.jwks())
}

/// The same id gives the same voucher; a released purchase leaves its id free.
async fn authorize(
    State(earnest): State<Earnest>,
    headers: HeaderMap,
    Json(request): Json<AuthorizeRequest>,
) -> Response {
    assert!(bearer(&headers, AGENT_KEY), "the agent's key");
    let id = request.request_id.clone().unwrap();
    assert_eq!(headers["idempotency-key"], *id);
    let scripted = earnest.books(|books| {
        books.authorizes.push(request.clone());
        books.scripted.pop_front()
    });
    if let Some((status, body)) = scripted {
        return (status, [("retry-after", "0")], Json(body)).into_response();
    }
    let quote = request.quote.read(Micros::MAX).unwrap();
    let known = earnest.books(|books| {
        let known = books.purchases.get(&id).cloned();
        known.filter(|purchase| !books.released.contains(&purchase.id))
    });
    let purchase = known.unwrap_or_else(|| {
        let claims = earnest.claims_of(&quote);
        Purchase { id: claims.sub, voucher: earnest.sign(&claims) }
    });
    earnest.books(|books| books.purchases.insert(id, purchase.clone()));
    let answer = Authorized {
        purchase: purchase.id,
        voucher: purchase.voucher,
        expires_at: Timestamp::now(),
        amount_micros: quote.price.most(),
        currency: Currency::Usd,
    };
    (StatusCode::CREATED, Json(answer)).into_response()
}

async fn report(
    State(earnest): State<Earnest>,
    headers: HeaderMap,
    Json(batch): Json<ReportBatch>,
) -> Response {
    assert!(bearer(&headers, SELLER_KEY), "the seller's key");
    assert!((1..=500).contains(&batch.reports.len()));
    let keys = KeySet::new(&earnest.jwks());
    earnest.books(|books| {
        books.report_batches.push(batch.reports.len());
        if let Some(status) = books.report_faults.pop_front() {
            return status.into_response();
        }
        let is =
            |marked: &Option<String>, report: &Report| marked.as_ref() == Some(&report.voucher);
        if batch.reports.iter().any(|report| is(&books.poison, report)) {
            return StatusCode::BAD_REQUEST.into_response();
        }
        let results = batch.reports.iter().map(|report| {
            let claims = voucher::read(&report.voucher, &keys, Timestamp::now()).unwrap();
            assert!(report.claimed_at.as_second() <= claims.exp);
            books.reports.push(report.clone());
            let outcome = if is(&books.reject, report) {
                ReportOutcome::Rejected
            } else if is(&books.again, report) {
                ReportOutcome::Again
            } else {
                book(books, report, &claims)
            };
            ReportResult {
                jti: Some(claims.jti),
                purchase: Some(claims.sub),
                outcome,
                code: None,
                amount_micros: None,
            }
        });
        let results = results.collect();
        Json(ReportAnswer { epoch: books.epoch.clone(), results }).into_response()
    })
}

fn book(books: &mut Books, report: &Report, claims: &Claims) -> ReportOutcome {
    match report.fate {
        Fate::Serving => ReportOutcome::Serving,
        _ if books.billed.contains_key(&claims.sub) => ReportOutcome::AlreadyBilled,
        Fate::Failed => {
            books.released.push(claims.sub);
            ReportOutcome::Released
        }
        Fate::Redeemed => {
            let amount = report.amount_micros.unwrap_or(claims.amount_micros);
            assert!(amount <= claims.amount_micros);
            books.billed.insert(claims.sub, amount);
            ReportOutcome::Billed
        }
    }
}

/// The seller's id.
pub fn seller_id() -> SellerId {
    SELLER.parse().unwrap()
}
