//! Reading and writing netlink messages (netlink(7), rtnetlink(7)), as bytes.
//!
//! Everything that is read is checked for its length, although only the kernel sends here.

/// Length of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;
/// Length of `struct ifinfomsg`.
pub(crate) const IFINFO: usize = 16;

pub(crate) fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(b.get(at..at + 2)?.try_into().ok()?))
}
pub(crate) fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(b.get(at..at + 4)?.try_into().ok()?))
}
pub(crate) fn align4(n: usize) -> usize {
    n.saturating_add(3) & !3
}

/// The messages of a datagram, as (type, what follows the header). Ends at the first that is cut.
pub(crate) fn messages(mut data: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (len, kind) = (u32_at(data, 0)? as usize, u16_at(data, 4)?);
        let body = data.get(HEADER..len)?;
        data = data.get(align4(len)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// Attributes, as (type, value). Ends at the first that is cut.
pub(crate) fn attributes(mut data: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (len, kind) = (usize::from(u16_at(data, 0)?), u16_at(data, 2)?);
        let value = data.get(4..len)?;
        data = data.get(align4(len)..).unwrap_or_default();
        Some((kind & !(libc::NLA_F_NESTED as u16), value))
    })
}

/// The text in an attribute, which ends at its zero.
pub(crate) fn text(value: &[u8]) -> String {
    let bytes: Vec<u8> = value.iter().copied().take_while(|&b| b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Appends an attribute.
pub(crate) fn push_attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(value);
    message.resize(align4(message.len()), 0);
}

/// A message about device `ifindex` (0: none in particular), with these attributes.
pub(crate) fn link_message(kind: u16, flags: i32, ifindex: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut message = vec![0; HEADER + IFINFO];
    for (kind, value) in attributes {
        push_attribute(&mut message, *kind, value);
    }
    let len = message.len() as u32;
    let mut put = |at: usize, bytes: &[u8]| message[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &len.to_ne_bytes());
    put(4, &kind.to_ne_bytes());
    put(6, &(flags as u16).to_ne_bytes());
    put(8, &1_u32.to_ne_bytes());
    put(HEADER + 4, &ifindex.to_ne_bytes());
    message
}
