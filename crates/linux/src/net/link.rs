use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};

use super::{Mode, Net, NetError};
use crate::netns::NetNs;

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// The largest packet, in bytes.
    pub mtu: u32,
    /// The capacity of its transmit queue, in packets.
    pub txqueuelen: u32,
    /// Whether it is administratively up.
    pub up: bool,
    /// Whether it can carry packets: it is up, and so is its other end.
    pub running: bool,
    /// Its hardware address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// Whether it carries Ethernet frames.
    pub ethernet: bool,
    /// The index of the bridge or bond that it is a port of.
    pub master: Option<u32>,
    /// The index of the underlying interface in the same namespace: the other end of a veth pair, or the parent of a
    /// VLAN.
    pub lower: Option<u32>,
    /// Whether it is a macvlan or macvtap.
    pub macvlan: bool,
}

impl Link {
    fn read(message: &LinkMessage) -> Self {
        let mut link = Self {
            index: message.header.index,
            name: String::new(),
            mtu: 0,
            txqueuelen: 0,
            up: message.header.flags.contains(LinkFlags::Up),
            running: message.header.flags.contains(LinkFlags::Running),
            mac: None,
            ethernet: message.header.link_layer_type == LinkLayerType::Ether,
            master: None,
            lower: None,
            macvlan: false,
        };
        let mut elsewhere = false;
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::TxQueueLen(len) => link.txqueuelen = *len,
                LinkAttribute::Address(mac) => link.mac = mac.as_slice().try_into().ok(),
                LinkAttribute::Controller(index) => link.master = Some(*index),
                LinkAttribute::Link(index) => link.lower = Some(*index),
                LinkAttribute::LinkNetNsId(_) => elsewhere = true,
                LinkAttribute::LinkInfo(infos) => {
                    let macvlan = |info: &LinkInfo| {
                        matches!(info, LinkInfo::Kind(InfoKind::MacVlan | InfoKind::MacVtap))
                    };
                    link.macvlan = infos.iter().any(macvlan);
                }
                _ => {}
            }
        }
        if elsewhere {
            link.lower = None;
        }
        link
    }
}

impl Net {
    /// Returns all interfaces.
    pub async fn links(&self) -> Result<Vec<Link>, NetError> {
        let message = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let answers = self.talk(message, Mode::Dump, || "listing interfaces".into()).await?;
        Ok(answers.iter().filter_map(read_link).collect())
    }

    /// Returns one interface, by name.
    pub async fn link(&self, name: &str) -> Result<Link, NetError> {
        let query = LinkUnspec::new_with_name(name).build();
        self.one_link(query, || format!("looking for the interface {name}")).await
    }

    /// Returns one interface, by index.
    pub async fn link_by_index(&self, index: u32) -> Result<Link, NetError> {
        let query = LinkUnspec::new_with_index(index).build();
        self.one_link(query, || format!("looking for the interface number {index}")).await
    }

    async fn one_link(
        &self,
        query: LinkMessage,
        action: impl Fn() -> String,
    ) -> Result<Link, NetError> {
        let answers = self.talk(RouteNetlinkMessage::GetLink(query), Mode::Ask, &action).await?;
        let missing = || NetError::new(action(), io::Error::from_raw_os_error(libc::ENODEV));
        answers.iter().find_map(read_link).ok_or_else(missing)
    }

    /// Brings an interface up.
    pub async fn set_up(&self, index: u32) -> Result<(), NetError> {
        let change = LinkUnspec::new_with_index(index).up().build();
        self.change(change, || format!("bringing up the interface number {index}")).await
    }

    /// Brings an interface down.
    pub async fn set_down(&self, index: u32) -> Result<(), NetError> {
        let change = LinkUnspec::new_with_index(index).down().build();
        self.change(change, || format!("taking down the interface number {index}")).await
    }

    /// Sets the size of the largest packet.
    pub async fn set_mtu(&self, index: u32, mtu: u32) -> Result<(), NetError> {
        let change = LinkUnspec::new_with_index(index).mtu(mtu).build();
        self.change(change, || format!("setting the MTU of interface number {index} to {mtu}"))
            .await
    }

    /// Sets the capacity of the interface's transmit queue, in packets.
    pub async fn set_txqueuelen(&self, index: u32, packets: u32) -> Result<(), NetError> {
        let change = LinkUnspec::new_with_index(index)
            .append_extra_attribute(LinkAttribute::TxQueueLen(packets))
            .build();
        let action =
            || format!("setting the queue length of interface number {index} to {packets}");
        self.change(change, action).await
    }

    /// Sets the hardware address of an interface (`lladdr` of a TAP device). The interface must be down unless its
    /// driver, like TAP's, allows the change.
    pub async fn set_mac(&self, index: u32, mac: [u8; 6]) -> Result<(), NetError> {
        let change = LinkUnspec::new_with_index(index).address(mac.to_vec()).build();
        self.change(change, || format!("setting the hardware address of interface number {index}"))
            .await
    }

    /// Makes an interface send packets directly to its own queue, without a kernel queueing discipline. The queueing discipline of a TUN
    /// device never holds a packet, because the device never asks the kernel to wait. A device with several queues would have one for each
    /// of its 256 possible queues.
    pub async fn set_no_qdisc(&self, index: u32) -> Result<(), NetError> {
        let mut change = TcMessage::with_index(i32::try_from(index).unwrap_or(0));
        change.header.parent = TcHandle::ROOT;
        change.attributes.push(TcAttribute::Kind("noqueue".to_owned()));
        let message = RouteNetlinkMessage::NewQueueDiscipline(change);
        let action = || format!("removing the queue before interface number {index}");
        self.talk(message, Mode::Replace, action).await.map(drop)
    }

    async fn change(
        &self,
        change: LinkMessage,
        action: impl Fn() -> String,
    ) -> Result<(), NetError> {
        self.talk(RouteNetlinkMessage::SetLink(change), Mode::Change, action).await.map(drop)
    }

    /// Removes an interface (and the other end of a veth pair).
    pub async fn delete_link(&self, index: u32) -> Result<(), NetError> {
        let gone = LinkUnspec::new_with_index(index).build();
        let action = || format!("removing the interface number {index}");
        self.talk(RouteNetlinkMessage::DelLink(gone), Mode::Change, action).await.map(drop)
    }

    /// Creates a pair of virtual Ethernet interfaces: `name` here, `peer` in another namespace. Both are down and have
    /// random hardware addresses.
    pub async fn add_veth(&self, name: &str, peer: &str, peer_ns: &NetNs) -> Result<(), NetError> {
        let other = LinkMessageBuilder::<LinkUnspec>::new()
            .name(peer.to_owned())
            .setns_by_fd(peer_ns.as_fd().as_raw_fd())
            .build();
        let pair = LinkMessageBuilder::<LinkVeth>::new(name, peer)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(other)))
            .build();
        let action = || format!("making the interfaces {name} and {peer}");
        self.talk(RouteNetlinkMessage::NewLink(pair), Mode::Create, action).await.map(drop)
    }
}

fn read_link(answer: &RouteNetlinkMessage) -> Option<Link> {
    match answer {
        RouteNetlinkMessage::NewLink(message) => Some(Link::read(message)),
        _ => None,
    }
}
