//! Every way in which the datapath loses a packet, by name.
//!
//! The names are those of coverage counters. Names that Open vSwitch has mean the same here.

use crate::action::DropReason;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// Why a packet was dropped.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr(usize)]
        pub enum DropKind { $($(#[$doc])* $kind,)* }

        impl DropKind {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [DropKind] = &[$(DropKind::$kind,)*];
            /// The coverage counter's name.
            pub const fn name(self) -> &'static str {
                match self { $(DropKind::$kind => $name,)* }
            }
        }
    };
}

kinds! {
    /// Shorter than an Ethernet header.
    RxInvalid = "datapath_drop_rx_invalid_packet",
    /// Above what its port may receive.
    RxPoliced = "datapath_drop_rx_policed",
    /// Output to a port that is not there.
    InvalidPort = "datapath_drop_invalid_port",
    /// Longer than the output port's MTU, and not a GSO packet.
    TxTooLong = "datapath_drop_tx_too_long",
    /// The output device's queue stayed full.
    TxFull = "datapath_drop_tx_full",
    /// The output device is down.
    TxDown = "datapath_drop_tx_down",
    /// The system refused the packet.
    TxError = "datapath_drop_tx_error",
    /// No room in the ring to the control plane.
    Upcall = "datapath_drop_upcall_error",
    /// A sample that there was no room for in its ring. Its packet is forwarded.
    Sample = "datapath_drop_sample_error",
    /// First packets of new flows beyond what their receive queue may have translated while its established
    /// flows wait.
    MissBudget = "datapath_drop_miss_budget",
    /// No room in front of the packet for another header.
    Headroom = "datapath_drop_no_headroom",
    /// A header that the actions rewrite is beyond the packet's private bytes.
    Header = "datapath_drop_header_missing",
    /// A network service header to be popped has wrong lengths, or hides something unknown.
    NshDecap = "datapath_drop_nsh_decap_error",
    /// For a tunnel that cannot carry it: a GSO packet in too many tunnels already.
    TunnelPush = "datapath_drop_tunnel_push_error",
    /// The outer headers would make it longer than their length fields can hold.
    TunnelTooLong = "datapath_drop_tunnel_too_long",
    /// Longer than the route of its tunnel carries, and its sender may get no ICMP error.
    TooLongForPath = "datapath_drop_tunnel_mtu",
    /// Outer headers of another tunnel type, or with a wrong length, version, flag or protocol.
    TunnelPop = "datapath_drop_tunnel_pop_error",
    /// An STT header that does not fit the frame behind it.
    TunnelMetadata = "datapath_drop_tunnel_metadata",
    /// A segment of an STT frame that goes beyond the frame.
    SegmentBeyond = "datapath_drop_tunnel_segment_beyond",
    /// A segment of an STT frame with another frame length than the segments before it.
    SegmentLength = "datapath_drop_tunnel_segment_length",
    /// A segment of an STT frame that has arrived already.
    SegmentDuplicate = "datapath_drop_tunnel_segment_duplicate",
    /// A segment of an STT frame that overlaps with one that has arrived already.
    SegmentOverlap = "datapath_drop_tunnel_segment_overlap",
    /// A segment of an STT frame that timed out before the others arrived.
    SegmentTimeout = "datapath_drop_tunnel_segment_timeout",
    /// A segment of an STT frame that was evicted to make room, or exceeds the number of segments of a frame.
    SegmentEvicted = "datapath_drop_tunnel_segment_evicted",
    /// A wrong outer checksum.
    TunnelCsum = "datapath_drop_tunnel_bad_csum",
    /// A fragment of an outer packet.
    TunnelFragment = "datapath_drop_tunnel_fragment",
    /// An outer time to live of zero.
    TunnelTtl = "datapath_drop_tunnel_ttl",
    /// A GSO packet of outer packets that hold something else than the segments of one GSO packet.
    TunnelGso = "datapath_drop_tunnel_train",
    /// Options of a tunnel that are cut off, or have to be understood and are not.
    TunnelOption = "datapath_drop_tunnel_option",
    /// Actions nested too deeply.
    Nesting = "datapath_drop_action_nesting",
    /// More copies of packets than a worker may hold at a time.
    Copies = "datapath_drop_too_many_copies",
    /// A meter's rate was exceeded.
    Meter = "datapath_drop_meter",
    /// A fragment that waited to be tracked until its time was over.
    FragmentTimeout = "datapath_drop_fragment_timeout",
    /// A fragment that waited to be tracked and made room for others.
    FragmentEvicted = "datapath_drop_fragment_evicted",
    /// A fragment that is too small, overlaps another one, or is not valid, where the whole packet was to
    /// continue.
    FragmentRefused = "datapath_drop_fragment_refused",
    /// The packet was to begin a translated connection, which the tracker refused.
    Untranslated = "datapath_drop_nat_untranslated",
    /// Recirculated too often.
    Recirc = "datapath_drop_recirc_error",
    /// No rule, or a rule without actions.
    Policy = "drop_action_of_pipeline",
    /// Resubmitted too deeply.
    RecursionTooDeep = "drop_action_recursion_too_deep",
    /// Resubmitted too often.
    TooManyResubmits = "drop_action_too_many_resubmit",
    /// More actions, tables and buckets than one packet may cost.
    TooManySteps = "drop_action_too_many_steps",
    /// The OpenFlow stack grew too large.
    StackTooDeep = "drop_action_stack_too_deep",
    /// A header was to be pushed onto or popped off a packet of another kind.
    UnsupportedPacketType = "drop_action_unsupported_packet_type",
    /// More label stack entries than a key holds.
    TooManyMplsLabels = "drop_action_too_many_mpls_labels",
    /// The bridge or port is gone.
    NoPort = "drop_action_bridge_not_found",
    /// A packet from a tunnel met congestion outside and cannot show it inside.
    TunnelEcn = "drop_action_congestion",
    /// No tunnel port takes a packet from a tunnel.
    NoTunnel = "drop_action_no_tunnel_port",
    /// For a tunnel without an address, or back to where the packet came from.
    TunnelAddress = "drop_action_tunnel_own_address",
    /// No route to a tunnel's other end.
    TunnelRoute = "drop_action_tunnel_route",
    /// The next host on the way to a tunnel's other end is not known yet.
    TunnelNeighbour = "drop_action_tunnel_neighbour",
    /// A recirculation id that was not given out, or is not valid any more.
    NoRecirculation = "drop_action_no_recirculation_context",
    /// No member of a bond takes the packet: none is enabled, or LACP has found no partner.
    NoBondMember = "drop_action_no_bond_member",
    /// The port sends more messages of IGMP and MLD than multicast snooping reads.
    ReportLimit = "drop_action_mcast_report_limit",
    /// Rules are restored after a restart: until all are there, none decides.
    Restoring = "drop_action_flow_restore_wait",
    /// The translation panicked: a fault of this program, which is in the log.
    Fault = "drop_action_translation_fault",
    /// Reserved multicast, spanning tree, port roles.
    Bridging = "drop_action_forwarding_disabled",
}

