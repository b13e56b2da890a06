//! The order of reasons, and every limit to the micro-unit.

mod constraints;

use super::*;
use crate::id::{QuoteId, VaultId};
use crate::money::Currency;
use crate::party::Funding;
use crate::quote::{Price, Resource};
use serde_json::{Value, json};

fn noon() -> Timestamp {
    "2026-11-30T12:00:00Z".parse().unwrap()
}

fn seconds_ago(seconds: i64) -> Timestamp {
    crate::time::after(noon(), -seconds)
}

/// Everything a decision looks at, owned, so that a case can change one thing.
struct Case {
    owner: Owner,
    agent: Agent,
    owner_limits: Option<Value>,
    agent_limits: Option<Value>,
    tab: TabFacts,
    seller_owns_url: bool,
    dealing: Dealing,
    used: Used,
    budgets: Vec<(Budget, Micros)>,
    asked: Vec<Timestamp>,
    approved: bool,
    grant_room: Option<Micros>,
    price: Price,
    max_price: i64,
}

const PRICE: i64 = 100_000;

fn open(owed: i64, room: i64) -> TabFacts {
    TabFacts::Open(OpenTab { owed: Micros::constant(owed), room: Micros::constant(room) })
}

/// A purchase that nothing stands against.
fn fine() -> Case {
    let owner_id = OwnerId::from_value(1);
    let mut owner = Owner::new(owner_id, "Ada", Zone::utc(), noon());
    let (vault, token) = (VaultId::from_value(1), "token".to_owned());
    owner.funding = Some(Funding { vault, token, payer_sha256: None, email_sha256: None });
    Case {
        owner,
        agent: Agent::new(AgentId::from_value(2), owner_id, "scout", noon()),
        owner_limits: Some(json!({})),
        agent_limits: Some(json!({})),
        tab: open(0, 1_000_000),
        seller_owns_url: true,
        dealing: Dealing::Apart,
        used: Used::default(),
        budgets: Vec::new(),
        asked: Vec::new(),
        approved: false,
        grant_room: None,
        price: Price::Fixed(Micros::constant(PRICE)),
        max_price: PRICE,
    }
}

fn policy(subject: PolicySubject, limits: Option<&Value>) -> Option<Policy> {
    let limits = limits?.clone();
    let owner = OwnerId::from_value(1);
    Some(Policy { subject, owner, version: 1, set_at: noon(), limits, read: ReadOnce::default() })
}

fn verdict(case: &Case) -> Decision {
    let (owner, agent) = (case.owner.id, case.agent.id);
    let owner_policy = policy(PolicySubject::Owner(owner), case.owner_limits.as_ref());
    let agent_policy = policy(PolicySubject::Agent(agent), case.agent_limits.as_ref());
    let facts = Facts {
        owner: &case.owner,
        agent: &case.agent,
        owner_policy: owner_policy.as_ref(),
        agent_policy: agent_policy.as_ref(),
        tab: case.tab,
        seller_owns_url: case.seller_owns_url,
        dealing: case.dealing,
        used: case.used,
        budgets: &case.budgets,
        asked: &case.asked,
        approved: case.approved,
        grant_room: case.grant_room,
    };
    let quote = Quote {
        id: QuoteId::from_value(1),
        seller: SellerId::from_value(3),
        listing: "GET /weather/*".to_owned(),
        request: Resource::new("GET", "https://api.example/", b"").unwrap(),
        price: case.price,
        currency: Currency::Usd,
        expires_at: noon(),
    };
    decide(&facts, &quote, Micros::constant(case.max_price), noon())
}

/// The verdict in one word, after a change to a purchase that nothing stands against.
fn check(expect: &str, change: impl FnOnce(&mut Case)) {
    let mut case = fine();
    change(&mut case);
    let found = match verdict(&case) {
        Decision::Allow(caps) if caps.approval => "allow by approval".to_owned(),
        Decision::Allow(caps) if caps.grant => "allow by grant".to_owned(),
        Decision::Allow(_) => "allow".to_owned(),
        Decision::NeedsApproval(why) => match why.reason {
            Some(reason) => format!("ask {}", reason.as_str()),
            None => "ask".to_owned(),
        },
        Decision::Deny(why) => why.reason.unwrap().as_str().to_owned(),
    };
    assert_eq!(found, expect);
}

fn micros(amount: i64) -> Micros {
    Micros::constant(amount)
}

