//! `adit mesh import-tinc`: makes a mesh from the configuration directory of a tinc net.
//!
//! ```text
//!   tinc.conf, conf.d, hosts ──Files──► Import::plan ──► Import ──► ImportPlan, for a dry run
//!                                                           └─store─► the mesh's files, one token for each other host
//! ```

mod counterpart;
mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_engine::UnixTime;
use adit_mesh::path::is_usable;
use adit_mesh::roster::{Label, Layer, MAX_SUBNETS};
use adit_mesh::token::{
    Invitation, Invitations, JoinSecret, MAX_ADDRESSES, MAX_INVITATIONS, Terms, Token,
};
use adit_runtime::clock::unix_time;
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::netinfo;
use adit_runtime::paths::{make_folder, write_whole};
use adit_tinc::config::variables::Variable;
use adit_tinc::config::{Entry, Mode};
use adit_tinc::subnet::Subnet;
use ipnet::{IpNet, Ipv4Net};
use serde::Serialize;
use zeroize::Zeroizing;

use self::counterpart::{Counterpart, counterpart};
use self::files::{Files, Host};
use crate::found::{self, NewRoster};
use crate::node::usable_addresses;
use crate::{DEFAULT_NAME, NewMesh, Paths, Settings};

/// The choices for an import.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// tinc's configuration directory.
    pub directory: PathBuf,
    /// The folder of all files of the mesh, if not the default.
    pub dir: Option<PathBuf>,
    /// The name of the mesh, or `None` for the net's.
    pub mesh: Option<String>,
    /// The range of the nodes' IPv4 addresses, or `None` for one that overlaps no network of this machine or of the net.
    pub range: Option<Ipv4Net>,
    /// How long the tokens are valid.
    pub valid: Duration,
}

/// What an import creates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImportPlan {
    /// The mesh's name.
    pub mesh: String,
    /// The range of the nodes' IPv4 addresses.
    pub range: Ipv4Net,
    /// Whether the mesh carries Ethernet frames.
    pub ethernet: bool,
    /// The addresses at which the other machines find this one: those in the tokens.
    pub addresses: Vec<SocketAddr>,
    /// The members. The first one is this machine.
    pub members: Vec<ImportedMember>,
    /// Lines and scripts of tinc that have no counterpart in a mesh, each with the reason.
    pub notes: Vec<String>,
}

/// A host of the net as a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImportedMember {
    /// Its name in the mesh.
    pub name: String,
    /// Its name in the net.
    pub host: String,
    /// The networks behind it.
    pub subnets: BTreeSet<IpNet>,
    /// Whether it relays for others, because its host file has an address.
    pub relay: bool,
    /// Whether others may reach the internet through it, because it has a default route.
    pub gateway: bool,
}

/// A token for one machine.
#[derive(Debug)]
pub struct ImportedToken {
    /// The machine's name in the mesh.
    pub name: String,
    /// The token, unless it is in a file.
    pub token: Option<Zeroizing<String>>,
    /// The file with the token, mode 0600.
    pub file: Option<PathBuf>,
}

/// An import that has not been carried out.
#[derive(Debug)]
pub struct Import {
    /// What it creates.
    pub plan: ImportPlan,
    /// Where the mesh's files will be.
    pub paths: Paths,
    tcp_port: Option<NonZeroU16>,
    valid: Duration,
}

impl Import {
    /// Reads the files of the net, and changes nothing.
    ///
    /// # Errors
    /// A line is wrong or does not fit a mesh (the fault names file and line), or this machine is in the mesh already.
    pub fn plan(options: &ImportOptions) -> Result<Self, Fault> {
        let mesh = mesh_name(options)?;
        let paths = Paths::new(options.dir.as_deref(), &mesh)?;
        if paths.exists() {
            return Err(Fault::operator(format!(
                "this machine is already in the mesh {mesh}: choose another name with --mesh"
            )));
        }
        let settings = Settings::load(&paths)?;
        if settings.port == 0 {
            let file = paths.settings_file();
            return Err(Fault::operator(format!(
                "{}: port = 0: the tokens contain the port: choose one",
                file.display()
            )));
        }
        let files = Files::read(&options.directory)?;
        let layer = match files.server.mode {
            Mode::Router => Layer::Ip,
            Mode::Switch | Mode::Hub => Layer::Ethernet,
        };
        let mut notes = Vec::new();
        let members = members(&files, layer, &mut notes)?;
        let addresses = addresses(&files.own, settings.port, &mut notes)?;
        lines_without_counterpart(&files, &mut notes);
        let subnets = members.iter().flat_map(|member| member.subnets.iter().copied());
        let taken: Vec<IpNet> = netinfo::local_networks().into_iter().chain(subnets).collect();
        let range = found::range(options.range, &taken)?;
        let ethernet = layer == Layer::Ethernet;
        let plan = ImportPlan { mesh, range, ethernet, addresses, members, notes };
        let tcp_port = NonZeroU16::new(settings.tcp_port);
        Ok(Self { plan, paths, tcp_port, valid: options.valid })
    }

