//! One end of a session: RFC 5880 §6.8.
//!
//! **Times** are milliseconds of the owner's clock. 0 means at once, or never so far.
//!
//! **Forwarding** is the result: whether packets may be sent this way. It follows the state, unless a user
//! has overridden it. If the configuration has `forwarding_if_rx`, received packets of any kind keep it for
//! some time. After a change of state or time [`Session::follow`] updates it, and counts how often it
//! changed.

use crate::config::Config;
use crate::frame::{self, Ends, TTL, Udp};
use crate::message::{Diag, Flags, MESSAGE_LEN, Message, State, VERSION};

/// Default destination of messages, as in Open vSwitch.
const DST_MAC: [u8; 6] = [0x00, 0x23, 0x20, 0, 0, 1];
/// RFC 5880 §6.8.3: a session that is not up sends at most once in this time.
const SLOW_MS: u64 = 1000;
/// Delay after a frame that could not be sent.
const AGAIN_MS: u64 = 5;
/// Shortest time after which a port counts as idle.
const IDLE_MS: u64 = 2000;
/// Without messages, packets keep a port forwarding for at most this number of message intervals.
const DEMAND_TIMES: u64 = 100;

/// Time and counters as a session's owner sees them.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Time, ms; not 0.
    pub ms: u64,
    /// Packets that the port has received, messages among them.
    pub rx_packets: u64,
}

/// The local end (`bfd.…` in RFC 5880 §6.8.1).
#[derive(Clone, Debug)]
pub(crate) struct Local {
    pub(crate) disc: u32,
    pub(crate) state: State,
    pub(crate) diag: Diag,
    /// Flags to be sent: a poll until the final flag arrives, a final once.
    pub(crate) flags: Flags,
    pub(crate) mult: u8,
    pub(crate) cpath_down: bool,
    pub(crate) min_tx_ms: u64,
    pub(crate) min_rx_ms: u64,
    pub(crate) detect_ms: u64,
    pub(crate) next_tx_ms: u64,
    pub(crate) last_tx_ms: u64,
}

/// The peer, by its last message.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub(crate) disc: u32,
    pub(crate) state: State,
    pub(crate) diag: Diag,
    pub(crate) flags: Flags,
    pub(crate) mult: u8,
    pub(crate) min_tx_ms: u64,
    pub(crate) min_rx_ms: u64,
}

/// Decay: fewer messages are requested while the port is idle.
#[derive(Clone, Debug, Default)]
struct Decay {
    /// Interval to request while idle, ms; 0: no decay.
    min_rx_ms: u64,
    active: bool,
    /// Messages since the last check.
    messages: u64,
    /// Packets up to the last check.
    rx_packets: u64,
    look_ms: u64,
}

/// One end of a session.
#[derive(Clone, Debug)]
pub struct Session {
    name: String,
    config: Config,
    udp_src: u16,
    dice: u64,
    local: Local,
    remote: Remote,
    /// Intervals of the current poll: valid from its final flag on.
    polled_ms: (u64, u64),
    decay: Decay,
    forwarding: bool,
    forced: Option<bool>,
    flaps: u64,
    /// Until this time received packets keep it forwarding, ms.
    by_rx_ms: u64,
    /// Until this time the last message lets packets do so, ms.
    by_message_ms: u64,
    status_changed: bool,
}

impl Session {
    /// A new session. `name` is for the log; `disc` is not 0 and no other session's; `udp_src` is from 49152
    /// on (RFC 5881 §4); `seed` is any number.
    pub fn new(name: &str, config: &Config, (disc, udp_src): (u32, u16), seed: u64, now: Now) -> Self {
        let mut session = Self {
            name: name.to_owned(),
            config: config.clone(),
            udp_src,
            dice: seed | 1,
            local: Local {
                disc,
                state: State::AdminDown,
                diag: Diag::NONE,
                flags: Flags::default(),
                mult: config.mult,
                cpath_down: false,
                min_tx_ms: config.min_tx_ms,
                min_rx_ms: config.min_rx_ms,
                detect_ms: 0,
                next_tx_ms: 0,
                last_tx_ms: 0,
            },
            remote: Remote {
                disc: 0,
                state: State::Down,
                diag: Diag::NONE,
                flags: Flags::default(),
                mult: 0,
                min_tx_ms: 0,
                min_rx_ms: 1,
            },
            polled_ms: (0, 0),
            decay: Decay::default(),
            forwarding: false,
            forced: None,
            flaps: 0,
            by_rx_ms: 0,
            by_message_ms: 0,
            status_changed: true,
        };
        session.enter(State::Down, Diag::NONE, now);
        session.take_decay(now);
        session.take_cpath(now);
        session
    }

