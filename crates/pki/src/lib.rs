//! Certificate authority, registry of clients and users, and profiles of a managed server.
//!
//! A [`Store`] is a directory. Its `private/` folder holds the authority's key, which is read only by the commands that
//! issue or revoke certificates. The network-facing process reads the files named by [`Store::files`] and watches
//! [`Files::clients`](Files). Every change is made under a lock and takes effect by a rename, so that a process killed
//! at any moment leaves each file either unchanged or complete.

#![forbid(unsafe_code)]

mod changes;
mod clients;
mod credentials;
mod disk;
mod error;
mod issue;
mod issuer;
mod name;
mod password;
mod profile;
mod recovery;
mod registry;
pub mod sealed;
mod server_info;
mod store;
mod terms;
mod totp;
mod users;

pub use changes::ClientChange;
pub use clients::{IssuedClient, NewClient};
pub use credentials::{BadCredentials, Credentials};
pub use disk::{OpenFile, write_private};
pub use error::PkiError;
pub use issue::web_certificate;
pub use issuer::{IssuedProfile, Issuer, NewProfile};
pub use name::{ClientName, GroupName};
pub use password::PasswordHash;
pub use profile::{Endpoint, Profile, Proto, Remote};
pub use recovery::RecoveryHash;
pub use registry::{CertificateStatus, Client, ClientState, FormerCertificate, MAX_GROUPS};
pub use server_info::ServerInfo;
pub use store::{Files, InitOptions, Store};
pub use terms::{ClientRate, ClientTerms, Member, Period, Quota};
pub use totp::{CodeCheck, TotpSecret};
pub use users::{NewCodes, NewUser, User, UserName, UserState, fuzz, user_name};
