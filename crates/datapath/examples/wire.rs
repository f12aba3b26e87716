//! Two network devices joined by the datapath alone: what forwarding costs without any pipeline.
//!
//! `cargo run --release -p heddle-datapath --example wire KIND1 NAME1 KIND2 NAME2 SECONDS`, where a kind is
//! `system` or `internal`. Everything from one goes out of the other. At the end it prints what the workers
//! did.

use heddle_datapath::{Config, Datapath};
use heddle_datapath_api::{Action, Generations, PortNo, Request, Translate, Translation};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Port 1 to port 2 and back.
#[derive(Default)]
struct Wire(Generations);

impl Translate for Wire {
    fn translate(&self, request: &Request<'_>, out: &mut Translation) {
        out.mask.0.in_port = u32::MAX;
        out.actions
            .push(Action::Output(PortNo(3 - request.key.in_port.clamp(1, 2))));
    }
    fn generations(&self) -> &Generations {
        &self.0
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kind1, name1, kind2, name2, seconds] = &args[..] else {
        eprintln!("usage: wire KIND1 NAME1 KIND2 NAME2 SECONDS");
        std::process::exit(2);
    };
    let dp = Datapath::new(Config::default(), Arc::<Wire>::default()).expect("the system grants threads");
    for (no, kind, name) in [(1, kind1, name1), (2, kind2, name2)] {
        let added = heddle_port::open(kind, name, &BTreeMap::new())
            .map_err(Into::into)
            .and_then(|p| dp.add_port(p, Some(PortNo(no))));
        if let Err(e) = added {
            eprintln!("{name}: {e}");
            std::process::exit(1);
        }
    }
    println!("ready");
    std::thread::sleep(std::time::Duration::from_secs_f64(
        seconds.parse().unwrap_or(10.0),
    ));
    print!(
        "{}",
        dp.pmd_perf_show(None, "", heddle_datapath::PerfWanted::default())
    );
    dp.coverage()
        .iter()
        .filter(|(_, n)| *n > 0)
        .for_each(|(name, n)| println!("{name}: {n}"));
}
