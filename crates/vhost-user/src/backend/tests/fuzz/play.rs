//! Plays a script against a session, and reports the events.

use super::super::*;
use super::script::{Act, Fd, Script};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;

/// Longest script, bytes.
pub(super) const MAX_LEN: usize = 600;
/// Offset of ring `n` of a well-behaved front end: its areas are at 0, 0x1000 and 0x2000 from here.
const RING: u64 = 0x4000;
/// Frames of the driver.
const FRAMES: u64 = 0x10_0000;

/// The events of a played script.
#[derive(Default)]
pub(super) struct Outcome {
    /// Single things, for the corpus.
    pub(super) plain: BTreeSet<String>,
    /// The same with the state in which they happened, for the search.
    pub(super) all: BTreeSet<String>,
}

/// A text without its numbers.
fn shape(text: &str) -> String {
    let mut out = String::new();
    for word in text.split(' ') {
        let number = word.contains(|c: char| c.is_ascii_digit());
        out.push_str(if number { "#" } else { word });
        out.push(' ');
    }
    out
}

fn open(kind: Fd, guest: &OwnedFd) -> OwnedFd {
    let event = || rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let path = |p: &str, flags| rustix::fs::open(p, flags, Mode::empty()).unwrap();
    match kind {
        Fd::Guest => guest.try_clone().unwrap(),
        Fd::Short => memfd("short", 100, Pages::Normal).unwrap(),
        Fd::Event => event(),
        Fd::FullEvent => {
            let fd = event();
            rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            fd
        }
        Fd::PipeIn => std::io::pipe().unwrap().0.into(),
        Fd::PipeOut => std::io::pipe().unwrap().1.into(),
        Fd::FullPipe => {
            let (read, write) = std::io::pipe().unwrap();
            let write = OwnedFd::from(write);
            rustix::fs::fcntl_setfl(&write, OFlags::NONBLOCK).unwrap();
            while rustix::io::write(&write, &[0; 4096]).is_ok() {}
            drop(read);
            write
        }
        Fd::Socket => UnixStream::pair().unwrap().0.into(),
        Fd::Null => path("/dev/null", OFlags::RDWR),
        Fd::Directory => path("/", OFlags::RDONLY),
        Fd::Epoll => rustix::event::epoll::create(rustix::event::epoll::CreateFlags::empty()).unwrap(),
        Fd::Path => path("/", OFlags::PATH),
    }
}

struct Player {
    rig: Rig,
    journal: Journal,
    /// The other ends of channels.
    kept: Vec<UnixStream>,
    /// The drivers of rings 0 and 1.
    drivers: [Option<Driver>; 2],
    wanted: u64,
    cut: bool,
    deaf: bool,
    out: Outcome,
}

/// Plays the script; it must break nothing.
pub(super) fn play(script: &[u8]) -> Outcome {
    let journal = Journal::new(None, 4);
    let mut bytes = Script::new(script, MAX_LEN);
    let mut p = Player {
        rig: Rig::with(Dummy::new(), Some(journal.clone())),
        journal,
        kept: Vec::new(),
        drivers: [None, None],
        wanted: bytes.features(),
        cut: false,
        deaf: false,
        out: Outcome::default(),
    };
    p.greet();
    while !bytes.is_empty() {
        let act = bytes.act();
        p.act(act);
        p.look();
        if p.rig.session.is_none() {
            p.again();
        }
    }
    p.rig.shut_down();
    p.look();
    assert!(p.rig.device.seen.lock().rings.is_empty());
    p.out
}

impl Player {
    /// Takes note of something.
    fn note(&mut self, what: String) {
        let state = match &self.rig.session {
            None => "none".to_owned(),
            Some(_) => {
                let seen = self.rig.device.seen.lock();
                let features = Features::from_bits_truncate(self.wanted);
                let has = |f| features.contains(f);
                format!(
                    "{} {} {} {}",
                    seen.rings.len(),
                    has(Features::RING_PACKED),
                    has(Features::ACCESS_PLATFORM),
                    has(Features::LOG_ALL)
                )
            }
        };
        self.out.all.insert(format!("{state}: {what}"));
        self.out.plain.insert(what);
    }

    /// The session handles the messages sent, and time passes for it.
    fn run(&mut self) {
        self.rig.run();
        self.rig.run();
    }

    /// Checks the device's events, and the invariants that always hold.
    fn look(&mut self) {
        for event in self.rig.events() {
            let what = match event {
                Event::Trouble(text) => format!("trouble {}", shape(&text)),
                Event::Gone(text) => format!("gone {}", shape(&text)),
                Event::Start(index, on) => format!("start {} {on}", index % 2),
                Event::Stop(index) => format!("stop {}", index % 2),
                Event::Enable(index, on) => format!("enable {} {on}", index % 2),
                Event::Notify(_, which, some) => format!("notify {which:?} {some}"),
                Event::Connected => continue,
                Event::Features(f) if f.contains(Features::RING_PACKED) => "packed".to_owned(),
                other => format!("{other:?}").split('(').next().unwrap().to_owned(),
            };
            self.note(what);
        }
        assert!(self.rig.device.seen.lock().rings.len() <= 4);
    }

