//! Commands that choose among implementations. Each has one implementation here, with the name of the one
//! that any processor can run; the others are not offered.

use super::{Commands, dpctl};
use heddle_daemon::unixctl::Reply;

pub(super) fn register(c: &Commands<'_>) {
    c.add("odp-execute/action-impl-show", "", (0, 0), |_, _| {
        Ok("Available Actions implementations:\n  scalar (available: Yes, active: Yes)\n".into())
    });
    c.add(
        "odp-execute/action-impl-set",
        "name",
        (1, 1),
        |_, args| match args {
            ["scalar"] => Ok("Action implementation set to scalar.\n".into()),
            other => Err(format!(
                "Error: unknown action implementation, {}, specified!",
                other.first().copied().unwrap_or_default()
            )),
        },
    );
    c.add("dpif-netdev/miniflow-parser-get", "", (0, 0), |s, _| {
        let cores = s
            .datapath
            .snapshot()
            .workers
            .into_iter()
            .map(|w| w.core.to_string());
        let cores = cores.collect::<Vec<_>>().join(",");
        let cores = if cores.is_empty() { "none" } else { &cores };
        Ok(format!(
            "Available MFEX implementations:\n  scalar (available: True pmds: {cores})\n"
        ))
    });
    let usage = "[-pmd core] miniflow_implementation_name [study_pkt_cnt]";
    c.add("dpif-netdev/miniflow-parser-set", usage, (1, 4), |s, args| {
        let cores = s.datapath.snapshot().workers.into_iter().map(|w| w.core);
        set_parser(&cores.collect::<Vec<_>>(), args)
    });
    c.add("dpif-netdev/subtable-lookup-info-get", "", (0, 0), |s, _| {
        let tables = s.datapath.totals().masks;
        Ok(format!(
            "Available dpcls implementations:\n  generic (Use count: {tables}, Priority: 1)\n"
        ))
    });
    c.add(
        "dpif-netdev/subtable-lookup-prio-set",
        "[lookup_func] [prio]",
        (2, 2),
        |_, args| {
            let [name, priority] = args else {
                return Err("a name and a priority are needed".into());
            };
            // Open vSwitch takes text that is no number for 0.
            if priority.parse::<u64>().is_ok_and(|n| n > 255) {
                return Err("error converting priority, use integer in range 0-255\n".into());
            }
            match *name {
                "generic" => Ok("Lookup priority change affected 0 dpcls ports and 0 subtables.\n".into()),
                _ => Err("error, subtable lookup function not found\n".into()),
            }
        },
    );
    c.add("dpif-netdev/bond-show", "[dp]", (0, 1), |s, args| {
        match args.first() {
            Some(name) if !dpctl::is_known(s, name) => Err(dpctl::UNKNOWN.into()),
            _ => Ok(s.ofproto.bonds().show_buckets()),
        }
    });
    // The kernel's datapath is not used.
    c.add("dpif-netlink/dispatch-mode", "", (0, 0), |_, _| Ok(String::new()));
}

fn set_parser(cores: &[usize], args: &[&str]) -> Reply {
    let rest = match args {
        ["-pmd", core, rest @ ..] => {
            let number = core.parse::<usize>().map_err(|_| {
                format!(
                    "Error: miniflow extract parser not changed, PMD thread passed is not valid: '{core}'. Pass a \
                     valid pmd thread ID.\n"
                )
            })?;
            if !cores.contains(&number) {
                return Err(format!(
                    "Error: miniflow extract parser not changed, PMD thread {core} not in use, pass a valid pmd \
                     thread ID.\n"
                ));
            }
            rest
        }
        rest => rest,
    };
    match rest {
        [] => Err(
            "Error: no miniflow extract name provided. Output of miniflow-parser-get shows \
                   implementation list.\n"
                .into(),
        ),
        ["scalar"] => Ok("Miniflow extract implementation set to scalar.\n".into()),
        ["scalar", extra, ..] => Err(format!("Error: unknown argument {extra}.\n")),
        [other, ..] => Err(format!(
            "Error: unknown miniflow extract implementation {other}.\n"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_there_is_chosen() {
        assert!(set_parser(&[3], &["scalar"]).is_ok());
        assert!(set_parser(&[3], &["-pmd", "3", "scalar"]).is_ok());
        for wrong in [
            &["-pmd", "4", "scalar"][..],
            &["-pmd", "x", "scalar"],
            &["study"],
            &["scalar", "1"],
            &["-pmd", "3"],
        ] {
            assert!(set_parser(&[3], wrong).is_err(), "{wrong:?}");
        }
    }
}
