//! `adit postgres remove`.

use adit_postgres::key::NodeRecord;

use super::admin::{block_on, network, open, statement_fault};
use super::member::Member;
use super::node::directory;
use super::paths::Paths;
use adit_runtime::fault::Fault;

/// Removes the node `name` from the network permanently, with immediate effect. The node still has the network's key
/// until [`super::rekey()`].
///
/// # Errors
/// Fails if there is no such node, or this host's node may not remove others.
pub fn remove(paths: &Paths, name: &str) -> Result<(), Fault> {
    let member = Member::load(paths)?;
    let target = member.target()?;
    let unknown = || {
        Fault::operator(format!(
            "the network has no node called {name:?}; its nodes: adit postgres peers"
        ))
    };
    block_on(async {
        let client = open(&target, "remove").await?;
        let row = client.query_opt(directory::NODE_CALLED, &[&name]).await;
        let row = row.map_err(|error| statement_fault(&error))?.ok_or_else(unknown)?;
        let (record, mac) = directory::node_record(&row)
            .ok_or_else(|| Fault::peer("the node's row in the database is not valid"))?;
        // A row without a valid MAC stays without one, and no node trusts it.
        let (network, _) = network(&client).await?;
        let ring = member.ring(&client, &network.tag).await?;
        let genuine = record.verify(ring.newest(), &mac).is_ok();
        let record = NodeRecord { removed: true, ..record };
        let proof = genuine.then(|| record.mac(ring.newest())).transpose();
        let proof = proof.map_err(|error| Fault::ours(format!("{error}")))?;
        let proof = proof.as_ref().map(<[u8; 32]>::as_slice);
        let removed = client.execute("SELECT adit.remove($1, $2)", &[&record.id.0, &proof]).await;
        removed.map(drop).map_err(|error| match error.code().map(|code| code.code()) {
            Some("P0002") => unknown(),
            _ => statement_fault(&error),
        })
    })
}
