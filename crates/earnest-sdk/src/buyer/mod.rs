//! A buyer: pays for what it asked for, within a maximum, once.
//!
//! A request is sent as it is. Only an answer 402 *with* a `Tab` challenge is paid, and only if its
//! quote is for exactly that request (method, URL, body) and within the maximum. Earnest decides;
//! the voucher goes to the origin that was asked and nowhere else: redirects are never followed.
//!
//! One `request_id` names one thing to buy. Sending the same request again, or another with the
//! same id, never charges twice.

mod answer;
mod error;
mod request;

use std::time::Duration;

use earnest_core::authorize::{ApprovalNeeded, AuthorizeRequest, Authorized};
use earnest_core::money::{AmountInput, Micros};
use earnest_core::problem::Code;
use earnest_core::quote::QuoteBody;
use http::{Method, StatusCode};
use serde::Deserialize;
use tokio::time::Instant;
use url::Url;

pub use self::answer::{Answer, AnswerStream, Asked, PaidFor};
pub use self::error::{BuyError, Payment};
pub use self::request::BuyRequest;
use crate::problem::Problem;
use crate::seller::read_price;
use crate::setup::{
    Secret, SetupError, base_url, earnest_client, install_tls, join, own_base_url, read_answer,
};

/// How often a call to Earnest is repeated when nobody answered. Safe: the id stays the same.
const ATTEMPTS: u32 = 3;
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// The longest a repeat waits, whatever `Retry-After` says.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// What to do when the owner has to answer first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnApproval {
    /// Return [`BuyError::ApprovalNeeded`] at once.
    #[default]
    Return,
    /// Ask again, as often as Earnest suggests, for at most this long; then return it.
    Wait(Duration),
}

/// Begins a buyer. It takes the *builder* of an HTTP client, not a client, because redirects must
/// be switched off: a voucher is a credential, and it may not follow one to another host.
///
/// ```no_run
/// # async fn buy() -> Result<(), Box<dyn std::error::Error>> {
/// let buyer = earnest_sdk::wrap(reqwest::Client::builder())
///     .earnest_url("http://127.0.0.1:4020")
///     .agent_key(&std::fs::read_to_string("agent.key")?)
///     .max_price("$0.25")
///     .build()?;
/// let answer = buyer.get("https://api.example/weather").request_id("weather-1").send().await?;
/// println!("{} paid with {:?}", answer.status(), answer.receipt());
/// # Ok(())
/// # }
/// ```
pub fn wrap(client: reqwest::ClientBuilder) -> BuyerBuilder {
    BuyerBuilder {
        client,
        earnest_url: String::new(),
        agent_key: String::new(),
        max_price: String::new(),
        on_approval: OnApproval::Return,
        loopback_http: true,
        own_earnest: false,
    }
}

/// Collects the settings of a [`Buyer`]; [`BuyerBuilder::build`] checks them.
#[must_use]
pub struct BuyerBuilder {
    client: reqwest::ClientBuilder,
    earnest_url: String,
    agent_key: String,
    max_price: String,
    on_approval: OnApproval,
    loopback_http: bool,
    own_earnest: bool,
}

impl BuyerBuilder {
    /// The Earnest that holds the owner's money. Required.
    pub fn earnest_url(mut self, url: &str) -> Self {
        url.clone_into(&mut self.earnest_url);
        self
    }

    /// `ek_agent_…`. Required. White space around it, such as the line end of a file, is left out.
    pub fn agent_key(mut self, key: &str) -> Self {
        key.trim().clone_into(&mut self.agent_key);
        self
    }

    /// The most one purchase may cost, such as `"$0.25"`. Required; one request may name another.
    pub fn max_price(mut self, price: &str) -> Self {
        price.clone_into(&mut self.max_price);
        self
    }

    /// What to do when the owner has to answer first; returns the question by default.
    pub const fn on_approval(mut self, on_approval: OnApproval) -> Self {
        self.on_approval = on_approval;
        self
    }

    /// Whether plain `http` to this very machine may be paid; it may by default. To any other
    /// machine it never may (`insecure_resource`).
    pub const fn loopback_http(mut self, allowed: bool) -> Self {
        self.loopback_http = allowed;
        self
    }

    /// Whether Earnest runs in this very process: then it is asked where it listens, be it over plain
    /// `http`, and past any proxy of the environment, which would see the agent's key.
    pub const fn own_earnest(mut self, own: bool) -> Self {
        self.own_earnest = own;
        self
    }

    /// The buyer.
    ///
    /// # Errors
    /// [`SetupError`] naming the setting.
    pub fn build(self) -> Result<Buyer, SetupError> {
        install_tls();
        let read = if self.own_earnest { own_base_url } else { base_url };
        let earnest = read("earnest_url", &self.earnest_url)?;
        let client = self.client.redirect(reqwest::redirect::Policy::none()).referer(false);
        Ok(Buyer(std::sync::Arc::new(Inner {
            client: client.build()?,
            earnest_client: earnest_client(&earnest, self.own_earnest)?,
            earnest,
            agent_key: Secret::read("agent_key", &self.agent_key)?,
            max_price: read_price(&self.max_price)?,
            on_approval: self.on_approval,
            loopback_http: self.loopback_http,
        })))
    }
}

/// Buys over HTTP. Cheap to clone.
#[derive(Clone)]
pub struct Buyer(std::sync::Arc<Inner>);

struct Inner {
    client: reqwest::Client,
    earnest_client: reqwest::Client,
    earnest: Url,
    agent_key: Secret,
    max_price: Micros,
    on_approval: OnApproval,
    loopback_http: bool,
}

