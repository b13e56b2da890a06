//! Whose address a request counts for.
//!
//! A header that anybody can send says nothing. Behind proxies that the operator named, the last
//! hop that none of them is asked: each appends the address it saw, so the list is read from its
//! right end, and what stands further left was written by whoever asks.

use std::net::{IpAddr, Ipv6Addr};

use earnest_sdk::sell::network;
use http::{HeaderMap, HeaderName, header};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize};

use super::ForwardedHeader;

/// The most hops that are looked at; nobody has so many proxies.
const MOST_HOPS: usize = 32;

/// Addresses and networks (CIDR).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Networks(Vec<IpNet>);

impl Networks {
    /// This machine.
    pub fn loopback() -> Self {
        let six = IpNet::from(IpAddr::V6(Ipv6Addr::LOCALHOST));
        let four = IpNet::new_assert(IpAddr::from([127, 0, 0, 0]), 8);
        Self(vec![four, six])
    }

    /// Networks from their texts.
    ///
    /// # Errors
    /// The text that is neither an address nor a network.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        texts.into_iter().map(network).collect::<Result<_, _>>().map(Self)
    }

    /// Whether an address is in one of them; one that IPv6 wraps counts as the IPv4 address it is.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Adds networks.
    pub fn add(&mut self, more: &Self) {
        self.0.extend(&more.0);
    }

    /// Adds addresses.
    pub(super) fn extend(&mut self, more: impl IntoIterator<Item = IpAddr>) {
        self.0.extend(more.into_iter().map(|address| IpNet::from(address.to_canonical())));
    }
}

impl<'de> Deserialize<'de> for Networks {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        Self::parse(texts.iter().map(String::as_str)).map_err(serde::de::Error::custom)
    }
}

/// Who is in front of this Earnest, and where it says who asks.
#[derive(Clone, Debug, Default)]
pub struct Hops {
    /// The proxies that are believed.
    pub trusted: Networks,
    /// Where they say it.
    pub header: ForwardedHeader,
}

impl Hops {
    /// The address that a request counts for.
    ///
    /// INVARIANT: what_no_trusted_proxy_wrote_names_nobody
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.to_canonical();
        if !self.trusted.contains(client) {
            return client;
        }
        // What cannot be read ends the search at whoever passed it on.
        for hop in self.said(headers).rev().take(MOST_HOPS) {
            let Some(hop) = hop else { break };
            client = hop;
            if !self.trusted.contains(client) {
                break;
            }
        }
        client
    }

    fn said<'a>(
        &self,
        headers: &'a HeaderMap,
    ) -> Box<dyn DoubleEndedIterator<Item = Option<IpAddr>> + 'a> {
        match self.header {
            ForwardedHeader::XForwardedFor => {
                let name = HeaderName::from_static("x-forwarded-for");
                let lines = headers.get_all(name).into_iter();
                Box::new(lines.flat_map(|line| {
                    // A line that is no text is one hop that cannot be read.
                    line.to_str().unwrap_or("?").split(',').map(read_hop)
                }))
            }
            ForwardedHeader::Forwarded => {
                let lines = headers.get_all(header::FORWARDED).into_iter();
                Box::new(lines.flat_map(|line| {
                    elements(line.to_str().unwrap_or("?")).into_iter().map(forwarded_for)
                }))
            }
        }
    }
}

/// The elements of `Forwarded`, at the commas outside of quotes.
fn elements(text: &str) -> Vec<&str> {
    let mut quoted = false;
    text.split(|c| {
        quoted ^= c == '"';
        c == ',' && !quoted
    })
    .collect()
}

/// The one `for` of an element.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut found = None;
    for pair in element.split(';') {
        let (name, value) = pair.split_once('=')?;
        if name.trim().eq_ignore_ascii_case("for") {
            if found.is_some() {
                return None;
            }
            let value = value.trim();
            let bare = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
            found = Some(bare.unwrap_or(value));
        }
    }
    read_hop(found?)
}

