//! Certificate authority, client registry and profiles of a managed server.
//!
//! A [`Store`] is a directory. Its `private/` folder holds the authority's key, which is read only by the commands that
//! issue or revoke certificates. The network-facing process reads the files named by [`Store::files`] and watches
//! [`Files::clients`](Files). Every change is made under a lock and takes effect by a rename, so that a process killed
//! at any moment leaves each file either unchanged or complete.

#![forbid(unsafe_code)]

mod disk;
mod error;
mod issue;
mod issuer;
mod name;
mod profile;
mod registry;
mod store;

pub use disk::{OpenFile, write_private};
pub use error::PkiError;
pub use issuer::{IssuedProfile, Issuer, NewProfile};
pub use name::{ClientName, GroupName};
pub use profile::{Endpoint, Profile, Proto, Remote};
pub use registry::{CertificateStatus, Client, ClientState, FormerCertificate, MAX_GROUPS};
pub use store::{Files, InitOptions, IssuedClient, NewClient, ServerInfo, Store};
