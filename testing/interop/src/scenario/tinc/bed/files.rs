//! The files of the nodes.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use adit_tinc::keys::PrivateKey;

use super::{DEVICE, Kind, Mode, NetSpec, inner, outer};
use crate::failure::{Context, Failure, Result};
use crate::file;
use crate::process::run_with_input;

/// An RSA key for all nodes that need one, because making one takes long.
struct Rsa {
    private: String,
    public: String,
}

static RSA: LazyLock<Result<Rsa>> = LazyLock::new(|| {
    let openssl = |words: &[&str], input: &str| {
        let mut command = Command::new("openssl");
        command.args(words);
        run_with_input(command, input)
    };
    let private = openssl(&["genrsa", "-traditional", "2048"], "")?;
    let public = openssl(&["rsa", "-RSAPublicKey_out"], &private)?;
    Ok(Rsa { private, public })
});

fn rsa() -> Result<&'static Rsa> {
    RSA.as_ref().map_err(Failure::clone)
}

/// Returns the key of a node. Its twin has the same.
fn key(spec: &NetSpec, at: usize) -> PrivateKey {
    let of = spec.nodes.get(at).and_then(|node| node.twin_of).unwrap_or(at);
    PrivateKey::from_seed(&[u8::try_from(of + 1).unwrap_or_default(); 32])
}

/// Writes the files of a node that no invitation gives it.
pub(super) fn write_files(spec: &NetSpec, at: usize, folder: &Path) -> Result<()> {
    let node = spec.nodes.get(at).context("no such node")?;
    fs::create_dir_all(folder.join("hosts"))?;
    let mut conf =
        format!("Name = {}\nMode = {}\n{}", node.name, spec.mode.word(), local_conf(spec));
    for to in &node.connect_to {
        let name = &spec.nodes.get(*to).context("no such node")?.name;
        // Writing to a String cannot fail.
        let _ = writeln!(conf, "ConnectTo = {name}");
    }
    if spec.has_rsa(at) {
        file::write(folder.join("rsa_key.priv"), &rsa()?.private, 0o600)?;
    }
    if node.kind != Kind::V1_0 {
        file::write(folder.join("ed25519_key.priv"), key(spec, at).to_file(), 0o600)?;
    }
    file::write(folder.join("tinc.conf"), &conf, 0o644)?;
    file::write(folder.join("tinc-up"), up_script(spec.mode, at), 0o755)?;
    for (other, its) in spec.nodes.iter().enumerate() {
        let is_twin = other != at && its.name == node.name;
        if !is_twin
            && its.invited_by.is_none()
            && (other == at || !spec.only_neighbours || spec.are_neighbours(at, other))
        {
            let path = folder.join("hosts").join(&its.name);
            // A twin's file has the address of the first one.
            if other == at || !path.exists() {
                file::write(&path, &host_file(spec, other)?, 0o644)?;
            }
        }
    }
    Ok(())
}

/// Returns the lines of every `tinc.conf` that no invitation has.
pub(super) fn local_conf(spec: &NetSpec) -> String {
    let family = if spec.outer_v6 { "ipv6" } else { "ipv4" };
    format!("Interface = {DEVICE}\nAddressFamily = {family}\nAutoConnect = no\n{}", spec.conf)
}

pub(super) fn append(path: &Path, text: &str) -> Result<()> {
    let before = fs::read_to_string(path).context(path.display())?;
    Ok(fs::write(path, format!("{before}\n{text}"))?)
}

/// Returns the lines of a node's host file besides its keys.
pub(super) fn public_lines(spec: &NetSpec, at: usize) -> Result<String> {
    let node = spec.nodes.get(at).context("no such node")?;
    let mut text = format!("Address = {}\n{}", outer(at, spec.outer_v6), node.host);
    if spec.mode == Mode::Router {
        // Writing to a String cannot fail.
        let _ =
            write!(text, "Subnet = {}/32\nSubnet = {}/128\n", inner(at, false), inner(at, true));
    }
    Ok(text)
}

fn host_file(spec: &NetSpec, at: usize) -> Result<String> {
    let node = spec.nodes.get(at).context("no such node")?;
    let mut text = public_lines(spec, at)?;
    if node.kind != Kind::V1_0 {
        let _ = writeln!(text, "Ed25519PublicKey = {}", key(spec, at).public());
    }
    if spec.has_rsa(at) {
        text.push_str(&rsa()?.public);
    }
    Ok(text)
}

/// Returns the script that configures a node's device. Its hardware address survives a restart.
pub(super) fn up_script(mode: Mode, at: usize) -> String {
    let hardware = match mode {
        Mode::Router => String::new(),
        Mode::Switch | Mode::Hub => {
            format!("link set $INTERFACE address 02:00:00:00:00:{:02x}\n", at + 1)
        }
    };
    format!(
        "#!/bin/sh\nip -batch - <<END\n{hardware}link set $INTERFACE up\n\
         addr add {}/24 dev $INTERFACE\naddr add {}/64 dev $INTERFACE nodad\nEND\n",
        inner(at, false),
        inner(at, true)
    )
}
