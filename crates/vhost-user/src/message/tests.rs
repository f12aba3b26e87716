//! Messages: encode and decode are each other's reverse, hostile bytes are refused, descriptors stay with
//! their message.

use super::*;
use heddle_sys::EventFd;
use proptest::prelude::*;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

fn vring_state() -> impl Strategy<Value = VringState> {
    any::<(u32, u32)>().prop_map(|(index, num)| VringState { index, num })
}
fn vring_fd() -> impl Strategy<Value = VringFd> {
    any::<(u8, bool)>().prop_map(|(index, has_fd)| VringFd { index, has_fd })
}
fn region() -> impl Strategy<Value = MemRegion> {
    any::<(u64, u64, u64, u64)>().prop_map(|(guest, size, user, offset)| MemRegion {
        guest,
        size,
        user,
        offset,
    })
}
fn inflight() -> impl Strategy<Value = Inflight> {
    any::<(u64, u64, u16, u16)>().prop_map(|(mmap_size, mmap_offset, num_queues, queue_size)| Inflight {
        mmap_size,
        mmap_offset,
        num_queues,
        queue_size,
    })
}
fn iotlb() -> impl Strategy<Value = IotlbMsg> {
    let kind = prop_oneof![
        Just(IotlbKind::Miss),
        Just(IotlbKind::Update),
        Just(IotlbKind::Invalidate),
        Just(IotlbKind::AccessFail),
    ];
    (any::<(u64, u64, u64)>(), 0_u8..4, kind).prop_map(|((iova, size, user), access, kind)| IotlbMsg {
        iova,
        size,
        user,
        access: Access::from_bits_truncate(access),
        kind,
    })
}
fn config() -> impl Strategy<Value = ConfigSpace> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..=MAX_CONFIG);
    (any::<u32>(), any::<bool>(), bytes).prop_map(|(offset, live, bytes)| ConfigSpace {
        offset,
        flags: if live {
            ConfigFlags::MIGRATION
        } else {
            ConfigFlags::empty()
        },
        bytes,
    })
}

/// Any request that a front end can send.
pub(crate) fn request() -> impl Strategy<Value = Request> {
    let fixed = prop_oneof![
        Just(Request::GetFeatures),
        Just(Request::SetOwner),
        Just(Request::ResetOwner),
        Just(Request::SetLogFd),
        Just(Request::GetProtocolFeatures),
        Just(Request::GetQueueNum),
        Just(Request::SetBackendReqFd),
        Just(Request::PostcopyAdvise),
        Just(Request::PostcopyListen),
        Just(Request::PostcopyEnd),
        Just(Request::ResetDevice),
        Just(Request::GetMaxMemSlots),
        Just(Request::GetStatus),
    ];
    let numbers = prop_oneof![
        any::<u64>().prop_map(Request::SetFeatures),
        any::<u64>().prop_map(Request::SetProtocolFeatures),
        any::<u64>().prop_map(Request::NetSetMtu),
        any::<u64>().prop_map(Request::SetStatus),
        any::<[u8; 6]>().prop_map(Request::SendRarp),
    ];
    let rings = prop_oneof![
        vring_state().prop_map(Request::SetVringNum),
        vring_state().prop_map(Request::SetVringBase),
        vring_state().prop_map(Request::GetVringBase),
        vring_state().prop_map(Request::SetVringEnable),
        vring_state().prop_map(Request::SetVringEndian),
        vring_state().prop_map(Request::VringKick),
        vring_fd().prop_map(Request::SetVringKick),
        vring_fd().prop_map(Request::SetVringCall),
        vring_fd().prop_map(Request::SetVringErr),
        any::<(u32, bool, [u64; 4])>().prop_map(|(index, log_used, [desc, used, avail, log])| {
            Request::SetVringAddr(VringAddr {
                index,
                log_used,
                desc,
                used,
                avail,
                log,
            })
        }),
    ];
    let memory = prop_oneof![
        proptest::collection::vec(region(), 0..=MAX_FDS).prop_map(Request::SetMemTable),
        region().prop_map(Request::AddMemReg),
        region().prop_map(Request::RemMemReg),
        any::<Option<(u64, u64)>>()
            .prop_map(|a| Request::SetLogBase(a.map(|(size, offset)| LogArea { size, offset }))),
        inflight().prop_map(Request::GetInflightFd),
        inflight().prop_map(Request::SetInflightFd),
        iotlb().prop_map(Request::Iotlb),
        config().prop_map(Request::GetConfig),
        config().prop_map(Request::SetConfig),
    ];
    prop_oneof![fixed, numbers, rings, memory]
}

