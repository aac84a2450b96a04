//! A command of a Redis transaction fails when it runs, and the others are carried out all the same.

use lockkeeper::backend::redis::optimistic::Outcome as Committed;
use lockkeeper::clock::Instant;
use redis::AsyncCommands;
use redis::aio::{ConnectionLike, MultiplexedConnection};

use crate::bench::{Bench, Redis};
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::outcome::{Outcome, Tally};
use crate::scene::{Actor, Scene};
use crate::servers::Program;
use crate::timeline::{Kind, Timeline};

/// So many pieces of each there are at first.
const FIRST: i64 = 3;
/// How often each program is run.
const RUNS: u32 = 5;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "transaction-error",
    title: "A command of a transaction fails, and the others stay done",
    note: "002 §5.2.1",
    about: "MULTI and EXEC carry out several commands without anybody in between. They do not undo: a command \
            that fails when it runs, because a key is of another type, leaves the effects of the others. Only \
            what is wrong in form is noticed in time, as it is queued. Nor does a script undo what it did before \
            its error. What helps is to look first, and to be sure that nothing has changed since. (A set of two \
            articles is sold, and another program replaces the list of the first by a number.)",
    needs: &[Program::Redis],
    anywhere: true,
    fast: true,
    variants: &[
        Variant {
            name: "multi-exec",
            title: "MULTI, LPOP, DECR, EXEC",
            role: Role::Naive,
            expect: Expect::Broken,
            run: |bench| Box::pin(sell(bench, How::Exec)),
        },
        Variant {
            name: "discard",
            title: "The same, and DISCARD when it failed",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| Box::pin(sell(bench, How::Discard)),
        },
        Variant {
            name: "wrong-in-form",
            title: "A command that is wrong in form is refused when it is queued",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(sell(bench, How::WrongInForm)),
        },
        Variant {
            name: "script",
            title: "A script that does one after the other",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| Box::pin(sell(bench, How::Script)),
        },
        Variant {
            name: "script-looks-first",
            title: "A script that looks at the types first",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(sell(bench, How::ScriptLooksFirst)),
        },
        Variant {
            name: "lockkeeper",
            title: "Lockkeeper: an optimistic transaction that looks first",
            role: Role::Lockkeeper,
            expect: Expect::Sound,
            run: |bench| Box::pin(sell(bench, How::Optimistic)),
        },
    ],
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Exec,
    Discard,
    WrongInForm,
    Script,
    ScriptLooksFirst,
    Optimistic,
}

const SCRIPT: &str = "redis.call('DECR', KEYS[2]) return redis.call('LPOP', KEYS[1])";
const LOOKS_FIRST: &str = "if redis.call('TYPE', KEYS[1]).ok ~= 'list' then return 0 end
if redis.call('TYPE', KEYS[2]).ok ~= 'string' then return 0 end
redis.call('LPOP', KEYS[1]) redis.call('DECR', KEYS[2]) return 1";

/// Two articles that are sold together, and who takes part.
struct Shop<'a> {
    redis: &'a Redis,
    scene: Scene,
    seller: Actor,
    other: Actor,
    a: String,
    b: String,
    connection: MultiplexedConnection,
}

impl Shop<'_> {
    /// A list of pieces, and a number of them.
    async fn open(&mut self) -> Result<()> {
        self.connection.del::<_, ()>(&[&self.a, &self.b]).await?;
        for piece in 0..FIRST {
            self.connection.rpush::<_, _, ()>(&self.a, piece).await?;
        }
        self.connection.set::<_, _, ()>(&self.b, FIRST).await?;
        Ok(())
    }

    /// Another program has other ideas about the first article.
    async fn replace(connection: &mut MultiplexedConnection, other: &Actor, a: &str) -> Result<()> {
        connection.set::<_, _, ()>(a, FIRST).await?;
        other.did(Kind::Wrote, format!("SET a {FIRST}"));
        Ok(())
    }

    /// What the server says to a command, in a word or two.
    async fn say(&mut self, name: &str, arguments: &[&str]) -> String {
        let mut command = redis::cmd(name);
        command.arg(arguments);
        // As it is: the answer of EXEC has answers and errors side by side.
        match self.connection.req_packed_command(&command).await {
            Ok(value) => short(&value),
            Err(error) => error.code().unwrap_or("error").to_owned(),
        }
    }

    async fn transaction(&mut self, how: How) -> Result<()> {
        let (a, b) = (self.a.clone(), self.b.clone());
        let said = self.say("MULTI", &[]).await;
        self.seller.did(Kind::Noted, format!("MULTI → {said}"));
        let pop: &[&str] = if how == How::WrongInForm { &[] } else { &[&a] };
        let said = self.say("LPOP", pop).await;
        let shown = if how == How::WrongInForm { "LPOP" } else { "LPOP a" };
        self.seller.did(Kind::Noted, format!("{shown} → {said}"));
        let said = self.say("DECR", &[&b]).await;
        self.seller.did(Kind::Noted, format!("DECR b → {said}"));
        if how != How::WrongInForm {
            Self::replace(&mut self.redis.connect().await?, &self.other, &a).await?;
        }
        let said = self.say("EXEC", &[]).await;
        self.seller.did(Kind::Wrote, format!("EXEC → {said}"));
        if how == How::Discard {
            let said = self.say("DISCARD", &[]).await;
            self.seller.did(Kind::Refused, format!("DISCARD → {said}"));
        }
        Ok(())
    }

    async fn script(&mut self, script: &str) -> Result<()> {
        Self::replace(&mut self.redis.connect().await?, &self.other, &self.a).await?;
        let script = redis::Script::new(script);
        let mut call = script.key(&self.a);
        let call = call.key(&self.b);
        let said = match call.invoke_async::<redis::Value>(&mut self.connection).await {
            Ok(value) => short(&value),
            Err(error) => error.code().unwrap_or("error").to_owned(),
        };
        self.seller.did(Kind::Wrote, format!("script → {said}"));
        Ok(())
    }

    async fn optimistic(&mut self) -> Result<()> {
        let (locks, other) = (self.redis.locks().await?, self.redis.connect().await?);
        let (a, b) = (self.a.as_str(), self.b.as_str());
        let (seller, replacer) = (&self.seller, &self.other);
        let mut attempts = 0;
        let ended = locks.optimistic([a, b], |tx| {
            attempts += 1;
            let (attempt, mut other) = (attempts, other.clone());
            async move {
                let mut look = redis::cmd("TYPE");
                look.arg(a);
                let found: String = tx.read(look).await?;
                seller.did(Kind::Read, format!("attempt {attempt}: TYPE a → {found}"));
                if found != "list" {
                    return Ok(false);
                }
                tx.queue(redis::Cmd::lpop(a, None))?;
                tx.queue(redis::Cmd::decr(b, 1))?;
                if attempt == 1 {
                    // The critical point: after the look, before the commit.
                    let replaced = Self::replace(&mut other, replacer, a).await;
                    replaced.map_err(|error| lockkeeper::Error::Config(error.to_string()))?;
                }
                Ok(true)
            }
        });
        let ended = ended.await?;
        let Committed::Committed { value: sold, .. } = ended else {
            return Err(Error::Other("a transaction ended in an unforeseen way".into()));
        };
        let text = if sold { "sold" } else { "sells nothing: a is not a list" };
        self.seller.did(Kind::Noted, text);
        Ok(())
    }

    /// How many pieces there are of each, whatever the type.
    async fn count(&mut self) -> Result<(i64, i64)> {
        let of: String = redis::cmd("TYPE").arg(&self.a).query_async(&mut self.connection).await?;
        let a = if of == "list" {
            self.connection.llen(&self.a).await?
        } else {
            self.connection.get(&self.a).await?
        };
        Ok((a, self.connection.get(&self.b).await?))
    }

    async fn judge(&mut self) -> Result<()> {
        let (a, b) = self.count().await?;
        if is_partial(a, b) {
            let text = format!(
                "half of a sale was done: of a {} pieces were sold and of b {}",
                FIRST - a,
                FIRST - b
            );
            self.scene.violation(&self.seller, text);
        }
        Ok(())
    }
}

