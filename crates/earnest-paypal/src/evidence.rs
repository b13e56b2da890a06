//! Evidence for intents whose outcome is unknown: whether a key may still be repeated, and the
//! proof that a charge did *not* happen.
//!
//! Absence is proved by Transaction Search only when the report is complete past the last send:
//! every page of every window was read, the counts agree, and `last_refreshed_datetime` is at
//! least 3 hours later than the last send. Anything less is *not yet* or *unreadable*, never *not
//! there*.
//!
//! Times of ours are looked for as they are and as PayPal's clock shows them now ([`crate::clock`]):
//! a clock of ours that is wrong makes the span longer, not another one.

use earnest_core::time::{SignedDuration, Timestamp, plus};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::client::{Client, MAX_PAGE};
use crate::clock::SAME;
use crate::outcome::{Exchange, Outcome};
use crate::reporting::{
    LEAST_PAGE_SIZE, PAGE_SIZE, TransactionPage, TransactionRow, Window, search_transactions,
};
use crate::resource::Resource;

/// How far around the sends to look: clocks differ, and PayPal may run a request late.
const AROUND: SignedDuration = SignedDuration::from_hours(1);
/// How far behind the report may be; PayPal's own figure.
pub const REPORT_LAG: SignedDuration = SignedDuration::from_hours(3);
/// How long to wait before asking an incomplete report again.
const ASK_AGAIN: SignedDuration = SignedDuration::from_mins(10);
/// The most rows of one window are 10 000, PayPal refuses more; twice as many, since their number may
/// grow while they are read.
const MAX_ROWS: u32 = 20_000;
/// The most searches for one proof: one window of the smallest pages, and more than enough of large
/// ones.
const MAX_SEARCHES: u32 = 1_000;

/// What Transaction Search says about an `invoice_id`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "evidence")]
pub enum Evidence {
    /// It is there: every row that carries it (a refund may carry it too; two charges are two
    /// rows). Read the resource by `transaction_id`.
    Found {
        /// At least one.
        rows: Vec<TransactionRow>,
        /// Whether the report is complete past the last send: then there are no others.
        complete: bool,
    },
    /// It is not there, and the report is complete.
    Absent(Box<Absence>),
    /// The report is not complete yet.
    NotYet {
        /// When to ask again.
        until: Timestamp,
    },
    /// No usable answer; ask again later.
    Unreadable {
        /// What happened, for people.
        why: String,
    },
}

/// The proof that nothing carries what was looked for, to be stored with the intent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absence {
    /// What was looked for: an invoice, or the transaction that is referred to.
    pub sought: String,
    /// Where.
    pub window: Window,
    /// SHA-256 over every answer read, in order, in hex.
    pub answers_sha256: String,
    /// The earliest `last_refreshed_datetime` of those answers.
    pub last_refreshed: Timestamp,
    /// How many rows were looked at.
    pub rows: u64,
    /// How many answers.
    pub answers: u32,
    /// PayPal's debug ids of those answers.
    pub debug_ids: Vec<String>,
}

/// The span that a proof of absence looks at.
pub fn window(first_sent: Timestamp, last_sent: Timestamp) -> Window {
    Window::covering(
        first_sent.saturating_sub(AROUND).unwrap_or(first_sent),
        last_sent.saturating_add(AROUND).unwrap_or(last_sent),
    )
}

/// Asks Transaction Search what refers to a capture: its refunds and reversals, heard of at `heard`.
/// A capture that nothing refers to gives [`Evidence::Absent`].
pub async fn refer_to(
    client: &Client,
    capture_id: &str,
    made: Timestamp,
    heard: Timestamp,
    now: Timestamp,
) -> Evidence {
    ask(client, Wanted::Reference(capture_id), made, heard, now).await
}

