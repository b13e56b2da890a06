//! The pages a payer sees: approve or cancel an order or the saving of a wallet.

use std::fmt::Write as _;

use bytes::Bytes;
use http::{HeaderValue, Method, Response};
use http_body_util::Full;

use crate::call::Request;
use crate::control;
use crate::server::plain;
use crate::sim::Shared;
use crate::world::{OrderStatus, SetupStatus};

/// Whether a path is one of the payer's pages.
pub(crate) fn is_page(path: &str) -> bool {
    matches!(path, "/checkoutnow" | "/agreements/approve")
}

/// Shows a page, or carries out the button that was pressed on it.
pub(crate) async fn handle(shared: &Shared, request: &Request) -> Response<Full<Bytes>> {
    let name = if request.path == "/checkoutnow" { "token" } else { "approval_session_id" };
    let token = request.parameter(name).unwrap_or_default();
    match request.method {
        Method::GET => show(shared, &token, None),
        Method::POST => {
            let response = press(shared, request, &token);
            shared.deliver_before_answer().await;
            response
        }
        _ => page(405, "Not here", "<p>This page is for reading and pressing.</p>"),
    }
}

fn press(shared: &Shared, request: &Request, token: &str) -> Response<Full<Bytes>> {
    let form: Vec<(String, String)> = url::form_urlencoded::parse(&request.body)
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .collect();
    let field = |name: &str| {
        form.iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.trim())
            .filter(|value| !value.is_empty())
    };
    let result = match field("action") {
        Some("approve") => control::approve(shared, token, field("email")),
        Some("cancel") => control::cancel(shared, token),
        _ => return show(shared, token, Some("Press one of the two buttons.")),
    };
    match result {
        Ok(Some(url)) => redirect(&url),
        Ok(None) => page(
            200,
            "Done",
            "<p>The merchant named no page to return to. You can close this one.</p>",
        ),
        Err(error) => show(shared, token, Some(&error.to_string())),
    }
}

fn redirect(url: &str) -> Response<Full<Bytes>> {
    let mut response = plain(303, "text/plain; charset=utf-8", Bytes::new());
    if let Ok(value) = HeaderValue::from_str(url) {
        response.headers_mut().insert(http::header::LOCATION, value);
    }
    response
}

/// What the payer is asked.
struct Question {
    title: &'static str,
    lines: Vec<String>,
    waits: bool,
    email: String,
}

fn question(shared: &Shared, token: &str) -> Option<Question> {
    let now = shared.clock.now();
    let mut world = shared.world();
    world.tick(now);
    let email = world.config.buyer.email.clone();
    if let Some(order) = world.orders.get(token) {
        let lines = order
            .units
            .iter()
            .map(|unit| match unit.text("description") {
                Some(text) => format!("{} — {text}", unit.amount),
                None => unit.amount.to_string(),
            })
            .collect();
        return Some(Question {
            title: "Pay with simulated PayPal",
            lines,
            waits: matches!(order.status, OrderStatus::Created | OrderStatus::PayerActionRequired),
            email,
        });
    }
    let setup = world.setup_tokens.get(token)?;
    let description = setup
        .wallet
        .get("description")
        .and_then(serde_json::Value::as_str)
        .unwrap_or("The merchant may charge this wallet later.");
    Some(Question {
        title: "Save simulated PayPal for later",
        lines: vec![description.to_owned()],
        waits: setup.status == SetupStatus::PayerActionRequired,
        email,
    })
}

fn show(shared: &Shared, token: &str, problem: Option<&str>) -> Response<Full<Bytes>> {
    let Some(question) = question(shared, token) else {
        let text = "<p>This link has run out or was never good.</p>";
        return page(404, "Nothing to approve", text);
    };
    let mut html = String::new();
    for line in &question.lines {
        // Writing to a string cannot fail.
        let _ = write!(html, "<p>{}</p>", escaped(line));
    }
    if let Some(problem) = problem {
        let _ = write!(html, "<p role=\"alert\">{}</p>", escaped(problem));
    }
    if question.waits {
        let _ = write!(
            html,
            "<form method=\"post\">\
             <p><label>Log in as <input name=\"email\" type=\"email\" value=\"{}\"></label></p>\
             <p><button name=\"action\" value=\"approve\">Approve</button> \
             <button name=\"action\" value=\"cancel\">Cancel</button></p></form>",
            escaped(&question.email)
        );
    } else {
        html.push_str("<p>Already decided. You can close this page.</p>");
    }
    let status = if problem.is_some() { 409 } else { 200 };
    page(status, question.title, &html)
}

fn page(status: u16, title: &str, body: &str) -> Response<Full<Bytes>> {
    let html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\
         <body><main><h1>{title}</h1><p><strong>Simulated money.</strong></p>{body}</main></body></html>"
    );
    plain(status, "text/html; charset=utf-8", html)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