impl std::fmt::Debug for Buyer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buyer")
            .field("earnest", &self.0.earnest.as_str())
            .field("max_price", &self.0.max_price)
            .finish_non_exhaustive()
    }
}

/// What Earnest said to a quote.
enum Decision {
    Granted(Authorized),
    Waits(ApprovalNeeded),
    /// The quote ran out, for instance while an owner thought about it: a fresh one is needed.
    QuoteExpired(Box<Problem>),
}

/// A success of `POST /v1/authorize`. A repeat of something bought before may come without a
/// voucher.
#[derive(Deserialize)]
#[serde(untagged)]
enum Success {
    Voucher(Authorized),
    Bought { purchase: earnest_core::id::PurchaseId },
}

impl Buyer {
    /// A GET.
    pub fn get(&self, url: &str) -> BuyRequest {
        self.request(Method::GET, url)
    }

    /// A POST.
    pub fn post(&self, url: &str) -> BuyRequest {
        self.request(Method::POST, url)
    }

    /// Any request. It gets a `request_id` of its own, once; [`BuyRequest::request_id`] gives it a
    /// better one.
    pub fn request(&self, method: Method, url: &str) -> BuyRequest {
        BuyRequest::new(self.clone(), method, url)
    }

    /// Asks Earnest for a voucher. Repeated with the same id when nobody answered or the first is
    /// still running.
    async fn authorize(
        &self,
        quote: QuoteBody,
        max_price: Micros,
        request_id: &str,
    ) -> Result<Decision, BuyError> {
        let body = AuthorizeRequest {
            quote,
            max_price: AmountInput::of(max_price),
            request_id: Some(request_id.to_owned()),
        };
        let (mut wait, mut attempts) = (FIRST_WAIT, 0_u32);
        loop {
            attempts = attempts.saturating_add(1);
            let failure = match self.authorize_once(&body, request_id).await {
                Ok(decision) => return Ok(decision),
                Err(failure) => failure,
            };
            if !failure.repeatable || attempts >= ATTEMPTS {
                return Err(failure.error);
            }
            tokio::time::sleep(failure.wait.unwrap_or(wait).min(LONGEST_WAIT)).await;
            wait = wait.saturating_mul(2);
        }
    }

    async fn authorize_once(
        &self,
        body: &AuthorizeRequest,
        request_id: &str,
    ) -> Result<Decision, Failure> {
        let unreachable = |why: String| Failure {
            repeatable: true,
            wait: None,
            error: BuyError::EarnestUnreachable { request_id: request_id.to_owned(), why },
        };
        let request = self
            .0
            .earnest_client
            .post(join(&self.0.earnest, "/v1/authorize"))
            .bearer_auth(self.0.agent_key.expose())
            .header("idempotency-key", request_id)
            .json(body);
        let response =
            request.send().await.map_err(|e| unreachable(e.without_url().to_string()))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = read_answer(response).await.map_err(|e| unreachable(e.to_string()))?;
        let read_error = |e: serde_json::Error| unreachable(format!("unreadable answer: {e}"));
        match status {
            StatusCode::OK | StatusCode::CREATED => {
                match serde_json::from_slice(&bytes).map_err(read_error)? {
                    Success::Voucher(voucher) => Ok(Decision::Granted(voucher)),
                    Success::Bought { purchase } => Err(Failure::last(BuyError::AlreadyUsed {
                        request_id: request_id.to_owned(),
                        purchase: Some(purchase),
                    })),
                }
            }
            StatusCode::ACCEPTED => {
                Ok(Decision::Waits(serde_json::from_slice(&bytes).map_err(read_error)?))
            }
            _ => refused(Problem::read(status, &headers, &bytes), request_id),
        }
    }
}

/// One attempt that failed.
struct Failure {
    repeatable: bool,
    wait: Option<Duration>,
    error: BuyError,
}

impl Failure {
    const fn last(error: BuyError) -> Self {
        Self { repeatable: false, wait: None, error }
    }
}

fn refused(problem: Problem, request_id: &str) -> Result<Decision, Failure> {
    let problem = Box::new(problem);
    let request_id = request_id.to_owned();
    let wait = problem.retry_after_seconds.map(Duration::from_secs);
    let error = match problem.known_code() {
        Some(Code::QuoteExpired) => return Ok(Decision::QuoteExpired(problem)),
        Some(Code::PaymentOutcomeUnknown) => {
            return Err(Failure::last(BuyError::OutcomeUnknown { request_id, problem }));
        }
        Some(Code::PolicyDenied | Code::ApprovalDenied) => BuyError::Denied { request_id, problem },
        _ => BuyError::Refused { request_id, problem },
    };
    let repeatable = match &error {
        BuyError::Refused { problem, .. } => problem.retryable || problem.status >= 500,
        _ => false,
    };
    Err(Failure { repeatable, wait, error })
}

/// When to stop asking for an approval.
struct Patience {
    until: Option<Instant>,
}

impl Patience {
    fn new(on_approval: OnApproval) -> Self {
        let until = match on_approval {
            OnApproval::Return => None,
            OnApproval::Wait(time) => Instant::now().checked_add(time),
        };
        Self { until }
    }

    /// Waits as long as Earnest suggests; `false` when that is past the end of our patience.
    async fn wait(&self, seconds: i64) -> bool {
        let pause = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        match (self.until, Instant::now().checked_add(pause.max(FIRST_WAIT))) {
            (Some(until), Some(next)) if next <= until => {
                tokio::time::sleep_until(next).await;
                true
            }
            _ => false,
        }
    }
}
