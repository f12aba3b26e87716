//! The control thread: devices are made, found, given up and destroyed.

use super::*;
use crate::{Control, Spec, Wanted};
use kernel::FakeHost;
use std::time::{Duration, Instant};

const WANTED: Wanted = Wanted {
    mac: [2, 0, 0, 0, 0, 1],
    mtu: 1400,
    link_up: true,
};

fn spec(name: &str) -> Spec {
    Spec {
        name: name.into(),
        size: 256,
        packed: false,
        bounce_bytes: Some(1 << 20),
        irq_mask: Some("00000003".into()),
        journal: None,
        wanted: WANTED,
    }
}

fn until(what: &str, mut probe: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !probe() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn start() -> (Arc<FakeHost>, Control) {
    let host = Arc::new(FakeHost::default());
    let control = Control::start(Arc::clone(&host) as Arc<dyn crate::Host>).unwrap();
    (host, control)
}

#[test]
fn a_device_is_made_and_destroyed() {
    let (host, control) = start();
    let dummy = Dummy::default();
    let id = control.add(spec("pod"), Box::new(dummy.clone())).unwrap();
    until("rings", || dummy.running() == [0, 1]);
    until("the netdev", || dummy.has("netdev=net-pod"));
    let device = host.device("pod");
    let config = device.state.lock().config.clone();
    assert_eq!(config, [2, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0x78, 5]);
    assert_eq!(
        *host.log.lock(),
        [
            "create pod",
            "pod/bounce_size=1048576",
            "pod/vq0/irq_cb_affinity=00000003",
            "pod/vq1/irq_cb_affinity=00000003"
        ]
    );
    // The driver gets its link's state.
    control.configure(
        id,
        Wanted {
            link_up: false,
            ..WANTED
        },
    );
    until("the link", || device.state.lock().config[6] == 0);
    until("an interrupt", || device.state.lock().config_interrupts > 0);
    host.log.lock().clear();
    control.remove(id, true, "the port was removed");
    until("its end", || host.devices.lock().is_empty());
    assert_eq!(*host.log.lock(), ["off the bus: pod", "destroy pod"]);
    assert!(dummy.running().is_empty() && dummy.has("gone: the port was removed"));
}

#[test]
fn many_come_and_go_at_once() {
    let (host, control) = start();
    for _ in 0..2 {
        let all: Vec<_> = (0..20)
            .map(|i| {
                let dummy = Dummy::default();
                let id = control.add(spec(&format!("pod{i}")), Box::new(dummy.clone()));
                (id.unwrap(), dummy)
            })
            .collect();
        for (_, dummy) in &all {
            until("rings", || dummy.running() == [0, 1]);
        }
        // Names that are just leaving are taken again.
        for (id, _) in all {
            control.remove(id, true, "the port was removed");
        }
    }
    until("their end", || host.devices.lock().is_empty());
}

#[test]
fn the_next_process_finds_the_device() {
    let (host, control) = start();
    let dummy = Dummy::default();
    control.add(spec("pod"), Box::new(dummy.clone())).unwrap();
    until("rings", || dummy.running() == [0, 1]);
    drop(control);
    assert!(dummy.running().is_empty() && dummy.has("gone: the switch ends"));
    assert!(host.devices.lock().contains_key("pod"), "it stays");
    host.log.lock().clear();

    let control = Control::start(Arc::clone(&host) as Arc<dyn crate::Host>).unwrap();
    let dummy = Dummy::default();
    control.add(spec("pod"), Box::new(dummy.clone())).unwrap();
    until("the device", || dummy.has("listening"));
    assert!(dummy.running().is_empty(), "rings wait for the other ports");
    control.settled();
    until("rings", || dummy.running() == [0, 1]);
    assert!(host.log.lock().is_empty(), "nothing is made or added");
}

#[test]
fn a_device_that_was_given_up_is_made_anew() {
    let (host, control) = start();
    let dummy = Dummy::default();
    let id = control.add(spec("pod"), Box::new(dummy.clone())).unwrap();
    until("rings", || dummy.running() == [0, 1]);
    let first = host.device("pod");
    first.give_up();
    until("another one", || {
        host.devices
            .lock()
            .get("pod")
            .is_some_and(|d| !Arc::ptr_eq(d, &first))
    });
    until("its rings", || dummy.running() == [0, 1]);
    assert!(dummy.has("unavailable: pod is destroyed and made anew: the kernel has given the device up"));

    // While this process has it open, another one does not get it.
    let other = Dummy::default();
    let others = Control::start(Arc::clone(&host) as Arc<dyn crate::Host>).unwrap();
    others.add(spec("pod"), Box::new(other.clone())).unwrap();
    until("a word", || {
        other.has("unavailable: another process serves /dev/vduse/pod")
    });
    drop(others);
    // A device that was given up while no process served it; and one that is not on the bus, which no driver
    // can use.
    control.remove(id, false, "a restart");
    host.device("pod").give_up();
    let dummy = Dummy::default();
    let id = control.add(spec("pod"), Box::new(dummy.clone())).unwrap();
    until("rings", || dummy.running() == [0, 1]);
    control.remove(id, false, "a restart");
    host.device("pod").state.lock().on_bus = false;
    let dummy = Dummy::default();
    control.add(spec("pod"), Box::new(dummy.clone())).unwrap();
    until("rings", || dummy.running() == [0, 1]);
    assert!(dummy.has("it was not on the vDPA bus"));
}

#[test]
fn without_the_module_it_waits() {
    let (host, control) = start();
    *host.absent.lock() = true;
    let dummy = Dummy::default();
    control.add(spec("pod"), Box::new(dummy.clone())).unwrap();
    until("a word", || {
        dummy.has("the kernel's module vduse is not loaded (modprobe vduse)")
    });
    *host.absent.lock() = false;
    until("rings", || dummy.running() == [0, 1]);
    // Two ports, one device: the second reports it.
    let second = Dummy::default();
    control.add(spec("pod"), Box::new(second.clone())).unwrap();
    until("a word", || {
        second.has("unavailable: another port has this device")
    });
}
