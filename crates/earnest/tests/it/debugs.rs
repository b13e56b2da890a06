//! What holds a secret, or says who a payer is, does not show it when it is printed: the code is
//! walked for types that would.

use std::path::{Path, PathBuf};

use earnest_core::authorize::Authorized;
use earnest_core::voucher::{Fate, Report};

/// Names of fields that hold what lets somebody pay, sign or get in, or say who a payer is. A hash or
/// a digest of one is none.
const SECRET: [&str; 26] = [
    "access_token",
    "agent_key",
    "api_key",
    "approve_url",
    "bearer",
    "browser_token",
    "client_secret",
    "cookie",
    "csrf",
    "email",
    "facts",
    "form",
    "nonce",
    "password",
    "payer_id",
    "payment_token",
    "payout_recipient",
    "request",
    "secret",
    "seed",
    "setup_token",
    "token",
    "vault_id",
    "voucher",
    "vouchers",
    "webhook_secret",
];

/// What is named so and may be shown, and why.
const SHOWN: [(&str, &str, &str); 1] = [("Payee", "email", "the merchant's own address")];

pub fn sources() -> Vec<PathBuf> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                found.push(path);
            }
        }
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for name in ["earnest", "earnest-core", "earnest-paypal", "earnest-sdk", "earnest-store"] {
        walk(&crates.join(name).join("src"), &mut found);
    }
    found
}

/// `Type.field` for everything in a source that derives `Debug` and holds a secret as text or bytes.
fn told(source: &str) -> Vec<String> {
    let mut told = Vec::new();
    for (place, _) in source.match_indices("#[derive(") {
        let rest = &source[place..];
        let Some((derived, rest)) = rest.split_once(")]") else { continue };
        if !derived.contains("Debug") {
            continue;
        }
        let is_attribute = |line: &&str| {
            let line = line.trim();
            line.is_empty() || line.starts_with("#[") || line.starts_with("///")
        };
        let Some(head) = rest.lines().find(|line| !is_attribute(line)) else { continue };
        let mut words = head.split(|c: char| !c.is_alphanumeric() && c != '_');
        if !words.any(|word| word == "struct" || word == "enum") {
            continue;
        }
        let name = words.next().unwrap_or_default();
        // To the line that closes it, where it has a body at all.
        let body = rest.split_once(head).map_or("", |(_, body)| body);
        let body = if head.trim_end().ends_with('{') { body } else { "" };
        let body = body.lines().take_while(|line| !line.starts_with('}'));
        for line in body {
            let line = line.trim().trim_start_matches("pub(crate) ").trim_start_matches("pub ");
            let Some((field, kind)) = line.split_once(": ") else { continue };
            let text = ["String", "str", "[u8", "Vec<u8>", "Value", "Bytes"];
            let plain = text.iter().any(|text| kind.contains(text));
            if SECRET.contains(&field) && plain {
                told.push(format!("{name}.{field}"));
            }
        }
    }
    told
}

#[test]
fn no_type_that_holds_a_secret_prints_it() {
    let mut read = 0;
    let mut wrong = Vec::new();
    for path in sources() {
        read += 1;
        for field in told(&std::fs::read_to_string(&path).unwrap()) {
            let allowed = |(of, name, _): &(&str, &str, &str)| field == format!("{of}.{name}");
            if !SHOWN.iter().any(allowed) {
                wrong.push(format!("{}: {field}", path.display()));
            }
        }
    }
    assert!(read > 150, "only {read} files were read");
    assert!(wrong.is_empty(), "they derive Debug; use `shows_only!`:\n{}", wrong.join("\n"));
}

/// The walk finds what it looks for.
#[test]
fn the_walk_finds_a_secret_that_is_printed() {
    let source = "#[derive(Clone, Debug)]\n#[serde(default)]\n/// It.\npub struct Bad<'a> {\n    \
                  /// A.\n    pub voucher: String,\n    pub(crate) token: Option<&'a str>,\n    \
                  pub token_sha256: String,\n    pub seed: Seed,\n}\n\
                  #[derive(\n    Clone,\n    Debug,\n)]\nenum Worse {\n    One {\n        \
                  secret: Vec<u8>,\n    },\n}\n\
                  #[derive(Clone)]\nstruct Fine {\n    cookie: String,\n}\n";
    assert_eq!(told(source), ["Bad.voucher", "Bad.token", "Worse.secret"]);
}

#[test]
fn a_voucher_is_not_printed_with_what_carries_it() {
    let authorized: Authorized = serde_json::from_value(serde_json::json!({
        "purchase": "pur_00000000000000000000000001", "voucher": "ey.private.x",
        "expires_at": "2026-11-30T09:00:00Z", "amount_micros": 5, "currency": "USD",
    }))
    .unwrap();
    let report = Report {
        voucher: authorized.voucher.clone(),
        fate: Fate::Redeemed,
        claimed_at: authorized.expires_at,
        amount_micros: None,
    };
    let key = "k-1";
    let token = earnest_paypal::vault::create_payment_token("private-setup", key).unwrap();
    let shown = format!("{authorized:?} {report:#?} {token:?}");
    assert!(shown.contains("pur_00000000000000000000000001") && shown.contains("Redeemed"));
    assert!(!shown.contains("private"), "{shown}");
}
