//! All experiments: locks first, then stock, then caches.

use crate::experiment::Experiment;
use crate::experiments;

/// All experiments.
#[rustfmt::skip] // One on each line, whatever their number.
pub const ALL: &[Experiment] = &[
    experiments::oversell::EXPERIMENT,
    experiments::crashed_holder::EXPERIMENT,
    experiments::crash_before_expire::EXPERIMENT,
    experiments::deleting_anothers_lock::EXPERIMENT,
    experiments::check_then_delete::EXPERIMENT,
    experiments::getset_timestamp::EXPERIMENT,
    experiments::watchdog_long_job::EXPERIMENT,
    experiments::polling_or_notice::EXPERIMENT,
    experiments::lost_by_failover::EXPERIMENT,
    experiments::redlock_clock_jump::EXPERIMENT,
    experiments::redlock_restarted_node::EXPERIMENT,
    experiments::redlock_paused_client::EXPERIMENT,
    experiments::zookeeper_paused_client::EXPERIMENT,
    experiments::etcd_paused_client::EXPERIMENT,
    experiments::fence_against_each::EXPERIMENT,
    experiments::segmented_stock::EXPERIMENT,
    experiments::update_then_set::EXPERIMENT,
    experiments::update_then_delete::EXPERIMENT,
    experiments::delete_then_update::EXPERIMENT,
    experiments::delayed_double_delete::EXPERIMENT,
    experiments::read_write_lock::EXPERIMENT,
    experiments::fill_lease::EXPERIMENT,
    experiments::writer_dies::EXPERIMENT,
    experiments::avalanche::EXPERIMENT,
    experiments::breakdown::EXPERIMENT,
    experiments::penetration::EXPERIMENT,
    experiments::transaction_error::EXPERIMENT,
    experiments::lost_update::EXPERIMENT,
];

/// The one of this name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::experiment::{Expect, Role};

    fn is_kebab(name: &str) -> bool {
        name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    }

    #[test]
    fn names_are_unique_and_can_be_typed() {
        let mut seen = BTreeSet::new();
        for experiment in ALL {
            assert!(is_kebab(experiment.name) && seen.insert(experiment.name), "{experiment:?}");
            let mut variants = BTreeSet::new();
            for variant in experiment.variants {
                assert!(is_kebab(variant.name) && variants.insert(variant.name), "{experiment:?}");
            }
        }
    }

    #[test]
    fn every_experiment_goes_from_the_naive_program_to_lockkeeper() {
        for Experiment { name, variants, .. } in ALL {
            let roles: Vec<_> = variants.iter().map(|variant| variant.role).collect();
            assert_eq!(roles.first(), Some(&Role::Naive), "{name}");
            assert_eq!(roles.last(), Some(&Role::Lockkeeper), "{name}");
            for variant in *variants {
                match variant.role {
                    Role::Naive => assert_eq!(variant.expect, Expect::Broken, "{name}"),
                    Role::Lockkeeper => assert_eq!(variant.expect, Expect::Sound, "{name}"),
                    Role::Repair => {}
                }
            }
        }
    }
}
