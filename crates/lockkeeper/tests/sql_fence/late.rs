//! A holder that is stopped past its lease, in a process of its own, and goes on with its next write.

use std::io::Write;
use std::time::Duration;

use lockkeeper::fence::sql::Table;
use lockkeeper::fence::{Error, Mark, Result};
use lockkeeper::{Guard, Locks, Token};
use sqlx::{AssertSqlSafe, Connection, MySql, MySqlConnection, PgConnection, Postgres};
use testkit::database::{Database, System};
use testkit::taker::{MARK, Taker};
use testkit::wait::soon;

/// Its lease.
const SHORT: Duration = Duration::from_secs(1);

/// Writes that do not ask whether the lock is lost, each with a connection that was there before.
struct Writer {
    postgres: Option<PgConnection>,
    mysql: Option<MySqlConnection>,
}

impl Writer {
    async fn connect(url: &str) -> Self {
        let (mut postgres, mut mysql) = (None, None);
        match url.starts_with("postgres") {
            true => postgres = Some(PgConnection::connect(url).await.unwrap()),
            false => mysql = Some(MySqlConnection::connect(url).await.unwrap()),
        }
        Self { postgres, mysql }
    }

    /// By the helper.
    async fn help(&mut self, token: Token, balance: i64) -> Result<()> {
        if let Some(client) = &mut self.postgres {
            let table = Table::<Postgres>::new("accounts")?;
            return table
                .update(token)
                .key("id", 1_i64)
                .set("balance", balance)
                .execute(client)
                .await;
        }
        let table = Table::<MySql>::new("accounts")?;
        let client = self.mysql.as_mut().unwrap();
        table.update(token).key("id", 1_i64).set("balance", balance).execute(client).await
    }

    /// By hand, without comparing anything.
    async fn by_hand(&mut self, set: &str) -> Result<()> {
        let sql = AssertSqlSafe(format!("UPDATE accounts SET {set} WHERE id = 1"));
        let written = match (&mut self.postgres, &mut self.mysql) {
            (Some(client), _) => sqlx::raw_sql(sql).execute(client).await.map(drop),
            (_, client) => sqlx::raw_sql(sql).execute(client.as_mut().unwrap()).await.map(drop),
        };
        Ok(written?)
    }

    /// By a mark instead of the token: leaves it, or writes if it is there.
    async fn mark(&mut self, mark: &Mark, balance: Option<i64>) -> Result<()> {
        if let Some(client) = &mut self.postgres {
            let table = Table::<Postgres>::new("accounts")?;
            return match balance {
                None => table.mark(mark).key("id", 1_i64).execute(client).await,
                Some(balance) => {
                    let write = table.marked(mark).key("id", 1_i64).set("balance", balance);
                    write.execute(client).await
                }
            };
        }
        let (table, client) = (Table::<MySql>::new("accounts")?, self.mysql.as_mut().unwrap());
        match balance {
            None => table.mark(mark).key("id", 1_i64).execute(client).await,
            Some(balance) => {
                let write = table.marked(mark).key("id", 1_i64).set("balance", balance);
                write.execute(client).await
            }
        }
    }

    async fn install(&mut self) {
        match (&mut self.postgres, &mut self.mysql) {
            (Some(client), _) => {
                let table = Table::<Postgres>::new("accounts").unwrap();
                table.install_trigger(client).await.unwrap();
            }
            (_, client) => {
                let table = Table::<MySql>::new("accounts").unwrap();
                table.install_trigger(client.as_mut().unwrap()).await.unwrap();
            }
        }
    }
}

fn answer(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}ok {text}").and_then(|()| out.flush()).unwrap();
}

/// The other process, if this is it.
pub(crate) fn main() {
    let Ok(url) = std::env::var("TESTKIT_TAKER") else { return };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(serve(&url));
    std::process::exit(0);
}