    /// Creates the mesh, with this machine as its first member and an invitation for each other host. With a folder, the tokens are written
    /// into files in it.
    ///
    /// # Errors
    /// A file cannot be written. Then there is neither a mesh nor a file with a token.
    pub fn carry_out(&self, folder: Option<&Path>) -> Result<Vec<ImportedToken>, Fault> {
        let layer = if self.plan.ethernet { Layer::Ethernet } else { Layer::Ip };
        let Some((own, others)) = self.plan.members.split_first() else {
            return Err(Fault::ours("an import without members"));
        };
        let choices = NewMesh {
            node: Some(own.name.clone()),
            range: Some(self.plan.range),
            relay: true,
            gateway: own.gateway,
            openvpn: false,
            layer,
            subnets: own.subnets.clone(),
        };
        let roster = NewRoster::create(&self.paths, &choices)?;
        let mut invitations = Invitations::new(*roster.mesh());
        let mut tokens = Vec::new();
        for member in others {
            tokens.push((member, self.invite(member, &roster, &mut invitations)?));
        }
        let mut delivered = Vec::new();
        let stored = deliver(tokens, folder, &mut delivered)
            .and_then(|()| roster.store(&self.paths, Some(&invitations)));
        if stored.is_err() {
            // The mesh of these tokens does not exist.
            let files = delivered.iter().filter_map(|token: &ImportedToken| token.file.as_ref());
            files.for_each(|file| drop(fs::remove_file(file)));
        }
        stored.map(|()| delivered)
    }

    /// Adds the invitation of a member. Returns its token, as a line.
    fn invite(
        &self,
        member: &ImportedMember,
        roster: &NewRoster,
        invitations: &mut Invitations,
    ) -> Result<Zeroizing<String>, Fault> {
        let wrong = |error: &dyn std::fmt::Display| Fault::operator(error.to_string());
        let secret = JoinSecret::generate(&mut adit_runtime::random::generator()?);
        let now = unix_time();
        let invitation = Invitation {
            secret_hash: secret.hash(roster.mesh()),
            uses: 1,
            until: UnixTime(now.0.saturating_add(self.valid.as_secs())),
            terms: Terms {
                name: Label::new(&member.name),
                range: Some(self.plan.range),
                subnets: member.subnets.clone(),
                relay: member.relay,
                gateway: member.gateway,
                ..Terms::default()
            },
        };
        invitations.add(invitation, now).map_err(|error| wrong(&error))?;
        let token = Token::new(*roster.mesh(), roster.node(), secret, self.plan.addresses.clone())
            .map_err(|error| wrong(&error))?;
        Ok(Zeroizing::new(token.with_tcp_port(self.tcp_port).to_string()))
    }
}

/// Writes the tokens into files, if there is a folder for them. Adds each to `delivered`.
fn deliver(
    tokens: Vec<(&ImportedMember, Zeroizing<String>)>,
    folder: Option<&Path>,
    delivered: &mut Vec<ImportedToken>,
) -> Result<(), Fault> {
    for (member, token) in tokens {
        let name = member.name.clone();
        delivered.push(match folder {
            None => ImportedToken { name, token: Some(token), file: None },
            Some(folder) => {
                let file = folder.join(format!("{name}.token"));
                write_token(&file, &token)?;
                ImportedToken { name, token: None, file: Some(file) }
            }
        });
    }
    Ok(())
}

fn write_token(file: &Path, token: &str) -> Result<(), Fault> {
    if file.exists() {
        return Err(Fault::operator(format!(
            "{} exists: remove it, or choose another folder with --tokens",
            file.display()
        )));
    }
    if let Some(folder) = file.parent() {
        make_folder(folder, 0o700)?;
    }
    write_whole(file, 0o600, token.as_bytes())
}

/// Returns the chosen name of the mesh, or one from the name of the directory, as in /etc/tinc/NET.
fn mesh_name(options: &ImportOptions) -> Result<String, Fault> {
    if let Some(mesh) = &options.mesh {
        return Ok(mesh.clone());
    }
    let directory = std::path::absolute(&options.directory)
        .map_err(|error| file_fault("cannot find", &options.directory, &error))?;
    if directory == Path::new("/etc/tinc") {
        return Ok(DEFAULT_NAME.to_owned());
    }
    let net = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(label(&net).map_or(net, |label| label.to_string()))
}

/// Turns a name of tinc into one of a mesh: in lower case, with hyphens in place of underscores.
fn label(name: &str) -> Option<Label> {
    let plain = name.to_ascii_lowercase().replace('_', "-");
    Label::new(plain.trim_matches('-'))
}

