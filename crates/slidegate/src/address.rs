//! Client address: the peer, or an address that trusted proxies report, read from the right.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Address of the connected peer. Insert it into a request's extensions if the server does not set axum's `ConnectInfo`
/// (feature `axum`) or tonic's `TcpConnectInfo` (feature `tonic`). It takes precedence over both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub SocketAddr);

/// Source of a client's address.
///
/// Any client can write anything into `X-Forwarded-For`. Only entries that trusted proxies have appended are reliable,
/// and those are at the right. The leftmost entry counts only if every entry to its right is trusted.
///
/// An IPv4-mapped IPv6 address (`::ffff:192.0.2.1`) counts as the IPv4 address. Of an IPv6 address only the network
/// counts, by default 64 bits, because a client can use all addresses of its network.
///
/// ```
/// use http::{HeaderMap, HeaderValue};
/// use slidegate::address::ClientAddress;
///
/// // Behind proxies in these networks.
/// let behind_proxies = ClientAddress::behind(["10.0.0.0/8".parse()?, "::1/128".parse()?]);
/// // Behind exactly two proxies, wherever they are.
/// let behind_two = ClientAddress::hops(2);
///
/// let mut headers = HeaderMap::new();
/// headers.insert("x-forwarded-for", HeaderValue::from_static("203.0.113.9, 10.0.0.2"));
/// let address = |source: &ClientAddress, peer: &str| source.find(peer.parse().ok(), &headers);
/// assert_eq!(address(&behind_proxies, "10.0.0.1"), Some("203.0.113.9".parse()?));
/// assert_eq!(address(&behind_proxies, "198.51.100.7"), Some("198.51.100.7".parse()?), "not a proxy");
/// assert_eq!(address(&behind_two, "10.0.0.1"), Some("203.0.113.9".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClientAddress {
    source: AddressSource,
    v6_prefix: u8,
}

#[derive(Clone, Debug)]
enum AddressSource {
    Peer,
    Behind(Vec<IpNet>),
    Hops(usize),
    Header(HeaderName),
}

impl ClientAddress {
    /// Uses the connected peer. For servers that face their clients.
    pub fn peer() -> Self {
        Self::from_source(AddressSource::Peer)
    }

    /// Uses the first address in `X-Forwarded-For`, from the right, that is outside these networks. If the peer itself
    /// is outside, uses the peer.
    pub fn behind(proxies: impl IntoIterator<Item = IpNet>) -> Self {
        Self::from_source(AddressSource::Behind(proxies.into_iter().collect()))
    }

    /// Uses the address that the outermost of `count` proxies reports. The peer is the innermost proxy; each proxy
    /// appends the address of its own peer to `X-Forwarded-For`.
    pub fn hops(count: usize) -> Self {
        Self::from_source(AddressSource::Hops(count))
    }

    /// Uses the single address in this header, which a proxy overwrites in each request. Only for servers that clients
    /// can reach through that proxy alone.
    pub fn header(name: HeaderName) -> Self {
        Self::from_source(AddressSource::Header(name))
    }

    fn from_source(source: AddressSource) -> Self {
        Self { source, v6_prefix: 64 }
    }

    /// Sets how many bits of an IPv6 address count, at most 128.
    pub fn v6_prefix(mut self, bits: u8) -> Self {
        self.v6_prefix = bits.min(128);
        self
    }

