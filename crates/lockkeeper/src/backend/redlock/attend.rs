//! Looking after nodes that do not vote.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use redis::Value;

use super::nodes::{Looking, Nodes, view};
use super::readmit::{Plan, View, plan};

/// Between two looks at nodes of which too little is known.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Sees to it, in the background, that nodes that came back vote again when they may.
pub(super) fn attend(nodes: &Arc<Nodes>) {
    if nodes.attended.swap(true, Ordering::AcqRel) {
        return;
    }
    let weak = Arc::downgrade(nodes);
    nodes.runtime().spawn(async move {
        while let Some(pause) = look_after(&weak).await {
            tokio::time::sleep(pause).await;
        }
        if let Some(nodes) = weak.upgrade() {
            nodes.attended.store(false, Ordering::Release);
        }
    });
}

/// Looks once and does what is to be done; when to look again, unless there is nothing left to do.
async fn look_after(nodes: &Weak<Nodes>) -> Option<Duration> {
    let nodes = nodes.upgrade()?;
    let (mut views, runs) = look(&nodes, Looking::Mark).await;
    if views.iter().any(|view| matches!(view, View::Marked { .. })) {
        // Those who remember are asked after it was seen how long it has waited, not at the same time.
        let (later, _) = look(&nodes, Looking::Only).await;
        for (view, later) in std::iter::zip(&mut views, later) {
            if matches!(view, View::Voting(_)) {
                *view = later;
            }
        }
    }
    let unknown = Duration::from_millis(nodes.longest.load(Ordering::Relaxed));
    let mut again: Option<Duration> = None;
    for (at, run) in runs.iter().enumerate() {
        let pause = match plan(&views, at, unknown) {
            Plan::Leave => continue,
            Plan::Mark | Plan::TooFew => LOOK_AGAIN,
            Plan::After(time) => time,
            Plan::Admit { wait, counter, floor } => {
                let address = &nodes.links[at].address;
                tracing::info!(%address, ?wait, "a node came back without its data");
                match nodes.at(at, &nodes.admit(run, wait, counter, floor)).await {
                    Ok(Value::Int(1)) => continue,
                    _ => LOOK_AGAIN,
                }
            }
        };
        again = Some(again.map_or(pause, |again| again.min(pause)));
    }
    again
}

/// What all nodes remember, and their runs.
pub(super) async fn look(nodes: &Arc<Nodes>, what: Looking) -> (Vec<View>, Vec<String>) {
    let mut views = vec![View::Unknown; nodes.links.len()];
    let mut runs = vec![String::new(); nodes.links.len()];
    let mut answers = nodes.ask_all(nodes.look(what));
    while let Some((at, answer)) = answers.next().await {
        if let Ok(answer) = answer {
            (views[at], runs[at]) = view(&answer);
        }
    }
    (views, runs)
}
