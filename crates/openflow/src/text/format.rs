//! Actions as text.

use super::format_extensions;
use crate::action::{Action, ControllerAction, Instruction, InstructionSet, Port};
use core::fmt::{self, Formatter, Write};
use heddle_flow::field::port_from_32;
use heddle_flow::text::{self, PortNames, format_value};
use std::net::Ipv4Addr;

/// A list of actions, with names for ports.
pub struct ActionsText<'a> {
    /// The actions; none prints as `drop`.
    pub actions: &'a [Action],
    /// Finds a port's name.
    pub names: Option<PortNames<'a>>,
}

/// Instructions, with names for ports.
pub struct InstructionsText<'a> {
    /// The instructions; none prints as `drop`.
    pub set: &'a InstructionSet,
    /// Finds a port's name.
    pub names: Option<PortNames<'a>>,
}

impl fmt::Display for ActionsText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.actions.is_empty() {
            return f.write_str("drop");
        }
        list(f, self.actions, self.names)
    }
}

impl fmt::Display for InstructionsText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.set.is_drop() {
            return f.write_str("drop");
        }
        let shown = self
            .set
            .0
            .iter()
            .filter(|i| !matches!(i, Instruction::Apply(a) if a.is_empty()));
        for (n, i) in shown.enumerate() {
            if n > 0 {
                f.write_char(',')?;
            }
            instruction(f, i, self.names)?;
        }
        Ok(())
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        InstructionsText {
            set: self,
            names: None,
        }
        .fmt(f)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        action(f, self, None)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        format_port(f, *self, None)
    }
}

fn list(f: &mut Formatter<'_>, actions: &[Action], names: Option<PortNames<'_>>) -> fmt::Result {
    for (n, a) in actions.iter().enumerate() {
        if n > 0 {
            f.write_char(',')?;
        }
        action(f, a, names)?;
    }
    Ok(())
}

fn instruction(f: &mut Formatter<'_>, i: &Instruction, names: Option<PortNames<'_>>) -> fmt::Result {
    match i {
        Instruction::Meter(id) => write!(f, "meter:{id}"),
        Instruction::Apply(a) => list(f, a, names),
        Instruction::Clear => f.write_str("clear_actions"),
        Instruction::Write(a) => write!(f, "write_actions({})", ActionsText { actions: a, names }),
        Instruction::WriteMetadata { value, mask } => {
            write!(f, "write_metadata:{}", Hex(*value))?;
            if *mask == u64::MAX {
                Ok(())
            } else {
                write!(f, "/{}", Hex(*mask))
            }
        }
        Instruction::Goto(t) => write!(f, "goto_table:{t}"),
    }
}

/// Writes a port; texts know ports by the numbers that keys have.
pub(super) fn format_port(f: &mut Formatter<'_>, port: Port, names: Option<PortNames<'_>>) -> fmt::Result {
    text::format_port(f, port_from_32(port.0).unwrap_or(port.0), names)
}

/// `%#x` of C: zero has no prefix.
pub(crate) struct Hex(pub(crate) u64);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            f.write_char('0')
        } else {
            write!(f, "{:#x}", self.0)
        }
    }
}

struct Mac([u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Bytes in hexadecimal, dots between them.
struct Dotted<'a>(&'a [u8]);

impl fmt::Display for Dotted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (n, b) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_char('.')?;
            }
            write!(f, "{b:02x}")?;
        }
        Ok(())
    }
}

/// The name of a packet-in reason.
pub(crate) fn reason_name(reason: u8) -> Option<&'static str> {
    Some(match reason {
        0 => "no_match",
        1 => "action",
        2 => "invalid_ttl",
        3 => "action_set",
        4 => "group",
        5 => "packet_out",
        _ => return None,
    })
}

fn controller(f: &mut Formatter<'_>, c: &ControllerAction) -> fmt::Result {
    let plain = c.reason == 1 && c.controller_id == 0 && c.userdata.is_empty();
    if plain && !c.pause && c.meter_id.is_none() {
        return write!(f, "CONTROLLER:{}", c.max_len);
    }
    let mut parts = Vec::new();
    if c.reason != 1 {
        let name = reason_name(c.reason).map_or_else(|| c.reason.to_string(), str::to_owned);
        parts.push(format!("reason={name}"));
    }
    if c.max_len != u16::MAX {
        parts.push(format!("max_len={}", c.max_len));
    }
    if c.controller_id != 0 {
        parts.push(format!("id={}", c.controller_id));
    }
    if !c.userdata.is_empty() {
        parts.push(format!("userdata={}", Dotted(&c.userdata)));
    }
    if c.pause {
        parts.push("pause".into());
    }
    if let Some(id) = c.meter_id {
        parts.push(format!("meter_id={id}"));
    }
    write!(f, "controller({})", parts.join(","))
}

