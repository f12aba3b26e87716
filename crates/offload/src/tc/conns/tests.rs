//! Connections against a table that plays the kernel.

use super::*;
use crate::tc::conn_table::{EntryTable, ROOM_CHECK, read_use};
use heddle_conntrack::{Endpoint, Tuple};
use heddle_kernel_conntrack::Established;
use heddle_kernel_conntrack::established::Listed;
use parking_lot::Mutex;
use rustix::io::Errno;

/// The kernel's table as these tests have it.
#[derive(Default)]
struct Content {
    entries: HashSet<EntryKey>,
    /// Tuples whose addition fails after it was done.
    fails: HashSet<Tuple>,
    /// Removals fail.
    stuck: bool,
    /// Remaining life of all entries, seconds.
    life_s: u32,
    full: bool,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Content>>);

impl EntryTable for Fake {
    fn add(&mut self, e: &Established) -> io::Result<()> {
        let content = &mut *self.0.lock();
        if !content.entries.insert(e.key()) {
            return Err(Errno::EXIST.into());
        }
        match content.fails.contains(&e.orig) {
            true => Err(Errno::NOBUFS.into()),
            false => Ok(()),
        }
    }
    fn remove(&mut self, keys: &[EntryKey]) -> io::Result<()> {
        let content = &mut *self.0.lock();
        if content.stuck {
            return Err(Errno::NOBUFS.into());
        }
        keys.iter().for_each(|k| _ = content.entries.remove(k));
        Ok(())
    }
    fn prolong(&mut self, _: &[EntryKey], _: u32) -> io::Result<()> {
        Ok(())
    }
    fn list(&mut self) -> io::Result<Vec<Listed>> {
        let content = &*self.0.lock();
        let listed = |key: &EntryKey| Listed {
            key: *key,
            reply: key.orig.reversed(),
            timeout_s: Some(content.life_s),
        };
        Ok(content.entries.iter().map(listed).collect())
    }
    fn has_room(&self) -> bool {
        !self.0.lock().full
    }
}

/// Connections with such a table, in zone 5.
fn conns(kernel: &Fake) -> TcConns {
    let mut all = TcConns::default();
    let zones = KernelZones {
        forth: 40_960,
        back: 40_961,
    };
    all.zones.insert(5, zones);
    all.shared.state.lock().table = Some(Box::new(kernel.clone()));
    all
}

fn conn(number: u32) -> Offloadable {
    let end = |addr, l4| Endpoint { addr, l4 };
    let orig = Tuple {
        src: end(1, 10 + number),
        dst: end(2, 20),
        proto: UDP,
        ipv6: false,
    };
    Offloadable {
        id: ConnId {
            number,
            generation: 1,
        },
        zone: 5,
        replied: true,
        orig,
        reply: orig.reversed(),
        snat: false,
        dnat: false,
        mark: 3,
        label: 4,
    }
}

#[test]
fn connections_without_a_reply_stay_with_workers() {
    let c = Offloadable {
        replied: false,
        ..conn(1)
    };
    assert_eq!(TcConns::default().install(&c, false), Err(NO_REPLY));
}

#[test]
fn a_table_that_was_full_is_looked_at_again() {
    let kernel = Fake::default();
    let mut all = conns(&kernel);
    let n = u32::try_from(ROOM_CHECK).unwrap();
    let accepted = |all: &mut TcConns, numbers: std::ops::Range<u32>| {
        let attempts = numbers.map(|number| all.install(&conn(number), false).is_ok());
        attempts.filter(|ok| *ok).count()
    };
    assert_eq!(accepted(&mut all, 0..n), ROOM_CHECK);
    kernel.0.lock().full = true;
    accepted(&mut all, n..2 * n);
    assert_eq!(accepted(&mut all, 2 * n..3 * n), 0);
    all.remove(&[conn(0).id]);
    assert_eq!(accepted(&mut all, 3 * n..4 * n), 0);
    kernel.0.lock().full = false;
    assert!(accepted(&mut all, 4 * n..6 * n) >= ROOM_CHECK);
}

