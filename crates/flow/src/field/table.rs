//! The table of match fields, one row for each field.
//!
//! A row reads `Id "name" (bits in bytes) Maskable Style Prereq access place [OXM-name field-number version,
//! ...];`. *Bits in bytes* is the field's width within its OXM payload. *Place* is its place in the
//! [`super::FlowKey`] (the kinds are explained in `place.rs`). The list has every header that names the field
//! on the wire, in rising order of the OpenFlow version that defined it. Version 0 is a Nicira extension,
//! usable in any version. The OXM class follows from the name's prefix.
//!
//! A name may be followed by `aka "other name"`. The order of rows is that of Open vSwitch's
//! `enum mf_field_id`; two tools sort by it.

use super::place::define_fields;

define_fields! {
    // -- the datapath's and the pipeline's own
    DpHash "dp_hash" (32 in 4) Any Hex None ro int(dp_hash) [NXM_NX_DP_HASH 35 0, NXOXM_ET_DP_HASH 0 0];
    RecircId "recirc_id" (32 in 4) None Decimal None ro int(recirc_id) [NXM_NX_RECIRC_ID 36 0];
    PacketType "packet_type" (32 in 4) None PacketType None ro int(packet_type) [OXM_OF_PACKET_TYPE 44 6];
    ConjId "conj_id" (32 in 4) None Decimal None ro int(conj_id) [NXM_NX_CONJ_ID 37 0];
    // -- tunnel
    TunId "tun_id" aka "tunnel_id" (64 in 8) Any Hex None rw int(tun_id)
        [NXM_NX_TUN_ID 16 0, OXM_OF_TUNNEL_ID 38 4];
    TunSrc "tun_src" (32 in 4) Any Ipv4 None rw int(tun_src) [NXM_NX_TUN_IPV4_SRC 31 0];
    TunDst "tun_dst" (32 in 4) Any Ipv4 None rw int(tun_dst) [NXM_NX_TUN_IPV4_DST 32 0];
    TunIpv6Src "tun_ipv6_src" (128 in 16) Any Ipv6 None rw int(tun_ipv6_src) [NXM_NX_TUN_IPV6_SRC 109 0];
    TunIpv6Dst "tun_ipv6_dst" (128 in 16) Any Ipv6 None rw int(tun_ipv6_dst) [NXM_NX_TUN_IPV6_DST 110 0];
    TunFlags "tun_flags" (1 in 2) Any TunFlags None rw bits(tun_flags, 1) [NXM_NX_TUN_FLAGS 104 0];
    TunTtl "tun_ttl" (8 in 1) None Decimal None ro int(tun_ttl) [];
    TunTos "tun_tos" (8 in 1) None Decimal None ro int(tun_tos) [];
    TunGbpId "tun_gbp_id" (16 in 2) Any Decimal None rw int(tun_gbp_id) [NXM_NX_TUN_GBP_ID 38 0];
    TunGbpFlags "tun_gbp_flags" (8 in 1) Any Hex None rw int(tun_gbp_flags) [NXM_NX_TUN_GBP_FLAGS 39 0];
    TunErspanIdx "tun_erspan_idx" (20 in 4) Any Hex None rw low(tun_erspan_idx, 20) [NXOXM_ET_ERSPAN_IDX 11 0];
    TunErspanVer "tun_erspan_ver" (4 in 1) Any Decimal None rw low(tun_erspan_ver, 4) [NXOXM_ET_ERSPAN_VER 12 0];
    TunErspanDir "tun_erspan_dir" (1 in 1) Any Decimal None rw low(tun_erspan_dir, 1) [NXOXM_ET_ERSPAN_DIR 13 0];
    TunErspanHwid "tun_erspan_hwid" (6 in 1) Any Hex None rw low(tun_erspan_hwid, 6)
        [NXOXM_ET_ERSPAN_HWID 14 0];
    TunGtpuFlags "tun_gtpu_flags" (8 in 1) Any Hex None ro int(tun_gtpu_flags) [NXOXM_ET_GTPU_FLAGS 15 0];
    TunGtpuMsgtype "tun_gtpu_msgtype" (8 in 1) Any Decimal None ro int(tun_gtpu_msgtype)
        [NXOXM_ET_GTPU_MSGTYPE 16 0];
    // -- pipeline metadata
    Metadata "metadata" (64 in 8) Any Hex None rw int(metadata) [OXM_OF_METADATA 2 3];
    InPort "in_port" (16 in 2) None OfPort None rw low(in_port, 16) [NXM_OF_IN_PORT 0 0];
    InPortOxm "in_port_oxm" (32 in 4) None OfPort32 None rw port(in_port) [OXM_OF_IN_PORT 0 3];
    ActsetOutput "actset_output" (32 in 4) None OfPort32 None ro port(actset_output)
        [ONFOXM_ET_ACTSET_OUTPUT 43 4, OXM_OF_ACTSET_OUTPUT 43 6];
    SkbPriority "skb_priority" (32 in 4) None Hex None ro int(skb_priority) [];
    PktMark "pkt_mark" (32 in 4) Any Hex None rw int(pkt_mark) [NXM_NX_PKT_MARK 33 0];
    CtState "ct_state" (32 in 4) Any CtState None ro bits(ct_state, 0xff) [NXM_NX_CT_STATE 105 0];
    CtZone "ct_zone" (16 in 2) None Hex None ro int(ct_zone) [NXM_NX_CT_ZONE 106 0];
    CtMark "ct_mark" (32 in 4) Any Hex None rw int(ct_mark) [NXM_NX_CT_MARK 107 0];
    CtLabel "ct_label" (128 in 16) Any Hex None rw int(ct_label) [NXM_NX_CT_LABEL 108 0];
    CtNwProto "ct_nw_proto" (8 in 1) None Decimal Ct ro int(ct_nw_proto) [NXM_NX_CT_NW_PROTO 119 0];
    CtNwSrc "ct_nw_src" (32 in 4) Any Ipv4 Ct ro int(ct_nw_src) [NXM_NX_CT_NW_SRC 120 0];
    CtNwDst "ct_nw_dst" (32 in 4) Any Ipv4 Ct ro int(ct_nw_dst) [NXM_NX_CT_NW_DST 121 0];
    CtIpv6Src "ct_ipv6_src" (128 in 16) Any Ipv6 Ct ro int(ct_ipv6_src) [NXM_NX_CT_IPV6_SRC 122 0];
    CtIpv6Dst "ct_ipv6_dst" (128 in 16) Any Ipv6 Ct ro int(ct_ipv6_dst) [NXM_NX_CT_IPV6_DST 123 0];
    CtTpSrc "ct_tp_src" (16 in 2) Any Decimal Ct ro int(ct_tp_src) [NXM_NX_CT_TP_SRC 124 0];
    CtTpDst "ct_tp_dst" (16 in 2) Any Decimal Ct ro int(ct_tp_dst) [NXM_NX_CT_TP_DST 125 0];
    // -- registers
    Reg0 "reg0" (32 in 4) Any Hex None rw reg(0, 1) [NXM_NX_REG0 0 0];
    Reg1 "reg1" (32 in 4) Any Hex None rw reg(1, 1) [NXM_NX_REG1 1 0];
    Reg2 "reg2" (32 in 4) Any Hex None rw reg(2, 1) [NXM_NX_REG2 2 0];
    Reg3 "reg3" (32 in 4) Any Hex None rw reg(3, 1) [NXM_NX_REG3 3 0];
    Reg4 "reg4" (32 in 4) Any Hex None rw reg(4, 1) [NXM_NX_REG4 4 0];
    Reg5 "reg5" (32 in 4) Any Hex None rw reg(5, 1) [NXM_NX_REG5 5 0];
    Reg6 "reg6" (32 in 4) Any Hex None rw reg(6, 1) [NXM_NX_REG6 6 0];
    Reg7 "reg7" (32 in 4) Any Hex None rw reg(7, 1) [NXM_NX_REG7 7 0];
    Reg8 "reg8" (32 in 4) Any Hex None rw reg(8, 1) [NXM_NX_REG8 8 0];
    Reg9 "reg9" (32 in 4) Any Hex None rw reg(9, 1) [NXM_NX_REG9 9 0];
    Reg10 "reg10" (32 in 4) Any Hex None rw reg(10, 1) [NXM_NX_REG10 10 0];
    Reg11 "reg11" (32 in 4) Any Hex None rw reg(11, 1) [NXM_NX_REG11 11 0];
    Reg12 "reg12" (32 in 4) Any Hex None rw reg(12, 1) [NXM_NX_REG12 12 0];
    Reg13 "reg13" (32 in 4) Any Hex None rw reg(13, 1) [NXM_NX_REG13 13 0];
    Reg14 "reg14" (32 in 4) Any Hex None rw reg(14, 1) [NXM_NX_REG14 14 0];
    Reg15 "reg15" (32 in 4) Any Hex None rw reg(15, 1) [NXM_NX_REG15 15 0];
    Xreg0 "xreg0" (64 in 8) Any Hex None rw reg(0, 2) [OXM_OF_PKT_REG0 0 4];
    Xreg1 "xreg1" (64 in 8) Any Hex None rw reg(2, 2) [OXM_OF_PKT_REG1 1 4];
    Xreg2 "xreg2" (64 in 8) Any Hex None rw reg(4, 2) [OXM_OF_PKT_REG2 2 4];
    Xreg3 "xreg3" (64 in 8) Any Hex None rw reg(6, 2) [OXM_OF_PKT_REG3 3 4];
    Xreg4 "xreg4" (64 in 8) Any Hex None rw reg(8, 2) [OXM_OF_PKT_REG4 4 4];
    Xreg5 "xreg5" (64 in 8) Any Hex None rw reg(10, 2) [OXM_OF_PKT_REG5 5 4];
    Xreg6 "xreg6" (64 in 8) Any Hex None rw reg(12, 2) [OXM_OF_PKT_REG6 6 4];
    Xreg7 "xreg7" (64 in 8) Any Hex None rw reg(14, 2) [OXM_OF_PKT_REG7 7 4];
    Xxreg0 "xxreg0" (128 in 16) Any Hex None rw reg(0, 4) [NXM_NX_XXREG0 111 0];
    Xxreg1 "xxreg1" (128 in 16) Any Hex None rw reg(4, 4) [NXM_NX_XXREG1 112 0];
    Xxreg2 "xxreg2" (128 in 16) Any Hex None rw reg(8, 4) [NXM_NX_XXREG2 113 0];
    Xxreg3 "xxreg3" (128 in 16) Any Hex None rw reg(12, 4) [NXM_NX_XXREG3 114 0];
    // -- Ethernet, VLAN, MPLS
    EthSrc "eth_src" aka "dl_src" (48 in 6) Any Ethernet Ethernet rw int(dl_src)
        [NXM_OF_ETH_SRC 2 0, OXM_OF_ETH_SRC 4 3];
    EthDst "eth_dst" aka "dl_dst" (48 in 6) Any Ethernet Ethernet rw int(dl_dst)
        [NXM_OF_ETH_DST 1 0, OXM_OF_ETH_DST 3 3];
    EthType "eth_type" aka "dl_type" (16 in 2) None Hex Ethernet ro int(dl_type)
        [NXM_OF_ETH_TYPE 3 0, OXM_OF_ETH_TYPE 5 3];
    VlanTci "vlan_tci" (16 in 2) Any Hex Ethernet rw tci(0xffff, 0, 0) [NXM_OF_VLAN_TCI 4 0];
    DlVlan "dl_vlan" (12 in 2) None Decimal Ethernet rw dl_vlan() [];
    VlanVid "vlan_vid" (12 in 2) Any Decimal Ethernet rw tci(0x1fff, 0, 0) [OXM_OF_VLAN_VID 6 3];
    DlVlanPcp "dl_vlan_pcp" (3 in 1) None Decimal Ethernet rw tci(0xe000, 13, 0x1000) [];
    VlanPcp "vlan_pcp" (3 in 1) None Decimal Vlan rw tci(0xe000, 13, 0x1000) [OXM_OF_VLAN_PCP 7 3];
    MplsLabel "mpls_label" (20 in 4) None Decimal Mpls rw mpls(12, 0xfffff) [OXM_OF_MPLS_LABEL 34 3];
    MplsTc "mpls_tc" (3 in 1) None Decimal Mpls rw mpls(9, 0x7) [OXM_OF_MPLS_TC 35 3];
    MplsBos "mpls_bos" (1 in 1) None Decimal Mpls ro mpls(8, 0x1) [OXM_OF_MPLS_BOS 36 4];
    MplsTtl "mpls_ttl" (8 in 1) None Decimal Mpls rw mpls(0, 0xff) [NXM_NX_MPLS_TTL 30 0];
    // -- IP, ARP
    Ipv4Src "ip_src" aka "nw_src" (32 in 4) Any Ipv4 Ipv4 rw int(nw_src)
        [NXM_OF_IP_SRC 7 0, OXM_OF_IPV4_SRC 11 3];
    Ipv4Dst "ip_dst" aka "nw_dst" (32 in 4) Any Ipv4 Ipv4 rw int(nw_dst)
        [NXM_OF_IP_DST 8 0, OXM_OF_IPV4_DST 12 3];
    Ipv6Src "ipv6_src" (128 in 16) Any Ipv6 Ipv6 rw int(ipv6_src)
        [NXM_NX_IPV6_SRC 19 0, OXM_OF_IPV6_SRC 26 3];
    Ipv6Dst "ipv6_dst" (128 in 16) Any Ipv6 Ipv6 rw int(ipv6_dst)
        [NXM_NX_IPV6_DST 20 0, OXM_OF_IPV6_DST 27 3];
    Ipv6Label "ipv6_label" (20 in 4) Any Hex Ipv6 rw low(ipv6_label, 20)
        [NXM_NX_IPV6_LABEL 27 0, OXM_OF_IPV6_FLABEL 28 3];
    IpProto "nw_proto" aka "ip_proto" (8 in 1) None Decimal IpAny ro int(nw_proto)
        [NXM_OF_IP_PROTO 6 0, OXM_OF_IP_PROTO 10 3];
    IpDscp "nw_tos" (8 in 1) None Decimal IpAny rw bits(nw_tos, 0xfc) [NXM_OF_IP_TOS 5 0];
    IpDscpShifted "ip_dscp" (6 in 1) None Decimal IpAny rw part(nw_tos, 2, 0x3f) [OXM_OF_IP_DSCP 8 3];
    IpEcn "nw_ecn" aka "ip_ecn" (2 in 1) None Decimal IpAny rw bits(nw_tos, 0x3)
        [NXM_NX_IP_ECN 28 0, OXM_OF_IP_ECN 9 3];
    IpTtl "nw_ttl" (8 in 1) None Decimal IpAny rw int(nw_ttl) [NXM_NX_IP_TTL 29 0];
    IpFrag "ip_frag" aka "nw_frag" (2 in 1) Any Frag IpAny ro bits(nw_frag, 0x3) [NXM_NX_IP_FRAG 26 0];
    ArpOp "arp_op" (16 in 2) None Decimal Arp rw low(nw_proto, 8) [NXM_OF_ARP_OP 15 0, OXM_OF_ARP_OP 21 3];
    ArpSpa "arp_spa" (32 in 4) Any Ipv4 Arp rw int(nw_src) [NXM_OF_ARP_SPA 16 0, OXM_OF_ARP_SPA 22 3];
    ArpTpa "arp_tpa" (32 in 4) Any Ipv4 Arp rw int(nw_dst) [NXM_OF_ARP_TPA 17 0, OXM_OF_ARP_TPA 23 3];
    ArpSha "arp_sha" (48 in 6) Any Ethernet Arp rw int(arp_sha) [NXM_NX_ARP_SHA 17 0, OXM_OF_ARP_SHA 24 3];
    ArpTha "arp_tha" (48 in 6) Any Ethernet Arp rw int(arp_tha) [NXM_NX_ARP_THA 18 0, OXM_OF_ARP_THA 25 3];
    // -- L4
    TcpSrc "tcp_src" aka "tp_src" (16 in 2) Any Decimal Tcp rw int(tp_src)
        [NXM_OF_TCP_SRC 9 0, OXM_OF_TCP_SRC 13 3];
    TcpDst "tcp_dst" aka "tp_dst" (16 in 2) Any Decimal Tcp rw int(tp_dst)
        [NXM_OF_TCP_DST 10 0, OXM_OF_TCP_DST 14 3];
    TcpFlags "tcp_flags" (12 in 2) Any TcpFlags Tcp ro low(tcp_flags, 12)
        [NXM_NX_TCP_FLAGS 34 0, ONFOXM_ET_TCP_FLAGS 42 4, OXM_OF_TCP_FLAGS 42 6];
    UdpSrc "udp_src" (16 in 2) Any Decimal Udp rw int(tp_src) [NXM_OF_UDP_SRC 11 0, OXM_OF_UDP_SRC 15 3];
    UdpDst "udp_dst" (16 in 2) Any Decimal Udp rw int(tp_dst) [NXM_OF_UDP_DST 12 0, OXM_OF_UDP_DST 16 3];
    SctpSrc "sctp_src" (16 in 2) Any Decimal Sctp rw int(tp_src) [OXM_OF_SCTP_SRC 17 3];
    SctpDst "sctp_dst" (16 in 2) Any Decimal Sctp rw int(tp_dst) [OXM_OF_SCTP_DST 18 3];
    Icmpv4Type "icmp_type" (8 in 1) None Decimal Icmpv4 rw low(tp_src, 8)
        [NXM_OF_ICMP_TYPE 13 0, OXM_OF_ICMPV4_TYPE 19 3];
    Icmpv4Code "icmp_code" (8 in 1) None Decimal Icmpv4 rw low(tp_dst, 8)
        [NXM_OF_ICMP_CODE 14 0, OXM_OF_ICMPV4_CODE 20 3];
    Icmpv6Type "icmpv6_type" (8 in 1) None Decimal Icmpv6 rw low(tp_src, 8)
        [NXM_NX_ICMPV6_TYPE 21 0, OXM_OF_ICMPV6_TYPE 29 3];
    Icmpv6Code "icmpv6_code" (8 in 1) None Decimal Icmpv6 rw low(tp_dst, 8)
        [NXM_NX_ICMPV6_CODE 22 0, OXM_OF_ICMPV6_CODE 30 3];
    NdTarget "nd_target" (128 in 16) Any Ipv6 Nd rw int(nd_target)
        [NXM_NX_ND_TARGET 23 0, OXM_OF_IPV6_ND_TARGET 31 3];
    NdSll "nd_sll" (48 in 6) Any Ethernet NdSolicit rw int(arp_sha)
        [NXM_NX_ND_SLL 24 0, OXM_OF_IPV6_ND_SLL 32 3];
    NdTll "nd_tll" (48 in 6) Any Ethernet NdAdvert rw int(arp_tha)
        [NXM_NX_ND_TLL 25 0, OXM_OF_IPV6_ND_TLL 33 3];
    NdReserved "nd_reserved" (32 in 4) None Decimal Nd rw int(igmp_group)
        [ERICOXM_OF_ICMPV6_ND_RESERVED 1 0];
    NdOptionsType "nd_options_type" (8 in 1) None Decimal Nd rw low(tcp_flags, 8)
        [ERICOXM_OF_ICMPV6_ND_OPTIONS_TYPE 2 0];
    // -- network service header
    NshFlags "nsh_flags" (8 in 1) Any Decimal Nsh rw int(nsh.flags) [NXOXM_NSH_FLAGS 1 0];
    NshMdtype "nsh_mdtype" (8 in 1) None Decimal Nsh ro int(nsh.mdtype) [NXOXM_NSH_MDTYPE 2 0];
    NshNp "nsh_np" (8 in 1) None Decimal Nsh ro int(nsh.np) [NXOXM_NSH_NP 3 0];
    NshSpi "nsh_spi" aka "nsp" (24 in 4) None Hex Nsh rw part(nsh.path, 8, 0xff_ffff) [NXOXM_NSH_SPI 4 0];
    NshSi "nsh_si" aka "nsi" (8 in 1) None Decimal Nsh rw part(nsh.path, 0, 0xff) [NXOXM_NSH_SI 5 0];
    NshC1 "nsh_c1" aka "nshc1" (32 in 4) Any Hex Nsh rw int(nsh.c1) [NXOXM_NSH_C1 6 0];
    NshC2 "nsh_c2" aka "nshc2" (32 in 4) Any Hex Nsh rw int(nsh.c2) [NXOXM_NSH_C2 7 0];
    NshC3 "nsh_c3" aka "nshc3" (32 in 4) Any Hex Nsh rw int(nsh.c3) [NXOXM_NSH_C3 8 0];
    NshC4 "nsh_c4" aka "nshc4" (32 in 4) Any Hex Nsh rw int(nsh.c4) [NXOXM_NSH_C4 9 0];
    NshTtl "nsh_ttl" (8 in 1) None Decimal Nsh rw int(nsh.ttl) [NXOXM_NSH_TTL 10 0];
}
