//! `earnest sell`: a price in front of any HTTP server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use earnest_core::problem::{Code, LocalCode};
use earnest_core::quote::canonical_url;
use earnest_sdk::sell::{SellConfig, SellError, serve};
use earnest_sdk::{NonceStore, SellerConfig};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::client::{Client, Reach, Role};
use super::failure::{Ended, Failure};
use super::output::text;
use super::seller::{prove_origin, put_origin};
use super::{Style, asked_to_stop};

/// The first and longest pause between attempts to have the origin proved.
const PROVE_AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// The longest that a gateway may have to say how serving ended: well inside the 15 minutes for
/// which a hold waits for the report (`report_grace_seconds`).
const LONGEST_OUTCOME_SECONDS: u64 = 600;

/// Stands in front of your server and charges for it, or tells your gateway what is paid for.
///
/// What no rule names is answered 404 and never reaches your server. The origin is registered and
/// proved at the start; its address is printed once buyers can pay.
#[derive(Debug, Args)]
pub struct Sell {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// Your server, such as http://127.0.0.1:8000.
    #[arg(long, value_name = "URL", required_unless_present = "authz")]
    pub upstream: Option<String>,
    /// No proxy: answers at /authz whether a request is paid for, for a gateway that serves it
    /// (nginx: /authz?for=nginx; Caddy, Traefik; Envoy with the path prefix /authz).
    #[arg(long, conflicts_with = "upstream", requires = "public_url")]
    pub authz: bool,
    /// Who may ask there, as an address or network; repeat it for more [default: this machine].
    #[arg(long = "gateway", value_name = "ADDRESS", requires = "authz")]
    pub gateways: Vec<String>,
    /// For how many seconds a gateway may say, at /outcome?purchase=ID, that what was let through
    /// failed; then it counts as served [default: at once]. At most 600.
    #[arg(long, value_name = "SECONDS", requires = "authz",
        value_parser = clap::value_parser!(u64).range(..=LONGEST_OUTCOME_SECONDS))]
    pub outcome_within: Option<u64>,
    /// What costs what: 'GET /weather/*=$0.02'; repeat it for more.
    #[arg(long = "price", required = true, value_name = "RULE")]
    pub prices: Vec<String>,
    /// What costs nothing: /health, or 'GET /docs/*'; repeat it for more. Keep it narrow.
    #[arg(long = "free", value_name = "RULE")]
    pub free: Vec<String>,
    /// Where to listen; port 0 picks a free one.
    #[arg(long, default_value = "127.0.0.1:4022", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// How buyers spell the address, such as https://api.example; needed unless it listens on
    /// loopback.
    #[arg(long, env = "EARNEST_SELL_PUBLIC_URL", value_name = "URL")]
    pub public_url: Option<String>,
    /// Where used vouchers are remembered [default: <data>/nonces-<public URL>.db].
    #[arg(long, value_name = "FILE")]
    pub nonces: Option<PathBuf>,
    /// `sel_…`; asked from Earnest unless said.
    #[arg(long, env = "EARNEST_SELLER_ID", value_name = "ID")]
    pub seller_id: Option<String>,
    /// Where buyers reach Earnest, when that differs from --url.
    #[arg(long, value_name = "URL")]
    pub earnest_public_url: Option<String>,
    /// How long your server may take to begin its answer, in seconds.
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    pub upstream_within: u64,
}

