//! `adit mesh import-tinc`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use adit_app_mesh::{Import, ImportOptions, ImportPlan, ImportedMember, ImportedToken, Paths};
use adit_runtime::fault::Fault;
use clap::{Args, ValueHint};
use ipnet::Ipv4Net;

use super::MeshSelector;
use crate::args::network;
use crate::text::{span, table};
use crate::{print, print_json};

#[derive(Debug, Args)]
pub(crate) struct ImportTinc {
    /// tinc's configuration directory, with tinc.conf and hosts
    #[arg(value_name = "DIRECTORY", value_hint = ValueHint::DirPath)]
    directory: PathBuf,

    /// Only show what would be created
    #[arg(long)]
    dry_run: bool,

    /// Write each token into a file NAME.token in this folder, mode 0600, instead of printing it
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath, conflicts_with = "dry_run")]
    tokens: Option<PathBuf>,

    /// How long the tokens are valid
    #[arg(long, value_name = "TIME", value_parser = crate::args::time, default_value = "7d")]
    valid: Duration,

    /// IPv4 range of the mesh [default: 100.87.0.0/16, or a similar one that overlaps no network of tinc's]
    #[arg(long, value_name = "CIDR", value_parser = network::<Ipv4Net>)]
    range: Option<Ipv4Net>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    here: MeshSelector,
}

pub(super) fn run(options: &ImportTinc) -> Result<ExitCode, Fault> {
    let import = Import::plan(&ImportOptions {
        directory: options.directory.clone(),
        dir: options.here.dir.clone(),
        mesh: options.here.mesh.clone(),
        range: options.range,
        valid: options.valid,
    })?;
    let tokens =
        if options.dry_run { Vec::new() } else { import.carry_out(options.tokens.as_deref())? };
    if options.json {
        let tokens: Vec<_> = tokens
            .iter()
            .map(|ImportedToken { name, token, file }| {
                let token = token.as_ref().map(|token| token.as_str());
                serde_json::json!({ "name": name, "token": token, "file": file })
            })
            .collect();
        print_json(&serde_json::json!({
            "plan": import.plan,
            "created": !options.dry_run,
            "tokens": tokens,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&overview(&import.plan));
    if options.dry_run {
        print("Nothing was changed: leave out --dry-run to create the mesh.\n");
    } else {
        print(&next_steps(&import.paths, &tokens, options.valid));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the lines about the mesh and its members.
fn overview(plan: &ImportPlan) -> String {
    let own = plan.members.first().map_or("", |member| member.name.as_str());
    let carries = if plan.ethernet { "Ethernet frames" } else { "IP packets" };
    let addresses: Vec<String> = plan.addresses.iter().map(ToString::to_string).collect();
    let mut text = format!(
        "mesh       {}, with addresses of {}; this machine is {own}\n\
         carries    {carries}\n\
         tokens     lead to {}\n",
        plan.mesh,
        plan.range,
        addresses.join("\n                   ")
    );
    let mut rows = vec![["MEMBER", "ROLES", "NETWORKS"].map(str::to_owned).to_vec()];
    for member in &plan.members {
        let mut networks = member.subnets.iter().map(ToString::to_string);
        let first = networks.next().unwrap_or_default();
        rows.push(vec![member.name.clone(), roles(member), first]);
        rows.extend(networks.map(|network| vec![String::new(), String::new(), network]));
    }
    text.push_str(&table(&rows));
    if !plan.notes.is_empty() {
        text.push_str("not in the mesh:\n");
        plan.notes.iter().for_each(|note| text.push_str(&format!("  {note}\n")));
    }
    text
}

fn roles(member: &ImportedMember) -> String {
    let roles = [(member.relay, "relay"), (member.gateway, "gateway")];
    let roles: Vec<&str> = roles.iter().filter(|(has, _)| *has).map(|(_, role)| *role).collect();
    if roles.is_empty() { "-".to_owned() } else { roles.join(", ") }
}

/// Returns the commands that turn the net into the mesh.
fn next_steps(paths: &Paths, tokens: &[ImportedToken], valid: Duration) -> String {
    let (mesh, valid) = (paths.name(), span(valid.as_secs()));
    let (up, phrase) = (paths.command("up"), paths.command("admin phrase"));
    let mut text = format!(
        "Write the key of the mesh down: sudo {phrase}\n\
         Start the node on this machine:\n  sudo {up}\n\
         Join on each other machine. A token works once, within {valid}:\n"
    );
    for ImportedToken { name, token, file } in tokens {
        let join = format!("sudo adit mesh join --mesh {mesh}");
        match (token, file) {
            (_, Some(file)) => {
                let file = file.display();
                text.push_str(&format!(
                    "  on {name}, with a copy of {file}: {join} - < {name}.token\n"
                ));
            }
            (Some(token), None) => {
                text.push_str(&format!("  on {name}: {join}\n{}\n", token.as_str()));
            }
            (None, None) => {}
        }
    }
    text.push_str(
        "tinc goes on in the meantime. When all machines have joined, stop tinc on all of them: the routes of the mesh then \
         replace those of tinc within 15 seconds.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;

    #[test]
    fn an_overview_names_members_networks_and_what_is_left_out() {
        let member = |name: &str, relay, gateway, nets: &[&str]| ImportedMember {
            name: name.into(),
            host: name.into(),
            subnets: nets.iter().map(|net| net.parse().unwrap()).collect(),
            relay,
            gateway,
        };
        let plan = ImportPlan {
            mesh: "office".into(),
            range: "100.87.0.0/16".parse().unwrap(),
            ethernet: false,
            addresses: vec!["203.0.113.1:1194".parse().unwrap()],
            members: vec![
                member("alice", true, true, &["10.1.0.0/16", "10.9.0.0/16"]),
                member("bob", false, false, &[]),
            ],
            notes: vec!["tinc.conf:2: Proxy: none".into()],
        };
        assert_eq!(
            overview(&plan),
            "mesh       office, with addresses of 100.87.0.0/16; this machine is alice\n\
             carries    IP packets\n\
             tokens     lead to 203.0.113.1:1194\n\
             MEMBER  ROLES           NETWORKS\n\
             alice   relay, gateway  10.1.0.0/16\n\
             \x20                       10.9.0.0/16\n\
             bob     -\n\
             not in the mesh:\n  tinc.conf:2: Proxy: none\n"
        );
    }

    #[test]
    fn each_machine_gets_its_command() {
        let tokens = [
            ImportedToken {
                name: "bob".into(),
                token: Some(Zeroizing::new("adit-mesh1-x".to_owned())),
                file: None,
            },
            ImportedToken {
                name: "web".into(),
                token: None,
                file: Some("tokens/web.token".into()),
            },
        ];
        let text =
            next_steps(&Paths::new(None, "office").unwrap(), &tokens, Duration::from_secs(60));
        for part in [
            "sudo adit mesh admin phrase --mesh office\n",
            "  sudo adit mesh up --mesh office\n",
            "  on bob: sudo adit mesh join --mesh office\nadit-mesh1-x\n",
            "with a copy of tokens/web.token: sudo adit mesh join --mesh office - < web.token\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
