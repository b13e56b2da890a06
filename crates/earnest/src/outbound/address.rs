//! Which addresses are somebody's on the public internet.
//!
//! Hosts are judged as numbers, never as text: the URL parser has already turned `0x7f.1`, `127.1`
//! and `2130706433` into the address they mean. Names that only ever mean this machine or its
//! network are judged as names too, since a resolver may answer them with anything.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

/// Whether an address can be called: not private, loopback, link-local, shared (CGNAT), multicast,
/// reserved, for documentation or benchmarks, nor any of these wrapped in IPv6 (mapped, compatible,
/// NAT64, 6to4, Teredo).
///
/// ```
/// use earnest::outbound::is_public;
/// assert!(is_public("93.184.216.34".parse().unwrap()));
/// assert!(!is_public("169.254.169.254".parse().unwrap()));
/// assert!(!is_public("64:ff9b::7f00:1".parse().unwrap()));
/// ```
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    // The special-purpose registry of IANA (RFC 6890 and what was added since).
    let special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && (c == 0 || c == 2))
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (b == 18 || b == 19))
        || (a == 198 && b == 51 && c == 100)
        || (a == 203 && b == 0 && c == 113);
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, _, _, _, g, h] = address.segments();
    let embedded = |high: u16, low: u16| {
        let [[w, x], [y, z]] = [high.to_be_bytes(), low.to_be_bytes()];
        is_public_v4(Ipv4Addr::new(w, x, y, z))
    };
    if let Some(mapped) = address.to_ipv4_mapped() {
        return is_public_v4(mapped);
    }
    match (a, b) {
        // NAT64 leads wherever the network's translator says.
        (0x64, 0xff9b) => false,
        // 6to4.
        (0x2002, high) => embedded(high, c),
        // Teredo, ORCHID, documentation.
        (0x2001, 0 | 0x10..=0x1f | 0x20..=0x2f | 0xdb8) => false,
        (0x3fff, 0..=0x0fff) => false,
        // Compatible addresses, `::` and `::1` among them.
        (0, 0) => !address.is_loopback() && !address.is_unspecified() && embedded(g, h),
        _ => (a & 0xe000) == 0x2000,
    }
}

/// Whether a name can only mean this machine or its own network.
fn is_local_name(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let ends = [".localhost", ".local", ".internal", ".home.arpa", ".lan", ".onion"];
    name == "localhost" || !name.contains('.') || ends.iter().any(|end| name.ends_with(end))
}

/// Whether a URL's host may be called, as far as its text tells; what a name resolves to is judged
/// when it is resolved.
pub(super) fn may_name(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => is_public_v4(address),
        Some(Host::Ipv6(address)) => is_public_v6(address),
        Some(Host::Domain(name)) => !is_local_name(name),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_nobodys_are_refused_in_every_wrapping() {
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.127.255.255",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "239.255.255.255",
            "255.255.255.255",
            "240.0.0.1",
            "192.0.0.8",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.9",
            "192.88.99.1",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::808:808",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "::127.0.0.1",
            "2001::1",
            "2001:db8::1",
            "2001:10::1",
            "3fff::1",
            "100::1",
            "5f00::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
        for text in [
            "93.184.216.34",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.1",
            "2606:4700::1111",
            "2002:808:808::",
            "::ffff:8.8.8.8",
            "2a00:1450::1",
        ] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn every_spelling_of_a_host_is_judged_as_what_it_means() {
        for host in [
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "0177.0.0.1",
            "127.0.0.1.",
            "[::1]",
            "[::ffff:7f00:1]",
            "[0:0:0:0:0:ffff:169.254.169.254]",
            "localhost",
            "LOCALHOST.",
            "a.localhost",
            "metadata.google.internal",
            "printer.local",
            "intranet",
            "①②⑦.⓪.⓪.①",
            "169.254.169.254",
            "0xa9fea9fe",
            "router.lan",
        ] {
            let url = Url::parse(&format!("https://{host}/")).unwrap();
            assert!(!may_name(&url), "{host}");
        }
        for host in
            ["api.example", "example.com.", "8.8.8.8", "[2606:4700::1111]", "xn--bcher-kva.example"]
        {
            let url = Url::parse(&format!("https://{host}/")).unwrap();
            assert!(may_name(&url), "{host}");
        }
    }
}
