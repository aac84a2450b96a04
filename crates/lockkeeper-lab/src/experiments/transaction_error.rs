//! A command of a Redis transaction fails when it runs, and the others are carried out all the same.

use lockkeeper::Locks;
use lockkeeper::backend::redis::optimistic::Outcome as Committed;
use redis::AsyncCommands;
use redis::aio::{ConnectionLike, MultiplexedConnection};

use crate::bench::{Bench, Redis};
use crate::error::{Error, Result};
use crate::experiment::{Expect, Experiment, Role, Variant};
use crate::load::{self, Client};
use crate::outcome::{Outcome, Tally};
use crate::scene::{Actor, Scene};
use crate::servers::Program;
use crate::timeline::{Kind, Timeline};

/// So many pieces of each there are at first.
const FIRST: i64 = 3;
/// How often each program is run.
const RUNS: u32 = 5;
/// So many sets one sells alone, to see what a sale costs.
const ALONE: usize = 50;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "transaction-error",
    title: "A command of a transaction fails, and the others stay done",
    about: "MULTI and EXEC carry out several commands without anybody in between. They do not undo: a command \
            that fails when it runs, because a key is of another type, leaves the effects of the others. Only \
            what is wrong in form is noticed in time, as it is queued. Nor does a script undo what it did before \
            its error, and WATCH only tells that something has changed. What helps is to look first, and to be \
            sure that nothing has changed since. (A set of two articles is sold: first DECR b, then LPOP a; another \
            program replaces the list a by a number. The figures are those of a seller whom nobody disturbs.)",
    needs: &[Program::Redis],
    anywhere: true,
    fast: true,
    variants: &[
        Variant {
            name: "multi-exec",
            title: "MULTI, DECR, LPOP, EXEC",
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
            name: "watch",
            title: "WATCH first, and the whole again if EXEC says nil",
            role: Role::Repair,
            expect: Expect::Broken,
            run: |bench| Box::pin(sell(bench, How::Watch)),
        },
        Variant {
            name: "watch-looks-first",
            title: "The same, and looks at the types after WATCH",
            role: Role::Repair,
            expect: Expect::Sound,
            run: |bench| Box::pin(sell(bench, How::WatchLooksFirst)),
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
    Watch,
    WatchLooksFirst,
    Script,
    ScriptLooksFirst,
    Optimistic,
}

const SCRIPT: &str = "redis.call('DECR', KEYS[2]) return redis.call('LPOP', KEYS[1])";
const LOOKS_FIRST: &str = "if redis.call('TYPE', KEYS[1]).ok ~= 'list' then return 0 end
if redis.call('TYPE', KEYS[2]).ok ~= 'string' then return 0 end
redis.call('DECR', KEYS[2]) redis.call('LPOP', KEYS[1]) return 1";

/// Two articles that are sold together, and who takes part.
struct Shop {
    scene: Scene,
    seller: Actor,
    other: Actor,
    /// Whether the other program does anything.
    disturbed: bool,
    a: String,
    b: String,
    connection: MultiplexedConnection,
    of_other: MultiplexedConnection,
    locks: Locks,
}

impl Shop {
    /// A list of pieces, and a number of them: so many of each.
    async fn open(
        bench: &Bench,
        redis: &Redis,
        number: usize,
        pieces: u32,
        disturbed: bool,
    ) -> Result<Self> {
        let scene = Scene::new();
        let (seller, other) = (scene.actor("seller"), scene.actor("other program"));
        // One server, whatever the keys: in one slot of a cluster.
        let [a, b] =
            ["a", "b"].map(|article| bench.key(&format!("{{shop-{number}}}:{article}:stock")));
        let (mut connection, of_other) = (redis.connect().await?, redis.connect().await?);
        connection.del::<_, ()>(&[&a, &b]).await?;
        connection.rpush::<_, _, ()>(&a, (0..pieces).collect::<Vec<_>>()).await?;
        connection.set::<_, _, ()>(&b, pieces).await?;
        let locks = redis.locks().await?;
        Ok(Self { scene, seller, other, disturbed, a, b, connection, of_other, locks })
    }

    /// Another program has other ideas about the first article.
    async fn replace(&self) -> Result<()> {
        if self.disturbed {
            self.of_other.clone().set::<_, _, ()>(&self.a, FIRST).await?;
            self.other.did(Kind::Wrote, format!("SET a {FIRST}"));
        }
        Ok(())
    }

    async fn sell(&mut self, how: How) -> Result<()> {
        match how {
            How::Exec | How::Discard | How::WrongInForm => self.transaction(how).await,
            How::Watch => self.watched(false).await,
            How::WatchLooksFirst => self.watched(true).await,
            How::Script => self.script(SCRIPT).await,
            How::ScriptLooksFirst => self.script(LOOKS_FIRST).await,
            How::Optimistic => self.optimistic().await,
        }
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

    /// `MULTI`, and both commands.
    async fn queue(&mut self, form: Form) {
        let (a, b) = (self.a.clone(), self.b.clone());
        let said = self.say("MULTI", &[]).await;
        self.seller.did(Kind::Noted, format!("MULTI → {said}"));
        let said = self.say("DECR", &[&b]).await;
        self.seller.did(Kind::Noted, format!("DECR b → {said}"));
        let (pop, shown): (&[&str], _) = match form {
            Form::Right => (&[&a], "LPOP a"),
            Form::Wrong => (&[], "LPOP"),
        };
        let said = self.say("LPOP", pop).await;
        self.seller.did(Kind::Noted, format!("{shown} → {said}"));
    }

    /// `EXEC`; whether anything was carried out, or refused as a whole.
    async fn exec(&mut self) -> bool {
        let said = self.say("EXEC", &[]).await;
        let kind = if said == "nil" { Kind::Refused } else { Kind::Wrote };
        self.seller.did(kind, format!("EXEC → {said}"));
        said != "nil"
    }

    async fn transaction(&mut self, how: How) -> Result<()> {
        if how == How::WrongInForm {
            self.queue(Form::Wrong).await;
        } else {
            self.queue(Form::Right).await;
            self.replace().await?;
        }
        self.exec().await;
        if how == How::Discard && self.disturbed {
            let said = self.say("DISCARD", &[]).await;
            self.seller.did(Kind::Refused, format!("DISCARD → {said}"));
        }
        Ok(())
    }

    async fn watched(&mut self, looks: bool) -> Result<()> {
        let (a, b) = (self.a.clone(), self.b.clone());
        for attempt in 1..=3 {
            let said = self.say("WATCH", &[&a, &b]).await;
            self.seller.did(Kind::Noted, format!("WATCH a b → {said}"));
            if looks {
                let found = self.say("TYPE", &[&a]).await;
                self.seller.did(Kind::Read, format!("TYPE a → {found}"));
                if found != "list" {
                    self.say("UNWATCH", &[]).await;
                    self.seller.did(Kind::Noted, "sells nothing: a is not a list");
                    return Ok(());
                }
            }
            self.queue(Form::Right).await;
            if attempt == 1 {
                // The critical point: after the look, before EXEC.
                self.replace().await?;
            }
            if self.exec().await {
                return Ok(());
            }
        }
        Err(Error::Late("a transaction without a conflict".into()))
    }

    async fn script(&mut self, script: &str) -> Result<()> {
        self.replace().await?;
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

    async fn optimistic(&self) -> Result<()> {
        let (a, b) = (self.a.as_str(), self.b.as_str());
        let mut attempts = 0;
        let ended = self.locks.optimistic([a, b], |tx| {
            attempts += 1;
            let attempt = attempts;
            async move {
                let mut look = redis::cmd("TYPE");
                look.arg(a);
                let found: String = tx.read(look).await?;
                self.seller.did(Kind::Read, format!("attempt {attempt}: TYPE a → {found}"));
                if found != "list" {
                    return Ok(false);
                }
                tx.queue(redis::Cmd::decr(b, 1))?;
                tx.queue(redis::Cmd::lpop(a, None))?;
                if attempt == 1 {
                    // The critical point: after the look, before the commit.
                    let replaced = self.replace().await;
                    replaced.map_err(|error| lockkeeper::Error::Config(error.to_string()))?;
                }
                Ok(true)
            }
        });
        let text = match ended.await? {
            Committed::Committed { value: true, .. } => "committed: sold",
            Committed::Committed { value: false, .. } => "sells nothing: a is not a list",
            // What that means the checker says.
            Committed::Partial { .. } => "is told: done in part",
            Committed::Unknown { source, .. } => return Err(Error::Other(source.to_string())),
        };
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

/// Whether a command that is queued could ever be carried out.
#[derive(Clone, Copy)]
enum Form {
    Right,
    Wrong,
}

/// Whether not as many of one were sold as of the other: there were as many of both.
fn is_partial(a: i64, b: i64) -> bool {
    a != b
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
    let pieces = u32::try_from(FIRST).unwrap_or(0);
    for _ in 0..RUNS {
        let mut shop = Shop::open(bench, &redis, 0, pieces, true).await?;
        shop.sell(how).await?;
        shop.judge().await?;
        tally.run(&shop.scene);
    }
    // Of what is refused in any case there is nothing to measure.
    if how != How::WrongInForm {
        measure(bench, &redis, how, &mut tally).await?;
    }
    Ok(tally.end(|line| story(how, line)))
}

/// What a sale costs when nobody is in the way.
async fn measure(bench: &Bench, redis: &Redis, how: How, tally: &mut Tally) -> Result<()> {
    let work = |mut client: Client| async move {
        // A list without pieces is none.
        let pieces = u32::try_from(load::in_all(ALONE)).unwrap_or(u32::MAX) + 1;
        let mut shop = Shop::open(bench, redis, client.number, pieces, false).await?;
        while client.again(ALONE).await {
            shop.sell(how).await?;
        }
        match shop.count().await? {
            (1, 1) => Ok(client.took()),
            (a, b) => {
                Err(Error::Other(format!("of a {a} pieces are left and of b {b}, and not 1")))
            }
        }
    };
    load::measure(tally, work).await
}

fn story(how: How, line: &Timeline) -> String {
    let (ran, replaced) =
        (line.when("seller", Kind::Wrote), line.when("other program", Kind::Wrote));
    match how {
        How::Exec => format!(
            "Both commands were queued without complaint; at {replaced} a was replaced by a number. EXEC at {ran} \
             sold a piece of b and failed at a; the piece stayed sold. It goes on after an error, so the other order \
             would have come to the same."
        ),
        How::Discard => format!(
            "EXEC at {ran} sold a piece of b and none of a. DISCARD, sent after it, was refused: it forgets what is \
             queued, and nothing was any more."
        ),
        How::WrongInForm => format!(
            "LPOP without a key was refused when it was queued, so EXEC at {ran} refused the whole. This is the only \
             kind of error that a transaction of Redis keeps harmless."
        ),
        How::Watch => format!(
            "a was replaced at {replaced}, so EXEC did nothing at {} and said so. The seller tried again, as one does \
             after that; nothing changed any more, and EXEC at {ran} sold a piece of b and failed at a. WATCH tells of \
             changes, not of errors.",
            line.when("seller", Kind::Refused)
        ),
        How::WatchLooksFirst => format!(
            "The seller saw a list at {}; a was replaced at {replaced}, and EXEC did nothing at {}. It looked again, and \
             sold nothing.",
            line.when("seller", Kind::Read),
            line.when("seller", Kind::Refused)
        ),
        How::Script => format!(
            "The script sold a piece of b and then failed at a, at {ran}. It stopped there, and the piece stayed sold. \
             (A script stops at its first error, so in the other order this one would have done nothing; a later step \
             can fail in any order.)"
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
