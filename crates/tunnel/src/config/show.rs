//! A configuration as options for commands, without defaults.

use super::{DEFAULT_TTL, Key, Local, TunnelConfig};
use crate::TunnelType;
use std::collections::BTreeMap;

type Options = BTreeMap<String, String>;

fn put(to: &mut Options, key: &str, value: impl ToString) {
    to.insert(key.to_owned(), value.to_string());
}

impl TunnelConfig {
    /// The options that differ from the defaults, by name.
    pub fn shown_options(&self) -> Options {
        let mut to = Options::new();
        match self.remote {
            Some(ip) => put(&mut to, "remote_ip", ip),
            None => put(&mut to, "remote_ip", "flow"),
        }
        match self.local {
            Local::Any => {}
            Local::Is(ip) => put(&mut to, "local_ip", ip),
            Local::Flow => put(&mut to, "local_ip", "flow"),
        }
        self.show_keys(&mut to);
        match self.ttl {
            None => put(&mut to, "ttl", "inherit"),
            Some(DEFAULT_TTL) => {}
            Some(ttl) => put(&mut to, "ttl", ttl),
        }
        match self.tos {
            None => put(&mut to, "tos", "inherit"),
            Some(0) => {}
            Some(tos) => put(&mut to, "tos", format_args!("{tos:#x}")),
        }
        show_dst_port(self.ty, self.dst_port, &mut to);
        if self.csum {
            put(&mut to, "csum", true);
        }
        if self.seq {
            put(&mut to, "seq", true);
        }
        if self.mode != self.default_mode() {
            put(&mut to, "packet_type", self.mode.text());
        }
        if !self.df {
            put(&mut to, "df_default", false);
        }
        if let Some(mark) = self.egress_pkt_mark {
            put(&mut to, "egress_pkt_mark", mark);
        }
        if self.ty.is_erspan() {
            self.show_erspan(&mut to);
        }
        if !self.segments.is_empty() {
            let all: Vec<String> = self.segments.iter().map(ToString::to_string).collect();
            put(&mut to, "srv6_segs", all.join(","));
        }
        to
    }

    fn show_keys(&self, to: &mut Options) {
        let text = |key: Key| match key {
            Key::Absent => None,
            Key::Is(value) => Some(value.to_string()),
            Key::Flow => Some("flow".to_owned()),
        };
        if self.in_key == self.out_key {
            to.extend(text(self.in_key).map(|k| ("key".to_owned(), k)));
        } else {
            to.extend(text(self.in_key).map(|k| ("in_key".to_owned(), k)));
            to.extend(text(self.out_key).map(|k| ("out_key".to_owned(), k)));
        }
    }

    fn show_erspan(&self, to: &mut Options) {
        let hex = |v: Option<u32>| v.map_or_else(|| "flow".to_owned(), |v| format!("{v:#x}"));
        let dec = |v: Option<u8>| v.map_or_else(|| "flow".to_owned(), |v| v.to_string());
        let e = self.erspan;
        put(to, "erspan_ver", dec(e.ver));
        if matches!(e.ver, None | Some(1)) {
            put(to, "erspan_idx", hex(e.idx));
        }
        if matches!(e.ver, None | Some(2)) {
            put(to, "erspan_dir", dec(e.dir));
            put(to, "erspan_hwid", hex(e.hwid.map(u32::from)));
        }
    }
}

fn show_dst_port(ty: TunnelType, dst_port: u16, to: &mut Options) {
    if dst_port != 0 && dst_port != ty.default_dst_port() {
        put(to, "dst_port", dst_port);
    }
}

/// Options that commands show for a tunnel's datapath port, which takes packets of all types.
pub fn show_datapath_port(ty: TunnelType, dst_port: u16) -> Options {
    let mut to = Options::new();
    put(&mut to, "packet_type", "ptap");
    show_dst_port(ty, dst_port, &mut to);
    to
}
