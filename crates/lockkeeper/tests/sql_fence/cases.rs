// Included by each system, which says what `Db` is.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::fence::sql::{SqlTokens, Table, Write};
use lockkeeper::fence::{Error, Mark, Stale, TokenStore};
use sqlx::{AssertSqlSafe, Connection, Database as _};
use testkit::database::Database;
use testkit::proxy::Proxy;
use testkit::random::Random;
use testkit::wait::soon;

use crate::token;

type Client = <Db as sqlx::Database>::Connection;

/// A server with the table `accounts`, of which rows 1 and 2 were never fenced.
async fn start() -> Database {
    let database = SYSTEM.start(&[]).await;
    let sql = "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint, fence bigint); \
               INSERT INTO accounts (id, balance) VALUES (1, 0), (2, 0)";
    database.operator("here", sql);
    database
}

/// The same, with a trigger.
async fn start_with_trigger() -> (Database, Client) {
    let database = start().await;
    let mut client = connect(&database).await;
    accounts().install_trigger(&mut client).await.unwrap();
    (database, client)
}

async fn connect(database: &Database) -> Client {
    Client::connect(&database.url("here")).await.unwrap()
}

fn accounts() -> Table<Db> {
    Table::new("accounts").unwrap()
}

/// Writes a balance to row 1.
fn write(table: &Table<Db>, under: u64, balance: i64) -> Write<'_, Db> {
    table.update(token(under)).key("id", 1_i64).set("balance", balance)
}

async fn run(client: &mut Client, sql: &str) -> Result<u64, Error> {
    let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(client).await;
    Ok(done?.rows_affected())
}

/// The balance and the fence of row 1.
fn row(database: &Database) -> String {
    let sql = "SELECT balance, COALESCE(fence, 0) FROM accounts WHERE id = 1";
    database.operator("here", sql)
}

#[track_caller]
fn stale(error: &Error, resource: &str, under: u64, newest: u64) {
    let Some(Stale { resource: of, token: said, newest: seen, .. }) = error.stale() else {
        panic!("{error:?}");
    };
    assert_eq!((of.as_str(), *said, *seen), (resource, token(under), Some(token(newest))));
}

#[tokio::test]
async fn a_holder_writes_as_often_as_it_likes_under_one_token() {
    let database = start().await;
    let mut client = connect(&database).await;
    let accounts = accounts();
    // The same twice: a server that counts only what has changed would count none.
    for balance in [5, 5, 6, 6] {
        write(&accounts, 3, balance).execute(&mut client).await.unwrap();
    }
    assert_eq!(row(&database), "6|3");
    write(&accounts, 4, 7).execute(&mut client).await.unwrap();
    let more = accounts.update(token(4)).key("id", 1_i64);
    let more = more.set_to("balance", |sql| {
        sql.push("balance + ").push_bind(10_i64);
    });
    more.execute(&mut client).await.unwrap();
    assert_eq!(row(&database), "17|4");
    accounts.update(token(9)).key("id", 1_i64).execute(&mut client).await.unwrap();
    assert_eq!(row(&database), "17|9", "only raised");
    accounts
        .insert(token(2))
        .set("id", 3_i64)
        .set("balance", 1_i64)
        .execute(&mut client)
        .await
        .unwrap();
    let late = accounts.update(token(1)).key("id", 3_i64).execute(&mut client).await;
    stale(&late.unwrap_err(), "accounts[id=3]", 1, 2);
}

#[tokio::test]
async fn an_older_token_is_refused_and_told_apart_from_no_row() {
    let database = start().await;
    let mut client = connect(&database).await;
    let accounts = accounts();
    write(&accounts, 7, 70).execute(&mut client).await.unwrap();
    let error = write(&accounts, 6, 60).execute(&mut client).await.unwrap_err();
    stale(&error, "accounts[id=1]", 6, 7);
    assert_eq!(error.to_string(), "token 6 is stale: accounts[id=1] has seen 7");
    let error = accounts.delete(token(6)).key("id", 1_i64).execute(&mut client).await.unwrap_err();
    stale(&error, "accounts[id=1]", 6, 7);
    assert_eq!(row(&database), "70|7");
    let nobody = accounts.update(token(8)).key("id", 9_i64).set("balance", 1_i64);
    match nobody.execute(&mut client).await.unwrap_err() {
        Error::Missing { resource } => assert_eq!(resource, "accounts[id=9]"),
        other => panic!("{other:?}"),
    }
    let error = accounts.delete(token(8)).key("id", 9_i64).execute(&mut client).await.unwrap_err();
    assert!(matches!(error, Error::Missing { .. }), "{error:?}");
    accounts.delete(token(7)).key("id", 1_i64).execute(&mut client).await.unwrap();
    assert_eq!(row(&database), "");
}

