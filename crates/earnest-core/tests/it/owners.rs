//! Owners and what stands beside them: creation under a key, policies and their versions, pauses,
//! payment methods, credit lines.

use earnest_core::admin::{
    AddKey, CreateAgent, CreateOwner, CreateSeller, NewLimits, Pausable, RevokeKey, SetCredit,
    SetPolicy,
};
use earnest_core::id::{AgentId, OwnerId, SellerId};
use earnest_core::intent::Fate;
use earnest_core::ledger::Account;
use earnest_core::party::{Agent, ApiKey, Owner, Principal, Seller};
use earnest_core::payer::Standing;
use earnest_core::policy::{Limits, Policy, PolicySubject, PolicyVersion};
use earnest_core::report::Step;
use earnest_core::settings::Settings;
use earnest_core::tab::TabState;
use earnest_core::time::Zone;
use earnest_core::vault::{Remove, Vault, VaultState};
use earnest_core::voucher::{self, ReportOutcome};
use earnest_store::SubmitError;

use crate::world::{World, each, each_with, micros};

fn code<T>(result: &Result<T, SubmitError>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(why) => why.code().to_string(),
    }
}

#[test]
fn a_creation_under_a_key_happens_once_and_other_arguments_are_told() {
    each(|world| {
        let creation = |name: &str| {
            let mut creation = world.creation(name);
            creation.key = Some("k".to_owned());
            creation
        };
        let owner = |name: &str, zone: &str| {
            let (id, zone) = (OwnerId::new(world.seed()), zone.parse::<Zone>().unwrap());
            world.run(CreateOwner { creation: creation(name), id, zone })
        };
        let first = owner("Ada", "UTC").unwrap();
        assert_eq!(owner("Ada", "UTC").unwrap().id, first.id);
        assert_eq!(code(&owner("Bob", "UTC")), "idempotency_conflict");
        assert_eq!(code(&owner("Ada", "Asia/Tokyo")), "idempotency_conflict");
        let second = world.owner();
        let agent = |owner| {
            let id = AgentId::new(world.seed());
            world.run(CreateAgent { creation: creation("scout"), owner, id })
        };
        let scout = agent(first.id).unwrap();
        assert_eq!(agent(first.id).unwrap().id, scout.id);
        assert_eq!(code(&agent(second)), "idempotency_conflict");
        let seller = |recipient: Option<&str>, commission_ppm| {
            let payout_recipient = recipient.map(str::to_owned);
            let id = SellerId::new(world.seed());
            let creation = creation("Weather");
            world.run(CreateSeller { creation, id, payout_recipient, commission_ppm })
        };
        let shop = seller(None, 0).unwrap();
        assert_eq!(seller(None, 0).unwrap().id, shop.id);
        assert_eq!(code(&seller(None, 1)), "idempotency_conflict");
        assert_eq!(code(&seller(Some(""), 0)), "idempotency_conflict");
        assert_eq!(world.all::<Owner>().len(), 2);
        assert_eq!((world.all::<Agent>().len(), world.all::<Seller>().len()), (1, 1));
    });
}

#[test]
fn bad_names_and_shares_are_refused() {
    each(|world| {
        let owner = |name: &str| {
            let (creation, id) = (world.creation(name), OwnerId::new(world.seed()));
            code(&world.run(CreateOwner { creation, id, zone: Zone::utc() }))
        };
        for bad in ["", " Ada", "Ada\n", "\u{7}", &"x".repeat(81)] {
            assert_eq!(owner(bad), "name_invalid", "{bad:?}");
        }
        assert_eq!(owner(&"ü".repeat(80)), "ok");
        let (creation, id) = (world.creation("Greedy"), SellerId::new(world.seed()));
        let greedy = CreateSeller { creation, id, payout_recipient: None, commission_ppm: 500_001 };
        assert_eq!(code(&world.run(greedy)), "validation_failed");
    });
}

