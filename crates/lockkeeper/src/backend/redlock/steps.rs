//! The scripts do what the model does: random steps on both.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use testkit::random::Random;

use super::node::Node;
use super::nodes::{Looking, Member, Nodes, view, vote};
use super::readmit::{Memory, View};
use super::votes::{Absence, Vote};
use crate::backend::{Kind, Patience, Request, Term};
use crate::owner::{Identity, RequestId};
use crate::url::{RedLockOptions, TlsFiles};

/// Long enough that no lease ends by itself while the test runs.
const TTL: Duration = Duration::from_secs(3600);
const NOBODY: Member<'_> = Member { name: "", lease: TTL, since: TTL };

fn request(identity: &Identity, number: u8) -> Request {
    Request {
        name: "x".parse().expect("a name"),
        kind: Kind::Mutex,
        owner: identity.owner(),
        id: RequestId::from_bytes([number + 1; 16]),
        term: Term::Fixed(TTL),
        tokens: 1,
        patience: Patience::TryOnce,
    }
}

/// A vote without what differs: times, and how values are written.
fn plain(vote: Vote) -> Vote {
    match vote {
        Vote::Held { .. } => Vote::Held { by: String::new(), left: Duration::ZERO },
        Vote::Absent(Absence::Waiting(Some(_))) => Vote::Absent(Absence::Waiting(Some(TTL))),
        other => other,
    }
}

/// The same for a look.
fn plain_view(view: View) -> View {
    let plain = |memory: Memory| match memory.busy.is_zero() {
        true => memory,
        false => Memory { busy: TTL, ..memory },
    };
    match view {
        View::Marked { memory, .. } => View::Marked { waited: TTL, memory: plain(memory) },
        View::Voting(memory) => View::Voting(plain(memory)),
        View::Unmarked(memory) => View::Unmarked(plain(memory)),
        other => other,
    }
}

async fn ask(nodes: &Arc<Nodes>, step: super::nodes::Step) -> crate::Result<Value> {
    nodes.at(0, &step).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_do_what_the_model_does() {
    let server = testkit::server::redis(&[]).await;
    let options = RedLockOptions {
        nodes: vec![format!("redis://{}", server.address())],
        tls: TlsFiles::default(),
        prefix: "p:".into(),
        ttl: None,
    };
    let nodes = Nodes::new(&options, TTL).expect("a client");
    let raw = testkit::resp::Raw::connect(server.address()).await;
    let identity = Identity::new();
    let requests: Vec<Request> = (0..3).map(|number| request(&identity, number)).collect();
    let now = Duration::from_secs(10);
    let mut random = Random::seeded();
    for _ in 0..20 {
        raw.ask("FLUSHALL").await;
        let mut model = Node { run: 0, record: None, lock: None, busy: Duration::ZERO };
        let mut values: Vec<String> =
            requests.iter().map(|request| nodes.value(request, 0)).collect();
        for _ in 0..60 {
            let who = usize::try_from(random.below(3)).unwrap_or(0);
            let by = u8::try_from(who).unwrap_or(0);
            let number = random.below(8);
            match random.below(11) {
                0..=2 => {
                    // Each attempt has a value of its own; one that is held has taken it before.
                    if model.held(now).is_some_and(|(holder, _)| holder == by) {
                        continue;
                    }
                    values[who] = nodes.value(&requests[who], number);
                    let tokens = (number, number + 2);
                    let id = requests[who].id;
                    let step = nodes.take(("p:x", &values[who], id), TTL, tokens, NOBODY);
                    let said = plain(vote(ask(&nodes, step).await));
                    assert_eq!(said, plain(model.take(now, by, TTL, tokens)));
                }
                3 => {
                    let step = nodes.raise("p:x", &values[who], (number, number));
                    let said = ask(&nodes, step).await.expect("an answer");
                    assert_eq!(said == Value::Int(1), model.raise(now, by, number));
                }
                4 => {
                    let step = nodes.renew("p:x", &values[who], Some(TTL));
                    let said = ask(&nodes, step).await.expect("an answer");
                    let held = matches!(&said, Value::Array(words) if words[0] == Value::Int(1));
                    assert_eq!(held, model.renew(now, by, TTL), "{said:?}");
                }
                5 | 6 => {
                    let step = nodes.release("p:x", &values[who], "");
                    let said = ask(&nodes, step).await.expect("an answer");
                    assert_eq!(said == Value::Int(1), model.release(now, by));
                }
                7 | 8 => {
                    let mark = random.below(2) == 1;
                    let looking = if mark { Looking::Mark } else { Looking::Only };
                    let said = ask(&nodes, nodes.look(looking)).await.expect("an answer");
                    let (said, run) = view(&said);
                    assert_eq!(plain_view(said), plain_view(model.look(now, mark)));
                    if random.below(2) == 1 {
                        let wait = if random.below(4) == 0 { TTL } else { Duration::ZERO };
                        let step = nodes.admit(&run, wait, number, false);
                        ask(&nodes, step).await.expect("an answer");
                        // The node adds a millisecond, for what is lost in rounding.
                        tokio::time::sleep(Duration::from_millis(3)).await;
                        model.admit(now, wait, number);
                    }
                }
                9 if random.below(4) == 0 => {
                    raw.ask("FLUSHALL").await;
                    model.flush();
                }
                10 if model.record.is_some() && random.below(4) == 0 => {
                    // A restart with its data, as the record sees it: another run.
                    raw.ask("HSET lockkeeper_redlock_node:{p:} run 0123").await;
                    model.restart(model.clone());
                }
                _ => {}
            }
        }
    }
}

/// A client looks, and is stopped; the node votes, forgets again, and waits again; then that client
/// goes on. What it has to say is about what the node forgot the first time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_seen_before_a_node_forgot_again_does_not_let_it_vote() {
    let server = testkit::server::redis(&[]).await;
    let options = RedLockOptions {
        nodes: vec![format!("redis://{}", server.address())],
        tls: TlsFiles::default(),
        prefix: "p:".into(),
        ttl: None,
    };
    let nodes = Nodes::new(&options, TTL).expect("a client");
    let raw = testkit::resp::Raw::connect(server.address()).await;
    let request = request(&Identity::new(), 0);
    let take = async |number| {
        let value = nodes.value(&request, number);
        let step = nodes.take(("p:x", &value, request.id), TTL, (number, number), NOBODY);
        vote(ask(&nodes, step).await)
    };
    let look = async || view(&ask(&nodes, nodes.look(Looking::Mark)).await.expect("an answer"));
    let (_, seen) = look().await;
    ask(&nodes, nodes.admit(&seen, Duration::ZERO, 7, false)).await.expect("an answer");
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(take(9).await, Vote::Yes { counter: 9, accepted: true });
    raw.ask("FLUSHALL").await;
    look().await;
    ask(&nodes, nodes.admit(&seen, Duration::ZERO, 7, false)).await.expect("an answer");
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(take(9).await, Vote::Absent(Absence::Waiting(None)), "a lock is given twice");
}
