//! A connection to PostgreSQL that a plain thread uses: requests are sent from here, answers are
//! waited for here, and the socket is driven by a thread of its own.
//!
//! Everything is sent as unnamed statements and nothing is set but within a transaction, so that a
//! pooler in transaction mode may stand between.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, NoTls, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);

/// How long an answer may be awaited when the server itself sets no bound, or is stopped: longer
/// than every bound we give it, so that its own word comes first.
const SILENCE: Duration = Duration::from_secs(30);

/// How long sent bytes may stay unacknowledged before the connection counts as lost.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// Parameters of a statement, each with its type, so that none has to be asked for.
pub(crate) type Typed<'a> = [(&'a (dyn ToSql + Sync), Type)];

/// What drives the sockets. Its thread ends when the last connection goes.
struct Io(Option<Runtime>);

impl Drop for Io {
    fn drop(&mut self) {
        // Dropped wherever the last handle goes, which may be inside another runtime.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A server and how to reach it.
#[derive(Clone)]
pub(crate) struct Server {
    config: Config,
    tls: MakeRustlsConnect,
    io: Arc<Io>,
    handle: Handle,
    place: String,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Server").field(&self.place).finish()
    }
}

impl Server {
    /// Reads a `postgres://` URL: what libpq reads, of which `sslrootcert` and the stricter values
    /// of `sslmode` are understood here. A certificate is always verified where TLS is spoken; to
    /// another host it is spoken unless `sslmode=disable` stands there.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let Parts { url, root, mode } = Parts::of(url)?;
        let mut config: Config = url.parse().map_err(|why| text(&why))?;
        let beside = config.get_hosts().iter().all(is_beside);
        config.ssl_mode(match mode {
            Some(mode) => mode,
            None if beside => SslMode::Disable,
            None => SslMode::Require,
        });
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT);
        }
        if config.get_application_name().is_none() {
            config.application_name("earnest");
        }
        config.tcp_user_timeout(UNACKNOWLEDGED);
        config.keepalives_idle(UNACKNOWLEDGED);
        let tls = MakeRustlsConnect::new(client_config(root.as_deref(), config.get_ssl_mode())?);
        let mut builder = Builder::new_multi_thread();
        let builder = builder.worker_threads(1).thread_name("postgres").enable_all();
        let runtime = builder.build().map_err(|why| why.to_string())?;
        let handle = runtime.handle().clone();
        let place = place_of(&config);
        Ok(Self { config, tls, io: Arc::new(Io(Some(runtime))), handle, place })
    }

    /// Host and database, without who and with what password.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    pub(crate) fn connect(&self) -> Result<Link, Failure> {
        let connecting = async {
            // Both kinds of connection are driven alike; only their types differ.
            if self.config.get_ssl_mode() == SslMode::Disable {
                let (client, connection) = self.config.connect(NoTls).await?;
                self.handle.spawn(connection);
                Ok(client)
            } else {
                let (client, connection) = self.config.connect(self.tls.clone()).await?;
                self.handle.spawn(connection);
                Ok(client)
            }
        };
        let client = wait(&self.handle, CONNECT.saturating_mul(2), connecting)?;
        Ok(Link { client, handle: self.handle.clone(), _io: self.io.clone() })
    }
}

/// What of a URL is ours to read, and the rest.
struct Parts {
    url: String,
    root: Option<String>,
    mode: Option<SslMode>,
}

impl Parts {
    fn of(url: &str) -> Result<Self, String> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut root, mut mode) = (None, None);
        let mut rest = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("sslrootcert", path)) => {
                    let path = percent_encoding::percent_decode_str(path).decode_utf8();
                    root = Some(path.map_err(|why| why.to_string())?.into_owned());
                }
                Some(("sslmode", "disable")) => mode = Some(SslMode::Disable),
                Some(("sslmode", "require" | "verify-ca" | "verify-full")) => {
                    mode = Some(SslMode::Require);
                }
                Some(("sslmode", other)) => {
                    // `prefer` and `allow` let whoever stands between choose plain text.
                    return Err(format!("sslmode={other}: use disable, require or verify-full"));
                }
                _ => rest.push(part),
            }
        }
        let url = match rest.is_empty() {
            true => base.to_owned(),
            false => format!("{base}?{}", rest.join("&")),
        };
        Ok(Self { url, root, mode })
    }
}

/// Host and database of a URL, and whether it is one at all; says nothing of who and with what
/// password.
pub(crate) fn place_of_url(url: &str) -> Result<String, String> {
    let config: Config = Parts::of(url)?.url.parse().map_err(|why| text(&why))?;
    Ok(place_of(&config))
}

fn is_beside(host: &tokio_postgres::config::Host) -> bool {
    match host {
        tokio_postgres::config::Host::Tcp(name) => {
            let bare = name.trim_start_matches('[').trim_end_matches(']');
            name == "localhost"
                || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
        }
        tokio_postgres::config::Host::Unix(_) => true,
    }
}

