//! Parses and writes /etc/resolv.conf. Our file contains the original in comments, so it can be restored whatever happens to this process.

use std::net::IpAddr;

use super::plan::DnsPlan;

/// The first words of our file.
const HEADER: &str = "# Written by adit for ";
/// The prefix of each line of the original.
const KEPT: &str = "#= ";
/// The prefix of the original's target, if it was a symbolic link.
const LINK: &str = "#-> ";
/// The marker in place of an original that did not exist.
const ABSENT: &str = "#! absent";
/// The marker for an original whose last line had no line feed.
const OPEN_END: &str = "#! no final line feed";

/// The maximum number of servers that the C library queries.
pub(super) const LIBC_SERVERS: usize = 3;

/// The original /etc/resolv.conf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Original {
    /// There was no file.
    Absent,
    /// A file with this content.
    File(Vec<u8>),
    /// A symbolic link to this target.
    Link(String),
}

/// The process that wrote our file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The process's TUN or TAP device.
    pub device: String,
    /// The process id.
    pub pid: u32,
    /// The start of the process, in clock ticks since boot.
    pub began: u64,
    /// The first digits of the boot id.
    pub boot: String,
    /// The inode of the process's PID namespace.
    pub namespace: u64,
}

/// The parsed content of our file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedFile {
    /// The process that wrote it.
    pub owner: Owner,
    /// The original content.
    pub original: Original,
}

/// Returns the servers of a resolv.conf as written, with the scope of link-local ones.
pub fn nameservers(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    let words = text.lines().filter_map(|line| line.trim_start().strip_prefix("nameserver"));
    let words = words.filter(|rest| rest.starts_with([' ', '\t']));
    words.filter_map(|rest| rest.split_whitespace().next()).map(str::to_owned).collect()
}

/// Returns the servers of a resolv.conf as plain addresses.
pub fn addresses(text: &[u8]) -> Vec<IpAddr> {
    let plain = |name: String| name.split('%').next().unwrap_or_default().parse().ok();
    nameservers(text).into_iter().filter_map(plain).collect()
}

/// Returns the lines about a tunnel's servers.
pub(super) fn body(plan: &DnsPlan) -> String {
    let mut text = String::new();
    for server in plan.servers.iter().take(LIBC_SERVERS) {
        text.push_str(&format!("nameserver {}\n", server.ip()));
    }
    if !plan.search.is_empty() {
        text.push_str(&format!("search {}\n", plan.search.join(" ")));
    }
    text
}

/// Formats a complete file.
pub(super) fn write(plan: &DnsPlan, owner: &Owner, original: &Original) -> Vec<u8> {
    let mut text = format!(
        "{HEADER}{} (process {}, began {}, boot {}, pid namespace {}). Lines behind \"{}\" are the \
         original.\n",
        owner.device,
        owner.pid,
        owner.began,
        owner.boot,
        owner.namespace,
        KEPT.trim_end(),
    )
    .into_bytes();
    let mut options = String::new();
    match original {
        Original::Absent => text.extend_from_slice(format!("{ABSENT}\n").as_bytes()),
        Original::Link(target) => text.extend_from_slice(format!("{LINK}{target}\n").as_bytes()),
        Original::File(bytes) => {
            let open = bytes.last().is_some_and(|byte| *byte != b'\n');
            let lines = bytes.strip_suffix(b"\n").unwrap_or(bytes);
            if !bytes.is_empty() {
                for line in lines.split(|byte| *byte == b'\n') {
                    text.extend_from_slice(KEPT.as_bytes());
                    text.extend_from_slice(line);
                    text.push(b'\n');
                }
            }
            if open {
                text.extend_from_slice(format!("{OPEN_END}\n").as_bytes());
            }
            options = kept_options(bytes);
        }
    }
    text.extend_from_slice(body(plan).as_bytes());
    text.extend_from_slice(options.as_bytes());
    text
}

/// Returns the `options` of the original, except the one that trusts its servers' validation.
fn kept_options(original: &[u8]) -> String {
    let text = String::from_utf8_lossy(original);
    let lines = text.lines().filter_map(|line| line.strip_prefix("options "));
    let words = lines.flat_map(str::split_whitespace).filter(|word| *word != "trust-ad");
    let plain = |word: &&str| word.bytes().all(|b| b.is_ascii_graphic());
    let words: Vec<&str> = words.filter(plain).take(16).collect();
    if words.is_empty() { String::new() } else { format!("options {}\n", words.join(" ")) }
}

