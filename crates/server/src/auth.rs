//! API keys: who may ask, and whose request it is.

use crate::error::ApiError;
use axum::http::{HeaderMap, header};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// The keys that let a request in; without any, everybody is.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<String>);

/// What a key must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an API key must be letters, digits and signs of ASCII without spaces, at least one")]
pub struct BadKey;

impl ApiKeys {
    /// These keys.
    ///
    /// # Errors
    /// If one is empty or could not stand in a header.
    pub fn new(keys: impl IntoIterator<Item = String>) -> Result<Self, BadKey> {
        let keys: Vec<String> = keys.into_iter().collect();
        let sound = |key: &String| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        if keys.iter().all(sound) { Ok(Self(keys)) } else { Err(BadKey) }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Which key a request bears, `None` if none is needed.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<Option<usize>, ApiError> {
        if self.is_empty() {
            return Ok(None);
        }
        let mut given = given(headers).peekable();
        if given.peek().is_none() {
            let message = "This server needs an API key: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'.";
            return Err(ApiError::unauthorized(message));
        }
        // Some clients send both headers and mean one.
        match given.find_map(|key| self.find(key)) {
            Some(index) => Ok(Some(index)),
            None => Err(ApiError::unauthorized("The API key is none of this server's.")),
        }
    }

    /// Looks at every key and every byte, so that the time it takes tells nothing but lengths.
    fn find(&self, given: &[u8]) -> Option<usize> {
        let (mut found, mut index) = (Choice::from(0), 0u32);
        for (key, number) in self.0.iter().zip(0u32..) {
            let equal = key.as_bytes().ct_eq(given);
            index.conditional_assign(&number, equal);
            found |= equal;
        }
        bool::from(found).then_some(index as usize)
    }
}

/// Keys stay secret.
impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({})", self.0.len())
    }
}

/// The keys that a request bears.
fn given(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let bearer = headers.get_all(header::AUTHORIZATION).into_iter().filter_map(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked("bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
    });
    bearer.chain(headers.get_all("x-api-key").into_iter().map(|value| value.as_bytes().trim_ascii()))
}

/// The other end of a connection, and this one's address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    pub(crate) here: IpAddr,
}

/// Numbers for clients, which say nothing about them.
#[derive(Clone, Default)]
pub(crate) struct Clients(RandomState);

impl Clients {
    /// Of a client told by its key or else by its address.
    pub(crate) fn number(&self, key: Option<usize>, peer: Option<Peer>) -> u64 {
        match key {
            Some(key) => self.0.hash_one(key),
            None => self.0.hash_one(peer.map(Peer::client)),
        }
    }
}

impl Peer {
    /// What of its address one client has to itself. Of the sixth version it is all of a network, within which a client takes
    /// whichever address it likes; but not of networks that this machine is in too, where others are as well.
    fn client(self) -> IpAddr {
        match (self.address.to_canonical(), self.here.to_canonical()) {
            (IpAddr::V6(six), IpAddr::V6(here))
                if network(six) != network(here) && !six.is_unicast_link_local() && !six.is_unique_local() =>
            {
                network(six).into()
            }
            (address, _) => address,
        }
    }
}

fn network(address: Ipv6Addr) -> Ipv6Addr {
    const NETWORK_BITS: u32 = 64;
    Ipv6Addr::from_bits(address.to_bits() >> NETWORK_BITS << NETWORK_BITS)
}

#[cfg(test)]
mod tests {
    use super::{ApiKeys, BadKey, Clients, Peer};
    use axum::http::HeaderMap;

    fn keys(keys: &[&str]) -> ApiKeys {
        ApiKeys::new(keys.iter().map(|&key| key.to_owned())).expect("sound keys")
    }

    fn check(keys: &ApiKeys, headers: &[(&'static str, &str)]) -> Option<Option<usize>> {
        let pairs = headers.iter().map(|(name, value)| {
            (name.parse::<axum::http::HeaderName>().expect("a name"), value.parse().expect("a value"))
        });
        keys.check(&pairs.collect::<HeaderMap>()).ok()
    }

    #[test]
    fn a_key_comes_in_either_header() {
        let keys = keys(&["one", "two", "twofold"]);
        assert_eq!(check(&keys, &[("authorization", "Bearer one")]), Some(Some(0)));
        assert_eq!(check(&keys, &[("authorization", "bearer  two ")]), Some(Some(1)));
        assert_eq!(check(&keys, &[("x-api-key", "twofold")]), Some(Some(2)));
        assert_eq!(check(&keys, &[("authorization", "Bearer stale"), ("x-api-key", "two")]), Some(Some(1)));
        for wrong in ["", "on", "ones", "One", "one two", "basic one", "Bearer", "Basic one"] {
            assert_eq!(check(&keys, &[("authorization", wrong)]), None, "{wrong}");
            assert_eq!(check(&keys, &[("x-api-key", wrong)]), None, "{wrong}");
        }
        assert_eq!(check(&keys, &[]), None);
        assert_eq!(check(&ApiKeys::default(), &[]), Some(None));
    }

    #[test]
    fn bad_keys_are_refused_and_none_is_shown() {
        for bad in ["", "two words", "line\n", "kü"] {
            assert_eq!(ApiKeys::new(["good".to_owned(), bad.to_owned()]).err(), Some(BadKey), "{bad:?}");
        }
        assert_eq!(format!("{:?}", keys(&["secret"])), "ApiKeys(1)");
    }

    #[test]
    fn clients_are_told_apart() {
        let clients = Clients::default();
        let at = |here: &str, address: &str| {
            Some(Peer { address: address.parse().expect("an address"), here: here.parse().expect("an address") })
        };
        let peer = |address: &str| at("10.0.0.8", address);
        let numbers = [
            clients.number(Some(0), peer("10.0.0.1")),
            clients.number(Some(1), peer("10.0.0.1")),
            clients.number(None, peer("10.0.0.1")),
            clients.number(None, peer("10.0.0.2")),
        ];
        assert_eq!(std::collections::HashSet::from(numbers).len(), 4);
        assert_eq!(clients.number(Some(0), peer("10.0.0.9")), numbers[0]);
        assert_eq!(clients.number(None, peer("::ffff:10.0.0.1")), numbers[2]);
        let six = |address: &str| clients.number(None, at("2001:db8:1:9::1", address));
        assert_eq!(six("2001:db8:1:2:3:4:5:6"), six("2001:db8:1:2::1"));
        assert_ne!(six("2001:db8:1:2::1"), six("2001:db8:1:3::1"));
        // Neighbours are many to a network.
        for neighbours in ["2001:db8:1:9::", "fe80::", "fd12:3456:789a:1::", "10.0.0."] {
            assert_ne!(six(&format!("{neighbours}2")), six(&format!("{neighbours}3")), "{neighbours}");
        }
    }
}
