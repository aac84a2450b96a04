//! Waiting until nobody else uses the machine, and doing again what others have spoilt, for a bounded
//! time in all.

use std::time::Duration;

use super::clock;

/// How long is looked at once.
const LOOK: Duration = Duration::from_millis(100);
/// So much of one processor may be used by others before a measurement, and during it.
const QUIET: f64 = 0.15;
const ROUGH: f64 = 0.25;
/// No single measurement is given more than this part of what is left.
const PARTS: u32 = 20;

#[derive(Debug)]
pub(crate) struct Weather {
    left: Duration,
    /// Of all measurements, so many were taken while others used the machine.
    pub(crate) rough: u32,
    pub(crate) all: u32,
}

/// What all had used at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sky {
    at: u64,
    used: f64,
}

impl Weather {
    /// Waits for at most this long in all.
    pub(crate) fn new(patience: Duration) -> Self {
        Self { left: patience, rough: 0, all: 0 }
    }

    /// To be called while all contenders are idle: whatever is used now, others use.
    pub(crate) async fn settle(&mut self) {
        // Not all of it at once: the weather may be better later.
        let mut share = self.left / PARTS;
        while share >= LOOK {
            let before = used();
            tokio::time::sleep(LOOK).await;
            if (used() - before) / LOOK.as_secs_f64() < QUIET {
                return;
            }
            share -= LOOK;
            self.left -= LOOK;
        }
    }

    /// Before a measurement.
    pub(crate) fn look(&self) -> Sky {
        Sky { at: clock::now(), used: used() }
    }

    /// After a measurement in which server and contenders had so many seconds of processors: whether
    /// it is to be done again.
    pub(crate) fn spoilt(&mut self, sky: Sky, own: f64) -> bool {
        let time = Duration::from_nanos(clock::now() - sky.at);
        let others = (used() - sky.used - own) / time.as_secs_f64();
        let again = others > ROUGH && self.left / PARTS >= time;
        if again {
            self.left -= time;
        } else {
            self.all += 1;
            self.rough += u32::from(others > ROUGH);
        }
        again
    }
}

/// The time that all processors were used or taken away, in seconds.
fn used() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    [0, 1, 2, 5, 6, 7].iter().filter_map(|at| ticks.get(*at)).sum::<f64>() / super::process::TICKS
}
