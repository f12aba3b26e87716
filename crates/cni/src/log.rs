//! One line for each command, into the file that the configuration names.

use crate::args::Args;
use crate::conf::Conf;
use crate::error::Failure;
use crate::names;
use heddle_sys::names::append_below;
use serde_json::Value;
use std::io::Write;
use std::path::Path;

/// Appends the result of a command. A log that cannot be written is no failure.
pub(crate) fn write(args: &Args, conf: &Conf, done: &Result<(Option<Value>, String), Failure>) {
    let Some(path) = &conf.own.log_file else { return };
    let outcome = match done {
        Ok((_, what)) => what.clone(),
        Err(e) => format!("error {}: {}", e.code, e.msg),
    };
    let now = chrono::Utc::now().format("%Y-%m-%dT%H:%M:%S%.3fZ");
    let command = format!("{:?}", args.command).to_uppercase();
    let line = format!(
        "{now} {command} {} {} {}: {outcome}\n",
        conf.name, args.container, args.ifname
    );
    let Some(dir) = names::log_dir(path) else { return };
    let _ = append_below(&dir, Path::new(path)).and_then(|mut file| file.write_all(line.as_bytes()));
}
