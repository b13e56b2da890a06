//! What calls to models cost: reserved before each call, booked after it.
//!
//! Models sit outside the money path, and cost money all the same. A call is first a pending chain
//! `model_costs -> model_payable` with a leg on the installation's cap of the day; its answer posts
//! what it cost, and an answer that does not say so, or never came, posts what was reserved. A cap
//! that is used up is no error: the call is not made.

use jiff::civil::Date;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::chain::{ChainKind, chain_of};
use crate::id::{ModelCallId, TransferId};
use crate::ledger::{Account, AccountId, Cause, Leg, Op, Subject, Window};
use crate::money::Micros;
use crate::time::{Timestamp, Zone, after};
use crate::unit::{Effects, ListEntry, Record, Stop, Touches, Unit, View, rank};

/// How long whoever made a call has to say what it cost, in seconds: longer than the longest wait
/// for an answer. After that it counts as lost.
pub const CALL_SECONDS: i64 = 300;

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// Its cost is reserved; it may be under way.
    Reserved,
    /// It ended, and its cost is known.
    Ended,
    /// It ended, or may have, and what was reserved counts as its cost.
    Unknown,
}

/// A call to a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCall {
    /// Its id; its hold has the same.
    pub id: ModelCallId,
    /// What the model was asked as, such as `advisor`.
    pub role: String,
    /// The name of the model.
    pub model: String,
    /// Where it stands.
    pub state: CallState,
    /// The day whose cap it counts under, in UTC.
    pub day: Date,
    /// What was reserved.
    pub reserved_micros: Micros,
    /// What it cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<Micros>,
    /// Tokens of the question, where the answer counted them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens of the answer, where the answer counted them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// What came of it, in one word: `answered`, or why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// When it was reserved.
    pub at: Timestamp,
    /// When it counts as lost, if it has not ended.
    pub lost_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

impl ModelCall {
    /// The chain that reserves its cost.
    pub const fn hold(&self) -> TransferId {
        TransferId::from_value(self.id.value())
    }

    /// The chain of what it cost above what was reserved.
    pub fn excess(&self) -> TransferId {
        chain_of(ChainKind::ModelExcess, &self.id.to_string())
    }
}

impl Record for ModelCall {
    const KIND: &'static str = "model_call";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.id.to_string()
    }
    fn lists(&self) -> Vec<ListEntry> {
        let mut lists = vec![ListEntry::new("model_calls", "", self.id)];
        if self.state == CallState::Reserved {
            lists.push(ListEntry::timed("model_calls.open", "", self.lost_at));
        }
        lists
    }
}

/// A call that is to be made.
#[derive(Clone, Debug)]
pub struct NewCall {
    /// Its id.
    pub id: ModelCallId,
    /// What the model is asked as.
    pub role: &'static str,
    /// The name of the model.
    pub model: String,
    /// The most it should cost; above zero.
    pub reserve: Micros,
    /// The most that all calls of a day may cost.
    pub daily_cap: Micros,
}

/// The day a call made now counts under: in UTC, since an installation has no zone of its own.
pub fn day_of(now: Timestamp) -> Date {
    Zone::utc().day(now)
}

/// The account that counts what models cost on a day.
pub const fn cap_account(day: Date) -> AccountId {
    Account::Limit(Subject::Models, Window::Day(day)).usd()
}

fn legs(day: Date, amount: Micros) -> [Leg; 2] {
    [
        Leg::new(Account::ModelCosts.usd(), Account::ModelPayable.usd(), amount),
        Leg::new(cap_account(day), Account::MemoDay(day).usd(), amount),
    ]
}

impl NewCall {
    /// Touches what [`NewCall::reserve`] needs.
    pub(crate) fn touch(&self, touches: &mut Touches, now: Timestamp) {
        touches.row::<ModelCall>(self.id);
        touches.hold(TransferId::from_value(self.id.value()));
        for leg in legs(day_of(now), self.reserve) {
            touches.account(leg.debit);
            touches.account(leg.credit);
        }
    }