/// Parses a file. Returns `None` if it is not ours.
pub fn read(bytes: &[u8]) -> Option<GeneratedFile> {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let header = std::str::from_utf8(lines.next()?).ok()?.strip_prefix(HEADER)?;
    let (device, rest) = header.split_once(" (process ")?;
    let rest = rest.split_once(')')?.0;
    let mut fields = rest.split(", ");
    let owner = Owner {
        device: device.to_owned(),
        pid: fields.next()?.parse().ok()?,
        began: fields.next()?.strip_prefix("began ")?.parse().ok()?,
        boot: fields.next()?.strip_prefix("boot ")?.to_owned(),
        namespace: fields.next()?.strip_prefix("pid namespace ")?.parse().ok()?,
    };
    let mut kept: Vec<u8> = Vec::new();
    let mut open = false;
    for line in lines {
        if line == ABSENT.as_bytes() {
            return Some(GeneratedFile { owner, original: Original::Absent });
        }
        if let Some(target) = line.strip_prefix(LINK.as_bytes()) {
            let target = String::from_utf8(target.to_vec()).ok()?;
            return Some(GeneratedFile { owner, original: Original::Link(target) });
        }
        if let Some(line) = line.strip_prefix(KEPT.as_bytes()) {
            kept.extend_from_slice(line);
            kept.push(b'\n');
        } else if line == OPEN_END.as_bytes() {
            open = true;
        } else {
            break;
        }
    }
    if open {
        kept.pop();
    }
    Some(GeneratedFile { owner, original: Original::File(kept) })
}

/// Parses any resolv.conf and the file that adit generates from it, for the fuzzer.
pub(in crate::host) fn fuzz(bytes: &[u8]) {
    assert!(addresses(bytes).len() <= nameservers(bytes).len());
    // A file that looks like ours cannot be an original.
    if read(bytes).is_some() {
        return;
    }
    let plan = DnsPlan {
        servers: vec![([10, 8, 0, 1], 53).into()],
        search: vec!["corp.example".into()],
        domains: Vec::new(),
        dnssec: None,
        transport: super::plan::Transport::Plain,
    };
    let (device, boot) = ("tun0".to_owned(), "01234567".to_owned());
    let owner = Owner { device, pid: 12, began: 345, boot, namespace: 4_026_531_836 };
    let original = Original::File(bytes.to_vec());
    let written = write(&plan, &owner, &original);
    assert_eq!(
        read(&written),
        Some(GeneratedFile { owner, original }),
        "the original is not given back"
    );
    assert_eq!(nameservers(&written), ["10.8.0.1"], "another server is asked");
}

#[cfg(test)]
mod tests {
    use super::super::plan::Transport;
    use super::*;

    fn owner() -> Owner {
        Owner {
            device: "tun0".into(),
            pid: 12,
            began: 345,
            boot: "01234567".into(),
            namespace: 4_026_531_836,
        }
    }

    fn plan() -> DnsPlan {
        DnsPlan {
            servers: ["10.8.0.1:53", "[fd00::1]:53", "10.8.0.3:53", "10.8.0.4:53"]
                .map(|server| server.parse().unwrap())
                .into(),
            search: vec!["corp.example".into(), "lab.example".into()],
            domains: Vec::new(),
            dnssec: None,
            transport: Transport::Plain,
        }
    }

    #[test]
    fn a_file_of_ours_gives_the_original_back_to_the_byte() {
        for original in [
            Original::Absent,
            Original::Link("../run/systemd/resolve/stub-resolv.conf".into()),
            Original::File(Vec::new()),
            Original::File(b"\n".to_vec()),
            Original::File(b"nameserver 192.0.2.1\n".to_vec()),
            Original::File(b"nameserver 192.0.2.1".to_vec()),
            Original::File(b"\n\n# \xff\r\nnameserver 192.0.2.1\n\n".to_vec()),
            Original::File(b"#= nested\n#! absent\n#-> x\n".to_vec()),
        ] {
            let file = write(&plan(), &owner(), &original);
            let ours = GeneratedFile { owner: owner(), original };
            assert_eq!(read(&file), Some(ours.clone()));
            // A second tunnel over the first.
            let second = write(&plan(), &owner(), &Original::File(file.clone()));
            assert_eq!(read(&second).unwrap().original, Original::File(file));
        }
        assert_eq!(read(b"nameserver 192.0.2.1\n"), None);
        assert_eq!(read(b""), None);
        assert_eq!(read(b"# Written by adit for tun0 (process x, began"), None);
    }

    #[test]
    fn the_c_library_reads_the_tunnels_servers_alone() {
        let original = b"nameserver 192.0.2.1\noptions edns0 trust-ad timeout:1\nsearch home\n";
        let file = write(&plan(), &owner(), &Original::File(original.to_vec()));
        let expected: Vec<IpAddr> =
            ["10.8.0.1", "fd00::1", "10.8.0.3"].map(|ip| ip.parse().unwrap()).into();
        assert_eq!(addresses(&file), expected);
        let text = String::from_utf8(file).unwrap();
        assert!(
            text.ends_with("search corp.example lab.example\noptions edns0 timeout:1\n"),
            "{text}"
        );
    }

    #[test]
    fn nameserver_lines_are_read_as_the_c_library_does() {
        let text = b" nameserver\t192.0.2.1 # x\n#nameserver 192.0.2.2\nnameservers 192.0.2.3\n\
                     nameserver fe80::1%eth0\nnameserver what\n";
        assert_eq!(nameservers(text), ["192.0.2.1", "fe80::1%eth0", "what"]);
        assert_eq!(addresses(text).len(), 2);
    }
}
