//! Looks for the headers of Berkeley DB 5.3, and compiles the shims if they exist.

use std::path::Path;

const HEADER: &str = "/usr/include/db.h";
const SHIMS: [&str; 3] = ["src/bdb/shim.c", "src/bdb/mpool.c", "src/stores/bdb.c"];

fn main() {
    println!("cargo::rustc-check-cfg=cfg(berkeley_db)");
    for shim in SHIMS {
        println!("cargo::rerun-if-changed={shim}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    // While the header is missing, whatever is installed may bring it.
    let watched = if Path::new(HEADER).exists() { HEADER } else { "/usr/include" };
    println!("cargo::rerun-if-changed={watched}");
    // The library itself is opened when it is asked for, so that the program runs without it.
    let shim = cc::Build::new().files(SHIMS).cargo_warnings(false).try_compile("latchwork_bdb");
    match shim {
        Ok(()) => println!("cargo::rustc-cfg=berkeley_db"),
        Err(_) => println!(
            "cargo::warning=Berkeley DB 5.3 is not installed (Debian: libdb5.3-dev): benchmarks \
             of lock managers will run without their rival"
        ),
    }
}
