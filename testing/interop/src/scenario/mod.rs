//! Tests outside the matrix: roaming, crashes, configuration files of other programs, refusals, bad configurations.

mod admin;
mod bridge;
mod certificates;
mod chroot;
mod client_files;
mod faults;
mod files;
mod filter;
mod formats;
mod frontends;
mod hooks;
mod host;
mod laptop;
mod limits;
mod logins;
mod management;
mod mesh;
mod metrics;
mod p2p;
mod packages;
mod plugins;
mod postgres;
mod proxies;
mod pushed_token;
mod refusals;
mod roaming;
mod route_delay;
mod server_files;
mod server_hooks;
mod several;
mod sizes;
mod stalled;
mod streams;
mod tap;
mod tinc;
mod tinc_join;
mod tokens;
mod type_of_service;
mod upgrade;
mod variables;
mod vlans;
mod workers;
mod wrappings;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::case::{Configs, TestEnv, Tunnel, programs};
use crate::failure::{Result, ensure};
use crate::matrix::{Roles, Wrapping};
use crate::net::{Namespace, Pair};
use crate::peer::Program;
use crate::pki::PkiTool;
use crate::traffic::ping;
use crate::wait::ScaledInstant;

/// A test, with its name and the function that runs it and returns a short description of its observations.
pub struct Test {
    /// Its unique name.
    pub name: String,
    /// The work.
    pub run: Box<Work>,
}

/// Runs on any thread, concurrently with others.
pub type Work = dyn Fn(&TestEnv) -> Result<String> + Send + Sync;

/// The resources of a scenario: a folder, two namespaces, and the programs for both roles.
struct Scenario<'a> {
    env: &'a TestEnv,
    folder: PathBuf,
    server: &'a Program,
    client: &'a Program,
}

