//! Admits invited nodes by wrapping the network's key to each one's own key.

use adit_postgres::token::{Request, admit};
use tokio_postgres::{Client, Row};

use super::db_error::DbError;
use super::shared::Shared;
use adit_runtime::clock::unix_time;
use adit_runtime::say;

const QUESTIONS: &str = "SELECT role::text, key, asked, proof FROM adit.questions() LIMIT 16";

const ANSWER: &str = "SELECT adit.answer($1::text::name, $2, $3, $4)";

/// Answers requests with an invitation. Ignores invitations that no node created, and requests that the invited node
/// did not make.
pub(super) async fn answer(shared: &Shared, client: &Client) -> Result<(), DbError> {
    let Some(directory) = shared.directory.borrow().clone() else { return Ok(()) };
    let tag = &directory.network.tag;
    let key = shared.ring.borrow().newest().clone();
    for row in client.query(QUESTIONS, &[]).await?.iter().take(16) {
        let Ok(request) = read(row) else { continue };
        let name = adit_runtime::log::clean(request.role);
        let answered = {
            let random = &mut *shared.random.borrow_mut();
            admit(&request, &key, tag, unix_time(), random)
        };
        match answered {
            Ok(answer) => {
                client
                    .query(ANSWER, &[&request.role, &request.proof, &answer.enc, &answer.sealed])
                    .await?;
                say!(
                    1,
                    "invitation {name}: used: the network's key was wrapped to the joining node"
                );
            }
            Err(error) => tracing::warn!("invitation {name}: not answered: {error}"),
        }
    }
    Ok(())
}

fn read(row: &Row) -> Result<Request<'_>, tokio_postgres::Error> {
    Ok(Request {
        role: row.try_get(0)?,
        invitation: row.try_get(1)?,
        key: row.try_get(2)?,
        proof: row.try_get(3)?,
    })
}
