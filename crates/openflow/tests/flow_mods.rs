//! Flow mods that the real `ovs-ofctl` sends: they decode, encode back to the same bytes, and their actions
//! read as it prints them.

mod common;

use common::flows::FLOWS;
use common::{have_ofctl, print_all, with_switch};
use heddle_openflow::{DecodeContext, Message, Version, decode, encode};

const CX: DecodeContext = DecodeContext {
    flow_mod_table_id: true,
};

/// The fake switch and the decoder must agree with the client on every flow in every version.
#[test]
fn what_ofctl_sends_survives() {
    if !have_ofctl() {
        return;
    }
    let mut problems = Vec::new();
    for version in Version::ALL {
        if version == Version::V11 {
            // The client writes 1.1 matches in different forms, by their contents. The property tests cover a
            // round trip of their meaning.
            continue;
        }
        let dir = common::tempfile();
        let file = dir.join("flows");
        let flows: Vec<&str> = FLOWS
            .iter()
            .filter(|f| (f.1..=f.2).contains(&version))
            .map(|f| f.0)
            .collect();
        std::fs::write(&file, flows.join("\n") + "\n").expect("temporary file");
        let (text, sent) = with_switch(version, &["add-flows"], &[file.to_str().expect("UTF-8")], |_| {
            None
        });
        let _ = std::fs::remove_dir_all(&dir);
        let mods: Vec<&Vec<u8>> = sent
            .iter()
            .filter(|m| matches!(decode(m, &CX), Ok((_, Message::FlowMod(_))) | Err(_)))
            .collect();
        if mods.len() != flows.len() {
            problems.push(format!(
                "{version:?}: {} of {} flows came: {text}",
                mods.len(),
                flows.len()
            ));
        }
        let printed = print_all(&mods.iter().map(|m| m.as_slice()).collect::<Vec<_>>());
        for ((bytes, printed), flow) in mods.iter().zip(printed).zip(&flows) {
            let (header, m) = match decode(bytes, &CX) {
                Ok(x) => x,
                Err(e) => {
                    problems.push(format!("{version:?} {flow}: {e}"));
                    continue;
                }
            };
            let Message::FlowMod(fm) = &m else { continue };
            let ours = fm.instructions.to_string();
            let theirs = printed.split_once("actions=").map_or("?", |x| x.1);
            // Warnings about old actions may follow.
            let theirs = theirs.lines().next().unwrap_or("").trim();
            // The client prints the bucket of a learned match by name where the field is whole.
            if ours != theirs {
                problems.push(format!("{version:?} {flow}:\n  ours   {ours}\n  theirs {theirs}"));
            }
            let mut again = encode(version, header.xid, &m).expect("encodes").concat();
            // The client names "any table" in a byte that is free only where that extension is agreed on.
            if version == Version::V10 && fm.table_id == 0xff {
                again[24] = 0xff;
            }
            if &again != *bytes {
                problems.push(format!(
                    "{version:?} {flow}: bytes differ\n  ours   {}\n  theirs {}",
                    hex(&again),
                    hex(bytes)
                ));
            }
        }
    }
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
}

fn hex(b: &[u8]) -> String {
    b.iter().map(|b| format!("{b:02x}")).collect()
}
