//! `earnest completions`: what a shell needs to complete commands.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Args, CommandFactory as _, ValueEnum};
use clap_complete::Shell;

use super::Cli;
use super::failure::{Ended, Failure};

/// Writes what a shell needs to complete commands.
///
/// bash: `source <(earnest completions bash)`. zsh: write it to `_earnest` in a folder of `$fpath`.
/// fish: write it to `~/.config/fish/completions/earnest.fish`.
#[derive(Debug, Args)]
pub struct Completions {
    /// Which shell.
    pub shell: Which,
}

/// The shells.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Which {
    /// bash.
    Bash,
    /// zsh.
    Zsh,
    /// fish.
    Fish,
}

/// Runs the command.
pub fn run(command: &Completions) -> Ended {
    let failed = |why| Failure::output(&why);
    std::io::stdout().write_all(&script(command.shell)).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Which) -> Vec<u8> {
    let shell = match shell {
        Which::Bash => Shell::Bash,
        Which::Zsh => Shell::Zsh,
        Which::Fish => Shell::Fish,
    };
    // Into memory first: the generator panics where it cannot write, and a reader may be gone.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "earnest", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(command: &clap::Command, all: &mut Vec<String>) {
        for sub in command.get_subcommands() {
            all.push(sub.get_name().to_owned());
            names(sub, all);
        }
    }

    #[test]
    fn every_command_is_completed_in_every_shell() {
        let mut all = Vec::new();
        names(&Cli::command(), &mut all);
        assert!(all.len() > 40, "{}", all.len());
        for shell in [Which::Bash, Which::Zsh, Which::Fish] {
            let script = String::from_utf8(script(shell)).unwrap();
            for name in &all {
                assert!(script.contains(name.as_str()), "{shell:?} does not complete {name}");
            }
        }
    }
}