/// Everything is wrong at once; each line mends the reason that stands first, so the table is
/// the order of precedence.
#[test]
fn reasons_stand_in_order_of_precedence() {
    let mut case = fine();
    case.owner_limits = None;
    case.owner.paused = true;
    case.owner.frozen = Some("a tab was written off".to_owned());
    case.agent.paused = true;
    case.tab = TabFacts::Frozen;
    case.seller_owns_url = false;
    case.dealing = Dealing::Same;
    case.max_price = PRICE - 1;
    case.used.owner_session = micros(950_000);
    case.used.owner_day = micros(950_000);
    case.asked = vec![seconds_ago(1)];
    case.owner.funding = None;
    let limits = json!({ "sellers": [], "listings": [], "per_call_cap_micros": PRICE - 1,
        "rate": { "count": 1, "per_seconds": 60 }, "session_cap_micros": 1_000_000,
        "day_cap_micros": 1_000_000, "approve_above_micros": 0, "unheard_of": true });
    type Mend = fn(&mut Case);
    let without = |name: &'static str| {
        move |case: &mut Case| {
            let limits = case.owner_limits.as_mut().unwrap();
            limits.as_object_mut().unwrap().remove(name);
        }
    };
    let whole = limits.clone();
    let set: Box<dyn Fn(&mut Case)> = Box::new(move |case| case.owner_limits = Some(whole.clone()));
    let plain = |mend: Mend| -> Box<dyn Fn(&mut Case)> { Box::new(mend) };
    let drop = |name| -> Box<dyn Fn(&mut Case)> { Box::new(without(name)) };
    let table = [
        ("policy_missing", set),
        ("policy_invalid", drop("unheard_of")),
        ("owner_paused", plain(|case| case.owner.paused = false)),
        ("owner_frozen", plain(|case| case.owner.frozen = None)),
        ("agent_paused", plain(|case| case.agent.paused = false)),
        ("tab_frozen", plain(|case| case.tab = TabFacts::Closed)),
        ("tab_closed", plain(|case| case.tab = open(950_000, 1_000_000))),
        ("merchant_not_allowed", plain(|case| case.seller_owns_url = true)),
        ("merchant_not_allowed", plain(|case| case.dealing = Dealing::Untold)),
        ("merchant_not_allowed", plain(|case| case.dealing = Dealing::Apart)),
        ("merchant_not_allowed", drop("sellers")),
        ("tool_not_allowed", drop("listings")),
        ("price_above_max", plain(|case| case.max_price = PRICE)),
        ("per_call_cap", drop("per_call_cap_micros")),
        ("rate_limit", plain(|case| case.asked.clear())),
        ("session_cap", plain(|case| case.used.owner_session = micros(900_000))),
        ("daily_cap", plain(|case| case.used.owner_day = micros(900_000))),
        ("funding_missing", plain(|case| case.owner.funding = fine().owner.funding)),
        ("tab_limit", plain(|case| case.tab = open(900_000, 1_000_000))),
    ];
    for (reason, mend) in table {
        match verdict(&case) {
            Decision::Deny(why) => assert_eq!(why.reason.unwrap().as_str(), reason),
            other => panic!("{reason}: {other:?}"),
        }
        mend(&mut case);
    }
    // What a hard cap refuses is never put to a human: the question is the last thing.
    assert!(matches!(verdict(&case), Decision::NeedsApproval(_)));
    case.approved = true;
    assert!(matches!(verdict(&case), Decision::Allow(_)));
}

#[test]
fn what_is_missing_or_unreadable_denies() {
    check("allow", |_| ());
    check("policy_missing", |case| case.owner_limits = None);
    check("policy_missing", |case| case.agent_limits = None);
    for bad in [
        json!(null),
        json!([]),
        json!({ "day_cap_micros": "5.00" }),
        json!({ "day_cap_micros": -1 }),
        json!({ "day_cap_micros": 1.5 }),
        json!({ "day_cap_micros": 9_007_199_254_740_992_u64 }),
        json!({ "day_cap_microz": 1 }),
        json!({ "rate": { "count": 1, "per_seconds": 1, "burst": 2 } }),
        json!({ "sellers": ["nobody"] }),
    ] {
        check("policy_invalid", |case| case.owner_limits = Some(bad.clone()));
        check("policy_invalid", |case| case.agent_limits = Some(bad.clone()));
    }
}

