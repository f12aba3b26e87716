//! Extensions with more than a word and a number, from text. The syntax is that of `ovs-actions(7)`.

use super::parse::{action_list, int, read_port, split_arrow};
use crate::action::{
    Action, Bundle, BundleAlgorithm, CheckPktLarger, Conjunction, Ct, CtZone, Encap, EncapProperty, FieldId,
    FieldValue, HashFields, Learn, LearnDst, LearnSpec, LearnSrc, MAX_OBSERVATION_BITS, Multipath,
    MultipathAlgorithm, Nat, NatAddresses, NatDirection, ObservationId, Port, Sample, SampleDirection,
    Subfield, packet_type,
};
use heddle_flow::text::{PortNumbers, key_values, parse_int, parse_value};
use std::net::{Ipv4Addr, Ipv6Addr};

type Ports<'a> = Option<PortNumbers<'a>>;

/// The action of this name, if it is one of those read here.
pub(super) fn extension(
    name: &str,
    value: &str,
    ports: Ports<'_>,
    depth: u8,
) -> Option<Result<Action, String>> {
    Some(match name {
        "learn" => learn(value, ports),
        "conjunction" => conjunction(value),
        "multipath" => multipath(value),
        "bundle" => bundle(value, false, ports),
        "bundle_load" => bundle(value, true, ports),
        "sample" => sample(value, ports),
        "fin_timeout" => fin_timeout(value),
        "check_pkt_larger" => check_pkt_larger(value),
        "encap" => encap(value),
        "decap" => decap(value),
        "dec_nsh_ttl" => Ok(Action::DecNshTtl),
        "ct" => ct(value, ports, depth),
        "ct_clear" => Ok(Action::CtClear),
        "nat" => nat(value),
        "delete_field" => FieldId::by_name(value)
            .map(Action::DeleteField)
            .ok_or_else(|| format!("{value}: unknown field")),
        "debug_recirc" => Ok(Action::DebugRecirc),
        "debug_slow" => Ok(Action::DebugSlow),
        _ => return None,
    })
}

/// A number as C's `atoi` takes it, cut to its type.
fn loose<T: TryFrom<u64>>(s: &str, what: &str) -> Result<T, String> {
    let bad = || format!("{s}: not a valid {what}");
    let v: u64 = s.trim().parse().map_err(|_| bad())?;
    T::try_from(v).map_err(|_| bad())
}

fn words(s: &str) -> impl Iterator<Item = &str> {
    s.split([',', ' ']).filter(|w| !w.is_empty())
}

fn named<T: Copy>(all: &[T], name: impl Fn(T) -> &'static str, s: &str, what: &str) -> Result<T, String> {
    all.iter()
        .copied()
        .find(|x| name(*x).eq_ignore_ascii_case(s))
        .ok_or_else(|| format!("unknown {what} `{s}'"))
}

fn learn(s: &str, ports: Ports<'_>) -> Result<Action, String> {
    let mut l = Learn::default();
    for (key, value) in key_values(s) {
        match key {
            "table" => {
                l.table = int(value)?;
                if l.table == 0xff {
                    return Err(format!("{s}: table id 255 not valid for `learn' action"));
                }
            }
            "priority" => l.priority = loose(value, key)?,
            "idle_timeout" => l.idle_timeout = loose(value, key)?,
            "hard_timeout" => l.hard_timeout = loose(value, key)?,
            "fin_idle_timeout" => l.fin_idle_timeout = loose(value, key)?,
            "fin_hard_timeout" => l.fin_hard_timeout = loose(value, key)?,
            "cookie" => l.cookie = int(value)?,
            "send_flow_rem" => l.send_flow_rem = true,
            "delete_learned" => l.delete_learned = true,
            "limit" => l.limit = loose(value, key)?,
            "result_dst" => {
                let dst: Subfield = value.parse()?;
                if !dst.field.info().writable {
                    return Err(format!("{value} is read-only"));
                }
                if dst.n_bits != 1 {
                    return Err("result_dst in 'learn' action must be a single bit".into());
                }
                l.result_dst = Some(dst);
            }
            _ => l.specs.push(learn_spec(s, key, value, ports)?),
        }
    }
    Ok(Action::Learn(Box::new(l)))
}