impl From<DropReason> for DropKind {
    fn from(r: DropReason) -> Self {
        match r {
            DropReason::Policy => DropKind::Policy,
            DropReason::RecursionTooDeep => DropKind::RecursionTooDeep,
            DropReason::TooManyResubmits => DropKind::TooManyResubmits,
            DropReason::TooManySteps => DropKind::TooManySteps,
            DropReason::StackTooDeep => DropKind::StackTooDeep,
            DropReason::UnsupportedPacketType => DropKind::UnsupportedPacketType,
            DropReason::TooManyMplsLabels => DropKind::TooManyMplsLabels,
            DropReason::NoPort => DropKind::NoPort,
            DropReason::NoBondMember => DropKind::NoBondMember,
            DropReason::ReportLimit => DropKind::ReportLimit,
            DropReason::Bridging => DropKind::Bridging,
            DropReason::TunnelEcn => DropKind::TunnelEcn,
            DropReason::NoTunnel => DropKind::NoTunnel,
            DropReason::TunnelAddress => DropKind::TunnelAddress,
            DropReason::TunnelRoute => DropKind::TunnelRoute,
            DropReason::TunnelNeighbour => DropKind::TunnelNeighbour,
            DropReason::NoRecirculation => DropKind::NoRecirculation,
            DropReason::Restoring => DropKind::Restoring,
            DropReason::Fault => DropKind::Fault,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DropKind;

    /// Operators look names up in a page: it has each of them, and no other.
    #[test]
    fn every_name_is_explained() {
        let page = include_str!("../../../docs/drops.md");
        let rows = page
            .lines()
            .filter_map(|l| l.strip_prefix("| `")?.split('`').next());
        let mut told: Vec<&str> = rows.collect();
        let mut named: Vec<&str> = DropKind::ALL.iter().map(|k| k.name()).collect();
        told.sort_unstable();
        named.sort_unstable();
        assert_eq!(told, named);
    }
}
