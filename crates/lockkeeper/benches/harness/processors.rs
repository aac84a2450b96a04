//! Which processors the server and the contenders run on.

use std::process::Command;

use tokio::process::Command as Program;

/// The server has the first processor for itself where there are several; a contender that is to be
/// kept apart from it has the others. Whether two that talk to each other share a processor makes a
/// factor of three in the time of a round trip.
#[derive(Clone, Debug)]
pub(crate) struct Processors {
    first: String,
    others: String,
}

impl Processors {
    /// `None` where there is only one.
    pub(crate) fn find() -> Option<Self> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        let mut all = Vec::new();
        for range in list.trim().split(',') {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            all.extend(from.parse::<u32>().ok()?..=to.parse::<u32>().ok()?);
        }
        let mut all = all.into_iter().map(|number| number.to_string());
        let (first, others) = (all.next()?, all.collect::<Vec<_>>().join(","));
        (!others.is_empty()).then_some(Self { first, others })
    }

    /// Lets a running server have the first processor and no other.
    pub(crate) fn keep(&self, server: u32) {
        let mut command = Command::new("taskset");
        command.args(["-cp", &self.first, &server.to_string()]);
        if !command.output().is_ok_and(|output| output.status.success()) {
            eprintln!("the server runs on any processor: taskset failed");
        }
    }

    /// The same program, on the others.
    pub(crate) fn apart(&self, program: &Program) -> Program {
        let mut apart = Program::new("taskset");
        apart.args(["-c", &self.others]).arg(program.as_std().get_program());
        apart.args(program.as_std().get_args());
        apart
    }
}