    pub(crate) fn local(&self) -> &Local {
        &self.local
    }
    pub(crate) fn remote(&self) -> &Remote {
        &self.remote
    }
    pub(crate) fn flaps(&self) -> u64 {
        self.flaps
    }

    /// Whether packets may be sent this way, at the time of the last call.
    pub fn is_forwarding(&self) -> bool {
        self.forced.unwrap_or(self.forwarding)
    }

    /// Whether received packets may change the result ([`Now::rx_packets`]).
    pub fn counts_packets(&self) -> bool {
        self.config.forwarding_if_rx || self.decay.min_rx_ms != 0
    }

    /// The last configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether [`Session::status`] has changed since the last call.
    pub fn take_status_changed(&mut self) -> bool {
        std::mem::take(&mut self.status_changed)
    }

    /// Overrides forwarding; `None`: ends that.
    pub fn force(&mut self, forwarding: Option<bool>) {
        self.forced = forwarding;
        self.status_changed = true;
    }

    /// Replaces the configuration of a running session.
    pub fn configure(&mut self, config: &Config, now: Now) {
        let old = std::mem::replace(&mut self.config, config.clone());
        let l = &mut self.local;
        l.mult = config.mult;
        let quiet = l.state == State::Up && l.flags.has(Flags::POLL);
        let mut changed = false;
        // RFC 5880 §6.8.3: a slower local or a faster remote end waits for the end of a poll.
        if old.min_tx_ms != config.min_tx_ms {
            if l.state != State::Up || (!quiet && config.min_tx_ms < l.min_tx_ms) {
                l.min_tx_ms = config.min_tx_ms;
            }
            changed = true;
        }
        if old.min_rx_ms != config.min_rx_ms {
            if l.state != State::Up || (!quiet && config.min_rx_ms > l.min_rx_ms) {
                l.min_rx_ms = config.min_rx_ms;
            }
            changed = true;
        }
        if old.decay_min_rx_ms != config.decay_min_rx_ms || old.min_rx_ms != config.min_rx_ms {
            self.take_decay(now);
            changed = true;
        }
        changed |= self.take_cpath(now);
        let is_up = self.local.state == State::Up;
        if old.forwarding_if_rx != config.forwarding_if_rx {
            self.by_rx_ms = 0;
            if is_up && config.forwarding_if_rx {
                self.extend_by_rx(now);
            }
        } else if is_up && config.forwarding_if_rx && old.mult != config.mult {
            self.extend_by_rx(now);
        }
        if changed {
            self.poll();
        }
        self.follow(now);
    }

    fn take_decay(&mut self, now: Now) {
        let wish = self.config.decay_min_rx_ms;
        let least = self.config.min_rx_ms;
        self.decay.min_rx_ms = if wish != 0 && wish < least {
            log::warn!(target: "bfd", "{}: decay_min_rx cannot be less than {least} ms", self.name);
            0
        } else {
            wish
        };
        self.decay.active = false;
        self.begin_decay(now);
    }

    fn take_cpath(&mut self, now: Now) -> bool {
        let changed = self.local.cpath_down != self.config.cpath_down;
        if changed {
            self.local.cpath_down = self.config.cpath_down;
            self.enter(self.local.state, Diag::NONE, now);
        }
        changed
    }

    // -- time

    /// The time at which it has to run next, ms.
    pub fn wake_ms(&self) -> u64 {
        if self.local.flags.has(Flags::FINAL) {
            return 0;
        }
        let mut wake = self.local.next_tx_ms;
        if self.local.state > State::Down {
            wake = wake.min(self.local.detect_ms);
        } else if self.forwarding && self.forced.is_none() {
            // Only packets keep it forwarding, and not for long.
            wake = wake.min(self.by_rx_ms).min(self.by_message_ms);
        }
        wake
    }

