//! Nodes of tinc 1.0, whose protocol adit does not speak.
//!
//! That protocol would need RSA without padding, of which the maintained libraries have no implementation in constant time, and ciphers
//! without authentication. So adit refuses direct connections with such nodes. They remain reachable: a node with tinc 1.1 in between takes part
//! in both protocols.

use crate::keys::PublicKey;
use crate::meta::{Id, MAJOR};
use crate::name::NodeName;

/// The first minor version with SPTPS between neighbours.
pub const FIRST_MINOR: u16 = 2;

/// The reason why no session with a neighbour can begin, although its name is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// The major version is another one.
    #[error("{0} speaks version {1} of the protocol, and adit only version {MAJOR}")]
    Major(NodeName, u8),
    /// The node runs tinc 1.0: its host file has no Ed25519 key, and it has no minor version.
    #[error(
        "{0} runs tinc 1.0, whose protocol adit does not speak: connect {0} to a node with tinc 1.1, which passes its packets on, or upgrade it"
    )]
    Tinc10(NodeName),
    /// The node's host file has no Ed25519 key. tinc 1.1 would exchange keys by the protocol of tinc 1.0.
    #[error(
        "the key of {0} is unknown: add the line 'Ed25519PublicKey' of its own host file to hosts/{0} on this node"
    )]
    UnknownKey(NodeName),
    /// The node does not know this node's key, and proposes to exchange keys by the protocol of tinc 1.0.
    #[error(
        "{0} does not know this node's key: add the line 'Ed25519PublicKey' of this node's own host file to its file on {0}"
    )]
    OwnKeyUnknown(NodeName),
    /// The node has an Ed25519 key, but claims to run tinc 1.0, whose protocol does not check that key.
    #[error("{0} claims to run tinc 1.0, but its key belongs to tinc 1.1: it may be another node")]
    Rollback(NodeName),
}

/// Decides whether a session with a node can begin. `key` is the node's key in its host file.
///
/// # Errors
/// Fails if one of the nodes lacks the other's key, or their versions differ.
pub fn check_version<'k>(
    name: &NodeName,
    id: &Id,
    key: Option<&'k PublicKey>,
) -> Result<&'k PublicKey, VersionError> {
    if id.major != MAJOR {
        return Err(VersionError::Major(name.clone(), id.major));
    }
    match (id.minor, key) {
        (FIRST_MINOR.., Some(key)) => Ok(key),
        (0, Some(_)) => Err(VersionError::Rollback(name.clone())),
        (_, Some(_)) => Err(VersionError::OwnKeyUnknown(name.clone())),
        (0, None) => Err(VersionError::Tinc10(name.clone())),
        (_, None) => Err(VersionError::UnknownKey(name.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Entries, HostConfig};
    use crate::testing::bob;

    fn check(line: &str, key: Option<&PublicKey>) -> Result<(), VersionError> {
        let id = Id::parse(line.as_bytes()).unwrap();
        check_version(&"bob".parse().unwrap(), &id, key).map(|found| assert_eq!(Some(found), key))
    }

    /// Specification 5.2 and 17.1.
    #[test]
    fn a_session_needs_both_keys_and_sptps() {
        let key = bob().public();
        let bob = || "bob".parse().unwrap();
        for minor in [2, 3, 7, 8, 999] {
            assert_eq!(check(&format!("0 bob 17.{minor}"), Some(&key)), Ok(()));
            let unknown = Err(VersionError::UnknownKey(bob()));
            assert_eq!(check(&format!("0 bob 17.{minor}"), None), unknown);
        }
        assert_eq!(check("0 bob 17.1", Some(&key)), Err(VersionError::OwnKeyUnknown(bob())));
        assert_eq!(check("0 bob 17.1", None), Err(VersionError::UnknownKey(bob())));
        for line in ["0 bob 17", "0 bob 17.0"] {
            assert_eq!(check(line, Some(&key)), Err(VersionError::Rollback(bob())));
            assert_eq!(check(line, None), Err(VersionError::Tinc10(bob())));
        }
        for (line, major) in [("0 bob 16.7", 16), ("0 bob 18.7", 18)] {
            let expected = Err(VersionError::Major(bob(), major));
            assert_eq!(check(line, Some(&key)), expected);
        }
    }

    /// A host file of tinc 1.0 has an RSA key alone.
    #[test]
    fn a_node_of_tinc_1_0_is_refused_with_the_way_around() {
        let file = "Address = 192.0.2.1\nSubnet = 10.2.0.0/16\n-----BEGIN RSA PUBLIC KEY-----\n\
            MIIBCgKCAQEA\n-----END RSA PUBLIC KEY-----\n";
        let (host, warnings) = HostConfig::read(Entries::default(), "hosts/bob", file).unwrap();
        assert_eq!((host.public_key, warnings.len()), (None, 0));
        let error = check("0 bob 17", host.public_key.as_ref()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "bob runs tinc 1.0, whose protocol adit does not speak: connect bob to a node with tinc 1.1, which passes its packets \
             on, or upgrade it"
        );
    }
}