    /// Reserves the cost, and gives the row; `None` where the day's cap has no room for it.
    pub(crate) fn reserve<A>(
        &self,
        view: &View,
        effects: &mut Effects<A>,
        now: Timestamp,
    ) -> Result<Option<ModelCall>, Stop> {
        let day = day_of(now);
        let used = view.totals(cap_account(day))?.owed();
        // INVARIANT: models_cost_at_most_their_cap
        if used.checked_add(self.reserve).is_none_or(|sum| sum > self.daily_cap) {
            return Ok(None);
        }
        let call = ModelCall {
            id: self.id,
            role: self.role.to_owned(),
            model: self.model.clone(),
            state: CallState::Reserved,
            day,
            reserved_micros: self.reserve,
            cost_micros: None,
            input_tokens: None,
            output_tokens: None,
            outcome: None,
            at: now,
            lost_at: after(now, CALL_SECONDS),
            ended_at: None,
        };
        let [cost, cap] = legs(day, self.reserve);
        let legs = vec![cost, cap.within(self.daily_cap)];
        effects.op(Op::Hold { id: call.hold(), cause: Cause::ModelCall, legs });
        effects.put(call.clone())?;
        Ok(Some(call))
    }
}

/// Reserves what a call may cost that concerns no tab: somebody tries a model.
#[derive(Clone, Debug)]
pub struct TryCall(pub NewCall);

impl Unit for TryCall {
    /// The call; none where the day's cap has no room for it.
    type Answer = Option<ModelCall>;

    fn name(&self) -> &'static str {
        "model.try"
    }

    fn touches(&self, _: &View, now: Timestamp) -> Touches {
        let mut touches = Touches::new();
        self.0.touch(&mut touches, now);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Option<ModelCall>>, Stop> {
        let mut effects = Effects::answer(());
        let call = self.0.reserve(view, &mut effects, now)?;
        Ok(effects.map(|()| call))
    }
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What it cost; `None` where nobody knows: then what was reserved counts.
    pub cost: Option<Micros>,
    /// Tokens of the question, where the answer counted them.
    pub input_tokens: Option<u64>,
    /// Tokens of the answer, where the answer counted them.
    pub output_tokens: Option<u64>,
    /// What came of it, in one word.
    pub outcome: String,
}

/// Books what a call cost. A call that ended before stays as it is.
#[derive(Clone, Debug)]
pub struct EndCall {
    /// Which call.
    pub id: ModelCallId,
    /// How it ended; `None` for one that nobody spoke of in time.
    pub ended: Option<Ended>,
}

impl Unit for EndCall {
    /// What it cost.
    type Answer = Option<Micros>;

    fn name(&self) -> &'static str {
        "model.end"
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<ModelCall>(self.id);
        if let Some(call) = view.peek::<ModelCall>(self.id) {
            touches.hold_and_accounts(call.hold(), view);
            touches.hold(call.excess());
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Option<Micros>>, Stop> {
        let call = view.need::<ModelCall>(self.id)?;
        let early = self.ended.is_none() && now < call.lost_at;
        if call.state != CallState::Reserved || early {
            return Ok(Effects::answer(call.cost_micros));
        }
        let lost =
            Ended { cost: None, input_tokens: None, output_tokens: None, outcome: "lost".into() };
        let ended = self.ended.as_ref().unwrap_or(&lost);
        let cost = ended.cost.unwrap_or(call.reserved_micros);
        let mut effects = Effects::answer(Some(cost));
        let posted = cost.min(call.reserved_micros);
        effects.op(match posted.is_zero() {
            true => Op::Void { id: call.hold() },
            false => Op::Post { id: call.hold(), amounts: vec![posted; 2] },
        });
        let excess = cost.saturating_sub(posted);
        if !excess.is_zero() {
            // It is spent already, so no cap can refuse it; but it counts under the cap.
            let legs = legs(call.day, excess).to_vec();
            effects.op(Op::Move { id: call.excess(), cause: Cause::ModelCall, legs });
            let data = json!({ "call": call.id, "role": call.role, "cost_micros": cost,
                "reserved_micros": call.reserved_micros });
            effects.event("alarm.model_cost_above_reserve", &[], data);
        }
        let known = ended.cost.is_some();
        let data = json!({ "call": call.id, "role": call.role, "model": call.model,
            "cost_micros": cost, "known": known, "outcome": ended.outcome });
        effects.event("model.called", &[], data);
        effects.put(ModelCall {
            state: if known { CallState::Ended } else { CallState::Unknown },
            cost_micros: Some(cost),
            input_tokens: ended.input_tokens,
            output_tokens: ended.output_tokens,
            outcome: Some(ended.outcome.clone()),
            ended_at: Some(now),
            ..call.clone()
        })?;
        Ok(effects)
    }
}