    /// Extends the detection time by `late_ms`, in which messages may have arrived unread. It then ends at
    /// most one whole detection time from now.
    pub fn forgive(&mut self, late_ms: u64, now: Now) {
        let at_most = now.ms + self.rx_interval_ms() * u64::from(self.remote.mult);
        let l = &mut self.local;
        if l.state > State::Down {
            l.detect_ms = l.detect_ms.max(at_most.min(l.detect_ms + late_ms));
        }
    }

    /// Does the work that is due, except sending.
    pub fn run(&mut self, now: Now) {
        let was_decayed = self.decay.active;
        if self.local.state > State::Down && now.ms >= self.local.detect_ms {
            self.enter(State::Down, Diag::EXPIRED, now);
        }
        self.follow(now);
        if self.local.state == State::Up && self.decay.min_rx_ms != 0 && now.ms >= self.decay.look_ms {
            // Counters of packets lag behind those of messages: up to two per message count as no other
            // packets.
            let packets = now.rx_packets.saturating_sub(self.decay.rx_packets);
            self.decay.active = packets <= 2 * self.decay.messages.max(1);
            self.begin_decay(now);
        }
        let l = &self.local;
        let rx_ok = l.min_rx_ms == self.config.min_rx_ms || l.min_rx_ms == self.decay.min_rx_ms;
        if l.min_tx_ms != self.config.min_tx_ms || !rx_ok || self.decay.active != was_decayed {
            self.poll();
        }
    }

    /// Packets were received, messages or others.
    pub fn packets_came(&mut self, now: Now) {
        if self.config.forwarding_if_rx {
            self.follow(now);
            self.extend_by_rx(now);
            self.follow(now);
        }
    }

    fn extend_by_rx(&mut self, now: Now) {
        let time = self.rx_interval_ms() * u64::from(self.local.mult);
        self.by_rx_ms = now.ms + time.max(IDLE_MS);
    }

    fn begin_decay(&mut self, now: Now) {
        self.decay.rx_packets = now.rx_packets;
        self.decay.messages = 0;
        self.decay.look_ms = now.ms + self.decay.min_rx_ms.max(IDLE_MS);
    }

    /// Updates whether it forwards.
    pub fn follow(&mut self, now: Now) {
        if self.forced.is_some() {
            return;
        }
        let by_rx = self.config.forwarding_if_rx && self.by_rx_ms > now.ms && self.by_message_ms > now.ms;
        let good = (self.local.state == State::Up || by_rx) && !self.remote.diag.is_broken_path();
        if good != self.forwarding {
            self.forwarding = good;
            self.flaps += 1;
            self.status_changed = true;
        }
    }

    /// Begins a poll (RFC 5880 §6.5): the peer replies at once, and new intervals are valid then.
    fn poll(&mut self) {
        let l = &mut self.local;
        if l.state <= State::Down || l.flags.has(Flags::POLL) || l.flags.has(Flags::FINAL) {
            return;
        }
        let min_rx_ms = match self.decay.active {
            true => self.decay.min_rx_ms,
            false => self.config.min_rx_ms,
        };
        self.polled_ms = (self.config.min_tx_ms, min_rx_ms);
        l.flags.set(Flags::POLL, true);
        l.next_tx_ms = 0;
        log::info!(target: "bfd", per_min = 20, burst = 20; "{}: Initiating poll sequence", self.name);
    }

    /// Shortest interval of messages that it wants to send, ms (RFC 5880 §6.8.3).
    pub(crate) fn min_tx_ms(&self) -> u64 {
        match self.local.state {
            State::Up => self.local.min_tx_ms,
            _ => self.local.min_tx_ms.max(SLOW_MS),
        }
    }
    pub(crate) fn tx_interval_ms(&self) -> u64 {
        self.min_tx_ms().max(self.remote.min_rx_ms)
    }
    pub(crate) fn rx_interval_ms(&self) -> u64 {
        self.local.min_rx_ms.max(self.remote.min_tx_ms)
    }

    /// RFC 5880 §6.8.7: up to a quarter earlier. With a multiplier of 1 at least a tenth earlier.
    fn set_next_tx(&mut self) {
        // xorshift64: it need not be hard to predict.
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        let percent = match self.local.mult {
            1 => 10 + (self.dice >> 32) % 16,
            _ => (self.dice >> 32) % 26,
        };
        let interval = self.tx_interval_ms();
        self.local.next_tx_ms = self.local.last_tx_ms + interval - interval * percent / 100;
    }