#[test]
fn a_policy_changes_only_by_its_owner_and_from_the_version_that_was_read() {
    each(|world| {
        let (buyer, stranger) = (world.buyer(), world.buyer());
        let subject = PolicySubject::Agent(buyer.agent);
        let set = |owner, version, limits| {
            code(&world.run(SetPolicy { owner, subject, version, limits }))
        };
        let written = |cap| {
            let limits = Limits { day_cap_micros: Some(micros(cap)), ..Limits::default() };
            NewLimits::Written(Box::new(limits))
        };
        assert_eq!(set(stranger.owner, 1, written(5)), "not_found");
        assert_eq!(set(buyer.owner, 2, written(5)), "version_conflict");
        assert_eq!(set(buyer.owner, 1, written(5)), "ok");
        assert_eq!(set(buyer.owner, 1, written(6)), "version_conflict");
        assert_eq!(set(buyer.owner, 2, written(7)), "ok");
        assert_eq!(set(buyer.owner, 3, NewLimits::Version(9)), "not_found");
        assert_eq!(set(buyer.owner, 3, NewLimits::Version(2)), "ok");
        let policy: Policy = world.row(subject);
        assert_eq!(policy.version, 4);
        assert_eq!(policy.limits().unwrap().day_cap_micros, Some(micros(5)));
        let versions: Vec<_> = (1..=4)
            .map(|n| world.row::<PolicyVersion>(PolicyVersion::key(subject, n)).0)
            .map(|policy| policy.limits().unwrap().day_cap_micros.map(|cap| cap.get()))
            .collect();
        assert_eq!(versions, [None, Some(5), Some(7), Some(5)]);
    });
}

#[test]
fn nothing_is_held_after_a_pause_or_a_revocation_was_answered() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let key = world.all::<ApiKey>().into_iter().find(|k| k.id == buyer.key).unwrap();
        let stranger = world.buyer();
        let pause = |owner| {
            let subject = Pausable::Agent(owner, buyer.agent);
            code(&world.run(earnest_core::admin::Pause { subject, paused: true }))
        };
        assert_eq!(pause(stranger.owner), "not_found");
        assert_eq!(pause(buyer.owner), "ok");
        let word = |n: &str| world.word(buyer, n, &world.fixed(&shop, 1_000));
        assert_eq!(word("a"), "policy_denied/agent_paused");
        world.pause(Pausable::Agent(buyer.owner, buyer.agent), false);
        assert_eq!(word("a"), "held");
        let principal = Principal::Agent(buyer.agent);
        let revoke = |owner| {
            code(&world.run(RevokeKey { principal, hash: key.hash.clone(), owner: Some(owner) }))
        };
        assert_eq!(revoke(stranger.owner), "not_found");
        assert_eq!(revoke(buyer.owner), "ok");
        assert_eq!(word("b"), "unauthenticated");
        // Twenty live keys are enough.
        for _ in 0..20 {
            world.add_key(principal, Some(buyer.owner));
        }
        let more = ApiKey { hash: "more".to_owned(), ..key.clone() };
        let more = AddKey { key: more, owner: Some(buyer.owner) };
        assert_eq!(code(&world.run(more)), "validation_failed");
        let foreign = ApiKey { hash: "foreign".to_owned(), ..key.clone() };
        let foreign = AddKey { key: foreign, owner: Some(stranger.owner) };
        assert_eq!(code(&world.run(foreign)), "not_found");
    });
}

fn remove(world: &World, owner: OwnerId) -> Vault {
    let vault = world.row::<Owner>(owner).funding.unwrap().vault;
    world.run(Remove { owner, vault }).unwrap()
}

