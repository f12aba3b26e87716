//! The programs agree with the switch on the header (`BPF_PROG_TEST_RUN`, which needs root). Without root
//! nothing is tested, and the test prints that.

use super::{Loaded, program};
use aya::programs::{TestRun as _, TestRunOptions};
use heddle_packet::mark_header;

/// Offset of the mark in `struct __sk_buff`, and the length of that.
const MARK: usize = 8;
const SK_BUFF: usize = 192;
/// Verdicts.
const UNSPEC: u32 = u32::MAX;
const SHOT: u32 = 2;
const REDIRECT: u32 = 7;

/// Runs a program on a frame with a mark: verdict, frame and mark after it.
fn run(loaded: &Loaded, name: &str, frame: &[u8], mark: u32) -> (u32, Vec<u8>, u32) {
    let (mut out, mut context, mut after) = (vec![0; 256], [0; SK_BUFF], [0; SK_BUFF]);
    context[MARK..MARK + 4].copy_from_slice(&mark.to_ne_bytes());
    let options = TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut out),
        ctx_in: Some(&context),
        ctx_out: Some(&mut after),
        ..TestRunOptions::new()
    };
    let mut ebpf = loaded.0.lock();
    let result = program(&mut ebpf, name).unwrap().test_run(options).unwrap();
    out.truncate(result.data_size_out as usize);
    let mark = u32::from_ne_bytes(after[MARK..MARK + 4].try_into().unwrap());
    (result.return_value, out, mark)
}

fn frame(rest: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], rest, &[7; 46]].concat()
}

fn with(frame: &[u8], mark: u32) -> Vec<u8> {
    let (addresses, rest) = frame.split_at(mark_header::AT);
    [addresses, &mark_header::with(mark), rest].concat()
}

#[test]
fn the_programs_write_and_remove_the_header() {
    let loaded = match Loaded::load() {
        Ok(loaded) => loaded,
        Err(why) => return println!("not tested: {why}"),
    };
    let forged = with(&frame(&[8, 0, 0x45, 0]), 0xbad);
    let frames = [
        frame(&[8, 0, 0x45, 0]),
        frame(&[0x86, 0xdd, 0x60, 0]),
        frame(&[8, 6, 0, 1]),
        frame(&[0x81, 0, 0, 5, 8, 0, 0x45, 0]),
        forged.clone(),
    ];
    for frame in &frames {
        for mark in [1, 0x1234_5678, u32::MAX] {
            let (verdict, out, _) = run(&loaded, "hd_mark_out", frame, mark);
            assert_eq!((verdict, &out), (UNSPEC, &with(frame, mark)));
            assert_eq!(mark_header::read(&out), Some(mark));
            let (verdict, back, set) = run(&loaded, "hd_mark_in", &out, 0);
            // The device's receive path reads other EtherTypes again.
            let expected = if frame[12..14] == [8, 0] { UNSPEC } else { REDIRECT };
            assert_eq!((verdict, &back, set), (expected, frame, mark));
        }
        // Without mark only a frame that begins like one with a header gets one.
        let (verdict, out, _) = run(&loaded, "hd_mark_out", frame, 0);
        let expected = if *frame == forged {
            with(frame, 0)
        } else {
            frame.clone()
        };
        assert_eq!((verdict, &out), (UNSPEC, &expected));
        if *frame != forged {
            let (verdict, out, set) = run(&loaded, "hd_mark_in", frame, 5);
            assert_eq!((verdict, &out, set), (UNSPEC, frame, 5));
        }
    }
    // A header of another kind.
    let mut other = forged;
    other[15] = 2;
    assert_eq!(run(&loaded, "hd_mark_in", &other, 0).0, SHOT);
}
