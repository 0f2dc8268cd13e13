//! Passes the compiler's version to the program: instruction counts are comparable only if the
//! compiler is the same.

use std::env;
use std::process::Command;

fn main() {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = Command::new(rustc).arg("--version").output().map(|output| output.stdout);
    let version =
        said.map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into_owned());
    println!("cargo::rustc-env=ADIT_RUSTC={}", version.trim());
    println!("cargo::rustc-env=ADIT_TARGET={}", env::var("TARGET").unwrap_or_default());
    println!("cargo::rerun-if-changed=build.rs");
}