#[test]
fn a_removed_payment_method_stops_credit_and_a_new_one_starts_it_again() {
    each(|world| {
        // Nothing owed: the new method alone is enough.
        let (buyer, shop) = (world.buyer(), world.shop());
        world.buy(buyer, &shop, 100_000);
        let tab = world.open_tab(buyer);
        assert_eq!(remove(world, buyer.owner).state, VaultState::Removed);
        let asked = world.fixed(&shop, 1_000);
        assert_eq!(world.word(buyer, "a", &asked), "policy_denied/tab_frozen");
        world.fund(buyer.owner);
        assert_eq!(world.tab(tab).state, TabState::Open);
        assert_eq!(world.word(buyer, "a", &asked), "held");

        // Something owed: an attempt has to succeed.
        let (buyer, shop) = (world.buyer(), world.shop());
        world.spend(buyer, &shop, 100_000);
        remove(world, buyer.owner);
        let tab = world.open_tab(buyer);
        let waited = world.treasure(buyer.owner, tab, true);
        assert!(matches!(waited, earnest_core::settlement::Settled::Waited(_)));
        world.fund(buyer.owner);
        assert_eq!(world.word(buyer, "a", &world.fixed(&shop, 1_000)), "policy_denied/tab_frozen");
        world.capture(&world.settle(buyer.owner, tab));
        assert_eq!(world.word(buyer, "a", &world.fixed(&shop, 1_000)), "held");

        // Without any tab there is nothing to freeze.
        let (buyer, shop) = (world.buyer(), world.shop());
        remove(world, buyer.owner);
        let word = world.word(buyer, "a", &world.fixed(&shop, 1_000));
        assert_eq!(word, "policy_denied/funding_missing");
    });
}

#[test]
fn a_method_removed_while_it_is_made_is_never_charged() {
    each(|world| {
        let owner = world.owner();
        let vault = world.begin_vault(owner);
        let intent = world.confirm_vault(vault);
        world.run(Remove { owner, vault }).unwrap();
        let row = world.finish_vault(owner, vault, intent).unwrap();
        assert_eq!(row.state, VaultState::Removed);
        assert!(row.payment_token.is_some(), "so that it can be removed at PayPal too");
        assert_eq!(world.row::<Owner>(owner).funding, None);
    });
}

#[test]
fn a_second_method_replaces_the_first_and_settlements_charge_it() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let first = world.owned(buyer).funding.unwrap().vault;
        let second = world.fund(buyer.owner);
        assert_eq!(world.row::<Vault>(first).state, VaultState::Removed);
        world.spend(buyer, &shop, 100_000);
        let settlement = world.settle(buyer.owner, world.open_tab(buyer));
        let intent: earnest_core::intent::Intent = world.row(settlement.intent);
        assert_eq!(intent.facts["vault_id"], format!("token of {second}"));
        // Confirming twice asks once, and nobody removes another owner's.
        let again = world.confirm_vault(second);
        assert!(world.store.reader().row::<earnest_core::intent::Intent>(again).unwrap().is_none());
        let stranger = world.buyer();
        let foreign = world.run(Remove { owner: stranger.owner, vault: second });
        assert_eq!(code(&foreign), "not_found");
        world.outcome(&settlement, Fate::Unknown).unwrap();
    });
}

#[test]
fn owner_and_seller_who_are_one_person_get_no_credit() {
    each(|world| {
        let buyer = world.buyer();
        for recipient in [format!("{}@EXAMPLE.com", buyer.owner), format!("payer{}", buyer.owner)] {
            let (creation, id) = (world.creation("Me"), SellerId::new(world.seed()));
            let payout_recipient = Some(recipient);
            let seller = CreateSeller { creation, id, payout_recipient, commission_ppm: 0 };
            world.run(seller).unwrap();
            let origin = format!("https://me{id}.example").to_lowercase();
            let put =
                earnest_core::admin::PutOrigin { seller: id, origin: origin.clone(), proved: true };
            world.run(put).unwrap();
            let shop = crate::world::Shop { id, origin };
            let quote = world.fixed(&shop, 1_000);
            assert_eq!(
                world.word(buyer, &id.to_string(), &quote),
                "policy_denied/merchant_not_allowed"
            );
        }
    });
}

/// A shop that is paid out to somebody.
fn shop_of(world: &crate::world::World, recipient: Option<&str>) -> crate::world::Shop {
    let (creation, id) = (world.creation("Me"), SellerId::new(world.seed()));
    let payout_recipient = recipient.map(str::to_owned);
    world.run(CreateSeller { creation, id, payout_recipient, commission_ppm: 0 }).unwrap();
    let origin = format!("https://me{id}.example").to_lowercase();
    let put = earnest_core::admin::PutOrigin { seller: id, origin: origin.clone(), proved: true };
    world.run(put).unwrap();
    crate::world::Shop { id, origin }
}