/// An address, in brackets or bare, with a port or without.
fn read_hop(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let address = match text.strip_prefix('[') {
        Some(rest) => {
            let (six, port) = rest.split_once(']')?;
            let fine = port.is_empty() || is_port(port.strip_prefix(':')?);
            fine.then(|| six.parse::<Ipv6Addr>().ok().map(IpAddr::V6)).flatten()?
        }
        None => match text.parse() {
            Ok(address) => address,
            Err(_) => {
                let (four, port) = text.split_once(':')?;
                is_port(port).then(|| four.parse().ok().map(IpAddr::V4)).flatten()?
            }
        },
    };
    Some(address.to_canonical())
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// One household has as many IPv6 addresses as it likes, in one network of 64 bits.
pub fn household(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => {
            let [a, b, c, d, ..] = six.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        four => four,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hops(header: ForwardedHeader) -> Hops {
        let trusted = Networks::parse(["10.0.0.0/8", "2001:db8:ffff::/48", "127.0.0.1"]).unwrap();
        Hops { trusted, header }
    }

    #[track_caller]
    fn check(header: ForwardedHeader, peer: &str, lines: &[(&str, &str)], expect: &str) {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let client = hops(header).client(peer.parse().unwrap(), &headers);
        assert_eq!(client.to_string(), expect, "{peer} {lines:?}");
    }

    #[test]
    fn what_no_trusted_proxy_wrote_names_nobody() {
        let check = |peer, lines: &[&str], expect| {
            let lines: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", *line)).collect();
            check(ForwardedHeader::XForwardedFor, peer, &lines, expect);
        };
        // Nobody in front: nothing is believed.
        check("192.0.2.1", &["203.0.113.7"], "192.0.2.1");
        check("192.0.2.1", &["10.0.0.1"], "192.0.2.1");
        check("::ffff:192.0.2.1", &["203.0.113.7"], "192.0.2.1");
        // The right-most hop that is no proxy, over several proxies and lines.
        check("10.0.0.1", &["198.51.100.9, 203.0.113.7"], "203.0.113.7");
        check("10.0.0.1", &["198.51.100.9", "203.0.113.7"], "203.0.113.7");
        check("10.0.0.1", &["198.51.100.9, 203.0.113.7, 10.2.3.4"], "203.0.113.7");
        check(
            "10.0.0.1",
            &["198.51.100.9, 203.0.113.7,10.2.3.4", "2001:db8:ffff::5"],
            "203.0.113.7",
        );
        check("::ffff:10.0.0.1", &["::ffff:203.0.113.7"], "203.0.113.7");
        check("10.0.0.1", &["203.0.113.7:4711"], "203.0.113.7");
        check("10.0.0.1", &["[2001:db8::7]:4711"], "2001:db8::7");
        check("10.0.0.1", &["2001:db8::7"], "2001:db8::7");
        // Nothing said, or nothing that can be read where it counts: the proxy itself.
        check("10.0.0.1", &[], "10.0.0.1");
        for odd in [
            "",
            "unknown",
            "203.0.113.7,",
            "203.0.113.7 x",
            "0xcb007107",
            "3405803783",
            "203.0.113.7:",
            "203.0.113.7:99999",
            "203.0.113.7:+1",
            "[2001:db8::7",
            "[203.0.113.7]",
            "203.0.113.007.1",
            "\"203.0.113.7\"",
            "[2001:db8::7]x",
            "ü",
            "203.0.113.7;x",
        ] {
            check("10.0.0.1", &[odd], "10.0.0.1");
            check("10.0.0.1", &["203.0.113.7", odd], "10.0.0.1");
        }
        // What stands left of what cannot be read was passed on by the last that can.
        check("10.0.0.1", &["203.0.113.7, unknown, 10.0.0.9"], "10.0.0.9");
        // Only proxies: the first of them.
        check("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3");
        // More hops than anybody has.
        let many = vec!["10.0.0.2"; 1_000].join(",");
        check("10.0.0.1", &[&format!("203.0.113.7,{many}")], "10.0.0.2");
    }

    #[test]
    fn only_the_configured_header_is_read() {
        let x = ("x-forwarded-for", "203.0.113.7");
        let forwarded = ("forwarded", "for=198.51.100.9");
        check(ForwardedHeader::XForwardedFor, "10.0.0.1", &[x, forwarded], "203.0.113.7");
        check(ForwardedHeader::Forwarded, "10.0.0.1", &[x, forwarded], "198.51.100.9");
        for other in ["x-real-ip", "true-client-ip", "x-client-ip", "x_forwarded_for", "via"] {
            check(
                ForwardedHeader::XForwardedFor,
                "10.0.0.1",
                &[(other, "203.0.113.7")],
                "10.0.0.1",
            );
        }
        for (value, expect) in [
            ("for=192.0.2.9;proto=https, For=\"[2001:db8::7]:4711\";by=10.0.0.1", "2001:db8::7"),
            ("for=\"203.0.113.7:80\"", "203.0.113.7"),
            ("for=203.0.113.7;host=\"a,for=192.0.2.1\"", "203.0.113.7"),
            ("for=192.0.2.9, for=203.0.113.7 , for=10.0.0.9", "203.0.113.7"),
            ("for=203.0.113.7, for=_hidden", "10.0.0.1"),
            ("for=203.0.113.7, proto=https", "10.0.0.1"),
            ("for=203.0.113.7;for=192.0.2.1", "10.0.0.1"),
            ("203.0.113.7", "10.0.0.1"),
        ] {
            check(ForwardedHeader::Forwarded, "10.0.0.1", &[("forwarded", value)], expect);
        }
    }

    #[test]
    fn networks_are_read_or_refused() {
        let networks = Networks::parse(["192.0.2.77/24", "::1"]).unwrap();
        assert!(networks.contains("192.0.2.1".parse().unwrap()));
        assert!(networks.contains("::1".parse().unwrap()));
        assert!(!networks.contains("192.0.3.1".parse().unwrap()));
        for odd in ["", "localhost", "192.0.2.0/33", "192.0.2", "*", "192.0.2.0/"] {
            assert!(Networks::parse([odd]).is_err(), "{odd}");
        }
    }
}