/// Runs the command until it is asked to stop, then lets running answers finish.
pub async fn run(command: Sell, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    let key = client.key(Role::Seller)?;
    // The rules are read before anything is asked: a price that cannot be read sells nothing.
    check_rules(&command)?;
    let seller_id = match &command.seller_id {
        Some(id) => id.clone(),
        None => text(&client.get(Role::Seller, "/v1/sellers/me").await?, "id"),
    };
    let failed = |why: std::io::Error| {
        let why = format!("cannot listen on {}: {why}", command.listen);
        Failure::local(LocalCode::ListenerFailed, 1, why).next(super::up::ELSEWHERE)
    };
    let listener = TcpListener::bind(command.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let public = public_url(&command, address)?;
    let nonces = NonceStore::open(nonce_file(&command, &public)?);
    let nonces =
        nonces.map_err(|why| Failure::local(LocalCode::NoncesUnusable, 1, why.to_string()))?;
    let mut seller = SellerConfig::new(client.base(), &seller_id, &key, &public, nonces)?;
    if let Some(url) = &command.earnest_public_url {
        seller = seller.public_earnest_url(url)?;
    }
    let config = rules(front(seller, &command)?, &command)?;
    let config = config.upstream_within(Duration::from_secs(command.upstream_within.max(1)));

    let stop = CancellationToken::new();
    let shutdown = stop.clone().cancelled_owned();
    let mut serving = std::pin::pin!(serve(config, listener, shutdown));
    let closed = |error: SellError| match error {
        SellError::Setup(error) => error.into(),
        SellError::Listener(error) => failed(error),
    };
    let announced = tokio::select! {
        served = serving.as_mut() => return served.map(|_| ExitCode::SUCCESS).map_err(closed),
        announced = open_until_stopped(&client, style, &seller_id, &public) => announced,
    };
    style.talk("stopping");
    stop.cancel();
    let reported = serving.await.map_err(closed)?;
    announced?;
    if !reported {
        style.talk("some sales are not reported yet; they will be after the next start");
    }
    Ok(ExitCode::SUCCESS)
}

/// Announces the shop and waits to be asked to stop; that ends the waiting for the proof, too.
async fn open_until_stopped(
    client: &Client,
    style: &Style,
    seller: &str,
    public: &str,
) -> Result<(), Failure> {
    let open = async {
        announce(client, style, seller, public).await?;
        std::future::pending().await
    };
    tokio::select! {
        failed = open => failed,
        () = asked_to_stop() => Ok(()),
    }
}

/// A proxy, or a desk for a gateway.
fn front(seller: SellerConfig, command: &Sell) -> Result<SellConfig, Failure> {
    let Some(upstream) = &command.upstream else {
        let loopback = ["127.0.0.0/8", "::1"].map(str::to_owned).to_vec();
        let gateways = if command.gateways.is_empty() { &loopback } else { &command.gateways };
        let config = SellConfig::authz(seller, gateways.iter().map(String::as_str))?;
        let within = Duration::from_secs(command.outcome_within.unwrap_or(0));
        return Ok(config.outcome_within(within));
    };
    Ok(SellConfig::new(seller, upstream))
}

/// Adds the rules of the command line.
fn rules(mut config: SellConfig, command: &Sell) -> Result<SellConfig, Failure> {
    for rule in &command.prices {
        config = config.price(rule)?;
    }
    for rule in &command.free {
        config = config.free(rule)?;
    }
    Ok(config)
}

/// Reads the rules for a shop that never opens.
fn check_rules(command: &Sell) -> Result<(), Failure> {
    let nobody = "sel_00000000000000000000000001";
    let (url, nonces) = ("http://127.0.0.1:9", NonceStore::in_memory());
    let nonces =
        nonces.map_err(|why| Failure::local(LocalCode::NoncesUnusable, 1, why.to_string()))?;
    let seller = SellerConfig::new(url, nobody, "ek_seller_", url, nonces)?;
    rules(front(seller, command)?, command).map(|_| ())
}

/// What buyers call this: never taken from a request.
fn public_url(command: &Sell, address: SocketAddr) -> Result<String, Failure> {
    match &command.public_url {
        Some(url) => Ok(url.trim_end_matches('/').to_owned()),
        None if address.ip().is_loopback() => Ok(format!("http://{address}")),
        None => {
            let why = format!("buyers cannot know what {address} is called");
            Err(Failure::usage(why).next("--public-url https://api.example"))
        }
    }
}

/// The file of used vouchers: the one named, or one for each origin in the data folder.
///
/// A voucher is for an origin, so that is what remembers it: a shop that moves to another port behind
/// its public name knows what it served before, and a second shop of that name does not open.
fn nonce_file(command: &Sell, public: &str) -> Result<PathBuf, Failure> {
    use std::os::unix::fs::DirBuilderExt as _;
    if let Some(path) = &command.nonces {
        return Ok(path.clone());
    }
    let folder = command.reach.data();
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|why| Failure::file(&folder, why))?;
    let url = canonical_url(public).map_err(|refusal| Failure::usage(refusal.detail))?;
    Ok(folder.join(nonce_file_name(&url.origin().ascii_serialization())))
}

