//! Messages, rings and regions in any order. Each message gets one reply, rings run only between DRIVER_OK
//! and the next reset, and a driver that behaves is served afterwards.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Status(u8),
    State(u32),
    Update(u64, u64),
    Unknown(u32),
    Negotiate(u64),
    Rings(bool),
    Ring(usize, u32, u64),
    Region(u64, u64, bool),
    NoRegions,
    Traffic,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let status = prop_oneof![Just(0), Just(0xb), Just(0xf), Just(0x8f), any::<u8>()];
    let address = prop_oneof![
        Just(0),
        Just(kernel::RINGS_AT),
        kernel::RINGS_AT - 8..kernel::RINGS_AT + kernel::RINGS + 8,
        any::<u64>()
    ];
    let step = prop_oneof![
        3 => status.prop_map(Step::Status),
        1 => (0..4_u32).prop_map(Step::State),
        1 => (any::<u64>(), any::<u64>()).prop_map(|(a, b)| Step::Update(a, b)),
        1 => Just(Step::Update(0, u64::MAX)),
        1 => any::<u32>().prop_map(|n| Step::Unknown(n.max(3))),
        1 => any::<u64>().prop_map(|n| Step::Negotiate(n & n >> 3)),
        2 => any::<bool>().prop_map(Step::Rings),
        1 => (0..2_usize, 0..300_u32, address.clone()).prop_map(|(i, n, a)| Step::Ring(i, n, a)),
        1 => (address, 0..1_u64 << 20, any::<bool>()).prop_map(|(a, n, w)| Step::Region(a, n, w)),
        1 => Just(Step::NoRegions),
        3 => Just(Step::Traffic),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..40)
}

fn play(rig: &mut Rig, step: Step) {
    match step {
        Step::Status(s) => drop(rig.status(s)),
        Step::State(i) => drop(rig.request(0, &i.to_ne_bytes())),
        Step::Update(a, b) => drop(rig.request(2, &[a.to_ne_bytes(), b.to_ne_bytes()].concat())),
        Step::Unknown(kind) => assert_eq!(rig.request(kind, &[]).result, 1),
        Step::Negotiate(bits) => {
            let needed = Features::VERSION_1 | Features::ACCESS_PLATFORM;
            rig.kernel.state.lock().chosen = bits & crate::spec::servable(OFFER).bits() | needed.bits();
        }
        Step::Rings(ready) => {
            // A driver sets rings up while the device is reset.
            if rig.device.running().is_empty() {
                rig.guest.set_up(&rig.kernel);
                rig.kernel.state.lock().queues[1].ready = ready;
            }
        }
        Step::Ring(i, size, at) => {
            let mut s = rig.kernel.state.lock();
            let q = &mut s.queues[i];
            (q.size, q.desc, q.driver, q.ready) = (size, at, at.wrapping_add(1 << 12), true);
        }
        Step::Region(start, len, writable) => {
            let last = start.saturating_add(len);
            rig.kernel.state.lock().regions.push(heddle_sys::vduse::Entry {
                offset: len & 0xfff,
                start,
                last,
                readable: true,
                writable,
            });
        }
        Step::NoRegions => rig.kernel.state.lock().regions.clear(),
        Step::Traffic => {
            for n in 0..3 {
                rig.device.send(&[n; 60]);
                rig.device.receive();
                rig.serve();
            }
        }
        Step::Restart => {
            rig.session.take().unwrap().close(&mut rig.device, "a restart");
            rig.open();
            rig.resume();
        }
    }
    assert_eq!(rig.kernel.n_waiting(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn any_order_is_survived(packed: bool, steps in steps()) {
        let layout = if packed { Features::RING_PACKED } else { Features::empty() };
        let mut rig = Rig::new(layout);
        let regions = rig.kernel.state.lock().regions.clone();
        for step in steps {
            play(&mut rig, step);
        }
        rig.kernel.state.lock().regions = regions;
        rig.status(0);
        prop_assert!(rig.device.running().is_empty());
        rig.probe();
        rig.exchange(1);
    }
}