#[test]
fn an_agents_field_overrides_and_null_inherits() {
    let owner = |case: &mut Case, limits: Value| case.owner_limits = Some(limits);
    check("per_call_cap", |case| owner(case, json!({ "per_call_cap_micros": 1 })));
    check("allow", |case| {
        owner(case, json!({ "per_call_cap_micros": 1 }));
        case.agent_limits = Some(json!({ "per_call_cap_micros": PRICE }));
    });
    check("per_call_cap", |case| {
        owner(case, json!({ "per_call_cap_micros": 1 }));
        case.agent_limits = Some(json!({ "per_call_cap_micros": null }));
    });
    check("per_call_cap", |case| {
        case.agent_limits = Some(json!({ "per_call_cap_micros": 0 }));
    });
}

/// Every field of an agent's: one that allows over an owner's that does not, and the other way round.
#[test]
fn every_field_of_an_agents_overrides_alike() {
    let seller = SellerId::from_value(3);
    // Those that count on the agent's own accounts, or on none.
    for (field, allows, denies, reason) in [
        ("per_call_cap_micros", json!(PRICE), json!(1), "per_call_cap"),
        ("session_cap_micros", json!(PRICE), json!(1), "session_cap"),
        ("day_cap_micros", json!(PRICE), json!(1), "daily_cap"),
        ("approve_above_micros", json!(PRICE), json!(1), "ask"),
        (
            "rate",
            json!({ "count": 9, "per_seconds": 60 }),
            json!({ "count": 1, "per_seconds": 60 }),
            "rate_limit",
        ),
        ("sellers", json!([seller]), json!([]), "merchant_not_allowed"),
        ("listings", json!(["GET /weather/*"]), json!([]), "tool_not_allowed"),
    ] {
        let with = |owner: Option<&Value>, agent: Option<&Value>| {
            let limits = |value: Option<&Value>| Some(json!({ field: value }));
            let (owner, agent) = (limits(owner), limits(agent));
            move |case: &mut Case| {
                case.asked = vec![seconds_ago(1)];
                (case.owner_limits, case.agent_limits) = (owner, agent);
            }
        };
        check(reason, with(Some(&denies), None));
        check(reason, with(Some(&allows), Some(&denies)));
        check("allow", with(Some(&allows), None));
        // The caps of a window bind on the owner's accounts as well, whatever the agent's say.
        let window = matches!(field, "session_cap_micros" | "day_cap_micros");
        check(if window { reason } else { "allow" }, with(Some(&denies), Some(&allows)));
    }
}

/// An owner's cap and an agent's each have an account of their own, so both bind.
#[test]
fn every_cap_binds_to_the_micro() {
    let cap = micros(500_000);
    let left = |price: i64| micros(500_000 - price);
    type Set = fn(&mut Used, Micros);
    let table: [(&str, &str, bool, Set); 4] = [
        ("session_cap", "session_cap_micros", true, |used, v| used.owner_session = v),
        ("session_cap", "session_cap_micros", false, |used, v| used.agent_session = v),
        ("daily_cap", "day_cap_micros", true, |used, v| used.owner_day = v),
        ("daily_cap", "day_cap_micros", false, |used, v| used.agent_day = v),
    ];
    for (reason, field, owners, set) in table {
        for (used, expect) in
            [(left(PRICE), "allow"), (left(PRICE - 1), reason), (micros(600_000), reason)]
        {
            check(expect, |case| {
                let limits = Some(json!({ field: cap }));
                if owners {
                    case.owner_limits = limits;
                    // Wide enough not to be the one that binds.
                    case.agent_limits = Some(json!({ field: 9_000_000 }));
                } else {
                    case.agent_limits = limits;
                }
                set(&mut case.used, used);
            });
        }
    }
    check("allow", |case| case.tab = open(900_000, 1_000_000));
    check("tab_limit", |case| case.tab = open(900_001, 1_000_000));
    check("tab_limit", |case| case.tab = open(5_000_000, 1_000_000));
    check("tab_limit", |case| case.tab = open(0, 0));
}

#[test]
fn a_ceiling_counts_in_full() {
    check("per_call_cap", |case| {
        case.price = Price::UpTo(micros(PRICE));
        case.owner_limits = Some(json!({ "per_call_cap_micros": PRICE - 1 }));
    });
}

#[test]
fn what_is_above_the_threshold_needs_an_answer() {
    let above = |case: &mut Case, above: i64| {
        case.owner_limits = Some(json!({ "approve_above_micros": above }));
    };
    check("allow", |case| above(case, PRICE));
    check("ask", |case| above(case, PRICE - 1));
    check("allow by approval", |case| {
        above(case, PRICE - 1);
        case.approved = true;
        case.grant_room = Some(micros(PRICE));
    });
    check("allow by grant", |case| {
        above(case, PRICE - 1);
        case.grant_room = Some(micros(PRICE));
    });
    check("ask grant_exhausted", |case| {
        above(case, PRICE - 1);
        case.grant_room = Some(micros(PRICE - 1));
    });
    // Below the threshold nothing is drawn on either.
    check("allow", |case| {
        above(case, PRICE);
        case.approved = true;
        case.grant_room = Some(micros(PRICE));
    });
}

