//! `bfd/*`: sessions that watch ports.

use super::Commands;

pub(super) fn register(c: &Commands<'_>) {
    c.add("bfd/show", "[interface]", (0, 1), |s, args| {
        let monitor = s.ofproto.monitor();
        if let [name] = args {
            return monitor.details(name).ok_or("no such bfd object".into());
        }
        let names = monitor.names().into_iter();
        let all = names.filter_map(|name| Some(format!("---- {name} ----\n{}", monitor.details(&name)?)));
        Ok(all.collect())
    });
    c.add(
        "bfd/set-forwarding",
        "[interface] normal|false|true",
        (1, 2),
        |s, args| {
            let monitor = s.ofproto.monitor();
            let forced = args.last().map_or("", |a| a);
            let forced = match forced.to_ascii_lowercase().as_str() {
                "true" => Some(true),
                "false" => Some(false),
                "normal" => None,
                _ => return Err("unknown fault string".into()),
            };
            match args {
                [name, _] if !monitor.force(name, forced) => return Err("no such BFD object".into()),
                [_, _] => {}
                _ => monitor.names().iter().for_each(|name| {
                    monitor.force(name, forced);
                }),
            }
            s.sessions_changed.notify_one();
            Ok("OK".into())
        },
    );
}