    /// Returns whether headers from this peer can determine the client's address.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        match &self.source {
            AddressSource::Peer | AddressSource::Hops(0) => false,
            AddressSource::Behind(proxies) => is_within(proxies, canonical(peer)),
            AddressSource::Hops(_) | AddressSource::Header(_) => true,
        }
    }

    /// Returns the significant part of the client's address for a request from `peer`, or `None` if it is unknown. Without a
    /// peer, only [`hops`](Self::hops) and [`header`](Self::header) have a result.
    #[inline]
    pub fn find(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
        let found = match &self.source {
            AddressSource::Peer | AddressSource::Hops(0) => peer,
            AddressSource::Behind(proxies) => Some(Self::first_untrusted(peer?, proxies, headers)),
            AddressSource::Hops(count) => forwarded(headers).nth(count - 1)?,
            AddressSource::Header(name) => {
                let mut values = headers.get_all(name).iter();
                // With two values, one may come from the client.
                let only = values.next().filter(|_| values.next().is_none())?;
                parse(only.as_bytes())
            }
        };
        found.map(|address| masked(address, self.v6_prefix))
    }

    #[inline(never)]
    fn first_untrusted(peer: IpAddr, proxies: &[IpNet], headers: &HeaderMap) -> IpAddr {
        let is_trusted = |address| is_within(proxies, address);
        let mut last = canonical(peer);
        if !is_trusted(last) {
            return last;
        }
        for entry in forwarded(headers) {
            // A trusted proxy appends an address. If the entry is malformed, the entries to its left are unreliable and
            // the client is the proxy itself.
            let Some(address) = entry else { break };
            last = address;
            if !is_trusted(address) {
                break;
            }
        }
        last
    }
}

fn is_within(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

/// Returns the entries of all `X-Forwarded-For` lines as one list, from the right.
fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> + '_ {
    let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
    lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b',')).map(parse)
}

/// Parses `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`.
fn parse(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim_matches([' ', '\t']);
    // A zone names an interface of another machine. `SocketAddr` would accept a numeric one.
    if text.contains('%') {
        return None;
    }
    let address = text
        .parse::<IpAddr>()
        .ok()
        .or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
        .or_else(|| text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::V6))?;
    Some(canonical(address))
}

fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

