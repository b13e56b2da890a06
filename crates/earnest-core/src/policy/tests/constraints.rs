//! Constraints and budgets to the cent, and everything that denies because it is not understood.

use super::*;

/// The verdict on a purchase of $0.10 under one constraint of the agent's.
fn under(constraint: Value) -> String {
    under_each(&json!([constraint]), |_| ())
}

fn under_each(constraints: &Value, change: impl FnOnce(&mut Case)) -> String {
    let mut case = fine();
    case.agent_limits = Some(json!({ "constraints": constraints }));
    change(&mut case);
    match verdict(&case) {
        Decision::Allow(_) => "allow".to_owned(),
        Decision::NeedsApproval(_) => "ask".to_owned(),
        Decision::Deny(why) => {
            assert_eq!(why.reason, Some(Reason::Constraint), "{why:?}");
            why.detail
        }
    }
}

fn kind(kind: &str, mut members: Value) -> Value {
    members["type"] = json!(kind);
    members
}

#[test]
fn an_amount_range_counts_in_cents() {
    let range = |min: i64, max: i64| {
        under(kind("payment.amount_range", json!({ "currency": "USD", "min": min, "max": max })))
    };
    assert_eq!(range(0, 10), "allow");
    assert_eq!(range(10, 10), "allow");
    assert!(range(0, 9).contains("is not from $0.00 to $0.09"), "{}", range(0, 9));
    assert!(range(11, 20).contains("is not from"));
    let bare = kind("amount_range", json!({ "currency": "USD", "max": 10 }));
    assert_eq!(under(bare), "allow", "the short name means the same");
}

#[test]
fn a_payee_is_met_by_its_id_or_its_origin_and_never_by_its_name() {
    let payees = |list: Value| under(kind("payment.allowed_payees", json!({ "allowed": list })));
    let seller = SellerId::from_value(3).to_string();
    assert_eq!(payees(json!([{ "id": seller, "name": "Weather" }])), "allow");
    assert_eq!(payees(json!([{ "name": "W", "website": "https://API.example/shop" }])), "allow");
    assert_eq!(payees(json!([{ "name": "x" }, { "id": seller }])), "allow");
    for none in [
        json!([]),
        json!([{ "name": "Weather" }]),
        json!([{ "id": "sel_other" }]),
        json!([{ "id": seller, "website": "https://other.example" }]),
        json!([{ "id": "sel_other", "website": "https://api.example" }]),
        json!([{ "website": "http://api.example" }]),
    ] {
        assert!(payees(none.clone()).contains("not among its payees"), "{none}");
    }
}

#[test]
fn an_execution_date_is_a_day_of_the_owners_zone_or_a_moment() {
    // It is noon of 30 November in UTC.
    let dates = |members: Value, zone: &str| {
        under_each(&json!([kind("payment.execution_date", members)]), |case| {
            let zone = zone.parse().unwrap();
            case.owner = Owner::new(OwnerId::from_value(1), "Ada", zone, noon());
            let (vault, token) = (VaultId::from_value(1), "token".to_owned());
            case.owner.funding =
                Some(Funding { vault, token, payer_sha256: None, email_sha256: None });
        })
    };
    let day = |day: &str| json!({ "not_before": day, "not_after": day });
    assert_eq!(dates(day("2026-11-30"), "UTC"), "allow");
    assert!(dates(day("2026-12-01"), "UTC").contains("too early"));
    assert!(dates(day("2026-11-29"), "UTC").contains("too late"));
    assert_eq!(dates(day("2026-12-01"), "Pacific/Kiritimati"), "allow", "there it is tomorrow");
    let at = |at: &str| json!({ "not_after": at });
    assert_eq!(dates(at("2026-11-30T13:00:00+01:00"), "UTC"), "allow");
    assert!(dates(at("2026-11-30T12:59:59+01:00"), "UTC").contains("too late"));
}

