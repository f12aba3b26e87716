//! Actions from text, as `ovs-ofctl` reads them.
//!
//! Errors are sentences for a person.

use crate::action::{Action, ControllerAction, FieldId, Instruction, InstructionSet, Port, Subfield};
use crate::actions::MAX_DEPTH;
use heddle_flow::field::port_to_32;
use heddle_flow::text::{PortNumbers, key_values, parse_int, parse_port, parse_value};
use std::net::Ipv4Addr;

/// Reads a list of actions such as `load:1->NXM_NX_REG0[],output:2`; `drop` is the empty list.
///
/// # Errors
/// A sentence for a person.
pub fn parse_actions(s: &str, ports: Option<PortNumbers<'_>>) -> Result<Vec<Action>, String> {
    action_list(s, ports, 0)
}

/// Reads a list of actions that is nested in this many others.
pub(super) fn action_list(s: &str, ports: Option<PortNumbers<'_>>, depth: u8) -> Result<Vec<Action>, String> {
    let set = instructions(s, ports, depth)?;
    match set.0.as_slice() {
        [] => Ok(Vec::new()),
        [Instruction::Apply(actions)] => Ok(actions.clone()),
        _ => Err(format!("{s}: only actions are allowed here, not instructions")),
    }
}

/// Reads actions and instructions such as `set_field:1->reg0,goto_table:2`.
///
/// # Errors
/// A sentence for a person.
pub fn parse_instructions(s: &str, ports: Option<PortNumbers<'_>>) -> Result<InstructionSet, String> {
    instructions(s, ports, 0)
}

/// Reads actions and instructions. Lists nest as deep as in messages: each level takes machine stack.
fn instructions(s: &str, ports: Option<PortNumbers<'_>>, depth: u8) -> Result<InstructionSet, String> {
    if depth > MAX_DEPTH {
        return Err(format!("actions are nested more than {MAX_DEPTH} levels deep"));
    }
    let mut actions = Vec::new();
    let mut others = Vec::new();
    let mut drop = false;
    for (key, value) in key_values(s) {
        match key.to_ascii_lowercase().as_str() {
            "drop" => drop = true,
            "meter" => others.push(Instruction::Meter(int(value)?)),
            "clear_actions" => others.push(Instruction::Clear),
            "write_actions" => others.push(Instruction::Write(action_list(value, ports, depth + 1)?)),
            "write_metadata" => {
                let (v, m) = value.split_once('/').unwrap_or((value, ""));
                let mask = if m.is_empty() { u64::MAX } else { int(m)? };
                others.push(Instruction::WriteMetadata { value: int(v)?, mask });
            }
            "goto_table" => others.push(Instruction::Goto(int(value)?)),
            "apply_actions" => return Err("apply_actions is the default instruction".into()),
            name => actions.push(action(name, key, value, ports, depth)?),
        }
    }
    if drop && !(actions.is_empty() && others.is_empty()) {
        return Err("\"drop\" must not be accompanied by any other action or instruction".into());
    }
    let meters = others
        .iter()
        .take_while(|i| matches!(i, Instruction::Meter(_)))
        .count();
    if !actions.is_empty() {
        others.insert(meters, Instruction::Apply(actions));
    }
    let set = InstructionSet(others);
    crate::actions::verify_order(&set).map_err(|_| format!("{s}: instructions are out of order"))?;
    Ok(set)
}

/// An integer with C's prefixes that fits its type.
pub(super) fn int<T: TryFrom<u128>>(s: &str) -> Result<T, String> {
    let bad = || format!("{s}: not a number that fits here");
    match parse_int(s.trim(), 16) {
        Ok((v, "")) => T::try_from(v).map_err(|_| bad()),
        _ => Err(bad()),
    }
}

fn at_most<T: TryFrom<u128> + PartialOrd>(s: &str, max: T, what: &str) -> Result<T, String> {
    let v = int::<T>(s)?;
    if v <= max {
        Ok(v)
    } else {
        Err(format!("{s}: not a valid {what}"))
    }
}

fn mac(s: &str) -> Result<[u8; 6], String> {
    Ok(parse_value(FieldId::EthSrc, s, None)?.0.as_mac())
}

fn ipv4(s: &str) -> Result<u32, String> {
    s.parse::<Ipv4Addr>()
        .map(u32::from)
        .map_err(|_| format!("{s}: invalid IP address"))
}

/// Reads a port; texts know ports by the numbers that keys have.
pub(super) fn read_port(s: &str, ports: Option<PortNumbers<'_>>) -> Option<Port> {
    parse_port(s, ports).map(|p| Port(port_to_32(p)))
}

fn port(s: &str, ports: Option<PortNumbers<'_>>, what: &str) -> Result<Port, String> {
    read_port(s, ports).ok_or_else(|| format!("{s}: {what} unknown port"))
}

