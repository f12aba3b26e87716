//! Shared helpers of the tests against the real `ovs-ofctl`.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod flows;

use heddle_openflow::message::{
    Capabilities, Hello, Message, MpReply, MpRequest, SwitchConfig, SwitchFeatures, TableFeatures,
};
use heddle_openflow::{DecodeContext, Version, decode, encode, frame_len};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Whether the machine has `ovs-ofctl`; without it these tests have nothing to compare with.
pub(crate) fn have_ofctl() -> bool {
    let found = Command::new("ovs-ofctl")
        .arg("--version")
        .output()
        .is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("skipped: ovs-ofctl is not installed");
    }
    found
}

/// Output of `ovs-ofctl` for a message.
pub(crate) fn print(message: &[u8]) -> String {
    print_all(&[message]).remove(0)
}

/// Outputs of `ovs-ofctl` for several messages, in one run.
pub(crate) fn print_all(messages: &[&[u8]]) -> Vec<String> {
    let dir = tempfile();
    let mut all = Vec::new();
    for chunk in messages.chunks(50) {
        for (i, m) in chunk.iter().enumerate() {
            let hex: String = m.iter().map(|b| format!("{b:02x}")).collect();
            // Long messages do not fit on a command line.
            let out = if hex.len() < 100_000 {
                Command::new("ovs-ofctl").args(["ofp-print", &hex, "2"]).output()
            } else {
                let file = dir.join(format!("m{i}"));
                std::fs::write(&file, &hex).expect("temporary file");
                let script = format!("ovs-ofctl ofp-print $(cat {}) 2", file.display());
                Command::new("sh").args(["-c", &script]).output()
            };
            let out = out.expect("ovs-ofctl runs");
            all.push(
                String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr),
            );
        }
    }
    let _ = std::fs::remove_dir_all(&dir);
    all
}

/// A new directory of our own.
pub(crate) fn tempfile() -> std::path::PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static N: AtomicU32 = AtomicU32::new(0);
    let n = N.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("heddle-openflow-{}-{n}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("temporary directory");
    dir
}

/// Runs `ovs-ofctl` against a switch that is this test: `answer` gives a reply to messages without a standard
/// reply. Returns the client's output and every message that it sent.
pub(crate) fn with_switch(
    version: Version,
    args: &[&str],
    rest: &[&str],
    answer: impl Fn(&Message) -> Option<Message>,
) -> (String, Vec<Vec<u8>>) {
    let dir = tempfile();
    let socket = dir.join("s");
    let listener = UnixListener::bind(&socket).expect("socket");
    let mut child = Command::new("ovs-ofctl")
        .args(["-O", version.name(), "-t", "10"])
        .args(args)
        .arg(format!("unix:{}", socket.display()))
        .args(rest)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("ovs-ofctl runs");
    listener.set_nonblocking(true).expect("nonblocking");
    let mut sent = Vec::new();
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        match listener.accept() {
            Ok((stream, _)) => serve(version, stream, &answer, &mut sent),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
        if child.try_wait().expect("child").is_some() {
            break;
        }
    }
    let _ = child.kill();
    let out = child.wait_with_output().expect("child");
    cleanup(&dir);
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (text, sent)
}

fn cleanup(dir: &Path) {
    let _ = std::fs::remove_dir_all(dir);
}

fn serve(
    version: Version,
    mut s: UnixStream,
    answer: &impl Fn(&Message) -> Option<Message>,
    sent: &mut Vec<Vec<u8>>,
) {
    s.set_nonblocking(false).expect("blocking");
    s.set_read_timeout(Some(Duration::from_secs(30)))
        .expect("timeout");
    let send = |s: &mut UnixStream, xid, m: &Message| {
        for part in encode(version, xid, m).expect("encodes") {
            s.write_all(&part).ok();
        }
    };
    send(&mut s, 1, &Message::Hello(Hello { bitmap: None }));
    let mut buffer = Vec::new();
    let mut chunk = [0; 65536];
    loop {
        while let Some(len) = frame_len(&buffer).expect("framing") {
            if buffer.len() < len {
                break;
            }
            let bytes: Vec<u8> = buffer.drain(..len).collect();
            sent.push(bytes.clone());
            let cx = DecodeContext {
                flow_mod_table_id: true,
            };
            let (header, m) = match decode(&bytes, &cx) {
                Ok(x) => x,
                Err(e) => {
                    s.write_all(&e.error.encode(version, e.header.xid)).ok();
                    continue;
                }
            };
            let reply = answer(&m).or_else(|| standard_reply(&m));
            if let Message::Unsupported(u) = &m {
                s.write_all(&u.error.encode(version, header.xid)).ok();
            }
            if let Some(reply) = reply {
                send(&mut s, header.xid, &reply);
            }
        }
        match s.read(&mut chunk) {
            Ok(0) | Err(_) => return,
            Ok(n) => buffer.extend_from_slice(&chunk[..n]),
        }
    }
}

fn table_zero() -> TableFeatures {
    TableFeatures {
        any_properties: true,
        next: vec![1, 2],
        max_entries: 1000,
        ..TableFeatures::default()
    }
}

/// Reply of any switch to a message.
fn standard_reply(m: &Message) -> Option<Message> {
    Some(match m {
        Message::EchoRequest(d) => Message::EchoReply(d.clone()),
        Message::BarrierRequest => Message::BarrierReply,
        Message::FeaturesRequest => Message::FeaturesReply(SwitchFeatures {
            datapath_id: 0x1234,
            n_tables: 254,
            capabilities: Capabilities::FLOW_STATS | Capabilities::TABLE_STATS,
            actions: 0xfff,
            ..SwitchFeatures::default()
        }),
        Message::GetConfigRequest => Message::GetConfigReply(SwitchConfig::default()),
        Message::MultipartRequest {
            body: MpRequest::PortDesc(_),
            ..
        } => Message::MultipartReply {
            more: false,
            body: MpReply::PortDesc(Vec::new()),
        },
        Message::MultipartRequest {
            body: MpRequest::Table,
            ..
        } => Message::MultipartReply {
            more: false,
            body: MpReply::Table(Vec::new()),
        },
        Message::MultipartRequest {
            body: MpRequest::TableFeatures(_),
            ..
        } => Message::MultipartReply {
            more: false,
            body: MpReply::TableFeatures(vec![table_zero()]),
        },
        _ => return None,
    })
}
