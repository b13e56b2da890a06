//! `earnest mcp`: the MCP server for one agent on this machine, over stdin and stdout, and the block
//! that tells a client of it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use earnest_core::problem::LocalCode;
use rmcp::ServiceExt as _;
use serde_json::json;

use super::Style;
use super::client::{Client, Reach, Role};
use super::failure::{Ended, Failure};
use crate::config::read_secret;
use crate::mcp::{Caller, Door, Server};

/// Speaks MCP over stdin and stdout for the agent whose key is at hand (EARNEST_AGENT_KEY_FILE or
/// EARNEST_AGENT_KEY). What is bought is fetched from this machine.
#[derive(Debug, Args)]
pub struct Mcp {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// What else to do.
    #[command(subcommand)]
    pub command: Option<McpCommand>,
}

/// What else to do about MCP.
#[derive(Debug, Subcommand)]
pub enum McpCommand {
    /// Prints the block that tells a client of this Earnest, to be pasted as it is. It names where
    /// the key is, never the key.
    Config(Config),
}

/// `earnest mcp config`.
#[derive(Debug, Args)]
pub struct Config {
    /// For which client.
    #[arg(long, value_name = "CLIENT")]
    pub client: McpClient,
    /// Over HTTP instead of as a program on the agent's machine: Earnest fetches what is bought.
    #[arg(long)]
    pub http: bool,
    /// The file that holds the agent's key; `earnest agent create NAME --key-file FILE` makes one.
    /// Not needed with --http.
    #[arg(long, env = "EARNEST_AGENT_KEY_FILE", value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

/// A client whose configuration is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum McpClient {
    /// Claude Code and Claude Desktop: `mcpServers` in JSON.
    Claude,
    /// Codex: `config.toml`.
    Codex,
    /// Cursor: `mcp.json`.
    Cursor,
}

