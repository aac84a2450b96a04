//! PostgreSQL and MariaDB servers: one alone, and one shared by the tests of a binary.

mod place;

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use lockkeeper::Locks;
use tokio::sync::Mutex;

pub use self::place::Place;
use crate::authority::Authority;
use crate::conformance::Harness;
use crate::server::{Recipe, Server};

/// Which database system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    MariaDb,
}

/// What a MariaDB server is started with so that its log can be followed.
pub const BINLOG: [&str; 4] =
    ["--log-bin=bin", "--server-id=1", "--binlog-format=ROW", "--binlog-row-metadata=FULL"];

/// Where Debian puts the versions of PostgreSQL.
const VERSIONS: &str = "/usr/lib/postgresql";

/// A program of the newest PostgreSQL, or of the one whose `bin` `$LOCKKEEPER_TEST_POSTGRES` names.
pub fn postgres_program(name: &str) -> PathBuf {
    if let Some(bin) = std::env::var_os("LOCKKEEPER_TEST_POSTGRES") {
        return Path::new(&bin).join(name);
    }
    let versions = std::fs::read_dir(VERSIONS)
        .unwrap_or_else(|_| panic!("{VERSIONS} is missing: apt-get install postgresql"));
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|version| version.unwrap().path()).max_by_key(number).unwrap();
    newest.join("bin").join(name)
}

/// Whether we are root, as whom neither server runs.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A command, as this user if we are root.
fn as_user(user: &str, program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--init-groups", "--"]);
    command.arg(program);
    command
}

/// Gives the directory to this user if we are root.
fn give(directory: &Path, user: &str) {
    if !is_root() {
        return;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.split(':').next() == Some(user));
    let line = line.unwrap_or_else(|| panic!("there is no user {user}: install the server"));
    let number = |at: usize| line.split(':').nth(at).unwrap().parse().unwrap();
    chown(directory, Some(number(2)), Some(number(3))).unwrap();
}

/// Runs it to its end.
fn run(mut command: Command) -> String {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{command:?} cannot be started ({error}): install postgresql and mariadb-server")
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    text
}

fn prepare_postgres(directory: &Path) {
    give(directory, "postgres");
    let mut command = as_user("postgres", &postgres_program("initdb"));
    command.current_dir(directory).args(["-A", "trust", "-U", "postgres", "--no-sync"]);
    command.args(["-E", "UTF8", "--locale=C", "-D", "data"]);
    run(command);
}

fn prepare_mariadb(directory: &Path) {
    give(directory, "mysql");
    let mut command = as_user("mysql", Path::new("mariadb-install-db"));
    command.current_dir("/").args(["--no-defaults", "--skip-test-db"]);
    command.arg("--auth-root-authentication-method=normal");
    let directory = directory.display();
    // Not all of them at once in the one for all.
    command.args([format!("--datadir={directory}/data"), format!("--tmpdir={directory}")]);
    // There may be many at a time.
    command.arg("--innodb-log-file-size=8M");
    run(command);
}

