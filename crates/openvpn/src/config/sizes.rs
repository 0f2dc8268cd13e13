//! What sizes allow and forbid together.

use adit_engine::Transport;

use super::ConfigError;
use super::draft::Draft;

/// `fragment` belongs to datagrams: TCP cuts and joins what it carries by itself.
pub(super) fn check(draft: &Draft) -> Result<(), ConfigError> {
    if draft.fragment.is_none() {
        return Ok(());
    }
    let remotes = draft.remotes.iter().chain(&draft.connections);
    let mut protos = remotes.map(|remote| remote.proto).chain([draft.proto]).flatten();
    if protos.any(|proto| proto.transport != Transport::Udp) {
        return Err(draft.error(
            "fragment",
            "it is for UDP, and TCP is asked for here",
            "remove it at both ends: over TCP no packet is too large",
        ));
    }
    Ok(())
}