async fn serve(url: &str) {
    let locks = Locks::connect(url).await.unwrap().ttl(SHORT);
    let mut writer = Writer::connect(url).await;
    let mut guard: Option<Guard> = None;
    answer("ready");
    // This thread has nothing else to do than to wait for the next command.
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).unwrap() > 0 {
        let command = std::mem::take(&mut line);
        if command == "lock\n" {
            let taken = guard.insert(locks.mutex("accounts/1").lock().await.unwrap());
            answer(&taken.token().to_string());
            continue;
        }
        let guard = guard.as_ref().unwrap();
        let token = guard.token();
        let written = match command.trim_end() {
            "helper" => writer.help(token, -1).await,
            "by hand" => writer.by_hand(&format!("balance = -1, fence_by = {token}")).await,
            "forgetful" => writer.by_hand("balance = -1").await,
            "mark" => writer.mark(&Mark::of(guard), None).await,
            "marked" => writer.mark(&Mark::of(guard), Some(-1)).await,
            other => panic!("unknown command {other}"),
        };
        answer(&match written {
            Ok(()) => "written".to_owned(),
            Err(Error::Stale(late)) => format!("stale {}", late.newest.unwrap()),
            Err(Error::NoToken { .. }) => "no token".to_owned(),
            Err(Error::Overtaken { .. }) => "overtaken".to_owned(),
            Err(other) => format!("{other:?}"),
        });
    }
}

/// Both variants: by the helper without a trigger, and with a trigger by hand.
pub(crate) async fn stop_and_go_on(system: System, database: &Database) {
    let url = database.url("here");
    Locks::init(&url).await.unwrap();
    let locks = Locks::connect(&url).await.unwrap();
    let mut writer = Writer::connect(&url).await;
    let row = || database.operator("here", "SELECT balance, fence FROM accounts WHERE id = 1");
    for trigger in [false, true] {
        if trigger {
            writer.install().await;
        }
        let mut late = Taker::spawn(&url).await;
        let first: u64 = late.token("lock").await;
        let wrote = late.ask(if trigger { "by hand" } else { "helper" }).await;
        assert_eq!(wrote, "written", "in time, on {system:?}");
        late.stop();
        let guard = soon("its lease has ended", locks.mutex("accounts/1").lock()).await.unwrap();
        let token = guard.token().get();
        assert!(token > first);
        match trigger {
            false => writer.help(guard.token(), 100).await.unwrap(),
            true => writer.by_hand(&format!("balance = 100, fence_by = {token}")).await.unwrap(),
        }
        late.go_on();
        let stale = format!("stale {token}");
        assert_eq!(late.ask("helper").await, stale, "on {system:?}");
        if trigger {
            assert_eq!(late.ask("by hand").await, stale, "on {system:?}");
            assert_eq!(late.ask("forgetful").await, "no token", "on {system:?}");
        }
        assert_eq!(row(), format!("100|{token}"), "the new holder's value is intact");
        guard.release().await.unwrap();
    }
}

/// The same with marks instead of tokens.
pub(crate) async fn stop_and_go_on_with_marks(system: System, database: &Database) {
    let url = database.url("here");
    Locks::init(&url).await.unwrap();
    let locks = Locks::connect(&url).await.unwrap();
    let mut writer = Writer::connect(&url).await;
    let mut late = Taker::spawn(&url).await;
    late.token("lock").await;
    for step in ["mark", "marked"] {
        assert_eq!(late.ask(step).await, "written", "in time, on {system:?}");
    }
    late.stop();
    let guard = soon("its lease has ended", locks.mutex("accounts/1").lock()).await.unwrap();
    let mark = Mark::of(&guard);
    writer.mark(&mark, None).await.unwrap();
    writer.mark(&mark, Some(100)).await.unwrap();
    late.go_on();
    assert_eq!(late.ask("marked").await, "overtaken", "on {system:?}");
    let row = database.operator("here", "SELECT balance, mark FROM accounts WHERE id = 1");
    assert_eq!(row, format!("100|{mark}"), "the new holder's value is intact");
}
