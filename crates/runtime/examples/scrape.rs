//! Measures scrapes of a program with one peer and with 10,000, of which 1,000 have samples of their own: the time of each, and
//! the longest time for which the control thread is busy with it.
//!
//! ```sh
//! cargo run --release -p adit-runtime --example scrape
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use adit_runtime::metrics::{Config, Head, Listener, PeerSample, Query, SLICE};

const SCRAPES: usize = 100;

fn main() -> Result<(), Box<dyn Error>> {
    [1, 10_000].into_iter().try_for_each(measure)
}

fn measure(peers: u64) -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("example.metrics");
    let config: Config = format!("unix:{}", path.display()).parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut times, size, busy) = runtime.block_on(async {
        let mut server = Listener::open(&config)?.serve()?;
        let scraper = tokio::task::spawn_blocking(move || scrapes(&path));
        tokio::pin!(scraper);
        let mut busy = Duration::ZERO;
        loop {
            tokio::select! {
                scraped = &mut scraper => {
                    let (times, size) = scraped??;
                    return Ok::<_, Box<dyn Error>>((times, size, busy));
                }
                query = server.next() => {
                    let begun = Instant::now();
                    answer(query, peers);
                    busy = busy.max(begun.elapsed());
                }
            }
        }
    })?;
    times.sort();
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
    println!(
        "peers: {peers}: {size} bytes, {:.1} ms (median), {:.1} ms (99 %); the control thread is busy for {} us at a time",
        at(50).as_secs_f64() * 1000.0,
        at(99).as_secs_f64() * 1000.0,
        busy.as_micros()
    );
    Ok(())
}

/// Scrapes a number of times. Returns the durations, and the size of the last response.
fn scrapes(path: &Path) -> std::io::Result<(Vec<Duration>, usize)> {
    let (mut times, mut text) = (Vec::new(), String::new());
    for _ in 0..SCRAPES {
        text.clear();
        let begun = Instant::now();
        let mut stream = UnixStream::connect(path)?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: adit\r\n\r\n")?;
        stream.read_to_string(&mut text)?;
        times.push(begun.elapsed());
    }
    Ok((times, text.len()))
}

fn answer(query: Query, peers: u64) {
    match query {
        Query::Head(reply) => {
            let _ = reply.send(Head::default());
        }
        Query::Peers(after, reply) => {
            let first = after.map_or(0, |after| after.saturating_add(1));
            let _ = reply.send((first..peers).take(SLICE).map(peer).collect());
        }
    }
}

fn peer(id: u64) -> PeerSample {
    PeerSample {
        id,
        name: format!("client-{id}"),
        proto: "udp",
        connected: true,
        since: Some(1_795_680_000),
        last_seen: Some(1_795_680_000),
        received: (id, id),
        sent: (id, id),
        path_mtu: Some(1400),
        ..PeerSample::default()
    }
}
