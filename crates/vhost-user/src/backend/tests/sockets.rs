//! Sockets: stale, live, lost, taken; the control thread with several of them.

use super::*;
use crate::backend::listen::Listener;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;

const LONG: Duration = Duration::from_secs(60);

fn wait_for(what: &str, mut ok: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !ok() {
        assert!(Instant::now() < end, "waited for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
fn saw(device: &Dummy, what: impl Fn(&Event) -> bool) -> usize {
    device.seen.lock().events.iter().filter(|e| what(e)).count()
}
fn connected(device: &Dummy) -> usize {
    saw(device, |e| *e == Event::Connected)
}
fn gone(device: &Dummy) -> usize {
    saw(device, |e| matches!(e, Event::Gone(_)))
}
fn server(path: &Path) -> Socket {
    Socket {
        path: path.into(),
        role: Role::Server,
        journal: None,
    }
}
fn client(path: &Path) -> Socket {
    Socket {
        role: Role::Client,
        ..server(path)
    }
}
/// A front end that requests the features.
fn is_greeted(stream: UnixStream) -> Connection {
    let mut front = Connection::new(stream);
    front
        .send_request(&Request::GetFeatures, HeaderFlags::empty(), &[])
        .unwrap();
    assert!(front.wait_readable(LONG).unwrap());
    assert!(matches!(front.recv().unwrap(), Received::Frame(_)));
    front
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vhost0");
    // A process that was killed leaves its file.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let ours = Listener::bind(&path).unwrap();
    assert_eq!(Listener::bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
    assert!(ours.is_there());
    // A file of another kind belongs to another program.
    let plain = dir.path().join("plain");
    std::fs::write(&plain, b"precious").unwrap();
    assert_eq!(
        Listener::bind(&plain).unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    assert_eq!(std::fs::read(&plain).unwrap(), b"precious");
    // The file goes with the socket, but not another's file in its place.
    drop(ours);
    assert!(!path.exists());
    let ours = Listener::bind(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let theirs = UnixListener::bind(&path).unwrap();
    assert!(!ours.is_there());
    drop(ours);
    assert!(path.exists());
    drop(theirs);
    assert!(Listener::bind(&dir.path().join("no/such")).is_err());
}

/// Names longer than a socket's address.
#[test]
fn long_paths_work() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("d".repeat(90)).join("e".repeat(90));
    std::fs::create_dir_all(&deep).unwrap();
    let path = deep.join("vhost0");
    let device = Dummy::new();
    let control = Control::start().unwrap();
    let id = control.add(server(&path), Box::new(device.clone())).unwrap();
    wait_for("the socket", || path.exists());
    let front = is_greeted(crate::backend::listen::dial(&path).unwrap());
    assert_eq!(connected(&device), 1);
    drop(front);
    wait_for("its end", || gone(&device) == 1);
    control.remove(id, "the port was removed");
    assert!(!path.exists());
}

#[test]
fn a_server_has_one_front_end_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vhost0");
    let device = Dummy::new();
    let control = Control::start().unwrap();
    let id = control.add(server(&path), Box::new(device.clone())).unwrap();
    wait_for("the socket", || path.exists());
    for round in 1..4 {
        let mut first = is_greeted(UnixStream::connect(&path).unwrap());
        let mut second = Connection::new(UnixStream::connect(&path).unwrap());
        assert!(second.wait_readable(LONG).unwrap());
        assert!(matches!(second.recv().unwrap(), Received::Closed));
        // The session that continues reports no trouble.
        assert_eq!(saw(&device, |e| matches!(e, Event::Note(_))), 2 * round - 1);
        assert_eq!(saw(&device, |e| matches!(e, Event::Trouble(_))), 0);
        let mut third = crate::frontend::Frontend::connect(&path, LONG, LONG).unwrap();
        let why = third.open(ProtocolFeatures::empty()).unwrap_err();
        assert!(matches!(why, crate::frontend::FrontendError::TurnedAway), "{why}");
        first
            .send_request(&Request::GetFeatures, HeaderFlags::empty(), &[])
            .unwrap();
        assert!(first.wait_readable(LONG).unwrap());
        assert!(matches!(first.recv().unwrap(), Received::Frame(_)));
        // A session that is killed makes room at once for the next.
        drop(first);
        assert!(connected(&device) >= round);
    }
    // Removing the port ends the session and takes the file away.
    let front = is_greeted(UnixStream::connect(&path).unwrap());
    control.remove(id, "the port was removed");
    assert!(!path.exists());
    assert_eq!(Arc::strong_count(&device.seen), 1, "the device is dropped");
    assert!(front.wait_readable(LONG).unwrap());
    assert_eq!(connected(&device), gone(&device));
}

#[test]
fn a_client_connects_whenever_it_can() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vhost0");
    let device = Dummy::new();
    let control = Control::start().unwrap();
    let _id = control.add(client(&path), Box::new(device.clone())).unwrap();
    wait_for("the complaint", || {
        saw(&device, |e| matches!(e, Event::Trouble(_))) == 1
    });
    for round in 1..3 {
        let listener = UnixListener::bind(&path).unwrap();
        let (stream, _) = listener.accept().unwrap();
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        let front = is_greeted(stream);
        drop(front);
        wait_for("the loss", || gone(&device) == round);
        assert_eq!(connected(&device), round);
    }
    // A complaint is not repeated each second.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(saw(&device, |e| matches!(e, Event::Trouble(_))) <= 3);
}

#[test]
fn a_front_end_that_talks_nonsense_has_to_wait() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vhost0");
    let (device, other) = (Dummy::new(), Dummy::new());
    let control = Control::start().unwrap();
    let id = control.add(server(&path), Box::new(device.clone())).unwrap();
    let other_path = dir.path().join("vhost1");
    control.add(server(&other_path), Box::new(other.clone())).unwrap();
    wait_for("the sockets", || path.exists() && other_path.exists());
    let mut good = is_greeted(UnixStream::connect(&other_path).unwrap());
    let mut bad = UnixStream::connect(&path).unwrap();
    let began = Instant::now();
    bad.write_all(&[0xff; 64]).unwrap();
    wait_for("its end", || gone(&device) == 1);
    assert!(
        device
            .seen
            .lock()
            .events
            .iter()
            .any(|e| matches!(e, Event::Gone(t) if t.contains("version")))
    );
    // The front end may come back, but not at once.
    let mut front = None;
    wait_for("the pause to be over", || {
        let mut c = Connection::new(UnixStream::connect(&path).unwrap());
        let _ = c.send_request(&Request::GetFeatures, HeaderFlags::empty(), &[]); // turned away, perhaps
        let answered = c.wait_readable(LONG).unwrap() && matches!(c.recv(), Ok(Received::Frame(_)));
        front = answered.then_some(c);
        answered
    });
    assert!(
        began.elapsed() > Duration::from_millis(500),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(connected(&device), 2);
    // Other front ends noticed nothing.
    good.send_request(&Request::GetFeatures, HeaderFlags::empty(), &[])
        .unwrap();
    assert!(good.wait_readable(LONG).unwrap());
    assert!(matches!(good.recv().unwrap(), Received::Frame(_)));
    assert_eq!(gone(&other), 0);
    control.remove(id, "the port was removed");
    drop(control);
    assert_eq!(gone(&other), 1);
    assert!(!other_path.exists());
}

/// If a process removes the file, the port makes it again.
#[test]
fn a_socket_file_that_vanishes_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vhost0");
    let device = Dummy::new();
    let control = Control::start().unwrap();
    let id = control.add(server(&path), Box::new(device.clone())).unwrap();
    wait_for("the socket", || path.exists());
    std::fs::remove_file(&path).unwrap();
    // The file exists a moment before the port listens.
    let mut stream = None;
    wait_for("a new one", || {
        stream = UnixStream::connect(&path).ok();
        stream.is_some()
    });
    let _front = is_greeted(stream.unwrap());
    control.remove(id, "the port was removed");
}

/// A front end that comes and goes as fast as it can: it gets some sessions, not thousands, and others are
/// served meanwhile.
#[test]
fn a_front_end_that_comes_and_goes_has_to_wait() {
    let dir = tempfile::tempdir().unwrap();
    let paths = [dir.path().join("vhost0"), dir.path().join("vhost1")];
    let devices = [Dummy::new(), Dummy::new()];
    let control = Control::start().unwrap();
    for (path, device) in paths.iter().zip(&devices) {
        control.add(server(path), Box::new(device.clone())).unwrap();
    }
    wait_for("the sockets", || paths.iter().all(|p| p.exists()));
    let mut good = is_greeted(UnixStream::connect(&paths[1]).unwrap());
    let began = Instant::now();
    let mut calls = 0;
    while began.elapsed() < Duration::from_secs(3) {
        calls += 1;
        if let Ok(stream) = UnixStream::connect(&paths[0]) {
            let mut front = Connection::new(stream);
            // Turned away, perhaps.
            let _ = front.send_request(&Request::GetFeatures, HeaderFlags::empty(), &[]);
            // Some do not even wait for the reply.
            if calls % 2 == 0 {
                assert!(front.wait_readable(LONG).unwrap());
            }
        }
    }
    // Four at once, then after 50, 100, 200, 400, 800, 1000 ms, and one a second from then on.
    let sessions = connected(&devices[0]);
    let most = 9 + usize::try_from(began.elapsed().as_secs()).unwrap();
    assert!(
        (5..=most).contains(&sessions),
        "{sessions} sessions of {calls} calls"
    );
    good.send_request(&Request::GetFeatures, HeaderFlags::empty(), &[])
        .unwrap();
    assert!(good.wait_readable(LONG).unwrap());
    assert!(matches!(good.recv().unwrap(), Received::Frame(_)));
    // The socket is served again when its front end behaves.
    wait_for("a session", || {
        let Ok(stream) = UnixStream::connect(&paths[0]) else {
            return false;
        };
        let mut front = Connection::new(stream);
        let _ = front.send_request(&Request::GetFeatures, HeaderFlags::empty(), &[]); // turned away, perhaps
        front.wait_readable(LONG).unwrap() && matches!(front.recv(), Ok(Received::Frame(_)))
    });
}

/// Any process that may read the directory may lock it: sockets are made nevertheless. The locked file
/// belongs to the user that makes the sockets.
#[test]
fn a_lock_of_the_directory_holds_no_session_up() {
    use rustix::fs::{FlockOperation, flock};
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let theirs = std::fs::File::open(dir.path()).unwrap();
    flock(&theirs, FlockOperation::NonBlockingLockExclusive).unwrap();
    let path = dir.path().join("vhost0");
    drop(Listener::bind(&path).unwrap());
    let lock = dir.path().join(".vhost-user.lock");
    let file = std::fs::File::open(&lock).unwrap();
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    // Another switch that is just making one: tried again, with the reason.
    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    let e = Listener::bind(&path).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WouldBlock);
    assert!(e.to_string().contains(".vhost-user.lock"), "{e}");
    drop(file);
    Listener::bind(&path).unwrap();
}
