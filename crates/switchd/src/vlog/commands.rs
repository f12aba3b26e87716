//! The `vlog/...` commands of the control socket, with the replies that Open vSwitch gives.

use std::sync::atomic::Ordering::Relaxed;

use super::{Level, VLOG};
use crate::unixctl::{Registry, Reply};

/// Registers `vlog/set`, `list`, `list-pattern`, `enable-rate-limit`, `disable-rate-limit`, `reopen` and
/// `close`.
pub fn register_commands(registry: &Registry) {
    registry.register(
        "vlog/set",
        "{spec | PATTERN:destination:pattern}",
        0,
        usize::MAX,
        set,
    );
    registry.register("vlog/list", "", 0, 0, |_| Ok(super::levels_text()));
    registry.register("vlog/list-pattern", "", 0, 0, |_| Ok(super::patterns_text()));
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
        super::reopen_log_file().map(|()| String::new())
    });
    registry.register("vlog/close", "", 0, 0, |_| {
        super::close_log_file();
        Ok(String::new())
    });
}

fn set(args: &[String]) -> Reply {
    if args.is_empty() {
        super::set_all_levels(None, Level::Dbg);
    }
    args.iter()
        .try_for_each(|spec| super::set_levels_from_string(spec))?;
    Ok(String::new())
}

fn set_rate_limits(args: &[String], honor: bool) -> Reply {
    if args.is_empty() {
        VLOG.modules.set_honor_rate_limits(honor);
    }
    for name in args {
        if name.eq_ignore_ascii_case("ANY") {
            VLOG.modules.set_honor_rate_limits(honor);
        } else {
            let module = VLOG.modules.find(name).ok_or("unknown module")?;
            module.honor_rate_limits.store(honor, Relaxed);
        }
    }
    Ok(String::new())
}