fn place_of(config: &Config) -> String {
    let host = |host: &tokio_postgres::config::Host| match host {
        tokio_postgres::config::Host::Tcp(name) => name.clone(),
        tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
    };
    let hosts: Vec<_> = config.get_hosts().iter().map(host).collect();
    let ports: Vec<_> = config.get_ports().iter().map(ToString::to_string).collect();
    let database = config.get_dbname().or_else(|| config.get_user()).unwrap_or_default();
    format!("postgres://{}:{}/{database}", hosts.join(","), ports.join(","))
}

fn client_config(root: Option<&str>, mode: SslMode) -> Result<rustls::ClientConfig, String> {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};
    let mut roots = rustls::RootCertStore::empty();
    if let Some(path) = root {
        let certificates =
            CertificateDer::pem_file_iter(path).map_err(|why| format!("{path}: {why}"))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|why| format!("{path}: {why}"))?;
            roots.add(certificate).map_err(|why| format!("{path}: {why}"))?;
        }
    } else if mode != SslMode::Disable {
        // One that cannot be read makes none of the others worse.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(|why| why.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// A connection.
pub(crate) struct Link {
    client: Client,
    handle: Handle,
    _io: Arc<Io>,
}

impl Link {
    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// Waits for what was asked of [`Link::client`].
    pub(super) fn wait<T>(
        &self,
        asked: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Failure> {
        wait(&self.handle, SILENCE, asked)
    }

    pub(crate) fn run(&self, sql: &str) -> Result<(), Failure> {
        self.wait(self.client.batch_execute(sql))
    }

    pub(crate) fn query(&self, sql: &str, params: &Typed<'_>) -> Result<Vec<Row>, Failure> {
        self.wait(self.client.query_typed(sql, params))
    }

    /// Sends something and does not wait for its answer, which comes before that of anything sent
    /// later.
    pub(super) fn post(&self, sql: &str) {
        let mut sending = Box::pin(self.client.batch_execute(sql));
        let mut nobody = std::task::Context::from_waker(std::task::Waker::noop());
        // The first poll sends it. Whatever goes wrong shows with the next that is asked.
        let _ = sending.as_mut().poll(&mut nobody);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }
}

fn wait<T>(
    handle: &Handle,
    patience: Duration,
    asked: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Failure> {
    // For the timer alone: the future itself is woken from the thread that drives the socket.
    let _entered = handle.enter();
    let bounded = tokio::time::timeout(patience, asked);
    match pollster::block_on(bounded) {
        Ok(answer) => answer.map_err(Failure::Server),
        Err(_) => Err(Failure::Silent(patience)),
    }
}

/// Runs what waits, giving the async worker that runs it away meanwhile, where there is one.
pub(super) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Why something did not go well.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server, or the way to it.
    Server(tokio_postgres::Error),
    /// No word for so long.
    Silent(Duration),
}

/// What to make of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Of the content of a statement: the server is well.
    Content,
    /// Run the transaction again.
    Again,
    /// Somebody else is in the way, or there is no room; the connection stands.
    Place,
    /// The connection is gone, or must not be used again.
    Lost,
}

impl Failure {
    pub(super) fn kind(&self) -> Kind {
        let Self::Server(error) = self else { return Kind::Lost };
        let Some(db) = error.as_db_error() else { return Kind::Lost };
        let state = db.code();
        // What ends a session says so in its severity.
        if db.parsed_severity().is_some_and(|severity| {
            use tokio_postgres::error::Severity::{Fatal, Panic};
            matches!(severity, Fatal | Panic)
        }) {
            return Kind::Lost;
        }
        if [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(state) {
            return Kind::Again;
        }
        // A standby, or a primary that became one: another connection may find the new primary.
        if *state == SqlState::READ_ONLY_SQL_TRANSACTION {
            return Kind::Lost;
        }
        match state.code().get(..2) {
            Some("22" | "23" | "54") => Kind::Content,
            _ => Kind::Place,
        }
    }

    /// The code the server gave, where it gave one.
    pub(super) fn state(&self) -> Option<&SqlState> {
        let Self::Server(error) = self else { return None };
        error.code()
    }

    /// Whether the server said that it gave up waiting for a lock.
    pub(super) fn waited_in_vain(&self) -> bool {
        self.state() == Some(&SqlState::LOCK_NOT_AVAILABLE)
    }

    /// Whether a failed transaction is all that it says: what failed before is the reason.
    pub(super) fn is_an_echo(&self) -> bool {
        self.state() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Server(error) => f.write_str(&text(error)),
            Self::Silent(patience) => {
                write!(f, "the database said nothing for {} s", patience.as_secs())
            }
        }
    }
}

/// An error of the driver with what is under it; alone it says only `db error`.
fn text(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => format!("{} ({})", db.message(), db.code().code()),
        None => match std::error::Error::source(error) {
            Some(under) => format!("{error}: {under}"),
            None => error.to_string(),
        },
    }
}