pub(super) fn hex(s: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<u8> = s
        .bytes()
        .filter(|b| !matches!(b, b'.' | b' '))
        .map(|b| {
            char::from(b)
                .to_digit(16)
                .and_then(|d| u8::try_from(d).ok())
                .ok_or("bad hex digit")
        })
        .collect::<Result<_, _>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err("bad hex digit".into());
    }
    Ok(pairs.iter().map(|[hi, lo]| hi << 4 | lo).collect())
}

fn action(
    name: &str,
    key: &str,
    value: &str,
    ports: Option<PortNumbers<'_>>,
    depth: u8,
) -> Result<Action, String> {
    Ok(match name {
        "output" => output(value, ports)?,
        "controller" => controller(value)?,
        "enqueue" => {
            let (p, q) = value
                .split_once([':', 'q', ','])
                .ok_or("\"enqueue\" syntax is \"enqueue:PORT:QUEUE\" or \"enqueue(PORT,QUEUE)\"")?;
            Action::Enqueue {
                port: port(p, ports, "enqueue to")?,
                queue: int(q)?,
            }
        }
        "set_queue" => Action::SetQueue(int(value)?),
        "pop_queue" => Action::PopQueue,
        "group" => Action::Group(int(value)?),
        "mod_vlan_vid" | "set_vlan_vid" => Action::SetVlanVid {
            vid: at_most(value, 0xfff, "VLAN VID")?,
            push_if_missing: name == "mod_vlan_vid",
        },
        "mod_vlan_pcp" | "set_vlan_pcp" => Action::SetVlanPcp {
            pcp: at_most(value, 7, "VLAN PCP")?,
            push_if_missing: name == "mod_vlan_pcp",
        },
        "strip_vlan" => Action::StripVlan,
        "pop_vlan" => Action::PopVlan,
        "push_vlan" => match int(value)? {
            t @ (0x8100 | 0x88a8) => Action::PushVlan(t),
            _ => return Err(format!("{value}: not a valid VLAN ethertype")),
        },
        "mod_dl_src" => Action::SetEthSrc(mac(value)?),
        "mod_dl_dst" => Action::SetEthDst(mac(value)?),
        "mod_nw_src" => Action::SetIpv4Src(ipv4(value)?),
        "mod_nw_dst" => Action::SetIpv4Dst(ipv4(value)?),
        "mod_nw_tos" => match int::<u8>(value)? {
            tos if tos & 3 == 0 => Action::SetIpDscp(tos),
            _ => return Err(format!("{value}: not a valid TOS")),
        },
        "mod_nw_ecn" => Action::SetIpEcn(at_most(value, 3, "ECN")?),
        "mod_nw_ttl" | "set_nw_ttl" => Action::SetIpTtl(int(value)?),
        "mod_tp_src" => Action::SetL4Src(int(value)?),
        "mod_tp_dst" => Action::SetL4Dst(int(value)?),
        "set_field" => set_field(value, ports)?,
        "load" => load(value)?,
        "move" => {
            let (src, rest) = Subfield::parse_prefix(value)?;
            let dst = rest
                .strip_prefix("->")
                .ok_or_else(|| format!("{value}: missing `->' following source"))?
                .parse::<Subfield>()?;
            if src.n_bits != dst.n_bits {
                let (s, d) = (src.n_bits, dst.n_bits);
                return Err(format!(
                    "{value}: source field is {s} bits wide but destination is {d} bits wide"
                ));
            }
            Action::Move { src, dst }
        }
        "push" => Action::StackPush(value.parse()?),
        "pop" => Action::StackPop(value.parse()?),
        "dec_ttl" if value.is_empty() => Action::DecTtl(vec![0]),
        "dec_ttl" => {
            let ids = value.split([',', ' ']).filter(|s| !s.is_empty());
            Action::DecTtl(ids.map(int).collect::<Result<_, _>>()?)
        }
        "set_mpls_label" => Action::SetMplsLabel(at_most(value, 0xf_ffff, "MPLS label")?),
        "set_mpls_tc" => Action::SetMplsTc(at_most(value, 7, "MPLS TC")?),
        "set_mpls_ttl" => Action::SetMplsTtl(int(value)?),
        "dec_mpls_ttl" => Action::DecMplsTtl,
        "push_mpls" => match int(value)? {
            t @ (0x8847 | 0x8848) => Action::PushMpls(t),
            _ => return Err(format!("{value}: not a valid MPLS ethertype")),
        },
        "pop_mpls" => Action::PopMpls(int(value)?),
        "set_tunnel" | "set_tunnel64" => Action::SetTunnel(int(value)?),
        "resubmit" => resubmit(value, ports)?,
        "clone" => Action::Clone(action_list(value, ports, depth + 1)?),
        "note" => {
            // The wire form is a multiple of eight bytes long, ten of which are its header.
            let mut bytes = hex(value)?;
            bytes.resize((bytes.len() + 10).next_multiple_of(8).max(16) - 10, 0);
            Action::Note(bytes)
        }
        "exit" => Action::Exit,
        _ => match (
            super::parse_extensions::extension(name, value, ports, depth),
            read_port(key, ports),
        ) {
            (Some(extension), _) => extension?,
            (None, Some(port)) => Action::Output { port, max_len: 0 },
            (None, None) => return Err(format!("unknown action {key}")),
        },
    })
}

