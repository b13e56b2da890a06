//! `earnest mcp`: the MCP server for one agent on this machine, over stdin and stdout, and the block
//! that tells a client of it.

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use earnest_core::problem::LocalCode;
use rmcp::ServiceExt as _;
use serde_json::json;

use super::Style;
use super::client::{Client, Reach, Role};
use super::failure::{Ended, Failure};
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
    /// Prints the block that tells a client of this Earnest. It names where the key is, never the
    /// key.
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
            style.data(block(&config, client.base()).trim_end())?;
            style.talk(where_to(&config));
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn serve(client: &Client) -> Ended {
    let key = client.key(Role::Agent)?;
    let broken = |why: String| Failure::local(LocalCode::SetupFailed, 1, why);
    let door = Door::own_machine(client.base()).map_err(|why| broken(why.to_string()))?;
    let server = Server::of(Arc::new(door), Caller::new("self", &key));
    let running = server.serve(rmcp::transport::stdio()).await;
    let running = running.map_err(|why| broken(format!("no client: {why}")))?;
    running.waiting().await.map_err(|why| broken(why.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

/// Where the key is, as the block says it: a file, since a block of settings is no place for one.
const KEY_FILE: &str = "/path/to/agent.key";

fn block(config: &Config, base: &str) -> String {
    let endpoint = format!("{base}/mcp");
    match (config.client, config.http) {
        (McpClient::Codex, false) => format!(
            "[mcp_servers.earnest]\ncommand = \"earnest\"\nargs = [\"mcp\"]\nenv = {{ EARNEST_URL = \
             {}, EARNEST_AGENT_KEY_FILE = {} }}\n",
            json!(base),
            json!(key_file())
        ),
        (McpClient::Codex, true) => format!(
            "[mcp_servers.earnest]\nurl = {}\nbearer_token_env_var = \"EARNEST_AGENT_KEY\"\n",
            json!(endpoint)
        ),
        (client, false) => {
            let mut server = json!({
                "command": "earnest",
                "args": ["mcp"],
                "env": { "EARNEST_URL": base, "EARNEST_AGENT_KEY_FILE": key_file() },
            });
            if client == McpClient::Claude {
                set(&mut server, "type", "stdio");
            }
            servers(&server)
        }
        (client, true) => {
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

/// The file that the environment names already, or a place to fill in.
fn key_file() -> String {
    std::env::var("EARNEST_AGENT_KEY_FILE").unwrap_or_else(|_| KEY_FILE.to_owned())
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
        for client in [McpClient::Claude, McpClient::Codex, McpClient::Cursor] {
            for http in [false, true] {
                let block = block(&Config { client, http }, "https://earnest.example");
                match client {
                    McpClient::Codex => assert!(block.parse::<toml::Table>().is_ok(), "{block}"),
                    _ => assert!(
                        serde_json::from_str::<serde_json::Value>(&block).is_ok(),
                        "{block}"
                    ),
                }
                assert!(block.contains("https://earnest.example"), "{block}");
                assert_eq!(block.contains("https://earnest.example/mcp"), http, "{block}");
                assert!(!block.contains("ek_"), "{block}");
            }
        }
    }
}
