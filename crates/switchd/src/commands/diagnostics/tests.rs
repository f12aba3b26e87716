//! Tests of reading a trace's text and of the arguments of a capture.

use heddle_datapath_api::DropKind;

use super::drops::{Explained, read_trace};
use super::hex;

#[test]
fn the_last_rule_of_a_trace_is_the_one_that_decided() {
    let text = "Flow: tcp,in_port=1,tp_dst=23\n\nbridge(\"br-int\")\n----------------\n 0. ip, priority 100\n    \
                goto_table:1\n 1. tcp,tp_dst=23, priority 200, cookie 0x77\n    drop\n\nFinal flow: unchanged\n\
                Megaflow: recirc_id=0,eth,ip\nDatapath actions: drop";
    let word = |s: &str| Some(s.to_owned());
    assert_eq!(
        read_trace(text, None),
        Explained {
            bridge: word("br-int"),
            table: word("1"),
            cookie: word("0x77"),
            rule: word("tcp,tp_dst=23, priority 200"),
            packet: word("tcp,in_port=1,tp_dst=23"),
            command: None,
        }
    );
    let none = read_trace("Flow: arp\nbridge(\"br0\")\n 5. No match.\n    drop\n", None);
    assert_eq!(
        (none.table, none.cookie, none.rule),
        (word("5"), None, word("No match."))
    );
    assert_eq!(read_trace("rubbish. here\n. \n", None), Explained::default());
}

#[test]
fn the_rule_of_an_output_is_of_the_bridge_that_has_the_port() {
    let text = "Flow: arp\n\nbridge(\"br-int\")\n 0. arp, priority 7\n    NORMAL\n\nbridge(\"br-ex\")\n 3. priority 0\n    NORMAL\n";
    let table = |sender| read_trace(text, sender).table.unwrap();
    assert_eq!(table(None), "3");
    assert_eq!(table(Some("br-int")), "0");
    assert_eq!(table(Some("br-ex")), "3");
    assert_eq!(table(Some("elsewhere")), "3");
}

#[test]
fn a_rule_behind_another_bridge_is_of_its_own_bridge() {
    let text = "Flow: arp\n\nbridge(\"br-int\")\n----\n39. priority 100\n    output:1\n\n    bridge(\"br-ex\")\n    ----\n     \
                0. priority 0\n        NORMAL\n    resubmit(,40)\n40. priority 0\n    drop\n";
    let found = |sender| {
        let found = read_trace(text, sender);
        (found.bridge.unwrap(), found.table.unwrap())
    };
    let both = |bridge: &str, table: &str| (bridge.to_owned(), table.to_owned());
    assert_eq!(found(None), both("br-int", "40"));
    assert_eq!(found(Some("br-ex")), both("br-ex", "0"));
}

#[test]
fn bytes_as_digits() {
    assert_eq!(hex(&[0, 0x1f, 0xff]), "001fff");
}

#[test]
fn arguments_of_a_capture() {
    use super::capture::{read_args, reason};
    assert_eq!(read_args(&["--snaplen", "96"]).unwrap().snap_len, Some(96));
    for wrong in [
        &["--snaplen", "0"][..],
        &["--snaplen", "x"],
        &["--port"],
        &["-x", "y"],
        &["--snaplen", "70000"],
    ] {
        assert!(read_args(wrong).is_err(), "{wrong:?}");
    }
    assert_eq!(reason("datapath_drop_tx_full"), Ok(Some(DropKind::TxFull)));
    assert_eq!(reason("tx_full"), Ok(Some(DropKind::TxFull)));
    assert_eq!(reason("any"), Ok(None));
    assert!(reason("no_such").is_err());
    assert!(reason("error").unwrap_err().contains("several"));
}
