//! Compiles the program for the kernel, which is carried in the binary. Without clang there is none, and
//! starting the back end fails with an error.

#[path = "src/ebpf/abi.rs"]
#[allow(dead_code, reason = "the crate uses all of it")]
mod abi;

use abi::{CONSTANTS, LAYOUTS};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: [&str; 3] = ["bpf/classifier.bpf.c", "bpf/marks.bpf.c", "bpf/tunnels.bpf.c"];

/// Writes the assertions that `bpf/maps.h` includes.
fn write_layout_check(dir: &Path) {
    let mut text = String::new();
    let mut assert = |what: &str, value: &dyn std::fmt::Display| {
        text += &format!("_Static_assert({what} == {value}, \"src/ebpf/abi.rs: {what} is {value}\");\n");
    };
    for layout in LAYOUTS {
        let name = layout.name;
        assert(&format!("sizeof(struct {name})"), &layout.size);
        for (field, offset, size) in layout.fields {
            assert(&format!("offsetof(struct {name}, {field})"), offset);
            assert(&format!("sizeof(((struct {name} *)0)->{field})"), size);
        }
    }
    for (name, value) in CONSTANTS {
        assert(name, value);
    }
    std::fs::write(dir.join("layout_check.h"), text).expect("the build directory can be written");
}

fn main() {
    for file in SOURCES.iter().chain(&["bpf/maps.h", "src/ebpf/abi.rs"]) {
        println!("cargo:rerun-if-changed={file}");
    }
    println!("cargo:rerun-if-env-changed=CLANG");
    let dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    write_layout_check(&dir);
    for source in SOURCES {
        compile(source, &dir);
    }
}

/// Compiles a source to an object of its name.
fn compile(source: &str, dir: &Path) {
    let object = Path::new(source).with_extension("o");
    let out = dir.join(object.file_name().expect("a path of a file"));
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let done = Command::new(&clang)
        .args(["-O2", "-g", "-mcpu=v2", "-Wall", "-Werror", "-target", "bpf"])
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .arg("-I")
        .arg(dir)
        // Paths of the machine that builds it have no place in it.
        .args(["-fdebug-compilation-dir=.", "-c", source, "-o"])
        .arg(&out)
        .status();
    match done {
        Ok(status) if status.success() => {}
        Ok(_) => {
            panic!("{clang} cannot compile {source}; its messages are above (libbpf-dev may be missing)")
        }
        Err(error) => {
            println!("cargo:warning={clang}: {error}: built without eBPF (scripts/setup installs clang)");
            std::fs::write(&out, []).expect("the build directory can be written");
        }
    }
}
