//! `upcall/*` and `revalidator/*`: the cache of translations.

use super::{Commands, dpctl};
use crate::inventory::datapath_name;
use heddle_datapath_api::Engine;

pub(super) fn register(c: &Commands<'_>) {
    c.add("upcall/show", "", (0, 0), |s, _| {
        let body = s.datapath.upcall_show();
        Ok(dpctl::types(s)
            .iter()
            .map(|t| format!("{}:\n{body}", datapath_name(t)))
            .collect())
    });
    c.add("upcall/set-flow-limit", "flow-limit-number", (1, 1), |s, args| {
        let text = args.first().copied().unwrap_or_default();
        let limit: u32 = text.parse().unwrap_or(0);
        s.datapath
            .set_flow_limit(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(format!("set flow_limit to {limit}\n"))
    });
    c.add("revalidator/wait", "", (0, 0), |s, _| {
        s.datapath.flush_stats();
        s.datapath.tick();
        Ok(String::new())
    });
    c.add("revalidator/purge", "", (0, 0), |s, _| {
        s.datapath.purge();
        Ok(String::new())
    });
    for (name, paused) in [("revalidator/pause", true), ("revalidator/resume", false)] {
        c.add(name, "", (0, 0), move |s, _| {
            s.datapath.pause_revalidator(paused);
            Ok(String::new())
        });
    }
    for (name, on) in [
        ("upcall/disable-megaflows", false),
        ("upcall/enable-megaflows", true),
    ] {
        c.add(name, "", (0, 0), move |s, _| {
            s.ofproto.pipeline().set_megaflows(on);
            s.datapath.purge();
            Ok(format!("megaflows {}", if on { "enabled" } else { "disabled" }))
        });
    }
    // Names of flows are made when they are printed, so a terse dump saves nothing.
    c.add("upcall/disable-ufid", "", (0, 0), |_, _| {
        Ok("Datapath dumping tersely using UFID disabled".into())
    });
    c.add("upcall/enable-ufid", "", (0, 0), |_, _| {
        Ok("Datapath dumping tersely using UFID enabled for supported datapaths".into())
    });
}
