//! When the door of restored books opens.

use earnest_core::quarantine::{Import, KeepImport, Lift, Quarantine};

use crate::lost::{code, restored};
use crate::world::in_memory;

/// Read again and explained, or accepted as it is.
#[test]
fn what_was_read_to_the_end_and_is_not_explained_keeps_the_quarantine() {
    in_memory(|world| {
        restored(world);
        let read = |complete: bool, unexplained: u64, said: &str| {
            let (complete_at, said) = (complete.then(|| world.now()), said.to_owned());
            let import = Import { complete_at, unexplained, said, ..Import::default() };
            world.run(KeepImport { epoch: "e2".to_owned(), import }).unwrap();
            world.row::<Quarantine>(Quarantine::ID).import
        };
        let lift = |gap: Option<&str>| world.run(Lift { gap: gap.map(str::to_owned) });
        read(true, 2, "complete, but for two");
        assert_eq!(code(lift(None)), "state_conflict");
        // A reading that fails takes nothing back; one that explains more counts.
        assert_eq!(read(false, 0, "not readable").unexplained, 2);
        assert_eq!(read(true, 1, "complete, but for one").unexplained, 1);
        assert_eq!(code(lift(None)), "state_conflict");
        let row = lift(Some("ours, by hand")).unwrap();
        assert_eq!(row.lifted.unwrap().gap.as_deref(), Some("ours, by hand"));
        assert_eq!(read(true, 0, "too late").unexplained, 1);
    });
}