/// Returns the members, this machine first.
fn members(
    files: &Files,
    layer: Layer,
    notes: &mut Vec<String>,
) -> Result<Vec<ImportedMember>, Fault> {
    if files.others.len() > MAX_INVITATIONS {
        return Err(Fault::operator(format!(
            "{} other hosts: a node has at most {MAX_INVITATIONS} open invitations; import a copy of the directory with fewer \
             host files, and invite the other machines later",
            files.others.len()
        )));
    }
    let mut members: Vec<ImportedMember> = Vec::new();
    let mut named: BTreeMap<String, &Path> = BTreeMap::new();
    for host in std::iter::once(&files.own).chain(&files.others) {
        let name = label(host.name.as_str()).ok_or_else(|| {
            Fault::operator(format!(
                "{}: no name of a mesh's node can be made from {}: rename the host",
                host.file.display(),
                host.name
            ))
        })?;
        if let Some(other) = named.insert(name.to_string(), &host.file) {
            return Err(Fault::operator(format!(
                "{} and {}: both would be {name} in the mesh: rename one of the hosts",
                other.display(),
                host.file.display()
            )));
        }
        members.push(ImportedMember {
            name: name.to_string(),
            host: host.name.to_string(),
            subnets: BTreeSet::new(),
            relay: host.values("Address").next().is_some(),
            gateway: false,
        });
    }
    if let Some(own) = members.first_mut() {
        own.relay = true;
    }
    give_subnets(files, layer, &mut members, notes)?;
    Ok(members)
}

/// Gives each subnet to one member: the one that packets for it go to, if all are reachable.
fn give_subnets(
    files: &Files,
    layer: Layer,
    members: &mut [ImportedMember],
    notes: &mut Vec<String>,
) -> Result<(), Fault> {
    let mut owners: BTreeMap<IpNet, Vec<(i32, usize, &Entry)>> = BTreeMap::new();
    for (at, host) in std::iter::once(&files.own).chain(&files.others).enumerate() {
        for line in host.values("Subnet") {
            let subnet = Subnet::from_config(&line.value)
                .map_err(|error| at_line(line, &error.to_string()))?;
            match subnet.ip_net() {
                Some(net) => owners.entry(net).or_default().push((subnet.weight(), at, line)),
                None => notes.push(note(line, "members learn MAC addresses by themselves")),
            }
        }
    }
    for (net, mut claims) in owners {
        claims.sort_by_key(|(weight, at, _)| (*weight, *at));
        let mut claims = claims.into_iter();
        let Some((_, first, line)) = claims.next() else { continue };
        let Some(member) = members.get_mut(first) else { continue };
        for (_, _, other) in claims {
            notes.push(note(
                other,
                &format!("a network is behind one member, and {net} is behind {}", member.name),
            ));
        }
        if net.prefix_len() > 0 {
            member.subnets.insert(net);
        } else if layer == Layer::Ip {
            member.gateway = true;
        } else {
            notes.push(note(line, "a mesh of Ethernet frames has no gateways to the internet"));
        }
        if member.subnets.len() > MAX_SUBNETS {
            let many =
                format!("more than {MAX_SUBNETS} networks, which is the most that a member has");
            return Err(at_line(line, &many));
        }
        if net.prefix_len() > 0 && net.prefix_len() == net.max_prefix_len() {
            notes.push(format!(
                "{}:{}: {} belongs to tinc's device: to keep the address after tinc has ended, run on that machine: ip addr \
                 add {net} dev lo",
                line.file,
                line.line,
                net.addr()
            ));
        }
    }
    Ok(())
}

/// Returns the addresses for the tokens: those in this machine's host file, then those of its interfaces.
fn addresses(own: &Host, port: u16, notes: &mut Vec<String>) -> Result<Vec<SocketAddr>, Fault> {
    let mut found = Vec::new();
    for line in own.values("Address") {
        let host = line.value.split_whitespace().next().unwrap_or_default();
        match (host, port).to_socket_addrs() {
            Ok(addresses) => found.extend(addresses),
            Err(error) => notes.push(note(line, &format!("{host} has no address now: {error}"))),
        }
    }
    found.extend(usable_addresses("").into_iter().map(|ip| SocketAddr::new(ip, port)));
    let mut seen = BTreeSet::new();
    found.retain(|address| is_usable(*address) && seen.insert(*address));
    found.truncate(MAX_ADDRESSES);
    if found.is_empty() {
        return Err(Fault::operator(format!(
            "{}: this machine has no address that others can reach: add a line Address = ...",
            own.file.display()
        )));
    }
    Ok(found)
}

/// Names the lines and scripts that have no counterpart.
fn lines_without_counterpart(files: &Files, notes: &mut Vec<String>) {
    for line in std::iter::once(&files.own).chain(&files.others).flat_map(|host| &host.lines) {
        let variable = Variable::find(&line.name);
        match variable.and_then(|variable| counterpart(variable.name)) {
            Some(Counterpart::Covered) => {}
            Some(Counterpart::None(reason)) => notes.push(note(line, reason)),
            None => notes.push(note(line, "tinc has no such variable")),
        }
    }
    for script in &files.scripts {
        notes.push(format!(
            "{}: a mesh sets addresses and routes itself, and has no scripts",
            script.display()
        ));
    }
}

fn note(line: &Entry, reason: &str) -> String {
    format!("{}:{}: {}: {reason}", line.file, line.line, line.name)
}

fn at_line(line: &Entry, reason: &str) -> Fault {
    Fault::operator(note(line, reason))
}

#[cfg(test)]
mod tests;
