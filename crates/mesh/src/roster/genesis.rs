//! The first object of a mesh. Its hash gives the mesh its id.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::net::Ipv4Addr;

use adit_crypto::sha256;
use ipnet::{IpNet, Ipv4Net};

use super::change::ChangeHash;
use super::node::Label;
use super::object::{DOMAIN, GENESIS, ObjectError, count, ipv4_net, open, put_count, put_ipv4_net};
use crate::session::{KeyHash, MeshId};
use crate::wire::DecodeError;

/// The number of admins that a genesis can name.
pub const MAX_ADMINS: usize = 16;

/// The number of IPv4 ranges that a mesh can have.
pub const MAX_RANGES: usize = 8;

/// The last byte of the genesis of a mesh that carries Ethernet frames. That of another mesh ends before it.
const LAYER_2: u8 = 2;

/// What the nodes of a mesh send to each other.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Layer {
    /// IP packets, of TUN devices.
    #[default]
    Ip,
    /// Ethernet frames, of TAP devices.
    Ethernet,
}

/// The first object of a mesh. Its fields are kept as decoded, so its hash remains the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Genesis {
    /// The name of the mesh.
    pub name: Label,
    /// The key hashes of the first admins, the most senior first: 1 to [`MAX_ADMINS`] without duplicates.
    pub admins: Vec<KeyHash>,
    /// The number of admins who must approve important changes: 1 up to the number of admins.
    pub threshold: u8,
    /// The IPv4 ranges of nodes, at most [`MAX_RANGES`], which do not overlap.
    pub ranges: Vec<Ipv4Net>,
    /// Random bytes, so no two meshes have the same id.
    pub random: [u8; 32],
    /// What the nodes send to each other. It is part of the mesh's id, so all nodes agree.
    pub layer: Layer,
}

impl Genesis {
    /// Encodes the genesis.
    ///
    /// # Errors
    /// Fails if a field is outside its bounds.
    pub fn encode(&self) -> Result<Vec<u8>, ObjectError> {
        self.check()?;
        let mut out = vec![GENESIS];
        out.extend(DOMAIN);
        self.name.put(&mut out);
        put_count(self.admins.len(), &mut out);
        self.admins.iter().for_each(|admin| out.extend(admin));
        out.push(self.threshold);
        put_count(self.ranges.len(), &mut out);
        self.ranges.iter().for_each(|range| put_ipv4_net(*range, &mut out));
        out.extend(self.random);
        out.extend((self.layer == Layer::Ethernet).then_some(LAYER_2));
        Ok(out)
    }

    /// Decodes a genesis. Only the exact output of [`Genesis::encode`] is accepted.
    ///
    /// # Errors
    /// Fails with the first deviation from the format.
    pub fn decode(bytes: &[u8]) -> Result<Self, ObjectError> {
        let mut from = open(bytes, GENESIS)?;
        if from.take(DOMAIN.len())? != DOMAIN {
            return Err(ObjectError::Domain);
        }
        let name = Label::read(&mut from)?;
        let mut admins = Vec::new();
        for _ in 0..count(&mut from, MAX_ADMINS, "admins")? {
            admins.push(from.array()?);
        }
        let threshold = from.u8()?;
        let mut ranges = Vec::new();
        for _ in 0..count(&mut from, MAX_RANGES, "ranges")? {
            ranges.push(ipv4_net(&mut from)?);
        }
        let random = from.array()?;
        let layer = if from.is_empty() {
            Layer::Ip
        } else {
            match from.u8()? {
                LAYER_2 => Layer::Ethernet,
                other => return Err(DecodeError::Kind(other).into()),
            }
        };
        from.end()?;
        let genesis = Self { name, admins, threshold, ranges, random, layer };
        genesis.check()?;
        Ok(genesis)
    }

    fn check(&self) -> Result<(), ObjectError> {
        if self.admins.len() > MAX_ADMINS {
            return Err(ObjectError::TooMany(self.admins.len(), "admins"));
        }
        if self.ranges.len() > MAX_RANGES {
            return Err(ObjectError::TooMany(self.ranges.len(), "ranges"));
        }
        let threshold = usize::from(self.threshold);
        if threshold == 0 || threshold > self.admins.len() {
            return Err(ObjectError::Range(self.threshold.into()));
        }
        let mut before: &[KeyHash] = &[];
        for (at, admin) in self.admins.iter().enumerate() {
            if before.contains(admin) {
                return Err(ObjectError::Unsorted);
            }
            before = self.admins.get(..=at).unwrap_or_default();
        }
        let mut before: &[Ipv4Net] = &[];
        for (at, range) in self.ranges.iter().enumerate() {
            let overlaps = |other: &Ipv4Net| other.contains(range) || range.contains(other);
            if before.iter().any(overlaps) || range.addr() != range.network() {
                return Err(ObjectError::Network);
            }
            before = self.ranges.get(..=at).unwrap_or_default();
        }
        Ok(())
    }

    /// Returns the hash of the genesis, which the first change of each chain names as its predecessor.
    ///
    /// # Errors
    /// Fails if a field is outside its bounds.
    pub fn hash(&self) -> Result<ChangeHash, ObjectError> {
        Ok(sha256(&[&self.encode()?]))
    }