fn action(f: &mut Formatter<'_>, a: &Action, names: Option<PortNames<'_>>) -> fmt::Result {
    match a {
        Action::Output { port, max_len } => {
            if *port <= Port::MAX {
                f.write_str("output:")?;
            }
            format_port(f, *port, names)?;
            if *port == Port::CONTROLLER {
                write!(f, ":{max_len}")
            } else {
                Ok(())
            }
        }
        Action::OutputTrunc { port, max_len } => {
            f.write_str("output(port=")?;
            format_port(f, *port, names)?;
            write!(f, ",max_len={max_len})")
        }
        Action::OutputReg { src, .. } => write!(f, "output:{src}"),
        Action::Controller(c) => controller(f, c),
        Action::Enqueue { port, queue } => {
            f.write_str("enqueue:")?;
            format_port(f, *port, names)?;
            write!(f, ":{queue}")
        }
        Action::SetQueue(q) => write!(f, "set_queue:{q}"),
        Action::PopQueue => f.write_str("pop_queue"),
        Action::SetVlanVid { vid, push_if_missing } => {
            write!(
                f,
                "{}_vlan_vid:{vid}",
                if *push_if_missing { "mod" } else { "set" }
            )
        }
        Action::SetVlanPcp { pcp, push_if_missing } => {
            write!(
                f,
                "{}_vlan_pcp:{pcp}",
                if *push_if_missing { "mod" } else { "set" }
            )
        }
        Action::PopVlan => f.write_str("pop_vlan"),
        Action::StripVlan => f.write_str("strip_vlan"),
        Action::PushVlan(t) => write!(f, "push_vlan:{}", Hex((*t).into())),
        Action::SetEthSrc(m) => write!(f, "mod_dl_src:{}", Mac(*m)),
        Action::SetEthDst(m) => write!(f, "mod_dl_dst:{}", Mac(*m)),
        Action::SetIpv4Src(a) => write!(f, "mod_nw_src:{}", Ipv4Addr::from(*a)),
        Action::SetIpv4Dst(a) => write!(f, "mod_nw_dst:{}", Ipv4Addr::from(*a)),
        Action::SetIpDscp(v) => write!(f, "mod_nw_tos:{v}"),
        Action::SetIpEcn(v) => write!(f, "mod_nw_ecn:{v}"),
        Action::SetIpTtl(v) => write!(f, "mod_nw_ttl:{v}"),
        Action::SetL4Src(v) => write!(f, "mod_tp_src:{v}"),
        Action::SetL4Dst(v) => write!(f, "mod_tp_dst:{v}"),
        Action::SetField { field, value, mask } => {
            f.write_str("set_field:")?;
            format_value(f, *field, *value, Some(*mask), names)?;
            write!(f, "->{}", field.name())
        }
        Action::SetTunMetadata(set) => {
            write!(f, "set_field:{}", text::HexBytes(&set.value))?;
            if set.mask.iter().any(|b| *b != 0xff) {
                write!(f, "/{}", text::HexBytes(&set.mask))?;
            }
            write!(f, "->{}", set.field.name())
        }
        Action::Load { dst, value } => write!(f, "load:{}->{dst}", Hex(*value)),
        Action::Move { src, dst } => write!(f, "move:{src}->{dst}"),
        Action::StackPush(s) => write!(f, "push:{s}"),
        Action::StackPop(s) => write!(f, "pop:{s}"),
        Action::DecTtl(ids) if ids == &[0] => f.write_str("dec_ttl"),
        Action::DecTtl(ids) => {
            let ids: Vec<String> = ids.iter().map(u16::to_string).collect();
            write!(f, "dec_ttl({})", ids.join(","))
        }
        Action::SetMplsLabel(v) => write!(f, "set_mpls_label({v})"),
        Action::SetMplsTc(v) => write!(f, "set_mpls_tc({v})"),
        Action::SetMplsTtl(v) => write!(f, "set_mpls_ttl({v})"),
        Action::DecMplsTtl => f.write_str("dec_mpls_ttl"),
        Action::PushMpls(t) => write!(f, "push_mpls:0x{t:04x}"),
        Action::PopMpls(t) => write!(f, "pop_mpls:0x{t:04x}"),
        Action::SetTunnel(id) => {
            write!(
                f,
                "set_tunnel{}:{}",
                if *id > u32::MAX.into() { "64" } else { "" },
                Hex(*id)
            )
        }
        Action::Resubmit {
            port,
            table: None,
            with_ct_orig: _,
        } if *port != Port::IN_PORT => {
            f.write_str("resubmit:")?;
            format_port(f, *port, names)
        }
        Action::Resubmit {
            port,
            table,
            with_ct_orig,
        } => {
            f.write_str("resubmit(")?;
            if *port != Port::IN_PORT {
                format_port(f, *port, names)?;
            }
            f.write_char(',')?;
            if let Some(t) = table {
                write!(f, "{t}")?;
            }
            f.write_str(if *with_ct_orig { ",ct)" } else { ")" })
        }
        Action::Group(id) => write!(f, "group:{id}"),
        Action::Meter(id) => write!(f, "meter:{id}"),
        Action::Clone(a) => write!(f, "clone({})", ActionsText { actions: a, names }),
        Action::Note(b) => write!(f, "note:{}", Dotted(b)),
        Action::Exit => f.write_str("exit"),
        Action::Learn(l) => format_extensions::learn(f, l),
        Action::Conjunction(c) => write!(f, "conjunction({},{}/{})", c.id, c.clause + 1, c.n_clauses),
        Action::Multipath(m) => format_extensions::multipath(f, m),
        Action::Bundle(b) => format_extensions::bundle(f, b, names),
        Action::FinTimeout { idle, hard } => format_extensions::fin_timeout(f, *idle, *hard),
        Action::Sample(s) => format_extensions::sample(f, s, names),
        Action::CheckPktLarger(c) => write!(f, "check_pkt_larger({})->{}", c.pkt_len, c.dst),
        Action::DeleteField(field) => write!(f, "delete_field:{}", field.name()),
        Action::Encap(e) => format_extensions::encap(f, e),
        Action::Decap(ty) => format_extensions::decap(f, *ty),
        Action::DecNshTtl => f.write_str("dec_nsh_ttl"),
        Action::Ct(ct) => format_extensions::ct(f, ct, names),
        Action::CtClear => f.write_str("ct_clear"),
        Action::Nat(n) => format_extensions::nat(f, n),
        Action::DebugRecirc => f.write_str("debug_recirc"),
        Action::DebugSlow => f.write_str("debug_slow"),
    }
}
