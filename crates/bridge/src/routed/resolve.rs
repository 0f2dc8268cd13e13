//! Finds the stations of neighbours, and answers questions about the router's own: ARP and neighbour discovery.

use std::net::{IpAddr, Ipv6Addr};

use adit_filter::Nanos;
use adit_filter::packet::Packet;
use adit_wire::ethernet::Mac;

use super::message::{self, Arp, Discovery};
use super::neighbour::{LearnedFrom, QueuedPacket, Solicitation};
use super::packet::{mac, write_link};
use super::settings::is_link_local;
use super::{Hop, Outgoing, Router, RouterDrop};
use crate::port::Side;

/// The broadcast address.
pub(super) const BROADCAST: Mac = Mac([0xff; 6]);

impl Router {
    /// Learns from an ARP packet, and answers a request for an address of the router.
    pub(super) fn arp(
        &mut self,
        packet: &Packet<'_>,
        at: usize,
        from: Side,
        now: Nanos,
    ) -> Result<Option<Hop>, RouterDrop> {
        let arp = packet.bytes.get(at..).and_then(Arp::read).ok_or(RouterDrop::Discovery)?;
        let sender = IpAddr::V4(arp.sender);
        if !arp.sender_mac.is_station() || self.is_own(sender) {
            return Err(RouterDrop::Discovery);
        }
        let asks_us = !arp.reply && self.routes.is_own(from, arp.target.into());
        if self.routes.is_neighbour(from, sender) {
            let learned_from = if asks_us { LearnedFrom::Request } else { LearnedFrom::Reply };
            self.learn(from, sender, arp.sender_mac, learned_from, now);
        } else if !arp.sender.is_unspecified() {
            return Err(RouterDrop::Discovery);
        }
        if asks_us {
            let reply = Arp {
                reply: true,
                sender_mac: self.port(from).mac,
                sender: arp.target,
                target_mac: arp.sender_mac,
                target: arp.sender,
            };
            self.say(from, reply.frame(arp.sender_mac));
        }
        Ok(None)
    }

    /// Does the same with a message of neighbour discovery.
    pub(super) fn discovery(
        &mut self,
        packet: &Packet<'_>,
        from: Side,
        now: Nanos,
    ) -> Result<Option<Hop>, RouterDrop> {
        let message = Discovery::read(packet).ok_or(RouterDrop::Discovery)?;
        let ip = packet.ip().ok_or(RouterDrop::Discovery)?;
        let near = |address| {
            is_link_local(address) && !self.is_own_on(from, address)
                || self.routes.is_neighbour(from, address)
        };
        match message {
            Discovery::Solicitation { target, link } => {
                let IpAddr::V6(source) = ip.source else { return Err(RouterDrop::Discovery) };
                if !self.is_own_on(from, target.into()) {
                    return Err(RouterDrop::Discovery);
                }
                let unnamed = source.is_unspecified();
                if !unnamed && !near(source.into()) {
                    return Err(RouterDrop::Discovery);
                }
                if let Some(link) = link {
                    self.learn(from, source.into(), link, LearnedFrom::Request, now);
                }
                let asker = packet.ether.map(|ether| mac(ether.source));
                let asker = link.or(asker).filter(|mac| !unnamed && mac.is_station());
                let to = asker.map(|mac| (mac, source));
                let reply = message::advertisement(self.port(from).mac, target, to);
                self.say(from, reply);
            }
            Discovery::Advertisement { target, link, insists } => {
                if !near(target.into()) {
                    return Err(RouterDrop::Discovery);
                }
                let learned_from =
                    if insists { LearnedFrom::Reply } else { LearnedFrom::WeakReply };
                let link = link.ok_or(RouterDrop::Discovery)?;
                self.learn(from, target.into(), link, learned_from, now);
            }
        }
        Ok(None)
    }

    fn learn(
        &mut self,
        side: Side,
        address: IpAddr,
        mac: Mac,
        learned_from: LearnedFrom,
        now: Nanos,
    ) {
        let own = self.port(side).mac;
        if mac == own {
            return;
        }
        let (waiting, ask) = self.neighbours.learn(side, address, mac, learned_from, now);
        self.ask(ask);
        for QueuedPacket { vnet, mut frame, .. } in waiting {
            write_link(&mut frame, mac, own);
            self.stats.forwarded = self.stats.forwarded.saturating_add(1);
            self.send(Outgoing { to: side, vnet, frame });
        }
    }

    pub(super) fn ask(&mut self, ask: Option<Solicitation>) {
        let Some(Solicitation { side, address, to }) = ask else { return };
        let mac = self.port(side).mac;
        let frame = match address {
            IpAddr::V4(target) => {
                let Some(IpAddr::V4(sender)) = self.routes.own(side, address) else { return };
                let request = Arp {
                    reply: false,
                    sender_mac: mac,
                    sender,
                    target_mac: Mac::default(),
                    target,
                };
                request.frame(to.unwrap_or(BROADCAST))
            }
            IpAddr::V6(target) => {
                let own: Ipv6Addr = self.port(side).link_local();
                message::solicitation(mac, own, target, to)
            }
        };
        self.say(side, frame);
    }
}
