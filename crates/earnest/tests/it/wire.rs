//! Requests that no client would send, byte by byte; and what the books say afterwards.

use std::net::SocketAddr;
use std::time::Duration;

use reqwest::Method;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::world::{Answer, World};

/// The longest any answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends bytes as they are and reads what comes back until the connection ends; `None` when it ends
/// without an answer.
pub async fn raw(address: SocketAddr, bytes: &[u8]) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The other side may have seen enough and be gone before all was written.
    let _ = stream.write_all(bytes).await;
    read(&mut stream).await
}

/// Reads one answer.
pub async fn read(stream: &mut TcpStream) -> Option<Answer> {
    let mut all = Vec::new();
    let reading = async {
        let mut chunk = [0; 16 * 1024];
        loop {
            match stream.read(&mut chunk).await {
                Ok(0) | Err(_) => return,
                Ok(n) => all.extend_from_slice(&chunk[..n]),
            }
            if answer(&all).is_some_and(|(_, whole)| whole) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("an answer in time");
    answer(&all).map(|(answer, _)| answer)
}

/// The answer in some bytes, and whether all of it is there.
fn answer(bytes: &[u8]) -> Option<(Answer, bool)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().unwrap();
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(':').unwrap();
        let name: HeaderName = name.parse().unwrap();
        headers.append(name, HeaderValue::from_str(value.trim()).unwrap());
    }
    let body = &bytes[end + 4..];
    let length = headers.get("content-length");
    let length = length.and_then(|length| length.to_str().unwrap().parse::<usize>().ok());
    let whole = length.is_none_or(|length| body.len() >= length);
    let json = serde_json::from_slice(body);
    let text = || Value::String(String::from_utf8_lossy(body).into());
    let body_json = json.unwrap_or_else(|_| text());
    Some((Answer { status, headers, body: body_json, bytes: body.to_vec() }, whole))
}

impl World {
    /// A request as a role with a body as it is, and headers of its own.
    pub async fn send(
        &self,
        role: &str,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Vec<u8>>,
    ) -> Answer {
        let mut request =
            self.http.request(method.clone(), format!("{}{path}", self.earnest.url()));
        if !role.is_empty() {
            let key = if role.starts_with("ek_") { role.to_owned() } else { self.key(role) };
            request = request.bearer_auth(key);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body: Vec<u8> = body.into();
        if !body.is_empty() || !headers.is_empty() {
            request = request.body(body);
        }
        let answer = crate::world::answer(request).await;
        let status = answer.status.as_u16();
        crate::openapi::check(&method, path, status, &answer.headers, &answer.bytes);
        answer
    }

    /// The same with the content type of JSON.
    pub async fn json(
        &self,
        role: &str,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Vec<u8>>,
    ) -> Answer {
        let all = [&[("content-type", "application/json")], headers].concat();
        self.send(role, method, path, &all, body).await
    }

    /// How far the log of units goes.
    pub fn mark(&self) -> u64 {
        self.earnest.app.store.reader().head().unwrap().seq
    }

    /// The units recorded since a mark; those that only keep a webhook, which come when they come,
    /// left out.
    pub fn recorded_since(&self, mark: u64) -> Vec<String> {
        let log = self.earnest.app.store.reader().log(mark, 10_000).unwrap();
        let names = log.into_iter().map(|row| row.entry.name.into_owned());
        names.filter(|name| name != "webhook.keep").collect()
    }

    /// Asserts that nothing at all was recorded since a mark.
    #[track_caller]
    pub fn assert_untouched(&self, mark: u64, what: &str) {
        let since = self.recorded_since(mark);
        assert!(since.is_empty(), "{what} recorded {since:?}");
    }

    /// How often PayPal was called; fetching the certificate of a webhook does not count.
    pub fn paypal_calls(&self) -> usize {
        let journal = self.sim().journal();
        journal.iter().filter(|entry| !entry.path.contains("/certs/")).count()
    }

    /// Every account with its four totals: the money side of the books.
    pub fn money(&self) -> String {
        let reader = self.earnest.app.store.reader();
        let accounts = reader.accounts("USD ", None, 10_000).unwrap();
        let rows = accounts.iter().map(|row| format!("{} {:?}\n", row.id, row.totals));
        rows.collect()
    }
}