/// An origin as the name of a file. Two that come to one name share a memory, which is safe: it
/// forgets nothing, and does not open twice at a time.
fn nonce_file_name(origin: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let plain = |c: char| if plain(c) { c } else { '_' };
    let name: String = origin.replace("://", "_").chars().map(plain).collect();
    format!("nonces-{name}.db")
}

/// Registers the origin and has it proved, then says that the shop is open.
///
/// What may pass (Earnest restarts, a name not known yet) is tried again for as long as it takes:
/// meanwhile free paths are served.
async fn announce(
    client: &Client,
    style: &Style,
    seller: &str,
    public: &str,
) -> Result<(), Failure> {
    let (mut pause, longest) = PROVE_AGAIN;
    let mut said = false;
    loop {
        let proved = match put_origin(client, public).await {
            Ok(_) => prove_origin(client, public).await,
            Err(failure) => Err(failure),
        };
        match proved {
            Ok(_) => break,
            Err(failure) if may_pass(&failure) => {
                if !said {
                    failure.show(style);
                    style.talk(&format!("{public} is not proved yet; trying again"));
                }
                said = true;
            }
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(pause).await;
        pause = pause.saturating_mul(2).min(longest);
    }
    let row = json!({ "url": public, "seller": seller, "earnest": client.base() });
    style.object(&row, || public.to_owned())?;
    style.next(&format!("earnest pay {public}/… --max-price '$0.25' --request-id ID"));
    Ok(())
}

fn may_pass(failure: &Failure) -> bool {
    failure.exit() == 8 || failure.exit() == 1 || failure.code() == Code::ValidationFailed.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        sell: Sell,
    }

    /// The name of the memory of a shop that listens at a port and is called something.
    fn memory(folder: &std::path::Path, listen: &str, public: Option<&str>) -> String {
        let words = ["sell", "--upstream", "http://127.0.0.1:1", "--price", "/*=$1", "--listen"];
        let mut words: Vec<&str> = words.into_iter().chain([listen]).collect();
        words.extend(["--data", folder.to_str().unwrap()]);
        words.extend(public.into_iter().flat_map(|url| ["--public-url", url]));
        let command = Line::try_parse_from(words).unwrap().sell;
        let public = public_url(&command, listen.parse().unwrap()).unwrap();
        let file = nonce_file(&command, &public).unwrap();
        file.strip_prefix(folder).unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn a_shop_that_moves_behind_its_name_remembers_what_it_served() {
        let folder = tempfile::tempdir().unwrap();
        let memory = |listen: &str, public| memory(folder.path(), listen, public);
        let api = "nonces-https_api.example.db";
        for (listen, public) in [
            ("127.0.0.1:4022", "https://api.example"),
            ("127.0.0.1:4023", "https://API.example/"),
            ("0.0.0.0:80", "https://api.example:443"),
        ] {
            assert_eq!(memory(listen, Some(public)), api, "{listen} {public}");
        }
        assert_eq!(memory("127.0.0.1:4022", None), "nonces-http_127.0.0.1_4022.db");
        assert_eq!(memory("127.0.0.1:4023", None), "nonces-http_127.0.0.1_4023.db");
        assert_eq!(memory("[::1]:4022", None), "nonces-http____1__4022.db");
    }
}
