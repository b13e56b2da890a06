//! The pages an owner opens on a phone, through HTTP: signing in with a link, and answering
//! questions; what a page must not show, load or do.

use earnest::config::Config;
use futures_util::future::join_all;
use paypal_sim::SimConfig;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::world::{Answer, World, answer};

mod answering;
mod safety;
mod signing;

/// Above what passes without a question (20 cents), under every cap (a dollar a call).
const DEAR: i64 = 250_000;

/// A browser: it keeps cookies, follows no redirect, and says where its forms come from.
pub struct Browser<'a> {
    pub world: &'a World,
    pub cookies: Vec<(String, String)>,
}

/// A page as it came.
pub struct Page {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub html: String,
}

impl Page {
    /// Asserts the status, and shows the page where it differs.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{}", self.html);
        self
    }

    /// The only `<h1>`, without markup.
    #[track_caller]
    pub fn title(&self) -> String {
        let parts: Vec<&str> = self.html.split("<h1>").collect();
        assert_eq!(parts.len(), 2, "one h1: {}", self.html);
        let inner = parts[1].split("</h1>").next().unwrap();
        inner.replace("<bdi>", "").replace("</bdi>", "")
    }

    /// The value of the first field of that name.
    #[track_caller]
    pub fn field(&self, name: &str) -> String {
        let mark = format!("name=\"{name}\" value=\"");
        let found = self.html.split(&mark).nth(1);
        let found = found.unwrap_or_else(|| panic!("no field {name}: {}", self.html));
        found.split('"').next().unwrap().to_owned()
    }
}

impl<'a> Browser<'a> {
    pub fn new(world: &'a World) -> Self {
        Self { world, cookies: Vec::new() }
    }

    /// Signed in as an owner, by role or key.
    pub async fn of(world: &'a World, owner: &str) -> Self {
        let mut browser = Self::new(world);
        let link = login_link(world, owner).await;
        let page = browser.get(&link).await.expect(200);
        let fields = [("form", page.field("form")), ("token", page.field("token"))];
        let fields: Vec<(&str, &str)> = fields.iter().map(|(k, v)| (*k, v.as_str())).collect();
        browser.post("/login", &fields).await.expect(303);
        browser
    }

    async fn send(&mut self, request: reqwest::RequestBuilder) -> Page {
        let cookies: Vec<String> =
            self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let request = match cookies.is_empty() {
            true => request,
            false => request.header("cookie", cookies.join("; ")),
        };
        let answer: Answer = answer(request).await;
        for set in answer.headers.get_all("set-cookie") {
            let pair = set.to_str().unwrap().split(';').next().unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            self.cookies.retain(|(known, _)| known != name);
            if !value.is_empty() {
                self.cookies.push((name.to_owned(), value.to_owned()));
            }
        }
        let html = String::from_utf8(answer.bytes).unwrap();
        Page { status: answer.status, headers: answer.headers, html }
    }

    /// Opens a path, or an address of this Earnest.
    pub async fn get(&mut self, place: &str) -> Page {
        let path = place.strip_prefix(&self.world.earnest.app.public_url).unwrap_or(place);
        let url = format!("{}{path}", self.world.earnest.url());
        self.send(self.world.http.get(url)).await
    }

    /// Sends a form as a page of Earnest's own does: no referrer, so `Origin` is `null`.
    pub async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Page {
        self.post_from(path, fields, &[("origin", "null"), ("sec-fetch-site", "same-origin")]).await
    }

    pub async fn post_from(
        &mut self,
        path: &str,
        fields: &[(&str, &str)],
        headers: &[(&str, &str)],
    ) -> Page {
        let mut request = self.world.http.post(format!("{}{path}", self.world.earnest.url()));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.form(&fields.to_vec())).await
    }

    /// Opens a question and taps a button of its first form.
    pub async fn tap(&mut self, approval: &str, decision: &str) -> Page {
        let path = format!("/approvals/{approval}");
        let page = self.get(&path).await.expect(200);
        let (form, version) = (page.field("form"), page.field("version"));
        let fields = [("form", &*form), ("version", &*version), ("decision", decision)];
        self.post(&path, &fields).await
    }
}

/// A link that signs in, asked for by role or key.
pub async fn login_link(world: &World, owner: &str) -> String {
    let path = "/v1/owners/me/login-links";
    let made = world.call(owner, Method::POST, path, None).await.expect(201);
    made["url"].as_str().unwrap().to_owned()
}

/// A purchase that waits; its approval.
async fn question(world: &World, request_id: &str, amount: i64) -> String {
    let path = format!("/dear-{request_id}");
    let waiting = world.authorize(world.quote(&path, amount), request_id).await.expect(202);
    waiting["approval_id"].as_str().unwrap().to_owned()
}

async fn status_of(world: &World, approval: &str) -> String {
    let row = world.get("owner", &format!("/v1/approvals/{approval}")).await.expect(200);
    row["status"].as_str().unwrap().to_owned()
}

/// Another owner, by key.
pub async fn stranger(world: &World) -> String {
    let owner = world.post("operator", "/v1/owners", json!({ "name": "Stranger" })).await;
    let path = format!("/v1/owners/{}/keys", owner.expect(201)["id"].as_str().unwrap());
    let key = world.post("operator", &path, json!({})).await.expect(201);
    key["key"].as_str().unwrap().to_owned()
}
