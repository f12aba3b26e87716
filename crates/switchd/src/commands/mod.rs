//! Commands of the control socket that read the switch or change it, with the words and layouts of Open
//! vSwitch: scripts read them.

mod args;
mod bfd;
mod bonds;
mod bridge;
mod ct;
mod diagnostics;
mod dpctl;
mod dpctl_change;
mod dpif;
mod dummy;
mod fdb;
mod flows;
mod ipf;
mod kernel_conntrack;
mod mdb;
mod memory;
mod migrate;
mod neigh;
mod offload;
mod pmd;
mod protocols;
mod qos;
mod route;
mod route_rule;
mod time;
mod trace;
mod tunnels;
mod upcall;
mod variants;

use std::sync::Arc;

use heddle_ofproto::bridge::Bridge;

use crate::context::Context;
use crate::switch::Switch;
use heddle_daemon::coverage;
use heddle_daemon::unixctl::{JsonReply, Registry, Reply};

/// Registers all commands.
pub(crate) fn register(ctx: &Context, switch: &Arc<Switch>) {
    let commands = Commands {
        registry: &ctx.commands,
        switch,
    };
    bfd::register(&commands);
    bonds::register(&commands);
    bridge::register(&commands);
    ct::register(&commands);
    dpctl::register(&commands);
    dpctl_change::register(&commands);
    dpif::register(&commands);
    fdb::register(&commands);
    mdb::register(&commands);
    ipf::register(&commands);
    migrate::register(&commands);
    kernel_conntrack::register(&commands);
    neigh::register(&commands);
    offload::register(&commands);
    pmd::register(&commands);
    protocols::register(&commands);
    qos::register(&commands);
    route::register(&commands);
    route_rule::register(&commands);
    trace::register(&commands);
    tunnels::register(&commands);
    upcall::register(&commands);
    variants::register(&commands);
    diagnostics::register(&commands);
    if ctx.options.dummy.is_some() {
        dummy::register(&commands);
        time::register(&commands);
    }
    memory::register(&ctx.memory, switch);
    let datapath = switch.datapath.clone();
    coverage::register_source(move |add| {
        datapath.coverage().into_iter().for_each(|(name, n)| add(name, n));
        add("upcall_flow_limit_hit", datapath.totals().limit_hits);
    });
    let counts = switch.sample_counts.clone();
    coverage::register_source(move |add| counts.all().into_iter().for_each(|(name, n)| add(name, n)));
    coverage::register_source(|add| heddle_ofproto::coverage::all().for_each(|(name, n)| add(name, n)));
}

/// The registry that receives commands, and the switch that they work on.
struct Commands<'a> {
    registry: &'a Registry,
    switch: &'a Arc<Switch>,
}

impl Commands<'_> {
    /// Adds a command that gets the switch and its arguments. It may block.
    fn add(
        &self,
        name: &str,
        usage: &str,
        (min_args, max_args): (usize, usize),
        handler: impl Fn(&Switch, &[&str]) -> Reply + Send + Sync + 'static,
    ) {
        let switch = self.switch.clone();
        self.registry
            .register(name, usage, min_args, max_args, move |args| {
                let args: Vec<&str> = args.iter().map(String::as_str).collect();
                handler(&switch, &args)
            });
    }

    /// Adds the JSON handler of a command that was added before.
    fn add_json(&self, name: &str, handler: impl Fn(&Switch, &[&str]) -> JsonReply + Send + Sync + 'static) {
        let switch = self.switch.clone();
        self.registry.register_json(name, move |args| {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            handler(&switch, &args)
        });
    }
}

/// The bridge of that name.
fn bridge_named(switch: &Switch, name: &str, otherwise: &str) -> Result<Arc<Bridge>, String> {
    switch.ofproto.bridge(name).ok_or_else(|| otherwise.to_owned())
}
