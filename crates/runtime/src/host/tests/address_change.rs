//! While a tunnel's address changes, no packet may leave outside it.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::*;

/// Returns the names of all interfaces through which an address is reached until `over` is set.
fn watch_way(to: &'static str, over: Arc<AtomicBool>) -> JoinHandle<BTreeSet<String>> {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let net = Net::open().unwrap();
            let mut seen = BTreeSet::new();
            while !over.load(Ordering::Relaxed) {
                seen.insert(way(&net, to).await);
            }
            seen
        })
    })
}

/// Without policy routing, a moment without routes in the tunnel is a leak.
#[test]
fn a_tunnel_whose_address_changes_keeps_its_routes_at_every_moment() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        let (mut host, device) = host(false).await;
        let at = |network: &str, address: u8| {
            let gateway: Ipv4Addr = format!("{network}.1").parse().unwrap();
            let mut plan = plan();
            plan.addresses = vec![format!("{network}.{address}/24").parse().unwrap()];
            plan.routes.truncate(1);
            plan.routes[0].via = Via::Tunnel(Some(gateway.into()));
            plan.redirect.as_mut().unwrap().gateway4 = Some(gateway);
            plan
        };
        // Another address in the same network, then another network.
        let plans = [at("10.77.0", 2), at("10.77.0", 3), at("10.78.0", 3)];
        let mut expected = Vec::new();
        for plan in &plans {
            host.apply(plan).await.unwrap();
            expected.push(main_routes(net).await);
        }
        let over = Arc::new(AtomicBool::new(false));
        let watcher = watch_way("203.0.114.9", Arc::clone(&over));
        for _ in 0..20 {
            for (plan, expected) in plans.iter().zip(&expected) {
                assert_eq!(host.change(plan).await.unwrap(), ApplyOutcome::Changed(Vec::new()));
                assert_eq!(main_routes(net).await, *expected);
            }
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(watcher.join().unwrap(), ["tun0".to_owned()].into());
        host.close().await;
        remove(net, device).await;
    });
}

/// Returns the routes of the main table in their order.
async fn main_routes(net: &Net) -> Vec<String> {
    let routes = net.routes().await.unwrap().into_iter();
    let mut routes: Vec<String> = routes
        .filter(|route| route.table == Some(MAIN_TABLE))
        .map(|route| route.to_string())
        .collect();
    routes.sort();
    routes
}
