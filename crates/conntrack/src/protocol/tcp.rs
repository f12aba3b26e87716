//! The states and windows of TCP connections, for an observer between the endpoints.
//!
//! The rules are those of Open vSwitch, taken from OpenBSD's pf: Guido van Rooij, *Real Stateful TCP Packet
//! Filtering in IP Filter* (2001). Each endpoint has three values: the highest sequence number that it has
//! sent (`lo`), the highest that it may send (`hi`), and its largest window. The peer's acknowledgements and
//! window give `hi`. The window scale of a connection that is picked up in its midst is unknown. Its segments
//! are checked with the largest scale.
//!
//! The functions are pure: from two endpoints and a segment they make the two endpoints afterwards.
//! `dpctl/dump-conntrack` shows [`TcpState`].

use crate::protocol::packet::Segment;
use crate::protocol::timeouts::Class;

/// Flag of a segment.
pub const FIN: u16 = 0x01;
/// Flag of a segment.
pub const SYN: u16 = 0x02;
/// Flag of a segment.
pub const RST: u16 = 0x04;
/// Flag of a segment.
pub const PSH: u16 = 0x08;
/// Flag of a segment.
pub const ACK: u16 = 0x10;
/// Flag of a segment.
pub const URG: u16 = 0x20;

/// The largest shift of windows (RFC 7323, 2.3).
pub(crate) const MAX_SCALE: u8 = 14;
/// Tolerance, bytes: for acknowledgements, and for segments of a connection that opens or closes. The sum of
/// the largest unscaled window and one packet.
const MAX_SKEW: u32 = 0xffff + 1500;

/// The state of one endpoint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum TcpState {
    /// No segment was sent.
    #[default]
    Closed = 0,
    /// The first segment was sent.
    SynSent = 2,
    /// The first segment was acknowledged.
    Established = 4,
    /// FIN was sent.
    Closing = 7,
    /// FIN was acknowledged.
    FinWait2 = 9,
    /// The connection was reset.
    TimeWait = 10,
}

impl TcpState {
    pub(crate) const fn from_bits(b: u64) -> Self {
        match b & 0xf {
            2 => Self::SynSent,
            4 => Self::Established,
            7 => Self::Closing,
            9 => Self::FinWait2,
            10 => Self::TimeWait,
            _ => Self::Closed,
        }
    }
}

/// The window scale of one endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scale {
    /// The SYN had no such option.
    #[default]
    None,
    /// The shift in the option of the SYN.
    Known(u8),
    /// The SYN was not seen.
    Unknown,
}

impl Scale {
    /// The shift; 0 if it is unknown or absent.
    pub const fn shift(self) -> u8 {
        match self {
            Self::Known(s) => s,
            Self::None | Self::Unknown => 0,
        }
    }
}

/// One endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Peer {
    /// The highest sequence number that the endpoint has sent.
    pub lo: u32,
    /// The highest sequence number that the endpoint may send.
    pub hi: u32,
    /// The largest window, unscaled.
    pub window: u16,
    /// The scale of windows.
    pub scale: Scale,
    /// State.
    pub state: TcpState,
}

/// The relation of a segment to its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update {
    /// A part of the connection.
    Valid,
    /// A part of the connection, whose handshake has not begun yet.
    New,
    /// Invalid: flags that contradict each other.
    BadFlags,
    /// Invalid: outside of the windows.
    OutOfWindow,
    /// The connection has ended; the segment begins another one between the same endpoints.
    Again,
}

/// The result of [`update`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The relation of the segment to the connection.
    pub update: Update,
    /// The class of the timeout from now on; `None`: the time of expiry stays.
    pub class: Option<Class>,
    /// The segment is outside of the windows, and passed because they are not checked.
    pub bypassed: bool,
}

impl Outcome {
    const fn new(update: Update, class: Option<Class>) -> Self {
        Self {
            update,
            class,
            bypassed: false,
        }
    }
}

/// Serial number arithmetic (RFC 1982): whether `a` is not before `b`.
const fn geq(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) < 1 << 31
}

/// Whether the flags are invalid: a sender that obeys RFC 9293 never sends them.
pub(crate) const fn contradict(flags: u16) -> bool {
    if flags & SYN != 0 {
        if flags & (RST | FIN) != 0 {
            return true;
        }
    } else if flags & (ACK | RST) == 0 {
        return true;
    }
    flags & ACK == 0 && flags & (FIN | PSH | URG) != 0
}