#[tokio::test]
async fn a_write_that_makes_no_sense_is_refused() {
    let database = start().await;
    let mut client = connect(&database).await;
    let accounts = accounts();
    let all = accounts.update(token(1)).set("balance", 1_i64).execute(&mut client).await;
    let odd = write(&accounts, 1, 1).set("x\" = 1; --", 1_i64).execute(&mut client).await;
    let own = write(&accounts, 1, 1).set("fence", 1_i64).execute(&mut client).await;
    let large = write(&accounts, u64::MAX, 1).execute(&mut client).await;
    for refused in [all, odd, own, large] {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    }
    assert_eq!(row(&database), "0|0");
    let absent = Table::<Db>::new("nowhere").unwrap();
    let error = write(&absent, 1, 1).execute(&mut client).await.unwrap_err();
    assert!(matches!(error, Error::Store { source: Some(_), .. }), "{error:?}");
    let mut transaction = client.begin().await.unwrap();
    let two = accounts.update(token(1)).key("balance", 0_i64).raise(&mut transaction).await;
    assert!(matches!(two, Err(Error::Ambiguous { rows: 2, .. })), "{two:?}");
    transaction.rollback().await.unwrap();
    assert_eq!(row(&database), "0|0");
}

/// Everything in the transaction comes before what is written under a newer token.
#[tokio::test]
async fn a_raised_row_is_locked_until_the_transaction_ends() {
    let database = start().await;
    let (mut one, mut two) = (connect(&database).await, connect(&database).await);
    let accounts = accounts();
    let mut transaction = one.begin().await.unwrap();
    accounts.update(token(5)).key("id", 1_i64).raise(&mut transaction).await.unwrap();
    let mut newer = Box::pin(write(&accounts, 6, 6).execute(&mut two));
    let early = tokio::time::timeout(Duration::from_millis(300), &mut newer).await;
    assert!(early.is_err(), "it waits");
    let other = "UPDATE accounts SET balance = 5 WHERE id IN (1, 2)";
    sqlx::raw_sql(other).execute(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    soon("its turn", newer).await.unwrap();
    assert_eq!(row(&database), "6|6");
    let mut transaction = one.begin().await.unwrap();
    let late = accounts.update(token(5)).key("id", 1_i64).raise(&mut transaction).await;
    stale(&late.unwrap_err(), "accounts[id=1]", 5, 6);
}

/// A transaction that has looked at the row before somebody newer wrote to it.
#[tokio::test]
async fn a_snapshot_does_not_hide_a_newer_token() {
    let database = start().await;
    let (mut one, mut two) = (connect(&database).await, connect(&database).await);
    let accounts = accounts();
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        database.operator("here", "UPDATE accounts SET balance = 0, fence = NULL");
        let level = format!("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}");
        let level = match Db::NAME {
            "PostgreSQL" => level,
            _ => level.replace("CHARACTERISTICS AS ", ""),
        };
        run(&mut one, &level).await.unwrap();
        // In SERIALIZABLE the other would wait for whoever has looked.
        let look =
            if level.contains("SERIALIZABLE") { "SELECT 1" } else { "SELECT * FROM accounts" };
        let mut transaction = one.begin().await.unwrap();
        run(&mut transaction, look).await.unwrap();
        write(&accounts, 9, 9).execute(&mut two).await.unwrap();
        let error = write(&accounts, 8, 8).execute(&mut transaction).await.unwrap_err();
        transaction.rollback().await.unwrap();
        match &error {
            Error::Stale(_) => stale(&error, "accounts[id=1]", 8, 9),
            // Or the database gives the transaction up by itself.
            Error::Store { .. } => assert!(!level.contains("COMMITTED"), "{error:?}"),
            _ => panic!("{error:?}"),
        }
        assert_eq!(row(&database), "9|9");
    }
}

