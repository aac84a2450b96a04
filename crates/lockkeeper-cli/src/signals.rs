//! Signals to this process, as a stream.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Those that end a wait.
pub(crate) const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// Those that matter in addition once the command runs.
const RUNNING: [Signal; 6] =
    [Signal::CHILD, Signal::USR1, Signal::USR2, Signal::WINCH, Signal::TSTP, Signal::CONT];

/// The signals that we listen to.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    /// Listens to the signals that end a wait.
    pub(crate) fn while_waiting() -> io::Result<Self> {
        let mut signals = Self::default();
        signals.listen(&ENDING)?;
        Ok(signals)
    }

    /// Listens to the others as well. Not before the command runs: ctrl-Z must stop a wait.
    pub(crate) fn while_running(&mut self) -> io::Result<()> {
        self.listen(&RUNNING)
    }

    /// What the caller lets us ignore (`nohup`, background jobs) stays ignored, here and, since
    /// that is inherited, in the command.
    fn listen(&mut self, wanted: &[Signal]) -> io::Result<()> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let ignored = ignored(&status);
        for &signal in wanted {
            if signal != Signal::CHILD && ignored >> (signal.as_raw() - 1) & 1 == 1 {
                continue;
            }
            self.streams.push((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        }
        Ok(())
    }

    /// The next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The mask of ignored signals in `/proc/self/status`.
fn ignored(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_found() {
        let mask = ignored("Name:\tx\nSigIgn:\t0000000000000001\nSigCgt:\t00000000000000ff\n");
        assert_eq!(mask >> (Signal::HUP.as_raw() - 1) & 1, 1);
        assert_eq!(mask >> (Signal::INT.as_raw() - 1) & 1, 0);
        assert_eq!(ignored(""), 0);
    }
}
