//! Earnest's public voucher keys, as a seller holds them.
//!
//! Keys come from `/.well-known/jwks.json` of the configured Earnest and from nowhere else: what a
//! token names (`jku`, `jwk`) is never looked at. Fetched keys are used at once, renewed in the
//! background after five minutes, and no longer trusted after an hour, so that a retired key does
//! not count for ever. An unknown key id is looked up again, at most every ten seconds.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use earnest_core::jws::{Jwk, Jwks, KeySet};
use tokio::time::Instant;
use url::Url;

use crate::setup::{join, read_answer};

const RENEW_AFTER: Duration = Duration::from_secs(5 * 60);
const TRUST_FOR: Duration = Duration::from_secs(60 * 60);
const FETCH_AT_MOST_EVERY: Duration = Duration::from_secs(10);

/// Where a seller takes Earnest's public keys from.
#[derive(Clone, Debug, Default)]
pub enum Keys {
    /// From the configured Earnest, kept fresh.
    #[default]
    Fetched,
    /// These and no others: they must be replaced by hand when Earnest rotates its keys.
    Fixed(Jwks),
}

/// The keys cannot be had, so no voucher can be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeysDown;

/// A key set and when it was read.
type Held = Option<(Arc<KeySet>, Instant)>;

#[derive(Clone)]
pub(crate) enum KeyRing {
    Fixed(Arc<KeySet>),
    Fetched(Arc<Fetched>),
}

pub(crate) struct Fetched {
    client: reqwest::Client,
    url: String,
    held: Mutex<Held>,
    /// When the last attempt was made and whether it succeeded; the lock makes it one at a time.
    attempt: tokio::sync::Mutex<Option<(Instant, bool)>>,
}

impl KeyRing {
    pub(crate) fn new(keys: &Keys, client: reqwest::Client, earnest: &Url) -> Self {
        match keys {
            Keys::Fixed(jwks) => Self::Fixed(Arc::new(KeySet::new(jwks))),
            Keys::Fetched => Self::Fetched(Arc::new(Fetched {
                client,
                url: join(earnest, "/.well-known/jwks.json"),
                held: Mutex::new(None),
                attempt: tokio::sync::Mutex::new(None),
            })),
        }
    }

    /// The keys to judge a voucher by.
    pub(crate) async fn current(&self) -> Result<Arc<KeySet>, KeysDown> {
        let fetched = match self {
            Self::Fixed(keys) => return Ok(Arc::clone(keys)),
            Self::Fetched(fetched) => fetched,
        };
        if let Some((keys, at)) = fetched.held() {
            let age = at.elapsed();
            let idle = fetched.attempt.try_lock().is_ok();
            if age > RENEW_AFTER && age <= TRUST_FOR && idle {
                let renewing = Arc::clone(fetched);
                tokio::spawn(async move { renewing.fetch().await });
            }
            if age <= TRUST_FOR {
                return Ok(keys);
            }
        }
        fetched.fetch().await
    }

    /// The keys again, after a voucher named one that is not among `seen`.
    pub(crate) async fn renewed(&self, seen: &Arc<KeySet>) -> Result<Arc<KeySet>, KeysDown> {
        match self {
            Self::Fixed(keys) => Ok(Arc::clone(keys)),
            Self::Fetched(fetched) => match fetched.held() {
                Some((keys, _)) if !Arc::ptr_eq(&keys, seen) => Ok(keys),
                _ => fetched.fetch().await,
            },
        }
    }
}

