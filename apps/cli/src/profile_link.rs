//! The links of `adit server client add --link` and `--qr`.

use std::io::IsTerminal;
use std::process::ExitCode;

use adit_app_server::profile_link::{LIFETIME, LinkEnd, LinkOptions, ProfileLink};
use adit_pki::IssuedClient;
use adit_runtime::fault::Fault;
use adit_runtime::log::fault_line;
use adit_runtime::paths::Paths;

use crate::args::Link;
use crate::text::{span, wrapped};
use crate::{note, print, users};

/// Opens the link that the options ask for, before a certificate is issued.
pub(crate) fn open(paths: &Paths, options: &Link) -> Result<Option<ProfileLink>, Fault> {
    if !options.link && !options.qr {
        let unused = options.listen.is_some() || options.cert.is_some();
        return if unused {
            Err(Fault::operator("--listen, --cert and --key belong to a link: add --link or --qr"))
        } else {
            Ok(None)
        };
    }
    let certificate = options.cert.clone().zip(options.key.clone());
    ProfileLink::open(paths, &LinkOptions { listen: options.listen, certificate }).map(Some)
}

/// Shows the link and serves it until the profile was fetched.
pub(crate) fn hand_out(
    paths: &Paths,
    link: ProfileLink,
    issued: &IssuedClient,
    qr: bool,
) -> Result<ExitCode, Fault> {
    let name = &issued.client.name;
    print(&format!("In a browser:\n  {}\n", link.url()));
    print(&format!("In OpenVPN Connect:\n  {}\n", &*link.import_url()));
    if let Some((first, second)) = link.fingerprint().and_then(|text| text.split_at_checked(48)) {
        let text = "the certificate is made for this link, so the app or browser warns of it; \
                    its SHA-256 must be:";
        print(&wrapped("note: ", text));
        print(&format!("  {first}\n  {second}\n"));
    }
    if qr {
        print(&users::qr(&link.import_url())?);
    }
    note(&format!("waiting {} for the first fetch; Ctrl-C ends it\n", span(LIFETIME.as_secs())));
    let (end, wrong) = link.serve(&issued.profile)?;
    if wrong > 0 {
        note(&format!("requests with a wrong link: {wrong}\n"));
    }
    let renew = paths.command(&format!("server client renew {name} --qr"));
    match end {
        LinkEnd::Fetched(from) => {
            print(&wrapped(
                "",
                &format!("the profile of {name} was fetched from {}", from.ip().to_canonical()),
            ));
            Ok(ExitCode::SUCCESS)
        }
        LinkEnd::BrokenOff(from) => Ok(not_fetched(&format!(
            "the transfer to {} broke off; a new certificate and link: {renew}",
            from.ip().to_canonical()
        ))),
        LinkEnd::Expired => Ok(not_fetched(&format!(
            "the profile was not fetched in time; a new certificate and link: {renew}"
        ))),
        LinkEnd::Interrupted => Ok(not_fetched(&format!(
            "the link has ended, and the profile was not fetched; a new certificate and link: {renew}"
        ))),
    }
}

/// Prints why the profile is lost. This is no fault of the command: the audit log has it as done, because the client exists.
fn not_fetched(why: &str) -> ExitCode {
    note(&fault_line(why, std::io::stderr().is_terminal()));
    ExitCode::FAILURE
}
