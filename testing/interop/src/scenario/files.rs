//! Tests of configuration files as other programs write them.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use super::Scenario;
use crate::case::{Configs, HANDSHAKE, READY, SETUP_LIMIT, Tunnel, dial, inner_addrs};
use crate::failure::{Context, Result, ensure};
use crate::file;
use crate::net::{End, Pair, VETH};
use crate::pki::{PASSWORD, Pki, PkiTool};
use crate::process::Daemon;
use crate::wait::ScaledInstant;

/// Returns `<ca>`, `<cert>`, `<key>` and a wrapping key inline, as in profiles.
fn inline(pki: &Pki, wrapping: &str) -> Result<String> {
    let mut text = String::new();
    for (tag, path) in [
        ("ca", pki.file(PkiTool::OpenSslEc, "ca.crt")),
        ("cert", pki.file(PkiTool::OpenSslEc, "client.crt")),
        ("key", pki.file(PkiTool::OpenSslEc, "client.key")),
        (wrapping, pki.wrapping_key("static.key")),
    ] {
        let content = fs::read_to_string(&path).context(path.display())?;
        text += &format!("<{tag}>\n{}\n</{tag}>\n", content.trim());
    }
    Ok(text)
}

/// Creates a pair whose client's namespace has a default route, like a laptop's, which `redirect-gateway` must override.
fn pair_with_default_route() -> Result<Pair> {
    let pair = Pair::new()?;
    let gateway = End::Server.outer(false).to_string();
    pair.client.run("ip", &["route", "add", "default", "via", &gateway, "dev", VETH])?;
    Ok(pair)
}

/// Checks that all traffic uses the tunnel, except the tunnel's own packets.
fn check_redirected(tunnel: &Tunnel) -> Result<()> {
    let route = |to: &str| tunnel.pair.client.run("ip", &["route", "get", to]);
    let elsewhere = route("203.0.113.1")?;
    ensure(elsewhere.contains("dev tun0"), || format!("not redirected: {elsewhere}"))?;
    let server = route(&End::Server.outer(false).to_string())?;
    ensure(server.contains(VETH), || format!("the tunnel's packets go into the tunnel: {server}"))
}

/// The output of the best-known install script, with files by relative names, pushes, a CRL, an unprivileged user.
pub(super) fn redirect_gateway(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder();
    for name in ["ca.crt", "server.crt", "server.key", "crl.pem"] {
        fs::copy(scenario.env.pki.file(PkiTool::OpenSslEc, name), folder.join(name))
            .context(name)?;
    }
    fs::copy(scenario.env.pki.wrapping_key("static.key"), folder.join("tc.key"))?;
    // The unprivileged user reads the list again for each client.
    file::set_mode(folder.join("crl.pem"), 0o644)?;
    let server = format!(
        "cd {}\nlocal 192.0.2.1\nport 1194\nproto udp\ndev tun\nca ca.crt\ncert server.crt\nkey server.key\ndh none\n\
         auth SHA512\ntls-crypt tc.key\ntopology subnet\nserver 10.8.0.0 255.255.255.0\n\
         push \"redirect-gateway def1 bypass-dhcp\"\nifconfig-pool-persist ipp.txt\n\
         push \"dhcp-option DNS 9.9.9.9\"\npush \"block-outside-dns\"\nkeepalive 10 120\nuser nobody\ngroup nogroup\n\
         persist-key\npersist-tun\nverb 3\ncrl-verify crl.pem\nexplicit-exit-notify\n",
        folder.display()
    );
    let client = format!(
        "client\ndev tun\nproto udp\nremote 192.0.2.1 1194\nresolv-retry infinite\nnobind\npersist-key\npersist-tun\n\
         remote-cert-tls server\nauth SHA512\nignore-unknown-option block-outside-dns\nverb 3\n{}",
        inline(&scenario.env.pki, "tls-crypt")?
    );
    let configs = Configs { server, client };
    let tunnel = Tunnel::start(
        pair_with_default_route()?,
        folder,
        &configs,
        scenario.server,
        scenario.client,
    )?;
    tunnel.ping_all(4)?;
    check_redirected(&tunnel)?;
    Ok(String::new())
}

