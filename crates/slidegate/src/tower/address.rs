//! Who a client is by its address: the peer, or what trusted proxies say, read from the right.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use super::head::RequestHead;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The address of whoever is connected. Put it into a request's extensions where the server does not: axum's `ConnectInfo`
/// (feature `axum`) and tonic's `TcpConnectInfo` (feature `tonic`) are understood too. This one is believed before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub SocketAddr);

/// How a client's address is found.
///
/// Anybody can write anything into `X-Forwarded-For`; only what one's own proxies have appended can be believed, and that is
/// at the right. The leftmost entry is never taken unless everything right of it is trusted.
///
/// An IPv4 address in IPv6 clothes (`::ffff:192.0.2.1`) is the IPv4 address. Of an IPv6 address only the network counts, 64
/// bits unless told otherwise: whoever has one address there has them all.
///
/// ```
/// use slidegate::tower::ClientAddress;
///
/// // Behind proxies in these networks.
/// let behind_proxies = ClientAddress::behind(["10.0.0.0/8".parse()?, "::1/128".parse()?]);
/// // Behind exactly two proxies, wherever they are.
/// let behind_two = ClientAddress::hops(2);
/// # let _ = (behind_proxies, behind_two);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClientAddress {
    way: Way,
    v6_prefix: u8,
}

#[derive(Clone, Debug)]
enum Way {
    Peer,
    Behind(Vec<IpNet>),
    Hops(usize),
    Header(HeaderName),
}

impl ClientAddress {
    /// Whoever is connected. For servers that face their clients.
    pub fn peer() -> Self {
        Self::by(Way::Peer)
    }

    /// The first address in `X-Forwarded-For`, from the right, that is in none of these networks, if the peer itself is in
    /// one of them; else the peer.
    pub fn behind(proxies: impl IntoIterator<Item = IpNet>) -> Self {
        Self::by(Way::Behind(proxies.into_iter().collect()))
    }

    /// The address that the outermost of `count` proxies has seen: the peer is the first of them, and each of the others
    /// has been appended to `X-Forwarded-For` by the one before.
    pub fn hops(count: usize) -> Self {
        Self::by(Way::Hops(count))
    }

    /// The one address in this header, which a proxy sets anew for each request. Only for servers that nobody reaches but
    /// by that proxy.
    pub fn header(name: HeaderName) -> Self {
        Self::by(Way::Header(name))
    }

    fn by(way: Way) -> Self {
        Self { way, v6_prefix: 64 }
    }

    /// How many bits of an IPv6 address count, at most 128.
    pub fn v6_prefix(mut self, bits: u8) -> Self {
        self.v6_prefix = bits.min(128);
        self
    }

    /// The client's address, as far as it counts; none if it cannot be said.
    pub fn of(&self, request: &RequestHead<'_>) -> Option<IpAddr> {
        self.find(peer(request).map(|peer| peer.ip()), request.headers)
    }

    /// Whether anything is believed of what this peer says about who its clients are.
    pub fn believes(&self, peer: IpAddr) -> bool {
        match &self.way {
            Way::Peer | Way::Hops(0) => false,
            Way::Behind(proxies) => is_within(proxies, folded(peer)),
            Way::Hops(_) | Way::Header(_) => true,
        }
    }

    /// The client's address if the peer's is `peer`.
    pub fn find(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
        let found = match &self.way {
            Way::Peer | Way::Hops(0) => peer,
            Way::Behind(proxies) => Some(Self::first_untrusted(peer?, proxies, headers)),
            Way::Hops(count) => forwarded(headers).nth(count - 1)?,
            Way::Header(name) => {
                let mut values = headers.get_all(name).iter();
                // If there are two, somebody else has written one of them.
                let only = values.next().filter(|_| values.next().is_none())?;
                parse(only.as_bytes())
            }
        };
        found.map(|address| masked(address, self.v6_prefix))
    }