fn output(value: &str, ports: Option<PortNumbers<'_>>) -> Result<Action, String> {
    if let Some(p) = read_port(value, ports) {
        let max_len = if p == Port::CONTROLLER { u16::MAX } else { 0 };
        return Ok(Action::Output { port: p, max_len });
    }
    if value.contains("max_len=") {
        return output_trunc(value, ports);
    }
    let src = value
        .parse()
        .map_err(|_| format!("{value}: output to unknown port"))?;
    Ok(Action::OutputReg {
        src,
        max_len: u16::MAX,
    })
}

/// `output(port=PORT,max_len=BYTES)`.
fn output_trunc(value: &str, ports: Option<PortNumbers<'_>>) -> Result<Action, String> {
    let (mut to, mut max_len) = (Port::NONE, 0);
    for (key, value) in key_values(value) {
        match key {
            "port" => to = port(value, ports, "output to")?,
            "max_len" => max_len = int(value)?,
            _ => return Err(format!("invalid key '{key}' in output_trunc argument")),
        }
    }
    if max_len < 14 {
        return Err(format!("max_len {max_len} is less than the minimum value 14"));
    }
    Ok(Action::OutputTrunc { port: to, max_len })
}

fn controller(value: &str) -> Result<Action, String> {
    let mut c = ControllerAction {
        max_len: u16::MAX,
        reason: 1,
        ..ControllerAction::default()
    };
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(Action::Output {
            port: Port::CONTROLLER,
            max_len: int(value)?,
        });
    }
    let mut userdata = false;
    for (key, value) in key_values(value) {
        match key {
            "reason" => {
                c.reason = (0..=5)
                    .find(|r| super::format::reason_name(*r).is_some_and(|n| n.eq_ignore_ascii_case(value)))
                    .ok_or_else(|| format!("unknown reason \"{value}\""))?;
            }
            "max_len" => c.max_len = int(value)?,
            "id" => c.controller_id = int(value)?,
            "userdata" => {
                c.userdata = hex(value)?;
                userdata = true;
            }
            "pause" => c.pause = true,
            "meter_id" => c.meter_id = Some(int(value)?),
            _ => return Err(format!("unknown key \"{key}\" parsing controller action")),
        }
    }
    let plain = c.reason == 1 && c.controller_id == 0 && !userdata && !c.pause && c.meter_id.is_none();
    Ok(if plain {
        Action::Output {
            port: Port::CONTROLLER,
            max_len: c.max_len,
        }
    } else {
        Action::Controller(c)
    })
}

pub(super) fn split_arrow(s: &str) -> Result<(&str, &str), String> {
    let (value, key) = s.split_once("->").ok_or_else(|| format!("{s}: missing `->'"))?;
    if key.is_empty() {
        Err(format!("{s}: missing field name following `->'"))
    } else {
        Ok((value, key))
    }
}

fn set_field(s: &str, ports: Option<PortNumbers<'_>>) -> Result<Action, String> {
    let (value, key) = split_arrow(s)?;
    let field = FieldId::by_name(key).ok_or_else(|| format!("{key} is not a valid OXM field name"))?;
    if !field.info().writable {
        return Err(format!("{key} is read-only"));
    }
    let (v, mask) = parse_value(field, value, ports)?;
    if !field.is_value_valid(v) {
        return Err(format!("{value} is not a valid value for field {key}"));
    }
    let mask = mask & field.full_mask();
    Ok(Action::SetField {
        field,
        value: v & mask,
        mask,
    })
}

fn load(s: &str) -> Result<Action, String> {
    let (value, key) = split_arrow(s)?;
    let dst: Subfield = key.parse()?;
    let v: u64 = int(value)?;
    if dst.n_bits < 64 && v >> dst.n_bits != 0 {
        return Err(format!(
            "{s}: value {value} does not fit into {} bits",
            dst.n_bits
        ));
    }
    Ok(Action::Load { dst, value: v })
}

fn resubmit(s: &str, ports: Option<PortNumbers<'_>>) -> Result<Action, String> {
    let mut parts = s.splitn(3, ',');
    let mut next = || parts.next().unwrap_or("").trim();
    let (in_port, table, ct) = (next(), next(), next());
    let in_port = if in_port.is_empty() {
        Port::IN_PORT
    } else {
        port(in_port, ports, "resubmit to")?
    };
    let table = if table.is_empty() { None } else { Some(int(table)?) };
    if !matches!(ct, "" | "ct") {
        return Err(format!("{ct}: unknown parameter"));
    }
    if in_port == Port::IN_PORT && table.is_none() {
        return Err("at least one \"in_port\" or \"table\" must be specified on resubmit".into());
    }
    Ok(Action::Resubmit {
        port: in_port,
        table,
        with_ct_orig: ct == "ct",
    })
}
