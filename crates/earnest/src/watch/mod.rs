//! How an Earnest can be watched: its log, and where its figures are read.

use std::io::Write;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use self::redact::Redacted;

pub mod redact;

/// `[watch]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct WatchFile {
    /// `text` unless said, or `json`.
    pub log: Option<LogFormat>,
    /// An address where figures are read without a key.
    pub metrics_listen: Option<SocketAddr>,
}

/// How lines of the log are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for programs.
    Json,
}

impl LogFormat {
    /// As settings name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// `filter`, without what the MCP library says below *error*: it writes out whole messages, and what
/// an agent buys, or shows its seller, looks like nothing that could be taken out of a line.
pub fn without_messages(filter: EnvFilter) -> EnvFilter {
    let quiet = ["rmcp=error", "rmcp::service=error"].into_iter();
    quiet.filter_map(|rule| rule.parse().ok()).fold(filter, EnvFilter::add_directive)
}

/// What writes the log: each line with its time, level and words, within which request (`trace`, the
/// `Trace-Id` of the answer) or job it was written, and without what [`redact`] takes out.
pub fn subscriber<W>(
    format: LogFormat,
    filter: EnvFilter,
    colors: bool,
    to: W,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w, Writer: Write> + Send + Sync + 'static,
{
    let filter = without_messages(filter);
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(Redacted(to));
    match format {
        LogFormat::Text => Box::new(log.with_ansi(colors).finish()),
        LogFormat::Json => {
            let log = log.json().flatten_event(true).with_span_list(false);
            Box::new(log.with_current_span(true).finish())
        }
    }
}
