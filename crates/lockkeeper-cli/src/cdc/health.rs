//! Whether a follower is well: a pure answer to a question of a load balancer or an operator.

use std::time::Duration;

use serde::Serialize;

use super::view::{State, View};
use crate::duration::{millis, show};

/// The answer.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Health {
    pub(crate) healthy: bool,
    state: State,
    reason: Option<String>,
    lag_ms: Option<u64>,
    lag_bytes: Option<u64>,
}

impl Health {
    /// Well is who follows, and not from too far behind, or stands by.
    pub(crate) fn of(view: &View, max_lag: Option<Duration>) -> Self {
        let View { state, lag, lag_bytes, .. } = *view;
        let late = match (state, lag, max_lag) {
            (State::Following, Some(lag), Some(most)) if lag > most => {
                Some(format!("it is {} behind, and {} are allowed", show(lag), show(most)))
            }
            _ => None,
        };
        let well = matches!(state, State::Following | State::Standby) && late.is_none();
        let reason = late.or_else(|| view.reason.clone());
        let reason = reason.or_else(|| (!well).then(|| format!("it is {state}")));
        Self { healthy: well, state, reason, lag_ms: lag.map(millis), lag_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(state: State, lag: u64, max_lag: Option<u64>) -> Health {
        let lag = Some(Duration::from_secs(lag));
        Health::of(&View { state, lag, ..View::default() }, max_lag.map(Duration::from_secs))
    }

    #[test]
    fn well_is_who_follows_or_stands_by() {
        for state in State::ALL {
            let expected = matches!(state, State::Following | State::Standby);
            let health = of(state, 0, Some(30));
            assert_eq!(health.healthy, expected, "{state}");
            assert_eq!(health.reason.is_none(), expected, "{state} has a reason");
        }
    }

    #[test]
    fn who_is_too_far_behind_is_not_well_unless_it_only_stands_by() {
        assert!(of(State::Following, 30, Some(30)).healthy);
        let late = of(State::Following, 31, Some(30));
        assert!(!late.healthy);
        assert_eq!(late.reason.as_deref(), Some("it is 31s behind, and 30s are allowed"));
        assert!(of(State::Following, 31, None).healthy);
        assert!(of(State::Standby, 31, Some(30)).healthy);
    }
}