/// Asks Transaction Search for every movement of a span, complete: in and out, whatever they carry.
pub async fn movements(
    client: &Client,
    from: Timestamp,
    to: Timestamp,
    now: Timestamp,
) -> Evidence {
    ask(client, Wanted::Everything, from, to, now).await
}

/// Asks Transaction Search whether anything carries `invoice_id`, for a request sent between
/// `first_sent` and `last_sent`. Sends nothing before the report can be complete.
pub async fn prove_absent(
    client: &Client,
    invoice_id: &str,
    first_sent: Timestamp,
    last_sent: Timestamp,
    now: Timestamp,
) -> Evidence {
    ask(client, Wanted::Invoice(invoice_id), first_sent, last_sent, now).await
}

/// Which rows are looked for.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    /// Those that carry this invoice.
    Invoice(&'a str),
    /// Those that refer to this transaction.
    Reference(&'a str),
    /// All of them.
    Everything,
}

impl Wanted<'_> {
    fn is(self, row: &TransactionRow) -> bool {
        match self {
            Self::Invoice(id) => row.invoice_id.as_deref() == Some(id),
            Self::Reference(id) => row.reference_id.as_deref() == Some(id),
            Self::Everything => true,
        }
    }

    const fn text(&self) -> &str {
        match self {
            Self::Invoice(id) | Self::Reference(id) => id,
            Self::Everything => "everything",
        }
    }
}

async fn ask(
    client: &Client,
    wanted: Wanted<'_>,
    first_sent: Timestamp,
    last_sent: Timestamp,
    now: Timestamp,
) -> Evidence {
    let Ok(ahead) = client.ask_ahead().await else {
        return Evidence::NotYet { until: plus(now, ASK_AGAIN) };
    };
    let ahead = ahead.unwrap_or_default();
    let both = |at: Timestamp| if ahead.abs() > SAME { plus(at, ahead) } else { at };
    let (first_sent, last_sent) =
        (first_sent.min(both(first_sent)), last_sent.max(both(last_sent)));
    let complete_at = plus(last_sent, REPORT_LAG);
    if now.max(both(now)) < complete_at {
        return Evidence::NotYet { until: complete_at };
    }
    let window = window(first_sent, last_sent);
    let mut search = Search::new(wanted, complete_at, now);
    // The last window first on the stack, so that the first is read first.
    let mut windows = window.split();
    windows.reverse();
    while let Some(span) = windows.pop() {
        match search.read(client, span).await {
            Ok(Span::Read) => {}
            // From its first page on: pages of another size are cut elsewhere.
            Ok(Span::PageTooLong) => match search.smaller() {
                Some(()) => windows.push(span),
                None => {
                    let why = format!("{} rows are longer than {MAX_PAGE} bytes", search.page_size);
                    return unreadable(&why);
                }
            },
            Ok(Span::TooLarge) => match span.halves() {
                Some((early, late)) => windows.extend([late, early]),
                None => return unreadable("one second holds too many rows"),
            },
            Err(evidence) => return evidence,
        }
    }
    match search.conclude(window) {
        // INVARIANT: absence_is_claimed_only_where_paypals_clock_is_known
        Evidence::Absent(_) if strays(client, ahead) => {
            Evidence::NotYet { until: plus(now, ASK_AGAIN) }
        }
        evidence => evidence,
    }
}

/// Whether PayPal's clock stands otherwise to ours than it did: then it was looked in another span.
fn strays(client: &Client, before: SignedDuration) -> bool {
    client.ahead().is_some_and(|ahead| ahead.saturating_sub(before).abs() > SAME)
}

fn unreadable(why: &str) -> Evidence {
    Evidence::Unreadable { why: why.to_owned() }
}

/// What became of one span.
enum Span {
    Read,
    /// PayPal says that it holds too many rows.
    TooLarge,
    /// A page of it is longer than is read.
    PageTooLong,
}

