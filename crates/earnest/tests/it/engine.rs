//! Which database the books of these tests are in: SQLite or memory, as each test says, or
//! PostgreSQL for all of them where `EARNEST_TEST_ENGINE=postgres`, each in a schema of its own.

use earnest_store::Url;
use pg_cluster::Schema;

/// The environment variable that says so.
pub const ENGINE: &str = "EARNEST_TEST_ENGINE";

pub fn on_postgres() -> bool {
    match std::env::var(ENGINE) {
        Ok(engine) if engine == "postgres" => true,
        Ok(engine) => panic!("{ENGINE}={engine}: only `postgres` is known"),
        Err(_) => false,
    }
}

/// A place for one world's books, where they are on PostgreSQL; gone when it is dropped.
pub fn place() -> Option<Schema> {
    on_postgres().then(Schema::fresh)
}

pub fn url(place: &Schema) -> Url {
    Url::parse(place.url()).unwrap()
}

/// Whether a test that is about files of SQLite has nothing to look at.
pub fn not_about_files(why: &str) -> bool {
    let skip = on_postgres();
    if skip {
        println!("skipped: on PostgreSQL {why}");
    }
    skip
}
