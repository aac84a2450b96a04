//! Why a hold was taken away: written into the data of the lock's own node, where nobody else looks.

use zookeeper_client::Error as ZkError;

use super::session::{Session, answered};
use crate::loss::Cause;
use crate::owner::RequestId;

/// So many evictions are remembered for each lock.
const REMEMBERED: usize = 16;
/// No reason is longer, in characters.
const LONGEST: usize = 200;
const WORD: &str = "evicted ";

/// Adds reasons to what a node says. What is not ours stays; where that is not text, nothing is
/// added, and the holders only learn that their hold is gone.
pub(super) fn with_reasons(data: &[u8], evicted: &[RequestId], reason: &str) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(data) else { return data.to_vec() };
    let (ours, others): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| line.starts_with(WORD));
    let reason: String = reason.chars().filter(|c| !c.is_control()).take(LONGEST).collect();
    let new: Vec<String> = evicted.iter().map(|id| format!("{WORD}{id} {reason}")).collect();
    let old = ours.iter().skip((ours.len() + new.len()).saturating_sub(REMEMBERED));
    let lines = others.into_iter().map(str::to_owned).chain(old.map(ToString::to_string));
    lines.chain(new).collect::<Vec<_>>().join("\n").into_bytes()
}

/// Why this request was evicted, if it was.
pub(super) fn reason(data: &[u8], id: RequestId) -> Option<String> {
    let text = std::str::from_utf8(data).ok()?;
    let start = format!("{WORD}{id} ");
    text.lines().rev().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
}

/// Why the node of a hold is gone.
pub(super) async fn why_gone(
    session: &Session,
    dir: &str,
    id: RequestId,
) -> Result<Cause, ZkError> {
    match answered(session.client.get_data(dir)).await {
        Ok((data, _)) => Ok(reason(&data, id).map_or(Cause::Gone, Cause::Evicted)),
        Err(ZkError::NoNode) => Ok(Cause::Gone),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> RequestId {
        RequestId::from_bytes([number; 16])
    }

    #[test]
    fn reasons_are_found_and_bounded() {
        let mut data = b"10.0.0.1".to_vec();
        for number in 0..40 {
            data = with_reasons(&data, &[id(number)], "too\nlong");
        }
        assert_eq!(reason(&data, id(39)).as_deref(), Some("toolong"));
        assert_eq!(reason(&data, id(24)).as_deref(), Some("toolong"));
        assert_eq!(reason(&data, id(23)), None);
        assert!(data.starts_with(b"10.0.0.1\n"), "what others wrote stays");
    }

    #[test]
    fn what_is_not_text_is_left_alone() {
        assert_eq!(with_reasons(&[0xff, 0], &[id(1)], "x"), [0xff, 0]);
        assert_eq!(reason(&[0xff, 0], id(1)), None);
    }
}