fn learn_spec(all: &str, name: &str, value: &str, ports: Ports<'_>) -> Result<LearnSpec, String> {
    if let Ok(dst) = name.parse::<Subfield>() {
        let src = if value.is_empty() {
            LearnSrc::Field(dst)
        } else {
            match value.parse::<Subfield>() {
                Ok(src) if src.n_bits != dst.n_bits => {
                    return Err(format!(
                        "{all}: bit widths of {name} ({}) and {value} ({}) differ",
                        src.n_bits, dst.n_bits
                    ));
                }
                Ok(src) => LearnSrc::Field(src),
                Err(e) => LearnSrc::Value(learn_value(all, dst, value, ports).map_err(|imm| {
                    format!("{all}: {name} value {value} cannot be parsed as a subfield ({e}) or an immediate value ({imm})")
                })?),
            }
        };
        return Ok(LearnSpec {
            src,
            dst: LearnDst::Match(dst),
        });
    }
    match name {
        "load" => learn_load(name, value),
        "output" => Ok(LearnSpec {
            src: LearnSrc::Field(value.parse()?),
            dst: LearnDst::Output,
        }),
        _ => Err(format!("{all}: unknown keyword {name}")),
    }
}

/// An immediate value that a learned flow matches.
fn learn_value(all: &str, dst: Subfield, value: &str, ports: Ports<'_>) -> Result<FieldValue, String> {
    if dst == Subfield::all(dst.field) {
        return Ok(parse_value(dst.field, value, ports)?.0);
    }
    match parse_int(value, dst.field.info().n_bytes) {
        Ok((v, "")) if fits(v, dst.n_bits) => Ok(FieldValue::from_u128(v)),
        Ok((v, "")) => Err(format!(
            "{all}: value {v:#x} does not fit into {} bits",
            dst.n_bits
        )),
        _ => Err(format!("{all}: cannot parse integer value")),
    }
}

fn fits(v: u128, n_bits: u16) -> bool {
    n_bits >= 128 || v >> n_bits == 0
}

fn learn_load(name: &str, value: &str) -> Result<LearnSpec, String> {
    let Some((src, dst)) = value.split_once("->") else {
        return Err(format!("{name}: missing `->' in `{value}'"));
    };
    if src.is_empty() {
        return Err(format!("{name}: missing source before `->' in `{value}'"));
    }
    let (src, dst) = match parse_int(src, 16) {
        Ok((v, "")) => {
            let dst: Subfield = dst.parse()?;
            if !fits(v, dst.n_bits) {
                return Err(format!("{value}: value does not fit into {} bits", dst.n_bits));
            }
            (LearnSrc::Value(FieldValue::from_u128(v)), dst)
        }
        Ok((_, rest)) if rest.len() < src.len() => {
            return Err(format!("{name}: garbage before `->' in `{value}'"));
        }
        _ => {
            let (src, dst): (Subfield, Subfield) = (src.parse()?, dst.parse()?);
            if src.n_bits != dst.n_bits {
                return Err(format!(
                    "{value}: source field is {} bits wide but destination is {} bits wide",
                    src.n_bits, dst.n_bits
                ));
            }
            (LearnSrc::Field(src), dst)
        }
    };
    Ok(LearnSpec {
        src,
        dst: LearnDst::Load(dst),
    })
}

fn conjunction(s: &str) -> Result<Action, String> {
    let syntax = || "\"conjunction\" syntax is \"conjunction(id,i/n)\"".to_owned();
    let (id, rest) = s.split_once(',').ok_or_else(syntax)?;
    let (i, n) = rest.split_once('/').ok_or_else(syntax)?;
    let id = int(id).map_err(|_| syntax())?;
    let (i, n_clauses): (u8, u8) = (int(i).map_err(|_| syntax())?, int(n).map_err(|_| syntax())?);
    if n_clauses < 2 {
        return Err("conjunction must have at least 2 clauses".into());
    } else if n_clauses > 64 {
        return Err("conjunction must have at most 64 clauses".into());
    } else if i < 1 {
        return Err("clause index must be positive".into());
    } else if i > n_clauses {
        return Err("clause index must be less than or equal to number of clauses".into());
    }
    Ok(Action::Conjunction(Conjunction {
        id,
        clause: i - 1,
        n_clauses,
    }))
}

