//! What every backend must do: one list, every case a named test per backend.
//!
//! A backend's test file has a [`Harness`] and one line:
//!
//! ```text
//! testkit::conformance!(across_processes, FileHarness::start());
//! ```
//!
//! The [`conformance!`](crate::conformance!) macro holds the only list of cases, so no backend can
//! forget one. The marker says whether the group [`process`] is for it; a test compares the marker
//! with the backend's capabilities, so nobody can leave the group out by mistake. A case that needs a
//! capability which a backend lacks says so with [`not_applicable`].

pub mod cancel;
pub mod cohort;
pub mod fair;
pub mod job;
pub mod judge;
pub mod latch;
pub mod loss;
pub mod multi;
pub mod mutex;
pub mod process;
pub mod renewal;
pub mod rw;
pub mod semaphore;
pub mod shutdown;
pub mod store;

use std::sync::Arc;

use async_trait::async_trait;
use lockkeeper::backend::{Backend, Capabilities, Status};
use lockkeeper::{Locks, Mutex, Name, RwLock};

use crate::faulty::{Faults, Faulty};
use crate::wait::eventually;

/// One store under test; a fresh one for each case.
#[async_trait]
pub trait Harness: Send + Sync {
    /// A new client of the store, with a backend of its own where the store is outside this process.
    async fn locks(&self) -> Locks;

    /// A client of another store of the same kind, different in name and state.
    async fn elsewhere(&self) -> Locks;

    /// The URL by which other processes find the store; `None` where they cannot.
    fn url(&self) -> Option<String>;
}

/// Says that a case does not concern this backend, and why.
pub fn not_applicable(case: &str, why: &str) {
    eprintln!("n/a: {case}: {why}");
}

/// Whether the backend can do what the case needs; says so if not.
pub(crate) fn can(locks: &Locks, case: &str, need: fn(Capabilities) -> bool) -> bool {
    let can = need(locks.backend().capabilities());
    if !can {
        not_applicable(case, &format!("{} cannot do that", locks.backend().name()));
    }
    can
}

/// The mutex, with a place in line at the store where there is such a thing.
pub fn in_order(locks: &Locks, mutex: Mutex) -> Mutex {
    if locks.backend().capabilities().fair { mutex.fair() } else { mutex }
}

/// The same for a read-write lock.
pub(crate) fn rw_in_order(locks: &Locks, lock: RwLock) -> RwLock {
    if locks.backend().capabilities().fair_read_write { lock.fair() } else { lock }
}

