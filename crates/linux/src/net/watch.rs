//! Notification of changed interfaces, addresses and routes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::StreamExt;
use ipnet::IpNet;
use rtnetlink::constants::{
    RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE, RTMGRP_LINK,
};
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::{AsyncSocket, SocketAddr};

/// The object that changed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NetChange {
    /// The interface with this index, its state or its addresses.
    Link(u32),
    /// A route to this network in this table.
    Route(IpNet, u32),
    /// Unknown; messages of the kernel were lost.
    Unknown,
}

/// A subscription to changes of this network namespace.
pub struct NetWatch {
    messages: Messages,
}

impl std::fmt::Debug for NetWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NetWatch").finish_non_exhaustive()
    }
}

type Messages = futures_util::stream::BoxStream<'static, NetlinkMessage<RouteNetlinkMessage>>;

impl NetWatch {
    /// Subscribes, in the calling thread's network namespace. Call it inside a tokio runtime.
    pub fn open() -> io::Result<Self> {
        let (mut connection, handle, messages) = rtnetlink::new_connection()?;
        let groups = RTMGRP_LINK
            | RTMGRP_IPV4_IFADDR
            | RTMGRP_IPV6_IFADDR
            | RTMGRP_IPV4_ROUTE
            | RTMGRP_IPV6_ROUTE;
        let socket = connection.socket_mut().socket_mut();
        socket.bind(&SocketAddr::new(0, groups))?;
        tokio::spawn(connection);
        // The connection ends when the last handle is dropped.
        let messages = messages.map(move |(message, _)| {
            let _alive = &handle;
            message
        });
        Ok(Self { messages: messages.boxed() })
    }

    /// Waits for the next change. Cancel-safe.
    pub async fn next(&mut self) -> NetChange {
        loop {
            let Some(message) = self.messages.next().await else {
                // The connection is broken, so no further message will arrive.
                return std::future::pending().await;
            };
            if let Some(change) = read(&message.payload) {
                return change;
            }
        }
    }
}

fn read(payload: &NetlinkPayload<RouteNetlinkMessage>) -> Option<NetChange> {
    match payload {
        NetlinkPayload::InnerMessage(message) => match message {
            RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link) => {
                Some(NetChange::Link(link.header.index))
            }
            RouteNetlinkMessage::NewAddress(address) | RouteNetlinkMessage::DelAddress(address) => {
                Some(NetChange::Link(address.header.index))
            }
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
                read_route(route)
            }
            _ => None,
        },
        NetlinkPayload::Overrun(_) | NetlinkPayload::Error(_) => Some(NetChange::Unknown),
        _ => None,
    }
}

fn read_route(message: &RouteMessage) -> Option<NetChange> {
    let mut to: IpAddr = match message.header.address_family {
        AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
        AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let mut table = u32::from(message.header.table);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(ip)) => to = (*ip).into(),
            RouteAttribute::Destination(RouteAddress::Inet6(ip)) => to = (*ip).into(),
            RouteAttribute::Table(number) => table = *number,
            _ => {}
        }
    }
    let to = IpNet::new(to, message.header.destination_prefix_length).ok()?;
    Some(NetChange::Route(to, table))
}