proptest! {
    #[test]
    fn requests_survive_the_wire(request in request()) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        prop_assert!(bytes.len() <= MAX_PAYLOAD);
        prop_assert_eq!(Request::decode(request.code(), &bytes), Ok(request.clone()));
        // One byte more or less is another size.
        bytes.push(0);
        if !matches!(request, Request::SetConfig(_) | Request::GetConfig(_)) {
            prop_assert!(Request::decode(request.code(), &bytes).is_err());
        }
    }

    #[test]
    fn headers_survive_the_wire(code: u32, flags: u32, size in 0_u32..=4096) {
        let header = Header { request: code, flags: HeaderFlags::from_bits_truncate(flags), size };
        prop_assert_eq!(Header::decode(header.encode()), Ok(header));
    }

    /// Bytes of any kind: refused, or a request that encodes to the same number of bytes (padding may
    /// differ).
    #[test]
    fn hostile_payloads_are_refused_or_meant(code in 0_u32..48, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(request) = Request::decode(code, &bytes) {
            prop_assert_eq!(request.code(), code);
            let mut again = Vec::new();
            request.encode(&mut again);
            prop_assert_eq!(Request::decode(code, &again), Ok(request));
        }
        let _ = BackendRequest::decode(code, &bytes);
        let _ = bytes.first_chunk().map(|h| Header::decode(*h));
    }

    #[test]
    fn replies_survive_the_wire(v: u64, state in vring_state(), config in config(), inflight in inflight()) {
        let empty = ConfigSpace { bytes: Vec::new(), ..config.clone() };
        for (request, reply) in [
            (Request::GetFeatures, Reply::U64(v)),
            (Request::SetOwner, Reply::U64(v)),
            (Request::GetVringBase(state), Reply::Vring(state)),
            (Request::GetConfig(empty.clone()), Reply::Config(config.clone())),
            (Request::GetConfig(empty), Reply::NoConfig),
            (Request::GetInflightFd(inflight), Reply::Inflight(inflight)),
        ] {
            let mut bytes = Vec::new();
            reply.encode(&mut bytes);
            prop_assert_eq!(Reply::decode(&request, &bytes), Ok(reply));
            bytes.push(0);
            prop_assert!(Reply::decode(&request, &bytes).is_err());
        }
    }

    #[test]
    fn backend_requests_survive_the_wire(iotlb in iotlb(), state in vring_state(), ring: u64, size: u64, offset: u64) {
        for request in [
            BackendRequest::Iotlb(iotlb),
            BackendRequest::ConfigChange,
            BackendRequest::VringHostNotifier(VringArea { ring, size, offset }),
            BackendRequest::VringCall(state),
            BackendRequest::VringErr(state),
        ] {
            let mut bytes = Vec::new();
            request.encode(&mut bytes);
            prop_assert_eq!(BackendRequest::decode(request.code(), &bytes), Ok(request));
        }
    }
}

#[test]
fn headers_that_lie_are_refused() {
    let good = Header::new(5, HeaderFlags::NEED_REPLY, 8);
    let mut bytes = good.encode();
    bytes[4] = 2;
    assert_eq!(Header::decode(bytes), Err(MessageError::Version(2)));
    let mut bytes = good.encode();
    bytes[8..].copy_from_slice(&4097_u32.to_ne_bytes());
    assert_eq!(
        Header::decode(bytes),
        Err(MessageError::TooLong {
            request: 5,
            size: 4097
        })
    );
}

