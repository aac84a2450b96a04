//! The scripts of each dialect, put together from `lua`.

use std::sync::LazyLock;

use redis::Script;

use crate::url::Dialect;

macro_rules! lua {
    ($file:literal) => {
        include_str!(concat!("lua/", $file))
    };
}

/// One script for each step.
pub(super) struct Scripts {
    pub(super) acquire: Script,
    pub(super) acquire_all: Script,
    pub(super) renew: Script,
    pub(super) renew_many: Script,
    pub(super) check: Script,
    pub(super) release: Script,
    pub(super) downgrade: Script,
    pub(super) evict: Script,
    pub(super) show: Script,
    pub(super) latch_close: Script,
    pub(super) latch_count_down: Script,
    pub(super) latch_count: Script,
    pub(super) cells_read: Script,
    pub(super) cells_swap: Script,
}

static REDISSON: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(Dialect::Redisson, false));
static PLAIN: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(Dialect::Plain, false));
static SHARDED: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(Dialect::Redisson, true));
static SHARDED_PLAIN: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(Dialect::Plain, true));

impl Scripts {
    /// Where channels of Redisson's belong to slots, they are `sharded`.
    pub(super) fn of(dialect: Dialect, sharded: bool) -> &'static Self {
        match (dialect, sharded) {
            (Dialect::Redisson, false) => &REDISSON,
            (Dialect::Plain, false) => &PLAIN,
            (Dialect::Redisson, true) => &SHARDED,
            (Dialect::Plain, true) => &SHARDED_PLAIN,
        }
    }

    fn new(dialect: Dialect, sharded: bool) -> Self {
        let (is_plain, outside) = match dialect {
            Dialect::Redisson => ("false", lua!("redisson.lua")),
            Dialect::Plain => ("true", lua!("plain.lua")),
        };
        let publish = if sharded { "SPUBLISH" } else { "PUBLISH" };
        let first = format!("local PLAIN, PUBLISH = {is_plain}, '{publish}'\n");
        let short = |alone: &str| Script::new(&[&first, lua!("take.lua"), alone].concat());
        let step = |alone: &str, step: &str| {
            let before =
                [&first, lua!("take.lua"), alone, lua!("head.lua"), outside, lua!("model.lua")];
            Script::new(&[&before.concat(), step].concat())
        };
        Self {
            acquire: step(lua!("acquire_alone.lua"), lua!("acquire.lua")),
            acquire_all: short(lua!("acquire_all.lua")),
            renew: step("", lua!("renew.lua")),
            renew_many: short(lua!("renew_many.lua")),
            check: step("", lua!("check.lua")),
            release: step(lua!("release_alone.lua"), lua!("release.lua")),
            downgrade: step("", lua!("downgrade.lua")),
            evict: step("", lua!("evict.lua")),
            show: step("", lua!("show.lua")),
            latch_close: step("", lua!("latch_close.lua")),
            latch_count_down: step("", lua!("latch_count_down.lua")),
            latch_count: step("", lua!("latch_count.lua")),
            cells_read: Script::new(lua!("cells_read.lua")),
            cells_swap: Script::new(lua!("cells_swap.lua")),
        }
    }
}