/// Whether a segment without a connection may begin one. The first segment of a handshake may, and one of a
/// connection that began unseen, but not the second segment of a handshake.
pub fn begins(s: &Segment) -> bool {
    !contradict(s.flags) && s.flags & (SYN | ACK) != SYN | ACK
}

/// The window divided by the scale, rounded up.
fn unscaled(window: u16, shift: u8) -> u16 {
    let w = u32::from(window).div_ceil(1 << shift);
    u16::try_from(w).unwrap_or(u16::MAX)
}

/// Both endpoints after the first segment, its sender first.
#[allow(clippy::cast_possible_truncation)] // serial numbers wrap
pub fn first(s: &Segment) -> [Peer; 2] {
    let is = |f: u16| u32::from(s.flags & f != 0);
    let syn = s.flags & SYN != 0;
    let scale = match s.scale {
        _ if !syn => Scale::Unknown,
        Some(shift) => Scale::Known(shift),
        None => Scale::None,
    };
    let src = Peer {
        lo: s.seq,
        hi: s.seq.wrapping_add(s.len).wrapping_add(1 + is(SYN) + is(FIN)),
        window: unscaled(s.window.max(1), scale.shift()),
        scale,
        state: TcpState::SynSent,
    };
    let dst = Peer {
        lo: 0,
        hi: 1,
        window: 1,
        scale: if syn { Scale::None } else { Scale::Unknown },
        state: TcpState::Closed,
    };
    [src, dst]
}

/// Whether a segment shows the position of the windows: it is no SYN.
pub fn resumes(s: &Segment) -> bool {
    s.flags & SYN == 0 && !contradict(s.flags)
}

/// Moves the windows of an established connection to the position of a segment that [`resumes`]. Earlier
/// segments were not seen.
pub fn resume(peers: &mut [Peer; 2], reply: bool, s: &Segment) {
    let [a, b] = peers;
    let (src, dst) = if reply { (b, a) } else { (a, b) };
    let (src_shift, dst_shift) = match (src.scale, dst.scale) {
        (Scale::Known(s), Scale::Known(d)) => (s, d),
        (Scale::Unknown, Scale::Unknown) => (MAX_SCALE, MAX_SCALE),
        _ => (0, 0),
    };
    let end = s
        .seq
        .wrapping_add(s.len)
        .wrapping_add(u32::from(s.flags & FIN != 0));
    src.lo = s.seq;
    src.hi = end.wrapping_add(wide(dst.window, dst_shift));
    if s.flags & ACK != 0 && (s.flags & RST == 0 || s.ack != 0) {
        dst.lo = s.ack;
        dst.hi = s.ack.wrapping_add(wide(s.window, src_shift).max(1));
    }
}

