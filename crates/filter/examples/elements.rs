//! Measures the cost of changes to a set, with 10,000 rules and a set of 100,000 elements.
//!
//!     cargo run --release -p adit-filter --example elements

use std::time::Instant;

use adit_filter::elements::Change;
use adit_filter::firewall::{Firewall, Limits};
use adit_filter::{Filter, Nanos, lang};

#[path = "../../../testing/icount/src/rules.rs"]
#[allow(dead_code, reason = "shared with other programs")]
mod rules;

const ELEMENTS: u32 = 100_000;

fn address(at: u32) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::from_bits(at.wrapping_mul(2_654_435_761))
}

fn main() {
    for flags in ["", "flags timeout;"] {
        let list: Vec<String> = (0..ELEMENTS).map(|at| address(at).to_string()).collect();
        let set = format!(
            "table inet sets {{\n set s {{ type ipv4_addr; {flags} elements = {{ {} }} }}\n \
             chain c {{ type filter hook forward priority 0; ip saddr @s drop; }}\n}}\n",
            list.join(", ")
        );
        let text = format!("{}\n{set}", rules::many(10_000));
        let none = &mut |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let ruleset = lang::parse("rules", &text, none).expect("rules");
        let start = Instant::now();
        let filter = Filter::compile(ruleset).expect("filter");
        println!("{:22} compiled in {:?}", flags, start.elapsed());
        let firewall = Firewall::new(filter, Limits::default(), [7; 16]);
        let timed = |what: &str, text: &str| {
            let start = Instant::now();
            let filter = firewall.filter();
            let named = lang::elements(filter.ruleset(), text).expect("elements");
            let now = Nanos(1);
            firewall
                .change_elements(named.table, named.set, Change::Add, named.elements, now)
                .expect("added");
            println!("{what:>22} in {:?}", start.elapsed());
        };
        timed("the first change", "s 192.0.2.1");
        timed("the next one", "s 192.0.2.2");
        let start = Instant::now();
        for at in 0..1000 {
            let filter = firewall.filter();
            let text = format!("s {}", address(ELEMENTS + at));
            let named = lang::elements(filter.ruleset(), &text).expect("elements");
            let (table, set) = (named.table, named.set);
            firewall
                .change_elements(table, set, Change::Add, named.elements, Nanos(1))
                .expect("added");
        }
        println!("{:>22} in {:?}", "1000 more, singly", start.elapsed());
        let list: Vec<String> =
            (0..10_000).map(|at| address(ELEMENTS + 1000 + at).to_string()).collect();
        timed("10000 at once", &format!("s {{ {} }}", list.join(", ")));
    }
}
