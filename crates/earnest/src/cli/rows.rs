//! How much of a list is shown, and as what.

use clap::Args;

use super::Style;
use super::client::{Client, Role};
use super::failure::Failure;

/// How much of a list.
#[derive(Clone, Copy, Debug, Args)]
pub struct Paging {
    /// How many rows at most.
    #[arg(long, default_value_t = 50, value_name = "N")]
    pub limit: usize,
}

impl Paging {
    /// Says that the list goes on, where it does.
    pub fn say_more(self, style: &Style, more: bool) {
        if more {
            style.talk(&format!("there may be more than {}: raise --limit", self.limit));
        }
    }
}

/// How much of a list that is also given as CSV.
#[derive(Clone, Copy, Debug, Args)]
pub struct Sheet {
    /// How much.
    #[command(flatten)]
    pub paging: Paging,
    /// As CSV, safe to open in a spreadsheet.
    #[arg(long)]
    pub csv: bool,
}

impl Sheet {
    /// Writes the list as CSV.
    ///
    /// # Errors
    /// What Earnest answers.
    pub async fn write(
        self,
        client: &Client,
        style: &Style,
        role: Role,
        path: &str,
        query: &[(&'static str, String)],
    ) -> Result<(), Failure> {
        let (text, more) = client.csv(role, path, query, self.paging.limit).await?;
        if !text.is_empty() {
            style.data(text.trim_end_matches(['\r', '\n']))?;
        }
        self.paging.say_more(style, more);
        Ok(())
    }
}
