//! A seller that is killed while it serves: what it claimed is never served again, and the buyer's
//! money is released.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use axum::Router;
use axum::routing::get;
use earnest_core::voucher::Fate;
use earnest_sdk::{NonceStore, Seller, price};
use tokio::net::TcpListener;

use crate::earnest::{Earnest, PATIENCE};
use crate::shop::{Shop, client, config};

const CHILD: &str = "EARNEST_TEST_SELLER_CHILD";

/// Kills and reaps the child also when the test fails.
struct Killed(Child);

impl Killed {
    fn kill(&mut self) {
        let _ended_before = self.0.kill();
        let _status = self.0.wait();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs only as a child of the test below: a seller whose handler says that it runs and then never
/// answers.
#[tokio::test]
async fn child_process_that_serves_until_it_is_killed() {
    let Ok(settings) = std::env::var(CHILD) else { return };
    let [earnest_url, path] = settings.split('\n').collect::<Vec<_>>().try_into().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut earnest = Earnest::start().await;
    earnest.url = earnest_url.to_owned();
    let nonces = NonceStore::open(path).unwrap();
    let seller = Seller::new(config(&earnest, &format!("http://{address}"), nonces)).unwrap();
    let handler = || async {
        say("serving");
        std::future::pending::<&'static str>().await
    };
    let served = get(|| async { "sunny" }).layer(price("$0.02"));
    let app = Router::new()
        .route("/never", get(handler).layer(price("$0.02")))
        .route("/weather", served)
        .layer(seller.layer());
    say(&format!("listening {address}"));
    axum::serve(listener, app).await.unwrap();
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{line}").unwrap();
    out.flush().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_a_crash_cut_off_is_reported_failed_after_the_restart() {
    let earnest = Earnest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nonces.db");
    let mut child = Killed(
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "restart::child_process_that_serves_until_it_is_killed"])
            .args(["--nocapture", "--test-threads=1"])
            .env(CHILD, format!("{}\n{}", earnest.url, path.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut heard = |what: &str| loop {
        let line = lines.next().expect("the child speaks").unwrap();
        if let Some(rest) = line.strip_prefix(what) {
            return rest.trim().to_owned();
        }
    };
    let address: std::net::SocketAddr = heard("listening").parse().unwrap();
    let origin = format!("http://{address}");
    let url = format!("{origin}/never");
    let claims = earnest.claims(&url, 20_000);
    let voucher = earnest.sign(&claims);
    let request = client().get(&url).header("authorization", format!("Tab {voucher}"));
    let lost = tokio::spawn(request.send());
    heard("serving");
    assert!(matches!(NonceStore::open(&path), Err(earnest_sdk::NonceError::InUse)));
    child.kill();
    assert!(lost.await.unwrap().is_err());
    earnest.books(|books| assert!(books.reports.is_empty()));

    // The same origin, so that the same voucher fits.
    let listener = TcpListener::bind(address).await.unwrap();
    let seller = Seller::new(config(&earnest, &origin, NonceStore::open(&path).unwrap())).unwrap();
    let shop = Shop::serve(listener, seller, |seller| {
        let app = Router::new().route("/never", get(|| async { "now" }).layer(price("$0.02")));
        app.layer(seller.layer())
    });
    earnest.until("released", |books| books.fates() == [Fate::Failed]).await;
    let reply = shop.get("/never", Some(&voucher)).await;
    assert_eq!(reply.is(), (409, "voucher_already_used".to_owned()));
    assert!(shop.seller.flush(PATIENCE).await);
    earnest.books(|books| assert_eq!((books.reports.len(), books.outstanding()), (1, 0)));
    // The crash ended as a failure, so the purchase is still to be had, once, by its next voucher.
    for status in [200, 409] {
        let next = earnest.sign(&earnest.reissued(&claims));
        assert_eq!(shop.get("/never", Some(&next)).await.status, status);
    }
    assert!(shop.seller.shutdown(PATIENCE).await);
    earnest.books(|books| {
        assert_eq!(books.fates(), [Fate::Failed, Fate::Redeemed]);
        assert_eq!(books.outstanding(), 20_000);
    });
}
