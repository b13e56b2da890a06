//! The public HTTP API as the commands use it: where Earnest is, whose key is sent, what came back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use earnest_core::problem::{Code, LocalCode, Refusal};
use earnest_core::quote::{canonical_url, is_loopback};
use http::{HeaderMap, Method};
use serde_json::Value;
use url::Url;
use zeroize::Zeroizing;

use super::failure::Failure;
use crate::config::read_secret;
use crate::first::DevKeys;
use crate::source::random_bytes;

/// Where an Earnest is looked for unless told.
const DEFAULT_URL: &str = "http://127.0.0.1:4020";
/// Longer than Earnest waits for PayPal.
const ANSWER_WITHIN: Duration = Duration::from_secs(90);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// The most rows that are asked for at once.
const PAGE: usize = 500;

/// Which Earnest, and as whom.
#[derive(Clone, Debug, Default, Args)]
pub struct Reach {
    /// Where Earnest is [default: http://127.0.0.1:4020].
    #[arg(
        id = "earnest_url",
        long = "url",
        global = true,
        env = "EARNEST_URL",
        value_name = "URL"
    )]
    pub url: Option<String>,
    /// Where its books are, if on this machine: development keys are read there
    /// [default: ./earnest-data].
    #[arg(
        id = "earnest_data",
        long = "data",
        global = true,
        env = "EARNEST_DATA",
        value_name = "FOLDER"
    )]
    pub data: Option<PathBuf>,
    /// Ask with the key of this role instead of the usual one.
    #[arg(id = "earnest_role", long = "as", global = true, value_name = "ROLE")]
    pub role: Option<Role>,
}

impl Reach {
    /// The base URL.
    pub fn url(&self) -> &str {
        self.url.as_deref().unwrap_or(DEFAULT_URL)
    }

    /// The folder of the books.
    pub fn data(&self) -> PathBuf {
        self.data.clone().unwrap_or_else(|| PathBuf::from(crate::config::DATA_DIR))
    }
}

/// Whose key is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Whoever runs this Earnest.
    Operator,
    /// Whose money it is.
    Owner,
    /// Who buys.
    Agent,
    /// Who is paid.
    Seller,
}

impl Role {
    /// The role as settings name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Owner => "owner",
            Self::Agent => "agent",
            Self::Seller => "seller",
        }
    }
}

/// An answer that is a success.
pub struct Answer {
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// The body as JSON; null when there is none.
    ///
    /// # Errors
    /// When it is something else.
    pub fn json(&self) -> Result<Value, Failure> {
        if self.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&self.body).map_err(|why| {
            Failure::local(LocalCode::NotEarnest, 8, format!("unreadable answer: {why}"))
        })
    }

    /// A header as text.
    pub fn header(&self, name: &str) -> Option<String> {
        self.headers.get(name)?.to_str().ok().map(str::to_owned)
    }
}

/// Rows of a list, and whether there are more.
pub struct Listing {
    /// In the order of the API.
    pub rows: Vec<Value>,
    /// Whether the list goes on.
    pub more: bool,
}

/// Asks an Earnest.
pub struct Client {
    http: reqwest::Client,
    base: Url,
    data: PathBuf,
    role: Option<Role>,
}

