//! PostgreSQL clusters for tests: made by `initdb`, on a free port of the loopback interface, run by
//! a user who is not root, and gone with the test that started them, however it ends.
//!
//! Many tests need no cluster of their own, only a place: [`Schema::fresh`] gives one in the cluster
//! that [`SHARED`] names, and starts one where it names none.
//!
//! For tests alone: what fails here panics, with what to do about it.
#![allow(clippy::panic, reason = "a test without its database has failed, and must say why")]
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The environment variable that names a cluster which many tests share, as a URL of a database.
pub const SHARED: &str = "EARNEST_TEST_POSTGRES";

/// How long a server may take to start, to follow, or to be promoted.
const PATIENCE: Duration = Duration::from_secs(30);

/// What makes a cluster fast, and worth nothing after a power cut: for tests that do not test that.
const CARELESS: &[(&str, &str)] =
    &[("fsync", "off"), ("synchronous_commit", "off"), ("full_page_writes", "off")];

/// A running server with its data. Stopped and deleted when it is dropped.
pub struct Cluster {
    folder: TempDir,
    port: u16,
    server: Option<Child>,
    settings: Vec<(String, String)>,
}

impl Cluster {
    /// A new cluster, fast and careless.
    pub fn careless() -> Self {
        Self::start(CARELESS)
    }

    /// A new cluster with these settings beside its port.
    pub fn start(settings: &[(&str, &str)]) -> Self {
        Self::serve(Self::init(), settings)
    }

    /// A new cluster that speaks TLS with this certificate, and nothing else.
    pub fn secure(certificate: &str, key: &str) -> Self {
        let folder = Self::init();
        let data = folder.path().join("data");
        let only_tls = "hostssl all all 127.0.0.1/32 trust\n";
        for (name, text) in [("tls.crt", certificate), ("tls.key", key), ("pg_hba.conf", only_tls)]
        {
            let path = data.join(name);
            let written = std::fs::write(&path, text).and_then(|()| {
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
                server_user().map_or(Ok(()), |(user, group)| chown(&path, Some(user), Some(group)))
            });
            written.unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        }
        let tls = [("ssl", "on"), ("ssl_cert_file", "tls.crt"), ("ssl_key_file", "tls.key")];
        Self::serve(folder, &[CARELESS, &tls].concat())
    }

    fn init() -> TempDir {
        let folder = private_folder();
        let auth = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-N"];
        let data = folder.path().join("data");
        run(as_server("initdb").args(auth).arg("-D").arg(&data));
        folder
    }

    /// A standby that follows this cluster, under the name `standby`: made of a base backup.
    pub fn standby(&self, settings: &[(&str, &str)]) -> Self {
        let folder = private_folder();
        let from =
            format!("host=127.0.0.1 port={} user=postgres application_name=standby", self.port);
        let mut copy = as_server("pg_basebackup");
        copy.args(["-d", &from, "-X", "stream", "-c", "fast", "-R", "-D"]);
        run(copy.arg(folder.path().join("data")));
        Self::serve(folder, settings)
    }

    fn serve(folder: TempDir, settings: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let settings = settings.iter().map(owned).collect();
        let mut cluster = Self { folder, port: 0, server: None, settings };
        cluster.rise();
        cluster
    }

    /// Starts the server, which must not run, on a new port the first time and on its own after.
    pub fn rise(&mut self) {
        let until = Instant::now() + PATIENCE;
        loop {
            if self.port == 0 || self.server.is_none() && Instant::now() > until {
                self.port = free_port();
            }
            let mut command = as_server("postgres");
            command.arg("-D").arg(self.folder.path().join("data"));
            let fixed = [
                ("listen_addresses", "127.0.0.1".to_owned()),
                ("port", self.port.to_string()),
                ("unix_socket_directories", String::new()),
                ("max_connections", "300".to_owned()),
            ];
            for (name, value) in fixed {
                command.arg("-c").arg(format!("{name}={value}"));
            }
            for (name, value) in &self.settings {
                command.arg("-c").arg(format!("{name}={value}"));
            }
            let log = std::fs::File::create(self.folder.path().join("log"));
            let log = log.unwrap_or_else(|why| panic!("the server's log: {why}"));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            let server = command.spawn().unwrap_or_else(|why| panic!("postgres: {why}"));
            self.server = Some(server);
            match self.wait_until_it_answers(until) {
                Ok(()) => return,
                // Somebody else took the port between our look and the server's.
                Err(log) if log.contains("Address already in use") && Instant::now() < until => {
                    self.kill();
                    self.port = 0;
                }
                Err(log) => panic!("the test's PostgreSQL did not start:\n{log}"),
            }
        }
    }

