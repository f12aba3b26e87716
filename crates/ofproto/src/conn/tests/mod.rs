mod fuzz;

use super::session::Kind;
use super::{Controllers, Manager, stream};
use crate::Ofproto;
use crate::bridge::{BridgeConfig, Event, FailMode};
use crate::packet_in::PacketInEvent;
use heddle_flow::Match;
use heddle_openflow::message::{
    Continuation, FlowMod, FlowModCommand, Hello, PacketIn, PacketInFormat, PacketInReason, Role,
    RoleRequest, SwitchConfig,
};
use heddle_openflow::{
    DecodeContext, ErrorKind, InstructionSet, Message, Version, decode, encode, frame_len,
};
use heddle_sync::Clock;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;

struct Client {
    socket: DuplexStream,
    buffer: Vec<u8>,
}

fn manager(versions: &[Version]) -> (Arc<Ofproto>, Arc<Manager>) {
    let of = Ofproto::new(Arc::new(Clock::default()));
    let config = BridgeConfig {
        fail_mode: FailMode::Secure,
        versions: versions.to_vec(),
        ..BridgeConfig::default()
    };
    let bridge = of.add_bridge("br0", config);
    (of, Manager::new(bridge, Arc::default()))
}

impl Client {
    fn connect(m: &Arc<Manager>, kind: Kind) -> Self {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        tokio::spawn(stream::serve(
            m.clone(),
            kind,
            "test".into(),
            theirs,
            None,
            None,
            None,
        ));
        Self {
            socket: ours,
            buffer: Vec::new(),
        }
    }
    async fn greeted(m: &Arc<Manager>, kind: Kind, version: Version) -> Self {
        let mut c = Self::connect(m, kind);
        c.send(
            version,
            1,
            &Message::Hello(Hello {
                bitmap: Some(version.bit()),
            }),
        )
        .await;
        assert!(matches!(c.receive().await, Some(Message::Hello(_))));
        c
    }
    async fn raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.expect("the switch reads");
    }
    async fn send(&mut self, version: Version, xid: u32, m: &Message) {
        for part in encode(version, xid, m).expect("encodes") {
            self.raw(&part).await;
        }
    }
    /// The next message; `None` when the connection was closed.
    async fn receive(&mut self) -> Option<Message> {
        loop {
            if let Ok(Some(n)) = frame_len(&self.buffer)
                && n <= self.buffer.len()
            {
                let rest = self.buffer.split_off(n);
                let whole = std::mem::replace(&mut self.buffer, rest);
                return Some(
                    decode(&whole, &DecodeContext::default())
                        .expect("the switch speaks well")
                        .1,
                );
            }
            let got = timeout(Duration::from_secs(30), self.socket.read_buf(&mut self.buffer)).await;
            if got.expect("in time").expect("readable") == 0 {
                return None;
            }
        }
    }
    /// Eight bytes as they come.
    async fn raw_reply(&mut self) -> [u8; 8] {
        assert!(self.buffer.is_empty());
        let mut bytes = [0; 8];
        let got = timeout(Duration::from_secs(30), self.socket.read_exact(&mut bytes)).await;
        got.expect("in time").expect("readable");
        bytes
    }
    async fn error(&mut self) -> ErrorKind {
        match self.receive().await {
            Some(Message::Error(e)) => e.kind.expect("a known error"),
            other => panic!("an error, not {other:?}"),
        }
    }
    /// No message was sent before the reply to a barrier.
    async fn quiet(&mut self, version: Version) {
        self.send(version, 99, &Message::BarrierRequest).await;
        assert_eq!(self.receive().await, Some(Message::BarrierReply));
    }
}

fn packet_in(controller_id: u16, reason: PacketInReason) -> Event {
    Event::PacketIn(Arc::new(PacketInEvent {
        message: PacketIn {
            format: PacketInFormat::Standard,
            data: vec![7; 200],
            total_len: 200,
            buffer_id: None,
            reason,
            table_id: 0,
            cookie: 0,
            metadata: Match::any(),
            userdata: Vec::new(),
            continuation: Vec::new(),
        },
        controller_id,
        continuation: None,
    }))
}

#[tokio::test]
async fn versions_are_negotiated() {
    let (_of, m) = manager(&Version::ALL);
    for v in Version::ALL {
        let mut c = Client::greeted(&m, Kind::Service, v).await;
        c.quiet(v).await;
    }
    // Without a bitmap, a version above all of ours stands for everything below.
    let mut c = Client::connect(&m, Kind::Service);
    c.raw(&[9, 0, 0, 8, 0, 0, 0, 1]).await;
    assert!(matches!(c.receive().await, Some(Message::Hello(_))));
    c.quiet(Version::V15).await;
}