/// Many writers with random tokens, by helper and by trigger: what is accepted never goes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_storm_accepted_tokens_never_decrease() {
    let (database, _) = start_with_trigger().await;
    database.operator("here", &format!("CREATE TABLE history (at {SERIAL}, token bigint)"));
    let mut random = Random::seeded();
    let mut writers = Vec::new();
    for writer in 0..6 {
        let (mut client, mut random) = (connect(&database).await, random.fork());
        writers.push(tokio::spawn(async move {
            let table = accounts().with_trigger();
            let (mut largest, mut refused) = (0, 0);
            for round in 0..40 {
                let under = 1 + random.below(20) + 5 * round;
                let balance = i64::try_from(under).unwrap();
                let mut transaction = client.begin().await.unwrap();
                let written = match writer % 2 {
                    0 => write(&table, under, balance).execute(&mut transaction).await,
                    _ => {
                        let sql = format!(
                            "UPDATE accounts SET balance = {under}, fence_by = {under} WHERE id = 1"
                        );
                        run(&mut transaction, &sql).await.map(drop)
                    }
                };
                match written {
                    Ok(()) => {
                        let sql = format!("INSERT INTO history (token) VALUES ({under})");
                        run(&mut transaction, &sql).await.unwrap();
                        transaction.commit().await.unwrap();
                        largest = largest.max(under);
                    }
                    Err(error) => {
                        let late = error.stale().unwrap_or_else(|| panic!("{error:?}"));
                        assert!(late.newest.unwrap() > late.token);
                        transaction.rollback().await.unwrap();
                        refused += 1;
                    }
                }
            }
            (largest, refused)
        }));
    }
    let (mut largest, mut refused) = (0, 0);
    for writer in writers {
        let (most, late) = writer.await.unwrap();
        (largest, refused) = (largest.max(most), refused + late);
    }
    let history = database.operator("here", "SELECT token FROM history ORDER BY at");
    let history: Vec<u64> = history.lines().map(|line| line.parse().unwrap()).collect();
    assert!(history.is_sorted(), "{history:?}");
    assert_eq!(history.len() + refused, 6 * 40);
    assert!(refused > 0 && !history.is_empty(), "{refused} refused");
    assert_eq!(row(&database), format!("{largest}|{largest}"));
}

#[tokio::test]
async fn the_trigger_refuses_late_and_forgetful_writers() {
    let (database, mut client) = start_with_trigger().await;
    let set = |what: &str| format!("UPDATE accounts SET balance = balance + 1{what} WHERE id = 1");
    run(&mut client, &set("")).await.expect("it was never fenced");
    assert_eq!(row(&database), "1|0");
    for (said, fence) in [
        (", fence_by = 7", 7),
        (", fence_by = 7", 7),
        (", fence = 8", 8),
        (", fence = 1, fence_by = 9", 9),
    ] {
        assert_eq!(run(&mut client, &set(said)).await.unwrap(), 1);
        assert!(row(&database).ends_with(&format!("|{fence}")), "{said}");
    }
    assert_eq!(row(&database), "5|9");
    for said in [", fence_by = 8", ", fence = 8", ", fence = 9, fence_by = 8", ", fence_by = -8"] {
        stale(&run(&mut client, &set(said)).await.unwrap_err(), "accounts", 8, 9);
    }
    for said in ["", ", fence = 9", ", fence = NULL", ", fence_by = NULL", ", id = 1"] {
        let error = run(&mut client, &set(said)).await.unwrap_err();
        let Error::NoToken { resource, hint } = &error else { panic!("{said}: {error:?}") };
        assert_eq!((resource.as_str(), hint.contains("fence_by")), ("accounts", true), "{hint}");
    }
    let error = run(&mut client, "DELETE FROM accounts WHERE id = 1").await.unwrap_err();
    assert!(matches!(error, Error::NoToken { .. }), "{error:?}");
    assert_eq!(row(&database), "5|9");
    run(&mut client, "DELETE FROM accounts WHERE id = 2").await.expect("it was never fenced");
    // In upserts the token is said where the row is updated.
    let upsert = "INSERT INTO accounts (id, balance, fence_by) VALUES (1, 6, 9) ";
    let on = if Db::NAME == "MySQL" {
        "ON DUPLICATE KEY UPDATE"
    } else {
        "ON CONFLICT (id) DO UPDATE SET"
    };
    let error = run(&mut client, &format!("{upsert}{on} balance = 6")).await.unwrap_err();
    assert!(matches!(error, Error::NoToken { .. }), "{error:?}");
    run(&mut client, &format!("{upsert}{on} balance = 6, fence_by = 9")).await.unwrap();
    assert_eq!(row(&database), "6|9");
    // A row that is made under a token is fenced from the beginning.
    run(&mut client, "INSERT INTO accounts (id, fence_by) VALUES (3, 4)").await.unwrap();
    let late = run(&mut client, "UPDATE accounts SET fence_by = 3 WHERE id = 3").await.unwrap_err();
    stale(&late, "accounts", 3, 4);
}