/// The output of another install script, with pinned suites and curve, `ncp-ciphers`, `setenv opt`, a status file.
pub(super) fn pinned_suites(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder();
    for name in ["ca.crt", "server.crt", "server.key", "crl.pem"] {
        fs::copy(scenario.env.pki.file(PkiTool::OpenSslEc, name), folder.join(name))
            .context(name)?;
    }
    fs::copy(scenario.env.pki.wrapping_key("static.key"), folder.join("tls-crypt.key"))?;
    let suites = "cipher AES-128-GCM\nauth SHA256\ntls-version-min 1.2\n\
                  tls-cipher TLS-ECDHE-ECDSA-WITH-AES-128-GCM-SHA256\n";
    let server = format!(
        "cd {}\nport 1194\nproto udp\ndev tun\nuser nobody\ngroup nogroup\npersist-key\npersist-tun\nkeepalive 10 120\n\
         topology subnet\nserver 10.8.0.0 255.255.255.0\nifconfig-pool-persist ipp.txt\n\
         push \"dhcp-option DNS 9.9.9.9\"\npush \"redirect-gateway def1 bypass-dhcp\"\ndh none\n\
         ecdh-curve prime256v1\ntls-crypt tls-crypt.key\ncrl-verify crl.pem\nca ca.crt\ncert server.crt\n\
         key server.key\nncp-ciphers AES-128-GCM\ntls-server\n{suites}status status.log\nverb 3\n",
        folder.display()
    );
    let client = format!(
        "client\nproto udp\nexplicit-exit-notify\nremote 192.0.2.1 1194\ndev tun\nresolv-retry infinite\nnobind\n\
         persist-key\npersist-tun\nremote-cert-tls server\nverify-x509-name server name\nauth-nocache\ntls-client\n\
         {suites}ignore-unknown-option block-outside-dns\nsetenv opt block-outside-dns\nverb 3\n{}",
        inline(&scenario.env.pki, "tls-crypt")?
    );
    let configs = Configs { server, client };
    let mut tunnel = Tunnel::start(
        pair_with_default_route()?,
        folder,
        &configs,
        scenario.server,
        scenario.client,
    )?;
    tunnel.ping_all(4)?;
    check_redirected(&tunnel)?;
    tunnel.client.wait_for("cipher 'AES-128-GCM'", Duration::from_secs(5))?;
    Ok(String::new())
}

fn with_password(scenario: &Scenario<'_>, key: &str) -> Result<String> {
    let password = scenario.folder().join("password");
    fs::write(&password, format!("{PASSWORD}\n"))?;
    let mut configs = scenario.configs();
    configs.client = configs.client.replace("/client.key", &format!("/{key}"));
    configs.client(&format!("askpass {}", password.display()));
    scenario.tunnel(&configs)?.ping_all(4)?;
    Ok(String::new())
}

/// `BEGIN ENCRYPTED PRIVATE KEY`
pub(super) fn key_pkcs8(scenario: &Scenario<'_>) -> Result<String> {
    with_password(scenario, "client-pkcs8.key")
}

/// `Proc-Type: 4,ENCRYPTED`
pub(super) fn key_traditional(scenario: &Scenario<'_>) -> Result<String> {
    with_password(scenario, "client-traditional.key")
}

/// `auth-user-pass` from a file. The right password connects; a wrong one gets AUTH_FAILED, and the client ends.
pub(super) fn user_and_password(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder();
    let credentials = folder.join("credentials");
    fs::write(&credentials, "ali\nopen sesame\n")?;
    let mut configs = scenario.configs();
    configs.check_passwords(folder, "grep -qx 'open sesame' \"$1\" && grep -qx ali \"$1\"")?;
    configs.client(&format!("auth-user-pass {}", credentials.display()));
    let tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    let Tunnel { server: _server, mut client, pair, .. } = tunnel;
    client.stop()?;
    fs::write(&credentials, "ali\nopen simsim\n")?;
    let mut client = dial(&pair, folder, &configs, scenario.client)?;
    client.wait_for("AUTH_FAILED", SETUP_LIMIT)?;
    // It must not keep trying with a wrong password. openvpn's exit code is 0.
    client.wait_exit(Duration::from_secs(10))?;
    Ok(String::new())
}

/// The server as Debian's openvpn-server@.service starts it, with readiness by sd_notify, a status file of version 2,
/// and bare log lines.
pub(super) fn debian_service(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder();
    let configs = scenario.configs();
    let pair = Pair::new()?;
    let path = folder.join("notify");
    let socket = UnixDatagram::bind(&path)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let config = folder.join("server.conf");
    fs::write(&config, &configs.server)?;
    let status = folder.join("status");
    let mut command = scenario.server.command_with(
        &pair.server,
        &[
            "--status".into(),
            status.clone().into(),
            // Debian leaves it at the default of 60 s.
            "2".into(),
            "--status-version".into(),
            "2".into(),
            "--suppress-timestamps".into(),
            "--config".into(),
            config.into(),
        ],
    );
    command.env("NOTIFY_SOCKET", &path);
    let mut server = Daemon::spawn("server (service)", command)?;
    let ready = server.wait_for(READY, SETUP_LIMIT)?;
    ensure(ready == READY, || format!("not bare: {ready}"))?;
    let mut notices = String::new();
    let mut buffer = [0; 4096];
    while !notices.lines().any(|line| line == "READY=1") {
        let length = socket.recv(&mut buffer).context(format!("no READY=1, but: {notices}"))?;
        notices += &String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
        notices.push('\n');
    }
    let mut client = dial(&pair, folder, &configs, scenario.client)?;
    client.wait_for(READY, SETUP_LIMIT)?;
    server.wait_for(HANDSHAKE, SETUP_LIMIT)?;
    inner_addrs(&pair.client)?;
    let end = ScaledInstant::now() + Duration::from_secs(15);
    loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        if text.contains("CLIENT_LIST,client,192.0.2.2:")
            && text.contains("ROUTING_TABLE,10.88.0.2,client,")
        {
            break;
        }
        ensure(ScaledInstant::now() < end, || {
            format!("the status file lacks the client:\n{text}")
        })?;
        std::thread::sleep(Duration::from_millis(200));
    }
    client.stop()?;
    server.stop()?;
    Ok(String::new())
}
