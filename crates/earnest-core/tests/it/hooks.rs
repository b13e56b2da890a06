//! Outgoing webhooks: what is told, how often, and for how long it is kept.

use earnest_core::hook::{
    Attempt, Attempted, ClaimDelivery, ClearDelivery, CreateHook, Delivery, DeliveryState, FanOut,
    Hook, HookState, Resend, SetHook,
};
use earnest_core::id::HookId;
use earnest_core::party::Principal;

use crate::world::{World, each, said};

fn hook(world: &World, url: &str) -> CreateHook {
    let hook =
        Hook::new(HookId::new(world.seed()), Principal::Operator, url.to_owned(), 0, world.now());
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
        let fan_out = FanOut { seq: 7, deliveries: deliveries.clone(), most_waiting: 10 };
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
        world.run(FanOut { seq: 6, deliveries: again.collect(), most_waiting: 10 }).unwrap();
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
        let fan_out = FanOut { seq: 7, deliveries: vec![row.clone()], most_waiting: 10 };
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

/// A node that reads on from where it was long ago, though another led meanwhile.
#[test]
fn what_lies_before_the_remembered_place_is_told_no_more() {
    each(|world| {
        let made = world.run(hook(world, "https://a.example/")).unwrap();
        let told = |seq| Delivery::new(made.id, "e1", (seq, 0), "x", world.now());
        world.run(FanOut { seq: 7, deliveries: Vec::new(), most_waiting: 10 }).unwrap();
        let rows = [told(7), told(8)];
        world.run(FanOut { seq: 8, deliveries: rows.to_vec(), most_waiting: 10 }).unwrap();
        let reader = world.store.reader();
        let known = rows.map(|row| reader.row::<Delivery>(row.id).unwrap().is_some());
        assert_eq!(known, [false, true]);
        assert_eq!(world.row::<Hook>(made.id).waiting, 1);
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

/// What waits is counted on the endpoint's row; what is too much is kept and not sent by itself.
#[test]
fn as_many_deliveries_wait_for_an_endpoint_as_are_set() {
    each(|world| {
        let made = world.run(hook(world, "https://a.example/")).unwrap();
        let waiting = |world: &World| world.row::<Hook>(made.id).waiting;
        let deliveries: Vec<Delivery> = (0..4)
            .map(|index| Delivery::new(made.id, "e1", (7, index), "x", world.now()))
            .collect();
        let fan_out = FanOut { seq: 7, deliveries: deliveries.clone(), most_waiting: 3 };
        world.run(fan_out.clone()).unwrap();
        world.run(fan_out).unwrap();
        let state = |world: &World, n: usize| world.row::<Delivery>(deliveries[n].id).state;
        assert_eq!((waiting(world), state(world, 3)), (3, DeliveryState::Failed));
        let why = world.row::<Delivery>(deliveries[3].id).attempts[0].error.clone().unwrap();
        assert!(why.contains("3 deliveries waited"), "{why}");
        let attempt = |world: &World, n: usize, status: Option<u16>| {
            let (delivery, hook) = (deliveries[n].id, made.id);
            let (claimed, _) = world.run(ClaimDelivery { delivery, hook }).unwrap().unwrap();
            let error = status.is_none().then(|| "it hangs".to_owned());
            let attempt = Attempt { at: world.now(), status, error, answer: None };
            world.run(Attempted { delivery, hook, tries: claimed.tries, attempt }).unwrap();
        };
        attempt(world, 0, Some(500));
        assert_eq!(waiting(world), 3, "it comes again");
        attempt(world, 1, Some(200));
        assert_eq!(waiting(world), 2);
        let resend = |n: usize| Resend {
            delivery: deliveries[n].id,
            hook: made.id,
            of: Principal::Operator,
        };
        world.run(resend(3)).unwrap();
        world.run(resend(3)).unwrap();
        assert_eq!(waiting(world), 3);
        // One that is disabled is told nothing more, and nothing waits for it.
        attempt(world, 2, Some(410));
        world.pass(10);
        for n in [0, 3] {
            let (delivery, hook) = (deliveries[n].id, made.id);
            assert!(world.run(ClaimDelivery { delivery, hook }).unwrap().is_none());
        }
        assert_eq!(waiting(world), 0);
    });
}

#[test]
fn an_endpoint_that_never_answers_rests() {
    each(|world| {
        let made = world.run(hook(world, "https://a.example/")).unwrap();
        let row = Delivery::new(made.id, "e1", (7, 0), "x", world.now());
        let delivery = row.id;
        world.run(FanOut { seq: 7, deliveries: vec![row], most_waiting: 10 }).unwrap();
        let room = |world: &World| world.row::<Hook>(made.id).room(4, world.now());
        let attempt = |world: &World, status: Option<u16>| {
            let resend = Resend { delivery, hook: made.id, of: Principal::Operator };
            let attempt = Attempt { at: world.now(), status, error: None, answer: None };
            let tries = world.row::<Delivery>(delivery).tries;
            world.run(Attempted { delivery, hook: made.id, tries, attempt }).unwrap();
            resend
        };
        attempt(world, None);
        attempt(world, None);
        assert_eq!(room(world), 4, "two may be bad luck");
        let resend = attempt(world, None);
        assert_eq!(room(world), 0);
        world.pass(59);
        assert_eq!(room(world), 0);
        world.pass(1);
        assert_eq!(room(world), 1, "one, to see whether it answers again");
        attempt(world, None);
        world.pass(119);
        assert_eq!(room(world), 0, "twice as long");
        for _ in 0..40 {
            attempt(world, None);
        }
        world.pass(3_600);
        assert_eq!(room(world), 1, "an hour at most");
        attempt(world, Some(500));
        assert_eq!(room(world), 4, "an answer is an answer");
        // So is its owner's wish.
        for _ in 0..3 {
            attempt(world, None);
        }
        assert_eq!(room(world), 0);
        world.run(resend).unwrap();
        assert_eq!(room(world), 4);
        let disabled = HookState::Disabled { why: "x".to_owned() };
        for (state, rooms) in [(disabled, 4), (HookState::Active, 4)] {
            for _ in 0..3 {
                attempt(world, None);
            }
            let (hook, of) = (made.id, Principal::Operator);
            world.run(SetHook { hook, of, state, head: 9 }).unwrap();
            assert_eq!(room(world), rooms);
        }
    });
}
