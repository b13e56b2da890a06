//! Deliveries signed by a local authority: which verify, which are refused, and who is asked.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use earnest_core::time::Timestamp;
use earnest_paypal::webhooks::{
    CertStore, Delivery, Event, Invalid, Verification, signed_message, verify_local,
    verify_postback,
};
use earnest_paypal::{Client, Config};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair,
    PKCS_RSA_SHA256,
};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};

use crate::server::{Reply, Server, json, with_header};

const HOOK: &str = "9BN49283PB4783231";
const TIME: &str = "2026-11-30T09:01:03Z";
/// What changes when parsed and written again: `1.0`, an empty object, spaces, key order, escapes.
const BODY: &str = "{ \"id\":\"WH-58D329510W468432D-8HN650336L201105X\",\n  \"event_type\":\"PAYMENT.CAPTURE.COMPLETED\",\"event_version\":1.0, \"resource\":{\"z\":{},\"id\":\"3C679366HH908993F\",\"a\":\"\\/\\u00e9\"} }\r\n";

/// An RSA key in both of its clothes.
struct Rsa {
    certificate_key: KeyPair,
    signing_key: RsaKeyPair,
}

/// One key for all tests, made once with `openssl genpkey` and used for nothing else: making 2048
/// bits takes seconds, and what is tested is not the key.
static KEY: LazyLock<Rsa> = LazyLock::new(|| {
    let pkcs8 = include_bytes!("throwaway-rsa.pk8");
    let der = rustls::pki_types::PrivatePkcs8KeyDer::from(pkcs8.to_vec());
    Rsa {
        certificate_key: KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_RSA_SHA256).unwrap(),
        signing_key: RsaKeyPair::from_pkcs8(pkcs8).unwrap(),
    }
});

/// A local certificate authority.
struct Authority {
    root: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Local root");
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap();
        Self { root, issuer: Issuer::new(params, key) }
    }

    /// A leaf for [`KEY`] under this name, changed by `change`.
    fn leaf(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "PayPal, Inc.");
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        params.signed_by(&KEY.certificate_key, &self.issuer).unwrap().pem()
    }
}

const NAME: &str = "messageverificationcerts.sim.paypal.com";

fn now() -> Timestamp {
    "2026-11-30T09:02:00Z".parse().unwrap()
}

/// What a delivery is made of; tests change one part at a time.
#[derive(Clone)]
struct Parts {
    headers: BTreeMap<&'static str, String>,
    body: Vec<u8>,
}

impl Parts {
    fn signed(cert_url: &str, body: &[u8]) -> Self {
        let id = "103e3700-8b0c-11e6-8695-6b62a8a99ac4";
        let message = signed_message(id, TIME, HOOK, body);
        let mut signature = vec![0; KEY.signing_key.public().modulus_len()];
        KEY.signing_key
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message.as_bytes(), &mut signature)
            .unwrap();
        let headers = BTreeMap::from([
            ("paypal-transmission-id", id.to_owned()),
            ("paypal-transmission-time", TIME.to_owned()),
            ("paypal-transmission-sig", STANDARD.encode(signature)),
            ("paypal-cert-url", cert_url.to_owned()),
            ("paypal-auth-algo", "SHA256withRSA".to_owned()),
        ]);
        Self { headers, body: body.to_vec() }
    }

    fn with(&self, name: &'static str, value: &str) -> Self {
        let mut changed = self.clone();
        changed.headers.insert(name, value.to_owned());
        changed
    }

    fn delivery(&self) -> Delivery {
        let values = |name| self.headers.get(name).map(String::as_bytes);
        Delivery::new(values, self.body.clone()).unwrap()
    }
}

fn trusting(server: &Server, authority: &Authority) -> Config {
    let mut config = server.config();
    config.webhook_cert_hosts.push(format!("127.0.0.1:{}", server.base.port().unwrap()));
    config.webhook_root_pem = Some(authority.root.pem());
    config.timeouts.read = Duration::from_secs(5);
    config
}

