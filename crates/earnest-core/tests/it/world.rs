//! The small Earnest of the simulation, on whichever engine a test wants.

use std::ops::Deref;
use std::sync::Arc;

pub use earnest_sim::world::{Buyer, Shop, hours, marker, micros, said};

use earnest_core::settings::Settings;
use earnest_sim::Ticking;
use earnest_store::{Options, Store};
use pg_cluster::Schema;

/// Which engine the books are kept by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Memory,
    Sqlite,
    Postgres,
}

/// Everything a test needs.
pub struct World {
    inner: earnest_sim::World,
    pub store: Store,
    _folder: Option<tempfile::TempDir>,
    /// Dropped after the store.
    _place: Option<Schema>,
}

impl Deref for World {
    type Target = earnest_sim::World;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

/// Runs a test on every engine, and checks every invariant at its end.
pub fn each(test: impl Fn(&mut World)) {
    each_with(&Settings::default(), test);
}

pub fn each_with(settings: &Settings, test: impl Fn(&mut World)) {
    for engine in [Engine::Memory, Engine::Sqlite, Engine::Postgres] {
        let mut world = World::new(engine, settings.clone());
        test(&mut world);
        world.check();
    }
}

/// Few ticks until a hold is given up, for tests that give up many.
pub fn impatient() -> Settings {
    Settings { report_grace_seconds: 10, ..Settings::default() }
}

/// A test on books in memory alone, where it needs more units than a disk likes.
pub fn in_memory(test: impl Fn(&mut World)) {
    let mut world = World::memory();
    test(&mut world);
    world.check();
}

impl World {
    pub fn memory() -> Self {
        Self::new(Engine::Memory, Settings::default())
    }

    pub fn new(engine: Engine, settings: Settings) -> Self {
        let clock = Arc::new(Ticking::new());
        let now = clock.clock();
        let folder = (engine == Engine::Sqlite).then(|| tempfile::tempdir().unwrap());
        let place = (engine == Engine::Postgres).then(Schema::fresh);
        let mut options = match (&folder, &place) {
            (Some(dir), _) => Options::file(dir.path().join("books.db"), "simulated", now),
            (_, Some(place)) => Options::server(place.url(), "simulated", now),
            _ => Options::memory("simulated", now),
        };
        options.server_clock = false;
        // What a database with row locks needs is checked whatever the profile.
        options.check_lock_order = true;
        let store = Store::open(options).unwrap();
        let inner = earnest_sim::World::over(store.clone(), settings, clock);
        Self { inner, store, _folder: folder, _place: place }
    }
}
