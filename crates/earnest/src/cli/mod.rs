//! The command line. stdout is data, stderr is talk; exit codes are those of the design.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use earnest_core::money::Micros;
use earnest_core::problem::{Code, Refusal};
use earnest_paypal::Secret;
use earnest_store::audit::AuditError;
use earnest_store::{OpenError, Place, Url};

use self::failure::{Ended, Failure};
use crate::backup::BOOKS;
use crate::config::Overrides;
use crate::watch::LogFormat;

pub mod agent;
pub mod approvals;
pub mod audit;
pub mod backup;
pub mod bench;
pub mod cash;
pub mod client;
pub mod completions;
pub mod config;
pub mod demo;
pub mod failure;
pub mod key;
pub mod keys;
pub mod ledger;
pub mod mcp;
pub mod method;
pub mod migrate;
pub mod models;
pub mod output;
pub mod owner;
pub mod pay;
pub mod paypal;
pub mod policy;
pub mod purchases;
pub mod receipt;
pub mod rows;
pub mod sell;
pub mod seller;
pub mod sim;
pub mod tab;
pub mod trail;
pub mod treasurer;
pub mod up;

/// The settlement layer for AI agents.
#[derive(Debug, Parser)]
#[command(name = "earnest", version, about)]
pub struct Cli {
    /// How answers are written and people are asked.
    #[command(flatten)]
    pub style: Style,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// How answers are written and people are asked; every command has these.
#[derive(Clone, Debug, Default, Args)]
pub struct Style {
    /// Write data as JSON; errors as problem JSON on stderr.
    #[arg(long, global = true)]
    pub json: bool,
    /// Say nothing but data and errors.
    #[arg(long, global = true)]
    pub quiet: bool,
    /// Never ask; fail instead.
    #[arg(long, global = true)]
    pub no_input: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs Earnest: API, jobs, and a simulated PayPal unless another is configured.
    Up(up::Up),
    /// Stands in front of your server and charges for it.
    Sell(sell::Sell),
    /// Buys one thing, and writes it to stdout.
    Pay(pay::Pay),
    /// Whose money it is.
    Owner(owner::Owner),
    /// Who buys, within limits.
    Agent(agent::Agent),
    /// Who is paid.
    Seller(seller::Seller),
    /// What an owner allows.
    Policy(policy::Policy),
    /// Lets an agent's MCP client buy: over stdin and stdout, or print its configuration.
    Mcp(mcp::Mcp),
    /// The owner's way to pay.
    Method(method::Method),
    /// What was bought and is settled together.
    Tab(tab::Tab),
    /// What was bought, was refused, or waits.
    Purchases(purchases::Purchases),
    /// Purchases that wait for their owner, and the owner's answers.
    Approvals(approvals::Approvals),
    /// Signed receipts, and checking them.
    Receipt(receipt::Receipt),
    /// The public keys of vouchers and receipts.
    Jwks(receipt::JwksCommand),
    /// What passed between Earnest and PayPal about one thing.
    Trail(trail::Trail),
    /// The accounts of the books.
    Accounts(ledger::Accounts),
    /// The transfers of the books, in order.
    Transfers(ledger::Transfers),
    /// Whether the books add up.
    TrialBalance(ledger::TrialBalance),
    /// Whether PayPal's records say what the books say, line by line.
    Reconcile(cash::Reconcile),
    /// What you moved at PayPal by hand: deposits, withdrawals, repayments.
    Cash(cash::Cash),
    /// Money that arrived and matches nothing, and where it belongs.
    Suspense(cash::Suspense),
    /// Whether every invariant of the books holds, from the first entry on.
    Audit(audit::Audit),
    /// Copies the books to a new folder, while Earnest runs.
    Backup(backup::Backup),
    /// Makes a data folder from a backup, and looks after its quarantine.
    Restore(backup::Restore),
    /// Moves the books to a PostgreSQL database, or back to a folder.
    Migrate(migrate::Migrate),
    /// What signs vouchers and receipts, and what seals secrets.
    #[command(subcommand)]
    Keys(keys::Keys),
    /// The settings in force.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Checks what Earnest relies on.
    #[command(subcommand)]
    Doctor(paypal::Doctor),
    /// What the treasurer's rules cost in fees.
    #[command(subcommand)]
    Treasurer(treasurer::Treasurer),
    /// What the operator does at PayPal.
    #[command(subcommand)]
    Paypal(paypal::PaypalCommand),
    /// Measures this build on this machine, as ratios against calibrations in the same run.
    Bench(bench::Bench),
    /// Shows the main job, offline, with nothing to configure.
    Demo(demo::Demo),
    /// Runs a simulated PayPal alone, for anyone's PayPal SDK.
    #[command(subcommand)]
    Sim(sim::SimCommand),
    /// Writes what a shell needs to complete commands.
    Completions(completions::Completions),
}

/// Settings that flags and the environment may give; they come before every file.
#[derive(Clone, Debug, Default, Args)]
pub struct Where {
    /// A settings file instead of ./earnest.toml.
    #[arg(long, env = "EARNEST_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where to listen [default: 127.0.0.1:4020].
    #[arg(long, env = "EARNEST_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Where people and sellers reach this Earnest.
    #[arg(long, env = "EARNEST_PUBLIC_URL", value_name = "URL")]
    pub public_url: Option<String>,
    /// Where the books are [default: ./earnest-data].
    #[arg(long, env = "EARNEST_DATA", value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// Its database, where it has one.
    #[command(flatten)]
    pub database: DatabaseFlag,
    /// The key-encryption key of secrets at rest.
    #[arg(long, env = "EARNEST_KEY_FILE", value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// PayPal's REST client id.
    #[arg(long, env = "EARNEST_PAYPAL_CLIENT_ID", value_name = "ID")]
    pub paypal_client_id: Option<String>,
}

impl Where {
    /// What they say; the secret comes from its environment variable or file, never from a flag.
    pub fn overrides(self) -> Result<Overrides, crate::config::ConfigError> {
        let secret = match std::env::var_os("EARNEST_PAYPAL_SECRET_FILE") {
            Some(path) => Some(crate::config::read_secret(&PathBuf::from(path))?),
            None => std::env::var("EARNEST_PAYPAL_SECRET").ok().map(Secret::new),
        };
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let user_dir = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
        Ok(Overrides {
            file: self.config,
            listen: self.listen,
            public_url: self.public_url,
            data: self.data,
            database: self.database.url()?,
            key_file: self.key_file,
            client_id: self.paypal_client_id,
            secret,
            user_dir: user_dir
                .or(home.map(|home| home.join(".config")))
                .map(|dir| dir.join("earnest")),
        })
    }
}

/// A flag or variable that is never shown, whatever is wrong with it.
///
/// # Errors
/// None.
pub fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text))
}

