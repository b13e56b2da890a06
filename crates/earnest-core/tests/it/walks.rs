//! The hand-worked vectors of the design, step by step, in thousandths of a dollar: debits pending,
//! debits posted, credits pending, credits posted.

use earnest_core::id::TabId;
use earnest_core::intent::Fate;
use earnest_core::ledger::Account;
use earnest_core::report::Step;
use earnest_core::settings::Settings;
use earnest_core::settlement::{Settled, SettlementState};
use earnest_core::tab::TabState;
use earnest_core::voucher::ReportOutcome;

use crate::world::{Shop, World, each, each_with, hours, micros};

/// One row of the table; an empty text is not looked at.
fn row(world: &World, tab: TabId, shop: &Shop, expect: [&str; 4]) {
    let accounts = [
        Account::TabOwed(tab),
        Account::PaypalCash,
        Account::PaypalFees,
        Account::SellerAccrued(shop.id),
    ];
    let found = accounts.map(|account| world.thousandths(account));
    assert_eq!(found, expect.map(str::to_owned));
}

#[test]
fn walk_a_nine_holds_one_expires_one_capture() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.live(0);
        let prices = [100, 100, 100, 100, 100, 100, 100, 250, 100];
        let held: Vec<_> =
            prices.iter().map(|price| world.buy(buyer, &shop, price * 1_000)).collect();
        let tab = world.open_tab(buyer);
        row(world, tab, &shop, ["1050/0/0/0", "0/0/0/0", "0/0/0/0", "0/0/1050/0"]);
        for purchase in &held[..8] {
            let step = world.redeem(&world.claims(purchase));
            assert!(matches!(step, Step::Done(ReportOutcome::Billed, _)), "{step:?}");
        }
        assert!(!world.expire(held[8].id));
        world.live(120 + 15 * 60);
        assert!(world.expire(held[8].id));
        row(world, tab, &shop, ["0/950/0/0", "0/0/0/0", "0/0/0/0", "0/0/0/950"]);
        let settlement = world.settle(buyer.owner, tab);
        assert_eq!(settlement.fee_predicted_micros, micros(520_000));
        let settlement = world.capture(&settlement);
        row(world, tab, &shop, ["0/950/0/950", "0/950/0/520", "0/520/0/0", "0/0/0/950"]);
        let refundable = Account::CaptureRefundable(settlement.intent);
        assert_eq!(world.thousandths(refundable), "0/0/0/950");
    });
}

#[test]
fn walk_b_a_rest_is_carried_declined_and_written_off() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        for _ in 0..3 {
            world.spend(buyer, &shop, 15_000);
        }
        let a = world.open_tab(buyer);
        world.close(buyer.owner, a).unwrap();
        let Settled::Planned(settlement) = world.treasure(buyer.owner, a, false) else {
            panic!("a closed tab settles");
        };
        assert_eq!(settlement.amount_micros, micros(40_000));
        let settlement = world.capture(&settlement);
        assert_eq!(settlement.carry_out_micros, micros(5_000));
        assert!(!world.tab(a).finished);

        let b = world.open(buyer.owner).unwrap().id;
        row(world, a, &shop, ["0/45/0/45", "0/40/0/490", "0/490/0/0", "0/0/0/45"]);
        assert_eq!(world.thousandths(Account::TabOwed(b)), "0/5/0/0");
        assert!(world.tab(a).finished);
        assert_eq!(world.tab(a).carried_to, Some(b));

        for _ in 0..3 {
            world.spend(buyer, &shop, 15_000);
        }
        let settlement = world.settle(buyer.owner, b);
        assert_eq!(settlement.carry_in_micros, micros(5_000));
        assert_eq!(settlement.lines_micros, micros(45_000));
        assert_eq!(settlement.carry_out_micros, micros(0));
        row(world, b, &shop, ["0/50/50/0", "50/40/0/490", "0/490/0/0", "0/0/0/90"]);

        world.decline(&settlement);
        row(world, b, &shop, ["0/50/0/0", "0/40/0/490", "0/490/0/0", "0/0/0/90"]);
        assert_eq!(world.tab(b).state, TabState::Frozen);
        assert_eq!(
            world.word(buyer, "frozen", &world.fixed(&shop, 1_000)),
            "policy_denied/tab_frozen"
        );

        let (_, amount) = world.write_off(buyer.owner, b).unwrap();
        assert_eq!(amount, micros(50_000));
        row(world, b, &shop, ["0/50/0/50", "0/40/0/490", "0/490/0/0", "0/0/0/90"]);
        assert_eq!(world.thousandths(Account::Losses), "0/50/0/0");
        assert_eq!(
            world.word(buyer, "lost", &world.fixed(&shop, 1_000)),
            "policy_denied/owner_frozen"
        );
    });
}