#[tokio::test]
async fn no_common_version_is_an_error_and_ends_the_connection() {
    let (_of, m) = manager(&[Version::V13]);
    let mut c = Client::connect(&m, Kind::Service);
    c.send(
        Version::V10,
        1,
        &Message::Hello(Hello {
            bitmap: Some(Version::V10.bit()),
        }),
    )
    .await;
    assert!(matches!(c.receive().await, Some(Message::Hello(_))));
    assert_eq!(c.error().await, ErrorKind::HelloFailedIncompatible);
    assert_eq!(c.receive().await, None);
}

#[tokio::test]
async fn malformed_messages_get_errors_and_the_connection_lives() {
    let (_of, m) = manager(&Version::ALL);
    let mut c = Client::greeted(&m, Kind::Service, Version::V13).await;
    c.raw(&[4, 77, 0, 8, 0, 0, 0, 5]).await;
    assert_eq!(c.error().await, ErrorKind::BadRequestBadType);
    c.raw(&[4, 14, 0, 12, 0, 0, 0, 6, 0, 0, 0, 0]).await;
    assert_eq!(c.error().await, ErrorKind::BadRequestBadLen);
    c.raw(&[1, 5, 0, 8, 0, 0, 0, 7]).await;
    assert_eq!(c.error().await, ErrorKind::BadRequestBadVersion);
    c.quiet(Version::V13).await;
    // A transaction id of zero is one like any other.
    c.raw(&[4, 2, 0, 8, 0, 0, 0, 0]).await;
    assert_eq!(c.raw_reply().await, [4, 3, 0, 8, 0, 0, 0, 0]);
    c.send(Version::V13, 8, &Message::EchoRequest(vec![1, 2, 3]))
        .await;
    assert_eq!(c.receive().await, Some(Message::EchoReply(vec![1, 2, 3])));
    c.raw(&[4, 2, 0, 7, 0, 0, 0, 9]).await;
    assert_eq!(c.receive().await, None, "framing is lost");
}

