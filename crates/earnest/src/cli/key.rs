//! Showing a new key once: on stdout, or in a file that only its user can read.

use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use super::failure::Failure;
use super::output::text;

/// Where a new key goes.
#[derive(Clone, Debug, Default, Args)]
pub struct KeyTo {
    /// Write the key into this new file, readable by nobody else, instead of stdout.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

/// A place that is ready for a key before the key is made, so that a key shown once is not lost.
pub struct Ready(Option<(PathBuf, std::fs::File)>);

impl KeyTo {
    /// Makes the place ready.
    ///
    /// # Errors
    /// When the file exists already or cannot be made.
    pub fn ready(&self) -> Result<Ready, Failure> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let Some(path) = &self.key_file else { return Ok(Ready(None)) };
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|why| Failure::file(path, why))?;
        Ok(Ready(Some((path.clone(), file))))
    }
}

impl Ready {
    /// Puts the key of an answer where it belongs; gives what stands for it on stdout. The answer
    /// itself no longer holds a key that went into a file.
    ///
    /// # Errors
    /// When the file cannot be written; the key is lost then, and has to be made anew.
    pub fn put(self, made: &mut Value) -> Result<String, Failure> {
        let key = text(made, "key");
        let Some((path, mut file)) = self.0 else { return Ok(key) };
        let written = writeln!(file, "{key}").and_then(|()| file.sync_all());
        written.map_err(|why| Failure::file(&path, why).next("make another key"))?;
        if let Value::Object(members) = made {
            members.remove("key");
            members.insert("key_file".to_owned(), path.display().to_string().into());
        }
        Ok(path.display().to_string())
    }

    /// Gives up: nothing was made, so no empty file stays behind.
    pub fn cancel(self) {
        if let Some((path, _)) = self.0 {
            // An empty file that stays is only untidy.
            let _ = std::fs::remove_file(path);
        }
    }
}
