//! What is explored, and what must be seen.

use super::{World, Wrong, explore};

/// All faults one by one, because all at once are too many states; both beginnings.
fn worlds(versions: bool, strong: bool) -> impl Iterator<Item = World> {
    let faults = [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)];
    // What becomes of intents that are forgotten, a wipe shows as well, with fewer states.
    faults.into_iter().filter(move |fault| !strong || fault.3 == 0).flat_map(
        move |(losses, passes, wipes, restores)| {
            [(false, false), (true, false), (true, true)].map(|(warm, refresh)| {
                let (wrong, updates) = (None, 0);
                World {
                    versions,
                    strong,
                    updates,
                    warm,
                    refresh,
                    losses,
                    passes,
                    wipes,
                    restores,
                    wrong,
                }
            })
        },
    )
}

#[test]
fn nothing_stale_stays_and_nothing_acknowledged_is_missed() {
    for (versions, strong) in [(false, false), (true, false), (true, true)] {
        for world in worlds(versions, strong) {
            let World { warm, refresh, losses, passes, wipes, restores, .. } = world;
            let (states, wrong) = explore(world);
            eprintln!("{states} states");
            assert!(
                states > 500 && wrong.is_empty(),
                "{states} states, {wrong:?} with versions {versions}, strong {strong}, warm {warm}, refresh {refresh}, losses {losses}, passes {passes}, wipes {wipes}, restores {restores}"
            );
        }
    }
}

#[test]
fn a_writer_that_brings_its_value_leaves_nothing_stale() {
    for (updates, world) in
        [1, 2].into_iter().flat_map(|many| worlds(true, false).map(move |world| (many, world)))
    {
        let World { warm, refresh, losses, passes, wipes, .. } = world;
        let (states, wrong) = explore(World { updates, ..world });
        assert!(
            // A value that is there is only replaced, which leaves little to be done.
            states > 100 && wrong.is_empty(),
            "{states} states, {wrong:?} with updates {updates}, warm {warm}, refresh {refresh}, losses {losses}, passes {passes}, wipes {wipes}"
        );
    }
}

#[test]
fn it_sees_a_writer_that_puts_its_value_where_there_is_none() {
    let found = worlds(true, false).any(|world| {
        let wrong = Some(Wrong::UpdatesNothing);
        let (_, found) = explore(World { wrong, updates: 2, ..world });
        found.iter().any(|what| what.contains("stays"))
    });
    assert!(found, "it did not see what is wrong");
}

fn must_see(wrong: Wrong, says: &str) {
    let found = worlds(false, false).any(|world| {
        let (_, found) = explore(World { wrong: Some(wrong), ..world });
        found.iter().any(|what| what.contains(says))
    });
    assert!(found, "it did not see what is wrong");
}

#[test]
fn it_sees_a_fill_that_is_taken_from_anybody() {
    must_see(Wrong::AnyTicket, "stays");
}

#[test]
fn it_sees_a_ticket_that_is_sent_twice() {
    must_see(Wrong::TicketTwice, "stays");
}

#[test]
fn it_sees_a_reader_that_joins_an_older_load() {
    must_see(Wrong::JoinsAny, "began after");
}

#[test]
fn it_sees_a_writer_that_invalidates_before_it_commits() {
    must_see(Wrong::InvalidatesFirst, "stays");
}

#[test]
fn it_sees_a_server_that_brings_back_what_was_forgotten() {
    must_see(Wrong::Warm, "stays");
}