/// A search in progress.
struct Search<'a> {
    wanted: Wanted<'a>,
    complete_at: Timestamp,
    now: Timestamp,
    /// How many rows a page has.
    page_size: u32,
    found: Vec<TransactionRow>,
    digest: Sha256,
    last_refreshed: Option<Timestamp>,
    rows: u64,
    answers: u32,
    debug_ids: Vec<String>,
    /// Whether every answer so far is complete past the last send.
    complete: bool,
}

impl<'a> Search<'a> {
    fn new(wanted: Wanted<'a>, complete_at: Timestamp, now: Timestamp) -> Self {
        Self {
            wanted,
            complete_at,
            now,
            page_size: PAGE_SIZE,
            found: Vec::new(),
            digest: Sha256::new(),
            last_refreshed: None,
            rows: 0,
            answers: 0,
            debug_ids: Vec::new(),
            complete: true,
        }
    }

    /// Makes pages half as large, as far as that goes.
    fn smaller(&mut self) -> Option<()> {
        let half = (self.page_size / 2).max(LEAST_PAGE_SIZE);
        let smaller = half < self.page_size;
        self.page_size = half;
        smaller.then_some(())
    }

    /// Reads every page of one span.
    async fn read(&mut self, client: &Client, span: Window) -> Result<Span, Evidence> {
        let mut page = 1;
        let mut rows: u64 = 0;
        loop {
            let most = MAX_ROWS.div_ceil(self.page_size);
            if self.answers >= MAX_SEARCHES || page > most {
                return Err(unreadable("too many pages"));
            }
            let request = search_transactions(span, page, self.page_size)
                .map_err(|error| Evidence::Unreadable { why: error.to_string() })?;
            let exchange = client.send(&request).await;
            if exchange.too_long {
                return Ok(Span::PageTooLong);
            }
            let Some(answer) = self.page(&exchange)? else { return Ok(Span::TooLarge) };
            let (pages, items) = self.check(answer, span, page)?;
            rows = rows.saturating_add(u64::try_from(answer.rows.len()).unwrap_or(u64::MAX));
            self.take(&exchange, answer);
            if page >= pages {
                // A page that shrank while others were read could hide a row.
                if rows != items {
                    return Err(unreadable("the pages do not add up to the total"));
                }
                self.rows = self.rows.saturating_add(rows);
                return Ok(Span::Read);
            }
            page = page.saturating_add(1);
        }
    }

