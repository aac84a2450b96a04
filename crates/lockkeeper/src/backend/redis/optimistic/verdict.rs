//! What the answers to `MULTI`, the commands and `EXEC` mean together.

use redis::{RedisError, RedisResult, Value};

/// How the server took a transaction.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It ran every command, and each of these came of one.
    Ran(Vec<RedisResult<Value>>),
    /// A watched key had changed: nothing ran.
    Conflict,
    /// It refused a command, or all of them with `None`: nothing ran.
    Refused(Option<usize>, RedisError),
    /// No transaction answers like that: what ran is not known.
    Strange,
}

/// Judges the answers to so many commands between `MULTI` and `EXEC`.
pub(super) fn verdict(mut answers: Vec<Value>, commands: usize) -> Verdict {
    if answers.len() != commands + 2 {
        return Verdict::Strange;
    }
    let exec = answers.pop();
    let mut queued = answers.into_iter();
    // Without MULTI, whatever followed ran by itself.
    if !matches!(queued.next(), Some(Value::Okay)) {
        return Verdict::Strange;
    }
    match exec {
        Some(Value::Array(replies)) if replies.len() == commands => {
            let reply = |reply| match reply {
                Value::ServerError(error) => Err(error.into()),
                other => Ok(other),
            };
            Verdict::Ran(replies.into_iter().map(reply).collect())
        }
        Some(Value::Nil) => Verdict::Conflict,
        Some(Value::ServerError(all)) => {
            let mut refused = queued.enumerate().filter_map(|(at, answer)| match answer {
                Value::ServerError(error) => Some((at, error)),
                _ => None,
            });
            match refused.next() {
                Some((at, error)) => Verdict::Refused(Some(at), error.into()),
                None => Verdict::Refused(None, all.into()),
            }
        }
        _ => Verdict::Strange,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> Value {
        redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap()
    }

    fn queued() -> Value {
        Value::SimpleString("QUEUED".into())
    }

    #[test]
    fn what_ran_is_told_for_each_command() {
        let ran = Value::Array(vec![Value::Int(1), error("WRONGTYPE no list")]);
        let Verdict::Ran(replies) = verdict(vec![Value::Okay, queued(), queued(), ran], 2) else {
            panic!("it ran");
        };
        assert_eq!(replies[0].as_ref().ok(), Some(&Value::Int(1)));
        assert_eq!(replies[1].as_ref().unwrap_err().code(), Some("WRONGTYPE"));
        let nothing = verdict(vec![Value::Okay, Value::Array(vec![])], 0);
        assert!(matches!(nothing, Verdict::Ran(replies) if replies.is_empty()));
    }

    #[test]
    fn what_did_not_run_is_a_conflict_or_refused() {
        let conflict = verdict(vec![Value::Okay, queued(), Value::Nil], 1);
        assert!(matches!(conflict, Verdict::Conflict));
        let unknown = error("ERR unknown command 'NONSENSE'");
        let abort = error("EXECABORT Transaction discarded because of previous errors.");
        let refused = verdict(vec![Value::Okay, queued(), unknown, abort], 2);
        assert!(
            matches!(&refused, Verdict::Refused(Some(1), error) if error.code() == Some("ERR"))
        );
        let moved = verdict(vec![Value::Okay, queued(), error("MOVED 7 a:1")], 1);
        assert!(matches!(&moved, Verdict::Refused(None, error) if error.redirect_node().is_some()));
    }

    #[test]
    fn nothing_is_concluded_from_answers_that_make_no_sense() {
        let ran = || Value::Array(vec![Value::Int(1)]);
        let without_multi = verdict(vec![error("NOPERM"), Value::Int(1), error("ERR no MULTI")], 1);
        assert!(matches!(without_multi, Verdict::Strange));
        assert!(matches!(verdict(vec![Value::Okay, queued(), ran()], 2), Verdict::Strange));
        assert!(matches!(verdict(vec![Value::Okay, queued(), Value::Int(1)], 1), Verdict::Strange));
        assert!(matches!(verdict(vec![], 0), Verdict::Strange));
    }
}