#[tokio::test]
async fn the_helper_gets_on_with_the_trigger_and_leaves_nothing_in_the_session() {
    let (database, mut client) = start_with_trigger().await;
    let table = accounts().with_trigger();
    for _ in 0..2 {
        write(&table, 3, 30).execute(&mut client).await.unwrap();
        let forgetful = run(&mut client, "UPDATE accounts SET balance = 0 WHERE id = 1").await;
        assert!(matches!(forgetful, Err(Error::NoToken { .. })), "{forgetful:?}");
    }
    let late = write(&table, 2, 20).execute(&mut client).await;
    stale(&late.unwrap_err(), "accounts[id=1]", 2, 3);
    // Who does not know of the trigger is told.
    let error = write(&accounts(), 3, 31).execute(&mut client).await.unwrap_err();
    assert!(error.to_string().contains("with_trigger"), "{error}");
    assert_eq!(row(&database), "30|3");
    let late = table.delete(token(2)).key("id", 1_i64).execute(&mut client).await;
    stale(&late.unwrap_err(), "accounts[id=1]", 2, 3);
    // A deletion that is not carried out opens nothing.
    let mut transaction = client.begin().await.unwrap();
    table.delete(token(3)).key("id", 1_i64).execute(&mut transaction).await.unwrap();
    transaction.rollback().await.unwrap();
    run(&mut client, "DELETE FROM accounts WHERE id = 1").await.unwrap_err();
    run(&mut client, "UPDATE accounts SET fence_by = -3 WHERE id = 1").await.unwrap();
    let forgetful = run(&mut client, "UPDATE accounts SET balance = 0 WHERE id = 1").await;
    assert!(matches!(forgetful, Err(Error::NoToken { .. })), "{forgetful:?}");
    write(&table, 3, 32).execute(&mut client).await.unwrap();
    assert_eq!(row(&database), "32|3");
    run(&mut client, "DELETE FROM accounts WHERE id = 1").await.unwrap_err();
    table.delete(token(3)).key("id", 1_i64).execute(&mut client).await.unwrap();
    assert_eq!(row(&database), "");
    table
        .insert(token(4))
        .set("id", 1_i64)
        .set("balance", 40_i64)
        .execute(&mut client)
        .await
        .unwrap();
    assert_eq!(row(&database), "40|4");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trigger_is_installed_once_by_however_many_and_can_be_removed() {
    let database = start().await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(connect(&database).await);
    }
    let install = clients.iter_mut().map(async |client| accounts().install_trigger(client).await);
    for installed in futures_util::future::join_all(install).await {
        installed.unwrap();
    }
    let client = &mut clients[0];
    let table = accounts().with_trigger();
    write(&table, 3, 30).execute(client).await.unwrap();
    accounts().install_trigger(client).await.unwrap();
    let forgetful = "UPDATE accounts SET balance = 0 WHERE id = 1";
    run(client, forgetful).await.unwrap_err();
    for _ in 0..2 {
        accounts().remove_trigger(client).await.unwrap();
        run(client, forgetful).await.unwrap();
    }
    assert_eq!(row(&database), "0|3", "the token stays");
    // Without a trigger to empty it.
    write(&table, 5, 50).execute(client).await.unwrap();
    accounts().install_trigger(client).await.unwrap();
    run(client, forgetful).await.unwrap_err();
    // Under another name of the column, beside it, and in a schema by name.
    let schema = if Db::NAME == "MySQL" { "here" } else { "public" };
    database.operator("here", "CREATE TABLE others (id bigint PRIMARY KEY, balance bigint)");
    database.operator("here", "INSERT INTO others VALUES (1, 0)");
    let others =
        Table::<Db>::new(&format!("{schema}.others")).unwrap().column("lock_fence").unwrap();
    others.install_trigger(client).await.unwrap();
    let others = others.with_trigger();
    write(&others, 3, 1).execute(client).await.unwrap();
    let late = run(client, "UPDATE others SET lock_fence_by = 2 WHERE id = 1").await;
    stale(&late.unwrap_err(), &format!("{schema}.others"), 2, 3);
    others.remove_trigger(client).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_fenced_is_refused_with_a_reason() {
    let database = start().await;
    let mut client = connect(&database).await;
    for (make, name, reason) in UNFIT {
        database.operator("here", make);
        let table = Table::<Db>::new(name).unwrap();
        let error = table.install_trigger(&mut client).await.unwrap_err();
        assert!(matches!(&error, Error::Invalid(why) if why.contains(reason)), "{error:?}");
    }
    let error =
        Table::<Db>::new("nowhere").unwrap().install_trigger(&mut client).await.unwrap_err();
    assert!(error.to_string().contains("there is no table nowhere"), "{error}");
    let long = "x".repeat(60);
    database.operator("here", &format!("CREATE TABLE {long} (id bigint)"));
    let error = Table::<Db>::new(&long).unwrap().install_trigger(&mut client).await.unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
    assert!(Table::<Db>::new("accounts`; DROP TABLE accounts; --").is_err());

    database.operator("here", WRITER);
    let mut app = Client::connect(&database.url_of("app", "here")).await.unwrap();
    let error = accounts().install_trigger(&mut app).await.unwrap_err();
    assert!(error.to_string().contains("OPERATIONS"), "{error}");
    write(&accounts(), 1, 10).execute(&mut app).await.unwrap();
    database.operator("here", OWNER);
    accounts().install_trigger(&mut app).await.unwrap();
    write(&accounts().with_trigger(), 2, 20).execute(&mut app).await.unwrap();
    let late = run(&mut app, "UPDATE accounts SET balance = 0, fence_by = 1 WHERE id = 1").await;
    stale(&late.unwrap_err(), "accounts", 1, 2);
    assert_eq!(row(&database), "20|2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_that_writes_late_is_refused_by_helper_and_trigger() {
    crate::late::stop_and_go_on(SYSTEM, &start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_whose_mark_is_gone_is_refused() {
    let database = start().await;
    database.operator("here", MARK_COLUMN);
    crate::late::stop_and_go_on_with_marks(SYSTEM, &database).await;
}

/// The mark of row 1.
fn mark_of(database: &Database) -> String {
    database.operator("here", "SELECT balance, COALESCE(mark, 'none') FROM accounts WHERE id = 1")
}

#[tokio::test]
async fn only_who_has_marked_a_row_writes_it() {
    let database = start().await;
    let mut client = connect(&database).await;
    database.operator("here", MARK_COLUMN);
    let (accounts, [one, two]) = (accounts(), ["one", "two"].map(|mark| Mark::new(mark).unwrap()));
    let write = |mark, balance: i64| accounts.marked(mark).key("id", 1_i64).set("balance", balance);
    let error = write(&one, 1).execute(&mut client).await.unwrap_err();
    assert!(matches!(error, Error::Overtaken { .. }), "never marked: {error:?}");
    for _ in 0..2 {
        accounts.mark(&one).key("id", 1_i64).execute(&mut client).await.unwrap();
    }
    for balance in [5, 5, 6] {
        write(&one, balance).execute(&mut client).await.unwrap();
    }
    assert_eq!(mark_of(&database), "6|one");
    accounts.mark(&two).key("id", 1_i64).execute(&mut client).await.unwrap();
    let late = write(&one, 7).execute(&mut client).await.unwrap_err();
    assert!(matches!(&late, Error::Overtaken { resource } if resource == "accounts[id=1]"));
    let more = accounts.marked(&two).key("id", 1_i64).set_to("balance", |sql| {
        sql.push("balance + ").push_bind(1_i64);
    });
    more.execute(&mut client).await.unwrap();
    assert_eq!(mark_of(&database), "7|two");
    let nobody = accounts.marked(&two).key("id", 9_i64).execute(&mut client).await.unwrap_err();
    assert!(matches!(nobody, Error::Missing { .. }), "{nobody:?}");
    let nobody = accounts.mark(&two).key("id", 9_i64).execute(&mut client).await.unwrap_err();
    assert!(matches!(nobody, Error::Missing { .. }), "{nobody:?}");
    let all = accounts.mark(&two).execute(&mut client).await.unwrap_err();
    assert!(matches!(all, Error::Invalid(_)), "{all:?}");
    let own = accounts.marked(&two).key("id", 1_i64).set("mark", "three".to_owned());
    let own = own.execute(&mut client).await.unwrap_err();
    assert!(matches!(own, Error::Invalid(_)), "{own:?}");
    assert_eq!(mark_of(&database), "7|two");
}

/// The statement is done and its answer is lost: that is neither a success nor a failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_lost_is_not_known() {
    let database = start().await;
    let proxy = Proxy::to(database.server.address()).await;
    let [direct, through] = [database.server.address(), proxy.address()].map(|a| a.to_string());
    let url = database.url("here").replace(&direct, &through);
    let (mut client, accounts) = (Client::connect(&url).await.unwrap(), accounts());
    // So that nothing has to be prepared any more.
    write(&accounts, 1, 1).execute(&mut client).await.unwrap();
    proxy.lose_next_reply();
    let lost = write(&accounts, 2, 2).execute(&mut client);
    let error = soon("told", lost).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { source: Some(_), .. }), "{error:?}");
    assert_eq!(row(&database), "2|2", "it was done");
}

/// Work that is read and written under a mark is not lost, even if everybody believes to have the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_marks_no_update_is_lost_although_all_are_holders() {
    const ROUNDS: i64 = 15;
    let database = start().await;
    database.operator("here", MARK_COLUMN);
    let mut writers = Vec::new();
    for who in 0..4 {
        let mut client = connect(&database).await;
        writers.push(tokio::spawn(async move {
            let (accounts, mut done, mut round) = (accounts(), 0, 0);
            while done < ROUNDS {
                round += 1;
                let mark = Mark::new(format!("{who}-{round}")).unwrap();
                accounts.mark(&mark).key("id", 1_i64).execute(&mut client).await.unwrap();
                let read = sqlx::query_scalar("SELECT balance FROM accounts WHERE id = 1");
                let balance: i64 = read.fetch_one(&mut client).await.unwrap();
                let write = accounts.marked(&mark).key("id", 1_i64).set("balance", balance + 1);
                match write.execute(&mut client).await {
                    Ok(()) => done += 1,
                    Err(error) => assert!(matches!(error, Error::Overtaken { .. }), "{error:?}"),
                }
            }
        }));
    }
    for writer in writers {
        soon("all come to their end", writer).await.unwrap();
    }
    let balance = mark_of(&database);
    assert!(balance.starts_with(&format!("{}|", 4 * ROUNDS)), "{balance}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_in_a_table_are_those_of_their_names() {
    let database = SYSTEM.start(&[]).await;
    let pool = sqlx::Pool::<Db>::connect(&database.url("here")).await.unwrap();
    let tokens = Arc::new(SqlTokens::new(pool.clone()));
    let x = "x".parse().unwrap();
    assert!(matches!(tokens.raise(&x, token(1)).await, Err(Error::Store { .. })), "no table");
    tokens.create_table().await.unwrap();
    tokens.create_table().await.unwrap();
    for name in ["x", "X", "日本", "a'b", "ss", "ß"] {
        let of = name.parse().unwrap();
        for under in [7, 7, 8, 8] {
            tokens.raise(&of, token(under)).await.unwrap();
        }
        stale(&tokens.raise(&of, token(7)).await.unwrap_err(), name, 7, 8);
    }
    // As after a restart.
    let again = SqlTokens::new(pool);
    stale(&again.raise(&x, token(7)).await.unwrap_err(), "x", 7, 8);
    let mut random = Random::seeded();
    let mut raisers = Vec::new();
    for _ in 0..4 {
        let (tokens, mut random, x) = (Arc::clone(&tokens), random.fork(), x.clone());
        raisers.push(tokio::spawn(async move {
            let mut largest = 0;
            for _ in 0..30 {
                let under = 9 + random.below(1000);
                match tokens.raise(&x, token(under)).await {
                    Ok(()) => largest = largest.max(under),
                    Err(error) => assert!(error.stale().unwrap().newest > Some(token(under))),
                }
            }
            largest
        }));
    }
    let mut largest = 0;
    for raiser in raisers {
        largest = largest.max(raiser.await.unwrap());
    }
    stale(&tokens.raise(&x, token(1)).await.unwrap_err(), "x", 1, largest);
}
