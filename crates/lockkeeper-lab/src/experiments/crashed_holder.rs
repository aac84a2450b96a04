//! A lock without a time to live, and a holder that dies.

use super::stuck::{Taking, home_made, kept};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::servers::Program;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "crashed-holder",
    title: "SETNX without a time to live, and the holder dies",
    about: "SETNX lets exactly one client in, and DEL lets the next one in. A client that dies between the two \
            never deletes: the key stays, and everybody else is locked out for ever. A finally block helps \
            against exceptions, not against a killed process.",
    needs: &[Program::Redis],
    anywhere: true,
    fast: true,
    variants: &[
        Variant {
            name: "setnx",
            title: "SETNX, then DEL",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(home_made(bench, Taking::SetNx)),
        },
        Variant {
            name: "finally",
            title: "SETNX, and DEL in a finally block",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| Box::pin(home_made(bench, Taking::Finally)),
        },
        Variant {
            name: "set-nx-px",
            title: "SET NX PX: the lock ends by itself",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(home_made(bench, Taking::InOneStep)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: a lease that nobody renews any more",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(kept(bench)),
        },
    ],
};