type ScenarioFn = fn(&Scenario<'_>) -> Result<String>;

/// The roles with adit at either end, and at both.
const ALL: &[Roles] = &[Roles::AditServes, Roles::OpenVpnServes, Roles::AditBoth];
/// The role of adit as the client of an openvpn server.
const ADIT_CLIENT: &[Roles] = &[Roles::OpenVpnServes];
/// The roles with adit at either end, and openvpn at the other.
const MIXED: &[Roles] = &[Roles::AditServes, Roles::OpenVpnServes];
/// The roles of adit as the server of clients of both kinds.
const ADIT_SERVER: &[Roles] = &[Roles::AditServes, Roles::AditBoth];
/// The role of adit as the server of an openvpn client.
const ADIT_SERVES: &[Roles] = &[Roles::AditServes];

const SCENARIOS: &[(&str, &[Roles], ScenarioFn)] = &[
    ("float", ALL, roaming::float),
    ("client-killed", ALL, roaming::client_killed),
    ("server-killed", ALL, roaming::server_killed),
    ("server-exit-notice", ALL, roaming::server_exit_notice),
    ("upgrade/traffic-udp", ADIT_SERVER, upgrade::traffic_udp),
    ("upgrade/traffic-tcp", ADIT_SERVER, upgrade::traffic_tcp),
    ("upgrade/several-workers", ADIT_SERVES, upgrade::several_workers),
    ("upgrade/filter", ADIT_SERVES, upgrade::filtered),
    ("upgrade/filter-counters-and-elements", ADIT_SERVES, upgrade::filter_state),
    ("upgrade/few-open-files", ADIT_SERVES, upgrade::few_open_files),
    ("upgrade/token", ADIT_SERVES, upgrade::token),
    ("upgrade/newer-layout", ADIT_SERVES, upgrade::newer_layout),
    ("upgrade/state-of-another-version", ADIT_SERVES, upgrade::state_of_another_version),
    ("upgrade/openvpn-udp", ADIT_SERVER, upgrade::openvpn_udp),
    ("upgrade/openvpn-tcp", ADIT_SERVES, upgrade::openvpn_tcp),
    ("upgrade/cold-udp", ADIT_SERVER, upgrade::cold_udp),
    ("upgrade/cold-tcp", ADIT_SERVES, upgrade::cold_tcp),
    ("http-proxy", ADIT_CLIENT, proxies::http),
    ("http-proxy-in-a-block", ADIT_CLIENT, proxies::http_in_a_block),
    ("http-proxy-point-to-point", ADIT_CLIENT, proxies::http_point_to_point),
    ("socks-proxy", ADIT_CLIENT, proxies::socks),
    ("socks-proxy-udp", ADIT_CLIENT, proxies::socks_udp),
    ("port-share", ALL, proxies::port_share),
    ("several-clients", ALL, several::clients_reach_each_other),
    ("stalled-stream", ADIT_SERVER, stalled::stalled_stream),
    ("filter/client-groups", ADIT_SERVER, filter::client_groups),
    ("filter/frames-over-tcp", ADIT_SERVER, filter::frames_over_tcp),
    ("several-workers", ADIT_SERVER, workers::several_workers),
    ("eight-workers-and-streams", ADIT_SERVER, workers::eight_workers_and_streams),
    ("tap/frames", ALL, tap::frames),
    ("tap/stations-learned", ADIT_SERVES, tap::stations_learned),
    ("tap/client-to-client", ALL, tap::client_to_client),
    ("tap/isolated-clients", ALL, tap::isolated_clients),
    ("tap/bridge-with-pool", ALL, tap::bridge_with_pool),
    ("tap/bridges-at-both-ends", ALL, tap::bridges_at_both_ends),
    ("tap/vlan-accept", ADIT_SERVES, vlans::accept_modes),
    ("tap/vlan-streams", ADIT_SERVER, vlans::clients_of_vlans),
    // openvpn does not report it.
    ("fault/tap-against-tun", ALL, tap::against_tun),
    ("several-clients-net30", ALL, several::clients_with_four_addresses_each),
    ("second-remote", ADIT_CLIENT, roaming::second_remote),
    // adit's own server answers from the address that the client used.
    ("reply-from-another-address", ADIT_CLIENT, roaming::reply_from_another_address),
    ("files-with-redirect-gateway", ALL, files::redirect_gateway),
    ("files-with-pinned-suites", ALL, files::pinned_suites),
    ("key-with-password-pkcs8", ADIT_CLIENT, files::key_pkcs8),
    ("key-with-password-traditional", ADIT_CLIENT, files::key_traditional),
    ("user-and-password", ADIT_CLIENT, files::user_and_password),
    ("login-token", ALL, logins::token),
    ("login-token-of-another-server", MIXED, logins::token_of_another_server),
    ("login-refused-in-a-renegotiation", ALL, logins::refused_in_a_renegotiation),
    ("login-password-alone", ALL, logins::password_alone),
    // openvpn asks a terminal or its management interface.
    ("login-dynamic-challenge", ADIT_CLIENT, logins::dynamic_challenge),
    ("login-static-challenge", ADIT_CLIENT, logins::static_challenge),
    ("login-file-read-again", ADIT_CLIENT, logins::password_file_read_again),
    ("debian-service", ADIT_SERVES, files::debian_service),
    ("server-files", ADIT_SERVES, server_files::all),
    ("chroot", ALL, host::chroot),
    ("pkcs12-and-large-curve", ALL, host::pkcs12_and_large_curve),
    ("key-with-metadata", MIXED, host::key_with_metadata),
    ("persistent-device", MIXED, host::persistent_device),
    ("mtu-disc", ALL, host::no_fragmentation),
    ("shaper", ADIT_CLIENT, host::rate_limit),
    ("passtos", ALL, type_of_service::copied),
    ("allow-pull-fqdn", ALL, host::pushed_name),
    ("client-certificate-expired", ALL, refusals::client_expired),
    ("client-certificate-of-the-future", ALL, refusals::client_of_the_future),
    ("client-of-another-authority", ALL, refusals::client_of_another_authority),
    ("client-certificate-revoked", ALL, refusals::client_revoked),
    ("server-of-another-name", ALL, refusals::server_of_another_name),
    ("server-without-server-usage", ALL, refusals::server_without_server_usage),
    ("ccd-fixed-address-and-network", ALL, admin::fixed_address_and_network),
    ("ccd-push-reset-and-remove", ALL, admin::push_reset_and_remove),
    ("ccd-disable", ALL, admin::disabled),
    ("ccd-exclusive", ALL, admin::exclusive),
    ("ccd-lines-without-effect", ALL, client_files::lines_without_effect),
    ("files-after-the-drop", ALL, client_files::files_after_the_drop),
    ("leases-of-another-program", MIXED, client_files::leases_of_another_program),
    ("server-without-a-pool", ALL, client_files::without_a_pool),
    ("server-with-a-pool-of-its-own", ALL, client_files::with_a_pool_of_its_own),
    ("topology-net30", ALL, admin::net30),
    ("topology-unnamed", ALL, admin::no_topology),
    ("topology-p2p", ALL, admin::p2p),
    ("topology-net30-with-fixed-address", ALL, admin::net30_with_fixed_address),
    ("leases-survive-a-restart", ALL, admin::leases_survive),
    ("fingerprints-instead-of-an-authority", ALL, admin::fingerprints),
    ("inactive-timeout", ALL, limits::pushed_inactive),
    ("session-timeout", ALL, limits::pushed_session_timeout),
    ("ping-exit", ALL, limits::ping_exit),
    ("auth-failed-temporary", ADIT_CLIENT, admin::auth_failed_temporary),
    ("management/client", ADIT_CLIENT, management::client),
    ("management/server", ADIT_SERVES, management::server),
    ("management/client-that-does-not-read", ADIT_SERVES, management::client_that_does_not_read),
    ("management/many-commands", ADIT_SERVES, management::many_commands),
    ("management/password", ADIT_SERVES, management::password),
    ("management/program-that-listens", ADIT_CLIENT, management::program_that_listens),
    ("management/query-remote", ADIT_CLIENT, management::query_remote),
    ("management/key-password", ADIT_CLIENT, management::key_password),
    ("management/external-key", ADIT_CLIENT, management::external_key),
    ("management/challenge", ADIT_CLIENT, management::challenge),
    ("management/up-down", ADIT_CLIENT, management::up_down),
    ("management/client-auth", ADIT_SERVES, management::client_auth),
    ("management/client-auth-renegotiation", ADIT_SERVES, management::renegotiation),
    ("management/controller-over-udp", ADIT_SERVES, management::over_udp),
    ("management/controller-over-tcp", ADIT_SERVES, management::over_tcp),
    ("compress-migrate", ALL, admin::compress_migrate),
    ("cbc-by-name", ALL, formats::cbc_by_name),
    ("cbc-with-defaults", ALL, formats::cbc_with_defaults),
    ("cbc-not-by-cipher-alone", ALL, formats::cipher_alone),
    ("data-ciphers-none", ALL, formats::no_encryption),
    ("server-hooks/password-by-env", ADIT_SERVER, server_hooks::password_by_env),
    ("server-hooks/password-by-file", ADIT_SERVER, server_hooks::password_by_file),
    ("server-hooks/password-deferred", ADIT_SERVES, server_hooks::password_deferred),
    (
        "server-hooks/password-deferred-and-refused",
        ADIT_SERVER,
        server_hooks::password_deferred_refused,
    ),
    (
        "server-hooks/password-refused-with-a-text",
        ADIT_SERVER,
        server_hooks::password_refused_with_a_text,
    ),
    ("server-hooks/token", ADIT_SERVER, server_hooks::token),
    ("server-hooks/challenge", ADIT_SERVES, server_hooks::challenge),
    ("server-hooks/client-connect", ADIT_SERVER, server_hooks::connect_pushes),
    ("server-hooks/client-connect-deferred", ADIT_SERVER, server_hooks::connect_deferred),
    ("server-hooks/client-connect-refuses", ADIT_SERVES, server_hooks::connect_refuses),
    ("server-hooks/client-disconnect", ADIT_SERVER, server_hooks::disconnect),
    ("server-hooks/learn-address", ADIT_SERVER, server_hooks::learn_address),
    ("server-hooks/tls-verify", ADIT_SERVES, server_hooks::tls_verify),
    ("server-hooks/tls-crypt-v2-verify", ADIT_SERVES, server_hooks::tls_crypt_v2_verify),
    ("server-hooks/slow-program", ADIT_SERVES, server_hooks::slow_program),
    ("server-hooks/pushed-token", ALL, pushed_token::of_client_connect),
    ("server-hooks/chroot", ALL, chroot::programs_inside),
    ("server-hooks/environment", ADIT_SERVES, server_hooks::environment),
    ("crl-directory", ADIT_SERVER, refusals::crl_directory),
    ("certificates/names", ADIT_SERVES, certificates::names),
    ("certificates/server-checked", ADIT_CLIENT, certificates::server_checked),
    ("certificates/server-revoked", ADIT_CLIENT, certificates::server_revoked),
    ("fault/ccd-file-that-is-wrong", ADIT_SERVES, admin::file_that_is_wrong),
    // openvpn does not answer when it is full, so it has no control.
    ("fault/full", ADIT_SERVES, admin::full),
    // openvpn accepts it, so it has no control.
    ("fault/client-certificate-of-version-1", ADIT_SERVES, refusals::client_of_version_1),
    ("another-wrapping-key", ALL, refusals::another_wrapping_key),
    ("own-keys-and-tls-auth", ALL, wrappings::own_keys_and_tls_auth),
    ("own-keys-and-tls-crypt", ALL, wrappings::own_keys_and_tls_crypt),
    ("plugins/password-accepted", ADIT_SERVER, plugins::accepts),
    ("plugins/password-refused", ADIT_SERVER, plugins::refuses),
    ("plugins/password-deferred", ADIT_SERVER, plugins::deferred),
    ("plugins/password-refused-later", ADIT_SERVER, plugins::deferred_refusal),
    ("plugins/client-connect", ADIT_SERVER, plugins::client_connect),
    ("plugins/client-connect-deferred", ADIT_SERVER, plugins::client_connect_deferred),
    ("plugins/client-connect-refused", ADIT_SERVES, plugins::client_connect_refused),
    ("plugins/calls-and-variables", ADIT_SERVES, plugins::calls_and_variables),
    ("plugins/crash", ADIT_SERVER, plugins::crash),
    ("plugins/background", ADIT_SERVER, plugins::background),
    ("plugins/auth-pam", ADIT_SERVER, plugins::auth_pam),
    ("plugins/auth-pam-deferred", ADIT_SERVER, plugins::auth_pam_deferred),
    ("plugins/down-root", ADIT_SERVER, plugins::down_root),
    ("plugins/auth-ldap", ADIT_SERVES, plugins::services::auth_ldap),
    ("plugins/auth-radius", ADIT_SERVES, plugins::services::auth_radius),
    ("tokens/ids", ADIT_CLIENT, tokens::ids),
    ("tokens/client", ADIT_CLIENT, tokens::client),
    ("tokens/server", ADIT_SERVER, tokens::server),
    ("tokens/unprivileged", ADIT_SERVES, tokens::unprivileged),
    ("tokens/blocks", ADIT_SERVES, tokens::blocks),
    ("tokens/connect", ADIT_CLIENT, tokens::connect),
    ("tokens/management", ADIT_CLIENT, tokens::management),
    ("tokens/crash", ADIT_CLIENT, tokens::crash),
    ("p2p/static-key-udp4", ALL, p2p::static4),
    ("p2p/static-key-udp6", ALL, p2p::static6),
    ("p2p/static-key-passive-end", ALL, p2p::static_waits),
    ("p2p/static-key-tcp4", ALL, p2p::static_stream4),
    ("p2p/static-key-tcp6-tap", ALL, p2p::static_stream6_tap),
    ("p2p/tls-bare-udp4", ALL, p2p::tls4_bare),
    ("p2p/tls-auth-udp6", ALL, p2p::tls6_auth),
    ("p2p/tls-crypt-passive-end", ALL, p2p::tls4_crypt),
    ("p2p/tls-crypt-v2-udp6", ALL, p2p::tls6_own),
    ("p2p/tls-crypt-tcp4", ALL, p2p::tls_stream4),
    ("p2p/tls-crypt-v2-tcp6", ALL, p2p::tls_stream6_own),
    ("p2p/tls-server-that-dials-tcp4", ALL, p2p::tls_stream4_dialler_serves),
    ("p2p/exit-notice", ALL, p2p::exit_notice),
    ("fragment", ALL, sizes::fragment),
    ("fragment-of-all-sizes", ALL, sizes::fragment_of_all),
    ("framing-comp-lzo-no", ALL, sizes::comp_lzo_no),
    ("framing-compress", ALL, sizes::compress),
    ("framing-compress-stub", ALL, sizes::compress_stub),
    ("framing-compress-stub-v2", ALL, sizes::compress_stub_v2),
    ("framing-comp-lzo", ALL, sizes::comp_lzo),
    ("framing-compress-lz4", ALL, sizes::compress_lz4),
    ("framing-compress-lz4-v2", ALL, sizes::compress_lz4_v2),
    ("framing-pushed", ALL, sizes::pushed_stub),
    ("push-of-what-cannot-be-pushed", ADIT_CLIENT, sizes::not_pushable),
    ("tun-mtu-9000", ALL, sizes::jumbo),
    ("path-narrow", ALL, sizes::narrow_path),
    ("path-narrow-without-icmp", ALL, sizes::narrow_path_without_icmp),
    ("path-wide", ALL, sizes::wide_path),
    // These check adit's own messages.
    ("peer-compresses-lzo", MIXED, sizes::compressed_lzo),
    ("peer-compresses-lz4", MIXED, sizes::compressed_lz4),
    ("peer-compresses-lz4-v2", MIXED, sizes::compressed_lz4_v2),
    ("tcp4-bare", ALL, streams::bare4),
    ("tcp6-bare", ALL, streams::bare6),
    ("tcp4-tls-auth", ALL, streams::auth4),
    ("tcp6-tls-auth", ALL, streams::auth6),
    ("tcp4-tls-crypt", ALL, streams::crypt4),
    ("tcp6-tls-crypt", ALL, streams::crypt6),
    ("tcp4-tls-crypt-v2", ALL, streams::own4),
    ("tcp6-tls-crypt-v2", ALL, streams::own6),
    ("tcp-reset", ALL, streams::connection_reset),
    ("tcp-killed", ALL, streams::killed),
    ("tcp-where-udp-is-blocked", ALL, streams::fallback),
    // openvpn 2.6 listens at one place only.
    ("several-listeners", ADIT_SERVES, streams::several_listeners),
    ("hooks/kept-device", ADIT_CLIENT, hooks::kept_device),
    ("hooks/up-restart", ADIT_CLIENT, hooks::up_restart),
    ("hooks/reopened-device", ADIT_CLIENT, hooks::reopened_device),
    ("hooks/unprivileged", ADIT_CLIENT, hooks::unprivileged),
    ("hooks/no-exec", ADIT_CLIENT, hooks::no_exec),
    ("hooks/over-ipv6", ADIT_CLIENT, hooks::over_ipv6),
    ("hooks/point-to-point", ADIT_CLIENT, hooks::point_to_point),
    ("hooks/dns-updown", ADIT_CLIENT, hooks::dns_updown),
    ("hooks/server", ADIT_SERVES, hooks::server),
    ("hooks/failures", ADIT_CLIENT, hooks::failures),
    ("hooks/endless", ADIT_CLIENT, hooks::endless),
    ("hooks/update-resolv-conf", ADIT_CLIENT, hooks::update_resolv_conf),
    ("units/server-and-client", ALL, frontends::units::server_and_client),
    ("units/systemd", ADIT_SERVER, frontends::units::under_systemd),
    ("units/background", ADIT_SERVES, frontends::background::under_systemd),
    ("guides/server-and-client", ADIT_SERVES, frontends::guides::server_and_client),
    ("guides/firewall-nat", ADIT_SERVES, frontends::guides::firewall_and_nat),
    ("guides/moving-from-pivpn", ADIT_SERVES, frontends::guides::from_pivpn),
    ("guides/moving-from-wireguard", ADIT_SERVES, frontends::guides::from_wireguard),
    ("guides/phone", ADIT_SERVES, frontends::guides::phone),
    ("guides/tinc", ADIT_SERVES, frontends::guides::tinc),
    ("guides/windows-macos", ADIT_SERVES, frontends::guides::windows_and_macos),
    ("units/daemon", ADIT_SERVES, frontends::units::daemon),
    ("metrics/scrape", ADIT_SERVES, metrics::scrape),
    ("network-manager/certificate", ADIT_CLIENT, frontends::network_manager::certificate),
    (
        "network-manager/certificate-and-password",
        ADIT_CLIENT,
        frontends::network_manager::certificate_and_password,
    ),
    ("network-manager/password", ADIT_CLIENT, frontends::network_manager::password),
    ("network-manager/ipv6", ADIT_CLIENT, frontends::network_manager::ipv6),
    ("resolvers/update-resolv-conf", ADIT_CLIENT, frontends::resolvers::update_resolv_conf),
    (
        "resolvers/update-systemd-resolved",
        ADIT_CLIENT,
        frontends::resolvers::update_systemd_resolved,
    ),
    ("hooks/route-delay", ADIT_CLIENT, route_delay::after_the_connection),
    ("hooks/route-delay-unprivileged", ADIT_CLIENT, hooks::delayed_routes_unprivileged),
    ("hooks/route-delay-point-to-point", MIXED, route_delay::point_to_point),
    ("fault/tcp-slow-unauthenticated", ADIT_SERVES, streams::slow_unauthenticated),
    ("fault/tcp-no-descriptors", ADIT_SERVES, streams::no_descriptors),
    ("fault/tcp-other-protocols", ADIT_SERVES, streams::other_protocols),
];

/// Returns all scenarios with their roles, then those that only concern adit's own messages.
pub fn all(adit: &Program, openvpn: &Program) -> Vec<Test> {
    let mut tests = Vec::new();
    for (name, roles, scenario) in SCENARIOS {
        for roles in *roles {
            let (server, client) = programs(*roles, adit, openvpn);
            tests.push(test(format!("{name}/{}", roles.name()), server, client, *scenario));
        }
    }
    for (name, scenario) in proxies::ADIT_ALONE.iter().filter(|_| matches!(adit, Program::Adit(_)))
    {
        tests.push(test(format!("{name}/openvpn-serves-adit"), openvpn, adit, *scenario));
    }
    // Only adit has epochs at both ends here.
    tests.push(test("epochs/adit-serves-adit".into(), adit, adit, formats::epochs));
    for (name, scenario) in bridge::scenarios() {
        tests.push(test(format!("bridge/{name}"), adit, adit, *scenario));
    }
    for (name, scenario) in mesh::scenarios() {
        tests.push(test(format!("mesh/{name}"), adit, adit, *scenario));
    }
    for (name, scenario) in postgres::scenarios() {
        tests.push(test(format!("postgres/{name}"), adit, adit, *scenario));
    }
    for (name, scenario) in tinc::SCENARIOS.iter().chain(tinc_join::SCENARIOS) {
        tests.push(test(format!("tinc/{name}"), adit, adit, *scenario));
    }
    tests.extend(tinc::matrix(adit));
    for (name, scenario) in faults::SCENARIOS {
        tests.push(test(format!("fault/{name}"), adit, adit, *scenario));
    }
    tests.extend(laptop::tests(adit));
    tests.extend(packages::tests(adit));
    tests
}

/// Returns the tests that take many minutes each.
pub fn long(adit: &Program) -> Vec<Test> {
    let postgres = postgres::long()
        .map(|(name, scenario)| test(format!("long/postgres/{name}"), adit, adit, *scenario));
    let mesh = mesh::long()
        .map(|(name, scenario)| test(format!("long/mesh/{name}"), adit, adit, *scenario));
    let tinc = tinc::LONG
        .iter()
        .map(|(name, scenario)| test(format!("long/tinc/{name}"), adit, adit, *scenario));
    postgres.chain(mesh).chain(tinc).collect()
}

/// Returns the tests of features that only openvpn 2.7 has, or 2.5 still has, with that version in openvpn's place.
pub fn versions(adit: &Program, other: &Program, suite: &str) -> Vec<Test> {
    let newer: &[(&str, &[Roles], ScenarioFn)] = &[
        ("p2p/tls-bare-udp4", ALL, p2p::tls4_bare),
        ("p2p/tls-auth-udp6", ALL, p2p::tls6_auth),
        ("p2p/tls-crypt-v2-udp6", ALL, p2p::tls6_own),
        ("reload-reaches-clients", ADIT_SERVES, admin::reload_reaches_clients),
        ("push-update", ADIT_CLIENT, admin::push_update),
        ("fault/full", ADIT_SERVES, admin::full),
        ("auth-failed-temporary", ADIT_CLIENT, admin::auth_failed_temporary),
        ("fingerprints-instead-of-an-authority", ALL, admin::fingerprints),
        ("epochs", ALL, formats::epochs),
        ("hooks/dns-updown", ADIT_CLIENT, hooks::dns_updown),
        ("cbc-by-name", ALL, formats::cbc_by_name),
    ];
    let older: &[(&str, &[Roles], ScenarioFn)] = &[
        ("cbc-fallback", ALL, formats::fallback),
        ("cbc-poor-mans-negotiation", ALL, formats::poor_mans_negotiation),
    ];
    of_version(if suite == "sid" { newer } else { older }, adit, other, suite)
}

/// Returns the tests of features that every version has, with another version in openvpn's place.
pub fn ever(adit: &Program, other: &Program, suite: &str) -> Vec<Test> {
    let scenarios: [(&str, &[Roles], ScenarioFn); 10] = [
        ("path-wide", ALL, sizes::wide_path),
        ("fragment", ALL, sizes::fragment),
        ("p2p/static-key-udp4", ALL, p2p::static4),
        ("p2p/static-key-tcp4", ALL, p2p::static_stream4),
        ("p2p/tls-without-negotiation", ALL, p2p::without_negotiation),
        ("p2p/tls-crypt-v2-without-negotiation", ALL, p2p::own_without_negotiation),
        ("tcp4-bare", ALL, streams::bare4),
        ("tcp6-tls-auth", ALL, streams::auth6),
        ("tcp4-tls-crypt", ALL, streams::crypt4),
        ("tcp4-tls-crypt-v2", ALL, streams::own4),
    ];
    of_version(&scenarios, adit, other, suite)
}

fn of_version(
    scenarios: &[(&str, &[Roles], ScenarioFn)],
    adit: &Program,
    other: &Program,
    suite: &str,
) -> Vec<Test> {
    let mut tests = Vec::new();
    for (name, roles, scenario) in scenarios {
        for roles in roles.iter().filter(|roles| **roles != Roles::AditBoth) {
            let (server, client) = programs(*roles, adit, other);
            let name = format!("{suite}/{name}/{}", roles.name().replace("openvpn", suite));
            tests.push(test(name, server, client, *scenario));
        }
    }
    tests
}

fn test(name: String, server: &Program, client: &Program, scenario: ScenarioFn) -> Test {
    let (server, client, label) = (server.clone(), client.clone(), name.replace('/', "_"));
    let run = move |env: &TestEnv| {
        let folder = env.sandbox.folder(&label)?;
        scenario(&Scenario { env, folder, server: &server, client: &client })
    };
    Test { name, run: Box::new(run) }
}

/// Shows how a mesh is built: what `make demo-mesh` prints.
///
/// # Errors
/// A step failed.
pub fn demo_mesh(env: &TestEnv, adit: &Program) -> Result<String> {
    let folder = env.sandbox.folder("demo")?;
    mesh::show_demo(&Scenario { env, folder, server: adit, client: adit })?;
    Ok("everything is removed again".into())
}

/// Runs the demo of a mesh this many times. Returns the durations of its events.
///
/// # Errors
/// A step failed.
pub fn time_mesh(env: &TestEnv, adit: &Program, rounds: u16) -> Result<String> {
    mesh::time_events(rounds, || {
        Ok(Scenario { env, folder: env.sandbox.folder("demo")?, server: adit, client: adit })
    })
}

impl Scenario<'_> {
    fn folder(&self) -> &Path {
        &self.folder
    }

    /// Creates plain configurations with tls-crypt.
    fn configs(&self) -> Configs {
        let mut configs = Configs::new(&self.env.pki, PkiTool::OpenSslEc, false);
        configs.wrap(&self.env.pki, Wrapping::TlsCrypt);
        configs
    }

    fn tunnel(&self, configs: &Configs) -> Result<Tunnel> {
        Tunnel::start(Pair::new()?, self.folder(), configs, self.server, self.client)
    }

    /// Returns a file of the OpenSSL folder, as text.
    fn pki(&self, name: &str) -> String {
        self.env.pki.file(PkiTool::OpenSslEc, name).display().to_string()
    }
}

/// Returns the id of a user for the machine of a test. The kernel counts all processes of an id, so that another test could otherwise use up
/// what the LimitNPROC of a unit allows.
fn new_user() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(61_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Pings until an answer arrives.
///
/// # Errors
/// None arrived in time.
fn ping_until(from: &Namespace, to: IpAddr, limit: Duration) -> Result<Duration> {
    let started = ScaledInstant::now();
    while ping(from, to, 56, 1)? == 0 {
        ensure(started.elapsed() < limit, || format!("no ping to {to} in {} s", limit.as_secs()))?;
    }
    Ok(started.elapsed())
}