/// The count of regions is the sender's claim.
#[test]
fn a_memory_table_has_its_length() {
    for n in [1_u32, 33, u32::MAX] {
        let mut bytes = n.to_ne_bytes().to_vec();
        bytes.extend([0; 4]);
        assert!(Request::decode(5, &bytes).is_err());
    }
    assert_eq!(Request::decode(5, &[0; 8]), Ok(Request::SetMemTable(Vec::new())));
}

fn pair() -> (Connection, Connection) {
    let (a, b) = UnixStream::pair().unwrap();
    (Connection::new(a), Connection::new(b))
}

/// Two messages sent at once, the second with descriptors: the first must not get them.
#[test]
fn descriptors_stay_with_their_message() {
    let (mut a, mut b) = pair();
    let ev = EventFd::new().unwrap();
    let ring = |has_fd| VringFd { index: 1, has_fd };
    let none = HeaderFlags::empty();
    for _ in 0..2 {
        a.send_request(&Request::SetVringKick(ring(false)), none, &[])
            .unwrap();
        a.send_request(&Request::SetVringKick(ring(true)), none, &[ev.as_fd()])
            .unwrap();
    }
    for want in [0, 1, 0, 1] {
        let Received::Frame(f) = b.recv().unwrap() else {
            panic!("a whole message is there");
        };
        assert_eq!(f.fds.len(), want);
        let request = Request::decode(f.header.request, &f.payload).unwrap();
        assert!(request.fds().allows(f.fds.len()));
    }
    assert!(matches!(b.recv().unwrap(), Received::Nothing));
    drop(a);
    assert!(matches!(b.recv().unwrap(), Received::Closed));
}

#[test]
fn messages_in_pieces_are_put_together() {
    let (a, b) = UnixStream::pair().unwrap();
    let mut b = Connection::new(b);
    let mut bytes = Header::new(2, HeaderFlags::empty(), 8).encode().to_vec();
    bytes.extend(77_u64.to_ne_bytes());
    for byte in &bytes[..bytes.len() - 1] {
        (&a).write_all(&[*byte]).unwrap();
        assert!(matches!(b.recv().unwrap(), Received::Nothing));
        assert!(b.partial_since().is_some());
    }
    (&a).write_all(&bytes[19..]).unwrap();
    let Received::Frame(f) = b.recv().unwrap() else {
        panic!("all bytes are there");
    };
    assert_eq!(Request::decode(2, &f.payload), Ok(Request::SetFeatures(77)));
    assert!(b.partial_since().is_none());
    (&a).write_all(&bytes[..13]).unwrap();
    drop(a);
    assert!(matches!(b.recv(), Err(SocketError::Cut)));
}

#[test]
fn descriptors_beyond_the_bound_end_the_connection() {
    let (a, b) = UnixStream::pair().unwrap();
    let mut b = Connection::new(b);
    let ev = EventFd::new().unwrap();
    let fds = [ev.as_fd(); MAX_FDS + 1];
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS + 1))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
    let header = Header::new(1, HeaderFlags::empty(), 0).encode();
    let iov = [std::io::IoSlice::new(&header)];
    rustix::net::sendmsg(&a, &iov, &mut control, rustix::net::SendFlags::empty()).unwrap();
    assert!(matches!(b.recv(), Err(SocketError::TooManyFds)));
}

#[test]
fn unread_replies_are_bounded() {
    let (mut a, _b) = pair();
    let mut sent = 0;
    let end = loop {
        match a.send_reply(1, &Reply::U64(0), &[]) {
            Ok(()) => sent += 1,
            Err(e) => break e,
        }
        assert!(sent < 1_000_000, "nothing bounds the answers");
    };
    assert!(matches!(end, SocketError::Unread));
}
