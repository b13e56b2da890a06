//! What is taken out of every line of the log before it is written.
//!
//! Nothing secret is meant to get there: types that hold secrets show none, and a test looks through
//! the log of a whole life without this. It is here for what somebody else's crate puts into an error,
//! and for the line that is written wrongly next year.

use std::borrow::Cow;
use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;

/// Stands where a secret stood.
pub const GONE: &str = "[redacted]";

/// What a secret begins with, and whether that beginning stays, for whoever looks for where it came
/// from.
const LIST: [(&str, bool); 15] = [
    // Keys of this API.
    ("ek_operator_", true),
    ("ek_owner_", true),
    ("ek_agent_", true),
    ("ek_seller_", true),
    // Secrets of outgoing webhooks.
    ("whsec_", true),
    // Vouchers, receipts, PayPal's client assertions: JWS and JWT begin with `{"`.
    ("eyJ", false),
    // PayPal's access tokens.
    ("A21A", false),
    // Whatever follows these, in headers, URLs and forms.
    ("Bearer ", true),
    ("Basic ", true),
    ("Tab ey", false),
    ("token=", true),
    ("form=", true),
    ("client_secret=", true),
    // Cookies, also with `__Host-` before their names.
    ("earnest=", true),
    ("earnest-form=", true),
];

/// How long what follows must be to be a secret: words are shorter.
const SHORTEST: usize = 8;

/// Where in a text that begins with the name of a delivery at a gateway (`Earnest-Purchase`) its
/// secret is: behind the purchase's id, which stays.
fn delivery(text: &str) -> Option<(usize, usize)> {
    const ID: usize = "pur_".len() + 26;
    const SECRET: usize = 32;
    let from = ID.saturating_add(1);
    let id = text.strip_prefix("pur_").and_then(|_| text.get(..ID))?;
    let secret = text.get(ID..)?.strip_prefix('.')?.get(..SECRET)?;
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    (plain(id) && plain(secret)).then_some((from, from.saturating_add(SECRET)))
}

/// The line without secrets and e-mail addresses.
pub fn redact(line: &str) -> Cow<'_, str> {
    let mut clean = String::new();
    // Up to where the line was looked through, and from where it was not copied yet.
    let (mut at, mut copied) = (0, 0);
    while let Some(rest) = line.get(at..) {
        let Some(first) = rest.chars().next() else { break };
        let found = LIST.iter().find(|(begin, _)| rest.starts_with(begin));
        let secret = found.and_then(|(begin, stays)| {
            let end = begin.len().saturating_add(token(rest.get(begin.len()..)?));
            let long = end.saturating_sub(begin.len()) >= SHORTEST;
            long.then_some((if *stays { begin.len() } else { 0 }, end))
        });
        if let Some((from, to)) = secret.or_else(|| delivery(rest)) {
            clean.push_str(line.get(copied..at.saturating_add(from)).unwrap_or_default());
            clean.push_str(GONE);
            at = at.saturating_add(to);
            copied = at;
        } else if first == '@'
            && let Some((before, after)) = address(line, copied, at)
        {
            clean.push_str(line.get(copied..before).unwrap_or_default());
            clean.push_str(GONE);
            at = after;
            copied = after;
        } else {
            at = at.saturating_add(first.len_utf8());
        }
    }
    if copied == 0 {
        return Cow::Borrowed(line);
    }
    clean.push_str(line.get(copied..).unwrap_or_default());
    Cow::Owned(clean)
}

/// How many bytes are one token.
fn token(text: &str) -> usize {
    let odd = |c: char| !(c.is_ascii_alphanumeric() || "-_.+/=~%".contains(c));
    text.find(odd).unwrap_or(text.len())
}

/// From where to where an e-mail address goes around an `@`.
fn address(line: &str, from: usize, at: usize) -> Option<(usize, usize)> {
    let local = |c: char| c.is_alphanumeric() || "._%+-'".contains(c);
    let before = line.get(from..at)?;
    let name = before.chars().rev().take_while(|c| local(*c)).map(char::len_utf8).sum::<usize>();
    let after = line.get(at.saturating_add(1)..)?;
    let domain = after.find(|c: char| !(c.is_alphanumeric() || ".-".contains(c)));
    let domain = after.get(..domain.unwrap_or(after.len()))?.trim_end_matches(['.', '-']);
    let whole = name > 0 && domain.contains('.') && !domain.starts_with('.');
    let end = at.saturating_add(1).saturating_add(domain.len());
    whole.then_some((at.saturating_sub(name), end))
}

/// Writes lines without what [`redact`] takes out.
#[derive(Clone, Debug)]
pub struct Redacted<W>(pub W);

