//! The names of scripts.

/// The script that runs when an invitation was created.
pub const INVITATION_CREATED: &str = "invitation-created";

/// The script that runs when a new node has accepted an invitation.
pub const INVITATION_ACCEPTED: &str = "invitation-accepted";

/// The scripts in the configuration directory. In `hosts`, each host may have two of its own; see [`host_of`].
pub const SCRIPTS: [&str; 8] = [
    "tinc-up",
    "tinc-down",
    "host-up",
    "host-down",
    "subnet-up",
    "subnet-down",
    INVITATION_CREATED,
    INVITATION_ACCEPTED,
];

/// Returns the part of a host script's name that names the host; `None` for other names.
pub fn host_of(script: &str) -> Option<&str> {
    script.strip_suffix("-up").or_else(|| script.strip_suffix("-down"))
}
