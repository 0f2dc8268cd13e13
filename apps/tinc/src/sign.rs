//! `sign` and `verify`: files signed with a node's key.
//!
//! A signed file is a line `Signature = NAME TIME SIGNATURE` before the data. The signature is of the data followed by ` NAME TIME`.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use adit_runtime::fault::Fault;
use adit_tinc::base64;
use adit_tinc::name::NodeName;

use crate::console::{Console, reason};
use crate::keys::{read_private, read_public};
use crate::net::Net;

const PREFIX: &str = "Signature = ";

/// The longest signature line, bytes.
const MAX_LINE: usize = 2048;

/// Prints a file, or the input, with a signature before it.
///
/// # Errors
/// Fails if the file or the key cannot be read.
pub fn sign(net: &Net, file: Option<&Path>, console: &mut Console<'_>) -> Result<(), Fault> {
    let name = net.own_name()?;
    let key = read_private(net)?;
    let data = read(file, console)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
    let signature = key.sign(&signed(&data, &name, &now.to_string()));
    console.print(&format!("{PREFIX}{name} {now} {}\n", base64::encode(&signature)));
    console.print_bytes(&data);
    Ok(())
}

/// Prints a signed file, or the input, without its signature. The signer must be `signer`: a node, `.` for this one, or `*` for any
/// whose key is known.
///
/// # Errors
/// Fails if the signature is missing, wrong, or another node's. Nothing is printed then.
pub fn verify(
    net: &Net,
    signer: &str,
    file: Option<&Path>,
    console: &mut Console<'_>,
) -> Result<(), Fault> {
    let wanted: Option<NodeName> = match signer {
        "*" => None,
        "." => Some(net.own_name()?),
        name => Some(name.parse().map_err(|_| Fault::operator("Invalid node name"))?),
    };
    let input = read(file, console)?;
    let invalid = || Fault::operator("Invalid input");
    let end = input.iter().take(MAX_LINE).position(|byte| *byte == b'\n').ok_or_else(invalid)?;
    let (line, data) = input.split_at_checked(end).ok_or_else(invalid)?;
    let data = data.get(1..).unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| invalid())?;
    let mut words = line.strip_prefix(PREFIX).ok_or_else(invalid)?.split(' ');
    let (Some(name), Some(time), Some(signature), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(invalid());
    };
    let name: NodeName = name.parse().map_err(|_| invalid())?;
    if time.is_empty() || !time.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid());
    }
    if let Some(wanted) = wanted.filter(|wanted| *wanted != name) {
        return Err(Fault::operator(format!("Signature is not made by {wanted}")));
    }
    let signature = base64::decode(signature.as_bytes()).ok_or_else(invalid)?;
    let key = read_public(net, &name)?;
    if !key.verify(&signed(data, &name, time), &signature) {
        return Err(Fault::operator("Invalid signature"));
    }
    console.print_bytes(data);
    Ok(())
}

fn signed(data: &[u8], name: &NodeName, time: &str) -> Vec<u8> {
    [data, format!(" {name} {time}").as_bytes()].concat()
}

fn read(file: Option<&Path>, console: &mut Console<'_>) -> Result<Vec<u8>, Fault> {
    let Some(path) = file else { return console.read() };
    std::fs::read(path).map_err(|error| {
        Fault::operator(format!("Could not open {}: {}", path.display(), reason(&error)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::generate_ed25519;
    use crate::testing::{Folder, Printed};

    /// Made by tinc 1.1pre18.
    const SIGNED: &[u8] = b"Signature = alice 1795699993 zsqYWBBpo2QGerWGpcS3p4ofAymR/BdDH3DS9eaeRv8qFeqAF6MYktH+7sG8+qjt6mLCKQcmqKzYvdrTpKLPPA\nhello\n";

    fn check(folder: &Folder, signer: &str, input: &[u8]) -> Printed {
        folder.run(input, false, |net, console| verify(net, signer, None, console))
    }

    #[test]
    fn a_signed_file_names_its_signer() {
        let folder = Folder::new();
        folder.run(b"", false, generate_ed25519);
        let signed = folder.run(b"hello\n", false, |net, console| sign(net, None, console)).out;
        for signer in ["alice", ".", "*"] {
            let printed = check(&folder, signer, signed.as_bytes());
            assert_eq!((printed.out.as_str(), printed.error), ("hello\n", None), "{signer}");
        }
        let error = |signer, input: &str| check(&folder, signer, input.as_bytes()).error.unwrap();
        assert_eq!(error("bob", &signed), "Signature is not made by bob");
        assert_eq!(error("alice", &signed.replace("hello", "hallo")), "Invalid signature");
        // The time is signed as well.
        assert_eq!(error("alice", &signed.replacen("alice ", "alice 1", 1)), "Invalid signature");
        assert_eq!(error("!", &signed), "Invalid node name");
        for input in ["", "hello", "Signature = alice 1\nx", "Signature = alice x y\n", "\n"] {
            assert_eq!(error("alice", input), "Invalid input", "{input:?}");
        }
    }

    #[test]
    fn a_file_signed_by_tinc_is_valid() {
        let folder = Folder::new();
        folder.write(
            "hosts/alice",
            "Ed25519PublicKey = bargAVv8NAbbpNAnqm61dzPwsezFNwX9lhe665qwMWO\n",
        );
        let printed = check(&folder, "alice", SIGNED);
        assert_eq!((printed.out.as_str(), printed.error), ("hello\n", None));
    }
}