#[tokio::test]
async fn messages_that_arrive_in_pieces_or_together() {
    let (_of, m) = manager(&Version::ALL);
    let mut c = Client::greeted(&m, Kind::Service, Version::V13).await;
    let mut two = encode(Version::V13, 5, &Message::EchoRequest(vec![5]))
        .expect("encodes")
        .concat();
    two.extend(
        encode(Version::V13, 6, &Message::BarrierRequest)
            .expect("encodes")
            .concat(),
    );
    for b in two {
        c.raw(&[b]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(c.receive().await, Some(Message::EchoReply(vec![5])));
    assert_eq!(c.receive().await, Some(Message::BarrierReply));
}

#[tokio::test]
async fn roles_demote_and_old_generations_are_stale() {
    let (_of, m) = manager(&Version::ALL);
    let v = Version::V14;
    let mut a = Client::greeted(&m, Kind::Controller, v).await;
    let mut b = Client::greeted(&m, Kind::Controller, v).await;
    let ask = |role, id| {
        Message::RoleRequest(RoleRequest {
            role,
            generation_id: Some(id),
        })
    };
    a.send(v, 2, &ask(Role::Primary, 5)).await;
    assert!(matches!(a.receive().await, Some(Message::RoleReply(r)) if r.role == Role::Primary));
    b.send(v, 2, &ask(Role::Primary, 4)).await;
    assert_eq!(b.error().await, ErrorKind::RoleRequestFailedStale);
    b.send(v, 3, &ask(Role::Primary, 6)).await;
    assert!(matches!(b.receive().await, Some(Message::RoleReply(r)) if r.role == Role::Primary));
    assert!(matches!(a.receive().await, Some(Message::RoleStatus(s)) if s.role == Role::Secondary));
    // A request that changes no role gets the last generation.
    a.send(v, 3, &ask(Role::NoChange, 1)).await;
    let told = RoleRequest {
        role: Role::Secondary,
        generation_id: Some(6),
    };
    assert_eq!(a.receive().await, Some(Message::RoleReply(told)));
    let fm = FlowMod::new(FlowModCommand::Delete, Match::any(), 0, InstructionSet::default());
    a.send(v, 4, &Message::FlowMod(Box::new(fm))).await;
    assert_eq!(a.error().await, ErrorKind::BadRequestIsSecondary);
}

#[tokio::test]
async fn packet_ins_go_to_those_who_want_them() {
    let (_of, m) = manager(&Version::ALL);
    let v = Version::V13;
    let mut controller = Client::greeted(&m, Kind::Controller, v).await;
    let mut service = Client::greeted(&m, Kind::Service, v).await;
    controller.quiet(v).await;
    service.quiet(v).await;
    m.bridge().emit(&[packet_in(0, PacketInReason::Action)]);
    match controller.receive().await {
        // The packet is whole, whatever length a controller wants of buffered packets: there are none.
        Some(Message::PacketIn(p)) => assert_eq!((p.data.len(), p.total_len), (200, 200)),
        other => panic!("a packet-in, not {other:?}"),
    }
    service.quiet(v).await;
    let config = SwitchConfig {
        miss_send_len: 0xffff,
        ..SwitchConfig::default()
    };
    service.send(v, 3, &Message::SetConfig(config)).await;
    service.quiet(v).await;
    m.bridge().emit(&[packet_in(0, PacketInReason::Action)]);
    assert!(matches!(service.receive().await, Some(Message::PacketIn(p)) if p.data.len() == 200));
    // Another controller's packets, and reasons that the peer did not request, do not come.
    m.bridge().emit(&[
        packet_in(3, PacketInReason::Action),
        packet_in(0, PacketInReason::InvalidTtl),
    ]);
    service.quiet(v).await;
}

#[tokio::test]
async fn invalid_ttls_come_on_request_before_1_3() {
    let (_of, m) = manager(&Version::ALL);
    let v = Version::V12;
    let mut c = Client::greeted(&m, Kind::Controller, v).await;
    let on = heddle_openflow::message::ConfigFlags::INVALID_TTL_TO_CONTROLLER;
    for flags in [on, on - on] {
        let config = SwitchConfig {
            flags,
            miss_send_len: 0xffff,
        };
        c.send(v, 3, &Message::SetConfig(config)).await;
        c.send(v, 4, &Message::GetConfigRequest).await;
        assert_eq!(c.receive().await, Some(Message::GetConfigReply(config)));
        m.bridge().emit(&[packet_in(0, PacketInReason::InvalidTtl)]);
        if flags == on {
            assert!(matches!(c.receive().await, Some(Message::PacketIn(_))));
        }
        c.quiet(v).await;
    }
}

#[tokio::test]
async fn fragments_are_not_put_together() {
    use heddle_openflow::message::ConfigFlags as F;
    let (_of, m) = manager(&Version::ALL);
    let v = Version::V13;
    let mut c = Client::greeted(&m, Kind::Service, v).await;
    // The requested flags, and the flags in force then; both bits are "match fragments as they are".
    let normal = F::empty();
    for (asked, then) in [
        (F::FRAG_DROP, F::FRAG_DROP),
        (F::FRAG_REASM, F::FRAG_DROP),
        (F::FRAG_MASK, F::FRAG_MASK),
        (F::FRAG_REASM, F::FRAG_MASK),
        (normal, normal),
        (F::FRAG_REASM, normal),
    ] {
        let config = |flags| SwitchConfig {
            flags,
            ..SwitchConfig::default()
        };
        c.send(v, 3, &Message::SetConfig(config(asked))).await;
        c.send(v, 4, &Message::GetConfigRequest).await;
        assert_eq!(
            c.receive().await,
            Some(Message::GetConfigReply(config(then))),
            "{asked:?}"
        );
    }
}

#[tokio::test]
async fn a_continuation_is_taken_back_from_the_connection_that_has_it_only() {
    let (of, m) = manager(&Version::ALL);
    let other = Manager::new(of.add_bridge("br1", BridgeConfig::default()), Arc::default());
    let v = Version::V13;
    let mut clients = Vec::new();
    for manager in [&m, &other] {
        let mut c = Client::greeted(manager, Kind::Controller, v).await;
        c.send(v, 2, &Message::SetPacketInFormat(PacketInFormat::Nxt2))
            .await;
        c.quiet(v).await;
        let Event::PacketIn(event) = packet_in(0, PacketInReason::Action) else {
            unreachable!()
        };
        let mut event = (*event).clone();
        let mut bridge = [0; 16];
        bridge[8..].copy_from_slice(&manager.bridge().id.to_be_bytes());
        event.continuation = Some(Continuation {
            bridge,
            ..Continuation::default()
        });
        manager.bridge().emit(&[Event::PacketIn(Arc::new(event))]);
        let Some(Message::PacketIn(packet)) = c.receive().await else {
            panic!("no packet-in")
        };
        clients.push((c, packet));
    }
    let [(mine, packet), (theirs, foreign)] = &mut clients[..] else {
        unreachable!()
    };
    // Another controller's; its own with the other bridge's number; a changed byte.
    let mut moved = packet.clone();
    moved.continuation[12..20].copy_from_slice(&other.bridge().id.to_be_bytes());
    let mut changed = packet.clone();
    changed.continuation[4] ^= 1;
    for forged in [foreign.clone(), moved, changed] {
        mine.send(v, 3, &Message::Resume(forged)).await;
        assert_eq!(mine.error().await, ErrorKind::ResumeStale);
    }
    theirs.send(v, 3, &Message::Resume(packet.clone())).await;
    assert_eq!(theirs.error().await, ErrorKind::ResumeStale);
    mine.send(v, 4, &Message::Resume(packet.clone())).await;
    mine.quiet(v).await;
}

#[tokio::test]
async fn a_peer_that_does_not_read_loses_packet_ins_and_no_other_peer_waits() {
    let (_of, m) = manager(&Version::ALL);
    let v = Version::V13;
    let mut slow = Client::greeted(&m, Kind::Controller, v).await;
    slow.quiet(v).await;
    let many: Vec<Event> = (0..50_000)
        .map(|_| packet_in(0, PacketInReason::Action))
        .collect();
    m.bridge().emit(&many);
    let mut other = Client::greeted(&m, Kind::Service, v).await;
    other.quiet(v).await;
    slow.send(v, 9, &Message::BarrierRequest).await;
    let mut packets = 0;
    while !matches!(slow.receive().await, Some(Message::BarrierReply)) {
        packets += 1;
    }
    assert!(packets < 50_000, "some were dropped: {packets}");
}

/// A peer that requests much and reads it late gets all of it, and costs little memory meanwhile.
#[tokio::test]
async fn who_reads_late_gets_everything() {
    const N_REQUESTS: u32 = 4000;
    let (_of, m) = manager(&[Version::V13]);
    let mut c = Client::greeted(&m, Kind::Service, Version::V13).await;
    let echo = Message::EchoRequest(vec![7; 60_000]);
    let (mut reader, mut writer) = tokio::io::split(c.socket);
    let asking = tokio::spawn(async move {
        for xid in 0..N_REQUESTS {
            for part in encode(Version::V13, xid, &echo).expect("encodes") {
                writer.write_all(&part).await.expect("the switch is there");
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(
        !asking.is_finished(),
        "the switch has taken 240 MB of requests whose answers nobody reads"
    );
    let mut answered = 0;
    while answered < N_REQUESTS {
        let got = timeout(Duration::from_secs(30), reader.read_buf(&mut c.buffer)).await;
        assert_ne!(
            got.expect("in time").expect("readable"),
            0,
            "cut off after {answered}"
        );
        let mut at = 0;
        while let Ok(Some(n)) = frame_len(&c.buffer[at..])
            && n <= c.buffer.len() - at
        {
            assert_eq!(c.buffer[at + 1], 3, "an echo reply");
            answered += 1;
            at += n;
        }
        c.buffer.drain(..at);
    }
    asking.await.expect("asked");
}

/// A peer that does not read its events is disconnected, even if it sends no message.
#[tokio::test]
async fn who_does_not_read_events_is_cut_off() {
    let (_of, m) = manager(&[Version::V13]);
    let mut c = Client::greeted(&m, Kind::Controller, Version::V13).await;
    c.quiet(Version::V13).await;
    let m2 = m.clone();
    let told = tokio::task::spawn_blocking(move || {
        let gone = heddle_openflow::message::FlowRemoved {
            match_: Match::any(),
            priority: 1,
            cookie: 2,
            reason: heddle_openflow::message::FlowRemovedReason::Delete,
            table_id: Some(0),
            duration_sec: 0,
            duration_nsec: 0,
            idle_timeout: 0,
            hard_timeout: 0,
            packet_count: 0,
            byte_count: 0,
            nxm: false,
        };
        let gone = vec![Event::FlowRemoved(Arc::new(gone)); 10_000];
        for _ in 0..5 {
            m2.bridge().emit(&gone);
        }
    });
    told.await.expect("told");
    let end = async { while c.receive().await.is_some() {} };
    timeout(Duration::from_secs(30), end)
        .await
        .expect("the end comes by itself");
}

/// A peer that waits for a bridge does not delay a peer that needs nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_waits_for_the_bridge_delays_no_other_peer() {
    let (_of, m) = manager(&Version::ALL);
    let mut waiting = Vec::new();
    for _ in 0..4 {
        waiting.push(Client::greeted(&m, Kind::Service, Version::V13).await);
    }
    let mut other = Client::greeted(&m, Kind::Service, Version::V13).await;
    other.quiet(Version::V13).await;
    let (held, end) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    let bridge = m.bridge().clone();
    let holder = std::thread::spawn(move || {
        let _state = bridge.state.lock();
        held.0.send(()).expect("somebody waits");
        // However the test ends.
        let _ = end.1.recv();
    });
    held.1.recv().expect("the lock is held");
    for c in &mut waiting {
        c.send(Version::V13, 5, &Message::FeaturesRequest).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    other.quiet(Version::V13).await;
    // Time passes for its controllers, of which there is none.
    let tick = tokio::task::spawn_blocking(move || Controllers::new(m).tick());
    let ticked = timeout(Duration::from_secs(30), tick).await;
    assert!(ticked.is_ok_and(|t| t.is_ok()), "it waits");
    drop(end.0);
    holder.join().expect("it ends");
    for c in &mut waiting {
        assert!(matches!(c.receive().await, Some(Message::FeaturesReply(_))));
    }
}
