//! Flows that exercise every match and action that the client can write.

use heddle_openflow::Version;

/// Flows, each with the first and last version that has it.
pub(crate) const FLOWS: &[(&str, Version, Version)] = &[
    ("actions=drop", Version::V10, Version::V15),
    ("actions=output:1", Version::V10, Version::V15),
    ("actions=NORMAL", Version::V10, Version::V15),
    (
        "in_port=1,actions=IN_PORT,LOCAL,ALL,FLOOD,controller:77",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=controller(reason=no_match,max_len=50,id=7)",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=controller(userdata=01.02.03.04.05,pause)",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=controller(userdata=01.02,meter_id=5)",
        Version::V10,
        Version::V15,
    ),
    (
        "priority=7,tcp,nw_src=10.0.0.0/8,tp_dst=80,actions=mod_nw_dst:1.2.3.4,mod_tp_dst:81,output:2",
        Version::V10,
        Version::V15,
    ),
    (
        "udp,actions=mod_tp_src:9,mod_nw_tos:32,mod_nw_src:9.9.9.9,3",
        Version::V10,
        Version::V15,
    ),
    ("ip,actions=dec_ttl,2", Version::V10, Version::V15),
    ("ip,actions=dec_ttl(1,2,3),2", Version::V10, Version::V15),
    (
        "ip,actions=mod_nw_ttl:5,mod_nw_ecn:2,2",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=mod_vlan_vid:5,mod_vlan_pcp:3,2",
        Version::V10,
        Version::V15,
    ),
    ("dl_vlan=9,actions=strip_vlan,2", Version::V10, Version::V15),
    (
        "actions=push_vlan:0x8100,set_field:4101->vlan_vid,output:2",
        Version::V11,
        Version::V15,
    ),
    (
        "dl_vlan=4,dl_vlan_pcp=6,actions=mod_dl_src:00:11:22:33:44:55,mod_dl_dst:66:55:44:33:22:11,1",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=load:5->NXM_NX_REG0[],load:0x3->NXM_NX_REG1[3..10],2",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=move:NXM_NX_REG0[0..15]->NXM_NX_REG1[16..31],2",
        Version::V10,
        Version::V15,
    ),
    (
        "ip,actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG4[],2",
        Version::V10,
        Version::V15,
    ),
    ("actions=set_field:0x12345678->reg3,2", Version::V10, Version::V15),
    ("actions=set_field:0x12/0xff->reg3,2", Version::V10, Version::V15),
    (
        "actions=set_field:0x123456789abcdef0->xreg2,2",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=set_field:0x11223344556677889900aabbccddeeff->xxreg1,2",
        Version::V10,
        Version::V15,
    ),
    (
        "tcp6,actions=set_field:2001:db8::1->ipv6_src,set_field:99->tcp_src,2",
        Version::V10,
        Version::V15,
    ),
    (
        "ip,actions=set_field:10.1.2.3->ip_dst,set_field:11:22:33:44:55:66->eth_dst,set_field:0x77->tun_id,1",
        Version::V10,
        Version::V15,
    ),
    (
        "arp,arp_op=1,actions=set_field:2->arp_op,set_field:1.1.1.1->arp_spa,IN_PORT",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=push:NXM_NX_REG0[0..7],pop:NXM_NX_REG1[8..15],push:NXM_NX_REG2[]",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=resubmit(,5),resubmit(3,),resubmit:4,resubmit(2,9)",
        Version::V10,
        Version::V15,
    ),
    (
        "ip,ct_state=+trk+est,actions=resubmit(,6,ct)",
        Version::V10,
        Version::V15,
    ),
    ("actions=set_tunnel:0x1234,1", Version::V10, Version::V15),
    ("actions=set_tunnel:0x123456789a,1", Version::V10, Version::V15),
    ("actions=enqueue:3:7", Version::V10, Version::V10),
    (
        "actions=set_queue:7,output:3,pop_queue",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=clone(set_field:1->reg0,output:2),3",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=clone(clone(drop)),note:01.02.03.04.05.06.07,exit",
        Version::V10,
        Version::V15,
    ),
    ("actions=output:NXM_NX_REG5[0..15]", Version::V10, Version::V15),
    ("actions=output(port=3,max_len=100)", Version::V10, Version::V15),
    ("actions=group:9", Version::V10, Version::V15),
    (
        "actions=push_mpls:0x8847,set_mpls_label(77),set_mpls_tc(3),set_mpls_ttl(9),2",
        Version::V10,
        Version::V15,
    ),
    (
        "mpls,mpls_label=3,actions=dec_mpls_ttl,pop_mpls:0x0800,2",
        Version::V11,
        Version::V15,
    ),
    ("conj_id=5,actions=2", Version::V10, Version::V15),
    (
        "ip,actions=conjunction(5,1/2),conjunction(7,2/3)",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=multipath(symmetric_l4,1024,hrw,64,0,NXM_NX_REG0[0..15])",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=bundle(eth_src,0,active_backup,ofport,members:1,2,3)",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=bundle_load(symmetric_l3,7,hrw,ofport,NXM_NX_REG0[],members:4,8)",
        Version::V10,
        Version::V15,
    ),
    (
        "tcp,actions=fin_timeout(idle_timeout=5,hard_timeout=9),1",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=sample(probability=12,collector_set_id=2,obs_domain_id=3,obs_point_id=4)",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=sample(probability=12,collector_set_id=2,obs_domain_id=3,obs_point_id=4,sampling_port=9,egress)",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=check_pkt_larger(1500)->NXM_NX_REG0[3],2",
        Version::V10,
        Version::V15,
    ),
    (
        "ip,actions=ct(commit,zone=5,exec(load:1->NXM_NX_CT_MARK[])),2",
        Version::V10,
        Version::V14,
    ),
    (
        "ip,actions=ct(commit,force,zone=NXM_NX_REG0[0..15],exec(set_field:0x5->ct_mark,set_field:0x1/0x1->ct_label)),2",
        Version::V10,
        Version::V15,
    ),
    (
        "tcp,actions=ct(table=4,alg=ftp,nat),ct_clear",
        Version::V10,
        Version::V15,
    ),
    (
        "ip,actions=ct(commit,nat(src=10.0.0.1-10.0.0.9:100-200,random)),1",
        Version::V10,
        Version::V15,
    ),
    (
        "ipv6,actions=ct(commit,nat(dst=[fe80::1]:80)),ct(nat),1",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=learn(table=2,idle_timeout=10,NXM_OF_VLAN_TCI[0..11],NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=learn(table=3,priority=9,cookie=0x55,limit=5,delete_learned,eth_type=0x800,ip_src=1.2.3.4,load:0x7->NXM_NX_REG0[3..8],load:NXM_NX_REG1[]->NXM_NX_REG2[]),2",
        Version::V10,
        Version::V15,
    ),
    (
        "actions=write_metadata:0x1234/0xffff,goto_table:4",
        Version::V11,
        Version::V15,
    ),
    ("actions=write_metadata:0x77", Version::V10, Version::V15),
    (
        "actions=meter:5,output:1,clear_actions,write_actions(output:3,set_field:1->reg0),goto_table:7",
        Version::V13,
        Version::V14,
    ),
    ("actions=meter:5,output:1", Version::V15, Version::V15),
    ("actions=encap(ethernet),decap()", Version::V13, Version::V15),
    (
        "table=3,cookie=0x99,idle_timeout=60,hard_timeout=90,send_flow_rem,check_overlap,actions=1",
        Version::V10,
        Version::V15,
    ),
    (
        "importance=44,no_packet_counts,no_byte_counts,reset_counts,actions=1",
        Version::V14,
        Version::V15,
    ),
    (
        "icmp6,icmp_type=135,nd_target=fe80::1,nd_sll=00:00:00:00:00:01,actions=1",
        Version::V10,
        Version::V15,
    ),
    (
        "tcp,tcp_flags=+syn-ack,reg0=1/0xff,metadata=5,pkt_mark=7,ct_mark=3,ct_zone=2,tun_id=9,actions=1",
        Version::V10,
        Version::V15,
    ),
    ("vlan_tci=0x1000/0x1000,actions=1", Version::V10, Version::V15),
    ("xreg1=0x100000002,xxreg3=5,actions=1", Version::V10, Version::V15),
    (
        "ip,nw_frag=later,nw_ecn=1,nw_ttl=64,nw_tos=16,actions=1",
        Version::V10,
        Version::V15,
    ),
    ("packet_type=(1,0x800),actions=1", Version::V15, Version::V15),
];
