//! Why a command did not do what it was asked for: one problem document, one exit code.

use std::io::{self, Write as _};
use std::process::ExitCode;

use earnest_core::problem::{Code, LocalCode, Refusal};
use earnest_sdk::{BuyError, SetupError};
use http::StatusCode;
use serde_json::{Map, Value, json};

use super::Style;
use super::output::plain;
use crate::api::error::problem;
use crate::config::ConfigError;

/// What every command gives: an exit code of its own, or a failure that is said on stderr.
pub type Ended = Result<ExitCode, Failure>;

/// A no, or something that broke. Its document is the same as HTTP's (RFC 9457); codes that only
/// clients know stand in the same table, [`LocalCode`].
#[derive(Debug)]
pub struct Failure {
    exit: u8,
    problem: Map<String, Value>,
    silent: bool,
}

impl Failure {
    /// Something that only the command line knows of.
    pub fn local(code: LocalCode, exit: u8, detail: impl Into<String>) -> Self {
        Self::named(code.as_str(), code.title(), exit, detail.into())
    }

    /// A code of the table, said by this program itself.
    pub fn of(code: Code, detail: impl Into<String>) -> Self {
        Self::named(code.as_str(), code.title(), code.exit_code(), detail.into())
    }

    fn named(code: &str, title: &str, exit: u8, detail: String) -> Self {
        let mut problem = Map::new();
        problem.insert("type".to_owned(), "about:blank".into());
        problem.insert("title".to_owned(), title.into());
        problem.insert("detail".to_owned(), detail.into());
        problem.insert("code".to_owned(), code.into());
        Self { exit, problem, silent: false }
    }

    /// The command was not given what it needs: exit code 2.
    pub fn usage(detail: impl Into<String>) -> Self {
        Self::local(LocalCode::Usage, 2, detail)
    }

    /// A file cannot be read or written.
    pub fn file(path: &std::path::Path, why: impl std::fmt::Display) -> Self {
        Self::local(LocalCode::FileUnusable, 1, format!("`{}`: {why}", path.display()))
    }

    /// Whoever read our output is gone, and so is the reason to go on.
    pub fn output(error: &io::Error) -> Self {
        let gone = error.kind() == io::ErrorKind::BrokenPipe;
        let failure = Self::local(LocalCode::OutputFailed, 1, format!("cannot write: {error}"));
        Self { silent: gone, ..failure }
    }

    /// A command that was interrupted: exit code 130.
    pub fn interrupted() -> Self {
        Self::local(
            LocalCode::Interrupted,
            130,
            "interrupted; what was sent may have been carried out",
        )
    }

    /// Earnest's answer, when it is no success.
    pub fn answered(status: StatusCode, body: &[u8]) -> Self {
        let problem: Option<Map<String, Value>> = serde_json::from_slice(body).ok();
        let code = problem.as_ref().and_then(|p| p.get("code")).and_then(Value::as_str);
        let known = code.and_then(Code::parse);
        match problem {
            Some(problem) if code.is_some() => {
                let exit = known.map_or_else(|| exit_of_status(status), Code::exit_code);
                Self { exit, problem, silent: false }
            }
            _ => {
                let detail = format!("answered {status} without a problem document");
                Self::local(LocalCode::NotEarnest, exit_of_status(status), detail)
                    .next("is that address an Earnest? see --url and EARNEST_URL")
            }
        }
    }

    /// The same failure with the next step.
    #[must_use]
    pub fn next(mut self, step: impl Into<String>) -> Self {
        self.problem.insert("next".to_owned(), step.into().into());
        self
    }