/// One line on its way.
pub struct Line<W>(W);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for Redacted<W> {
    type Writer = Line<W::Writer>;
    fn make_writer(&'a self) -> Self::Writer {
        Line(self.0.make_writer())
    }
}

impl<W: Write> Write for Line<W> {
    /// Lines come whole: the formatter writes each into a buffer of its own first.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        self.0.write_all(redact(&text).as_bytes())?;
        Ok(line.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_go_and_words_stay() {
        for (line, expect) in [
            ("key ek_agent_0123456789abcdef end", "key ek_agent_[redacted] end"),
            ("\"ek_owner_01234567\",\"x\":1", "\"ek_owner_[redacted]\",\"x\":1"),
            (
                "two ek_owner_012345678 ek_seller_012345678",
                "two ek_owner_[redacted] ek_seller_[redacted]",
            ),
            ("Authorization: Bearer A21AAabc-def_ghi", "Authorization: Bearer [redacted]"),
            ("token A21AAabc-def_ghi.", "token [redacted]"),
            ("v=eyJhbGciOiJFZERTQSJ9.eyJhIjoxfQ.c2ln;", "v=[redacted];"),
            ("GET /login?token=0123456789abcdef&x=1", "GET /login?token=[redacted]&x=1"),
            ("to whsec_QUJDREVGR0g=", "to whsec_[redacted]"),
            ("payer very.private+x@mail.example.com!", "payer [redacted]!"),
            ("<ä@bücher.example>", "<[redacted]>"),
            (
                "cookie: a=b; __Host-earnest=0123456789ab; earnest-form=0123456789ab",
                "cookie: a=b; __Host-earnest=[redacted]; earnest-form=[redacted]",
            ),
            (
                "/outcome?purchase=pur_01ARZ3NDEKTSV4RRFFQ69G5FAV.00112233445566778899aabbccddeeff",
                "/outcome?purchase=pur_01ARZ3NDEKTSV4RRFFQ69G5FAV.[redacted]",
            ),
            // What is no secret.
            (
                "pur_01ARZ3NDEKTSV4RRFFQ69G5FAV. was sold",
                "pur_01ARZ3NDEKTSV4RRFFQ69G5FAV. was sold",
            ),
            ("EARNEST_LOG=earnest=debug,h2=off", "EARNEST_LOG=earnest=debug,h2=off"),
            ("ek_agent_ and ek_… are how keys begin", "ek_agent_ and ek_… are how keys begin"),
            ("a Bearer is needed, token= is empty", "a Bearer is needed, token= is empty"),
            ("2 @ 3 a@b @x.y x@.y", "2 @ 3 a@b @x.y x@.y"),
            ("plain ünï words", "plain ünï words"),
            ("", ""),
        ] {
            assert_eq!(redact(line), expect, "{line}");
        }
    }

    /// What must not stand in a log, as it is handed out: written down here and not taken from the
    /// list, so that what is dropped from there is missed.
    #[test]
    fn the_whole_list_is_taken_out() {
        let must_go = [
            ("ek_operator_0123456789abcdef", "ek_operator_[redacted]"),
            ("ek_owner_0123456789abcdef", "ek_owner_[redacted]"),
            ("ek_agent_0123456789abcdef", "ek_agent_[redacted]"),
            ("ek_seller_0123456789abcdef", "ek_seller_[redacted]"),
            ("whsec_MDEyMzQ1Njc4OWFiY2RlZg==", "whsec_[redacted]"),
            ("eyJhbGciOiJFZERTQSJ9.eyJqdGkiOiJ2Y2gifQ.c2lnbmF0dXJl", "[redacted]"),
            ("A21AAFEpH4PsADK7qSS7pSRsgzfENtu-Q1ysgEDVDESseMHBYXVJYE8", "[redacted]"),
            ("Bearer 0123456789abcdef", "Bearer [redacted]"),
            ("Basic c2ltOmEtY2xpZW50LXNlY3JldA==", "Basic [redacted]"),
            ("Tab eyJhbGciOiJFZERTQSJ9.e30.c2ln", "[redacted]"),
            ("token=0123456789abcdef", "token=[redacted]"),
            ("form=0123456789abcdef", "form=[redacted]"),
            ("client_secret=0123456789abcdef", "client_secret=[redacted]"),
            ("earnest=0123456789abcdef", "earnest=[redacted]"),
            ("earnest-form=0123456789abcdef", "earnest-form=[redacted]"),
        ];
        for (secret, expect) in must_go {
            assert_eq!(redact(&format!("x {secret} y")), format!("x {expect} y"), "{secret}");
        }
        assert_eq!(must_go.len(), LIST.len(), "what is added to the list is written down here");
    }
}