/// A request to be sent.
pub struct Call<'a> {
    client: &'a Client,
    role: Option<Role>,
    method: Method,
    path: String,
    query: Vec<(&'static str, String)>,
    headers: Vec<(&'static str, String)>,
    body: Option<Value>,
}

impl Client {
    /// A client for an Earnest; nothing is sent yet.
    ///
    /// # Errors
    /// `usage` when the URL is none, or would show a key to everybody in between.
    pub fn new(reach: &Reach) -> Result<Self, Failure> {
        let wrong = |why: &str| Failure::usage(format!("--url: {why}"));
        let mut base = canonical_url(reach.url()).map_err(|refusal| wrong(&refusal.detail))?;
        if base.query().is_some() {
            return Err(wrong("a base URL has no query"));
        }
        if base.scheme() != "https" && !is_loopback(&base) {
            return Err(wrong("plain http is only allowed to this machine, use https"));
        }
        let path = base.path().trim_end_matches('/').to_owned();
        base.set_path(&path);
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_WITHIN)
            .timeout(ANSWER_WITHIN);
        if is_loopback(&base) {
            builder = builder.no_proxy();
        }
        let http = builder.build();
        let http =
            http.map_err(|why| Failure::local(LocalCode::SetupFailed, 1, why.to_string()))?;
        Ok(Self { http, base, data: reach.data(), role: reach.role })
    }

    /// The base URL, without a slash at the end.
    pub fn base(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// The key of a role, from `EARNEST_<ROLE>_KEY_FILE`, `EARNEST_<ROLE>_KEY`, or, for an Earnest
    /// on this machine, the development keys.
    ///
    /// # Errors
    /// `unauthenticated` when there is none; the file, when it cannot be read.
    pub fn key(&self, role: Role) -> Result<Zeroizing<String>, Failure> {
        let role = self.role.unwrap_or(role);
        if let Some(key) = key_of_environment(role)? {
            if key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Ok(key);
            }
            let why = format!("the {} key holds white space or odd characters", role.as_str());
            return Err(Refusal::new(Code::Unauthenticated, why).into());
        }
        if is_loopback(&self.base)
            && let Some(key) = key_of_development(&self.data, role)?
        {
            return Ok(key);
        }
        let name = role.as_str().to_ascii_uppercase();
        let mut step = format!("set EARNEST_{name}_KEY_FILE to a file that holds the key");
        if is_loopback(&self.base) {
            step.push_str("; or run it in the folder of earnest up, or name its books with --data");
        }
        let first = self.data.join("operator.key");
        if role == Role::Operator && first.is_file() {
            step = format!("EARNEST_OPERATOR_KEY_FILE={}", first.display());
        }
        let why = format!(
            "there is no {} key: EARNEST_{name}_KEY_FILE and EARNEST_{name}_KEY are not set, and \
             there is no `{}`",
            role.as_str(),
            self.data.join("dev-keys.json").display()
        );
        Err(Failure::from(Refusal::new(Code::Unauthenticated, why)).next(step))
    }

    /// The first of some roles whose key is at hand; the last where none is.
    pub fn first_of(&self, roles: &[Role]) -> Role {
        let found = roles.iter().find(|role| self.key(**role).is_ok());
        found.or(roles.last()).copied().unwrap_or(Role::Owner)
    }

    /// Begins a request.
    pub fn call(&self, role: Role, method: Method, path: impl Into<String>) -> Call<'_> {
        Call {
            client: self,
            role: Some(role),
            method,
            path: path.into(),
            query: Vec::new(),
            headers: Vec::new(),
            body: None,
        }
    }

    /// Reads something.
    ///
    /// # Errors
    /// What Earnest answers.
    pub async fn get(&self, role: Role, path: impl Into<String>) -> Result<Value, Failure> {
        self.call(role, Method::GET, path).send().await?.json()
    }

    /// Reads something that needs no key.
    ///
    /// # Errors
    /// What Earnest answers.
    pub async fn get_public(&self, path: impl Into<String>) -> Result<Value, Failure> {
        self.call_public(Method::GET, path).send().await?.json()
    }

    /// Begins a request without a key.
    pub fn call_public(&self, method: Method, path: impl Into<String>) -> Call<'_> {
        Call { role: None, ..self.call(Role::Owner, method, path) }
    }

    /// Asks for something to be done.
    ///
    /// # Errors
    /// What Earnest answers.
    pub async fn post(
        &self,
        role: Role,
        path: impl Into<String>,
        body: Option<Value>,
    ) -> Result<Value, Failure> {
        let call = self.call(role, Method::POST, path);
        Call { body, ..call }.send().await?.json()
    }

    /// The first rows of a list, at most `limit`.
    ///
    /// # Errors
    /// What Earnest answers.
    pub async fn list(
        &self,
        role: Role,
        path: &str,
        query: &[(&'static str, String)],
        limit: usize,
    ) -> Result<Listing, Failure> {
        // One more than is shown tells whether there are more: a full page has a cursor in any case.
        let wanted = limit.saturating_add(1);
        let mut rows = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let left = wanted.saturating_sub(rows.len());
            let mut call = self.call(role, Method::GET, path);
            call.query.extend_from_slice(query);
            call.query.push(("limit", left.min(PAGE).to_string()));
            call.query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
            let page = call.send().await?.json()?;
            let data = page.get("data").and_then(Value::as_array);
            rows.extend(data.into_iter().flatten().cloned());
            cursor = page.get("next_cursor").and_then(Value::as_str).map(str::to_owned);
            if cursor.is_none() || rows.len() >= wanted {
                let more = rows.len() > limit;
                rows.truncate(limit);
                return Ok(Listing { rows, more });
            }
        }
    }

    /// A list as CSV, as Earnest writes it: about `limit` lines, and whether there may be more.
    ///
    /// # Errors
    /// What Earnest answers.
    pub async fn csv(
        &self,
        role: Role,
        path: &str,
        query: &[(&'static str, String)],
        limit: usize,
    ) -> Result<(String, bool), Failure> {
        let (mut text, mut lines) = (String::new(), 0_usize);
        let mut cursor: Option<String> = None;
        loop {
            let left = limit.saturating_sub(lines);
            let mut call = self.call(role, Method::GET, path);
            call.query.extend_from_slice(query);
            call.query.push(("format", "csv".to_owned()));
            call.query.push(("limit", left.clamp(1, PAGE).to_string()));
            call.query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
            let page = call.send().await?;
            let body = String::from_utf8_lossy(&page.body);
            let (head, rest) = body.split_once("\r\n").unwrap_or((&body, ""));
            // A page without rows has no head either.
            if text.is_empty() && !head.is_empty() {
                text = format!("{head}\r\n");
            }
            text.push_str(rest);
            lines = lines.saturating_add(rest.matches("\r\n").count());
            cursor = page.header("next-cursor");
            if cursor.is_none() || lines >= limit {
                return Ok((text, cursor.is_some()));
            }
        }
    }
}

impl Call<'_> {
    /// With this in the query.
    #[must_use]
    pub fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    /// With this JSON body.
    #[must_use]
    pub fn body(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }

    /// Only if it is still as it was read.
    #[must_use]
    pub fn if_match(mut self, etag: &str) -> Self {
        self.headers.push(("if-match", etag.to_owned()));
        self
    }

    /// Under this idempotency key; without one, every command is a wish of its own.
    #[must_use]
    pub fn key(mut self, key: Option<&str>) -> Self {
        self.headers.extend(key.map(|key| ("idempotency-key", key.to_owned())));
        self
    }

    /// Sends it.
    ///
    /// # Errors
    /// What Earnest answers when it is no success; `earnest_unreachable` when nobody does.
    pub async fn send(mut self) -> Result<Answer, Failure> {
        let has_key = self.headers.iter().any(|(name, _)| *name == "idempotency-key");
        if self.method == Method::POST && !has_key {
            let key = format!("cli-{}", hex::encode(random_bytes::<16>()));
            self.headers.push(("idempotency-key", key));
        }
        let client = self.client;
        let url = format!("{}{}", client.base(), self.path);
        let mut request = client.http.request(self.method, url).query(&self.query);
        if let Some(role) = self.role {
            request = request.bearer_auth(client.key(role)?.as_str());
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        if let Some(body) = &self.body {
            request = request.json(body);
        }
        let unreachable = |why: reqwest::Error| {
            let detail = format!("no answer from {}: {}", client.base(), root_cause(&why));
            Failure::local(LocalCode::EarnestUnreachable, 8, detail)
                .next("earnest up, or --url where it runs")
        };
        let response = request.send().await.map_err(unreachable)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await.map_err(unreachable)?.to_vec();
        if !status.is_success() && !status.is_redirection() {
            return Err(Failure::answered(status, &body));
        }
        Ok(Answer { headers, body })
    }
}

/// The innermost reason, which is the one that helps.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

fn key_of_environment(role: Role) -> Result<Option<Zeroizing<String>>, Failure> {
    let name = format!("EARNEST_{}_KEY", role.as_str().to_ascii_uppercase());
    if let Some(path) = std::env::var_os(format!("{name}_FILE")) {
        let key = read_secret(Path::new(&path))?;
        return Ok(Some(Zeroizing::new(key.expose().to_owned())));
    }
    let key = std::env::var(name).ok().filter(|key| !key.is_empty());
    Ok(key.map(|key| Zeroizing::new(key.trim().to_owned())))
}

fn key_of_development(data: &Path, role: Role) -> Result<Option<Zeroizing<String>>, Failure> {
    let path = data.join("dev-keys.json");
    let Ok(text) = std::fs::read_to_string(&path).map(Zeroizing::new) else { return Ok(None) };
    let keys: DevKeys = serde_json::from_str(&text).map_err(|why| Failure::file(&path, why))?;
    let key = match role {
        Role::Operator => keys.operator,
        Role::Owner => keys.owner,
        Role::Agent => keys.agent,
        Role::Seller => keys.seller,
    };
    Ok(Some(Zeroizing::new(key.key.expose().to_owned())))
}

/// An id as it may stand in a path. What cannot be an id names nothing.
///
/// # Errors
/// `not_found`.
pub fn id(text: &str) -> Result<&str, Failure> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !text.is_empty() && text.chars().all(fits) {
        return Ok(text);
    }
    Err(Refusal::new(Code::NotFound, format!("`{text}` is not an id")).into())
}
