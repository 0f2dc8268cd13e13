//! Interfaces, addresses and routes, by rtnetlink.
//!
//! All functions need a tokio runtime with I/O; they wait for the kernel's answer and report it.

mod address;
mod error;
mod forward;
mod link;
mod mark;
mod nftables;
mod rate_limit;
mod route;
mod rule;
mod watch;

pub use address::Address;
pub use error::{NetError, NetErrorKind};
pub use forward::{ForwardRules, InstalledRules};
pub use link::Link;
pub use mark::MarkedReplies;
pub use route::{MAIN_TABLE, Path, Route, RouteKind};
pub use rule::{Rule, RuleInUse};
pub use watch::{NetChange, NetWatch};

use std::io;

use futures_util::StreamExt;
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload,
};
use rtnetlink::packet_route::RouteNetlinkMessage;

use crate::netns::NetNs;

/// The kind of a request.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Mode {
    /// Get one object.
    Ask,
    /// Get all objects of a type.
    Dump,
    /// Change an existing object.
    Change,
    /// Create an object that must not exist yet.
    Create,
    /// Create an object or replace an existing one.
    Replace,
}

impl Mode {
    fn flags(self) -> u16 {
        NLM_F_REQUEST
            | match self {
                Self::Ask => 0,
                Self::Dump => NLM_F_DUMP,
                Self::Change => NLM_F_ACK,
                Self::Create => NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL,
                Self::Replace => NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE,
            }
    }
}

/// A handle to the kernel's routing tables. It is cheap to clone.
#[derive(Clone, Debug)]
pub struct Net {
    handle: rtnetlink::Handle,
}

impl Net {
    /// Opens a handle in the calling thread's network namespace. Call it inside a tokio runtime.
    pub fn open() -> io::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        // The task ends automatically when the last handle is dropped.
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    /// Opens a handle in another network namespace, whatever namespace the runtime's threads are in.
    pub fn open_in(ns: &NetNs) -> io::Result<Self> {
        let runtime = tokio::runtime::Handle::current();
        ns.run(|| {
            let _inside = runtime.enter();
            Self::open()
        })?
    }

    /// Sends a request and collects the answers.
    async fn talk(
        &self,
        message: RouteNetlinkMessage,
        mode: Mode,
        action: impl FnOnce() -> String,
    ) -> Result<Vec<RouteNetlinkMessage>, NetError> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = mode.flags();
        let mut answers = Vec::new();
        let mut stream = match self.handle.clone().request(request) {
            Ok(stream) => stream,
            Err(e) => return Err(NetError::new(action(), io::Error::other(e))),
        };
        while let Some(answer) = stream.next().await {
            match answer.payload {
                NetlinkPayload::InnerMessage(message) => answers.push(message),
                NetlinkPayload::Error(e) if e.code.is_some() => {
                    let error = io::Error::from_raw_os_error(e.raw_code().saturating_abs());
                    return Err(NetError::new(action(), error));
                }
                _ => {}
            }
        }
        Ok(answers)
    }
}

#[cfg(test)]
mod tests;
