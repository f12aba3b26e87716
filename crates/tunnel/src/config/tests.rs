use super::*;

fn read(ty: &str, options: &str) -> Result<(TunnelConfig, Vec<String>), Refused> {
    let options = options.split_whitespace().map(|o| o.split_once('=').unwrap());
    let options = options.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    parse("p1", TunnelType::named(ty).unwrap(), &options)
}

fn shown(ty: &str, options: &str) -> String {
    let (config, lines) = read(ty, options).unwrap();
    assert_eq!(lines, [""; 0]);
    let all = config
        .shown_options()
        .into_iter()
        .map(|(k, v)| format!("{k}={v}"));
    all.collect::<Vec<_>>().join(", ")
}

fn refused(ty: &str, options: &str) -> String {
    read(ty, options).unwrap_err().text
}

/// Only an explicit `csum=false` allows packets over IPv6 to lack a checksum.
#[test]
fn checksums_over_ipv6_are_optional_if_configured() {
    for (options, csum, optional) in [
        ("remote_ip=fd00::1", false, false),
        ("remote_ip=fd00::1 csum=true", true, false),
        ("remote_ip=fd00::1 csum=false", false, true),
        ("remote_ip=fd00::1 csum=no", false, false),
    ] {
        let (config, _) = read("geneve", options).unwrap();
        assert_eq!((config.csum, config.csum_optional), (csum, optional), "{options}");
    }
}

