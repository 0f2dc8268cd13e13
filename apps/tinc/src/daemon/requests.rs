//! The answers to requests of tinc's control socket.

use adit_engine::Instant;
use adit_runtime::{log, say};

use super::clients::ClientId;
use super::rows;
use super::running::Running;
use crate::control::Kind;
use crate::control::server::{Request, answer, list};

/// The codes of answers.
const DONE: i32 = 0;
const FAILED: i32 = -1;
const UNKNOWN_NODE: i32 = -2;

impl Running {
    /// Answers a request.
    pub(super) fn answer(&mut self, id: ClientId, request: Request, now: Instant) {
        match request {
            Request::Plain(kind) => self.plain(id, kind, now),
            Request::Debug(level) => {
                let old = self.debug;
                if let Some(level) = level {
                    self.debug = level;
                    self.clients.set_level(level);
                    log::set_verb(level.saturating_add(1));
                }
                self.reply(id, |out| answer(Kind::Debug, old.into(), out));
            }
            Request::Disconnect(None) => {
                self.reply(id, |out| answer(Kind::Disconnect, FAILED, out));
            }
            Request::Disconnect(Some(node)) => {
                let code = if self.node.disconnect(now, &node) { DONE } else { UNKNOWN_NODE };
                self.reply(id, |out| answer(Kind::Disconnect, code, out));
            }
            // These have no other answer than what follows.
            Request::Log(level) => self.clients.follow_log(id, level),
            Request::Pcap(length) => self.clients.follow_packets(id, length),
            Request::Unknown => self.refuse(id),
        }
    }

    fn plain(&mut self, id: ClientId, kind: Kind, now: Instant) {
        let mut out = Vec::new();
        if matches!(kind, Kind::Nodes | Kind::Traffic) {
            self.data.count(&mut self.node, now);
        }
        match kind {
            Kind::Stop => {
                say!(1, "Got 'stop' command");
                self.stopped = true;
                answer(kind, DONE, &mut out);
            }
            Kind::Reload => {
                say!(1, "Got 'reload' command");
                let code = match self.read_again() {
                    Ok(()) => DONE,
                    Err(fault) => {
                        log::warning(&format!("nothing has changed: {fault}"));
                        FAILED
                    }
                };
                answer(kind, code, &mut out);
            }
            Kind::Nodes => {
                list(
                    kind,
                    rows::nodes(&self.node, self.port, self.started, &self.changes),
                    &mut out,
                );
            }
            Kind::Edges => list(kind, rows::edges(&self.node), &mut out),
            Kind::Subnets => list(kind, rows::subnets(&self.node, &self.server), &mut out),
            Kind::Connections => {
                list(kind, rows::connections(&self.node, self.clients.len()), &mut out);
            }
            Kind::Traffic => list(kind, rows::traffic(&self.node), &mut out),
            Kind::Purge => {
                self.node.purge(now);
                answer(kind, DONE, &mut out);
            }
            Kind::Retry => {
                self.node.retry(now);
                answer(kind, DONE, &mut out);
            }
            Kind::Debug | Kind::Disconnect | Kind::Pcap | Kind::Log => return self.refuse(id),
        }
        self.reply(id, |answer| *answer = out);
    }
}