/// Books in a database instead of a file.
#[derive(Clone, Debug, Default, Args)]
pub struct DatabaseFlag {
    /// A PostgreSQL database for the books instead, which several nodes may share. Keep its password
    /// out of flags, which everybody on the machine sees.
    #[arg(
        long,
        env = "EARNEST_DATABASE",
        hide_env_values = true,
        value_parser = secret,
        value_name = "URL"
    )]
    pub database: Option<Secret>,
}

impl DatabaseFlag {
    /// The database that the flag or its variable names.
    ///
    /// # Errors
    /// [`crate::config::ConfigError`] where it is no address of one.
    pub fn url(&self) -> Result<Option<Url>, crate::config::ConfigError> {
        let read = self.database.as_ref().map(|said| Url::parse(said.expose())).transpose();
        read.map_err(|why| crate::config::ConfigError::Value(format!("--database: {why}")))
    }
}

/// How the log of a command is written: as settings say for `earnest up`, for people otherwise.
/// Settings that cannot be read are said by the command itself.
pub fn log_format(cli: &Cli) -> LogFormat {
    let Command::Up(command) = &cli.command else { return LogFormat::Text };
    let set = || {
        let overrides = command.place.clone().overrides().ok()?;
        crate::config::read_files(&overrides).ok()?.watch.log
    };
    command.log.or_else(set).unwrap_or_default()
}

/// Reads the command line.
///
/// # Errors
/// The exit code, once what was wrong with it (or the help that was asked for) is said.
pub fn parse(arguments: impl Iterator<Item = std::ffi::OsString>) -> Result<Cli, ExitCode> {
    let arguments: Vec<_> = arguments.collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    read(&arguments).map_err(|error| {
        let help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        if json && !help {
            // The first paragraph says what is wrong, the others how it is done.
            let text = error.render().to_string();
            let wrong: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
            let wrong = wrong.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
            let detail = wrong.trim_start_matches("error: ");
            return Failure::usage(detail).show(&Style { json, ..Style::default() });
        }
        // With nobody left to read it the exit code still says it.
        let _ = error.print();
        ExitCode::from(if help { 0 } else { 2 })
    })
}

/// The command line by its grammar; `config show` is told besides what of it stood there.
fn read(arguments: &[std::ffi::OsString]) -> Result<Cli, clap::Error> {
    let read = Cli::command().try_get_matches_from(arguments)?;
    let mut cli = Cli::from_arg_matches(&read)?;
    if let Command::Config(config::ConfigCommand::Show(show)) = &mut cli.command
        && let Some((_, read)) = read.subcommand().and_then(|(_, config)| config.subcommand())
    {
        show.note_flags(read);
    }
    Ok(cli)
}

/// Runs a command and gives its exit code.
pub async fn run(cli: Cli) -> ExitCode {
    let style = cli.style;
    let ended = match cli.command {
        // These are asked to stop, and then end by themselves.
        Command::Up(command) => up::run(command, &style).await,
        Command::Bench(command) => Ok(bench::run(command, &style).await),
        Command::Demo(command) => Ok(demo::run(command, &style).await),
        Command::Sim(command) => sim::run(command, &style).await,
        Command::Sell(command) => sell::run(command, &style).await,
        command => tokio::select! {
            ended = ask(command, &style) => ended,
            _ = tokio::signal::ctrl_c() => Err(Failure::interrupted()),
        },
    };
    ended.unwrap_or_else(|failure| failure.show(&style))
}

