//! Load and a floor for ports of AF_XDP.
//!
//! * `nic send DEVICE BYTES SECONDS`: sends frames as fast as it can, and prints their number.
//! * `nic forward DEVICE DEVICE`: moves frames between two devices until it is killed, and does nothing else.
//!   A switch cannot be faster. `forward-copy`: the devices share no memory, so each packet is copied.

use heddle_packet::{BURST, Burst, Packet, Pool};
use heddle_xsk::{Program, Queue, QueueConfig, Rx, Tx};
use std::time::{Duration, Instant};

struct Device {
    rx: Rx,
    tx: Tx,
    _program: Program,
    _queue: Queue,
}

/// `room_for`: see [`QueueConfig::room_for`].
fn open(name: &str, room_for: u32) -> Result<Device, String> {
    let text = |e: std::io::Error| format!("{name}: {e}");
    let link = heddle_sys::LinkCtl::new().map_err(text)?;
    let ifindex = link.ifindex(name).map_err(text)?;
    let mut program = Program::attach(ifindex, true).map_err(|e| e.to_string())?;
    let config = QueueConfig {
        ifindex,
        queue: 0,
        rx_frames: 2048,
        tx_frames: 2048,
        numa: None,
        zero_copy: false,
        checksums: true,
        need_wakeup: true,
        room_for,
    };
    let (queue, rx, tx) = Queue::open(config).map_err(text)?;
    program.lead(0, &queue).map_err(|e| e.to_string())?;
    Ok(Device {
        rx,
        tx,
        _program: program,
        _queue: queue,
    })
}

fn send(device: &mut Device, bytes: usize, seconds: u64) -> u64 {
    // Local addresses; a type that no stack knows.
    let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5];
    frame.resize(bytes.max(60), 0);
    let packet = Packet::from_bytes(&frame);
    let (until, mut sent) = (Instant::now() + Duration::from_secs(seconds), 0);
    while Instant::now() < until {
        sent += (0..BURST).filter(|_| device.tx.push(&packet).is_ok()).count() as u64;
        let _ = device.tx.flush();
    }
    sent
}

fn forward(pool: &mut Pool, from: &mut Rx, to: &mut Tx) {
    let mut burst = Burst::new();
    if from.rx(pool, &mut burst) > 0 {
        for packet in &burst {
            let _ = to.push(packet);
        }
        let _ = to.flush();
        pool.put_all(burst);
        from.complete();
    }
}

fn main() -> Result<(), String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["send", device, bytes, seconds] => {
            let number = |text: &str| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
            let bytes = usize::try_from(number(bytes)?).map_err(|e| e.to_string())?;
            let seconds = number(seconds)?;
            println!("{}", send(&mut open(device, 1)?, bytes, seconds));
        }
        [how @ ("forward" | "forward-copy"), one, other] => {
            let room_for = if *how == "forward" { 2 } else { 1 };
            let (mut one, mut other) = (open(one, room_for)?, open(other, room_for)?);
            let mut pool = Pool::new(256);
            loop {
                forward(&mut pool, &mut one.rx, &mut other.tx);
                forward(&mut pool, &mut other.rx, &mut one.tx);
            }
        }
        _ => {
            return Err(
                "usage: nic send DEVICE BYTES SECONDS | nic forward|forward-copy DEVICE DEVICE".into(),
            );
        }
    }
    Ok(())
}
