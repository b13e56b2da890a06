//! The address of a database: a secret where a password stands in it, so shown without.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::postgres::place_of_url;

/// The URL of a PostgreSQL database, password included. `Display` and `Debug` leave the password out.
#[derive(Clone, PartialEq, Eq)]
pub struct Url(String);

/// What stands where a password was.
const HIDDEN: &str = "[not shown]";

impl Url {
    /// Reads what `libpq` calls a connection URI: `postgres://user:password@host:port/database?…`.
    ///
    /// # Errors
    /// What is wrong with it, without the password.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme)) {
            return Err("it begins with postgres:// or postgresql://".to_owned());
        }
        place_of_url(text)?;
        Ok(Self(text.to_owned()))
    }

    /// One that is read, and refused, when it is used.
    pub(crate) fn unread(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// As it is, password included.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether a password stands in it.
    pub fn has_password(&self) -> bool {
        self.to_string() != self.0
    }

    /// The same address with this password in it.
    #[must_use]
    pub fn with_password(&self, password: &str) -> Self {
        let password = utf8_percent_encode(password, NON_ALPHANUMERIC);
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("postgres", &self.0));
        let (user, rest) = rest.split_once('@').unwrap_or(("", rest));
        let user = user.split(':').next().unwrap_or_default();
        Self(format!("{scheme}://{user}:{password}@{rest}"))
    }

    /// The same database with a schema of its own in front: what is made is made there.
    #[must_use]
    pub(crate) fn in_schema(&self, name: &str) -> Self {
        let option = format!("-csearch_path%3D{name}");
        let (base, query) = self.0.split_once('?').unwrap_or((&self.0, ""));
        let mut parts: Vec<Cow<'_, str>> =
            query.split('&').filter(|part| !part.is_empty()).map(Cow::Borrowed).collect();
        match parts.iter_mut().find(|part| part.starts_with("options=")) {
            Some(options) => *options = format!("{options}%20{option}").into(),
            None => parts.push(format!("options={option}").into()),
        }
        Self(format!("{base}?{}", parts.join("&")))
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("postgres", ""));
        write!(f, "{scheme}://")?;
        // Whatever stands before the first `@` is who and with what password, as the driver reads it.
        let rest = match rest.split_once('@') {
            Some((who, rest)) => {
                match who.split_once(':') {
                    Some((user, _)) => write!(f, "{user}:{HIDDEN}@")?,
                    None => write!(f, "{who}@")?,
                }
                rest
            }
            None => rest,
        };
        let Some((place, query)) = rest.split_once('?') else { return f.write_str(rest) };
        f.write_str(place)?;
        for (number, part) in query.split('&').enumerate() {
            f.write_str(if number == 0 { "?" } else { "&" })?;
            let name = part.split('=').next().unwrap_or_default();
            let secret = percent_decode_str(name).decode_utf8_lossy().contains("password");
            match secret {
                true => write!(f, "{name}={HIDDEN}")?,
                false => f.write_str(part)?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            ("postgres://a:b@h/d", "postgres://a:[not shown]@h/d"),
            ("postgres://a:b/c?d@h/d", "postgres://a:[not shown]@h/d"),
            ("postgres://a:b:c@h:1,i:2/d?x=y", "postgres://a:[not shown]@h:1,i:2/d?x=y"),
            (
                "postgresql://h/d?pass%77ord=b&sslmode=require",
                "postgresql://h/d?pass%77ord=[not shown]&sslmode=require",
            ),
            ("postgres://a@h/d", "postgres://a@h/d"),
            ("postgres://h", "postgres://h"),
        ] {
            let read = Url(url.to_owned());
            assert_eq!(read.to_string(), shown);
            assert_eq!(format!("{read:?}"), shown);
            assert_eq!(read.has_password(), url.contains('b'), "{url}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_without_showing_it() {
        for text in ["", "h/d", "host=h password=secret", "mysql://h", "postgres://a:secret@h:x/d"]
        {
            let why = Url::parse(text).unwrap_err();
            assert!(!why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn a_password_from_elsewhere_takes_its_place() {
        let with = |url: &str| Url::parse(url).unwrap().with_password("p@ss/w?rd%");
        assert_eq!(
            with("postgres://a@h/d?application_name=y").expose(),
            "postgres://a:p%40ss%2Fw%3Frd%25@h/d?application_name=y"
        );
        assert_eq!(with("postgres://a:old@h").expose(), "postgres://a:p%40ss%2Fw%3Frd%25@h");
        let config: tokio_postgres::Config = with("postgres://a@h/d").expose().parse().unwrap();
        assert_eq!(config.get_password(), Some(b"p@ss/w?rd%".as_slice()));
    }

    #[test]
    fn a_schema_joins_what_options_there_are() {
        let within = |url: &str| Url(url.to_owned()).in_schema("s").0;
        assert_eq!(within("postgres://h/d"), "postgres://h/d?options=-csearch_path%3Ds");
        let both = "postgres://h/d?options=-cgeqo%3Doff%20-csearch_path%3Ds&sslmode=disable";
        assert_eq!(within("postgres://h/d?options=-cgeqo%3Doff&sslmode=disable"), both);
    }
}
