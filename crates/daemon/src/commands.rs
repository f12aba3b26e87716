//! The commands that every daemon has, with the replies that Open vSwitch gives: `exit`, `vlog/...`,
//! `coverage/...` and `memory/show`.

use crate::exit::{Exit, Request};
use crate::unixctl::{Registry, Reply};
use crate::{coverage, memory, vlog};

/// Registers them all.
pub fn register(registry: &Registry, exit: Exit, memory: memory::Reporters) {
    registry.register("exit", "[--cleanup]", 0, 1, move |args| {
        let cleanup = args.first().is_some_and(|arg| arg == "--cleanup");
        exit.request(Request {
            cleanup,
            signal: None,
        });
        Ok(String::new())
    });
    registry.register("coverage/show", "", 0, 0, |_| Ok(coverage::show()));
    registry.register("coverage/read-counter", "COUNTER", 1, 1, |args| {
        let name = args.first().map_or("", String::as_str);
        coverage::read(name)
            .map(|total| format!("{total}\n"))
            .ok_or_else(|| "No such counter".to_owned())
    });
    registry.register("memory/show", "", 0, 0, move |_| Ok(memory.text()));
    registry.register(
        "vlog/set",
        "{spec | PATTERN:destination:pattern}",
        0,
        usize::MAX,
        set,
    );
    registry.register("vlog/list", "", 0, 0, |_| Ok(vlog::levels_text()));
    registry.register("vlog/list-pattern", "", 0, 0, |_| Ok(vlog::patterns_text()));
    let limit = |enable: bool| move |args: &[String]| set_rate_limits(args, enable);
    registry.register(
        "vlog/enable-rate-limit",
        "[module]...",
        0,
        usize::MAX,
        limit(true),
    );
    registry.register(
        "vlog/disable-rate-limit",
        "[module]...",
        0,
        usize::MAX,
        limit(false),
    );
    registry.register("vlog/reopen", "", 0, 0, |_| {
        vlog::reopen_log_file().map(|()| String::new())
    });
    registry.register("vlog/close", "", 0, 0, |_| {
        vlog::close_log_file();
        Ok(String::new())
    });
}

fn set(args: &[String]) -> Reply {
    if args.is_empty() {
        vlog::set_all_levels(None, vlog::Level::Dbg);
    }
    args.iter()
        .try_for_each(|spec| vlog::set_levels_from_string(spec))?;
    Ok(String::new())
}

fn set_rate_limits(args: &[String], honor: bool) -> Reply {
    if args.is_empty() {
        vlog::set_rate_limits(None, honor)?;
    }
    for name in args {
        let module = Some(name.as_str()).filter(|name| !name.eq_ignore_ascii_case("ANY"));
        vlog::set_rate_limits(module, honor)?;
    }
    Ok(String::new())
}
