//! Signing a browser in with a link, and out again.
//!
//! Opening a link changes nothing, since chats and mail programs open links before people do: it
//! shows one button, and only the form behind it uses the link. That form counts from the browser
//! that was shown it, so nobody is signed in by somebody else's page.

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use earnest_core::id::{ApprovalId, OwnerId};
use earnest_core::party::Owner;
use earnest_core::sign_in::link_gone;
use http::{HeaderMap, StatusCode, header};
use serde::Deserialize;

use super::{Address, Fields, Frame, SignedIn, foreign, render, see_other};
use crate::api::cookie::{Cookie, Form};
use crate::api::error::ApiResult;
use crate::api::read::Query;
use crate::app::App;
use crate::flow::approval::find;
use crate::flow::sign_in as flow;
use crate::source::random_token;

/// How long the form of a link counts, in seconds; the link itself ends sooner.
const FORM_SECONDS: i64 = 900;

#[derive(Deserialize)]
pub(super) struct Link {
    #[serde(default)]
    token: String,
}

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage {
    frame: Frame,
    /// Whom the link signs in.
    name: String,
    token: String,
    proof: String,
}

#[derive(Template)]
#[template(path = "signed_out.html")]
struct SignedOutPage {
    frame: Frame,
    title: &'static str,
    detail: String,
}

/// The page of a link: whom it signs in, and a button.
pub(super) async fn page(
    State(app): State<App>,
    Address(address): Address,
    Query(link): Query<Link>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    if link.token.is_empty() {
        return hint(&app);
    }
    let now = app.now();
    app.attempts.begin(address, now)?;
    let known = flow::look(&app, &link.token)?.filter(|link| link.is_open(now));
    let owner = known.map(|link| app.store.reader().row::<Owner>(link.owner)).transpose()?;
    let owner = owner.flatten().ok_or_else(link_gone)?;
    app.attempts.forgive(address);
    let browser = Cookie::Form.read(&app, &headers).unwrap_or_else(random_token);
    let page = LoginPage {
        frame: Frame::new(&app),
        name: owner.name,
        token: link.token,
        proof: Form::of(&browser).text().to_owned(),
    };
    let cookie = [(header::SET_COOKIE, Cookie::Form.set(&app, &browser, FORM_SECONDS))];
    let response = (cookie, render(StatusCode::OK, &page)?);
    Ok(response.into_response())
}

/// Uses a link: the browser is signed in, under a new cookie.
pub(super) async fn sign_in(
    State(app): State<App>,
    Address(address): Address,
    headers: HeaderMap,
    fields: Fields,
) -> ApiResult<Response> {
    let browser = Cookie::Form.read(&app, &headers).ok_or_else(foreign)?;
    fields.prove(&Form::of(&browser))?;
    app.attempts.begin(address, app.now())?;
    let made = flow::use_link(&app, fields.one("token"), &browser).await?;
    app.attempts.forgive(address);
    // Whoever was signed in here before is not any more.
    if let Some(before) = Cookie::SignIn.read(&app, &headers)
        && let Some(before) = flow::find(&app, &before).await?
    {
        flow::end(&app, before.owner, Some(before.hash)).await?;
    }
    let cookie = Cookie::SignIn.set(&app, &made.cookie, app.settings.sign_in_most_seconds);
    let mut response = see_other(&place(&app, &headers, made.row.owner));
    response.headers_mut().append(header::SET_COOKIE, cookie);
    response.headers_mut().append(header::SET_COOKIE, Cookie::Next.set(&app, "", 0));
    Ok(response)
}

/// Where a browser goes once it is signed in: to the question that it asked for before, if that is
/// its owner's. What a cookie holds is no address, only the id of a question: it leads nowhere else.
fn place(app: &App, headers: &HeaderMap, owner: OwnerId) -> String {
    let asked = Cookie::Next.read(app, headers).and_then(|id| id.parse::<ApprovalId>().ok());
    let asked = asked.and_then(|id| find(app, owner, id).ok());
    asked.map_or_else(|| "/approvals".to_owned(), |row| format!("/approvals/{}", row.id))
}

/// Ends this browser's sign-in, or all of the owner's.
pub(super) async fn sign_out(
    State(app): State<App>,
    signed_in: SignedIn,
    fields: Fields,
) -> ApiResult<Response> {
    fields.prove(&signed_in.form)?;
    let everywhere = !fields.one("everywhere").is_empty();
    let one = (!everywhere).then(|| signed_in.row.hash.clone());
    let ended = flow::end(&app, signed_in.owner.id, one).await?;
    let page = SignedOutPage {
        frame: Frame::new(&app),
        title: "Signed out",
        detail: match everywhere {
            true => format!("{ended} signed-in browsers were ended, and links that were out too."),
            false => "This browser is no longer signed in.".to_owned(),
        },
    };
    let cookie = [(header::SET_COOKIE, Cookie::SignIn.set(&app, "", 0))];
    Ok((cookie, render(StatusCode::OK, &page)?).into_response())
}

/// How to sign in, for who opens the address without a link.
fn hint(app: &App) -> ApiResult<Response> {
    let page = SignedOutPage {
        frame: Frame::new(app),
        title: "Sign in",
        detail: "A sign-in link opens this page.".to_owned(),
    };
    render(StatusCode::OK, &page)
}