/// Walk c up to the point where the outcome is learnt; `proved` records it.
fn walk_c(proved: impl Fn(&World, &earnest_core::settlement::Settlement)) {
    let settings =
        Settings { confirm_not_charged_above_micros: micros(50_000_000), ..Settings::default() };
    each_with(&settings, |world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        for _ in 0..19 {
            world.spend(buyer, &shop, 50_000);
        }
        let tab = world.open_tab(buyer);
        let settlement = world.settle(buyer.owner, tab);
        world.outcome(&settlement, Fate::Unknown).unwrap();
        for _ in 0..3 {
            world.pass(hours(2));
            world.spend(buyer, &shop, 100_000);
        }
        world.pass(hours(2));
        row(world, tab, &shop, ["0/1250/950/0", "950/0/0/0", "0/0/0/0", "0/0/0/1250"]);
        // Nothing new starts meanwhile, whoever asks.
        let settled = world.treasure(buyer.owner, tab, true);
        assert!(matches!(settled, Settled::Waited(_)), "{settled:?}");
        assert!(world.claim(settlement.intent).is_err(), "the key is past its retention");
        proved(world, &settlement);
    });
}

#[test]
fn walk_c_an_unknown_settlement_is_proved_charged() {
    walk_c(|world, settlement| {
        let shop = shop_of(world);
        let charge = world.charge("CAPTURE", 950_000);
        let done = world.learnt(settlement, Fate::Done(charge)).unwrap();
        assert_eq!(done.state, SettlementState::Captured);
        row(
            world,
            settlement.tab,
            &shop,
            ["0/1250/0/950", "0/950/0/520", "0/520/0/0", "0/0/0/1250"],
        );
    });
}

#[test]
fn walk_c_an_unknown_settlement_is_proved_not_charged() {
    walk_c(|world, settlement| {
        let shop = shop_of(world);
        let void = world.learnt(settlement, Fate::NotCharged).unwrap();
        assert_eq!(void.state, SettlementState::NotCharged);
        row(world, settlement.tab, &shop, ["0/1250/0/0", "0/0/0/0", "0/0/0/0", "0/0/0/1250"]);
        // The next attempt keeps number, lines and invoice, under a new key.
        let again = world.settle(settlement.owner, settlement.tab);
        assert_eq!((again.id, again.n, again.attempt), (settlement.id, 1, 2));
        assert_eq!(again.invoice_id, settlement.invoice_id);
        assert_eq!(again.lines, settlement.lines);
        assert_ne!(world.key_of(&again), world.key_of(settlement));
        world.capture(&again);
        row(
            world,
            settlement.tab,
            &shop,
            ["0/1250/0/950", "0/950/0/520", "0/520/0/0", "0/0/0/1250"],
        );
    });
}

fn shop_of(world: &World) -> Shop {
    let seller = world.all::<earnest_core::party::Seller>().pop().unwrap();
    Shop { id: seller.id, origin: seller.origins[0].origin.clone() }
}