    // -- messages

    /// Whether a message is to be sent now.
    pub fn should_send(&self, now: Now) -> bool {
        self.local.flags.has(Flags::FINAL) || now.ms >= self.local.next_tx_ms
    }

    /// The frame to send now, from a port with this address. The flag: it is sent with the tunnel's OAM flag.
    pub fn frame(&mut self, port_mac: [u8; 6], now: Now) -> (Vec<u8>, bool) {
        let interval = self.tx_interval_ms();
        let delay = now.ms.saturating_sub(self.local.next_tx_ms);
        if self.local.next_tx_ms != 0 && delay > interval * 3 / 2 {
            log::info!(target: "bfd", per_min = 20, burst = 20;
                "{}: long delay of {delay}ms (expected {interval}ms) sending BFD control message", self.name);
        }
        let us = |ms: u64| u32::try_from(ms * 1000).unwrap_or(u32::MAX);
        let (min_tx_ms, min_rx_ms) = match self.local.flags.has(Flags::POLL) {
            true => self.polled_ms,
            false => (self.min_tx_ms(), self.local.min_rx_ms),
        };
        let message = Message {
            version: VERSION,
            diag: self.local.diag,
            state: self.local.state,
            flags: self.local.flags,
            mult: self.local.mult,
            #[expect(clippy::cast_possible_truncation, reason = "24")]
            length: MESSAGE_LEN as u8,
            my_disc: self.local.disc,
            your_disc: self.remote.disc,
            min_tx_us: us(min_tx_ms),
            min_rx_us: us(min_rx_ms),
            min_rx_echo_us: 0,
        };
        let c = &self.config;
        let ends = Ends {
            macs: (c.src_mac.unwrap_or(port_mac), c.dst_mac.unwrap_or(DST_MAC)),
            ips: (c.src_ip, c.dst_ip),
            udp_src: self.udp_src,
        };
        let frame = frame::build(&ends, &message.bytes());
        self.tell(log::Level::Debug, &message, "Sending BFD Message", now);
        self.local.flags.set(Flags::FINAL, false);
        self.local.last_tx_ms = now.ms;
        self.set_next_tx();
        (frame, self.config.oam)
    }

    /// The last frame could not be sent. Another one is due soon.
    pub fn unsent(&mut self, now: Now) {
        self.local.next_tx_ms = self.local.next_tx_ms.min(now.ms + AGAIN_MS);
    }

    /// Handles a received message (RFC 5880 §6.8.6).
    pub fn receive(&mut self, udp: Udp<'_>, now: Now) {
        self.decay.messages += 1;
        self.follow(now);
        if let Some(message) = self.checked(udp, now) {
            self.take(&message, now);
        }
        self.follow(now);
    }

    /// Reads and validates a message. `None`: it is not for this session, or invalid.
    fn checked(&self, udp: Udp<'_>, now: Now) -> Option<Message> {
        if udp.ttl != TTL {
            return None;
        }
        let Some(m) = Message::read(udp.payload) else {
            log::info!(target: "bfd", per_min = 20, burst = 20;
                "{}: Received too-short BFD control message (only {} bytes long, at least {MESSAGE_LEN} required).",
                self.name, udp.payload.len());
            return None;
        };
        self.tell(log::Level::Debug, &m, "Received BFD control message", now);
        let length = usize::from(m.length);
        let wrong = if m.version != VERSION {
            "Incorrect version"
        } else if m.flags.has(Flags::AUTH) {
            "Authenticated control message with authentication disabled"
        } else if length < MESSAGE_LEN || length > udp.payload.len() {
            "Unexpected length"
        } else if m.mult == 0 {
            "Zero multiplier"
        } else if m.flags.has(Flags::MULTIPOINT) {
            "Unsupported multipoint flag"
        } else if m.my_disc == 0 {
            "NULL my_disc"
        } else if m.your_disc != 0 && m.your_disc != self.local.disc {
            "Incorrect your_disc"
        } else if m.your_disc == 0 && m.state > State::Down {
            "Null your_disc"
        } else {
            if length != MESSAGE_LEN {
                self.tell(log::Level::Warn, &m, "Unexpected length", now);
            }
            return Some(m);
        };
        self.tell(log::Level::Warn, &m, wrong, now);
        None
    }

