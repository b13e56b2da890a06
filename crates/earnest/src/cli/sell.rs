//! `earnest sell`: a price in front of any HTTP server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
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

/// Stands in front of your server and charges for it.
///
/// What no rule names is answered 404 and never reaches your server. The origin is registered and
/// proved at the start; its address is printed once buyers can pay.
#[derive(Debug, Args)]
pub struct Sell {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// Your server, such as http://127.0.0.1:8000.
    #[arg(long, value_name = "URL")]
    pub upstream: String,
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
    /// Where used vouchers are remembered [default: <data>/nonces-<port>.db].
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
        Failure::local("listener_failed", 1, why)
    };
    let listener = TcpListener::bind(command.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let public = public_url(&command, address)?;
    let nonces = NonceStore::open(nonce_file(&command, address)?);
    let nonces = nonces.map_err(|why| Failure::local("nonces_unusable", 1, why.to_string()))?;
    let mut seller = SellerConfig::new(client.base(), &seller_id, &key, &public, nonces)?;
    if let Some(url) = &command.earnest_public_url {
        seller = seller.public_earnest_url(url)?;
    }
    let config = rules(SellConfig::new(seller, &command.upstream), &command)?;
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
    let nonces = nonces.map_err(|why| Failure::local("nonces_unusable", 1, why.to_string()))?;
    let seller = SellerConfig::new(url, nobody, "ek_seller_", url, nonces)?;
    rules(SellConfig::new(seller, &command.upstream), command).map(|_| ())
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

/// The file of used vouchers: the one named, or one for each port in the data folder.
fn nonce_file(command: &Sell, address: SocketAddr) -> Result<PathBuf, Failure> {
    use std::os::unix::fs::DirBuilderExt as _;
    if let Some(path) = &command.nonces {
        return Ok(path.clone());
    }
    let folder = command.reach.data();
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|why| Failure::file(&folder, why))?;
    Ok(folder.join(format!("nonces-{}.db", address.port())))
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
    failure.exit() == 8 || failure.exit() == 1 || failure.code() == "validation_failed"
}
