//! Measures the cost of the engines and the data path in memory, without any I/O.

mod handshakes;
mod instructions;
mod memory;

use std::process::ExitCode;
use std::time::Duration;

use adit_crypto::Cipher;
use adit_testbed::failure::{Context, Result};
use serde::Serialize;

use crate::table::table;

pub use handshakes::{HandshakeCost, measure_handshakes};
pub use instructions::{PieceArguments, instruction_counts, piece_names, run_piece};
pub use memory::{SIZES, Size, measure_in_memory};

/// Measures engines and data path without any I/O.
///
/// Example: adit-lab bench --cipher AES-256-GCM --size 1400 --size super
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Ciphers to measure; repeatable. All of them if none is given.
    #[arg(long = "cipher", value_parser = cipher)]
    ciphers: Vec<Cipher>,
    /// Packet sizes: bytes, imix or super; repeatable. 64, 512, 1400, imix and super if none is given.
    #[arg(long = "size")]
    sizes: Vec<Size>,
    /// How long each cipher and size takes, in milliseconds.
    #[arg(long, default_value_t = 300)]
    millis: u64,
    /// How many handshakes; 0 for none.
    #[arg(long, default_value_t = 200)]
    handshakes: u32,
    /// JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Returns the cipher with this name.
///
/// # Errors
/// There is no such cipher; the error lists those that exist.
pub fn cipher(name: &str) -> std::result::Result<Cipher, String> {
    Cipher::from_name(name).ok_or_else(|| {
        let names = Cipher::ALL.map(Cipher::name).join(", ");
        format!("{name}: no such cipher; write one of {names}")
    })
}

/// The results of one call.
#[derive(Serialize)]
struct Results {
    /// The Mb/s that one thread seals and opens.
    in_memory: Vec<InMemory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    handshakes: Option<HandshakeCost>,
}

#[derive(Serialize)]
struct InMemory {
    cipher: &'static str,
    size: String,
    mbps: f64,
}

/// Measures and prints the results as tables or JSON.
///
/// # Errors
/// A packet did not arrive, or a client did not connect.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let or_all =
        |given: &[Cipher]| if given.is_empty() { Cipher::ALL.to_vec() } else { given.to_vec() };
    let ciphers = or_all(&arguments.ciphers);
    let sizes = if arguments.sizes.is_empty() { SIZES.to_vec() } else { arguments.sizes.clone() };
    let mut results = Results { in_memory: Vec::new(), handshakes: None };
    for cipher in &ciphers {
        for size in &sizes {
            let mbps = measure_in_memory(*cipher, size, Duration::from_millis(arguments.millis))?;
            results.in_memory.push(InMemory {
                cipher: cipher.name(),
                size: size.to_string(),
                mbps,
            });
        }
    }
    if arguments.handshakes > 0 {
        results.handshakes = Some(measure_handshakes(arguments.handshakes)?);
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&results).context("JSON")?);
    } else {
        print!("{}", tables(&results, &sizes));
        println!("$ {}", std::env::args().collect::<Vec<_>>().join(" "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats a table with a row per cipher and a column per size, then the handshake.
fn tables(results: &Results, sizes: &[Size]) -> String {
    let names: Vec<String> = sizes.iter().map(Size::to_string).collect();
    let head: Vec<&str> = ["cipher"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let row = |cells: &[InMemory]| -> Vec<String> {
        let name = cells.first().map_or("", |cell| cell.cipher).to_owned();
        [name].into_iter().chain(cells.iter().map(|cell| format!("{:.0}", cell.mbps))).collect()
    };
    let rows: Vec<Vec<String>> = results.in_memory.chunks(sizes.len().max(1)).map(row).collect();
    let mut text =
        "Seal and open on one thread, Mb/s of inner packets, by their size:\n\n".to_owned();
    text += &table(&head, &rows);
    if let Some(HandshakeCost { server_ms, client_ms, per_second }) = results.handshakes {
        let rows = [
            vec!["server".to_owned(), format!("{server_ms:.3}")],
            vec!["client".to_owned(), format!("{client_ms:.3}")],
            vec!["both, per second".to_owned(), format!("{per_second:.0}")],
        ];
        text += "\nA handshake: TLS 1.3, ECDSA P-256 at both ends, tls-crypt, a cookie:\n\n";
        text += &table(&["end", "ms"], &rows);
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cipher_that_does_not_exist_is_answered_with_those_that_do() {
        assert_eq!(cipher("AES-256-GCM"), Ok(Cipher::Aes256Gcm));
        assert!(cipher("BF-CBC").unwrap_err().contains("AES-128-GCM, "));
    }

    #[test]
    fn the_table_has_a_row_a_cipher_and_a_column_a_size() {
        let cell = |size: &str, mbps| InMemory { cipher: "AES-128-GCM", size: size.into(), mbps };
        let cost = HandshakeCost { server_ms: 0.25, client_ms: 0.75, per_second: 1000.0 };
        let results = Results {
            in_memory: vec![cell("64", 1234.4), cell("imix", 99_999.0)],
            handshakes: Some(cost),
        };
        let text = tables(&results, &[Size::Bytes(64), Size::Imix]);
        assert!(text.contains("| cipher      |   64 |  imix |\n"), "{text}");
        assert!(text.contains("| AES-128-GCM | 1234 | 99999 |\n"), "{text}");
        assert!(text.contains("| both, per second |  1000 |\n"), "{text}");
    }
}