    fn take(&mut self, m: &Message, now: Now) {
        let r = &mut self.remote;
        if (r.state, r.diag) != (m.state, m.diag) {
            self.status_changed = true;
        }
        (r.disc, r.state, r.flags, r.diag) = (m.my_disc, m.state, m.flags, m.diag);
        if m.flags.has(Flags::FINAL) && self.local.flags.has(Flags::POLL) {
            (self.local.min_tx_ms, self.local.min_rx_ms) = self.polled_ms;
            self.local.flags.set(Flags::POLL, false);
            self.tell(log::Level::Info, m, "Poll sequence terminated", now);
        }
        if m.flags.has(Flags::POLL) {
            self.local.flags.set(Flags::POLL, false);
            self.local.flags.set(Flags::FINAL, true);
        }
        if self.remote.mult != m.mult {
            log::info!(target: "bfd", per_min = 20, burst = 20;
                "Interface {} remote mult value {} changed to {}", self.name, self.remote.mult, m.mult);
            self.remote.mult = m.mult;
        }
        let min_rx_ms = u64::from(m.min_rx_us / 1000).max(1);
        if self.remote.min_rx_ms != min_rx_ms {
            self.remote.min_rx_ms = min_rx_ms;
            if self.local.next_tx_ms != 0 {
                self.set_next_tx();
            }
            self.tell(log::Level::Info, m, "New remote min_rx", now);
        }
        self.remote.min_tx_ms = u64::from(m.min_tx_us / 1000).max(1);
        self.local.detect_ms = now.ms + self.rx_interval_ms() * u64::from(self.remote.mult);
        self.step(m, now);
        if self.config.forwarding_if_rx {
            self.by_message_ms = now.ms + DEMAND_TIMES * self.config.min_rx_ms;
        }
    }

    /// The state machine (RFC 5880 §6.8.6).
    fn step(&mut self, m: &Message, now: Now) {
        let keep = self.local.diag;
        match (self.local.state, m.state) {
            (State::AdminDown, _) | (State::Down, State::AdminDown) => {}
            (_, State::AdminDown) => self.enter(State::Down, Diag::REMOTE_DOWN, now),
            (State::Down, State::Down) => self.enter(State::Init, keep, now),
            (State::Down | State::Init, State::Init) | (State::Init, State::Up) => {
                self.enter(State::Up, keep, now);
            }
            (State::Up, State::Down) => {
                self.enter(State::Down, Diag::REMOTE_DOWN, now);
                self.tell(log::Level::Info, m, "Remote signaled STATE_DOWN", now);
            }
            (State::Down | State::Up, State::Up) | (State::Up, State::Init) | (State::Init, State::Down) => {}
        }
    }

    fn enter(&mut self, state: State, diag: Diag, now: Now) {
        let diag = if self.local.cpath_down {
            Diag::CONCATENATED_DOWN
        } else {
            diag
        };
        let l = &mut self.local;
        if (l.state, l.diag) == (state, diag) {
            return;
        }
        let before = (l.state, l.diag);
        (l.state, l.diag) = (state, diag);
        log::info!(target: "bfd", per_min = 20, burst = 20;
            "{}: BFD state change: {}->{state} \"{}\"->\"{diag}\".\n{}",
            self.name, before.0, before.1, self.details(now));
        if state <= State::Down {
            self.remote = Remote {
                disc: 0,
                state: State::Down,
                diag: Diag::NONE,
                flags: Flags::default(),
                min_tx_ms: 0,
                min_rx_ms: 1,
                mult: self.remote.mult,
            };
            if std::mem::take(&mut self.decay.active) {
                self.local.min_rx_ms = self.config.min_rx_ms;
            }
        }
        if state == State::Up && self.decay.min_rx_ms != 0 {
            self.begin_decay(now);
        }
        self.status_changed = true;
    }

    fn tell(&self, level: log::Level, m: &Message, what: &str, now: Now) {
        log::log!(target: "bfd", level, per_min = 20, burst = 20;
            "{}: {what}.{m}{}", self.name, self.details(now));
    }
}
