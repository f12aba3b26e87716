//! `heddle/drops` and `heddle/capture-*`: the requests of the command `heddle`.

use super::Commands;

pub(super) fn register(c: &Commands<'_>) {
    c.add("heddle/drops", "[port|-] [since]", (0, 2), |s, args| {
        let port = args.first().copied().filter(|name| *name != "-");
        let since = match args.get(1) {
            Some(text) => text
                .parse()
                .map_err(|_| format!("{text}: no number of an example"))?,
            None => 0,
        };
        s.drops.told(s, port, since)
    });
    c.add("heddle/drops-reset", "", (0, 0), |s, _| {
        s.drops.reset(s);
        Ok(String::new())
    });
    let usage = "[--port port] [--drop reason|any] [--filter match] [--snaplen bytes]";
    c.add("heddle/capture-start", usage, (0, 8), |s, args| {
        s.captures.start(s, args)
    });
    c.add("heddle/capture-read", "number", (1, 1), |s, args| {
        s.captures.read(s, args.first().copied().unwrap_or_default())
    });
    c.add("heddle/capture-stop", "number", (1, 1), |s, args| {
        s.captures.stop(s, args.first().copied().unwrap_or_default())
    });
}
