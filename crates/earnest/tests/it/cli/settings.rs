//! `earnest.toml.example` says what the program does.

use std::path::Path;

use earnest::config::{Data, File, Paypal, Server};
use earnest::front::{FrontConfig, FrontFile};
use earnest::limits::Limits;
use earnest::models::{ModelsFile, RoleFile};
use earnest::watch::{LogFormat, WatchFile};
use earnest_core::settings::Settings;

use super::{earnest, run};

fn example() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    std::fs::read_to_string(root.join("earnest.toml.example")).unwrap()
}

/// The file with every setting switched on: `#name = value` without its `#`.
fn switched_on(text: &str) -> String {
    let is_setting = |line: &str| {
        let name = line.split('=').next().unwrap_or_default().trim();
        line.contains('=')
            && !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
    };
    let lines = text.lines().map(|line| match line.strip_prefix('#') {
        Some(setting) if is_setting(setting) => setting,
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn copied_as_it_is_the_example_changes_nothing() {
    let file: File = toml::from_str(&example()).unwrap();
    assert_eq!(toml::to_string(&file).unwrap(), toml::to_string(&File::default()).unwrap());
}

#[test]
fn the_example_names_every_setting_with_its_default() {
    let text = example();
    let file: File = toml::from_str(&switched_on(&text)).unwrap();
    // Taken apart by name, so that a new setting does not compile until it is explained here.
    let File { server, data, paypal, front, watch, models, rules, limits } = file;
    let WatchFile { log, metrics_listen } = watch;
    assert_eq!(log, Some(LogFormat::default()));
    assert!(metrics_listen.is_some_and(|address| address.ip().is_loopback()));
    let Server { listen, public_url } = server;
    let Data { dir, key_file, database, database_password_file } = data;
    let database = earnest_store::Url::parse(&database.unwrap()).unwrap();
    assert!(!database.has_password() && database_password_file.is_some());
    let Paypal {
        mode,
        confirm_live,
        client_id,
        secret_file,
        simulator_url,
        webhook_id,
        webhook_check,
        payee,
    } = paypal;
    assert_eq!(listen.unwrap().to_string(), "127.0.0.1:4020");
    assert_eq!(dir.unwrap(), Path::new("earnest-data"));
    assert_eq!(key_file.unwrap(), Path::new("earnest-data/seal.key"));
    assert_eq!(mode.unwrap(), earnest_paypal::Mode::Simulated);
    assert_eq!(confirm_live.as_deref(), Some("real money"));
    assert_eq!(webhook_check.unwrap(), earnest::app::WebhookCheck::Local);
    let ModelsFile { daily_cap_micros, patience_seconds, advisor } = models;
    let RoleFile { base_url, model, key_file, family, reserve_micros, ask_seconds, price } =
        advisor;
    let unset = earnest::models::Settings::default();
    assert_eq!(daily_cap_micros, Some(unset.daily_cap));
    assert_eq!(patience_seconds, Some(unset.patience.total.as_secs()));
    assert_eq!((reserve_micros.unwrap().get(), ask_seconds), (10_000, Some(900)));
    assert!(price.is_some() && key_file.is_some());
    for said in [base_url, model, family] {
        assert!(said.is_some_and(|text| !text.is_empty()));
    }
    for said in [public_url, client_id, simulator_url, webhook_id, payee] {
        assert!(said.is_some_and(|text| !text.is_empty()));
    }
    assert!(secret_file.is_some());
    let FrontFile {
        trusted_proxies,
        forwarded_header,
        address_per_minute,
        credential_per_minute,
        uncounted,
    } = front;
    let unset = FrontConfig::from(FrontFile::default());
    assert_eq!(trusted_proxies.unwrap(), unset.hops.trusted);
    assert_eq!(forwarded_header.unwrap(), unset.hops.header);
    assert_eq!(address_per_minute.unwrap(), unset.address_per_minute);
    assert_eq!(credential_per_minute.unwrap(), unset.credential_per_minute);
    assert_eq!(uncounted.unwrap(), unset.uncounted);

    assert_eq!(limits, toml::Table::try_from(Limits::default()).unwrap());
    let defaults = toml::Table::try_from(Settings::default()).unwrap();
    assert_eq!(rules, defaults, "the defaults of sandbox and live");
    let mut simulated = rules;
    let differ = text.lines().filter_map(|line| line.split_once("Simulated: `"));
    for (_, setting) in differ {
        let setting = setting.split('`').next().unwrap();
        simulated.extend(setting.parse::<toml::Table>().unwrap());
    }
    assert_eq!(simulated, toml::Table::try_from(Settings::simulated()).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_setting_says_where_it_comes_from() {
    let folder = tempfile::tempdir().unwrap();
    let show = |words: &[&str]| {
        let mut command = earnest(folder.path());
        command.args(["config", "show", "--json"]).args(words);
        command.env("EARNEST_PAYPAL_SECRET", "hunter2");
        run(command)
    };
    let file = folder.path().join("earnest.toml");
    std::fs::write(&file, "[rules]\nidle_seconds = 60\nfee = { rate_ppm = 1 }\n").unwrap();
    let user = folder.path().join(".config/earnest");
    std::fs::create_dir_all(&user).unwrap();
    let weaker = "[server]\nlisten = \"127.0.0.1:1\"\n[rules]\nidle_seconds = 5\n";
    std::fs::write(user.join("earnest.toml"), weaker).unwrap();
    let shown = show(&["--origin", "--data", "elsewhere"]).await.expect(0);
    assert!(!shown.out.contains("hunter2"));
    let rows = shown.rows();
    let of = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        let text = |name: &str| row[name].as_str().unwrap().to_owned();
        (text("value"), text("origin"))
    };
    let pair = |value: &str, origin: &str| (value.to_owned(), origin.to_owned());
    assert_eq!(of("rules.idle_seconds"), pair("60", "earnest.toml"));
    assert_eq!(of("rules.fee.rate_ppm"), pair("1", "earnest.toml"));
    assert_eq!(of("rules.fee.fixed_micros"), pair("490000", "default of simulated mode"));
    assert_eq!(of("limits.connections"), pair("800", "default"));
    assert!(of("server.listen").1.ends_with(".config/earnest/earnest.toml"));
    assert_eq!(of("data.dir"), pair("elsewhere", "flag --data"));
    assert_eq!(of("paypal.secret"), pair("[not shown]", "EARNEST_PAYPAL_SECRET"));
    assert_eq!(of("watch.log"), pair("text", "default"));
    // From the environment, and a flag over it.
    let mut command = earnest(folder.path());
    command.args(["config", "show", "--json", "--origin", "--public-url", "https://flag.example"]);
    command.env("EARNEST_PUBLIC_URL", "https://env.example").env("EARNEST_DATA", "there");
    command.env("EARNEST_LOG_FORMAT", "json");
    let rows = run(command).await.expect(0).rows();
    let of = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        let text = |name: &str| row[name].as_str().unwrap().to_owned();
        (text("value"), text("origin"))
    };
    assert_eq!(of("server.public_url"), pair("https://flag.example", "flag --public-url"));
    assert_eq!(of("data.dir"), pair("there", "EARNEST_DATA"));
    assert_eq!(of("watch.log"), pair("json", "EARNEST_LOG_FORMAT"));
    assert_eq!(
        show(&["--origin", "--log", "json"])
            .await
            .expect(0)
            .rows()
            .iter()
            .find(|row| row["name"] == "watch.log")
            .unwrap()["origin"],
        "flag --log"
    );
    std::fs::write(&file, "[server]\nlisten_to = \"x\"\n").unwrap();
    assert_eq!(show(&[]).await.expect(2).refusal(), "usage");
    // What makes no sense is named with its table.
    for (wrong, named) in [
        ("[limits]\nconnections = 0\n", "[limits]: `connections` is not between 1 and 1000000"),
        ("[limits]\nhead_seconds = \"x\"\n", "[limits]: `head_seconds`: "),
        ("[limits]\nhead = 1\n", "[limits]: `head`: "),
        ("[paypal]\npayee = \"X\"\n", "[paypal]: `payee` cannot be set"),
        ("[rules]\nwebhook_endpoints = 0\n", "[rules]: `webhook_endpoints` is not between 1"),
        ("[rules]\nsign_in_links = -1\n", "[rules]: `sign_in_links`: "),
    ] {
        std::fs::write(&file, wrong).unwrap();
        let answer = show(&[]).await.expect(2);
        assert!(answer.err.contains(named), "{}", answer.err);
    }
}

/// A reason stands above every setting.
#[test]
fn every_setting_of_the_example_is_explained() {
    let text = example();
    let lines: Vec<&str> = text.lines().collect();
    let mut settings = 0;
    for (place, line) in lines.iter().enumerate() {
        let on = switched_on(line);
        if on != *line {
            settings += 1;
            let above = lines[..place].iter().rev().find(|above| switched_on(above) == **above);
            assert!(above.is_some_and(|above| above.starts_with("# ")), "{line}");
        }
    }
    assert!(settings > 25, "{settings}");
}