fn multipath(s: &str) -> Result<Action, String> {
    let parts: Vec<&str> = words(s).collect();
    let [fields, basis, algorithm, links, arg, dst, ..] = parts.as_slice() else {
        return Err(format!("{s}: not enough arguments to multipath action"));
    };
    let at = |e: String| format!("{s}: {e}");
    let fields = named(&HashFields::ALL, HashFields::name, fields, "fields").map_err(at)?;
    let algorithm = named(
        &MultipathAlgorithm::ALL,
        MultipathAlgorithm::name,
        algorithm,
        "algorithm",
    )
    .map_err(at)?;
    let n_links: u32 = loose(links, "n_links")?;
    let max_link = u16::try_from(n_links.wrapping_sub(1))
        .map_err(|_| format!("{s}: n_links {n_links} is not in valid range 1 to 65536"))?;
    let dst: Subfield = dst.parse()?;
    if dst.n_bits < 16 && n_links > 1 << dst.n_bits {
        return Err(format!(
            "{s}: {}-bit destination field has {} possible values, less than specified n_links {n_links}",
            dst.n_bits,
            1u32 << dst.n_bits
        ));
    }
    Ok(Action::Multipath(Box::new(Multipath {
        fields,
        basis: loose(basis, "basis")?,
        algorithm,
        max_link,
        arg: loose(arg, "argument")?,
        dst,
    })))
}

fn bundle(s: &str, load: bool, ports: Ports<'_>) -> Result<Action, String> {
    let missing = || format!("{s}: not enough arguments to bundle action");
    let mut rest = s;
    let mut next = |separators: &[char]| -> Result<&str, String> {
        rest = rest.trim_start_matches(separators);
        let end = rest.find(separators).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        if word.is_empty() { Err(missing()) } else { Ok(word) }
    };
    const COMMA: &[char] = &[',', ' '];
    let (fields, basis, algorithm, kind) = (next(COMMA)?, next(COMMA)?, next(COMMA)?, next(COMMA)?);
    let dst = if load { Some(next(COMMA)?) } else { None };
    let delimiter = next(&[':', ' ', ','])?;
    if !["members", "slaves"]
        .iter()
        .any(|d| d.eq_ignore_ascii_case(delimiter))
    {
        return Err(format!(
            "{s}: missing member delimiter, expected `members', got `{delimiter}'"
        ));
    }
    let members = rest
        .split([',', ' ', '[', ']', ':'])
        .filter(|w| !w.is_empty())
        .map(|m| read_port(m, ports).ok_or_else(|| format!("{m}: bad port number")))
        .collect::<Result<Vec<Port>, _>>()?;
    let at = |e: String| format!("{s}: {e}");
    let fields = named(&HashFields::ALL, HashFields::name, fields, "fields").map_err(at)?;
    let algorithm = named(
        &BundleAlgorithm::ALL,
        BundleAlgorithm::name,
        algorithm,
        "algorithm",
    )
    .map_err(at)?;
    if !kind.eq_ignore_ascii_case("ofport") {
        return Err(format!("{s}: unknown member_type `{kind}'"));
    }
    Ok(Action::Bundle(Box::new(Bundle {
        fields,
        basis: loose(basis, "basis")?,
        algorithm,
        members,
        dst: dst.map(str::parse).transpose()?,
    })))
}

fn sample(s: &str, ports: Ports<'_>) -> Result<Action, String> {
    let mut a = Sample {
        probability: 0,
        collector_set_id: 0,
        obs_domain_id: ObservationId::Value(0),
        obs_point_id: ObservationId::Value(0),
        sampling_port: Port::NONE,
        direction: SampleDirection::Default,
        form: 1,
    };
    for (key, value) in key_values(s) {
        match key {
            "probability" => a.probability = int(value)?,
            "collector_set_id" => a.collector_set_id = int(value)?,
            "obs_domain_id" => a.obs_domain_id = observation_id(key, value)?,
            "obs_point_id" => a.obs_point_id = observation_id(key, value)?,
            "sampling_port" => {
                a.sampling_port = read_port(value, ports).ok_or_else(|| format!("{value}: unknown port"))?;
            }
            "ingress" => a.direction = SampleDirection::Ingress,
            "egress" => a.direction = SampleDirection::Egress,
            _ => return Err(format!("invalid key \"{key}\" in \"sample\" argument")),
        }
    }
    if a.probability == 0 {
        return Err("non-zero \"probability\" must be specified on sample".into());
    }
    let field = |id| matches!(id, ObservationId::Field(_));
    a.form = match (a.direction, a.sampling_port) {
        _ if field(a.obs_domain_id) || field(a.obs_point_id) => 4,
        (SampleDirection::Default, Port::NONE) => 1,
        (SampleDirection::Default, _) => 2,
        _ => 3,
    };
    Ok(Action::Sample(Box::new(a)))
}