#[test]
fn a_rate_says_when_there_is_room_again() {
    let wait = |asked: &[i64], count: u32, per_seconds: i64| {
        let mut case = fine();
        let rate = json!({ "count": count, "per_seconds": per_seconds });
        case.owner_limits = Some(json!({ "rate": rate }));
        case.asked = asked.iter().map(|ago| seconds_ago(*ago)).collect();
        match verdict(&case) {
            Decision::Allow(_) => None,
            Decision::Deny(why) => {
                assert_eq!(why.reason, Some(Reason::RateLimit));
                why.retry_after_seconds
            }
            Decision::NeedsApproval(why) => panic!("{why}"),
        }
    };
    assert_eq!(wait(&[], 1, 60), None);
    assert_eq!(wait(&[60], 1, 60), None);
    assert_eq!(wait(&[59], 1, 60), Some(1));
    assert_eq!(wait(&[30, 20, 10], 3, 60), Some(30));
    assert_eq!(wait(&[30, 20, 10], 4, 60), None);
    // A lowered limit waits for the oldest of the last so many.
    assert_eq!(wait(&[30, 20, 10], 1, 60), Some(50));
}

#[test]
fn limits_that_make_no_sense_are_refused_by_name() {
    let agent = PolicySubject::Agent(AgentId::from_value(2));
    let owner = PolicySubject::Owner(OwnerId::from_value(1));
    let field = |subject, limits: Value| {
        let limits: Limits = serde_json::from_value(limits).unwrap();
        limits.check(subject).err().map(|why| why.numbers["field"].as_str().unwrap().to_owned())
    };
    let rate = |count: u32, per_seconds: i64| json!({ "rate": { "count": count, "per_seconds": per_seconds } });
    assert_eq!(field(owner, json!({})), None);
    assert_eq!(field(owner, json!({ "tab_limit_micros": 1 })), None);
    assert_eq!(field(agent, json!({ "tab_limit_micros": 1 })), Some("tab_limit_micros".into()));
    assert_eq!(field(owner, rate(0, 60)), Some("rate.count".into()));
    assert_eq!(field(owner, rate(1_001, 60)), Some("rate.count".into()));
    assert_eq!(field(owner, rate(1, 0)), Some("rate.per_seconds".into()));
    assert_eq!(field(owner, rate(1, 86_401)), Some("rate.per_seconds".into()));
    assert_eq!(field(owner, rate(1_000, 86_400)), None);
    let many = vec![SellerId::from_value(1); 1_001];
    assert_eq!(field(owner, json!({ "sellers": many })), Some("sellers".into()));
    assert_eq!(careful_limits().check(owner), Ok(()));
}

#[test]
fn a_day_cap_says_when_the_day_ends() {
    let mut case = fine();
    case.owner.zone = "Europe/Amsterdam".parse().unwrap();
    case.owner_limits = Some(json!({ "day_cap_micros": 500_000 }));
    case.used.owner_day = micros(500_000);
    let Decision::Deny(why) = verdict(&case) else { panic!("the cap is used") };
    assert_eq!(why.retry_after_seconds, Some(11 * 3_600));
    assert_eq!(why.numbers["resets_at"], "2026-11-30T23:00:00Z");
    // Waiting does not help where the price alone is above the cap.
    case.owner_limits = Some(json!({ "day_cap_micros": PRICE - 1 }));
    let Decision::Deny(why) = verdict(&case) else { panic!("the price is above the cap") };
    assert_eq!(why.retry_after_seconds, None);
}

#[test]
fn the_smaller_limit_less_what_earlier_tabs_owe_is_the_room() {
    let room = |own: Option<i64>, line, earlier| {
        crate::tab::room(own.map(micros), micros(line), micros(earlier)).get()
    };
    assert_eq!(room(None, 20, 0), 20);
    assert_eq!(room(Some(5), 20, 0), 5);
    assert_eq!(room(Some(50), 20, 0), 20);
    assert_eq!(room(Some(5), 20, 3), 2);
    assert_eq!(room(Some(5), 20, 9), 0);
}
