//! `adit status`, `adit top`, `adit reload`: asking what runs.

use super::failure::{Outcome, file_fault};
use super::machine::running;
use super::places::Places;
use crate::control::{self, Request, Response, StatusReport};
use crate::fault::Fault;

/// Everything of ours that runs with these places: the server and, in `/run/adit`, clients.
///
/// # Errors
/// The folder of the sockets or a socket may not be used. A socket of a killed process is passed
/// over.
pub fn status(places: &Places) -> Outcome<Vec<StatusReport>> {
    let sockets = control::list(&places.run)
        .map_err(|error| file_fault("cannot read", &places.run, &error))?;
    let mut reports = Vec::new();
    for socket in sockets {
        match control::request(&socket, &Request::Status) {
            Ok(Response::Status(report)) => reports.push(*report),
            Ok(Response::Error { message }) => return Err(Fault::environment(message)),
            Ok(_) => {}
            Err(_) if std::os::unix::net::UnixStream::connect(&socket).is_err_and(refused) => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(reports)
}

fn refused(error: std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(error.kind(), ConnectionRefused | NotFound)
}

/// Lets the running server read its files again.
///
/// # Errors
/// No server runs, or it could not read them; then it goes on with what it had.
pub fn reload(places: &Places) -> Outcome<()> {
    if running(places).is_none() {
        return Err(Fault::environment(format!(
            "no server runs here; start it with: {}",
            places.command("server run")
        )));
    }
    match control::request(&places.control_socket(), &Request::Reload)? {
        Response::Done { .. } => Ok(()),
        Response::Error { message } => Err(Fault::operator(message)),
        _ => Err(Fault::ours("the control socket answers another question")),
    }
}
