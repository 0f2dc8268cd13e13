use std::os::unix::fs::PermissionsExt;

use adit_mesh::roster::Roster;

use super::*;
use crate::state::State;

/// A net's folder, and a folder for the mesh.
struct Folder {
    net: tempfile::TempDir,
    mesh: tempfile::TempDir,
}

impl Folder {
    /// The net of alice, who has bob and web_1 as other hosts.
    fn new() -> Self {
        let this = Self { net: tempfile::tempdir().unwrap(), mesh: tempfile::tempdir().unwrap() };
        this.write("tinc.conf", "Name = alice\nConnectTo = bob\n");
        this.write("hosts/alice", "Address = 203.0.113.1\nSubnet = 10.1.0.0/16\n");
        this.write("hosts/bob", "Address = 203.0.113.2\nSubnet = 10.2.0.0/16\n");
        this.write("hosts/Web_1", "Subnet = 10.3.0.0/16\nSubnet = 10.3.7.0/24\n");
        this
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.net.path().join("office").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn plan(&self) -> Result<Import, Fault> {
        Import::plan(&ImportOptions {
            directory: self.net.path().join("office"),
            dir: Some(self.mesh.path().to_owned()),
            mesh: None,
            range: Some("100.87.0.0/16".parse().unwrap()),
            valid: Duration::from_secs(3600),
        })
    }

    fn refused(&self) -> String {
        self.plan().unwrap_err().to_string()
    }

    fn notes(&self) -> String {
        self.plan().unwrap().plan.notes.join("\n")
    }
}

fn nets(texts: &[&str]) -> BTreeSet<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn a_net_becomes_a_mesh_with_a_token_for_each_other_host() {
    let folder = Folder::new();
    let import = folder.plan().unwrap();
    let plan = &import.plan;
    assert_eq!((plan.mesh.as_str(), plan.ethernet, plan.notes.len()), ("office", false, 0));
    assert_eq!(plan.addresses[0].to_string(), "203.0.113.1:1194");
    let of = |plan: &ImportPlan, at: usize| {
        let member = &plan.members[at];
        (member.name.clone(), member.host.clone(), member.subnets.clone(), member.relay)
    };
    assert_eq!(of(plan, 0), ("alice".into(), "alice".into(), nets(&["10.1.0.0/16"]), true));
    let web = nets(&["10.3.0.0/16", "10.3.7.0/24"]);
    assert_eq!(of(plan, 1), ("web-1".into(), "Web_1".into(), web.clone(), false));
    assert_eq!(of(plan, 2), ("bob".into(), "bob".into(), nets(&["10.2.0.0/16"]), true));
    assert!(!import.paths.exists(), "a plan changes nothing");

    let tokens = import.carry_out(None).unwrap();
    let names: Vec<&str> = tokens.iter().map(|token| token.name.as_str()).collect();
    assert_eq!(names, ["web-1", "bob"]);
    let state = State::open(&import.paths).unwrap();
    let roster = Roster::evaluate(&state.changes);
    let own = roster.member(&state.key.public_hash()).unwrap();
    assert_eq!((own.subnets.clone(), own.relay), (nets(&["10.1.0.0/16"]), true));
    assert_eq!(roster.members().count(), 1);
    let mut invitations = state.invitations;
    let token: Token = tokens[0].token.as_ref().unwrap().parse().unwrap();
    assert_eq!((token.mesh(), *token.inviter()), (state.changes.mesh(), own.key));
    let terms = invitations.find(token.secret(), unix_time()).unwrap().terms.clone();
    assert_eq!((terms.name, terms.subnets, terms.relay), (Label::new("web-1"), web, false));
    assert!(folder.refused().contains("already in the mesh office"));
}

#[test]
fn tokens_in_files_are_for_root_alone_and_an_import_that_fails_leaves_none() {
    let folder = Folder::new();
    let tokens = folder.mesh.path().join("tokens");
    let import = folder.plan().unwrap();
    // The last file is in the way.
    fs::create_dir_all(&tokens).unwrap();
    fs::write(tokens.join("bob.token"), "").unwrap();
    let refused = import.carry_out(Some(&tokens)).unwrap_err().to_string();
    assert!(refused.contains("bob.token exists"), "{refused}");
    assert!(!tokens.join("web-1.token").exists() && !import.paths.exists());
    fs::remove_file(tokens.join("bob.token")).unwrap();
    for token in import.carry_out(Some(&tokens)).unwrap() {
        let file = token.file.unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        fs::read_to_string(&file).unwrap().parse::<Token>().unwrap();
    }
}

#[test]
fn a_mesh_that_cannot_be_stored_leaves_no_tokens() {
    let folder = Folder::new();
    let tokens = folder.mesh.path().join("tokens");
    let import = folder.plan().unwrap();
    // A folder in place of the roster, which is written last.
    fs::create_dir_all(import.paths.roster_file()).unwrap();
    import.carry_out(Some(&tokens)).unwrap_err();
    assert_eq!(fs::read_dir(&tokens).unwrap().count(), 0);
}

#[test]
fn a_refusal_names_file_and_line() {
    for (file, text, parts) in [
        ("tinc.conf", "Name = alice\nMode = x\n", &["tinc.conf:2", "Mode"][..]),
        ("tinc.conf", "Name = alice\nSPTPSCipher = 1\n", &["tinc.conf:2", "SPTPSCipher"]),
        ("tinc.conf", "Mode = router\n", &["tinc.conf", "Name"]),
        ("tinc.conf", "Name = alice\n-----BEGIN X\n", &["tinc.conf:2", "-----END"]),
        ("conf.d/a.conf", "\nPingTimeout = 0\n", &["a.conf:2", "PingTimeout"]),
        ("hosts/bob", "\nSubnet = 10.2.0.1/16\n", &["bob:2", "Subnet", "10.2.0.0/16"]),
        ("hosts/WEB_1", "Port = 1\n", &["Web_1", "WEB_1", "rename one"]),
    ] {
        let folder = Folder::new();
        folder.write(file, text);
        let refused = folder.refused();
        assert!(parts.iter().all(|part| refused.contains(part)), "{file}: {refused}");
    }
    let many: String = (0..=MAX_SUBNETS).map(|n| format!("Subnet = 10.2.{n}.0/24\n")).collect();
    let folder = Folder::new();
    folder.write("hosts/bob", &many);
    assert!(folder.refused().contains("bob:33: Subnet: more than 32"), "{}", folder.refused());
    folder.write("hosts/bob", "\u{0}");
    fs::write(folder.net.path().join("office/hosts/bob"), [0xff]).unwrap();
    assert!(folder.refused().contains("bob: the file is not UTF-8"), "{}", folder.refused());
}

#[test]
fn lines_without_a_counterpart_are_named() {
    let folder = Folder::new();
    folder.write("tinc.conf", "Name = alice\nProxy = http x 1\nFoo = 1\nCompression = 9\n");
    folder.write("tinc-up", "#!/bin/sh\n");
    folder.write("hosts/bob-down", "#!/bin/sh\n");
    folder.write("hosts/bob", "TCPOnly = yes\nSubnet = 10.0.0.2\nSubnet = 2:3:4:5:6:7\n");
    let notes = folder.notes();
    for part in [
        "tinc.conf:2: Proxy: ",
        "tinc.conf:3: Foo: tinc has no such variable",
        "tinc.conf:4: Compression: ",
        "tinc-up: ",
        "bob-down: ",
        "bob:1: TCPOnly: ",
        "bob:2: 10.0.0.2 belongs to tinc's device",
        "bob:3: Subnet: members learn MAC addresses",
    ] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
}

#[test]
fn a_network_of_several_hosts_goes_to_the_one_with_the_lowest_weight() {
    let folder = Folder::new();
    folder.write("hosts/bob", "Subnet = 10.1.0.0/16#5\nSubnet = 0.0.0.0/0\n");
    let import = folder.plan().unwrap();
    let [alice, _, bob] = &import.plan.members[..] else { panic!("{:?}", import.plan) };
    assert_eq!((alice.subnets.len(), bob.subnets.clone()), (0, nets(&["10.1.0.0/16"])));
    assert!(bob.gateway && !alice.gateway);
    let notes = folder.notes();
    assert!(notes.contains("alice:2: Subnet: a network is behind one member"), "{notes}");
}

#[test]
fn the_range_of_the_mesh_overlaps_no_network_of_the_net() {
    let folder = Folder::new();
    folder.write("hosts/bob", "Subnet = 100.87.0.0/16\n");
    let refused = folder.refused();
    assert!(refused.contains("100.87.0.0/16 overlaps") && refused.contains("--range"), "{refused}");
}

#[test]
fn a_net_of_frames_becomes_a_mesh_of_frames() {
    let folder = Folder::new();
    folder.write("tinc.conf", "Name = alice\nMode = switch\n");
    folder.write("hosts/bob", "Subnet = 0.0.0.0/0\n");
    let import = folder.plan().unwrap();
    assert!(import.plan.ethernet && !import.plan.members[2].gateway);
    assert!(folder.notes().contains("bob:1: Subnet: a mesh of Ethernet frames has no gateways"));
    import.carry_out(None).unwrap();
    let state = State::open(&import.paths).unwrap();
    assert_eq!(state.changes.genesis().layer, Layer::Ethernet);
}
