//! The HTTP side: connections, bodies, and the one thing a usual framework cannot do: closing a
//! connection without an answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::fmt::rfc2822::DateTimePrinter;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::call::Request;
use crate::sim::Shared;
use crate::{control, pages, pipeline};

/// The largest body that is read.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// How long running calls may take to finish at shutdown.
const GRACE: Duration = Duration::from_secs(5);

/// Makes hyper close the connection instead of answering.
#[derive(Debug)]
struct Dropped;

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection was dropped on purpose")
    }
}

impl std::error::Error for Dropped {}

/// Serves until told to stop.
pub(crate) async fn run(
    listener: TcpListener,
    shared: Arc<Shared>,
    mut stop: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, Arc::clone(&shared), stop.clone()));
                }
                // Out of descriptors, most likely: let some connections end first.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            },
            Some(_) = connections.join_next() => {}
            _ = stop.changed() => break,
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(GRACE, all).await;
}

async fn serve(stream: TcpStream, shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let service = service_fn(|request| answer(request, Arc::clone(&shared)));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => {}
        _ = stop.changed() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

async fn answer(
    request: http::Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Full<Bytes>>, Dropped> {
    let (parts, body) = request.into_parts();
    let Ok(body) = Limited::new(body, MOST_BYTES).collect().await else {
        return Ok(too_large());
    };
    let request = Request {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: parts.headers,
        body: body.to_bytes(),
    };
    // In a task of its own, so that a client who hangs up does not undo what it asked for.
    let work = tokio::spawn(async move { dispatch(shared, request).await });
    match work.await {
        Ok(Some(response)) => Ok(response),
        Ok(None) | Err(_) => Err(Dropped),
    }
}

/// Answers, and says when by the simulator's own clock, as every answer over HTTP does (RFC 9110,
/// section 6.6.1).
async fn dispatch(shared: Arc<Shared>, request: Request) -> pipeline::Reply {
    let mut response = route(Arc::clone(&shared), request).await?;
    let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&shared.clock.now());
    if let Some(date) = date.ok().and_then(|date| http::HeaderValue::from_str(&date).ok()) {
        response.headers_mut().insert(http::header::DATE, date);
    }
    Some(response)
}

async fn route(shared: Arc<Shared>, request: Request) -> pipeline::Reply {
    if request.path.starts_with("/_sim/") {
        return Some(control::handle(&shared, &request).await);
    }
    if pages::is_page(&request.path) {
        return Some(pages::handle(&shared, &request).await);
    }
    pipeline::handle(shared, request).await
}

fn too_large() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(b"{}")));
    *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
    response
}

/// A response of our own control calls and pages.
pub(crate) fn plain(
    status: u16,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}