#[test]
fn a_seller_that_nobody_knows_gets_no_credit() {
    each(|world| {
        let buyer = world.buyer();
        let quote = world.fixed(&shop_of(world, None), 1_000);
        assert_eq!(world.word(buyer, "a", &quote), "policy_denied/merchant_not_allowed");
    });
    let settings = Settings { sellers_need_recipient: false, ..Settings::default() };
    each_with(&settings, |world| {
        let buyer = world.buyer();
        let quote = world.fixed(&shop_of(world, None), 1_000);
        assert_eq!(world.word(buyer, "a", &quote), "held");
    });
}

#[test]
fn an_account_that_once_paid_for_the_owner_is_still_the_owner() {
    each(|world| {
        let buyer = world.buyer();
        let first = world.owned(buyer).funding.unwrap();
        world.fund_by(buyer.owner, Some("ANOTHER"), Some("another@example.com"));
        assert_ne!(world.owned(buyer).funding.unwrap().payer_sha256, first.payer_sha256);
        let quote = world.fixed(&shop_of(world, Some(&format!("PAYER{}", buyer.owner))), 1_000);
        assert_eq!(world.word(buyer, "a", &quote), "policy_denied/merchant_not_allowed");
    });
}

#[test]
fn one_line_a_payer() {
    each(|world| {
        let shop = world.shop();
        let quote = world.fixed(&shop, 1_000);
        let fresh = |id, address| {
            let buyer = world.agent(world.owner());
            world.limit(PolicySubject::Owner(buyer.owner), buyer.owner, Limits::default());
            world.fund_by(buyer.owner, id, address);
            buyer
        };
        let first = fresh(Some("ANN"), Some("ann@example.com"));
        assert_eq!(world.word(first, "a", &quote), "held");
        // The same account by its id, or by its address: no second line, and that is said.
        let mut shared = Vec::new();
        for (id, address) in [
            (Some("ANN"), Some("other@example.com")),
            (Some("OTHER"), Some("Ann@Example.com")),
            (None, Some("ann@example.com")),
        ] {
            let second = fresh(id, address);
            assert_eq!(world.owned(second).payer, Standing::Shared);
            assert_eq!(world.word(second, "a", &quote), "policy_denied/tab_limit");
            shared.push(second);
        }
        // Removing it frees nothing: who ran up one tab gets no fresh line with the next.
        let vault = world.owned(first).funding.unwrap().vault;
        world.run(Remove { owner: first.owner, vault }).unwrap();
        world.fund_by(shared[0].owner, Some("ANN"), None);
        assert_eq!(world.word(shared[0], "b", &quote), "policy_denied/tab_limit");
        // An account of its own gives a line, and so does the operator's word.
        world.fund_by(shared[1].owner, Some("BOB"), Some("bob@example.com"));
        assert_eq!(world.word(shared[1], "b", &quote), "held");
        let line = Some(crate::world::micros(5_000));
        let unfreeze = false;
        world.run(SetCredit { owner: shared[2].owner, line, unfreeze }).unwrap();
        assert_eq!(world.word(shared[2], "b", &quote), "held");
        // Nobody knows whose it is.
        let untold = fresh(None, None);
        assert_eq!(world.owned(untold).payer, Standing::Untold);
        assert_eq!(world.word(untold, "a", &quote), "policy_denied/tab_limit");
    });
}

#[test]
fn a_late_line_pays_nobody_himself() {
    each(|world| {
        let buyer = world.buyer();
        let shop = shop_of(world, Some("LATER"));
        let held = world.buy(buyer, &shop, 1_000);
        world.outlive();
        assert!(world.expire(held.id));
        world.fund_by(buyer.owner, Some("LATER"), None);
        let step = world.report(&world.told(&world.claims(&held), voucher::Fate::Redeemed));
        assert_eq!(step, Step::Done(ReportOutcome::LateUnbilled, None));
    });
}