    fn first_untrusted(peer: IpAddr, proxies: &[IpNet], headers: &HeaderMap) -> IpAddr {
        let is_trusted = |address| is_within(proxies, address);
        let mut last = folded(peer);
        if !is_trusted(last) {
            return last;
        }
        for entry in forwarded(headers) {
            // What a trusted proxy has appended is an address. If it is none, what is left of it cannot be believed,
            // and the client is whoever that proxy is.
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

/// The entries of all `X-Forwarded-For` lines as one list, from the right.
fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> + '_ {
    let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
    lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b',')).map(parse)
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`.
fn parse(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim_matches([' ', '\t']);
    // A zone names an interface of another machine. With a port, it would be understood if it is a number.
    if text.contains('%') {
        return None;
    }
    let address = text
        .parse::<IpAddr>()
        .ok()
        .or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
        .or_else(|| text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::V6))?;
    Some(folded(address))
}

fn folded(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

fn masked(address: IpAddr, v6_prefix: u8) -> IpAddr {
    match folded(address) {
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(v6_prefix)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Who is connected, if anybody has said so.
fn peer(request: &RequestHead<'_>) -> Option<SocketAddr> {
    if let Some(PeerAddress(address)) = request.extensions.get() {
        return Some(*address);
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(address)) =
        request.extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(*address);
    }
    // As in axum's own extractor, for tests.
    #[cfg(feature = "axum")]
    if let Some(axum::extract::connect_info::MockConnectInfo(address)) =
        request.extensions.get::<axum::extract::connect_info::MockConnectInfo<SocketAddr>>()
    {
        return Some(*address);
    }
    #[cfg(feature = "tonic")]
    if let Some(info) = request.extensions.get::<tonic::transport::server::TcpConnectInfo>() {
        return info.remote_addr();
    }
    None
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
    fn only_those_are_believed_who_are_trusted() {
        let behind = ClientAddress::behind(["10.0.0.0/8".parse().unwrap()]);
        for (peer, is_believed) in [("10.9.9.9", true), ("::ffff:10.9.9.9", true), ("11.0.0.1", false)] {
            assert_eq!(behind.believes(address(peer)), is_believed, "{peer}");
            assert!(
                !ClientAddress::peer().believes(address(peer))
                    && !ClientAddress::hops(0).believes(address(peer))
            );
            assert!(ClientAddress::hops(1).believes(address(peer)));
        }
    }

    /// Each attack, and the client that it must be taken for.
    #[test]
    fn nobody_chooses_who_he_is() {
        let behind =
            ClientAddress::behind(["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().unwrap()));
        let many = vec!["6.6.6.6"; 10_000].join(", ");
        let table: [(&str, &[&str], &str); 29] = [
            // Not by a proxy: whatever it says is its own invention.
            ("198.51.100.1", &["203.0.113.9"], "198.51.100.1"),
            ("198.51.100.1", &["10.0.0.1"], "198.51.100.1"),
            // By a proxy.
            ("10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &["6.6.6.6, 203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &["6.6.6.6, 203.0.113.9, 10.0.0.2"], "203.0.113.9"),
            ("10.0.0.1", &["6.6.6.6", "203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &["203.0.113.9", "10.0.0.3, 10.0.0.2"], "203.0.113.9"),
            ("10.0.0.1", &[&many, "203.0.113.9"], "203.0.113.9"),
            // A spoofed entry that looks trusted is only passed over if it is further left than the client.
            ("10.0.0.1", &["10.0.0.9, 203.0.113.9"], "203.0.113.9"),
            // All are trusted: the one furthest left.
            ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            ("10.0.0.1", &[], "10.0.0.1"),
            // Garbage ends what can be believed.
            ("10.0.0.1", &["203.0.113.9, unknown"], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.9, , 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &["203.0.113.9, 999.1.1.1"], "10.0.0.1"),
            ("10.0.0.1", &[""], "10.0.0.1"),
            // A zone means something on one machine only.
            ("10.0.0.1", &["203.0.113.9, fe80::1%eth0"], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.9, [fe80::1%1]:80, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &["fe80::1%eth0, 203.0.113.9"], "203.0.113.9"),
            // Bytes that are no ASCII, alike digits or not.
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
            // IPv4 in other clothes, as the client and as the proxy.
            ("10.0.0.1", &["::ffff:203.0.113.9"], "203.0.113.9"),
            ("::ffff:10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
            ("fd00::1", &["203.0.113.9, fd00::2"], "203.0.113.9"),
        ];
        for (peer, lines, expected) in table {
            let found = behind.find(Some(address(peer)), &headers(lines));
            assert_eq!(found, Some(address(expected)), "{peer} says {:?}", lines.first());
        }
        assert_eq!(behind.find(None, &headers(&["203.0.113.9"])), None, "without a peer nobody is trusted");
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
        assert_eq!(of(4), None, "fewer have passed than it should have");

        // What should be there and is no address is nobody's; what is elsewhere is looked at by nobody.
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
    fn one_header_is_believed_if_there_is_one() {
        let name = HeaderName::from_static("cf-connecting-ip");
        let way = ClientAddress::header(name.clone());
        let mut headers = HeaderMap::new();
        assert_eq!(way.find(Some(address("10.0.0.1")), &headers), None);
        headers.append(&name, "203.0.113.9".parse().unwrap());
        assert_eq!(way.find(None, &headers), Some(address("203.0.113.9")));
        headers.append(&name, "6.6.6.6".parse().unwrap());
        assert_eq!(way.find(None, &headers), None, "two are one too many");
    }

    #[cfg(feature = "axum")]
    #[test]
    fn who_is_connected_is_found_where_servers_put_it() {
        use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

        let addresses: Vec<SocketAddr> =
            (1..=3).map(|last| SocketAddr::from(([10, 0, 0, last], 80))).collect();
        let mut request = http::Request::new(());
        let found = |request: &http::Request<()>| ClientAddress::peer().of(&request.into());
        assert_eq!(found(&request), None);
        request.extensions_mut().insert(MockConnectInfo(addresses[0]));
        assert_eq!(found(&request), Some(addresses[0].ip()));
        request.extensions_mut().insert(ConnectInfo(addresses[1]));
        assert_eq!(found(&request), Some(addresses[1].ip()));
        request.extensions_mut().insert(PeerAddress(addresses[2]));
        assert_eq!(found(&request), Some(addresses[2].ip()), "somebody knows better");
    }

    #[test]
    fn so_many_bits_count_of_an_ipv6_address() {
        let found = |bits| {
            let way = ClientAddress::peer().v6_prefix(bits);
            way.find(Some(address("2001:db8:1:2:3:4:5:6")), &HeaderMap::new()).unwrap().to_string()
        };
        assert_eq!((found(48), found(64)), ("2001:db8:1::".to_owned(), "2001:db8:1:2::".to_owned()));
        assert_eq!(
            (found(128), found(200)),
            ("2001:db8:1:2:3:4:5:6".to_owned(), "2001:db8:1:2:3:4:5:6".to_owned())
        );
        assert_eq!(found(0), "::");
    }
}
