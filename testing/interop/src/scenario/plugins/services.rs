//! Debian's plugins for LDAP and RADIUS, against slapd and freeradius.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::Scenario;
use super::{SOON, UNPRIVILEGED, with_password};
use crate::case::{READY, SETUP_LIMIT, dial};
use crate::failure::{Result, ensure};
use crate::net::Pair;
use crate::process::{Daemon, output};
use crate::skip::skip;

/// The folder into which scripts/plugins.sh unpacks the packages.
const UNPACKED: &str = "target/roots/plugins";

/// The unpacked packages.
struct Root(PathBuf);

impl Root {
    fn find(check: &str) -> Option<Self> {
        let root = Path::new(UNPACKED).canonicalize().ok();
        if root.is_none() {
            skip(check, "no slapd and freeradius: scripts/plugins.sh fetches them");
        }
        root.map(Self)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Lets a command use its libraries, and those of freeradius.
    fn prepare(&self, command: &mut Command) {
        let libraries = ["usr/lib", "lib"]
            .map(|folder| self.path(&format!("{folder}/{}-linux-gnu", std::env::consts::ARCH)));
        let paths = [&libraries[..], &[self.path("usr/lib/freeradius")]].concat().join(":");
        command.env("LD_LIBRARY_PATH", paths);
    }
}

/// A right and a wrong password with a plugin that asks a service in the server's namespace.
fn passwords(
    scenario: &Scenario<'_>,
    root: &Root,
    lines: &str,
    start: impl Fn(&Pair) -> Result<Daemon>,
) -> Result<String> {
    let folder = scenario.folder();
    let mut configs = scenario.configs();
    configs.server(&format!("{lines}\ntmp-dir /tmp\n{UNPRIVILEGED}"));
    with_password(scenario, &mut configs, "open sesame")?;
    let pair = Pair::new()?;
    let _service = start(&pair)?;
    let path = folder.join("server.conf");
    fs::write(&path, &configs.server)?;
    let mut command = scenario.server.command(&pair.server, &path);
    root.prepare(&mut command);
    let mut server = Daemon::spawn(scenario.server.label(), command)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, folder, &configs, scenario.client)?;
    client
        .wait_for(READY, SETUP_LIMIT)
        .map_err(|failure| format!("{failure}\n{}", server.failure("meanwhile")))?;
    client.stop()?;
    with_password(scenario, &mut configs, "open simsim")?;
    let mut client = dial(&pair, folder, &configs, scenario.client)?;
    client
        .wait_for("AUTH_FAILED", SETUP_LIMIT)
        .map_err(|failure| format!("{failure}\n{}", server.failure("meanwhile")))?;
    ensure(client.count(READY) == 0, || client.failure("it was let in").0)?;
    client.wait_exit(SOON)?;
    Ok(String::new())
}

pub(in super::super) fn auth_ldap(scenario: &Scenario<'_>) -> Result<String> {
    let Some(root) = Root::find("plugins/auth-ldap") else { return Ok("SKIPPED".into()) };
    let folder = scenario.folder().join("ldap");
    fs::create_dir_all(folder.join("data"))?;
    let file = |name: &str| folder.join(name).display().to_string();
    let schema = |name: &str| root.path(&format!("etc/ldap/schema/{name}.schema"));
    fs::write(
        folder.join("slapd.conf"),
        format!(
            "include {}\ninclude {}\ninclude {}\nmodulepath {}\nmoduleload back_mdb\npidfile {}\ndatabase mdb\n\
             suffix dc=example,dc=org\nrootdn cn=admin,dc=example,dc=org\nrootpw secret\ndirectory {}\n",
            schema("core"),
            schema("cosine"),
            schema("inetorgperson"),
            root.path("usr/lib/ldap"),
            file("pid"),
            file("data")
        ),
    )?;
    fs::write(
        folder.join("data.ldif"),
        "dn: dc=example,dc=org\nobjectClass: dcObject\nobjectClass: organization\no: Example\ndc: example\n\n\
         dn: uid=ali,dc=example,dc=org\nobjectClass: inetOrgPerson\ncn: Ali\nsn: Ali\nuid: ali\n\
         userPassword: open sesame\n",
    )?;
    let program = root.path("usr/sbin/slapd");
    let mut add = Command::new(&program);
    root.prepare(&mut add);
    add.args(["-T", "add", "-f", &file("slapd.conf"), "-l", &file("data.ldif")]);
    output(add)?;
    fs::write(
        folder.join("auth.conf"),
        "<LDAP>\nURL ldap://127.0.0.1:3890\nBindDN cn=admin,dc=example,dc=org\nPassword secret\nTimeout 15\n\
         TLSEnable no\nFollowReferrals no\n</LDAP>\n<Authorization>\nBaseDN \"dc=example,dc=org\"\n\
         SearchFilter \"(uid=%u)\"\nRequireGroup false\n</Authorization>\n",
    )?;
    let line = format!(
        "plugin {} {}",
        root.path("usr/lib/openvpn/openvpn-auth-ldap.so"),
        file("auth.conf")
    );
    passwords(scenario, &root, &line, |pair| {
        let mut command = pair.server.command(&program);
        root.prepare(&mut command);
        command.args(["-f", &file("slapd.conf"), "-h", "ldap://127.0.0.1:3890", "-d", "256"]);
        let mut service = Daemon::spawn("slapd", command)?;
        service.wait_for("slapd starting", SOON)?;
        Ok(service)
    })
}

