//! One bond: its members, the active one, and the buckets. Time, links and loads are passed in.
//!
//! **Invariants, after [`Bond::run`].** If a member is enabled, each bucket has an enabled member, and the
//! active member is enabled. Otherwise no member is active, and no bucket has a member. A bucket moves if its
//! member is disabled, by rebalancing, or by a command. Buckets without load also spread over a member that
//! was enabled.

use super::config::{BondSettings, MemberLink};
use super::rebalance::{MemberLoad, plan};
use crate::bond_port::{BUCKETS, LacpState, Mode};
use heddle_openflow::Port as OfPort;

/// One member.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) link: MemberLink,
    /// Whether packets may be sent and received, as far as other protocols (BFD, LACP) know.
    pub(super) may_enable: bool,
    /// Whether packets are sent.
    pub(super) enabled: bool,
    /// When `enabled` changes, if the link stays as it is, ms.
    pub(super) delay_ends_ms: Option<u64>,
}

/// One bucket of a balanced bond.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bucket {
    pub(super) member: Option<OfPort>,
    /// Moving average of the bytes sent in an interval of rebalancing.
    pub(super) bytes: u64,
}

/// One bond.
#[derive(Clone, Debug)]
pub(super) struct Bond {
    pub(super) name: String,
    pub(super) settings: BondSettings,
    pub(super) members: Vec<Member>,
    pub(super) active: Option<OfPort>,
    /// Address of the last active member.
    pub(super) active_mac: [u8; 6],
    pub(super) lacp: LacpState,
    /// Empty, or [`BUCKETS`] of them.
    pub(super) buckets: Vec<Bucket>,
    pub(super) next_rebalance_ms: u64,
    /// Last change of the interval. Buckets move later than that, as with Open vSwitch.
    interval_changed_ms: Option<u64>,
    /// Gratuitous packets are due.
    send_learning: bool,
    /// The active member's address has changed: it is to be written to the database.
    active_changed: bool,
    /// A member was enabled since the buckets were last looked at.
    came: bool,
    /// Turn of the members for buckets without one.
    turn: usize,
}

impl Bond {
    pub(super) fn new(name: &str, settings: BondSettings, now_ms: u64) -> Self {
        let mut bond = Self {
            name: name.to_owned(),
            active_mac: settings.last_active,
            settings,
            members: Vec::new(),
            active: None,
            lacp: LacpState::Off,
            buckets: Vec::new(),
            next_rebalance_ms: 0,
            interval_changed_ms: None,
            send_learning: false,
            active_changed: false,
            came: false,
            turn: 0,
        };
        bond.reset_buckets(now_ms);
        bond
    }

    /// Changes the settings. The address of the last active member counts for new bonds only.
    pub(super) fn configure(&mut self, settings: BondSettings, now_ms: u64) {
        let old = std::mem::replace(&mut self.settings, settings);
        let new = &self.settings;
        if old.rebalance_ms != new.rebalance_ms && old.rebalance_ms != 0 && new.rebalance_ms != 0 {
            // The interval that has begun ends earlier or later.
            let began_ms = self.next_rebalance_ms.saturating_sub(old.rebalance_ms);
            self.next_rebalance_ms = began_ms + new.rebalance_ms;
            self.interval_changed_ms = Some(now_ms);
        }
        let reset = old.mode != new.mode
            || old.basis != new.basis
            || old.fallback != new.fallback
            || old.primary != new.primary
            || (old.rebalance_ms == 0) != (new.rebalance_ms == 0);
        if reset {
            self.reset_buckets(now_ms);
        }
    }

    /// Takes over the members. The links of members that stay are updated.
    pub(super) fn set_members(&mut self, links: Vec<MemberLink>) {
        let gone: Vec<OfPort> = self
            .members
            .iter()
            .map(|m| m.link.no)
            .filter(|no| links.iter().all(|l| l.no != *no))
            .collect();
        for no in gone {
            self.remove(no);
        }
        for link in links {
            match self.member_mut(link.no) {
                Some(member) => member.link = link,
                None => {
                    let enabled = link.carrier;
                    self.members.push(Member {
                        link,
                        // Until the first run.
                        may_enable: false,
                        enabled: false,
                        delay_ends_ms: None,
                    });
                    let at = self.members.len() - 1;
                    self.enable(at, enabled);
                }
            }
        }
    }

