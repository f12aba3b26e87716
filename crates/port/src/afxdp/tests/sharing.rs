//! Two devices whose sockets share memory, in copy mode. The kernel accepts the frames of one in the transmit
//! ring of the other, and gives them back. Devices are removed and opened again meanwhile.

use super::*;
use crate::afxdp::queues::{AfxdpTx, Senders};
use crate::rates::Share;
use heddle_sys::Tsc;
use heddle_xsk::{Program, Queue, QueueConfig, Rx, Tx};

/// A device of this namespace, opened without a port.
struct Opened {
    rx: Rx,
    tx: Tx,
    queue: Queue,
    _program: Program,
}

const FRAMES: u32 = 64;

/// Sockets of one process share memory, so each test here runs alone.
static ALONE: parking_lot::Mutex<()> = parking_lot::const_mutex(());

fn open(name: &str) -> Opened {
    let ifindex = heddle_sys::LinkCtl::new().unwrap().ifindex(name).unwrap();
    let mut program = Program::attach(ifindex, true).unwrap();
    let config = QueueConfig {
        ifindex,
        queue: 0,
        rx_frames: FRAMES,
        tx_frames: FRAMES,
        numa: None,
        zero_copy: false,
        checksums: true,
        need_wakeup: true,
        room_for: 4,
    };
    let (queue, rx, tx) = Queue::open(config).unwrap();
    program.lead(0, &queue).unwrap();
    Opened {
        rx,
        tx,
        queue,
        _program: program,
    }
}

fn sh(command: &str) {
    assert!(
        Command::new("sh")
            .args(["-c", command])
            .status()
            .unwrap()
            .success(),
        "{command}"
    );
}

/// Forwards what arrives at one device to the other, until `n` packets have gone.
fn forward(from: &mut Opened, to: &mut Opened, n: usize) {
    let (mut pool, mut burst) = (Pool::new(64), Burst::new());
    let (end, mut done) = (Instant::now() + Duration::from_secs(30), 0);
    while done < n && Instant::now() < end {
        from.rx.rx(&mut pool, &mut burst);
        for packet in burst.iter().filter(|p| p.head().starts_with(&[2, 0, 0, 0, 0, 1])) {
            to.tx.push(packet).unwrap();
            done += 1;
        }
        to.tx.flush().unwrap();
        pool.put_all(std::mem::take(&mut burst));
        from.rx.complete();
    }
    assert_eq!(done, n);
}

#[test]
fn a_queue_that_sends_nothing_more_returns_frames() {
    let _alone = ALONE.lock();
    let possible = with_pair(|| {
        sh("ip link add b0 type veth peer name b1 && ip link set b0 up && ip link set b1 up");
        let (mut one, other) = (open("a0"), open("b0"));
        let source = AfxdpPort::open("a1", &options(&[]), None).unwrap();
        let senders = Arc::new(Senders::default());
        senders.set(vec![other.tx]);
        let mut tx = AfxdpTx::new(senders, Share::new(Arc::default(), 0));
        let (mut pool, mut burst) = (Pool::new(64), Burst::new());
        let end = Instant::now() + Duration::from_secs(30);
        // A device that is down keeps its packets.
        sh("ip link set b0 down");
        let mut reports = Vec::new();
        while other.queue.sent_without_copy() < 2 {
            assert!(Instant::now() < end, "no packet is sent without a copy");
            let packet = Packet::from_bytes(&frame(1, 1000));
            source.open_tx(0, 1).unwrap().tx(&mut pool, &[&packet]);
            one.rx.rx(&mut pool, &mut burst);
            let ours = |p: &&Packet| p.head().starts_with(&[2, 0, 0, 0, 0, 1]);
            for packet in burst.iter().filter(ours) {
                reports.push(tx.tx(&mut pool, &[packet]).waits);
            }
            pool.put_all(std::mem::take(&mut burst));
            one.rx.complete();
        }
        // One report is enough: the worker calls again until all frames are back.
        assert!(reports[0] && !reports[1]);
        let before = Tsc::now();
        assert!(tx.release(&mut pool).next.is_some_and(|due| due > before));
        sh("ip link set b0 up");
        tx.tx(&mut pool, &[&Packet::from_bytes(&frame(1, 100))]);
        while tx.release(&mut pool).next.is_some() {
            assert!(Instant::now() < end, "the frames do not come back");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    if !possible {
        eprintln!("no namespaces or veth devices: skipped");
    }
}

#[test]
fn frames_go_from_device_to_device() {
    let _alone = ALONE.lock();
    let possible = with_pair(|| {
        let pair = "ip link add b0 type veth peer name b1 && ip link set b0 up && ip link set b1 up";
        sh(pair);
        let (mut one, mut other) = (open("a0"), open("b0"));
        let source = AfxdpPort::open("a1", &options(&[]), None).unwrap();
        let mut send = source.open_tx(0, 1).unwrap();
        let mut pool = Pool::new(64);
        // More packets than all frames together.
        let mut cross = |one: &mut Opened, other: &mut Opened| {
            let sink = AfxdpPort::open("b1", &options(&[]), None).unwrap();
            let mut rx = sink.open_rx(1).unwrap();
            let before = other.queue.sent_without_copy();
            for round in 0..40 {
                let sent: Vec<_> = (0..16).map(|n| frame(n + round, 300 + n * 60)).collect();
                let packets: Vec<_> = sent.iter().map(|b| Packet::from_bytes(b)).collect();
                assert_eq!(send.tx(&mut pool, &packets.iter().collect::<Vec<_>>()).sent, 16);
                forward(one, other, 16);
                assert_eq!(receive(&mut rx[0], 16), sent, "round {round}");
            }
            other.queue.sent_without_copy() - before
        };
        assert!(cross(&mut one, &mut other) > 320);
        // Packets that the other device has not sent when it is removed.
        sh("ip link set b0 down");
        let packets: Vec<_> = (0..16).map(|n| Packet::from_bytes(&frame(n, 1000))).collect();
        for _ in 0..3 {
            assert_eq!(
                source
                    .open_tx(0, 1)
                    .unwrap()
                    .tx(&mut Pool::new(64), &packets.iter().collect::<Vec<_>>())
                    .sent,
                16
            );
            let (mut pool, mut burst) = (Pool::new(64), Burst::new());
            while one.rx.rx(&mut pool, &mut burst) > 0 {
                for packet in &burst {
                    let _ = other.tx.push(packet);
                }
                let _ = other.tx.flush();
                pool.put_all(std::mem::take(&mut burst));
                one.rx.complete();
            }
        }
        sh("ip link del b0");
        drop(other);
        sh(pair);
        let mut other = open("b0");
        // The removed device had half of the frames. They come back some time after its socket was closed.
        let end = Instant::now() + Duration::from_secs(60);
        while cross(&mut one, &mut other) <= 320 {
            assert!(Instant::now() < end, "the frames do not come back");
            std::thread::sleep(Duration::from_millis(500));
            Queue::tidy_up();
        }
        // The receiver is opened again, with its frames on their way. The same device proves the release.
        drop(one);
        let mut one = open("a0");
        cross(&mut one, &mut other);
        assert!(cross(&mut one, &mut other) > 320);
    });
    if !possible {
        eprintln!("no namespaces or veth devices: skipped");
    }
}
