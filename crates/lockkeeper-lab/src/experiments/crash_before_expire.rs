//! A time to live that is set by a second command, and a holder that dies before it.

use super::stuck::{Taking, cut_off, home_made};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::servers::Program;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "crash-before-expire",
    title: "SETNX and EXPIRE are two commands, and the holder dies between them",
    about: "A time to live frees the lock of a dead client, if it was set. With SETNX and EXPIRE there is a \
            moment in which the lock exists and does not end: a client that dies right there locks everybody \
            out for ever, exactly as without EXPIRE. Taking and timing must be one step. Lockkeeper's client is \
            put behind a proxy that lets so many of its commands through and no answer to the last one: wherever \
            it dies, the lock ends.",
    needs: &[Program::Redis],
    anywhere: false,
    fast: true,
    variants: &[
        Variant {
            name: "setnx-expire",
            title: "SETNX, then EXPIRE",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(home_made(bench, Taking::BeforeExpire)),
        },
        Variant {
            name: "set-nx-px",
            title: "SET NX PX: both in one command",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(home_made(bench, Taking::InOneStep)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: taken and timed by one script, and cut off after each command",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(cut_off(bench)),
        },
    ],
};
