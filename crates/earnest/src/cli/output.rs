//! What a command writes: data to stdout, talk to stderr; tables for people, JSON for programs.
//!
//! Nothing is coloured and nothing is cut to a width, so that a pipe gets what a terminal gets.

use std::io::{self, IsTerminal as _, Write as _};

use clap::Args;
use earnest_core::money::Micros;
use earnest_core::problem::LocalCode;
use serde_json::Value;

use super::Style;
use super::failure::Failure;

/// How money commands ask; each of them has these.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Money {
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask.
    #[arg(long, short)]
    pub yes: bool,
}

impl Style {
    /// A line of data.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn data(&self, line: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|why| Failure::output(&why))
    }

    /// One object: as JSON, or in the words given.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn object(&self, value: &Value, words: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.json { self.data(&value.to_string()) } else { self.data(&words()) }
    }

    /// Several objects: one JSON object a line, or a table.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn rows<const N: usize>(
        &self,
        rows: &[Value],
        heads: [&str; N],
        cells: impl Fn(&Value) -> [String; N],
    ) -> Result<(), Failure> {
        if self.json {
            return rows.iter().try_for_each(|row| self.data(&row.to_string()));
        }
        if rows.is_empty() {
            self.talk("nothing here");
            return Ok(());
        }
        self.data(&table(heads, &rows.iter().map(cells).collect::<Vec<_>>()))
    }

    /// A change of state: one line, or the object as it is now; then what to do next.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn changed(&self, value: &Value, line: &str, next: &str) -> Result<(), Failure> {
        self.object(value, || line.to_owned())?;
        self.next(next);
        Ok(())
    }

    /// Something for people, unless they want none.
    pub fn talk(&self, line: &str) {
        if !self.quiet {
            // Talk that nobody can hear changes nothing.
            let _ = writeln!(io::stderr(), "{line}");
        }
    }

    /// The next command.
    pub fn next(&self, command: &str) {
        self.talk(&format!("next: {command}"));
    }

    /// Whether a person sits at both ends.
    pub fn is_interactive(&self) -> bool {
        !self.no_input && io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    /// Asks before money is committed.
    ///
    /// Without a person to ask, the command itself is the wish, as long as it only reserves or
    /// permits: what `captures` needs `--yes` then, since no later word takes it back.
    ///
    /// # Errors
    /// `usage` without `--yes` where it is needed; `declined` when the person says no.
    pub async fn consent(
        &self,
        money: Money,
        captures: bool,
        question: &str,
    ) -> Result<(), Failure> {
        if money.yes {
            return Ok(());
        }
        if !self.is_interactive() {
            if !captures {
                return Ok(());
            }
            let why = "this captures or gives up money, and nobody can be asked";
            return Err(Failure::usage(why).next("the same command with --yes, or --dry-run first"));
        }
        let mut err = io::stderr();
        let asked = write!(err, "{} [y/N] ", plain(question)).and_then(|()| err.flush());
        asked.map_err(|why| Failure::output(&why))?;
        let answer = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            io::stdin().read_line(&mut line).map(|_| line)
        });
        let answer = answer.await.ok().and_then(Result::ok).unwrap_or_default();
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(Failure::local(LocalCode::Declined, 1, "nothing was done")),
        }
    }
}

/// Text that others wrote, without what could move a terminal's cursor or hide a part of it.
pub fn plain(text: &str) -> String {
    let hides = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    text.chars().map(|c| if hides(c) { '\u{fffd}' } else { c }).collect()
}

/// Columns under their heads, two spaces apart. A head that begins with `>` is right-aligned.
fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> String {
    let heads_plain = heads.map(|head| head.trim_start_matches('>').to_owned());
    let rows: Vec<[String; N]> =
        rows.iter().map(|row| row.each_ref().map(|cell| plain(cell))).collect();
    let mut widths = heads_plain.each_ref().map(|head| head.chars().count());
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &[String; N]| {
        let mut text = String::new();
        for ((cell, width), head) in cells.iter().zip(widths).zip(heads) {
            let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
            if !text.is_empty() {
                text.push_str("  ");
            }
            match head.starts_with('>') {
                true => text.extend([pad.as_str(), cell]),
                false => text.extend([cell.as_str(), &pad]),
            }
        }
        text.trim_end().to_owned()
    };
    let lines = std::iter::once(line(&heads_plain)).chain(rows.iter().map(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// Names and values, one a line; what is empty is left out.
pub fn facts(facts: &[(&str, String)]) -> String {
    let there = || facts.iter().filter(|(_, value)| !value.is_empty());
    let width = there().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = there().map(|(name, value)| format!("{name:width$}  {}", plain(value)));
    lines.collect::<Vec<_>>().join("\n")
}

/// A member as text; empty where there is none.
pub fn text(row: &Value, name: &str) -> String {
    match row.get(name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// A member of micro-units as people read it; empty where there is none.
pub fn money(row: &Value, name: &str) -> String {
    row.get(name).and_then(Value::as_i64).map(dollars).unwrap_or_default()
}

/// Micro-units as people read them; below zero with a minus before the sign of the currency.
pub fn dollars(micros: i64) -> String {
    let amount = i64::try_from(micros.unsigned_abs()).ok().and_then(|size| Micros::new(size).ok());
    match amount {
        Some(amount) if micros < 0 => format!("\u{2212}{amount}"),
        Some(amount) => amount.to_string(),
        None => format!("{micros} micro-dollars"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn amounts_read_as_people_write_them() {
        assert_eq!(dollars(950_000), "$0.95");
        assert_eq!(dollars(-500), "\u{2212}$0.0005");
        assert_eq!(dollars(0), "$0.00");
        assert_eq!(money(&json!({"a": 20_000}), "a"), "$0.02");
        assert_eq!(money(&json!({"a": null}), "a"), "");
    }

    #[test]
    fn a_table_lines_up_and_shows_no_control_characters() {
        let rows = [["a\nb".to_owned(), "$1.00".to_owned()], ["c".to_owned(), "$10.00".to_owned()]];
        let text = table(["WHAT", ">AMOUNT"], &rows);
        assert_eq!(text, "WHAT  AMOUNT\na\u{fffd}b    $1.00\nc     $10.00");
    }
}
