//! Compiles the one C file, and has the loader run our constructor before all others.

fn main() {
    println!("cargo:rerun-if-changed=src/wait.c");
    cc::Build::new()
        .file("src/wait.c")
        .flag("-std=gnu11")
        // A forced unwind passes these frames, and runs their cleanups.
        .flag("-fexceptions")
        .flag("-fasynchronous-unwind-tables")
        // A stub between libraries may have no table, and a thread may be cancelled in it.
        .flag("-fno-plt")
        .flag("-fvisibility=hidden")
        .warnings_into_errors(false)
        .extra_warnings(true)
        .opt_level(2)
        .compile("latchwork_wait");
    // The choice of a latch must be made before the first lock of anybody's constructor.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
}