#[test]
fn what_is_not_understood_denies() {
    for constraint in [
        json!("payment.budget"),
        json!({}),
        json!({ "type": 7 }),
        kind("payment.colour", json!({})),
        kind("payment.allowed_payment_instruments", json!({ "allowed": [] })),
        kind("payment.reference", json!({ "conditional_transaction_id": "x" })),
        kind("checkout.amount_range", json!({ "currency": "USD", "max": 10 })),
        kind("payment.amount_range", json!({ "currency": "USD" })),
        kind("payment.amount_range", json!({ "currency": "EUR", "max": 10 })),
        kind("payment.amount_range", json!({ "currency": "USD", "max": 10.5 })),
        kind("payment.amount_range", json!({ "currency": "USD", "max": -1 })),
        kind("payment.amount_range", json!({ "currency": "USD", "max": 10, "step": 1 })),
        kind("payment.budget", json!({ "currency": "USD", "max": "50" })),
        kind("payment.budget", json!({ "currency": "USD", "max": -1 })),
        kind("payment.budget", json!({ "currency": "USD", "max": 1e40 })),
        kind("payment.allowed_payees", json!({ "allowed": "all" })),
        kind("payment.allowed_payees", json!({ "allowed": [{ "id": 7 }] })),
        kind("payment.allowed_payees", json!({ "allowed": [{ "website": "not a url" }] })),
        kind("payment.agent_recurrence", json!({ "frequency": "HOURLY" })),
        kind("payment.agent_recurrence", json!({ "frequency": "DAILY", "max_occurrences": "3" })),
        kind("payment.execution_date", json!({ "not_after": "tomorrow" })),
    ] {
        let why = under(constraint.clone());
        assert!(why.starts_with("the constraint `"), "{constraint}: {why}");
    }
}

#[test]
fn constraints_of_owner_and_agent_bind_together() {
    let range = |max: i64| kind("payment.amount_range", json!({ "currency": "USD", "max": max }));
    for (owner, agent, expect) in [(10, 10, "allow"), (9, 10, "constraint"), (10, 9, "constraint")]
    {
        check(expect, |case| {
            case.owner_limits = Some(json!({ "constraints": [range(owner)] }));
            case.agent_limits = Some(json!({ "constraints": [range(agent)] }));
        });
    }
    check("constraint", |case| {
        case.owner_limits = Some(json!({ "constraints": [range(9)] }));
        case.agent_limits = Some(json!({ "constraints": [] }));
    });
}

fn met(owner: &Value, agent: &Value) -> Vec<Budget> {
    let parties = (OwnerId::from_value(1), AgentId::from_value(2), SellerId::from_value(3));
    let owner = policy(PolicySubject::Owner(parties.0), Some(owner));
    let agent = policy(PolicySubject::Agent(parties.1), Some(agent));
    let day = jiff::civil::date(2026, 11, 30);
    budgets(owner.as_ref(), agent.as_ref(), parties, day)
}

