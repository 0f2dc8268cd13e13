//! The server's own list of sessions, from its status file (version 2).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use crate::failure::{Context, Result};

/// Sessions by the client's outer address.
#[derive(Debug, Default)]
pub(super) struct StatusFile {
    pub sessions: BTreeMap<IpAddr, Vec<IpAddr>>,
}

impl StatusFile {
    pub(super) fn read(path: &Path) -> Result<Self> {
        // The file does not exist yet if no client has connected within the first second.
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(e.into()),
        };
        let mut sessions = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with("CLIENT_LIST,")) {
            let fields: Vec<&str> = line.split(',').collect();
            let [_, _, outer, v4, v6, ..] = fields.as_slice() else { continue };
            let inner = [v4, v6].into_iter().filter(|text| !text.is_empty());
            let inner =
                inner.map(|text| text.parse().context(*text)).collect::<Result<Vec<_>>>()?;
            sessions.insert(address(outer).context(line)?, inner);
        }
        Ok(Self { sessions })
    }
}

/// Parses `192.0.2.7:1194`, or the form with a transport before it, `tcp4-server:192.0.2.7:1194`.
fn address(text: &str) -> Option<IpAddr> {
    text.split(':').find_map(|part| part.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_version_2() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status");
        let text = "TITLE,x\nCLIENT_LIST,client,192.0.2.12:40000,10.88.0.2,fd88::1000,1,2,Fri,3,UNDEF,0,0,AES\nEND\n";
        std::fs::write(&path, text).unwrap();
        let status = StatusFile::read(&path).unwrap();
        let inner: Vec<IpAddr> = vec!["10.88.0.2".parse().unwrap(), "fd88::1000".parse().unwrap()];
        assert_eq!(status.sessions[&"192.0.2.12".parse::<IpAddr>().unwrap()], inner);
        assert!(StatusFile::read(&dir.path().join("none")).unwrap().sessions.is_empty());
    }
}
