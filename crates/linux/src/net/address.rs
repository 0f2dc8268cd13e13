use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{Mode, Net, NetError};

/// An address of an interface.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The index of the interface.
    pub link: u32,
    /// The local address, with the prefix length of the network on the link.
    pub local: IpNet,
    /// The other end's address, on a point-to-point interface.
    pub remote: Option<IpAddr>,
}

impl Address {
    /// Creates an address in a network.
    pub fn new(link: u32, local: IpNet) -> Self {
        Self { link, local, remote: None }
    }

    fn message(&self) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.header.index = self.link;
        message.header.prefix_len = self.local.prefix_len();
        let local = self.local.addr();
        let far = self.remote.unwrap_or(local);
        message.attributes.push(AddressAttribute::Local(local));
        message.attributes.push(AddressAttribute::Address(far));
        match self.local {
            IpNet::V4(net) => {
                message.header.family = AddressFamily::Inet;
                let broadcast = broadcast(net).filter(|_| self.remote.is_none());
                message.attributes.extend(broadcast.map(AddressAttribute::Broadcast));
            }
            IpNet::V6(_) => {
                message.header.family = AddressFamily::Inet6;
                // A tunnel's network has no other hosts, so duplicate address detection would only delay use of the
                // address.
                message.header.flags = AddressHeaderFlags::Nodad;
                message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
            }
        }
        if local.is_loopback() {
            message.header.scope = AddressScope::Host;
        }
        message
    }

    fn read(message: &AddressMessage) -> Option<Self> {
        let (mut local, mut address) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Local(ip) => local = Some(*ip),
                AddressAttribute::Address(ip) => address = Some(*ip),
                _ => {}
            }
        }
        // IPv6 reports the local address only if the two differ.
        let ip = local.or(address)?;
        let remote = address.filter(|remote| *remote != ip);
        let local = IpNet::new(ip, message.header.prefix_len).ok()?;
        Some(Self { link: message.header.index, local, remote })
    }
}

/// Returns the broadcast address. Networks of one or two addresses have none (RFC 3021).
fn broadcast(net: Ipv4Net) -> Option<Ipv4Addr> {
    (net.prefix_len() < 31).then(|| net.broadcast())
}

impl Net {
    /// Returns every address of every interface.
    pub async fn addresses(&self) -> Result<Vec<Address>, NetError> {
        let message = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let answers = self.talk(message, Mode::Dump, || "listing addresses".into()).await?;
        let read = |answer: &RouteNetlinkMessage| match answer {
            RouteNetlinkMessage::NewAddress(message) => Address::read(message),
            _ => None,
        };
        Ok(answers.iter().filter_map(read).collect())
    }

    /// Adds an address to an interface. IPv6 addresses skip duplicate detection, so sockets can be bound to them at
    /// once. (The kernel adds its own route to the address a moment later.)
    pub async fn add_address(&self, address: &Address) -> Result<(), NetError> {
        let message = RouteNetlinkMessage::NewAddress(address.message());
        let Address { local, link, .. } = address;
        let action = || format!("adding the address {local} to interface number {link}");
        self.talk(message, Mode::Create, action).await.map(drop)
    }

    /// Removes an address from an interface.
    pub async fn delete_address(&self, address: &Address) -> Result<(), NetError> {
        let message = RouteNetlinkMessage::DelAddress(address.message());
        let Address { local, link, .. } = address;
        let action = || format!("removing the address {local} from interface number {link}");
        self.talk(message, Mode::Change, action).await.map(drop)
    }
}