    /// Returns the id of the mesh that begins with this genesis.
    ///
    /// # Errors
    /// Fails if a field is outside its bounds.
    pub fn mesh_id(&self) -> Result<MeshId, ObjectError> {
        let hash = self.hash()?;
        hash.first_chunk().copied().ok_or(ObjectError::Network)
    }

    /// Returns whether a node may have this address.
    pub(super) fn has_ipv4(&self, address: Ipv4Addr) -> bool {
        self.ranges.iter().any(|range| {
            range.contains(&address) && address != range.network() && address != range.broadcast()
        })
    }

    /// Returns whether a network overlaps an IPv4 range of the mesh.
    pub(super) fn overlaps(&self, net: IpNet) -> bool {
        let IpNet::V4(net) = net else { return false };
        self.ranges.iter().any(|range| range.contains(&net) || net.contains(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roster::MAX_OBJECT;

    fn genesis(admins: Vec<KeyHash>, threshold: u8) -> Genesis {
        Genesis {
            name: Label::new("home").unwrap(),
            admins,
            threshold,
            ranges: vec!["100.87.0.0/16".parse().unwrap()],
            random: [7; 32],
            layer: Layer::Ip,
        }
    }

    #[test]
    fn a_genesis_is_decoded_as_it_was_encoded_and_from_nothing_else() {
        let genesis = genesis(vec![[2; 32], [1; 32]], 2);
        let mut bytes = genesis.encode().unwrap();
        assert_eq!(Genesis::decode(&bytes), Ok(genesis.clone()));
        for len in 0..bytes.len() {
            let cut = Genesis::decode(&bytes[..len]);
            assert_eq!(cut, Err(DecodeError::Truncated.into()), "{len}");
        }
        bytes[1] ^= 1;
        assert_eq!(Genesis::decode(&bytes), Err(ObjectError::Domain));
        bytes[1] ^= 1;
        for (more, error) in [
            (&[0][..], DecodeError::Kind(0)),
            (&[1], DecodeError::Kind(1)),
            (&[LAYER_2, LAYER_2], DecodeError::TrailingBytes(1)),
        ] {
            assert_eq!(Genesis::decode(&[&bytes, more].concat()), Err(error.into()));
        }
        let long = vec![GENESIS; MAX_OBJECT + 1];
        assert_eq!(Genesis::decode(&long), Err(DecodeError::TooLong(long.len()).into()));
    }

    #[test]
    fn the_mesh_id_is_the_beginning_of_the_hash() {
        let genesis = genesis(vec![[1; 32]], 1);
        let hash = sha256(&[&genesis.encode().unwrap()]);
        assert_eq!(genesis.mesh_id().unwrap(), hash[..16]);
        let other = Genesis { random: [8; 32], ..genesis.clone() };
        assert_ne!(other.mesh_id(), genesis.mesh_id());
    }

    #[test]
    fn the_layer_is_part_of_the_mesh_id() {
        let ip = genesis(vec![[1; 32]], 1);
        let ethernet = Genesis { layer: Layer::Ethernet, ..ip.clone() };
        assert_eq!(Genesis::decode(&ethernet.encode().unwrap()), Ok(ethernet.clone()));
        assert_ne!(ethernet.mesh_id(), ip.mesh_id());
    }

    #[test]
    fn a_changed_byte_is_refused_or_is_another_genesis() {
        let genesis = genesis(vec![[2; 32], [1; 32]], 2);
        let bytes = genesis.encode().unwrap();
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            if let Ok(other) = Genesis::decode(&altered) {
                assert_eq!(other.encode().unwrap(), altered);
                assert_ne!(other.mesh_id(), genesis.mesh_id());
            }
        }
    }

    #[test]
    fn each_bound_refuses_alone() {
        let good = genesis(vec![[2; 32], [1; 32]], 1);
        let net = |text: &str| text.parse::<Ipv4Net>().unwrap();
        let cases = [
            (Genesis { admins: Vec::new(), ..good.clone() }, ObjectError::Range(1)),
            (Genesis { threshold: 0, ..good.clone() }, ObjectError::Range(0)),
            (Genesis { threshold: 3, ..good.clone() }, ObjectError::Range(3)),
            (Genesis { admins: vec![[1; 32]; 2], ..good.clone() }, ObjectError::Unsorted),
            (
                Genesis { admins: (0..17).map(|n| [n; 32]).collect(), ..good.clone() },
                ObjectError::TooMany(17, "admins"),
            ),
            (
                Genesis {
                    ranges: (0..9).map(|n| net(&format!("10.{n}.0.0/16"))).collect(),
                    ..good.clone()
                },
                ObjectError::TooMany(9, "ranges"),
            ),
            (
                Genesis { ranges: vec![net("10.0.0.0/8"), net("10.1.0.0/16")], ..good.clone() },
                ObjectError::Network,
            ),
            (Genesis { ranges: vec![net("10.0.0.1/8")], ..good.clone() }, ObjectError::Network),
        ];
        for (genesis, error) in cases {
            assert_eq!(genesis.encode(), Err(error), "{genesis:?}");
        }
    }

    #[test]
    fn ranges_hold_hosts_only() {
        let genesis = genesis(vec![[1; 32]], 1);
        let has = |text: &str| genesis.has_ipv4(text.parse().unwrap());
        assert!(has("100.87.0.1") && has("100.87.255.254"));
        assert!(!has("100.87.0.0") && !has("100.87.255.255") && !has("100.88.0.1"));
    }
}
