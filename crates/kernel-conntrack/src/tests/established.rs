//! Labels of new entries, against a table that plays the kernel.

use crate::entry::{EntryKey, Established, KernelEntry, TC_ZONES};
use crate::established::{Requests, keep_label};
use heddle_conntrack::{Endpoint, Tuple};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;

/// A kernel whose entries have labels only if that was made possible.
#[derive(Default)]
struct Fake {
    entries: HashMap<EntryKey, KernelEntry>,
    labels: bool,
    requests: usize,
    /// Number of the request that fails, from 1 on.
    fails: usize,
}

impl Fake {
    fn request(&mut self) -> io::Result<()> {
        self.requests += 1;
        match self.requests == self.fails {
            true => Err(Errno::NOBUFS.into()),
            false => Ok(()),
        }
    }
}

impl Requests for Fake {
    fn write_new(&mut self, e: &Established) -> io::Result<()> {
        self.request()?;
        let entry = KernelEntry {
            key: e.key(),
            reply: e.reply,
            mark: e.mark,
            label: if self.labels { e.label } else { 0 },
            replied: true,
            tcp_state: 0,
        };
        self.entries.insert(e.key(), entry);
        Ok(())
    }
    fn read_entry(&mut self, key: &EntryKey) -> io::Result<Option<KernelEntry>> {
        self.request()?;
        Ok(self.entries.get(key).copied())
    }
    fn remove_entry(&mut self, key: &EntryKey) -> io::Result<()> {
        self.request()?;
        self.entries.remove(key);
        Ok(())
    }
    fn make_labels(&mut self) -> io::Result<()> {
        self.request()?;
        self.labels = true;
        Ok(())
    }
}

#[test]
fn an_entry_whose_label_is_lost_does_not_stay() {
    let end = |addr, l4| Endpoint { addr, l4 };
    let orig = Tuple {
        src: end(1, 10),
        dst: end(2, 20),
        proto: 17,
        ipv6: false,
    };
    let e = Established {
        zone: *TC_ZONES.start(),
        orig,
        reply: orig.reversed(),
        mark: 0,
        label: 7,
        timeout_s: 60,
        assured: false,
        for_cards: false,
    };
    let added = |fails| {
        let mut fake = Fake {
            fails,
            ..Fake::default()
        };
        fake.write_new(&e).unwrap();
        let done = keep_label(&mut fake, &e);
        (done, fake)
    };
    let (done, fake) = added(0);
    done.unwrap();
    assert_eq!((fake.requests, fake.entries[&e.key()].label), (5, 7));
    // After the first one, each request may fail: read, label, removal, addition.
    for fails in 2..=5 {
        let (done, fake) = added(fails);
        assert_eq!(
            done.unwrap_err().raw_os_error(),
            Some(Errno::NOBUFS.raw_os_error())
        );
        assert!(fake.entries.is_empty(), "request {fails} failed");
    }
}
