//! A PayPal that answers exactly what a test tells it to: one thread of plain HTTP/1.1 on a free
//! loopback port, which can also hang up before or after reading. Keeps every request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use earnest_paypal::{Client, Config, Secret};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use url::Url;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub fn is_token_call(&self) -> bool {
        self.path == "/v1/oauth2/token"
    }
}

/// What to answer.
#[derive(Clone, Debug)]
pub enum Reply {
    Answer {
        status: u16,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
    },
    /// Announces more than it sends, then hangs up.
    CutShort {
        status: u16,
        body: Vec<u8>,
    },
    /// Reads the request and hangs up without a word.
    HangUp,
    /// Reads the request and never answers.
    Stall,
}

pub fn json(status: u16, body: &str) -> Reply {
    Reply::Answer { status, headers: Vec::new(), body: body.as_bytes().to_vec() }
}

pub fn with_header(reply: Reply, name: &str, value: &str) -> Reply {
    match reply {
        Reply::Answer { status, mut headers, body } => {
            headers.push((name.to_owned(), value.to_owned()));
            Reply::Answer { status, headers, body }
        }
        other => other,
    }
}

/// The n-th token: `T1`, `T2`, …
pub fn token(n: usize) -> Reply {
    json(
        200,
        &format!(
            r#"{{"scope":"https://uri.paypal.com/services/payments/refund","access_token":"T{n}","token_type":"Bearer","expires_in":32400}}"#
        ),
    )
}

pub struct Server {
    pub base: Url,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Answers every request with `answer`, which also gets how many came before it (token calls
    /// and others counted apart).
    pub async fn start<F>(answer: F) -> Self
    where
        F: Fn(&Seen, usize) -> Reply + Send + Sync + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (log, answer) = (Arc::clone(&seen), Arc::new(answer));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                tokio::spawn(async move {
                    let _ = serve(stream, &log, answer.as_ref()).await;
                });
            }
        });
        Self { base, seen, task }
    }

    /// A PayPal that gives out tokens and answers everything else with `answer`.
    pub async fn with_tokens<F>(answer: F) -> Self
    where
        F: Fn(&Seen, usize) -> Reply + Send + Sync + 'static,
    {
        Self::start(
            move |seen, n| {
                if seen.is_token_call() { token(n + 1) } else { answer(seen, n) }
            },
        )
        .await
    }

    pub fn config(&self) -> Config {
        Config::simulated(self.base.clone(), "sim", Secret::new("sim"))
    }

    pub fn client(&self) -> Client {
        Client::new(&self.config()).unwrap()
    }

    pub fn token_calls(&self) -> usize {
        self.seen.lock().unwrap().iter().filter(|seen| seen.is_token_call()).count()
    }

    /// Every request but token calls.
    pub fn calls(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().iter().filter(|seen| !seen.is_token_call()).cloned().collect()
    }
}

async fn serve(
    mut stream: TcpStream,
    log: &Mutex<Vec<Seen>>,
    answer: &(dyn Fn(&Seen, usize) -> Reply + Send + Sync),
) -> Option<()> {
    let seen = read(&mut stream).await?;
    let before = {
        let mut log = log.lock().unwrap();
        let alike = |other: &&Seen| other.is_token_call() == seen.is_token_call();
        let before = log.iter().filter(alike).count();
        log.push(seen.clone());
        before
    };
    let (status, headers, body, length) = match answer(&seen, before) {
        Reply::Answer { status, headers, body } => {
            let length = body.len();
            (status, headers, body, length)
        }
        Reply::CutShort { status, body } => {
            let length = body.len() + 100;
            (status, Vec::new(), body, length)
        }
        Reply::HangUp => return None,
        Reply::Stall => {
            // Until the client gives up and closes.
            let mut byte = [0];
            let _ = stream.read(&mut byte).await;
            return None;
        }
    };
    let mut head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\n");
    if status != 204 {
        head.push_str(&format!("content-length: {length}\r\ncontent-type: application/json\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.write_all(&body).await.ok()?;
    stream.shutdown().await.ok()
}

async fn read(stream: &mut TcpStream) -> Option<Seen> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk).await.ok()? {
            0 => return None,
            n => bytes.extend_from_slice(&chunk[..n]),
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).ok()?;
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: BTreeMap<_, _> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers.get("content-length").map_or(Some(0), |n| n.parse().ok())?;
    let mut body = bytes[end + 4..].to_vec();
    while body.len() < length {
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk).await.ok()? {
            0 => return None,
            n => body.extend_from_slice(&chunk[..n]),
        }
    }
    Some(Seen { method, path, headers, body })
}
