//! How PayPal writes the small things that recur in every answer: amounts, links, times.
//!
//! Reading is lenient in what we do not use and strict in what money depends on: an amount that
//! cannot be read makes the whole answer unreadable, an unknown status or time does not.

use earnest_core::money::Micros;
use earnest_core::time::Timestamp;
use serde::{Deserialize, Deserializer};

use crate::money::{self, CurrencyCode};

/// `{"currency_code":"USD","value":"4.50"}`.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Money {
    #[serde(rename = "currency_code")]
    pub(crate) currency: CurrencyCode,
    #[serde(rename = "value", deserialize_with = "signed")]
    pub(crate) micros: i64,
}

impl Money {
    /// The amount, if it is not negative.
    pub(crate) fn amount(self) -> Option<Micros> {
        Micros::new(self.micros).ok()
    }
}

fn signed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
    money::parse_value(&text).map_err(serde::de::Error::custom)
}

/// `{"href":…,"rel":…,"method":…}`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Link {
    #[serde(default)]
    pub(crate) href: String,
    #[serde(default)]
    pub(crate) rel: String,
}

/// The address under the first of these relations that is present.
pub(crate) fn link(links: &[Link], rels: &[&str]) -> Option<String> {
    rels.iter()
        .find_map(|rel| links.iter().find(|link| link.rel == *rel))
        .map(|link| link.href.clone())
}

/// The last segment of the path of the `up` link: the resource that this one belongs to.
pub(crate) fn up_id(links: &[Link], collection: &str) -> Option<String> {
    let parents = links.iter().filter(|link| link.rel == "up");
    parents.filter_map(|link| link.href.rsplit_once('/')).find_map(|(parent, id)| {
        (parent.ends_with(collection) && !id.is_empty()).then(|| id.to_owned())
    })
}

/// RFC 3339, with `Z`, `+00:00`, or the `+0000` that PayPal's reports print.
pub(crate) fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// A time that nothing depends on: unreadable is absent.
pub(crate) fn time<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Timestamp>, D::Error> {
    let text = Option::<std::borrow::Cow<'de, str>>::deserialize(d)?;
    Ok(text.as_deref().and_then(parse_time))
}

/// An amount that nothing depends on: unreadable is absent.
pub(crate) fn lenient<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Money>, D::Error> {
    let value = serde_json::Value::deserialize(d)?;
    Ok(Money::deserialize(&value).ok())
}

/// Declares a status as PayPal writes it, with room for words it adds later.
macro_rules! statuses {
    ($(#[$doc:meta])* $name:ident { $($(#[$item:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$item])* $variant,)*
            /// A word that was not known when this was written.
            Other(String),
        }

        impl $name {
            /// The word PayPal uses.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Other(text) => text,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                Ok(match &*text {
                    $($text => Self::$variant,)*
                    _ => Self::Other(text.into_owned()),
                })
            }
        }
    };
}
pub(crate) use statuses;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offset_that_paypal_prints_is_the_same_instant() {
        let expect = parse_time("2026-11-30T09:00:00Z").unwrap();
        for text in [
            "2026-11-30T09:00:00+00:00",
            "2026-11-30T09:00:00+0000",
            "2026-11-30T09:00:00.000Z",
            "2026-11-30T02:00:00-0700",
            "2026-11-30T02:00:00-07:00",
        ] {
            assert_eq!(parse_time(text), Some(expect), "{text}");
        }
        assert_eq!(parse_time("yesterday"), None);
        assert_eq!(parse_time("2026-11-30T09:00:00"), None);
    }

    #[test]
    fn the_parent_is_read_from_the_up_link_of_its_kind() {
        let links: Vec<Link> = serde_json::from_str(
            r#"[{"href":"https://x/v2/checkout/orders/O1","rel":"up"},
                {"href":"https://x/v2/payments/captures/C1","rel":"up"}]"#,
        )
        .unwrap();
        assert_eq!(up_id(&links, "/captures").as_deref(), Some("C1"));
        assert_eq!(up_id(&links, "/authorizations"), None);
    }
}
