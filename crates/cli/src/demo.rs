//! `adit demo`.

use crate::Done;
use crate::args::Demo;

pub fn run(_options: &Demo) -> Done {
    Err(adit_daemon::fault::Fault::ours("not joined"))
}