    fn remove(&mut self, no: OfPort) {
        let Some(at) = self.members.iter().position(|m| m.link.no == no) else {
            return;
        };
        self.enable(at, false);
        self.members.remove(at);
        self.buckets
            .iter_mut()
            .filter(|b| b.member == Some(no))
            .for_each(|b| b.member = None);
        if self.active == Some(no) {
            self.choose_active(None);
            self.send_learning = true;
        }
    }

    /// Sets whether other protocols allow packets on a member.
    pub(super) fn set_may_enable(&mut self, no: OfPort, may_enable: bool) {
        if let Some(member) = self.member_mut(no) {
            member.may_enable = may_enable;
        }
    }

    pub(super) fn member(&self, no: OfPort) -> Option<&Member> {
        self.members.iter().find(|m| m.link.no == no)
    }
    fn member_mut(&mut self, no: OfPort) -> Option<&mut Member> {
        self.members.iter_mut().find(|m| m.link.no == no)
    }
    /// The member of an interface.
    pub(super) fn by_name(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|m| m.link.name == name)
    }
    pub(super) fn is_primary(&self, member: &Member) -> bool {
        self.settings.primary.as_deref() == Some(member.link.name.as_str())
    }

    /// Whether the bond is an active-backup one until LACP finds a partner.
    fn falls_back(&self) -> bool {
        self.settings.fallback
            && self.settings.mode != Mode::ActiveBackup
            && self.lacp == LacpState::Configured
    }
    /// Whether buckets are rebalanced.
    pub(super) fn is_balanced(&self) -> bool {
        self.settings.rebalance_ms != 0
            && self.settings.mode != Mode::ActiveBackup
            && !(self.settings.fallback && self.lacp == LacpState::Configured)
    }
    /// Whether the datapath hashes packets.
    pub(super) fn hashes(&self) -> bool {
        self.settings.mode == Mode::BalanceTcp && !self.falls_back()
    }
    /// The mode in which packets are sent. `None`: none is.
    pub(super) fn sends(&self) -> Option<Mode> {
        match (self.lacp, self.settings.mode) {
            (LacpState::Configured, _) => self.settings.fallback.then_some(Mode::ActiveBackup),
            (LacpState::Off, Mode::BalanceTcp) => None,
            (_, mode) => Some(mode),
        }
    }

    fn reset_buckets(&mut self, now_ms: u64) {
        self.buckets.clear();
        if self.settings.mode != Mode::ActiveBackup && !self.falls_back() {
            self.buckets.resize(BUCKETS, Bucket::default());
            self.next_rebalance_ms = now_ms + self.settings.rebalance_ms;
        }
    }

    /// Does what is due: links, the active member, buckets.
    pub(super) fn run(&mut self, lacp: LacpState, now_ms: u64) {
        if self.lacp != lacp {
            self.lacp = lacp;
            if self.falls_back() || self.buckets.is_empty() {
                self.reset_buckets(now_ms);
            }
        }
        for at in 0..self.members.len() {
            self.follow_link(at, now_ms);
        }
        let primary = self.members.iter().find(|m| m.enabled && self.is_primary(m));
        let primary = primary
            .filter(|_| self.settings.mode == Mode::ActiveBackup)
            .map(|m| m.link.no);
        let active = self.active.and_then(|no| self.member(no));
        if active.is_none_or(|m| !m.enabled) || primary.is_some_and(|no| self.active != Some(no)) {
            self.choose_active(Some(now_ms));
        }
        self.fill_buckets(now_ms);
    }

    /// When it has to run again, ms. `None`: only after an event.
    pub(super) fn wake_ms(&self) -> Option<u64> {
        let delays = self.members.iter().filter_map(|m| m.delay_ends_ms);
        let changed_ms = self.interval_changed_ms.map_or(0, |ms| ms + 1);
        let rebalance_ms = self.next_rebalance_ms.max(changed_ms);
        let rebalance = (self.is_balanced() && !self.buckets.is_empty()).then_some(rebalance_ms);
        delays.chain(rebalance).min()
    }

    /// Enables or disables a member by its link, after the delays.
    fn follow_link(&mut self, at: usize, now_ms: u64) {
        let (updelay_ms, downdelay_ms) = (self.settings.updelay_ms, self.settings.downdelay_ms);
        let Some(m) = self.members.get_mut(at) else { return };
        let up = m.link.carrier && m.may_enable;
        let name = &m.link.name;
        if (up == m.enabled) != m.delay_ends_ms.is_none() {
            let state = |up| if up { "up" } else { "down" };
            log::info!(target: "bond", per_min = 5, burst = 20; "member {name}: link state {}", state(up));
            if up == m.enabled {
                m.delay_ends_ms = None;
                let what = if up { "disabled" } else { "enabled" };
                log::info!(target: "bond", per_min = 5, burst = 20; "member {name}: will not be {what}");
            } else {
                let delay_ms = if up { updelay_ms } else { downdelay_ms };
                m.delay_ends_ms = Some(now_ms + delay_ms);
                if delay_ms > 0 {
                    let what = if up { "enabled" } else { "disabled" };
                    log::info!(target: "bond", per_min = 5, burst = 20;
                        "member {name}: will be {what} if it stays {} for {delay_ms} ms", state(up));
                }
            }
        }
        if m.delay_ends_ms.is_some_and(|ends_ms| now_ms >= ends_ms) {
            self.enable(at, up);
        }
    }

    fn enable(&mut self, at: usize, enable: bool) {
        let Some(m) = self.members.get_mut(at) else { return };
        m.delay_ends_ms = None;
        if m.enabled != enable {
            m.enabled = enable;
            self.send_learning |= !enable;
            self.came |= enable;
            let what = if enable { "enabled" } else { "disabled" };
            log::info!(target: "bond", "member {}: {what}", m.link.name);
        }
    }

    /// The member that should be active: the primary, the last one, any enabled one, or the one that will be
    /// enabled first.
    fn best(&self) -> Option<&Member> {
        let enabled = || self.members.iter().filter(|m| m.enabled);
        let soonest = || {
            let waiting = self.members.iter().filter(|m| m.may_enable);
            waiting
                .filter(|m| m.delay_ends_ms.is_some())
                .min_by_key(|m| m.delay_ends_ms)
        };
        enabled()
            .find(|m| self.is_primary(m))
            .or_else(|| enabled().find(|m| m.link.mac == self.active_mac))
            .or_else(|| enabled().next())
            .or_else(soonest)
    }

    /// Chooses the active member anew. Without a time, none is enabled before its delay ends.
    fn choose_active(&mut self, now_ms: Option<u64>) {
        let old = self.active;
        let best = self.best().map(|m| (m.link.no, m.enabled, m.delay_ends_ms));
        let name = &self.name;
        let Some((no, enabled, ends_ms)) = best.filter(|(_, enabled, _)| *enabled || now_ms.is_some()) else {
            self.active = None;
            if old.is_some() {
                self.active_moved();
                log::info!(target: "bond", per_min = 5, burst = 20; "bond {}: all members disabled", self.name);
            }
            return;
        };
        self.active = Some(no);
        let member = self.member(no).map_or("", |m| m.link.name.as_str());
        if enabled {
            log::info!(target: "bond", per_min = 5, burst = 20; "bond {name}: active member is now {member}");
        } else {
            let left = ends_ms.unwrap_or(0).saturating_sub(now_ms.unwrap_or(0));
            log::info!(target: "bond", per_min = 5, burst = 20;
                "bond {name}: active member is now {member}, skipping remaining {left} ms updelay \
                 (since no member was enabled)");
            if let Some(at) = self.members.iter().position(|m| m.link.no == no) {
                self.enable(at, true);
            }
        }
        self.send_learning = true;
        if old != self.active {
            self.active_moved();
        }
    }

    fn active_moved(&mut self) {
        let active = self.active.and_then(|no| self.member(no));
        self.active_mac = active.map_or([0; 6], |m| m.link.mac);
        self.active_changed = true;
    }

    /// Gives each bucket an enabled member. If a member was enabled, buckets without load are dealt anew.
    fn fill_buckets(&mut self, now_ms: u64) {
        let came = std::mem::take(&mut self.came);
        if came && self.buckets.iter().any(|b| b.bytes != 0) {
            // A link that comes takes its share of the load soon.
            let soon_ms = now_ms + self.settings.rebalance_ms / 2;
            self.next_rebalance_ms = self.next_rebalance_ms.min(soon_ms);
        }
        let enabled: Vec<OfPort> = self
            .members
            .iter()
            .filter(|m| m.enabled)
            .map(|m| m.link.no)
            .collect();
        for bucket in &mut self.buckets {
            let stays = bucket.member.is_some_and(|no| enabled.contains(&no));
            if stays && !(came && bucket.bytes == 0) {
                continue;
            }
            self.turn = self.turn.wrapping_add(1);
            bucket.member = match enabled.len() {
                0 => None,
                n => enabled.get(self.turn % n).copied(),
            };
        }
    }

    /// Adds bytes that were sent in a bucket.
    pub(super) fn account(&mut self, bucket: usize, bytes: u64) {
        if let Some(b) = self.buckets.get_mut(bucket) {
            b.bytes = b.bytes.saturating_add(bytes);
        }
    }

    /// Rebalances, if it is time. The loads of the interval have been accounted.
    pub(super) fn rebalance(&mut self, now_ms: u64) {
        let is_due = now_ms >= self.next_rebalance_ms && self.interval_changed_ms != Some(now_ms);
        if !self.is_balanced() || self.buckets.is_empty() || !is_due {
            return;
        }
        self.next_rebalance_ms = now_ms + self.settings.rebalance_ms;
        let enabled: Vec<&Member> = self.members.iter().filter(|m| m.enabled).collect();
        let mut loads = vec![MemberLoad::default(); enabled.len()];
        let mut order: Vec<(u8, Bucket)> = (0..=u8::MAX).zip(self.buckets.iter().copied()).collect();
        order.sort_by_key(|(_, b)| std::cmp::Reverse(b.bytes));
        for (bucket, b) in order.into_iter().filter(|(_, b)| b.bytes != 0) {
            let at = enabled.iter().position(|m| Some(m.link.no) == b.member);
            if let Some(load) = at.and_then(|at| loads.get_mut(at)) {
                load.bytes += b.bytes;
                load.buckets.push((bucket, b.bytes));
            }
        }
        let moves = plan(&mut loads);
        for m in &moves {
            let to = enabled.get(m.to).map(|e| e.link.no);
            if let Some(bucket) = self.buckets.get_mut(usize::from(m.bucket)) {
                bucket.member = to;
            }
        }
        if !moves.is_empty() {
            let all: Vec<String> = enabled
                .iter()
                .zip(&loads)
                .map(|(m, load)| format!("{}:{}kB", m.link.name, load.bytes / 1024))
                .collect();
            log::info!(target: "bond", "bond {}: rebalanced (now carrying: {})", self.name, all.join(" and "));
        }
        // Old load counts half as much in each interval.
        self.buckets.iter_mut().for_each(|b| b.bytes /= 2);
    }

    /// Whether gratuitous packets are due, once. With LACP the partner knows the members' state.
    pub(super) fn take_learning(&mut self) -> bool {
        let without_lacp = self.lacp == LacpState::Off && self.settings.mode != Mode::BalanceTcp
            || self.settings.fallback && self.lacp == LacpState::Configured;
        std::mem::take(&mut self.send_learning) && without_lacp && self.active.is_some()
    }

    /// Whether the active member's address is to be written to the database, once.
    pub(super) fn take_active_changed(&mut self) -> bool {
        std::mem::take(&mut self.active_changed)
    }

    /// Moves a bucket (`bond/migrate`).
    pub(super) fn migrate(&mut self, hash: &str, member: &str) -> Result<&'static str, &'static str> {
        if self.settings.mode != Mode::BalanceSlb {
            return Err("not an SLB bond");
        }
        if hash.bytes().any(|b| !b.is_ascii_digit()) {
            return Err("bad hash");
        }
        // Only the lowest eight bits count, so long numbers may wrap.
        let number = |n: usize, digit: u8| n.wrapping_mul(10).wrapping_add(usize::from(digit - b'0'));
        let bucket = hash.bytes().fold(0, number) % BUCKETS;
        let member = self.by_name(member).ok_or("no such member")?;
        if !member.enabled {
            return Err("cannot migrate to disabled member");
        }
        let no = member.link.no;
        if let Some(b) = self.buckets.get_mut(bucket) {
            b.member = Some(no);
        }
        Ok("migrated")
    }

    /// Makes a member active (`bond/set-active-member`).
    pub(super) fn set_active(&mut self, member: &str) -> Result<&'static str, &'static str> {
        let member = self.by_name(member).ok_or("no such member")?;
        if !member.enabled {
            return Err("cannot make disabled member active");
        }
        let no = member.link.no;
        if self.active == Some(no) {
            return Ok("no change");
        }
        log::info!(target: "bond", "bond {}: active member is now {}", self.name, member.link.name);
        self.active = Some(no);
        self.send_learning = true;
        self.active_moved();
        Ok("done")
    }

    /// Enables or disables a member at once, without the delay (`bond/enable-member`). A disabled member
    /// whose link is up is enabled again after `updelay_ms`.
    pub(super) fn set_enabled(&mut self, member: &str, enable: bool) -> Result<&'static str, &'static str> {
        let at = self.members.iter().position(|m| m.link.name == member);
        self.enable(at.ok_or("no such member")?, enable);
        Ok(if enable { "enabled" } else { "disabled" })
    }
}