pub(in super::super) fn auth_radius(scenario: &Scenario<'_>) -> Result<String> {
    let Some(root) = Root::find("plugins/auth-radius") else { return Ok("SKIPPED".into()) };
    let folder = scenario.folder().join("radius");
    fs::create_dir_all(folder.join("ccd"))?;
    let file = |name: &str| folder.join(name).display().to_string();
    fs::write(
        folder.join("radiusd.conf"),
        format!(
            "name = radiusd\nprefix = {0}\nlibdir = {1}\nraddbdir = {2}\nlogdir = {2}\nrun_dir = {2}\npidfile = {2}/pid\n\
             security {{\nallow_core_dumps = no\n}}\n\
             client vpn {{\nipaddr = 127.0.0.1\nsecret = testing123\n}}\n\
             modules {{\npap {{\n}}\nfiles {{\nusersfile = {2}/users\n}}\nalways ok {{\nrcode = ok\n}}\n}}\n\
             server default {{\n\
             listen {{\ntype = auth\nipaddr = 127.0.0.1\nport = 1812\n}}\n\
             listen {{\ntype = acct\nipaddr = 127.0.0.1\nport = 1813\n}}\n\
             authorize {{\nfiles\npap\n}}\n\
             authenticate {{\nAuth-Type PAP {{\npap\n}}\n}}\n\
             accounting {{\nok\n}}\n}}\n",
            root.path("usr"),
            root.path("usr/lib/freeradius"),
            folder.display()
        ),
    )?;
    fs::write(folder.join("users"), "ali Cleartext-Password := \"open sesame\"\n")?;
    fs::write(
        folder.join("plugin.cnf"),
        format!(
            "NAS-Identifier=adit\nService-Type=5\nFramed-Protocol=1\nNAS-Port-Type=5\nNAS-IP-Address=127.0.0.1\n\
             OpenVPNConfig={}\nsubnet=255.255.255.0\noverwriteccfiles=true\nuseauthcontrolfile=true\n\
             server\n{{\nacctport=1813\nauthport=1812\nname=127.0.0.1\nretry=1\nwait=5\nsharedsecret=testing123\n}}\n",
            scenario.folder().join("server.conf").display()
        ),
    )?;
    let line = format!(
        "plugin {} {}\nclient-config-dir {}\nstatus {} 10",
        root.path("usr/lib/openvpn/radiusplugin.so"),
        file("plugin.cnf"),
        file("ccd"),
        file("status")
    );
    passwords(scenario, &root, &line, |pair| {
        let mut command = pair.server.command(&root.path("usr/sbin/freeradius"));
        root.prepare(&mut command);
        let dictionary = root.path("usr/share/freeradius");
        command.args([
            "-X",
            "-d",
            &folder.display().to_string(),
            "-D",
            &dictionary,
            "-n",
            "radiusd",
        ]);
        let mut service = Daemon::spawn("freeradius", command)?;
        service.wait_for("Ready to process requests", SOON)?;
        Ok(service)
    })
}