impl System {
    /// The scheme of its URLs.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MariaDb => "mysql",
        }
    }

    /// The user who may do everything, without a password.
    pub fn superuser(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MariaDb => "root",
        }
    }

    fn recipe(self) -> Recipe {
        let program = match self {
            Self::Postgres => postgres_program("postgres"),
            Self::MariaDb => "mariadbd".into(),
        };
        let command = as_user(self.user(), &program);
        let words = command.get_args().map(|word| word.to_str().unwrap().to_owned());
        let recipe = Recipe::new(command.get_program(), "postgresql mariadb-server").args(words);
        let recipe = recipe.prepared_by(move |directory| self.prepare(directory));
        match self {
            Self::Postgres => recipe.quits().args([
                "-D",
                "{dir}/data",
                "-p",
                "{port}",
                "-clisten_addresses=127.0.0.1",
                "-cunix_socket_directories=",
                "-cfsync=off",
            ]),
            Self::MariaDb => recipe.args([
                "--no-defaults",
                "--datadir={dir}/data",
                "--port={port}",
                "--bind-address=127.0.0.1",
                "--socket={dir}/socket",
                "--tmpdir={dir}",
                "--skip-log-bin",
                "--skip-name-resolve",
                "--innodb-buffer-pool-size=32M",
                "--innodb-log-file-size=8M",
                // Written at every commit, but not forced to disk: survives the end of the process.
                "--innodb-flush-log-at-trx-commit=2",
            ]),
        }
    }

    fn user(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MariaDb => "mysql",
        }
    }

    /// One server with the databases `here` and `elsewhere`, and these arguments besides.
    pub async fn start(self, arguments: &[&str]) -> Database {
        self.start_by(self.recipe().args(arguments.to_vec())).await
    }

    /// The same, that also speaks TLS, with a certificate that is good for `host`, and knows the
    /// certificates of the same authority.
    pub async fn start_with_tls(self, authority: &Authority, host: &str) -> Database {
        let (cert, key) = authority.sign(host);
        let files = [("cert", cert), ("key", key), ("ca", authority.ca())];
        let arguments = files.each_ref().map(|(file, _)| match self {
            Self::Postgres => format!("-cssl_{file}_file={{dir}}/{file}.pem"),
            Self::MariaDb => format!("--ssl-{file}={{dir}}/{file}.pem"),
        });
        let prepare = move |directory: &Path| {
            self.prepare(directory);
            for (file, from) in &files {
                let to = directory.join(format!("{file}.pem"));
                std::fs::copy(from, &to).unwrap();
                std::fs::set_permissions(&to, Permissions::from_mode(0o600)).unwrap();
                give(&to, self.user());
            }
        };
        let on = (self == Self::Postgres).then_some("-cssl=on");
        let recipe = self.recipe().prepared_by(prepare).args(arguments).args(on);
        self.start_by(recipe).await
    }

    fn prepare(self, directory: &Path) {
        match self {
            Self::Postgres => prepare_postgres(directory),
            Self::MariaDb => prepare_mariadb(directory),
        }
    }

    async fn start_by(self, recipe: Recipe) -> Database {
        let recipe = match self {
            Self::Postgres => recipe.ready_when(move |address| async move {
                let port = address.port().to_string();
                let mut ready = Command::new(postgres_program("pg_isready"));
                ready.args(["-q", "-h", "127.0.0.1", "-p", &port]);
                ready.status().is_ok_and(|status| status.success())
            }),
            Self::MariaDb => recipe,
        };
        let database = Database { system: self, server: recipe.start().await };
        for name in ["here", "elsewhere"] {
            database.operator("", &format!("CREATE DATABASE {name}"));
        }
        database
    }

    /// A server that all tests that run at the same time have in common; ended with the last of them.
    /// Each needs a prefix of its own.
    pub async fn shared(self) -> Arc<Database> {
        static SHARED: [Mutex<Weak<Database>>; 2] = [const { Mutex::const_new(Weak::new()) }; 2];
        let mut shared = SHARED[self as usize].lock().await;
        if let Some(database) = shared.upgrade() {
            return database;
        }
        // A lock that lives with a connection needs one.
        let many: &[&str] = match self {
            Self::Postgres => &["-cmax_connections=400"],
            Self::MariaDb => &["--max-connections=400"],
        };
        let database = Arc::new(self.start(many).await);
        *shared = Arc::downgrade(&database);
        database
    }
}

/// A server with databases.
#[derive(Debug)]
pub struct Database {
    system: System,
    /// The server, to be killed, stopped and restarted.
    pub server: Server,
}

impl Database {
    /// The URL of a database, as the user who may do everything.
    pub fn url(&self, database: &str) -> String {
        self.url_of(self.system.superuser(), database)
    }

    /// The URL of a database for `USER` or `USER:PASSWORD`.
    pub fn url_of(&self, user: &str, database: &str) -> String {
        format!("{}://{user}@{}/{database}", self.system.scheme(), self.server.address())
    }

    /// Makes a user `app` who has no more rights in `here` than docs/OPERATIONS.md says.
    pub fn let_app_in(&self) {
        let rights = match self.system {
            System::Postgres => {
                "CREATE USER app; GRANT SELECT, INSERT, UPDATE, DELETE ON lockkeeper_names TO app; \
                 GRANT SELECT, UPDATE ON lockkeeper_meta TO app; \
                 GRANT SELECT, INSERT, UPDATE ON lockkeeper_cells TO app"
            }
            System::MariaDb => {
                "CREATE USER app; \
                 GRANT SELECT, INSERT, UPDATE, DELETE ON here.lockkeeper_names TO app; \
                 GRANT SELECT, INSERT, UPDATE, DELETE ON here.lockkeeper_rows TO app; \
                 GRANT SELECT, UPDATE ON here.lockkeeper_meta TO app; \
                 GRANT SELECT, UPDATE ON here.lockkeeper_turns TO app; \
                 GRANT SELECT, INSERT, UPDATE ON here.lockkeeper_cells TO app"
            }
        };
        self.operator("here", rights);
    }