    /// Number of replies that came; checks that they are in order.
    fn replies(&mut self) -> usize {
        let mut n = 0;
        while let Ok(Received::Frame(f)) = self.rig.front.recv() {
            assert!(f.header.is_reply());
            n += 1;
        }
        n
    }

    fn again(&mut self) {
        if self.rig.session.is_some() {
            self.rig.hang_up();
        }
        self.look();
        self.rig.connect(Some(self.journal.clone()));
        self.greet();
    }

    fn greet(&mut self) {
        let rig = &mut self.rig;
        let offer = rig.device.offer.features | Features::LOG_ALL;
        let features = offer & Features::from_bits_truncate(self.wanted) | Features::PROTOCOL_FEATURES;
        rig.send(&Request::SetProtocolFeatures(PROTOCOL.bits()), &[]);
        rig.send(&Request::SetFeatures(features.bits()), &[]);
        let file = rig.file.try_clone().unwrap();
        rig.send(&Request::SetMemTable(vec![rig.region()]), &[file.as_fd()]);
        self.run();
        self.replies();
        self.drivers = [None, None];
        self.deaf = false;
    }

    fn fds(&mut self, request: &Request, kinds: Option<Vec<Fd>>) -> Vec<OwnedFd> {
        let n = match request.fds() {
            FdRule::Exactly(n) => n,
            FdRule::Optional => 0,
        };
        let usual = match request {
            Request::SetBackendReqFd => Fd::Socket,
            Request::SetVringKick(_) | Request::SetVringCall(_) | Request::SetVringErr(_) => Fd::Event,
            _ => Fd::Guest,
        };
        if kinds.is_none() && usual == Fd::Socket {
            let (ours, theirs) = UnixStream::pair().unwrap();
            self.kept.push(ours);
            return vec![theirs.into()];
        }
        let kinds = kinds.unwrap_or_else(|| vec![usual; n]);
        kinds.into_iter().map(|k| open(k, &self.rig.file)).collect()
    }

