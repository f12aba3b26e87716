//! `heddle guest`: a guest without a virtual machine. Its network card is a tap device of this machine (or of
//! a network namespace), with an ordinary IP stack behind it. The driver is this program.
//!
//! The program does the work of a virtual machine monitor and of a guest's driver. It negotiates, hands
//! memory and rings over, and moves packets between tap and rings. When the switch dies, it continues with
//! the next one. The program checks that the switch keeps to the negotiated features. A packet with an
//! offload that the guest has not accepted ends it with an error.

mod nic;

use crate::console;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use heddle_loadgen::run::Endpoint;
use heddle_sys::{Epoll, TapOpen, TapQueue};
use heddle_vhost_user::frontend::{Frontend, FrontendError, Listener};
use heddle_vhost_user::message::ProtocolFeatures;
use heddle_virtio::{Features, net_hdr};
use nic::Nic;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Timeout of the switch's replies.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A switch that is absent for longer is reported.
const SOON: Duration = Duration::from_secs(1);
/// Pauses between attempts to connect: the first one, which doubles up to the last one.
const AGAIN: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(2)];
/// Interval between two checks of the connection, milliseconds.
const LOOK_MS: i32 = 20;

/// A feature that can be turned off.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnOff {
    On,
    Off,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The switch's port: `listen:PATH` where the switch connects to us, `connect:PATH` where it listens
    #[arg(long, value_name = "ENDPOINT")]
    port: Endpoint,
    /// The tap device to make; move it into a namespace and give it an address
    #[arg(long, value_name = "NAME")]
    tap: String,
    /// Packed rings instead of split ones
    #[arg(long)]
    packed: bool,
    /// Mergeable receive buffers
    #[arg(long, value_enum, default_value = "on")]
    mergeable: OnOff,
    /// Unfinished checksums, in both directions
    #[arg(long, value_enum, default_value = "on")]
    csum: OnOff,
    /// GSO packets (TCP), in both directions (needs --csum on)
    #[arg(long, value_enum, default_value = "on")]
    tso: OnOff,
    /// Notification thresholds (EVENT_IDX)
    #[arg(long, value_enum, default_value = "on")]
    event_idx: OnOff,
    /// Queue pairs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128))]
    queues: u16,
    /// Entries of each ring
    #[arg(long, default_value_t = 256)]
    ring: u16,
}

impl Args {
    fn features(&self) -> Features {
        let mut f = Features::VERSION_1 | Features::INDIRECT_DESC | Features::GUEST_ANNOUNCE;
        f.set(Features::RING_PACKED, self.packed);
        f.set(Features::MRG_RXBUF, self.mergeable == OnOff::On);
        f.set(Features::EVENT_IDX, self.event_idx == OnOff::On);
        f.set(Features::MQ | Features::CTRL_VQ, self.queues > 1);
        let csum = self.csum == OnOff::On;
        f.set(Features::CSUM | Features::GUEST_CSUM, csum);
        let tso = Features::HOST_TSO4
            | Features::HOST_TSO6
            | Features::HOST_ECN
            | Features::GUEST_TSO4
            | Features::GUEST_TSO6
            | Features::GUEST_ECN;
        f.set(tso, csum && self.tso == OnOff::On);
        f
    }

    pub(crate) fn run(&self) -> Result<()> {
        // The virtio-net header passes unchanged between tap and ring, in both directions.
        let tap = TapOpen::new(&self.tap)
            .multi_queue(true)
            .vnet_hdr_len(net_hdr::LEN)
            .open()
            .with_context(|| format!("tap device {}", self.tap))?;
        let features = self.features();
        nic::set_offloads(&tap, features)?;
        let listener = match &self.port {
            Endpoint::Listen(path) => Some(Listener::bind(path)?),
            Endpoint::Connect(_) => None,
        };
        let mut nic = Nic::new(features, self.queues, self.ring)?;
        log(&format!(
            "tap {} is there, features {:#018x}",
            self.tap,
            features.bits()
        ));
        let (mut pause, mut said) = (AGAIN[0], String::new());
        loop {
            let mut front = self.meet(listener.as_ref())?;
            if let Err(e) = self.hand_over(&mut front, &nic) {
                let text = console::error(&e);
                if text != said {
                    log(&format!("no session: {text}"));
                    said = text;
                }
                drop(front);
                std::thread::sleep(pause);
                pause = (2 * pause).min(AGAIN[1]);
                continue;
            }
            (pause, said) = (AGAIN[0], String::new());
            log("connected");
            let why = serve(&mut front, &mut nic, &tap)?;
            log(&format!("disconnected: {}", console::error(&why)));
        }
    }

    /// Waits for the switch.
    fn meet(&self, listener: Option<&Listener>) -> Result<Frontend> {
        const LONG: Duration = Duration::from_secs(3600);
        for wait in [SOON, LONG] {
            let met = match (&self.port, listener) {
                (Endpoint::Connect(path), _) => match Frontend::connect(path, wait, CONNECT_TIMEOUT) {
                    Err(FrontendError::Path { .. }) if wait == SOON => None,
                    met => Some(met?),
                },
                (_, Some(listener)) => listener.accept(wait, CONNECT_TIMEOUT)?,
                _ => bail!("an endpoint that listens has a listener"),
            };
            match met {
                Some(front) => return Ok(front),
                None if wait == SOON => console::waiting(&self.port.wanted()),
                None => {}
            }
        }
        bail!("no switch came")
    }

    fn hand_over(&self, front: &mut Frontend, nic: &Nic) -> Result<()> {
        let want = ProtocolFeatures::MQ | ProtocolFeatures::REPLY_ACK | ProtocolFeatures::CONFIGURE_MEM_SLOTS;
        let offered = front.open(want)?;
        let lacks = nic.features() - offered.features;
        if !lacks.is_empty() {
            bail!("the switch does not offer {lacks:?}");
        }
        if offered.queue_pairs < u64::from(self.queues) {
            bail!("the switch has {} queue pairs", offered.queue_pairs);
        }
        nic.attach(front)
    }
}

/// Prints a line. A closed output is ignored: the guest continues.
fn log(text: &str) {
    let _ = console::out(&format!("{text}\n"));
}

/// Moves packets until the connection ends; returns why it did.
fn serve(front: &mut Frontend, nic: &mut Nic, tap: &TapQueue) -> Result<anyhow::Error> {
    let mut epoll = Epoll::new(64)?;
    epoll.add(tap.as_raw_fd(), 0)?;
    for fd in nic.call_fds() {
        epoll.add(fd, 1)?;
    }
    let every = Duration::from_millis(LOOK_MS.unsigned_abs().into());
    let mut looked = Instant::now();
    loop {
        let busy = nic.transmit(tap)? | nic.receive(tap)?;
        if !busy && !nic.arm() {
            epoll.wait(LOOK_MS)?.for_each(drop);
            nic.disarm();
        }
        if looked.elapsed() >= every {
            looked = Instant::now();
            if let Err(e) = front.check() {
                return Ok(e.into());
            }
        }
    }
}