/// The marker of the macro says the same as the capabilities, and other processes have a URL.
///
/// # Panics
///
/// When not.
pub async fn the_marker_is_right(harness: &dyn Harness, across_processes: bool) {
    let capabilities = harness.locks().await.backend().capabilities();
    assert_eq!(capabilities.across_processes, across_processes);
    assert_eq!(harness.url().is_some(), across_processes);
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub(crate) async fn show(locks: &Locks, of: &str) -> Status {
    locks.admin().show(&name(of)).await.unwrap()
}

/// Waits until so many wait at the store.
pub(crate) async fn queued(locks: &Locks, of: &str, waiters: usize) {
    let what = format!("{waiters} wait for {of}");
    shows(locks, of, &what, |status| status.waiters.len() == waiters).await;
}

/// Waits until nobody holds it or waits for it: what is undone in the background is undone soon.
pub(crate) async fn idle(locks: &Locks, of: &str) {
    let what = format!("{of} is free and nobody waits");
    let idle = |status: &Status| status.holders.is_empty() && status.waiters.is_empty();
    shows(locks, of, &what, idle).await;
}

/// Waits until the store says so. A busy one that gives no answer in time is asked again.
async fn shows(locks: &Locks, of: &str, what: &str, holds: impl Fn(&Status) -> bool + Send + Sync) {
    let holds = async || match locks.admin().show(&name(of)).await {
        Ok(status) => holds(&status),
        Err(error) if error.is_transient() => false,
        Err(error) => panic!("{error}"),
    };
    eventually(what, holds).await;
}

/// A client of the store whose renewals and releases can be made to fail.
pub(crate) async fn faulty(harness: &dyn Harness) -> (Locks, Arc<Faults>) {
    let inner: Arc<dyn Backend> = Arc::clone(harness.locks().await.backend());
    let (backend, faults) = Faulty::new(inner);
    (Locks::new(backend), faults)
}

/// Declares the tests of one backend: `conformance!(in_process, HARNESS)` or
/// `conformance!(across_processes, HARNESS)`, once per test file.
///
/// The only list of cases.
#[macro_export]
macro_rules! conformance {
    (in_process, $harness:expr) => {
        $crate::conformance!(@list $harness);
        $crate::conformance!(@marker $harness, false);
    };
    (across_processes, $harness:expr) => {
        $crate::conformance!(@list $harness);
        $crate::conformance!(@cases $harness;
            process:
                another_process_excludes_and_is_woken
                a_killed_holder_frees_at_once
                a_killed_holder_of_another_kind_frees_at_once
                a_killed_waiter_is_skipped
                a_holder_killed_right_after_hand_over_is_skipped
                a_stopped_holder_is_overtaken_and_its_late_write_refused
                a_stopped_waiter_does_not_hold_others_up
                eviction_reaches_another_process
                tokens_survive_all_processes
                many_processes_never_two_holders
                readers_and_permits_of_other_processes
                a_latch_opens_for_another_process;
        );
        $crate::conformance!(@marker $harness, true);

        /// Not a test: what this binary does when it is started as another process.
        #[test]
        fn taker_main() {
            $crate::taker::main();
        }
    };
    (@list $harness:expr) => {
        $crate::conformance!(@cases $harness;
            mutex:
                never_two_holders
                tokens_grow
                try_lock_on_held_is_none
                lock_timeout_names_the_holder_and_leaves_nothing
                lock_attempts_are_bounded
                drop_releases
                not_reentrant_by_default
                reentry_keeps_the_token_and_needs_no_grant
                the_last_guard_releases
                one_owner_asking_twice_at_once_shares
                one_owner_may_spell_one_lock_in_several_ways
                names_are_compared_byte_by_byte
                hostile_names_are_errors
                hostile_terms_are_errors;
            store:
                a_repeated_request_finds_its_grant
                double_release_is_harmless
                release_after_eviction_leaves_the_next_holder_alone
                wrong_kind_is_an_error
                list_and_show
                eviction_tells_the_holder_and_serves_the_next;
            fair:
                first_come_first_served
                a_cancelled_waiter_is_skipped
                fair_and_unfair_exclude_each_other
                a_plain_holder_wakes_a_fair_waiter;
            rw:
                readers_share_and_a_writer_excludes
                never_a_writer_with_anybody
                a_writer_may_read
                downgrade_lets_readers_in_and_no_writer
                upgrade_is_an_error_at_once
                writers_are_not_starved;
            semaphore:
                permits_are_never_exceeded
                permits_come_back
                permits_are_served_in_order;
            latch:
                opens_at_zero
                a_wait_times_out
                a_wait_is_woken
                a_cancelled_wait_leaves_nothing
                a_latch_is_no_lock;
            job:
                each_tick_is_run_once
                a_run_that_died_is_run_again_once
                a_claim_whose_answer_was_lost_is_ours
                a_claim_that_did_not_arrive_is_sent_again
                a_claim_that_was_too_late_is_not_run
                a_stock_of_the_same_name_is_left_alone;
            multi:
                opposite_orders_do_not_deadlock
                one_deadline_and_all_or_nothing
                every_member_is_released
                members_may_be_at_two_stores
                odd_members;
            loss:
                a_fixed_lease_is_lost_before_it_expires
                failed_renewals_lose_before_expiry
                unanswered_renewals_lose_before_expiry
                no_false_loss
                a_fixed_lease_can_be_renewed
                max_hold_ends_it
                max_hold_frees_the_name
                a_stall_ends_it
                a_renewal_shortly_before_a_stall_has_time
                a_shared_guard_that_is_lost_says_so
                protect_stops_the_work_before_expiry
                an_expired_lease_goes_to_the_next;
            renewal:
                renewal_never_outlives_the_guard
                a_late_reply_is_not_believed
                an_unknown_release_is_reported_and_tried_again;
            cancel:
                cancel_mid_wait_leaves_nothing
                cancel_after_some_polls_leaves_nothing;
            cohort:
                another_client_gets_its_turn
                a_cancellation_storm_leaves_nothing;
            shutdown:
                shutdown_releases
                shutdown_releases_what_was_renewed_for_long
                shutdown_waits_for_guards_and_not_for_leases
                what_may_have_been_renewed_is_not_forgotten
                what_has_ended_is_forgotten
                shutdown_waits_for_what_is_on_its_way_back
                shutdown_ends_waits;
        );
    };
    (@cases $harness:expr; $($group:ident: $($case:ident)+;)+) => {
        $(mod $group {
            #[allow(unused_imports, reason = "what the harness needs")]
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let harness = $harness;
                    let case = $crate::conformance::$group::$case(&harness);
                    $crate::wait::bounded(stringify!($case), case).await;
                }
            )+
        })+
    };
    (@marker $harness:expr, $across:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn the_marker_is_right() {
            $crate::conformance::the_marker_is_right(&$harness, $across).await;
        }
    };
}