    /// The same failure with a figure or name beside it.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.problem.insert(name.to_owned(), value.into());
        self
    }

    /// What programs switch on.
    pub fn code(&self) -> &str {
        self.member("code")
    }

    /// The exit code.
    pub const fn exit(&self) -> u8 {
        self.exit
    }

    fn member(&self, name: &str) -> &str {
        self.problem.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// Says it on stderr, as a problem document with `--json`, and gives the exit code.
    pub fn show(&self, style: &Style) -> ExitCode {
        if !self.silent {
            let text = if style.json {
                Value::Object(self.problem.clone()).to_string()
            } else {
                self.in_words()
            };
            // With stderr gone the exit code still says it.
            let _ = writeln!(io::stderr(), "{text}");
        }
        ExitCode::from(self.exit)
    }

    fn in_words(&self) -> String {
        let mut text = format!("earnest: {}", self.code());
        if let Some(reason) = self.problem.get("reason").and_then(Value::as_str) {
            text.push('/');
            text.push_str(reason);
        }
        text.push_str(": ");
        text.push_str(self.member("detail"));
        let mut text = plain(&text);
        if let Some(seconds) = self.problem.get("retry_after_s").and_then(Value::as_i64) {
            text.push_str(&format!("\n  again in {seconds} s"));
        }
        let next = self.member("next");
        if !next.is_empty() {
            text.push_str("\n  next: ");
            text.push_str(&plain(next));
        }
        text
    }
}

const fn exit_of_status(status: StatusCode) -> u8 {
    match status.as_u16() {
        404 => 3,
        401 => 4,
        402 | 403 => 5,
        409 | 410 | 412 | 428 => 7,
        429 | 502..=504 => 8,
        _ => 1,
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let exit = refusal.code.exit_code();
        let Value::Object(mut problem) = problem(&refusal, "") else {
            return Self::of(refusal.code, refusal.detail);
        };
        // There was no exchange that logs could name.
        problem.remove("trace_id");
        Self { exit, problem, silent: false }
    }
}

impl From<earnest_core::money::AmountError> for Failure {
    fn from(error: earnest_core::money::AmountError) -> Self {
        Refusal::from(error).into()
    }
}

impl From<SetupError> for Failure {
    fn from(error: SetupError) -> Self {
        match &error {
            SetupError::Price { text, why } => {
                let refusal = Refusal::from(*why);
                let detail = format!("`{text}`: {}", refusal.detail);
                Refusal { detail, ..refusal }.into()
            }
            SetupError::Nonces(_) | SetupError::Client(_) => {
                Self::local(LocalCode::SetupFailed, 1, error.to_string())
            }
            SetupError::Url { .. } | SetupError::Insecure { .. } | SetupError::Value { .. } => {
                Self::usage(error.to_string())
            }
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string()).next("earnest.toml.example explains every setting")
    }
}

impl From<BuyError> for Failure {
    fn from(error: BuyError) -> Self {
        let exit = error.exit_code();
        if let BuyError::Output { source, .. } = &error {
            return Self { exit, ..Self::output(source) };
        }
        let answered = error.problem().and_then(|problem| serde_json::to_value(problem).ok());
        if let (Some(Value::Object(problem)), false) = (answered, error.code().is_empty()) {
            return Self { exit, problem, silent: false };
        }
        let title = error.code().replace('_', " ");
        let mut failure = Self::named(error.code(), &title, exit, error.to_string());
        if let BuyError::ApprovalNeeded(waiting) = &error
            && let Ok(Value::Object(members)) = serde_json::to_value(waiting)
        {
            failure.problem.extend(members);
            let step = format!(
                "earnest approvals approve {}, then the same command again",
                waiting.approval_id
            );
            failure = failure.next(step);
        }
        if let Some(purchase) = error.purchase() {
            failure = failure.with("purchase", purchase.to_string());
        }
        failure.with("paid", json!(format!("{:?}", error.paid()).to_lowercase()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answers_code_decides_the_exit_code() {
        let exit = |status: u16, body: &str| {
            Failure::answered(StatusCode::from_u16(status).unwrap(), body.as_bytes()).exit()
        };
        assert_eq!(exit(503, r#"{"code":"payment_outcome_unknown"}"#), 11);
        assert_eq!(exit(404, r#"{"code":"not_found"}"#), 3);
        assert_eq!(exit(403, r#"{"code":"policy_denied","reason":"per_call_cap"}"#), 5);
        // A code of a later version, and no Earnest at all.
        assert_eq!(exit(409, r#"{"code":"of_tomorrow"}"#), 7);
        assert_eq!(exit(401, "<html>"), 4);
        assert_eq!(exit(200, ""), 1);
    }

    #[test]
    fn what_strangers_wrote_cannot_move_the_cursor() {
        let failure = Failure::local(LocalCode::Usage, 1, "a\u{1b}[2Jb");
        assert!(!failure.in_words().contains('\u{1b}'));
    }
}
