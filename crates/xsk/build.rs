//! Compiles the XDP program, which is carried in the binary. Without clang there is none, and a port reports
//! that.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "bpf/xsk.bpf.c";

fn main() {
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-env-changed=CLANG");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("xsk.bpf.o");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let done = Command::new(&clang)
        .args(["-O2", "-g", "-mcpu=v2", "-Wall", "-Werror", "-target", "bpf"])
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        // Paths of the machine that builds it have no place in it.
        .args(["-fdebug-compilation-dir=.", "-c", SOURCE, "-o"])
        .arg(&out)
        .status();
    match done {
        Ok(status) if status.success() => {}
        Ok(_) => {
            panic!("{clang} cannot compile {SOURCE}; its messages are above (libbpf-dev may be missing)")
        }
        Err(error) => {
            println!("cargo:warning={clang}: {error}: built without AF_XDP (scripts/setup installs clang)");
            std::fs::write(&out, []).expect("the build directory can be written");
        }
    }
}
