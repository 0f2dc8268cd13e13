//! `adit server client set`, and the settings of a client in the output of `show`.

use std::net::IpAddr;
use std::process::ExitCode;

use adit_app_server::clients::{self, ClientOverview};
use adit_pki::ClientChange;
use adit_runtime::fault::Fault;

use crate::args::{ClientSet, OrNone};
use crate::text::{bytes, pair, row, wrapped};
use crate::{note, paths, print};

pub(crate) fn set(options: &ClientSet) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    let (client, count) = clients::set(&paths, &options.name, &change(options)?)?;
    let shown = clients::show(&paths, client.name.as_str())?;
    rows(&shown).iter().for_each(|row| print(&pair(row)));
    if count > 0 {
        note("its session with the former address ended\n");
    }
    if let Some(text) = clients::note_on_networks(&paths, &client)? {
        note(&wrapped("note: ", &text));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the change that the options describe.
fn change(options: &ClientSet) -> Result<ClientChange, Fault> {
    let mut change = ClientChange {
        note: options.note.clone(),
        networks: values("network", &options.network)?,
        hidden_from: values("hide-from", &options.hide_from)?,
        quota: options.quota.map(|OrNone(quota)| quota),
        rate: options.rate.map(|OrNone(rate)| rate),
        ..ClientChange::default()
    };
    if let Some(addresses) = values("address", &options.address)? {
        let (four, six) = clients::fixed_addresses(&addresses)?;
        // One address leaves that of the other family as it is; none removes both.
        let none = addresses.is_empty();
        change.address4 = (none || four.is_some()).then_some(four);
        change.address6 = (none || six.is_some()).then_some(six);
    }
    Ok(change)
}

/// Returns the values of a repeatable option, or `None` if it was not given. `none` must be the only one.
fn values<T: Clone>(name: &str, given: &[OrNone<T>]) -> Result<Option<Vec<T>>, Fault> {
    let values: Vec<T> = given.iter().filter_map(|OrNone(value)| value.clone()).collect();
    match (given.len(), values.len()) {
        (0, _) => Ok(None),
        (1, 0) => Ok(Some(values)),
        (all, some) if all == some => Ok(Some(values)),
        _ => Err(Fault::operator(format!("--{name} none cannot be combined with --{name} VALUE"))),
    }
}

/// Returns the rows about the operator's settings of a client.
pub(crate) fn rows(known: &ClientOverview) -> Vec<Vec<String>> {
    let (client, terms) = (&known.client, &known.client.terms);
    let mut rows = Vec::new();
    let addresses = [client.address4.map(IpAddr::V4), client.address6.map(IpAddr::V6)];
    let join = |values: Vec<String>| values.join(", ");
    let fixed: Vec<String> =
        addresses.into_iter().flatten().map(|address| address.to_string()).collect();
    let networks: Vec<String> = terms.networks.iter().map(ToString::to_string).collect();
    let hidden: Vec<String> = terms.hidden_from.iter().map(ToString::to_string).collect();
    for (name, values) in
        [("fixed address", fixed), ("networks", networks), ("hidden from", hidden)]
    {
        if !values.is_empty() {
            rows.push(row([name, &join(values)]));
        }
    }
    if let Some(quota) = &terms.quota {
        let used = known.used.map(|used| format!(", {} used", bytes(used))).unwrap_or_default();
        rows.push(row(["quota", &format!("{quota}{used}")]));
    }
    if let Some(rate) = &terms.rate {
        rows.push(row(["rate", &rate.to_string()]));
    }
    if let Some(note) = &terms.note {
        rows.push(row(["note", note]));
    }
    rows
}