/// Runs the command.
pub async fn run(command: Mcp, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    match command.command {
        None => serve(&client).await,
        Some(McpCommand::Config(config)) => {
            let started = match config.http {
                true => None,
                false => Some(Started::here(config.key_file.as_deref())?),
            };
            style.data(block(config.client, client.base(), started.as_ref()).trim_end())?;
            style.talk(where_to(&config));
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn serve(client: &Client) -> Ended {
    let key = client.key(Role::Agent)?;
    let broken = |why: String| Failure::local(LocalCode::SetupFailed, 1, why);
    let door = Door::own_machine(client.base()).map_err(|why| broken(why.to_string()))?;
    let server = Server::of(Arc::new(door), Caller::new("self", "self", &key));
    let running = server.serve(rmcp::transport::stdio()).await;
    let running = running.map_err(|why| broken(format!("no client: {why}")))?;
    running.waiting().await.map_err(|why| broken(why.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

/// What a client starts, and where that finds its key. Clients start it wherever they run, with a
/// path of their own: so both are absolute.
struct Started {
    program: String,
    key_file: String,
}

impl Started {
    /// This very program, with the key in that file: a block of settings is no place for a key.
    ///
    /// # Errors
    /// `usage` without a file, or where it holds no agent's key; the file, when it cannot be read.
    fn here(key_file: Option<&Path>) -> Result<Self, Failure> {
        let named = key_file.ok_or_else(|| {
            Failure::usage("name the file that holds the agent's key").next(
                "--key-file FILE, or EARNEST_AGENT_KEY_FILE; earnest agent create NAME --key-file \
                 FILE makes one",
            )
        })?;
        let key = read_secret(named).map_err(|why| Failure::file(named, why))?;
        if !key.expose().starts_with("ek_agent_") {
            let why =
                format!("`{}` does not hold the key of an agent, ek_agent_…", named.display());
            return Err(Failure::usage(why));
        }
        let key_file = std::fs::canonicalize(named).map_err(|why| Failure::file(named, why))?;
        let program = std::env::current_exe();
        let program = program.map_err(|why| Failure::file(Path::new("earnest"), why))?;
        Ok(Self { program: text(&program)?, key_file: text(&key_file)? })
    }
}

/// A path as settings are written: in Unicode.
fn text(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Failure::file(path, "a path that is not Unicode cannot stand in settings"))
}

/// The block for a client that starts a program, or for one that goes over HTTP.
fn block(client: McpClient, base: &str, started: Option<&Started>) -> String {
    let endpoint = format!("{base}/mcp");
    let quoted = |text: &str| toml::Value::from(text).to_string();
    match (client, started) {
        (McpClient::Codex, Some(Started { program, key_file })) => format!(
            "[mcp_servers.earnest]\ncommand = {}\nargs = [\"mcp\"]\nenv = {{ EARNEST_URL = {}, \
             EARNEST_AGENT_KEY_FILE = {} }}\n",
            quoted(program),
            quoted(base),
            quoted(key_file)
        ),
        (McpClient::Codex, None) => format!(
            "[mcp_servers.earnest]\nurl = {}\nbearer_token_env_var = \"EARNEST_AGENT_KEY\"\n",
            quoted(&endpoint)
        ),
        (client, Some(Started { program, key_file })) => {
            let mut server = json!({
                "command": program,
                "args": ["mcp"],
                "env": { "EARNEST_URL": base, "EARNEST_AGENT_KEY_FILE": key_file },
            });
            if client == McpClient::Claude {
                set(&mut server, "type", "stdio");
            }
            servers(&server)
        }
        (client, None) => {
            let key = match client {
                McpClient::Cursor => "Bearer ${env:EARNEST_AGENT_KEY}",
                McpClient::Claude | McpClient::Codex => "Bearer ${EARNEST_AGENT_KEY}",
            };
            let mut server = json!({ "url": endpoint, "headers": { "Authorization": key } });
            if client == McpClient::Claude {
                set(&mut server, "type", "http");
            }
            servers(&server)
        }
    }
}

fn servers(server: &serde_json::Value) -> String {
    // Written by hand nowhere, so that it always parses.
    let block = json!({ "mcpServers": { "earnest": server } });
    serde_json::to_string_pretty(&block).unwrap_or_default()
}

fn set(server: &mut serde_json::Value, name: &str, value: &str) {
    if let serde_json::Value::Object(members) = server {
        members.insert(name.to_owned(), value.into());
    }
}

fn where_to(config: &Config) -> &'static str {
    match (config.client, config.http) {
        (McpClient::Claude, false) => {
            "put it into .mcp.json of the project (Claude Code) or claude_desktop_config.json"
        }
        (McpClient::Claude, true) => {
            "put it into .mcp.json of the project, and the key into EARNEST_AGENT_KEY of the client's \
             environment"
        }
        (McpClient::Codex, false) => "put it into ~/.codex/config.toml",
        (McpClient::Codex, true) => {
            "put it into ~/.codex/config.toml, and the key into EARNEST_AGENT_KEY of the client's \
             environment"
        }
        (McpClient::Cursor, false) => "put it into .cursor/mcp.json of the project",
        (McpClient::Cursor, true) => {
            "put it into .cursor/mcp.json of the project, and the key into EARNEST_AGENT_KEY of the \
             client's environment"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_parses_and_holds_no_key() {
        let base = "https://earnest.example";
        let odd = Started {
            program: "/opt/a \"b\" \\ c/earnest".to_owned(),
            key_file: "/srv/ä/k.key".to_owned(),
        };
        for client in [McpClient::Claude, McpClient::Codex, McpClient::Cursor] {
            for started in [Some(&odd), None] {
                let (block, http) = (block(client, base, started), started.is_none());
                let read: serde_json::Value = match client {
                    McpClient::Codex => {
                        serde_json::to_value(block.parse::<toml::Table>().unwrap()).unwrap()
                    }
                    _ => serde_json::from_str(&block).unwrap(),
                };
                let servers = if client == McpClient::Codex { "mcp_servers" } else { "mcpServers" };
                let server = &read[servers]["earnest"];
                if let Some(odd) = started {
                    assert_eq!(server["command"], *odd.program, "{block}");
                    assert_eq!(server["env"]["EARNEST_AGENT_KEY_FILE"], *odd.key_file, "{block}");
                }
                assert!(block.contains("https://earnest.example"), "{block}");
                assert_eq!(block.contains("https://earnest.example/mcp"), http, "{block}");
                assert!(!block.contains("ek_"), "{block}");
            }
        }
    }
}