impl Fetched {
    fn held(&self) -> Held {
        // A poisoned lock still guards a whole value: it is replaced in one assignment.
        self.held.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// One fetch at a time, and none within ten seconds of the last: its result counts instead.
    async fn fetch(&self) -> Result<Arc<KeySet>, KeysDown> {
        let mut attempt = self.attempt.lock().await;
        if let Some((at, succeeded)) = *attempt
            && at.elapsed() < FETCH_AT_MOST_EVERY
        {
            let held = self.held().filter(|_| succeeded);
            return held.map(|(keys, _)| keys).ok_or(KeysDown);
        }
        let fetched = self.read().await;
        *attempt = Some((Instant::now(), fetched.is_some()));
        let keys = Arc::new(fetched.ok_or(KeysDown)?);
        *self.held.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
            Some((Arc::clone(&keys), Instant::now()));
        Ok(keys)
    }

    async fn read(&self) -> Option<KeySet> {
        let answer = async {
            let response = self.client.get(&self.url).send().await.map_err(|e| e.to_string())?;
            let status = response.status();
            let bytes = read_answer(response).await.map_err(|e| e.to_string())?;
            if !status.is_success() {
                return Err(format!("status {status}"));
            }
            let keys = KeySet::new(&read_jwks(&bytes).map_err(|e| e.to_string())?);
            if keys.is_empty() { Err("no usable key".to_owned()) } else { Ok(keys) }
        };
        answer
            .await
            .inspect_err(|error| tracing::warn!(error, url = self.url, "no voucher keys"))
            .ok()
    }
}

/// Keys of kinds that this version does not know are left out, so that publishing one does not
/// close every seller.
fn read_jwks(bytes: &[u8]) -> Result<Jwks, serde_json::Error> {
    #[derive(serde::Deserialize)]
    struct Set {
        keys: Vec<serde_json::Value>,
    }
    let set: Set = serde_json::from_slice(bytes)?;
    let keys = set.keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
    Ok(Jwks { keys: keys.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use earnest_core::jws::{Purpose, Signer};
    use serde_json::json;

    #[test]
    fn an_unknown_kind_of_key_does_not_hide_the_others() {
        let ours = serde_json::to_value(Signer::new(Purpose::Voucher, &[1; 32]).jwk()).unwrap();
        let set = json!({"keys": [{"kty": "EC", "kid": "x"}, ours]});
        assert_eq!(read_jwks(set.to_string().as_bytes()).unwrap().keys.len(), 1);
        assert!(read_jwks(b"{}").is_err());
    }

    struct Publisher {
        keys: Mutex<Option<Jwks>>,
        fetches: tokio::sync::watch::Sender<u32>,
    }

    async fn publish() -> (Arc<Publisher>, KeyRing) {
        let publisher = Arc::new(Publisher {
            keys: Mutex::new(Some(of(1))),
            fetches: tokio::sync::watch::channel(0).0,
        });
        let serving = Arc::clone(&publisher);
        let handler = move || async move {
            serving.fetches.send_modify(|fetches| *fetches += 1);
            let keys = serving.keys.lock().unwrap().clone();
            keys.map(axum::Json).ok_or(http::StatusCode::BAD_GATEWAY)
        };
        let app = axum::Router::new().route("/.well-known/jwks.json", axum::routing::get(handler));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        let client = crate::setup::earnest_client(&url, false).unwrap();
        (publisher, KeyRing::new(&Keys::Fetched, client, &url))
    }

    fn of(secret: u8) -> Jwks {
        Jwks { keys: vec![Signer::new(Purpose::Voucher, &[secret; 32]).jwk()] }
    }

    fn knows(keys: &KeySet, secret: u8) -> bool {
        let token = Signer::new(Purpose::Voucher, &[secret; 32]).sign(&1).unwrap();
        keys.read::<u8>(Purpose::Voucher, &token).is_ok()
    }

    /// Moves the clock while nothing waits for the network.
    async fn later(time: Duration) {
        tokio::time::pause();
        tokio::time::advance(time).await;
        tokio::time::resume();
    }

    #[tokio::test]
    async fn a_new_key_is_looked_up_but_not_again_and_again() {
        let (publisher, ring) = publish().await;
        let keys = ring.current().await.unwrap();
        assert!(knows(&keys, 1) && !knows(&keys, 2));
        *publisher.keys.lock().unwrap() = Some(of(2));
        for _ in 0..10 {
            let again = ring.renewed(&keys).await.unwrap();
            assert!(Arc::ptr_eq(&again, &keys), "too soon");
        }
        assert_eq!(*publisher.fetches.borrow(), 1);
        later(FETCH_AT_MOST_EVERY).await;
        let renewed = ring.renewed(&keys).await.unwrap();
        assert!(knows(&renewed, 2) && !knows(&renewed, 1));
        // Whoever still holds the old keys gets these without a look-up.
        assert!(Arc::ptr_eq(&ring.renewed(&keys).await.unwrap(), &renewed));
        assert_eq!(*publisher.fetches.borrow(), 2);
    }

    #[tokio::test]
    async fn keys_are_renewed_in_the_background_and_not_trusted_for_ever() {
        let (publisher, ring) = publish().await;
        ring.current().await.unwrap();
        *publisher.keys.lock().unwrap() = Some(of(2));
        later(RENEW_AFTER + Duration::from_secs(1)).await;
        assert!(knows(&ring.current().await.unwrap(), 1), "answered from what is at hand");
        publisher.fetches.subscribe().wait_for(|fetches| *fetches == 2).await.unwrap();
        // The next caller waits for the running fetch, and gets what it brings.
        let KeyRing::Fetched(fetched) = &ring else { panic!("fetched") };
        assert!(knows(&fetched.fetch().await.unwrap(), 2));
        *publisher.keys.lock().unwrap() = None;
        later(RENEW_AFTER + Duration::from_secs(1)).await;
        assert!(ring.current().await.is_ok(), "an outage does not close the shop at once");
        later(TRUST_FOR).await;
        assert!(matches!(ring.current().await, Err(KeysDown)));
        *publisher.keys.lock().unwrap() = Some(of(2));
        later(FETCH_AT_MOST_EVERY).await;
        assert!(ring.current().await.is_ok());
    }
}