    fn write(&mut self, request: &Request, kinds: Option<Vec<Fd>>, request_reply: bool) {
        let flags = if request_reply {
            HeaderFlags::NEED_REPLY
        } else {
            HeaderFlags::empty()
        };
        let fds = self.fds(request, kinds);
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).take(MAX_FDS).collect();
        let _ = self.rig.front.send_request(request, flags, &fds); // the session may have ended
    }

    fn raw(&mut self, bytes: &[u8]) {
        use std::io::Write;
        let raw = self.rig.front.as_fd().try_clone_to_owned().unwrap();
        let _ = UnixStream::from(raw).write_all(bytes); // the session may have ended
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Send(request, kinds, request_reply, 1) => self.request_reply(&request, kinds, request_reply),
            Act::Send(request, kinds, request_reply, times) => {
                for _ in 0..times {
                    self.write(&request, kinds.clone(), request_reply);
                }
                self.run();
                self.replies();
            }
            Act::Queue(request, kinds, request_reply) => self.write(&request, kinds, request_reply),
            Act::Frame(code, flags, told, payload, kinds) => {
                let head: Vec<u8> = [code, flags, told].iter().flat_map(|v| v.to_ne_bytes()).collect();
                let fds: Vec<OwnedFd> = kinds.into_iter().map(|k| open(k, &self.rig.file)).collect();
                let whole = Header::new(code, HeaderFlags::empty(), payload.len()).encode();
                if fds.is_empty() || head != whole {
                    self.raw(&[&head[..], &payload].concat());
                } else {
                    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).take(MAX_FDS).collect();
                    let _ = self.rig.front.send(code, HeaderFlags::empty(), &payload, &fds);
                }
                self.run();
                // The descriptor or bytes that the session waits for never come.
                self.again();
            }
            Act::Pieces(ref request, at) | Act::Cut(ref request, at) => {
                let mut payload = Vec::new();
                request.encode(&mut payload);
                let head = Header::new(request.code(), HeaderFlags::NEED_REPLY, payload.len()).encode();
                let whole = [&head[..], &payload].concat();
                let (a, b) = whole.split_at(usize::from(at) % whole.len());
                self.raw(a);
                self.run();
                if matches!(act, Act::Cut(..)) {
                    self.again();
                } else {
                    self.raw(b);
                    self.run();
                    self.replies();
                }
            }
            Act::Poke(at, bytes) if !self.cut => drop(self.rig.mem.write(at, &bytes)),
            Act::Traffic(n) if !self.cut => self.traffic(n),
            Act::Ring(index, how) if !self.cut => self.ring(index, how),
            Act::Work => self.work(),
            Act::Again(features) => {
                self.wanted = features;
                self.again();
            }
            Act::Truncate(to) => {
                self.cut = true;
                rustix::fs::ftruncate(&self.rig.file, u64::from(to) * 4096).unwrap();
            }
            Act::Deaf(deaf) => self.deaf = deaf,
            Act::Poke(..) | Act::Traffic(_) | Act::Ring(..) => {}
        }
        self.run();
        if !self.deaf {
            self.replies();
        }
    }

    /// One request, which gets exactly the replies that it should get, or ends the session.
    fn request_reply(&mut self, request: &Request, kinds: Option<Vec<Fd>>, request_reply: bool) {
        self.run();
        self.replies();
        if self.rig.session.is_none() {
            return;
        }
        let acks = request_reply && self.rig.session.as_ref().is_some_and(Session::acknowledges);
        self.write(request, kinds, request_reply);
        self.run();
        let replies = self.replies();
        let ended = self.rig.ended.is_some();
        let wanted = !ended && (acks || request.reply() == ReplyKind::Own);
        // A session may also end behind the reply, when a worker touches memory that is gone.
        let behind = ended && self.cut && replies <= 1;
        assert!(
            behind || replies == usize::from(wanted),
            "{replies} answers to {request:?} {:?}",
            self.rig.ended
        );
        let verdict = if ended { "ends" } else { "ok" };
        self.note(format!("{} {verdict}", request.name()));
    }

    /// A ring as it should be.
    fn ring(&mut self, index: u8, how: u8) {
        let n = u32::from(index);
        let at = USER + RING * u64::from(index);
        let addr = VringAddr {
            index: n,
            log_used: how & 1 != 0,
            desc: at,
            avail: at + 0x1000,
            used: at + 0x2000,
            log: 0x5000,
        };
        let fd = VringFd { index, has_fd: true };
        if how & 2 != 0 {
            self.request_reply(&Request::GetVringBase(state(n, 0)), None, true);
            let _ = self.rig.mem.write(at - USER + BASE, &[0; 0x3000]);
        }
        for request in [
            Request::SetVringNum(state(n, 64)),
            Request::SetVringBase(state(n, if how & 4 != 0 { 0x8000_8000 } else { 0 })),
            Request::SetVringAddr(addr),
            Request::SetVringCall(fd),
            Request::SetVringKick(fd),
            Request::SetVringEnable(state(n, 1)),
        ] {
            self.write(&request, None, true);
            self.run();
            self.replies();
        }
        if let Some(driver) = self.drivers.get_mut(usize::from(index)) {
            let desc = at - USER + BASE;
            let cfg = QueueConfig {
                features: Features::from_bits_truncate(self.wanted),
                size: 64,
                desc,
                driver: desc + 0x1000,
                device: desc + 0x2000,
                start: Position::default(),
                wait_for_miss: false,
            };
            *driver = Driver::new(&cfg, &self.rig.mem).ok();
        }
    }

    /// The drivers offer frames in ring 1 and buffers in ring 0.
    fn traffic(&mut self, n: u8) {
        let mem = &self.rig.mem;
        for (ring, driver) in (0_u64..).zip(&mut self.drivers) {
            let Some(driver) = driver else { continue };
            for i in 0..n {
                let addr = BASE + FRAMES + 0x1000 * u64::from(i) + 0x800 * ring;
                let buf = [Buf { addr, len: 112 }];
                let (out, into) = if ring == 1 {
                    (&buf[..], &[][..])
                } else {
                    (&[][..], &buf[..])
                };
                let _ = driver.add(mem, out, into, ChainLocation::Direct, u32::from(i)); // full, perhaps
            }
            driver.publish();
            let _ = driver.pop(); // the device may not have been there at all
        }
    }

    /// The workers run.
    fn work(&mut self) {
        let packet = Packet::from_bytes(&[5; 100]);
        let mut told = Vec::new();
        let mut seen = self.rig.device.seen.lock();
        let link = seen.link.clone();
        for ring in seen.rings.values_mut() {
            let (miss, error) = match &mut ring.queue {
                Queue::FromGuest(q) => {
                    let mut burst = Burst::new();
                    if q.rx(&mut Pool::new(0), &mut burst) > 0 {
                        told.push("received".to_owned());
                    }
                    // Reads each byte: outside the mapping this would be a fault.
                    assert!(burst.iter().all(|p| p.to_vec().len() == p.len()));
                    drop(burst);
                    q.complete();
                    (q.take_miss(), q.error())
                }
                Queue::ToGuest(q) => {
                    if q.tx(&[&packet, &packet]).sent > 0 {
                        told.push("sent".to_owned());
                    }
                    (q.take_miss(), q.error())
                }
            };
            if let (Some(miss), Some(link)) = (miss, &link) {
                told.push("miss".to_owned());
                link.miss(miss);
            }
            told.extend(error.map(|e| format!("broken {}", e.name())));
        }
        drop(seen);
        told.into_iter().for_each(|what| self.note(what));
    }
}
