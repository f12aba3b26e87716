//! The program `heddled`; also `ovs-vswitchd`, when it is started through a link of that name.

use std::process::ExitCode;

fn main() -> ExitCode {
    heddle_switchd::shell::main(std::env::args_os())
}