fn observation_id(key: &str, value: &str) -> Result<ObservationId, String> {
    if let Ok(number) = int(value) {
        return Ok(ObservationId::Value(number));
    }
    let src: Subfield = value.parse()?;
    if src.n_bits > MAX_OBSERVATION_BITS {
        return Err(format!(
            "size of {key} field ({}) exceeds maximum ({MAX_OBSERVATION_BITS})",
            src.n_bits
        ));
    }
    Ok(ObservationId::Field(src))
}

fn fin_timeout(s: &str) -> Result<Action, String> {
    let (mut idle, mut hard) = (0, 0);
    for (key, value) in key_values(s) {
        match key {
            "idle_timeout" => idle = int(value)?,
            "hard_timeout" => hard = int(value)?,
            _ => return Err(format!("invalid key '{key}' in 'fin_timeout' argument")),
        }
    }
    Ok(Action::FinTimeout { idle, hard })
}

fn check_pkt_larger(s: &str) -> Result<Action, String> {
    let (len, dst) = split_arrow(s)?;
    let dst: Subfield = dst.parse()?;
    if dst.n_bits != 1 {
        return Err("Only 1-bit destination field is allowed".into());
    }
    let pkt_len = int(len.strip_suffix(')').unwrap_or(len))?;
    Ok(Action::CheckPktLarger(Box::new(CheckPktLarger { pkt_len, dst })))
}

fn encap(s: &str) -> Result<Action, String> {
    let (header, value) = key_values(s)
        .next()
        .ok_or_else(|| format!("Missing encap hdr: {s}"))?;
    let ty = match header {
        "ethernet" => packet_type::ETHERNET,
        "nsh" => packet_type::NSH,
        "mpls" => packet_type::MPLS,
        "mpls_mc" => packet_type::MPLS_MC,
        _ => return Err(format!("Encap hdr not supported: {header}")),
    };
    let properties = key_values(value)
        .map(|(key, value)| match key {
            _ if ty != packet_type::NSH => Err(format!("Invalid property: {key}")),
            "md_type" | "tlv" if value.is_empty() => Err("Value missing for encap property".to_owned()),
            "md_type" => match int(value)? {
                ty @ 1..=2 => Ok(EncapProperty::NshMdType(ty)),
                _ => Err("invalid md_type".to_owned()),
            },
            "tlv" => nsh_tlv(value),
            _ => Err(format!("Invalid property: {key}")),
        })
        .collect::<Result<_, _>>()?;
    Ok(Action::Encap(Box::new(Encap {
        packet_type: ty,
        hdr_size: 0,
        properties,
    })))
}

/// `CLASS,TYPE,HEX`.
fn nsh_tlv(s: &str) -> Result<EncapProperty, String> {
    /// Maximum number of hexadecimal digits, from the length field of a property.
    const MAX_DIGITS: usize = 2 * 240;
    let bad = || format!("Invalid NSH TLV header: {s}");
    let mut parts = s.split(',');
    let mut next = || parts.next().ok_or_else(bad);
    let (class, ty, value) = (next()?, next()?, next()?);
    let digits = value.strip_prefix("0x").filter(|d| d.len() <= MAX_DIGITS);
    Ok(EncapProperty::NshTlv {
        class: int(class).map_err(|_| bad())?,
        ty: int(ty).map_err(|_| bad())?,
        data: super::parse::hex(digits.ok_or_else(bad)?)?,
    })
}

fn decap(s: &str) -> Result<Action, String> {
    let Some((key, value)) = key_values(s).next() else {
        return Ok(Action::Decap(packet_type::NEXT));
    };
    if key != "packet_type" {
        return Err(format!("Invalid decap argument: {key}"));
    }
    let mut parts = key_values(value);
    let mut number = |name: &str| match parts.next() {
        Some((key, value)) if key == name => int::<u16>(value),
        _ => Err(format!("Missing packet_type attribute {name}")),
    };
    let (ns, ty) = (number("ns")?, number("type")?);
    if ns > 1 {
        return Err(format!("Unsupported ns value: {ns}"));
    }
    Ok(Action::Decap(u32::from(ns) << 16 | u32::from(ty)))
}