/// Runs a command that asks and is answered.
async fn ask(command: Command, style: &Style) -> Ended {
    match command {
        Command::Pay(command) => pay::run(command, style).await,
        Command::Owner(command) => owner::run(command, style).await,
        Command::Agent(command) => agent::run(command, style).await,
        Command::Seller(command) => seller::run(command, style).await,
        Command::Policy(command) => policy::run(command, style).await,
        Command::Mcp(command) => mcp::run(command, style).await,
        Command::Method(command) => method::run(command, style).await,
        Command::Tab(command) => tab::run(command, style).await,
        Command::Purchases(command) => purchases::run(command, style).await,
        Command::Approvals(command) => approvals::run(command, style).await,
        Command::Receipt(command) => receipt::run(command, style).await,
        Command::Jwks(command) => receipt::jwks(command, style).await,
        Command::Trail(command) => trail::run(command, style).await,
        Command::Accounts(command) => ledger::accounts(command, style).await,
        Command::Transfers(command) => ledger::transfers(command, style).await,
        Command::TrialBalance(command) => ledger::trial_balance(command, style).await,
        Command::Reconcile(command) => cash::reconcile(command, style).await,
        Command::Cash(command) => cash::cash(command, style).await,
        Command::Suspense(command) => cash::suspense(command, style).await,
        Command::Audit(command) => audit::run(command, style).await,
        Command::Backup(command) => backup::run(command, style).await,
        Command::Restore(command) => backup::run_restore(command, style).await,
        Command::Migrate(command) => migrate::run(command, style).await,
        Command::Keys(command) => keys::run(command, style).await,
        Command::Config(command) => config::run(command, style),
        Command::Completions(command) => completions::run(&command),
        Command::Doctor(command) => paypal::doctor(command, style).await,
        Command::Treasurer(command) => treasurer::run(command, style).await,
        Command::Paypal(command) => paypal::run(command, style).await,
        Command::Up(_)
        | Command::Bench(_)
        | Command::Demo(_)
        | Command::Sim(_)
        | Command::Sell(_) => Err(Failure::usage("that command runs until it is stopped")),
    }
}

/// An amount as a person writes it, refused under the amount's own code.
///
/// # Errors
/// `amount_invalid`, `amount_not_positive` or `amount_out_of_range`.
pub fn amount(text: &str) -> Result<Micros, Failure> {
    Micros::parse(text).map_err(|why| {
        let refusal = Refusal::from(why);
        let detail = format!("`{text}`: {}", refusal.detail);
        Refusal { detail, ..refusal }.into()
    })
}

/// Books to look at from outside: of a database, of a folder, or a file of their own.
///
/// # Errors
/// `not_found` where there is no such file.
pub fn books_at(database: Option<Url>, data: Option<PathBuf>) -> Result<Place, Failure> {
    if let Some(url) = database {
        return Ok(Place::Server(url));
    }
    let data = data.unwrap_or_else(|| PathBuf::from(crate::config::DATA_DIR));
    let file = if data.is_dir() { data.join(BOOKS) } else { data };
    match file.exists() {
        true => Ok(Place::File(file)),
        false => Err(not_found(&format!("there are no books at `{}`", file.display()))),
    }
}

/// Why books could not be looked at.
pub fn unreadable(place: &Place, error: AuditError) -> Failure {
    match (error, place) {
        (AuditError::Open(why), Place::File(file)) => Failure::file(file, why),
        (AuditError::Open(why @ OpenError::NoBooks(_)), _) => not_found(&why.to_string()),
        (error, _) => Failure::of(Code::DatabaseUnavailable, error.to_string()),
    }
}

/// There is no such thing: exit code 3.
pub fn not_found(why: &str) -> Failure {
    Refusal::new(Code::NotFound, why).into()
}

/// Completes when the process is asked to stop.
pub async fn asked_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut term) = signal(SignalKind::terminate()) else {
        let _ = tokio::signal::ctrl_c().await;
        return;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = term.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_put_together_rightly() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_wrong_with_a_command_line_is_usage() {
        let parse = |words: &[&str]| {
            parse(words.iter().map(|word| std::ffi::OsString::from(*word))).map(|_| ())
        };
        assert!(parse(&["earnest", "audit"]).is_ok());
        for wrong in [vec!["earnest"], vec!["earnest", "pay", "--json"], vec!["earnest", "sell"]] {
            assert_eq!(parse(&wrong), Err(ExitCode::from(2)), "{wrong:?}");
        }
        assert_eq!(parse(&["earnest", "--help"]), Err(ExitCode::SUCCESS));
    }

    #[test]
    fn bad_amounts_have_the_codes_of_the_table() {
        for (text, code) in [
            ("0E+1", "amount_invalid"),
            ("5e-7", "amount_invalid"),
            ("1e999", "amount_invalid"),
            ("5.0e3", "amount_invalid"),
            ("0", "amount_not_positive"),
            ("-1", "amount_not_positive"),
            ("99999999999", "amount_out_of_range"),
        ] {
            let failure = amount(text).unwrap_err();
            assert_eq!((failure.code(), failure.exit()), (code, 2), "{text}");
        }
    }
}
