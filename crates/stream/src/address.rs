//! Addresses as connection methods write them; numbers only, names are not looked up.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// `1.2.3.4`, `1.2.3.4:6640`, `[::1]`, `[::1]:6640`, `[fe80::1%2]:6640`.
pub(crate) fn peer(text: &str, default_port: u16) -> Option<SocketAddr> {
    if let Ok(full) = text.parse::<SocketAddr>() {
        return Some(full);
    }
    match text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        // The parser of whole addresses takes scopes, that of bare ones does not.
        Some(v6) => format!("[{v6}]:{default_port}").parse().ok(),
        None => Some(SocketAddr::new(IpAddr::V4(text.parse().ok()?), default_port)),
    }
}

/// `[PORT][:HOST]`: where to listen, by default at all IPv4 addresses. Port 0 lets the system choose.
pub(crate) fn local(text: &str, default_port: u16) -> Option<SocketAddr> {
    let (port, host) = text.split_once(':').unwrap_or((text, ""));
    let port = match port {
        "" => default_port,
        number => number.parse().ok()?,
    };
    if host.is_empty() {
        return Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port));
    }
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    match bare {
        Some(v6) => format!("[{v6}]:{port}").parse().ok(),
        None => Some(SocketAddr::new(host.parse().ok()?, port)),
    }
}
