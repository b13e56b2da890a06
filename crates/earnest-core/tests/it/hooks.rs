//! Outgoing webhooks: what is told, how often, and for how long it is kept.

use earnest_core::hook::{
    Attempt, Attempted, ClaimDelivery, ClearDelivery, CreateHook, Delivery, DeliveryState, FanOut,
    Hook, HookState, Scheme,
};
use earnest_core::id::HookId;
use earnest_core::party::Principal;

use crate::world::{World, each, said};

fn hook(world: &World, url: &str) -> CreateHook {
    let hook = Hook {
        id: HookId::new(world.seed()),
        of: Principal::Operator,
        url: url.to_owned(),
        kinds: Vec::new(),
        scheme: Scheme::V1a,
        sealed: String::new(),
        public_key: None,
        state: HookState::Active,
        since: 0,
        created_at: world.now(),
    };
    CreateHook { hook, key: None, settings: world.settings.clone() }
}

#[test]
fn an_event_has_one_delivery_an_endpoint() {
    each(|world| {
        let [one, two] = ["https://a.example/", "https://b.example/"]
            .map(|url| world.run(hook(world, url)).unwrap());
        let deliveries: Vec<Delivery> = [(&one, 0), (&two, 0), (&one, 1)]
            .map(|(hook, index)| Delivery::new(hook.id, "e1", (7, index), "x", world.now()))
            .to_vec();
        let fan_out = FanOut { seq: 7, deliveries: deliveries.clone() };
        world.run(fan_out.clone()).unwrap();
        let claim = ClaimDelivery { delivery: deliveries[0].id, hook: one.id };
        let (claimed, _) = world.run(claim).unwrap().unwrap();
        let attempt = Attempt { at: world.now(), status: Some(200), error: None, answer: None };
        let (delivery, hook) = (claimed.id, one.id);
        world.run(Attempted { delivery, hook, tries: claimed.tries, attempt }).unwrap();
        // The log is read again, as after a crash before the place was remembered, and later.
        world.pass(10);
        let again =
            deliveries.iter().map(|row| Delivery { created_at: world.now(), ..row.clone() });
        world.run(FanOut { seq: 6, deliveries: again.collect() }).unwrap();
        world.run(fan_out).unwrap();
        let row: Delivery = world.row(deliveries[0].id);
        assert_eq!((row.state, row.attempts.len()), (DeliveryState::Delivered, 1));
        assert!(world.run(claim).unwrap().is_none(), "it would be told twice");
        for other in &deliveries[1..] {
            assert_eq!(&world.row::<Delivery>(other.id), other);
        }
    });
}

#[test]
fn what_ended_is_kept_as_long_as_is_set_and_never_made_anew() {
    each(|world| {
        let made = world.run(hook(world, "https://a.example/")).unwrap();
        let row = Delivery::new(made.id, "e1", (7, 0), "x", world.now());
        let fan_out = FanOut { seq: 7, deliveries: vec![row.clone()] };
        world.run(fan_out.clone()).unwrap();
        let clear = ClearDelivery { delivery: row.id, settings: world.settings.clone() };
        let keep = world.settings.webhook_keep_seconds;
        // What waits stays, however old.
        world.pass(keep);
        world.run(clear.clone()).unwrap();
        assert!(!world.row::<Delivery>(row.id).cleared);
        let (delivery, hook) = (row.id, made.id);
        let (claimed, _) = world.run(ClaimDelivery { delivery, hook }).unwrap().unwrap();
        let attempt = Attempt { at: world.now(), status: Some(204), error: None, answer: None };
        world.run(Attempted { delivery, hook, tries: claimed.tries, attempt }).unwrap();
        world.run(clear).unwrap();
        let gone: Delivery = world.row(row.id);
        assert!(gone.cleared && gone.attempts.is_empty());
        world.run(fan_out).unwrap();
        assert_eq!(world.row::<Delivery>(row.id), gone);
    });
}

#[test]
fn a_webhook_is_made_once_under_a_key() {
    each(|world| {
        let keyed = |url: &str| CreateHook { key: Some("k".to_owned()), ..hook(world, url) };
        let first = world.run(keyed("https://a.example/")).unwrap();
        assert_eq!(world.run(keyed("https://a.example/")).unwrap(), first);
        let other = world.run(keyed("https://b.example/")).unwrap_err().into_refusal();
        assert_eq!(said(&other), "idempotency_conflict");
    });
}