#[inline]
fn masked(address: IpAddr, v6_prefix: u8) -> IpAddr {
    match canonical(address) {
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(v6_prefix)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(X_FORWARDED_FOR, http::HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        headers
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn only_trusted_peers_determine_the_client() {
        let behind = ClientAddress::behind(["10.0.0.0/8".parse().unwrap()]);
        for (peer, is_trusted) in [("10.9.9.9", true), ("::ffff:10.9.9.9", true), ("11.0.0.1", false)] {
            assert_eq!(behind.trusts(address(peer)), is_trusted, "{peer}");
            assert!(
                !ClientAddress::peer().trusts(address(peer)) && !ClientAddress::hops(0).trusts(address(peer))
            );
            assert!(ClientAddress::hops(1).trusts(address(peer)));
        }
    }

    /// Attacks, each with the expected client.
    #[test]
    fn a_client_cannot_spoof_its_address() {
        let behind =
            ClientAddress::behind(["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().unwrap()));
        let many = vec!["6.6.6.6"; 10_000].join(", ");
        let table: [(&str, &[&str], &str); 29] = [
            // The peer is not a proxy: its header is ignored.
            ("198.51.100.1", &["203.0.113.9"], "198.51.100.1"),
            ("198.51.100.1", &["10.0.0.1"], "198.51.100.1"),
            // The peer is a proxy.
            ("10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &["6.6.6.6, 203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &["6.6.6.6, 203.0.113.9, 10.0.0.2"], "203.0.113.9"),
            ("10.0.0.1", &["6.6.6.6", "203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &["203.0.113.9", "10.0.0.3, 10.0.0.2"], "203.0.113.9"),
            ("10.0.0.1", &[&many, "203.0.113.9"], "203.0.113.9"),
            // A spoofed entry that looks trusted does not matter left of the client.
            ("10.0.0.1", &["10.0.0.9, 203.0.113.9"], "203.0.113.9"),
            // All entries are trusted: the leftmost one counts.
            ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            ("10.0.0.1", &[], "10.0.0.1"),
            // Entries left of a malformed one are unreliable.
            ("10.0.0.1", &["203.0.113.9, unknown"], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.9, , 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &["203.0.113.9, 999.1.1.1"], "10.0.0.1"),
            ("10.0.0.1", &[""], "10.0.0.1"),
            // A zone is valid on one machine only.
            ("10.0.0.1", &["203.0.113.9, fe80::1%eth0"], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.9, [fe80::1%1]:80, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &["fe80::1%eth0, 203.0.113.9"], "203.0.113.9"),
            // Non-ASCII bytes, including full-width digits.
            ("10.0.0.1", &["203.0.113.9, ２０３.0.113.9"], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.9, \u{a0}198.51.100.7"], "10.0.0.1"),
            ("10.0.0.1", &["größe, 203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &["203.0.113.9, 0xcb.0.113.9"], "10.0.0.1"),
            // Ports and brackets.
            ("10.0.0.1", &["203.0.113.9:1234"], "203.0.113.9"),
            ("10.0.0.1", &["[2001:db8:0:1::5]:1234"], "2001:db8:0:1::"),
            ("10.0.0.1", &["[2001:db8:0:1::5]"], "2001:db8:0:1::"),
            // Another address of the same network.
            ("10.0.0.1", &["2001:db8:0:1:ffff::6"], "2001:db8:0:1::"),
            // IPv4-mapped IPv6, as client and as proxy.
            ("10.0.0.1", &["::ffff:203.0.113.9"], "203.0.113.9"),
            ("::ffff:10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
            ("fd00::1", &["203.0.113.9, fd00::2"], "203.0.113.9"),
        ];
        for (peer, lines, expected) in table {
            let found = behind.find(Some(address(peer)), &headers(lines));
            assert_eq!(found, Some(address(expected)), "{peer} sends {:?}", lines.first());
        }
        assert_eq!(
            behind.find(None, &headers(&["203.0.113.9"])),
            None,
            "without a peer, no header is trusted"
        );
        let mut no_text = headers(&["203.0.113.9"]);
        no_text.append(X_FORWARDED_FOR, http::HeaderValue::from_bytes(b"\xff\xfe").unwrap());
        assert_eq!(behind.find(Some(address("10.0.0.1")), &no_text), Some(address("10.0.0.1")));
    }

    #[test]
    fn hops_are_counted_from_the_right() {
        let lines = ["6.6.6.6, 203.0.113.9, 198.51.100.7"];
        let of = |count| ClientAddress::hops(count).find(Some(address("10.0.0.1")), &headers(&lines));
        assert_eq!(of(0), Some(address("10.0.0.1")));
        assert_eq!(of(1), Some(address("198.51.100.7")));
        assert_eq!(of(2), Some(address("203.0.113.9")));
        assert_eq!(of(4), None, "the header has too few entries");

        // A malformed entry at the selected position gives no address. Other entries are not parsed.
        for (line, expected) in [
            ("6.6.6.6, unknown, 198.51.100.7", None),
            ("6.6.6.6, , 198.51.100.7", None),
            ("6.6.6.6, fe80::1%eth0, 198.51.100.7", None),
            ("6.6.6.6, größe, 198.51.100.7", None),
            (",", None),
            ("", None),
            ("6.6.6.6, 203.0.113.9, unknown", Some("203.0.113.9")),
            ("%%%, 203.0.113.9:1, 198.51.100.7", Some("203.0.113.9")),
        ] {
            let found = ClientAddress::hops(2).find(Some(address("10.0.0.1")), &headers(&[line]));
            assert_eq!(found, expected.map(address), "{line}");
        }
    }

    #[test]
    fn a_header_is_used_only_with_a_single_value() {
        let name = HeaderName::from_static("cf-connecting-ip");
        let source = ClientAddress::header(name.clone());
        let mut headers = HeaderMap::new();
        assert_eq!(source.find(Some(address("10.0.0.1")), &headers), None);
        headers.append(&name, "203.0.113.9".parse().unwrap());
        assert_eq!(source.find(None, &headers), Some(address("203.0.113.9")));
        headers.append(&name, "6.6.6.6".parse().unwrap());
        assert_eq!(source.find(None, &headers), None, "two values are ambiguous");
    }

    #[test]
    fn only_the_prefix_of_an_ipv6_address_counts() {
        let found = |bits| {
            let source = ClientAddress::peer().v6_prefix(bits);
            source.find(Some(address("2001:db8:1:2:3:4:5:6")), &HeaderMap::new()).unwrap().to_string()
        };
        assert_eq!((found(48), found(64)), ("2001:db8:1::".to_owned(), "2001:db8:1:2::".to_owned()));
        assert_eq!(
            (found(128), found(200)),
            ("2001:db8:1:2:3:4:5:6".to_owned(), "2001:db8:1:2:3:4:5:6".to_owned())
        );
        assert_eq!(found(0), "::");
    }
}