#[test]
fn budgets_count_apart_for_owner_agent_seller_window_and_constraint() {
    let seller = SellerId::from_value(3).to_string();
    let budget =
        |every: &str, cap: i64| json!({ "seller": seller, "every": every, "cap_micros": cap });
    let other =
        json!({ "seller": SellerId::from_value(4).to_string(), "every": "day", "cap_micros": 1 });
    let owner = json!({ "seller_budgets": [budget("day", 5), budget("month", 9), other] });
    let names = |found: Vec<Budget>| -> Vec<String> {
        found.iter().map(|it| format!("{} {}", it.account.account, it.cap.get())).collect()
    };
    let (own, agt) = (OwnerId::from_value(1), AgentId::from_value(2));
    assert_eq!(
        names(met(&owner, &json!({ "seller_budgets": [budget("week", 7)] }))),
        [
            format!("limit:{own}:seller:{seller}/day/2026-11-30 5"),
            format!("limit:{own}:seller:{seller}/month/2026-11-01 9"),
            format!("limit:{agt}:seller:{seller}/week/2026-11-30 7"),
        ]
    );
    assert_eq!(met(&owner, &json!({})).len(), 4, "inherited, each on the agent's own account");
    // A budget of 50.25 is dollars; its uses are counted without money.
    let spend = kind("payment.budget", json!({ "currency": "USD", "max": 50.25 }));
    let daily =
        kind("payment.agent_recurrence", json!({ "frequency": "DAILY", "max_occurrences": 3 }));
    let found = met(&json!({}), &json!({ "constraints": [spend, daily, spend] }));
    assert_eq!(found.len(), 3, "the same text twice is one: {found:?}");
    assert_eq!(found[0].cap, micros(50_250_000));
    assert_eq!((found[1].cap, found[2].cap), (micros(1), micros(3)));
    let counted = found.iter().map(|it| it.counts(micros(PRICE)).get());
    assert_eq!(counted.collect::<Vec<_>>(), [PRICE, 1, 1]);
    for budget in &found {
        let name = budget.account.account.to_string();
        assert_eq!(name.parse(), Ok(budget.account.account), "{name}");
    }
    let capitals = found[0].account.account.to_string().replace("budget:", "budget:A");
    assert!(capitals.parse::<crate::ledger::Account>().is_err());
}

/// A price of one micro-unit counts as much as one use does; what is said must still not be money.
#[test]
fn a_number_of_purchases_is_not_money_however_small_the_price() {
    let daily =
        kind("payment.agent_recurrence", json!({ "frequency": "DAILY", "max_occurrences": 3 }));
    let limits = json!({ "constraints": [daily] });
    let mut case = fine();
    case.price = Price::Fixed(micros(1));
    case.agent_limits = Some(limits.clone());
    case.budgets = met(&json!({}), &limits).into_iter().map(|it| (it, micros(3))).collect();
    let Decision::Deny(why) = verdict(&case) else { panic!("used up") };
    let said = serde_json::to_value(&why).unwrap().to_string();
    assert!(why.detail.ends_with("is 1, of which 3 is used"), "{}", why.detail);
    assert!(!said.contains('$') && !said.contains("price"), "{said}");
}

#[test]
fn a_budget_binds_to_the_micro_and_says_when_there_is_room_again() {
    let seller = SellerId::from_value(3).to_string();
    let limits = json!({ "seller_budgets": [{ "seller": seller, "every": "week",
        "cap_micros": 1_000_000 }] });
    let after = |used: i64| {
        let mut case = fine();
        case.agent_limits = Some(limits.clone());
        case.budgets = met(&json!({}), &limits).into_iter().map(|it| (it, micros(used))).collect();
        verdict(&case)
    };
    assert!(matches!(after(900_000), Decision::Allow(_)));
    let Decision::Deny(why) = after(900_001) else { panic!("over its budget") };
    assert_eq!(why.reason, Some(Reason::SellerBudget));
    let why = serde_json::to_value(&why).unwrap().to_string();
    assert!(why.contains("2026-12-07T00:00:00Z"), "the next Monday: {why}");
}

#[test]
fn a_policy_is_small_enough_to_be_asked_for_every_purchase() {
    let subject = PolicySubject::Owner(OwnerId::from_value(1));
    let payees = |count: usize, name: &str| {
        let one = json!({ "id": SellerId::from_value(3).to_string(), "name": name });
        Constraint::read(kind("payment.allowed_payees", json!({ "allowed": vec![one; count] })))
    };
    let refusal = |constraints: Vec<Constraint>| {
        let limits = Limits { constraints: Some(constraints), ..Limits::default() };
        limits.check(subject).err().map(|why| why.detail)
    };
    assert_eq!(refusal(vec![payees(500, "W"), payees(500, "W")]), None);
    let many = refusal(vec![payees(500, "W"), payees(501, "W")]);
    assert!(many.unwrap().contains("1000 payees altogether"));
    let long = refusal(vec![payees(500, &"W".repeat(100))]);
    assert!(long.unwrap().contains("64 kB"));
}
