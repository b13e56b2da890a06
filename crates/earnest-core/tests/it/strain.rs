//! Whoever keeps the database from its work is told of once.

use earnest_core::strain::Tell;

use crate::world::each;

#[test]
fn a_held_database_is_told_once_and_so_is_its_end() {
    each(|world| {
        let tell = |by: Option<&str>| world.run(Tell { by: by.map(str::to_owned) }).unwrap();
        // Nothing was wrong, and nothing is said.
        tell(None);
        assert_eq!(world.head(), 0);
        for by in ["session 1", "session 1", "session 2"] {
            tell(Some(by));
        }
        tell(None);
        tell(None);
        tell(Some("session 3"));
        let page = world.store.reader().events(0, 100).unwrap();
        let told: Vec<_> = page.events.iter().map(|at| at.event.kind.as_str()).collect();
        let (held, free) = ("alarm.database_held", "notice.database_free");
        assert_eq!(told, [held, free, held]);
        assert_eq!(page.events[0].event.data["by"], "session 1");
    });
}
