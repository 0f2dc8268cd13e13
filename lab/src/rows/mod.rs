//! One end of a tunnel that works like the well-known VPN through PostgreSQL, with one or two statements per packet.
//!
//! It is written from the public description (<https://nickhuber.ca/blog/the-worst-vpn>,
//! <https://nickhuber.ca/blog/less-worst-vpn>), and copies the statements and their order, not the code. It does not
//! authenticate its peer and serves only for measuring.

mod counters;
mod device;
mod pool;
mod receive;
mod send;

use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::Arc;

use adit_testbed::failure::{Context, Failure, Result};
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use counters::MARK;
pub use counters::{CounterValues, Counters};
use pool::Pool;

/// The output when the tunnel is ready.
pub const READY: &str = "row-notify: ready";

/// The table that all forms use, as published: a packet and its sender's address. Only the first form has the column
/// `received`.
pub const TABLE: &str =
    "CREATE TABLE raw_packet (id serial PRIMARY KEY, payload bytea, sender inet)";

/// The trigger that the first form has in addition to [`TABLE`].
pub const TRIGGER: &str = "\
    ALTER TABLE raw_packet ADD received int DEFAULT 0;
    CREATE FUNCTION raw_packet_came() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_notify('raw_packet_ready', NEW.id::text); RETURN NEW; END $$;
    CREATE TRIGGER raw_packet_came AFTER INSERT ON raw_packet FOR EACH ROW EXECUTE FUNCTION raw_packet_came()";

/// The form of the notification. It determines who sends it and whether it contains the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// For each packet, the program inserts a row and then sends a notification with its number. The peer selects the
    /// row by that number.
    Row,
    /// The program inserts the row of one packet after another, and a trigger sends the notifications. The peer selects
    /// the rows that it has not marked as received.
    Trigger,
    /// There is no row. The notification contains the packet itself, in base64.
    Notify,
}

/// One end of a tunnel of one row and one notification per packet, for measuring only.
///
/// Example: adit-lab row-notify --tun lab0 --address 10.88.0.1/16 --peer 10.88.0.2 --database 'host=192.0.2.1 user=lab'
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Name of the TUN device.
    #[arg(long)]
    tun: String,
    /// Address inside the tunnel, with its prefix; IPv4 only, as in the original.
    #[arg(long)]
    address: ipnet::Ipv4Net,
    /// The other end's address inside.
    #[arg(long)]
    peer: Ipv4Addr,
    /// As `key=value` pairs of libpq, or as a URL.
    #[arg(long)]
    database: String,
    /// How a packet reaches the peer.
    #[arg(long, value_enum, default_value = "row")]
    form: Form,
    /// Connections besides the one that listens.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=90))]
    pool: u16,
    /// SELECTs under way at once; their answers are taken in the order of the notifications. The original has one.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    selects: u16,
    /// Largest packet inside.
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
}

/// The state that both directions share.
struct End {
    pool: Pool,
    device: device::Device,
    counters: Counters,
    form: Form,
    own: Ipv4Addr,
    peer: Ipv4Addr,
}

/// Returns an error with the database's message, which the error's own text lacks.
fn said(error: tokio_postgres::Error) -> Failure {
    Failure(match error.as_db_error() {
        Some(told) => told.to_string(),
        None => error.to_string(),
    })
}

/// Runs one end until it is stopped; on SIGUSR1 it prints its counters.
///
/// # Errors
/// The process is not permitted to create a TUN device, the database is unreachable, or a statement failed. In these
/// cases the original ends too.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(both(arguments))
}

async fn both(arguments: &Arguments) -> Result<ExitCode> {
    let device = device::Device::open(&arguments.tun, arguments.address, arguments.mtu).await?;
    let (own, peer, form) = (arguments.address.addr(), arguments.peer, arguments.form);
    let notified = receive::listen(&arguments.database, form, peer).await?;
    let pool = Pool::connect(&arguments.database, form, usize::from(arguments.pool)).await?;
    let end = Arc::new(End { pool, device, counters: Counters::default(), form, own, peer });
    let mut asked = signal(SignalKind::user_defined1())?;
    let mut stopped = signal(SignalKind::terminate())?;
    println!("{READY}");
    let sending = send::run(Arc::clone(&end));
    let receiving = receive::run(Arc::clone(&end), notified, usize::from(arguments.selects));
    let (mut sending, mut receiving) = (std::pin::pin!(sending), std::pin::pin!(receiving));
    loop {
        tokio::select! {
            outcome = &mut sending => outcome.context("sending")?,
            outcome = &mut receiving => outcome.context("receiving")?,
            _ = asked.recv() => println!("{}", end.counters.page()),
            _ = stopped.recv() => return Ok(ExitCode::SUCCESS),
        }
    }
}
