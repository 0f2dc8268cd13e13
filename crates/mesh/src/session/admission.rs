//! The step from a handshake to a session: which peers may have one, and which of two sessions remains.

use std::time::Duration;

use adit_engine::{Instant, PeerId};
use adit_openvpn::keys::Role;
use adit_openvpn::records::{DataTerms, RemoteEnd};

use super::engine::{Event, Out, SessionEngine, SessionNumber};
use super::keys::Ends;
use super::{Hello, KeyHash, Protocol, Reason};

/// A handshake and a session of the same peer that begin further apart than this were not begun simultaneously: it is longer than a round
/// trip.
const AT_ONCE: Duration = Duration::from_secs(1);

impl SessionEngine {
    /// Turns a handshake whose peer has proved its key into a session, or refuses it.
    pub(super) fn ready(
        &mut self,
        now: Instant,
        number: SessionNumber,
        remote: &RemoteEnd,
        out: &mut Out,
    ) -> Result<(), Reason> {
        let Some(session) = self.sessions.get_mut(&number) else { return Ok(()) };
        let peer = remote.key;
        let protocol = Protocol::from_name(&remote.protocol).ok_or(Reason::WrongHello)?;
        (session.peer, session.protocol) = (Some(peer), protocol);
        let (role, reserved) = (session.record.role(), session.ids.clone());
        let theirs = Hello::parse(&remote.hello)?.ids;
        let channels = match protocol {
            Protocol::Mesh if !self.members.contains(&peer) => return Err(Reason::NotMember),
            // A client has already sent its ids.
            Protocol::Mesh if role == Role::Client => theirs.len().min(reserved.len()),
            Protocol::Mesh => theirs.len().min(self.offered()),
            Protocol::Join => 0,
        };
        let fits = match protocol {
            Protocol::Mesh => channels > 0,
            Protocol::Join => theirs.is_empty(),
        };
        if !fits {
            return Err(Reason::WrongHello);
        }
        if protocol == Protocol::Mesh {
            self.resolve_rivals(now, number, peer, role, out)?;
        }
        let mut ids = match role {
            Role::Client => reserved,
            Role::Server => self.reserve(number, channels)?,
        };
        self.channel_ids.release(ids.get(channels..).unwrap_or_default());
        ids.truncate(channels);
        self.establish(now, number, peer, (ids, theirs), out)
    }

    fn establish(
        &mut self,
        now: Instant,
        number: SessionNumber,
        peer: KeyHash,
        (ids, theirs): (Vec<PeerId>, Vec<u32>),
        out: &mut Out,
    ) -> Result<(), Reason> {
        let Some(session) = self.sessions.get_mut(&number) else { return Ok(()) };
        let record = &mut session.record;
        let (role, link) = (record.role(), record.link());
        let ends = Ends::of(&self.mesh, role, &self.own, &peer);
        let data = ids.iter().zip(theirs).enumerate().map(|(channel, (&peer, wire_id))| {
            let keys = ends.data_keys(record, channel)?;
            Ok(DataTerms { peer, wire_id, cipher: self.policy.cipher, keys })
        });
        let data = data.collect::<Result<Vec<_>, adit_openvpn::Reason>>()?;
        let hello = Hello { ids: ids.iter().map(|id| id.0).collect() }.encode();
        // From here on the data plane knows the channels.
        session.establish(now, ids.clone(), &self.policy);
        session.record.establish(now, &hello, data, &mut self.random, out)?;
        let protocol = session.protocol;
        // Anyone who has seen a token can begin a session for joining, so it counts as a handshake until it ends.
        if protocol == Protocol::Mesh {
            if std::mem::take(&mut session.is_handshake) {
                self.listener.finished(link, true);
            }
            self.streams.established(link);
        }
        let session = number;
        out.event(Event::Established { session, peer, protocol, role, channels: ids, link });
        Ok(())
    }

    /// Keeps only one session with a member.
    ///
    /// # Errors
    /// Another one remains.
    fn resolve_rivals(
        &mut self,
        now: Instant,
        number: SessionNumber,
        peer: KeyHash,
        role: Role,
        out: &mut Out,
    ) -> Result<(), Reason> {
        let we_are_client = self.own < peer;
        let began = self.sessions.get(&number).map_or(now, |session| session.began);
        let mut rivals = self.with(&peer, Protocol::Mesh);
        rivals.retain(|rival| *rival != number);
        for rival in rivals {
            let Some(other) = self.sessions.get(&rival) else { continue };
            // Both nodes connected at once if our attempt has been answered, or had only just become a session when the peer's began. If
            // the peer's attempt began later, the peer has lost that session.
            let ours = other.record.role() == Role::Client;
            let at_once = match other.established {
                None => other.record.remote_id().is_some(),
                Some(at) => began < at + AT_ONCE,
            };
            if role == Role::Server && we_are_client && ours && at_once {
                return Err(Reason::Superseded);
            }
            let reason = match other.established {
                Some(_) => Reason::Replaced,
                None => Reason::Superseded,
            };
            self.end(now, rival, reason, out);
        }
        Ok(())
    }
}