    /// The page of an answer; `None` when the span holds too many rows for one search.
    fn page<'e>(&self, exchange: &'e Exchange) -> Result<Option<&'e TransactionPage>, Evidence> {
        match &exchange.outcome {
            Outcome::Done { resource: Resource::Transactions(page) } => Ok(Some(page)),
            Outcome::Refused { issue, .. } if issue == "RESULTSET_TOO_LARGE" => Ok(None),
            Outcome::Refused { .. } if exchange.body.contains("RESULTSET_TOO_LARGE") => Ok(None),
            // The window begins after the report ends: PayPal refuses it in these words.
            Outcome::Refused { .. }
                if exchange.status == Some(400) && exchange.body.contains("is not available") =>
            {
                Err(self.not_yet(None))
            }
            other => {
                let what = other.issue().unwrap_or(other.as_str());
                Err(Evidence::Unreadable { why: format!("search answered {what}") })
            }
        }
    }

    /// Whether an answer can carry a proof; the totals it claims.
    fn check(
        &mut self,
        answer: &TransactionPage,
        span: Window,
        page: u32,
    ) -> Result<(u32, u64), Evidence> {
        let refreshed =
            answer.last_refreshed.ok_or_else(|| unreadable("no last_refreshed_datetime"))?;
        let behind = refreshed < self.complete_at;
        let shorter = answer.from.is_some_and(|from| from > span.from)
            || answer.to.is_some_and(|to| to < span.to);
        // A row that is there is there, however old or short the report.
        if self.carries(answer) {
            self.complete &= !behind && !shorter;
        } else if behind {
            return Err(self.not_yet(Some(refreshed)));
        } else if shorter {
            return Err(unreadable("PayPal searched a shorter window"));
        }
        if answer.page.is_some_and(|answered| answered != page) {
            return Err(unreadable("PayPal answered another page"));
        }
        let (Some(pages), Some(items)) = (answer.total_pages, answer.total_items) else {
            return Err(unreadable("no totals"));
        };
        Ok((pages, items))
    }

    fn carries(&self, answer: &TransactionPage) -> bool {
        answer.rows.iter().any(|row| self.wanted.is(row))
    }

    fn take(&mut self, exchange: &Exchange, answer: &TransactionPage) {
        for row in answer.rows.iter().filter(|row| self.wanted.is(row)) {
            // Neighbouring windows share an instant.
            if !self.found.contains(row) {
                self.found.push(row.clone());
            }
        }
        // Each answer's length keeps two answers from reading as one.
        let length = u64::try_from(exchange.body.len()).unwrap_or(u64::MAX);
        self.digest.update(length.to_be_bytes());
        self.digest.update(exchange.body.as_bytes());
        let refreshed = answer.last_refreshed;
        self.last_refreshed = match (self.last_refreshed, refreshed) {
            (Some(earlier), Some(refreshed)) => Some(earlier.min(refreshed)),
            (earlier, refreshed) => earlier.or(refreshed),
        };
        self.answers = self.answers.saturating_add(1);
        self.debug_ids.extend(exchange.debug_id.clone());
    }

    /// When to ask again: when the report should have caught up, at least [`ASK_AGAIN`] from now.
    fn not_yet(&self, refreshed: Option<Timestamp>) -> Evidence {
        let behind = refreshed
            .map_or(SignedDuration::ZERO, |refreshed| self.complete_at.duration_since(refreshed));
        let until = self.now.saturating_add(behind.max(ASK_AGAIN)).unwrap_or(self.now);
        Evidence::NotYet { until }
    }

    fn conclude(self, window: Window) -> Evidence {
        if !self.found.is_empty() {
            return Evidence::Found { rows: self.found, complete: self.complete };
        }
        let Some(last_refreshed) = self.last_refreshed else {
            return unreadable("nothing was read");
        };
        // INVARIANT: absence_is_claimed_only_of_a_report_complete_past_the_last_send
        if last_refreshed < self.complete_at {
            return self.not_yet(Some(last_refreshed));
        }
        Evidence::Absent(Box::new(Absence {
            sought: self.wanted.text().to_owned(),
            window,
            answers_sha256: hex::encode(self.digest.finalize()),
            last_refreshed,
            rows: self.rows,
            answers: self.answers,
            debug_ids: self.debug_ids,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn the_window_reaches_an_hour_around_the_sends() {
        let window = window(at("2026-11-30T09:00:00.250Z"), at("2026-11-30T10:00:00.250Z"));
        assert_eq!(window.from, at("2026-11-30T08:00:00Z"));
        assert_eq!(window.to, at("2026-11-30T11:00:01Z"));
    }

    #[test]
    fn long_windows_are_cut_without_gaps() {
        let window = Window { from: at("2026-01-01T00:00:00Z"), to: at("2026-03-15T00:00:00Z") };
        let spans = window.split();
        assert_eq!(spans.len(), 3);
        assert_eq!(spans.first().map(|span| span.from), Some(window.from));
        assert_eq!(spans.last().map(|span| span.to), Some(window.to));
        assert!(spans.windows(2).all(|pair| pair[0].to == pair[1].from));
        assert!(spans.iter().all(|span| search_transactions(*span, 1, PAGE_SIZE).is_ok()));
        let second = Window { from: window.from, to: at("2026-01-01T00:00:01Z") };
        assert_eq!(second.halves(), None);
        let (early, late) = window.halves().unwrap();
        assert_eq!((early.from, early.to, late.to), (window.from, late.from, window.to));
    }
}