    /// What an operator types, and is answered: one row on a line, columns with a bar between them.
    ///
    /// # Panics
    ///
    /// When the server refuses it.
    pub fn operator(&self, database: &str, sql: &str) -> String {
        let port = self.server.address().port().to_string();
        let mut command = match self.system {
            System::Postgres => {
                let mut command = Command::new(postgres_program("psql"));
                let database = if database.is_empty() { "postgres" } else { database };
                command.args(["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-d", database]);
                command.args(["-qAtX", "-v", "ON_ERROR_STOP=1"]);
                command
            }
            System::MariaDb => {
                let mut command = Command::new("mariadb");
                command.args(["--no-defaults", "--protocol=tcp", "-h", "127.0.0.1", "-P", &port]);
                // The server tells statements apart by itself.
                command.args(["-u", "root", "-BN", "--delimiter=//"]);
                if !database.is_empty() {
                    command.arg(format!("--database={database}"));
                }
                command
            }
        };
        command.args([if self.system == System::Postgres { "-c" } else { "-e" }, sql]);
        run(command).trim_end().replace('\t', "|")
    }
}

/// PgBouncer in transaction mode before a PostgreSQL server: fewer connections than clients, each lent
/// for one transaction.
pub async fn pgbouncer(database: &Database) -> Server {
    pgbouncer_in("transaction", database).await
}

/// PgBouncer in this mode.
pub async fn pgbouncer_in(mode: &str, database: &Database) -> Server {
    let size = if mode == "session" { 50 } else { 3 };
    let config = format!(
        "[databases]
* = host=127.0.0.1 port={} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {{port}}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 1000
",
        database.server.address().port()
    );
    let command = as_user("postgres", Path::new("pgbouncer"));
    let words = command.get_args().map(|word| word.to_str().unwrap().to_owned());
    let recipe = Recipe::new(command.get_program(), "pgbouncer").args(words);
    let recipe = recipe.prepared_by(|directory| give(directory, "postgres"));
    recipe.file("pgbouncer.ini", &config).args(["{dir}/pgbouncer.ini"]).start().await
}

/// A pooler that all tests that run at the same time have in common, before the shared server.
async fn shared_pgbouncer(database: &Database) -> Arc<Server> {
    static SHARED: Mutex<Weak<Server>> = Mutex::const_new(Weak::new());
    let mut shared = SHARED.lock().await;
    if let Some(pooler) = shared.upgrade() {
        return pooler;
    }
    let pooler = Arc::new(pgbouncer(database).await);
    *shared = Arc::downgrade(&pooler);
    pooler
}

/// Two databases of the shared server, with a prefix of its own for each case.
#[derive(Debug)]
pub struct DatabaseHarness {
    database: Arc<Database>,
    pooler: Option<Arc<Server>>,
    prefix: u64,
    options: &'static str,
}

impl DatabaseHarness {
    /// Without anything in between.
    pub async fn start(system: System) -> Self {
        static CASES: AtomicU64 = AtomicU64::new(0);
        let database = system.shared().await;
        for name in ["here", "elsewhere"] {
            Locks::init(&database.url(name)).await.unwrap();
        }
        let prefix = CASES.fetch_add(1, Ordering::Relaxed);
        Self { database, pooler: None, prefix, options: "" }
    }

    /// With locks that live with connections.
    pub async fn sessions(system: System) -> Self {
        Self { options: "&mode=session&pool=50", ..Self::start(system).await }
    }

    /// Behind [`pgbouncer`].
    pub async fn pooled() -> Self {
        let plain = Self::start(System::Postgres).await;
        let pooler = shared_pgbouncer(&plain.database).await;
        Self { pooler: Some(pooler), ..plain }
    }

    fn at(&self, name: &str) -> String {
        let url = format!("{}?prefix={}/{}", self.database.url(name), self.prefix, self.options);
        let direct = self.database.server.address().to_string();
        match &self.pooler {
            Some(pooler) => url.replace(&direct, &pooler.address().to_string()),
            None => url,
        }
    }
}

#[async_trait]
impl Harness for DatabaseHarness {
    async fn locks(&self) -> Locks {
        Locks::connect(&self.at("here")).await.unwrap()
    }

    async fn elsewhere(&self) -> Locks {
        Locks::connect(&self.at("elsewhere")).await.unwrap()
    }

    fn url(&self) -> Option<String> {
        Some(self.at("here"))
    }
}

/// Each case on both systems: a function of the module that takes the [`System`].
#[macro_export]
macro_rules! on_both_databases {
    ($($case:ident)+) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case($crate::database::System::Postgres).await;
            })+
        }
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case($crate::database::System::MariaDb).await;
            })+
        }
    };
}
