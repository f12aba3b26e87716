//! Groups and meters over the wire in every version, as the real `ovs-ofctl` prints and sends them.

mod common;

use common::{have_ofctl, print, with_switch};
use heddle_flow::FieldId;
use heddle_openflow::message::{
    BUCKET_ALL, Band, BandKind, Bucket, GROUP_ANY, GroupCommand, GroupDesc, GroupMod, GroupStats, GroupType,
    Message, MeterCommand, MeterConfig, MeterFlags, MeterMod, MeterStats, MpReply, Selection,
    SelectionMethod,
};
use heddle_openflow::text::parse_actions;
use heddle_openflow::{DecodeContext, Port, Version, decode, encode};

fn bucket(id: u32, weight: u16, actions: &str) -> Bucket {
    Bucket {
        id,
        weight,
        watch_port: Port::NONE,
        watch_group: GROUP_ANY,
        actions: parse_actions(actions, None).expect("actions"),
    }
}

fn by_hash() -> Selection {
    let all = |f: FieldId| (f, f.full_mask());
    Selection {
        method: SelectionMethod::Hash,
        param: 77,
        fields: vec![all(FieldId::Ipv4Src), all(FieldId::TcpDst)],
    }
}

fn printed(version: Version, m: &Message) -> String {
    let parts = encode(version, 7, m).expect("encodes");
    assert_eq!(parts.len(), 1);
    print(&parts[0])
}

fn reply(body: MpReply) -> Message {
    Message::MultipartReply { more: false, body }
}

#[test]
fn groups_print_as_they_are() {
    if !have_ofctl() {
        return;
    }
    let mut second = bucket(1, 1, "set_field:1->reg0,resubmit(,7)");
    second.watch_port = Port(2);
    second.watch_group = 5;
    let desc = GroupDesc {
        group_id: 1234,
        ty: GroupType::Select,
        buckets: vec![bucket(0, 100, "output:10"), second],
        selection: Some(by_hash()),
    };
    for version in Version::ALL {
        let text = printed(version, &reply(MpReply::GroupDesc(vec![desc.clone()])));
        let numbered = matches!(version, Version::V10 | Version::V15);
        let (method, ids) = if numbered {
            (
                ",selection_method=hash,selection_method_param=77,fields(ip_src,tcp_dst)",
                ["bucket_id:0,", "bucket_id:1,"],
            )
        } else {
            ("", ["", ""])
        };
        // Registers have no old-style set-field before 1.2, and print as loads.
        let set = if version >= Version::V12 {
            "set_field:0x1->reg0"
        } else {
            "load:0x1->NXM_NX_REG0[]"
        };
        let want = format!(
            "group_id=1234,type=select{method},bucket={}weight:100,actions=output:10,bucket={}watch_port:2,\
             watch_group:5,actions={set},resubmit(,7)\n",
            ids[0], ids[1]
        );
        let text = text.replace("load:0x1->NXM_NX_REG0[]", set);
        assert!(text.contains(&want), "{version:?}: {text}, want {want}");

        let stats = GroupStats {
            group_id: 1234,
            ref_count: 3,
            packet_count: 10,
            byte_count: 600,
            duration_sec: 5,
            duration_nsec: 1_000_000,
            buckets: vec![(4, 240), (6, 360)],
        };
        let text = printed(version, &reply(MpReply::GroupStats(vec![stats])));
        let age = if matches!(version, Version::V11 | Version::V12) {
            ""
        } else {
            "duration=5.001s,"
        };
        let want = format!(
            "group_id=1234,{age}ref_count=3,packet_count=10,byte_count=600,bucket0:packet_count=4,byte_count=240,\
             bucket1:packet_count=6,byte_count=360"
        );
        assert!(text.contains(&want), "{version:?}: {text}");
    }
}

#[test]
fn meters_print_as_they_are() {
    if !have_ofctl() {
        return;
    }
    let band = |kind| Band {
        kind,
        rate: 1000,
        burst_size: 50,
    };
    let config = MeterConfig {
        meter_id: 7,
        flags: MeterFlags::KBPS | MeterFlags::BURST | MeterFlags::STATS,
        bands: vec![band(BandKind::Drop), band(BandKind::DscpRemark(2))],
    };
    let stats = MeterStats {
        meter_id: 7,
        flow_count: 2,
        packet_in_count: 9,
        byte_in_count: 90,
        duration_sec: 3,
        duration_nsec: 0,
        bands: vec![(1, 10), (2, 20)],
    };
    for version in [Version::V13, Version::V14, Version::V15] {
        let text = printed(version, &reply(MpReply::MeterConfig(vec![config.clone()])));
        let want = "meter=7 kbps burst stats bands=\ntype=drop rate=1000 burst_size=50\ntype=dscp_remark rate=1000 \
                    burst_size=50 prec_level=2\n";
        assert!(text.contains(want), "{version:?}: {text}");
        let text = printed(version, &reply(MpReply::MeterStats(vec![stats.clone()])));
        let want = "meter:7 flow_count:2 packet_in_count:9 byte_in_count:90 duration:3s bands:\n\
                    0: packet_count:1 byte_count:10\n1: packet_count:2 byte_count:20\n";
        assert!(text.contains(want), "{version:?}: {text}");
    }
}

/// The message that the client sends for a command.
fn sent(version: Version, args: &[&str], rest: &str) -> Message {
    let (said, wires) = with_switch(version, args, &[rest], |_| None);
    let messages = wires
        .iter()
        .filter_map(|w| Some(decode(w, &DecodeContext::default()).ok()?.1));
    let mut wanted = messages.filter(|m| matches!(m, Message::GroupMod(_) | Message::MeterMod(_)));
    wanted
        .next()
        .unwrap_or_else(|| panic!("{args:?} {rest}: nothing sent: {said}"))
}

#[test]
fn the_clients_groups_are_read() {
    if !have_ofctl() {
        return;
    }
    let text = "group_id=1234,type=select,selection_method=hash,selection_method_param=77,fields(ip_src,tcp_dst),\
                bucket=bucket_id=0,weight=100,actions=output:10";
    let m = sent(Version::V15, &["add-group"], text);
    let want = GroupMod {
        command: GroupCommand::Add,
        ty: GroupType::Select,
        group_id: 1234,
        command_bucket_id: BUCKET_ALL,
        buckets: vec![bucket(0, 100, "output:10")],
        selection: Some(by_hash()),
    };
    assert_eq!(m, Message::GroupMod(Box::new(want)));
    for version in [Version::V11, Version::V12, Version::V13, Version::V14] {
        let m = sent(
            version,
            &["--may-create", "mod-group"],
            "group_id=3,type=all,bucket=output:1,bucket=output:2",
        );
        let want = GroupMod {
            command: GroupCommand::AddOrModify,
            ty: GroupType::All,
            group_id: 3,
            command_bucket_id: BUCKET_ALL,
            buckets: vec![bucket(0, 0, "output:1"), bucket(1, 0, "output:2")],
            selection: None,
        };
        assert_eq!(m, Message::GroupMod(Box::new(want)), "{version:?}");
    }
    let m = sent(
        Version::V13,
        &["add-meter"],
        "meter=3,pktps,burst,band=type=drop,rate=100,burst_size=5",
    );
    let want = MeterMod {
        command: MeterCommand::Add,
        config: MeterConfig {
            meter_id: 3,
            flags: MeterFlags::PKTPS | MeterFlags::BURST,
            bands: vec![Band {
                kind: BandKind::Drop,
                rate: 100,
                burst_size: 5,
            }],
        },
    };
    assert_eq!(m, Message::MeterMod(want));
}
