//! `time/*`: tests stop the clock and move it.

use super::Commands;

pub(super) fn register(c: &Commands<'_>) {
    c.add("time/stop", "", (0, 0), |s, _| {
        s.clock.stop();
        Ok(String::new())
    });
    c.add("time/warp", "[large_msecs] msecs", (1, 2), |s, args| {
        let number = |text: &str| {
            text.trim()
                .parse::<i64>()
                .ok()
                .and_then(|n| u64::try_from(n).ok())
        };
        let (total, step) = match args {
            [total, step] => (number(total), number(step)),
            [step] => (number(step), number(step)),
            _ => (None, None),
        };
        let done = match (total, step) {
            // A total of nothing is one step.
            (Some(0), Some(step)) if step > 0 => s.warp(step, step),
            (Some(total), Some(step)) if step > 0 => s.warp(total, step),
            _ => return Err("invalid MSECS".into()),
        };
        if done {
            Ok("warped".into())
        } else {
            Err("A previous warp in progress".into())
        }
    });
}
