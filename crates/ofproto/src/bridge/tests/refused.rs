//! Tests of odd requests: the bridge refuses those that Open vSwitch's daemon refuses, and accepts those that
//! it overlooks.

use super::{flow_mod, flows, lab, nw_dst, port, secure};
use heddle_openflow::message::{
    Band, BandKind, Bucket, FlowModCommand, GROUP_ALL, GROUP_ANY, GroupCommand, GroupMod, GroupType,
    MeterCommand, MeterConfig, MeterFlags, MeterMod, MpReply, MpRequest,
};
use heddle_openflow::{ErrorKind, Port, Version};

#[test]
fn meters_have_a_unit_and_bands_with_rates() {
    let l = lab(secure());
    let band = |rate| Band {
        kind: BandKind::Drop,
        rate,
        burst_size: 0,
    };
    let add = |flags, rates: &[u32]| {
        let mm = MeterMod {
            command: MeterCommand::Add,
            config: MeterConfig {
                meter_id: 1,
                flags,
                bands: rates.iter().map(|r| band(*r)).collect(),
            },
        };
        l.bridge.meter_mod_by(&mm, None)
    };
    let kbps = MeterFlags::KBPS;
    assert_eq!(
        add(MeterFlags::BURST, &[1]),
        Err(ErrorKind::MeterModFailedBadFlags)
    );
    assert_eq!(add(kbps, &[]), Err(ErrorKind::MeterModFailedOutOfBands));
    assert_eq!(add(kbps, &[1; 9]), Err(ErrorKind::MeterModFailedOutOfBands));
    assert_eq!(add(kbps, &[1, 0]), Err(ErrorKind::MeterModFailedBadRate));
    assert_eq!(add(kbps, &[u32::MAX]), Ok(()));
}

#[test]
fn any_is_no_group_and_all_is_no_port() {
    let l = lab(secure());
    let bucket = Bucket {
        id: 0,
        weight: 0,
        watch_port: Port::NONE,
        watch_group: GROUP_ANY,
        actions: Vec::new(),
    };
    let group = GroupMod {
        command: GroupCommand::Add,
        ty: GroupType::All,
        group_id: 1,
        command_bucket_id: 0,
        buckets: vec![bucket],
        selection: None,
    };
    l.bridge.group_mod(&group).unwrap();
    l.bridge.set_ports(Vec::new(), vec![port(1, "p1")]);
    let ask = |r| l.bridge.multipart(Version::V15, &r).unwrap();
    let groups = |id| match (ask(MpRequest::GroupStats(id)), ask(MpRequest::GroupDesc(id))) {
        (MpReply::GroupStats(s), MpReply::GroupDesc(d)) => (s.len(), d.len()),
        other => panic!("groups, not {other:?}"),
    };
    assert_eq!(
        [GROUP_ALL, 1, GROUP_ANY, 2].map(groups),
        [(1, 1), (1, 1), (0, 0), (0, 0)]
    );
    let ports = |p| match ask(MpRequest::Port(p)) {
        MpReply::Port(all) => all.len(),
        other => panic!("ports, not {other:?}"),
    };
    assert_eq!([Port::NONE, Port(1), Port::ALL].map(ports), [1, 1, 0]);
}

#[test]
fn only_commands_that_could_use_a_buffer_are_refused() {
    let l = lab(secure());
    let mut fm = flow_mod(FlowModCommand::Add, nw_dst(1, 32), 1, 2);
    l.add(&fm).unwrap();
    fm.buffer_id = Some(7);
    for (command, left) in [
        (FlowModCommand::Add, 1),
        (FlowModCommand::ModifyStrict, 1),
        (FlowModCommand::DeleteStrict, 0),
    ] {
        fm.command = command;
        let refused = (left == 1).then_some(ErrorKind::BadRequestBufferUnknown);
        assert_eq!(l.add(&fm).err(), refused, "{command:?}");
        assert_eq!(flows(&l.bridge).len(), left);
    }
}
