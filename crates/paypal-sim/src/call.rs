//! One request on its way through an operation.

use http::{HeaderMap, Method};
use jiff::Timestamp;
use serde_json::Value;

use crate::answer::Problem;
use crate::check::{Rule, breaches};
use crate::faults::{Effect, Moment};
use crate::money::{FeeSchedule, Money};
use crate::world::World;

/// A request that was read to its end.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: bytes::Bytes,
}

impl Request {
    /// A header as text; empty counts as absent.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok()).filter(|text| !text.is_empty())
    }

    /// The last value of a query parameter. Official clients repeat parameters and send runs of
    /// `&&`; both are harmless here.
    pub(crate) fn parameter(&self, name: &str) -> Option<String> {
        url::form_urlencoded::parse(self.query.as_bytes())
            .filter(|(key, value)| key == name && !value.is_empty())
            .map(|(_, value)| value.into_owned())
            .last()
    }

    /// What the `contains` of a fault looks at.
    pub(crate) fn text(&self) -> String {
        format!("{}?{}\n{}", self.path, self.query, String::from_utf8_lossy(&self.body))
    }

    /// `PayPal-Request-Id`.
    pub(crate) fn key(&self) -> Option<&str> {
        self.header("paypal-request-id")
    }

    /// Whether the client asked for the whole resource.
    pub(crate) fn wants_representation(&self) -> bool {
        self.header("prefer").is_some_and(|prefer| prefer.contains("return=representation"))
    }
}

/// An operation at work.
pub(crate) struct Call<'a> {
    pub(crate) world: &'a mut World,
    pub(crate) now: Timestamp,
    pub(crate) operation: &'static str,
    pub(crate) request: &'a Request,
    /// The ids in the path.
    pub(crate) ids: Vec<String>,
    /// The body; null if there was none.
    pub(crate) body: Value,
    /// The number of this call in the journal.
    pub(crate) seq: u64,
}

impl Call<'_> {
    /// The first id of the path.
    pub(crate) fn id(&self) -> String {
        self.ids.first().cloned().unwrap_or_default()
    }

    /// Checks the body against its schema; an absent body counts as `{}`.
    pub(crate) fn check(&mut self, rule: &Rule) -> Result<(), Problem> {
        if self.body.is_null() {
            self.body = Value::Object(serde_json::Map::new());
        }
        let found = breaches(rule, &self.body);
        if found.is_empty() { Ok(()) } else { Err(Problem::invalid(found)) }
    }

    /// A text member of the body.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.body.get(name).and_then(Value::as_str).map(str::to_owned)
    }

    /// The fault of this moment, if one is set.
    pub(crate) fn fault(&mut self, moment: Moment) -> Option<Effect> {
        let text = self.request.text();
        self.world.faults.on_call(moment, self.operation, &text)
    }

    /// Refuses the call if a fault says so.
    pub(crate) fn refusal(&mut self) -> Result<(), Problem> {
        match self.fault(Moment::Refusal) {
            Some(Effect::Issue { issue }) => Err(Problem::by_issue(&issue, self.operation)),
            _ => Ok(()),
        }
    }

    /// For calls that make a payment: refuses it, or says how it turns out, if a fault says so.
    pub(crate) fn decision(&mut self) -> Result<Option<Effect>, Problem> {
        self.refusal()?;
        Ok(self.fault(Moment::Outcome))
    }

    /// What PayPal will keep of a capture of `gross`.
    pub(crate) fn fee_on(&mut self, gross: Money) -> Money {
        let schedule = match self.fault(Moment::Fee) {
            Some(Effect::Fee { rate_ppm, fixed_micros }) => FeeSchedule { rate_ppm, fixed_micros },
            _ => self.world.config.fees,
        };
        schedule.fee_on(gross)
    }

    /// Notes something a careful client would not do.
    pub(crate) fn violation(&mut self, code: &'static str, detail: String) {
        self.world.journal.note(self.seq, code, detail);
    }
}