#[test]
fn a_quote_counts_only_under_an_origin_that_its_seller_proved() {
    each(|world| {
        let (buyer, shop, other) = (world.buyer(), world.shop(), world.shop());
        let foreign = crate::world::Shop { id: shop.id, origin: other.origin.clone() };
        let quote = world.fixed(&foreign, 1_000);
        assert_eq!(world.word(buyer, "a", &quote), "policy_denied/merchant_not_allowed");
        let origin = "https://new.example".to_owned();
        let put = |proved| earnest_core::admin::PutOrigin {
            seller: shop.id,
            origin: origin.clone(),
            proved,
        };
        world.run(put(false)).unwrap();
        let claimed = crate::world::Shop { id: shop.id, origin: origin.clone() };
        let quote = world.fixed(&claimed, 1_000);
        assert_eq!(world.word(buyer, "b", &quote), "policy_denied/merchant_not_allowed");
        world.run(put(true)).unwrap();
        assert_eq!(world.word(buyer, "b", &quote), "held");
        for near in
            ["http://new.example", "https://new.example:8443", "https://new.example.evil.example"]
        {
            let shop = crate::world::Shop { id: shop.id, origin: near.to_owned() };
            let quote = world.fixed(&shop, 1_000);
            assert_eq!(
                world.word(buyer, near, &quote),
                "policy_denied/merchant_not_allowed",
                "{near}"
            );
        }
    });
}

#[test]
fn the_line_starts_small_grows_with_what_was_paid_and_counts_what_earlier_tabs_owe() {
    let settings = Settings {
        credit_line_start_micros: micros(1_000_000),
        credit_line_growth_ppm: 500_000,
        credit_line_most_micros: micros(1_600_000),
        ..Settings::default()
    };
    each_with(&settings, |world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.spend(buyer, &shop, 1_000_000);
        let word = |n: &str, price| world.word(buyer, n, &world.fixed(&shop, price));
        assert_eq!(word("a", 1), "policy_denied/tab_limit");
        // While it is being captured it is still owed, and on the next tab it counts as earlier.
        let first = world.open_tab(buyer);
        world.close(buyer.owner, first).unwrap();
        let settlement = world.settle(buyer.owner, first);
        assert_eq!(word("b", 1), "policy_denied/tab_limit");
        world.capture(&settlement);
        assert_eq!(word("c", 1_500_001), "policy_denied/tab_limit");
        assert_eq!(word("c2", 1_500_000), "held");
        // Set by hand it is what it is, and lowered below use it is no room.
        let credit = SetCredit { owner: buyer.owner, line: Some(micros(100)), unfreeze: false };
        world.run(credit).unwrap();
        assert_eq!(word("d", 1), "policy_denied/tab_limit");
        let credit = SetCredit { owner: buyer.owner, line: None, unfreeze: false };
        world.run(credit).unwrap();
        let purchase = world.all::<earnest_core::purchase::Purchase>();
        let held = purchase.iter().find(|p| p.request_id == "c2").unwrap();
        world.redeem(&world.claims(held));
        world.capture(&world.settle(buyer.owner, world.open_tab(buyer)));
        assert_eq!(word("e", 1_600_001), "policy_denied/tab_limit", "never past the most");
        assert_eq!(word("f", 1_600_000), "held");
    });
}

#[test]
fn an_owner_is_free_again_when_the_operator_lifts_a_write_off() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.spend(buyer, &shop, 100_000);
        let tab = world.open_tab(buyer);
        world.decline(&world.settle(buyer.owner, tab));
        world.write_off(buyer.owner, tab).unwrap();
        let word = |n: &str| world.word(buyer, n, &world.fixed(&shop, 1_000));
        assert_eq!(word("a"), "policy_denied/owner_frozen");
        assert_eq!(code(&world.open(buyer.owner)), "policy_denied");
        let lift = |line, unfreeze| SetCredit { owner: buyer.owner, line, unfreeze };
        world.run(lift(Some(micros(0)), true)).unwrap();
        assert_eq!(word("b"), "policy_denied/tab_limit", "no line yet");
        world.run(lift(None, false)).unwrap();
        assert_eq!(word("c"), "held");
        assert_eq!(world.thousandths(Account::Losses), "0/100/0/0");
    });
}

#[test]
fn an_unlimited_line_does_not_overflow() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let line = Some(earnest_core::money::Micros::MAX);
        world.run(SetCredit { owner: buyer.owner, line, unfreeze: false }).unwrap();
        world.spend(buyer, &shop, 100_000);
        world.capture(&world.settle(buyer.owner, world.open_tab(buyer)));
        world.spend(buyer, &shop, 100_000);
    });
}