fn ct(s: &str, ports: Ports<'_>, depth: u8) -> Result<Action, String> {
    let mut c = Ct::default();
    for (key, value) in key_values(s) {
        match key {
            "commit" => c.commit = true,
            "force" => c.force = true,
            "table" => match int(value)? {
                0xff => return Err("invalid table 0xff".into()),
                table => c.table = Some(table),
            },
            "zone" => {
                c.zone = match int(value) {
                    Ok(n) => CtZone::Number(n),
                    Err(_) => CtZone::Field(value.parse()?),
                };
            }
            "alg" => {
                c.alg = match value {
                    "ftp" => 21,
                    "tftp" => 69,
                    _ => return Err(format!("invalid conntrack helper \"{value}\"")),
                };
            }
            "nat" => c.actions.push(nat(value)?),
            "exec" => c.actions.extend(action_list(value, ports, depth + 1)?),
            _ => return Err(format!("invalid argument to \"ct\" action: `{key}'")),
        }
    }
    if c.force && !c.commit {
        return Err("\"force\" flag requires \"commit\" flag.".into());
    }
    Ok(Action::Ct(Box::new(c)))
}

fn nat(s: &str) -> Result<Action, String> {
    let mut n = Nat::default();
    let (mut src, mut dst) = (false, false);
    for (key, value) in key_values(s) {
        match key {
            "src" | "dst" => {
                *(if key == "src" { &mut src } else { &mut dst }) = true;
                n.direction = Some(if key == "src" {
                    NatDirection::Src
                } else {
                    NatDirection::Dst
                });
                (n.addresses, n.ports) = nat_range(value)?;
            }
            "persistent" => n.persistent = true,
            "hash" => n.hash = true,
            "random" => n.random = true,
            _ => return Err(format!("invalid key \"{key}\" in \"nat\" argument")),
        }
    }
    if src && dst {
        return Err("May only specify one of \"src\" or \"dst\".".into());
    }
    if n.hash && n.random {
        return Err("Both \"hash\" and \"random\" are not allowed in \"nat\" argument.".into());
    }
    if n.direction.is_none() && n != Nat::default() {
        return Err("Flags allowed only with \"src\" or \"dst\".".into());
    }
    Ok(Action::Nat(Box::new(n)))
}

type Ranges = (NatAddresses, Option<(u16, Option<u16>)>);

/// `ADDRESS[-ADDRESS][:PORT[-PORT]]`; IPv6 addresses in brackets where ports follow.
fn nat_range(s: &str) -> Result<Ranges, String> {
    let bad = || format!("invalid nat range \"{s}\"");
    if s.is_empty() {
        return Ok((NatAddresses::None, None));
    }
    let six = s.starts_with('[') || s.matches(':').count() > 1;
    // A colon that no address contains is the one before the ports.
    let (addresses, ports) = match s.rsplit_once("]:").filter(|_| six) {
        Some((a, p)) => (a, Some(p)),
        None if six => (s, None),
        None => s.split_once(':').map_or((s, None), |(a, p)| (a, Some(p))),
    };
    let (min, max) = addresses
        .split_once('-')
        .map_or((addresses, None), |(a, b)| (a, Some(b)));
    let ports = ports
        .map(|p| -> Result<(u16, Option<u16>), String> {
            let (min, max) = p.split_once('-').map_or((p, None), |(a, b)| (a, Some(b)));
            let min = int(min)?;
            let max = max.map(int).transpose()?;
            if max.is_some_and(|m| m < min) {
                return Err(bad());
            }
            Ok((min, max))
        })
        .transpose()?;
    let addresses = if six {
        let one = |a: &str| a.trim_matches(['[', ']']).parse::<Ipv6Addr>().map_err(|_| bad());
        let (min, max) = (one(min)?, max.map(one).transpose()?);
        if max.is_some_and(|m| m < min) {
            return Err(bad());
        }
        NatAddresses::V6(min, max)
    } else {
        let one = |a: &str| a.parse::<Ipv4Addr>().map_err(|_| bad());
        let (min, max) = (one(min)?, max.map(one).transpose()?);
        if max.is_some_and(|m| m < min) {
            return Err(bad());
        }
        NatAddresses::V4(min, max)
    };
    Ok((addresses, ports.filter(|(min, _)| *min != 0)))
}