    fn wait_until_it_answers(&mut self, until: Instant) -> Result<(), String> {
        loop {
            let mut ready = Command::new(tool("pg_isready"));
            ready.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
            if ready.status().is_ok_and(|status| status.success()) {
                return Ok(());
            }
            let over = self.server.as_mut().is_none_or(|s| !matches!(s.try_wait(), Ok(None)));
            if over || Instant::now() > until {
                let log = std::fs::read_to_string(self.folder.path().join("log"));
                return Err(log.unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The URL of a database of it; `postgres` is always there.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs a statement as its superuser and gives the lines of the answer.
    pub fn sql(&self, statement: &str) -> Vec<String> {
        psql(&self.url("postgres"), statement)
    }

    /// Makes a standby the primary, and waits until it takes writes.
    pub fn promote(&self) {
        self.sql("SELECT pg_promote(true, 30)");
        self.wait_for("SELECT pg_is_in_recovery()", "f");
    }

    /// Asks until the answer is this one line.
    pub fn wait_for(&self, statement: &str, answer: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = self.sql(statement);
            if found == [answer] {
                return;
            }
            assert!(Instant::now() < until, "{statement} still answers {found:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it as a power cut does, as far as a process can be cut: nothing is written down.
    pub fn kill(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        // SIGQUIT to the postmaster ends its children too; SIGKILL would leave them behind.
        signal(server.id(), "QUIT");
        let _ = server.wait();
    }

    /// Stops every process of it where it stands, or lets them go on.
    pub fn pause(&self, stop: bool) {
        let Some(server) = &self.server else { return };
        let children = Command::new("pgrep").args(["-P", &server.id().to_string()]).output();
        let children = children.unwrap_or_else(|why| panic!("pgrep: {why}")).stdout;
        let name = if stop { "STOP" } else { "CONT" };
        signal(server.id(), name);
        for child in String::from_utf8_lossy(&children).split_whitespace() {
            if let Ok(child) = child.parse() {
                signal(child, name);
            }
        }
    }

    /// Its data folder, for a configuration file beside it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A pooler in transaction mode in front of a cluster.
pub struct Bouncer {
    port: u16,
    server: Child,
    _folder: TempDir,
}

impl Bouncer {
    /// PgBouncer with so many sessions of the server to give, for each database and user.
    pub fn before(cluster: &Cluster, sessions: u32) -> Self {
        let folder = private_folder();
        let until = Instant::now() + PATIENCE;
        {
            let port = free_port();
            let settings = format!(
                "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
                 listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
                 default_pool_size = {sessions}\nmax_client_conn = 200\nlogfile = {}\n",
                cluster.port,
                folder.path().join("log").display(),
            );
            let file = folder.path().join("pgbouncer.ini");
            std::fs::write(&file, settings).unwrap_or_else(|why| panic!("{why}"));
            let mut command = as_server("pgbouncer");
            command.args(["-q"]).arg(&file).stdin(Stdio::null());
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let server = command.spawn().unwrap_or_else(|why| panic!("pgbouncer: {why}"));
            let mut bouncer = Self { port, server, _folder: folder };
            while bouncer.server.try_wait().is_ok_and(|over| over.is_none()) {
                if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return bouncer;
                }
                assert!(Instant::now() < until, "pgbouncer does not answer");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        panic!("pgbouncer does not start: is it installed?")
    }

    /// The URL of a database through it.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        signal(self.server.id(), "KILL");
        let _ = self.server.wait();
    }
}

/// A place for one test's books in a cluster: a schema of its own, dropped at the end.
pub struct Schema {
    url: String,
    base: String,
    name: String,
    /// The cluster, where it is this test's own.
    _own: Option<Cluster>,
}

impl Schema {
    /// In the cluster that [`SHARED`] names, or in one of its own.
    pub fn fresh() -> Self {
        match std::env::var(SHARED) {
            Ok(base) => Self::in_database(&base, None),
            Err(_) => {
                let cluster = Cluster::careless();
                Self::in_database(&cluster.url("postgres"), Some(cluster))
            }
        }
    }

    /// In a cluster of the test's own.
    pub fn of(cluster: &Cluster) -> Self {
        Self::in_database(&cluster.url("postgres"), None)
    }

    fn in_database(base: &str, own: Option<Cluster>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("t{}_{count}", std::process::id());
        psql(base, &format!("CREATE SCHEMA {name}"));
        let url = format!("{base}?options=-csearch_path%3D{name}");
        Self { url, base: base.to_owned(), name, _own: own }
    }

    /// Where the books go.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Runs a statement beside the books and gives the lines of the answer.
    pub fn sql(&self, statement: &str) -> Vec<String> {
        psql(&self.url, statement)
    }
}

impl Schema {
    /// A session of somebody's who goes by this name, and does what it is told.
    pub fn session(&self, name: &str) -> Session {
        let url = self.url.replace('?', &format!("?application_name={name}&"));
        let mut psql = Command::new(tool("psql"));
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", &url]);
        psql.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let psql = psql.spawn().unwrap_or_else(|why| panic!("psql: {why}"));
        Session { psql }
    }
}

/// A session that stays open until it is dropped; what it left open is rolled back then.
pub struct Session {
    psql: Child,
}

impl Session {
    /// Has statements carried out, and does not wait for it.
    pub fn say(&mut self, statements: &str) {
        let keys = self.psql.stdin.as_mut().unwrap_or_else(|| unreachable!("it is piped"));
        let said = keys.write_all(format!("{statements}\n").as_bytes()).and_then(|()| keys.flush());
        said.unwrap_or_else(|why| panic!("psql: {why}"));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Whatever it is in the middle of ends with it.
        drop(self.psql.stdin.take());
        let _ = self.psql.kill();
        let _ = self.psql.wait();
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        if self._own.is_none() {
            // A session of a node that was killed may still hold a table for a moment.
            let end = format!("SET lock_timeout = '5s'; DROP SCHEMA {} CASCADE", self.name);
            let mut drop = Command::new(tool("psql"));
            let _ = drop.args(["-X", "-q", "-c", &end, &self.base]).output();
        }
    }
}

fn psql(url: &str, statement: &str) -> Vec<String> {
    let mut psql = Command::new(tool("psql"));
    psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statement, url]);
    let out = run(&mut psql);
    out.lines().map(ToOwned::to_owned).collect()
}

fn run(command: &mut Command) -> String {
    let out = command.stdin(Stdio::null()).output();
    let out = out.unwrap_or_else(|why| panic!("{command:?}: {why}"));
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn signal(process: u32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
}

fn free_port() -> u16 {
    let bound = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    bound.unwrap_or_else(|why| panic!("no free port: {why}")).port()
}

/// PostgreSQL's programs, and the pooler: Debian keeps them out of the path of most users.
fn tool(name: &str) -> PathBuf {
    let beside = Path::new("/usr/sbin").join(name);
    if beside.exists() {
        return beside;
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        versions.map(|version| version.path().join("bin").join(name)).collect();
    found.retain(|path| path.exists());
    found.sort();
    found.pop().unwrap_or_else(|| PathBuf::from(name))
}

/// A program of the server, run by a user who is not root and ended when we are.
fn as_server(name: &str) -> Command {
    let program = tool(name);
    let mut command = Command::new("setpriv");
    command.env("LC_ALL", "C").current_dir("/");
    if let Some((user, group)) = server_user() {
        command.args(["--reuid", &user.to_string(), "--regid", &group.to_string()]);
        command.arg("--clear-groups");
    }
    command.args(["--pdeathsig", "QUIT", "--"]).arg(program);
    command
}

/// Who runs the server: `postgres`, where we are root; else whoever we are.
fn server_user() -> Option<(u32, u32)> {
    let me = std::fs::metadata("/proc/self").ok()?;
    if std::os::unix::fs::MetadataExt::uid(&me) != 0 {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = users.lines().find(|line| line.starts_with("postgres:"));
    let line = line.unwrap_or_else(|| panic!("no user `postgres`: is PostgreSQL installed?"));
    let mut numbers = line.split(':').skip(2).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(user)), Some(Ok(group))) => Some((user, group)),
        _ => panic!("/etc/passwd: {line}"),
    }
}

/// A folder that the server's user owns.
fn private_folder() -> TempDir {
    let folder = tempfile::Builder::new().prefix("earnest-pg-").tempdir();
    let folder = folder.unwrap_or_else(|why| panic!("no folder for the test's PostgreSQL: {why}"));
    if let Some((user, group)) = server_user()
        && let Err(why) = chown(folder.path(), Some(user), Some(group))
    {
        panic!("{}: {why}", folder.path().display());
    }
    folder
}