fn cert_url(server: &Server) -> String {
    server.base.join("/v1/notifications/certs/CERT-1").unwrap().to_string()
}

async fn serving(pem: String) -> Server {
    Server::with_tokens(move |_, _| json(200, &pem)).await
}

async fn check(parts: &Parts, store: &CertStore) -> Verification {
    verify_local(&parts.delivery(), HOOK, store, now()).await
}

#[tokio::test]
async fn webh_04_the_received_bytes_are_what_is_verified() {
    let authority = Authority::new();
    let server = serving(authority.leaf(NAME, |_| {})).await;
    let store = CertStore::new(&trusting(&server, &authority)).unwrap();
    let parts = Parts::signed(&cert_url(&server), BODY.as_bytes());
    assert_eq!(check(&parts, &store).await, Verification::Valid);
    assert_eq!(check(&parts, &store).await, Verification::Valid);
    assert_eq!(server.calls().len(), 1, "the certificate is kept");

    // The control: the same event parsed and written again is another body.
    let parsed: serde_json::Value = serde_json::from_str(BODY).unwrap();
    let rewritten = Parts { body: parsed.to_string().into_bytes(), ..parts.clone() };
    assert_eq!(check(&rewritten, &store).await, Verification::Invalid(Invalid::Signature));
    // And what the body says is still readable.
    let event = Event::parse(BODY.as_bytes()).unwrap();
    assert_eq!(event.event_type, "PAYMENT.CAPTURE.COMPLETED");
    assert_eq!(event.resource_id.as_deref(), Some("3C679366HH908993F"));
}