#[test]
fn options_come_back_as_they_were_unless_they_change_nothing() {
    for (ty, options, want) in [
        ("gre", "remote_ip=1.1.1.1", "remote_ip=1.1.1.1"),
        (
            "gre",
            "remote_ip=1.1.1.1 ttl=0 tos=0 df_default=true csum=false",
            "remote_ip=1.1.1.1",
        ),
        (
            "gre",
            "remote_ip=1.1.1.1 local_ip=2.2.2.3 df_default=false ttl=1 csum=true",
            "csum=true, df_default=false, local_ip=2.2.2.3, remote_ip=1.1.1.1, ttl=1",
        ),
        (
            "gre",
            "remote_ip=1.1.1.1 tos=inherit ttl=inherit seq=true",
            "remote_ip=1.1.1.1, seq=true, tos=inherit, ttl=inherit",
        ),
        (
            "gre",
            "remote_ip=1.1.1.1 tos=0x4 ttl=255",
            "remote_ip=1.1.1.1, tos=0x4, ttl=255",
        ),
        ("gre", "remote_ip=1.1.1.1 key=0x1f", "key=31, remote_ip=1.1.1.1"),
        (
            "gre",
            "remote_ip=1.1.1.1 in_key=2 out_key=3",
            "in_key=2, out_key=3, remote_ip=1.1.1.1",
        ),
        (
            "gre",
            "remote_ip=flow out_key=flow",
            "out_key=flow, remote_ip=flow",
        ),
        ("vxlan", "remote_ip=1.1.1.1 dst_port=4789", "remote_ip=1.1.1.1"),
        (
            "vxlan",
            "remote_ip=2001:cafe::1 dst_port=4341 exts=gbp,gpe packet_type=legacy_l3",
            "dst_port=4341, packet_type=legacy_l3, remote_ip=2001:cafe::1",
        ),
        (
            "geneve",
            "remote_ip=1.1.2.93 out_key=flow egress_pkt_mark=1234 packet_type=ptap",
            "egress_pkt_mark=1234, out_key=flow, packet_type=ptap, remote_ip=1.1.2.93",
        ),
        (
            "gtpu",
            "remote_ip=1.1.1.1 key=3 packet_type=legacy_l3",
            "key=3, remote_ip=1.1.1.1",
        ),
        (
            "erspan",
            "remote_ip=flow erspan_ver=flow erspan_idx=3 key=56",
            "erspan_dir=flow, erspan_hwid=flow, erspan_idx=flow, erspan_ver=flow, key=56, remote_ip=flow",
        ),
        (
            "erspan",
            "remote_ip=1.1.2.92 erspan_ver=2 erspan_dir=1 erspan_hwid=3f",
            "erspan_dir=1, erspan_hwid=0x3f, erspan_ver=2, remote_ip=1.1.2.92",
        ),
        (
            "srv6",
            "remote_ip=flow srv6_segs=2001::1,2001::2",
            "remote_ip=flow, srv6_segs=2001::1,2001::2",
        ),
    ] {
        assert_eq!(shown(ty, options), want, "{ty} {options}");
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    for (ty, options, want) in [
        ("gre", "", "p1: gre type requires valid 'remote_ip' argument"),
        (
            "gre",
            "remote_ip=0.0.0.0",
            "p1: gre type requires valid 'remote_ip' argument",
        ),
        (
            "vxlan",
            "remote_ip=nowhere",
            "p1: bad vxlan 'remote_ip'\np1: vxlan type requires valid 'remote_ip' argument",
        ),
        (
            "vxlan",
            "remote_ip=224.0.0.1",
            "p1: multicast remote_ip=224.0.0.1 not allowed",
        ),
        (
            "vxlan",
            "remote_ip=ff02::1",
            "p1: multicast remote_ip=ff02::1 not allowed",
        ),
        (
            "gre",
            "remote_ip=1.1.1.1 local_ip=flow",
            "p1: gre type requires 'remote_ip=flow' with 'local_ip=flow'",
        ),
        (
            "gre",
            "remote_ip=1.1.1.1 local_ip=::1",
            "p1: 'remote_ip' and 'local_ip' has to be of the same address family",
        ),
        (
            "vxlan",
            "remote_ip=1.1.1.1 packet_type=legacy_l3",
            "p1: legacy_l3 configured on VXLAN (without GPE) tunnel that cannot carry L3 traffic",
        ),
        (
            "gtpu",
            "remote_ip=1.1.1.1 packet_type=legacy_l2",
            "p1: legacy_l2 configured on gtpu tunnel that cannot carry L2 traffic",
        ),
        (
            "gre",
            "remote_ip=1.1.1.1 packet_type=l4",
            "p1: unknown packet_type 'l4'",
        ),
        (
            "erspan",
            "remote_ip=1.1.1.1 erspan_ver=3",
            "p1: invalid erspan version: 3",
        ),
        (
            "erspan",
            "remote_ip=1.1.1.1 erspan_idx=100000",
            "p1: invalid erspan index: 100000",
        ),
        (
            "erspan",
            "remote_ip=1.1.1.1 erspan_dir=2",
            "p1: invalid erspan direction: 2",
        ),
        (
            "erspan",
            "remote_ip=1.1.1.1 erspan_hwid=-1",
            "p1: invalid erspan hardware ID: -1",
        ),
        (
            "srv6",
            "remote_ip=2001::9 srv6_segs=2001::1",
            "p1: remote_ip does not match the first srv6 segment",
        ),
        (
            "srv6",
            "remote_ip=2001::1 srv6_segs=x",
            "p1: bad srv6 'srv6_segs'",
        ),
    ] {
        assert_eq!(refused(ty, options), want, "{ty} {options}");
    }
}

#[test]
fn tolerated_faults_are_reported() {
    let (config, lines) = read(
        "geneve",
        "remote_ip=1.1.1.1 tos=3 tos2=1 local_ip=x seq=true psk=secret",
    )
    .unwrap();
    let want = [
        "p1: bad geneve 'local_ip'",
        "p1: unknown geneve argument 'seq'",
        "p1: invalid TOS 3",
        "p1: unknown geneve argument 'tos2'",
    ];
    assert_eq!(lines, want);
    assert_eq!((config.tos, config.local), (Some(0), Local::Any));
    let (_, lines) = read("vxlan", "remote_ip=1.1.1.1 exts=gbp,foo").unwrap();
    assert_eq!(lines, ["p1: unknown extension 'foo'"]);
    // Numbers are cut off as in Open vSwitch, so a too large key may be another tenant's.
    let odd = "remote_ip=1.1.1.1 key=16777217 in_key=x out_key=flow ttl=300 dst_port=70000 egress_pkt_mark=4294967296";
    let (config, lines) = read("geneve", odd).unwrap();
    let want = [
        "p1: dst_port=70000 is no number from 0 to 65535",
        "p1: egress_pkt_mark=4294967296 is no number from 0 to 4294967295",
        "p1: in_key=x is no number from 0 to 16777215",
        "p1: key=16777217 is no number from 0 to 16777215",
        "p1: ttl=300 is no number from 0 to 255",
    ];
    assert_eq!(lines, want);
    assert_eq!((config.ttl, config.dst_port), (Some(44), 4464));
    let fine = [
        ("gre", "key=0xffffffff"),
        ("stt", "key=0xffffffffffffffff"),
        ("erspan", "key=1023 erspan_ver=1"),
        ("vxlan", "key=0 ttl=255 dst_port=0xx"),
    ];
    let warnings: usize = fine
        .map(|(ty, o)| read(ty, &format!("remote_ip=1.1.1.1 {o}")).unwrap().1.len())
        .iter()
        .sum();
    assert_eq!(warnings, 1, "of the port alone");
}

#[test]
fn numbers_are_read_as_c_reads_them() {
    use super::number::{atoi, strtol, strtoull};
    assert_eq!((atoi(" 12x"), atoi("x"), atoi("-3")), (12, 0, -3));
    assert_eq!(strtol("0x10", 0), (16, true));
    assert_eq!(strtol("010", 0), (8, true));
    assert_eq!(strtol("1f", 16), (31, true));
    assert_eq!(strtol("0x", 16), (0, false));
    assert_eq!(strtoull("-1", 0), u64::MAX);
    assert_eq!(strtoull(&"9".repeat(60), 0), u64::MAX);
}

#[test]
fn some_have_no_headers_to_write() {
    let writes = |ty, options: &str| {
        let (config, _) = read(ty, &format!("remote_ip=1.1.1.1 {options}")).unwrap();
        config.writes_headers()
    };
    assert!(!writes("lisp", "") && !writes("bareudp", "") && !writes("erspan", ""));
    assert!(writes("erspan", "erspan_ver=1") && writes("ip6erspan", "erspan_ver=flow") && writes("gre", ""));
}

#[test]
fn tunnels_of_one_type_and_port_share_a_datapath_port() {
    assert_eq!(
        read("geneve", "remote_ip=1.1.1.1").unwrap().0.port_name(),
        "genev_sys_6081"
    );
    assert_eq!(
        read("vxlan", "remote_ip=1.1.1.1 dst_port=8472")
            .unwrap()
            .0
            .port_name(),
        "vxlan_sys_8472"
    );
    assert_eq!(
        read("gre", "remote_ip=1.1.1.1 dst_port=9").unwrap().0.port_name(),
        "gre_sys"
    );
    let shown = show_datapath_port(TunnelType::Vxlan, 8472);
    assert_eq!(
        shown.into_iter().map(|(k, v)| k + &v).collect::<Vec<_>>(),
        ["dst_port8472", "packet_typeptap"]
    );
}

#[test]
fn options_that_request_encryption() {
    for key in ["psk", "remote_name", "local_cert", "ipsec_encapsulation"] {
        let options = [
            ("remote_ip".to_owned(), "1.1.1.1".to_owned()),
            (key.to_owned(), "x".to_owned()),
        ];
        let options = options.into_iter().collect();
        assert_eq!(super::encryption_option(&options), Some(key));
        assert_eq!(parse("p1", TunnelType::Geneve, &options).unwrap().1, [""; 0]);
    }
    assert_eq!(
        super::encryption_option(&[("key".to_owned(), "7".to_owned())].into()),
        None
    );
}
