//! Tests of a bridge with a settings file and a watchdog, as a service manager starts it.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use adit_linux::netns::NetNs;

use crate::world::{ADIT, TestProcess, until};

#[test]
fn a_settings_file_starts_a_bridge_that_says_how_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("office.toml"), "ports = [\"tap:a\", \"tap:b\"]\nrules = \"fw.nft\"\n").unwrap();
    let rules = "table inet f { chain c { type filter hook forward priority 0; } }\n";
    fs::write(path("fw.nft"), rules).unwrap();
    let manager = UnixDatagram::bind(path("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let told = || {
        let mut bytes = [0; 500];
        let len = manager.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    let ns = NetNs::unnamed().unwrap();
    let socket = format!("NOTIFY_SOCKET={}", path("notify").display());
    let settings = path("office.toml").display().to_string();
    let line = [
        socket.as_str(),
        "WATCHDOG_USEC=400000",
        ADIT,
        "bridge",
        "--settings",
        &settings,
        "--dir",
        "run",
    ];
    let bridge = TestProcess::program(&ns, "env", &line, dir.path(), "bridge.log");
    assert!(told().starts_with("READY=1\n"), "{}", bridge.log());
    // The bridge answers the watchdog for as long as it runs.
    for _ in 0..3 {
        assert_eq!(told(), "WATCHDOG=1", "{}", bridge.log());
    }
    assert!(bridge.log().contains("fw.nft: no bridge table"), "{}", bridge.log());
    let adit = |line: &str| {
        let mut command = ns.command(ADIT).unwrap();
        command.args(line.split_whitespace()).args(["--dir", "run"]).current_dir(&dir);
        let output = command.output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let status = adit("status");
    assert!(status.contains("office") && status.contains("fw.nft, rules: 0"), "{status}");
    assert!(status.contains("connections: 0 of 262144"), "{status}");
    assert!(adit("filter show office").contains("# office: "));
    let mut change = ns.command("ip").unwrap();
    assert!(change.args(["link", "set", "dev", "a", "mtu", "1400"]).status().unwrap().success());
    let line = "a: MTU changed to 1400, but the other port has 1500";
    until("the change is seen", || bridge.log().contains(line));
}