/// Moves both endpoints by a segment. The first one has sent it, or the second one (`reply`). `check`: refuse
/// segments outside of the windows.
pub fn update(peers: &mut [Peer; 2], reply: bool, s: &Segment, check: bool) -> Outcome {
    let [a, b] = peers;
    let (src, dst) = if reply { (b, a) } else { (a, b) };
    if contradict(s.flags) {
        return Outcome::new(Update::BadFlags, None);
    }
    let is = |f: u16| s.flags & f != 0;
    if is(SYN) && !is(ACK) {
        if dst.state >= TcpState::FinWait2 && src.state >= TcpState::FinWait2 {
            src.state = TcpState::Closed;
            dst.state = TcpState::Closed;
            return Outcome::new(Update::Again, None);
        }
        if src.state <= TcpState::SynSent {
            src.state = TcpState::SynSent;
            return Outcome::new(Update::New, Some(Class::TcpSynSent));
        }
    }
    // The shifts of both windows. The window of a SYN is never shifted (RFC 7323, 2.2).
    let (mut src_shift, mut dst_shift) = match (src.scale, dst.scale) {
        _ if is(SYN) => (0, 0),
        (Scale::Known(s), Scale::Known(d)) => (s, d),
        (Scale::Unknown, Scale::Unknown) => (MAX_SCALE, MAX_SCALE),
        _ => (0, 0),
    };
    let mut window = s.window;
    let mut seq = s.seq;
    let mut end = seq
        .wrapping_add(s.len)
        .wrapping_add(u32::from(is(SYN)) + u32::from(is(FIN)));
    let mut check_skew = true;
    if src.state < TcpState::SynSent {
        // The first segment of this endpoint.
        if is(SYN)
            && let Scale::Known(theirs) = dst.scale
        {
            if let Some(shift) = s.scale {
                src.scale = Scale::Known(shift);
                src_shift = shift;
                window = unscaled(window, shift);
                dst_shift = theirs;
            } else {
                // Without both options no window is scaled.
                dst.window = unshifted(dst.window, theirs);
                dst.scale = Scale::None;
            }
        }
        src.lo = seq;
        src.state = TcpState::SynSent;
        let hi = end.wrapping_add(wide(dst.window, dst_shift).max(1));
        if src.hi == 1 || geq(hi, src.hi) {
            src.hi = hi;
            check_skew = false;
        }
        src.window = src.window.max(window);
    }
    // Without ACK there is nothing to compare; some send RST and ACK with an acknowledgement of zero.
    let ack = if !is(ACK) || (s.ack == 0 && is(RST)) {
        dst.lo
    } else {
        s.ack
    };
    if seq == end {
        // An empty segment cannot be outside.
        seq = src.lo;
        end = seq;
    }
    let skew = if check_skew {
        dst.lo.wrapping_sub(ack).cast_signed()
    } else {
        0
    };
    let within = geq(src.hi, end)
        && geq(seq, src.lo.wrapping_sub(wide(dst.window, dst_shift)))
        && i64::from(skew) >= -i64::from(MAX_SKEW)
        && i64::from(skew) <= i64::from(MAX_SKEW) << src_shift
        && (!is(RST) || s.seq.wrapping_sub(src.lo).wrapping_add(1) <= 2);
    let scaled = wide(window, src_shift);
    if within || !check {
        slide(src, dst, window, scaled, end, ack);
        if is(FIN) && src.state < TcpState::Closing {
            src.state = TcpState::Closing;
        }
        if is(ACK) {
            dst.state = match dst.state {
                TcpState::SynSent => TcpState::Established,
                TcpState::Closing => TcpState::FinWait2,
                other => other,
            };
        }
        if is(RST) {
            src.state = TcpState::TimeWait;
            dst.state = TcpState::TimeWait;
        }
        return Outcome {
            update: Update::Valid,
            class: Some(class(src.state, dst.state)),
            bypassed: !within,
        };
    }
    // While a connection opens and after it has closed, segments need only be near. An endpoint may repeat
    // its SYN before it gets one. A connection may have begun unseen. Some stacks send more after the end.
    // Such segments do not prolong the connection.
    let loose =
        dst.state < TcpState::SynSent || dst.state >= TcpState::FinWait2 || src.state >= TcpState::FinWait2;
    if loose && geq(src.hi.wrapping_add(MAX_SKEW), end) && geq(seq, src.lo.wrapping_sub(MAX_SKEW)) {
        slide(src, dst, window, scaled, end, ack);
        if is(FIN) && src.state < TcpState::Closing {
            src.state = TcpState::Closing;
        }
        if is(RST) {
            src.state = TcpState::TimeWait;
            dst.state = TcpState::TimeWait;
        }
        return Outcome::new(Update::Valid, None);
    }
    Outcome::new(Update::OutOfWindow, None)
}

/// A window in bytes.
fn wide(window: u16, shift: u8) -> u32 {
    u32::from(window) << shift
}

/// A window in bytes, in 16 bits.
#[allow(clippy::cast_possible_truncation)] // limited to 16 bits
fn unshifted(window: u16, shift: u8) -> u16 {
    wide(window, shift).min(u32::from(u16::MAX)) as u16
}

/// Moves the windows of both endpoints: `src` has sent up to `end`, and `dst` may send up to a window after
/// `ack`.
fn slide(src: &mut Peer, dst: &mut Peer, window: u16, scaled: u32, end: u32, ack: u32) {
    src.window = src.window.max(window);
    if !geq(src.lo, end) {
        src.lo = end;
    }
    if geq(ack.wrapping_add(scaled), dst.hi) {
        dst.hi = ack.wrapping_add(scaled.max(1));
    }
}

/// The class of the timeout for these states of both endpoints.
pub(crate) fn class(a: TcpState, b: TcpState) -> Class {
    let (least, most) = (a.min(b), a.max(b));
    if least >= TcpState::FinWait2 {
        Class::TcpClose
    } else if least >= TcpState::Closing {
        Class::TcpTimeWait
    } else if least < TcpState::Established {
        Class::TcpSynRecv
    } else if most >= TcpState::Closing {
        Class::TcpFinWait
    } else {
        Class::TcpEstablished
    }
}