#[tokio::test]
async fn webh_04_the_postback_carries_the_received_bytes() {
    let server = Server::with_tokens(|seen, _| {
        assert_eq!(seen.path, "/v1/notifications/verify-webhook-signature");
        json(200, r#"{"verification_status":"SUCCESS"}"#)
    })
    .await;
    let config = trusting(&server, &Authority::new());
    let (client, store) = (Client::new(&config).unwrap(), CertStore::new(&config).unwrap());
    let parts = Parts::signed(&cert_url(&server), BODY.as_bytes());
    let verdict = verify_postback(&client, &parts.delivery(), HOOK, &store, now()).await;
    assert_eq!(verdict, Verification::Valid);
    let calls = server.calls();
    let sent = String::from_utf8(calls[0].body.clone()).unwrap();
    assert!(sent.ends_with(&format!(r#","webhook_event":{BODY}}}"#)), "{sent}");
    let read: serde_json::Value = serde_json::from_str(&sent).unwrap();
    assert_eq!(read["webhook_id"], HOOK);
    assert_eq!(read["transmission_time"], TIME);
    assert_eq!(read["auth_algo"], "SHA256withRSA");
}

#[tokio::test]
async fn webh_12_a_certificate_of_the_senders_choice_is_not_even_fetched() {
    let authority = Authority::new();
    // A host that would serve a key which does match the signature.
    let evil = serving(authority.leaf(NAME, |_| {})).await;
    let server = Server::with_tokens(|_, _| json(200, "{}")).await;
    let config = trusting(&server, &authority);
    let (client, store) = (Client::new(&config).unwrap(), CertStore::new(&config).unwrap());
    for url in [cert_url(&evil), "https://cert.evil.example/c.pem".to_owned()] {
        let delivery = Parts::signed(&url, BODY.as_bytes()).delivery();
        let refused = Verification::Invalid(Invalid::CertUrl);
        assert_eq!(verify_local(&delivery, HOOK, &store, now()).await, refused);
        assert_eq!(verify_postback(&client, &delivery, HOOK, &store, now()).await, refused);
    }
    assert!(evil.calls().is_empty(), "0 requests to the sender's host");
    assert!(server.calls().is_empty(), "nor is PayPal asked");
}

#[tokio::test]
async fn a_changed_delivery_is_invalid() {
    let authority = Authority::new();
    let server = serving(authority.leaf(NAME, |_| {})).await;
    let store = CertStore::new(&trusting(&server, &authority)).unwrap();
    let good = Parts::signed(&cert_url(&server), BODY.as_bytes());
    let changed_body = Parts { body: BODY.replace("3C6", "4C6").into_bytes(), ..good.clone() };
    let not_json = Parts::signed(&cert_url(&server), b"{\"id\":1} {\"id\":2}");
    let old = "2026-11-27T09:01:59Z";
    for (parts, why) in [
        (changed_body, Invalid::Signature),
        (not_json, Invalid::NotJson),
        (good.with("paypal-transmission-id", "another"), Invalid::Signature),
        (good.with("paypal-transmission-time", "2026-11-30T09:01:04Z"), Invalid::Signature),
        (good.with("paypal-transmission-time", "2026-11-30T09:01:03+00:00"), Invalid::Signature),
        (good.with("paypal-transmission-time", old), Invalid::TooOld),
        (good.with("paypal-transmission-time", "soon"), Invalid::Headers),
        (good.with("paypal-transmission-sig", "AAAA"), Invalid::Signature),
        (good.with("paypal-transmission-sig", "!"), Invalid::Headers),
        (good.with("paypal-auth-algo", "SHA1withRSA"), Invalid::Algorithm),
    ] {
        assert_eq!(check(&parts, &store).await, Verification::Invalid(why), "{:?}", parts.headers);
    }
    let other_hook = verify_local(&good.delivery(), "0EH40505U7160970P", &store, now()).await;
    assert_eq!(other_hook, Verification::Invalid(Invalid::Signature));
    assert_eq!(check(&good, &store).await, Verification::Valid, "the control");
}

#[tokio::test]
async fn only_a_certificate_of_paypals_will_do() {
    let authority = Authority::new();
    let expired = |params: &mut CertificateParams| {
        params.not_after = rcgen::date_time_ymd(2026, 11, 29);
    };
    let early = |params: &mut CertificateParams| {
        params.not_before = rcgen::date_time_ymd(2026, 12, 1);
    };
    for (what, pem) in [
        ("another name", authority.leaf("paypal.com.evil.example", |_| {})),
        ("expired", authority.leaf(NAME, expired)),
        ("not yet valid", authority.leaf(NAME, early)),
        ("another authority", Authority::new().leaf(NAME, |_| {})),
        ("the root itself", authority.root.pem()),
    ] {
        let server = serving(pem).await;
        let store = CertStore::new(&trusting(&server, &authority)).unwrap();
        let parts = Parts::signed(&cert_url(&server), BODY.as_bytes());
        let verdict = check(&parts, &store).await;
        assert_eq!(verdict, Verification::Invalid(Invalid::Certificate), "{what}");
    }
}

#[tokio::test]
async fn a_certificate_is_fetched_anew_once_it_has_expired() {
    let authority = Authority::new();
    let soon = authority.leaf(NAME, |params| {
        params.not_after = rcgen::date_time_ymd(2026, 12, 1);
    });
    let later = authority.leaf(NAME, |_| {});
    let server =
        Server::with_tokens(move |_, n| json(200, if n == 0 { &soon } else { &later })).await;
    let store = CertStore::new(&trusting(&server, &authority)).unwrap();
    let parts = Parts::signed(&cert_url(&server), BODY.as_bytes());
    assert_eq!(check(&parts, &store).await, Verification::Valid);
    let next_day = "2026-12-01T09:00:00Z".parse().unwrap();
    let verdict = verify_local(&parts.delivery(), HOOK, &store, next_day).await;
    assert_eq!(verdict, Verification::Valid);
    assert_eq!(server.calls().len(), 2);
}

#[tokio::test]
async fn a_certificate_that_cannot_be_had_is_no_verdict() {
    let elsewhere = serving(Authority::new().leaf(NAME, |_| {})).await;
    let redirect = with_header(json(302, ""), "Location", &cert_url(&elsewhere));
    let huge = Reply::Answer { status: 200, headers: Vec::new(), body: vec![b'a'; 100_000] };
    for reply in [redirect, huge, json(200, "not PEM"), json(503, ""), json(404, ""), Reply::HangUp]
    {
        let label = format!("{reply:?}").chars().take(60).collect::<String>();
        let server = Server::with_tokens(move |_, _| reply.clone()).await;
        let store = CertStore::new(&trusting(&server, &Authority::new())).unwrap();
        let parts = Parts::signed(&cert_url(&server), BODY.as_bytes());
        let verdict = check(&parts, &store).await;
        assert!(matches!(verdict, Verification::CannotTell(_)), "{label}: {verdict:?}");
    }
    assert!(elsewhere.calls().is_empty(), "no redirect is followed");
}

#[tokio::test]
async fn strangers_cannot_make_us_fetch_without_end() {
    let server = Server::with_tokens(|_, _| json(404, "")).await;
    let store = CertStore::new(&trusting(&server, &Authority::new())).unwrap();
    for n in 0..40 {
        let parts = Parts::signed(&format!("{}{n}", cert_url(&server)), BODY.as_bytes());
        assert!(matches!(check(&parts, &store).await, Verification::CannotTell(_)));
    }
    assert_eq!(server.calls().len(), 20);
}

#[tokio::test]
async fn paypals_word_is_taken_only_when_it_gives_one() {
    for (reply, expect) in [
        (
            json(200, r#"{"verification_status":"FAILURE"}"#),
            Some(Verification::Invalid(Invalid::NotPaypals)),
        ),
        (json(200, r#"{"verification_status":"MAYBE"}"#), None),
        (json(200, "{}"), None),
        (json(400, r#"{"name":"VALIDATION_ERROR"}"#), None),
        (json(500, ""), None),
        (Reply::HangUp, None),
    ] {
        let label = format!("{reply:?}");
        let server = Server::with_tokens(move |_, _| reply.clone()).await;
        let config = trusting(&server, &Authority::new());
        let (client, store) = (Client::new(&config).unwrap(), CertStore::new(&config).unwrap());
        let parts = Parts::signed(&cert_url(&server), BODY.as_bytes());
        let verdict = verify_postback(&client, &parts.delivery(), HOOK, &store, now()).await;
        match expect {
            Some(expect) => assert_eq!(verdict, expect, "{label}"),
            None => assert!(matches!(verdict, Verification::CannotTell(_)), "{label}"),
        }
    }
}

#[test]
fn events_name_what_to_read_again() {
    let event = |resource: &str| {
        let body = format!(r#"{{"id":"WH-1","event_type":"T","resource":{resource}}}"#);
        Event::parse(body.as_bytes()).unwrap()
    };
    let refund = event(
        r#"{"id":"1JU08902781691411","invoice_id":"i-r1","links":[
            {"href":"https://api-m.sandbox.paypal.com/v2/payments/captures/3C679366HH908993F","rel":"up"}]}"#,
    );
    assert_eq!(refund.capture_id.as_deref(), Some("3C679366HH908993F"));
    assert_eq!(refund.invoice_id.as_deref(), Some("i-r1"));
    let order = event(
        r#"{"id":"5O190127TN364715T","purchase_units":[{"custom_id":"c","amount":{"breakdown":{}}}]}"#,
    );
    assert_eq!(order.resource_id.as_deref(), Some("5O190127TN364715T"));
    assert_eq!(order.custom_id.as_deref(), Some("c"));
    // Shapes nobody promised are no reason to lose the event.
    for odd in ["null", "[]", "7", r#"{"id":7}"#, r#"{"links":{}}"#] {
        assert_eq!(event(odd).id, "WH-1", "{odd}");
    }
    assert_eq!(Event::parse(b"{}"), None);
}