/// Whether not as many of one were sold as of the other.
fn is_partial(a: i64, b: i64) -> bool {
    FIRST - a != FIRST - b
}

/// An answer, for a diagram.
fn short(value: &redis::Value) -> String {
    match value {
        redis::Value::Nil => "nil".into(),
        redis::Value::Okay => "OK".into(),
        redis::Value::Int(number) => number.to_string(),
        redis::Value::SimpleString(text) => text.clone(),
        redis::Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        redis::Value::ServerError(error) => error.code().to_owned(),
        redis::Value::Array(values) => values.iter().map(short).collect::<Vec<_>>().join(", "),
        other => format!("{other:?}"),
    }
}

async fn sell(bench: &Bench, how: How) -> Result<Outcome> {
    let redis = bench.redis().await?;
    let mut tally = Tally::new();
    for _ in 0..RUNS {
        let scene = Scene::new();
        let (seller, other) = (scene.actor("seller"), scene.actor("other program"));
        // One server, whatever the keys: in one slot of a cluster.
        let [a, b] = ["a", "b"].map(|article| bench.key(&format!("{{shop}}:{article}:stock")));
        let connection = redis.connect().await?;
        let mut shop = Shop { redis: &redis, scene, seller, other, a, b, connection };
        shop.open().await?;
        let since = Instant::now();
        match how {
            How::Exec | How::Discard | How::WrongInForm => shop.transaction(how).await?,
            How::Script => shop.script(SCRIPT).await?,
            How::ScriptLooksFirst => shop.script(LOOKS_FIRST).await?,
            How::Optimistic => shop.optimistic().await?,
        }
        tally.operation(Instant::now().since(since));
        shop.judge().await?;
        tally.run(&shop.scene);
    }
    Ok(tally.end(|line| story(how, line)))
}

fn story(how: How, line: &Timeline) -> String {
    let (ran, replaced) =
        (line.when("seller", Kind::Wrote), line.when("other program", Kind::Wrote));
    match how {
        How::Exec => format!(
            "Both commands were queued without complaint; at {replaced} a was replaced by a number. EXEC at {ran} \
             failed at a and sold a piece of b all the same."
        ),
        How::Discard => format!(
            "EXEC at {ran} sold a piece of b and none of a. DISCARD, sent after it, was refused: it forgets what is \
             queued, and nothing was any more."
        ),
        How::WrongInForm => format!(
            "LPOP without a key was refused when it was queued, so EXEC at {ran} refused the whole. This is the only \
             kind of error that a transaction of Redis keeps harmless."
        ),
        How::Script => format!(
            "The script sold a piece of b and then failed at a, at {ran}. It stopped there, and the piece stayed sold."
        ),
        How::ScriptLooksFirst => format!(
            "The script found at {ran} that a is not a list, and did nothing. Nobody can come between its look and what \
             it does."
        ),
        How::Optimistic => format!(
            "The seller saw a list at {}; at {replaced}, before it committed, a was replaced. So nothing was carried \
             out, it looked again, and sold nothing. (There is no undo here either: without the look it would have \
             been told that it was done in part.)",
            line.when("seller", Kind::Read)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_sale_is_seen_and_a_whole_one_is_none() {
        assert!(is_partial(3, 2));
        assert!(is_partial(2, 3));
        assert!(!is_partial(3, 3));
        assert!(!is_partial(2, 2));
    }
}