#[test]
fn use_is_known_after_a_list() {
    let mut kernel = Fake::default();
    let mut all = conns(&kernel);
    let id = conn(1).id;
    all.install(&conn(1), false).unwrap();
    assert_eq!(all.used(id), ConnUse::Unknown);
    kernel.0.lock().life_s = LIFE_S / 2;
    read_use(&all.shared, &mut kernel);
    assert_eq!((all.used(id), all.used(id)), (ConnUse::Used, ConnUse::Unknown));
    // Between the two steps a busy machine may need more than a second, which looks like a packet.
    let rests = (0..10).any(|_| {
        let now = |e: &mut ConnEntry| (e.life_s, e.read) = (f64::from(LIFE_S / 2), Instant::now());
        all.shared.state.lock().installed.values_mut().for_each(now);
        read_use(&all.shared, &mut kernel);
        all.used(id) == ConnUse::Rests
    });
    assert!(rests);
    assert_eq!(all.used(id), ConnUse::Unknown);
    kernel.0.lock().entries.clear();
    read_use(&all.shared, &mut kernel);
    assert_eq!(all.used(id), ConnUse::Ended);
}

/// A connection whose original direction is translated, so it has two entries.
fn translated(number: u32) -> Offloadable {
    let mut c = conn(number);
    c.reply.dst.addr = 9;
    c.snat = true;
    c
}

#[test]
fn entries_without_a_connection_are_removed() {
    let kernel = Fake::default();
    let mut all = conns(&kernel);
    let c = translated(1);
    // The second entry fails, then the first one.
    for failing in [c.orig, c.reply.reversed()] {
        kernel.0.lock().fails = HashSet::from([failing]);
        assert!(all.install(&c, false).is_err());
        let state = &mut *all.shared.state.lock();
        let old = std::mem::take(&mut state.old_backs);
        let left = kernel.0.lock().entries.clone();
        assert_eq!(left, old.into_iter().collect(), "those that the thread removes");
        kernel.0.lock().entries.clear();
    }
}

#[test]
fn entries_that_could_not_be_removed_get_another_try() {
    let kernel = Fake::default();
    let mut all = conns(&kernel);
    (1..=2).for_each(|n| all.install(&conn(n), false).unwrap());
    kernel.0.lock().stuck = true;
    all.remove(&[conn(1).id, conn(2).id]);
    assert_eq!((all.len(), kernel.0.lock().entries.len()), (0, 2));
    assert!(all.shared.state.lock().has_work());
    // An entry of a new connection is none of those that are to be removed.
    kernel.0.lock().stuck = false;
    all.install(&conn(2), false).unwrap();
    all.shared.state.lock().remove_again();
    let left: Vec<Tuple> = kernel.0.lock().entries.iter().map(|key| key.orig).collect();
    assert_eq!(left, [conn(2).orig]);
    assert!(!all.shared.state.lock().has_work());
}

#[test]
fn the_thread_tries_removals_again() {
    let kernel = Fake::default();
    let mut all = conns(&kernel);
    all.install(&conn(1), false).unwrap();
    let (shared, mut list_table) = (Arc::clone(&all.shared), kernel.clone());
    let handle = std::thread::spawn(move || run(&shared, &mut list_table));
    let _ = all.shared.thread.set(handle.thread().clone());
    kernel.0.lock().stuck = true;
    all.ender().end(conn(1).id.number);
    while !all.shared.state.lock().has_work() {
        std::thread::yield_now();
    }
    kernel.0.lock().stuck = false;
    while !kernel.0.lock().entries.is_empty() {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(all);
    handle.join().unwrap();
}

#[test]
fn flows_in_too_many_zones_stay_with_workers_for_good() {
    let mut all = conns(&Fake::default());
    all.claim = Some(UnixDatagram::unbound().unwrap());
    all.left_zones = HashSet::from([*TC_ZONES.end()]);
    let refused = (0..=2048).map(|n| all.zones_of(100 + n)).find_map(Result::err);
    assert_eq!(refused, Some(NO_ZONE_LEFT));
    assert!(!NO_ZONE_LEFT.may_pass());
    // Zones of earlier flows stay.
    assert!(all.zones_of(100).is_ok() && all.zones_of(5).is_ok());
}
