//! Methods as text, and TLS between two ends of this machine.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

#[test]
fn active_methods() {
    for (text, shown) in [
        ("unix:/var/run/db.sock", "unix:/var/run/db.sock"),
        ("tcp:127.0.0.1:1", "tcp:127.0.0.1:1"),
        ("tcp:127.0.0.1", "tcp:127.0.0.1:6640"),
        ("tcp:[::1]:99", "tcp:[::1]:99"),
        ("ssl:[::1]", "ssl:[::1]:6640"),
        ("ssl:[fe80::1%2]", "ssl:[fe80::1%2]:6640"),
    ] {
        let method = Active::parse(text, OVSDB_PORT).map(|m| m.to_string());
        assert_eq!(method.as_deref(), Ok(shown));
    }
    for bad in [
        "",
        "unix:",
        "tcp:",
        "tcp:host:1",
        "ssl:1.2.3.4:99999",
        "tcp:[::1",
        "db.sock",
        "ptcp:1",
    ] {
        assert!(Active::parse(bad, OVSDB_PORT).is_err(), "{bad}");
    }
    let list = Active::parse_list("unix:/a, ssl:127.0.0.1:1", OVSDB_PORT);
    assert_eq!(list.map(|l| l.len()), Ok(2));
    assert!(Active::parse_list("unix:/a,", OVSDB_PORT).is_err());
}

#[test]
fn passive_methods() {
    for (text, shown) in [
        ("punix:/x", "punix:/x"),
        ("ptcp:", "ptcp:6653:0.0.0.0"),
        ("ptcp", "ptcp:6653:0.0.0.0"),
        ("pssl:7", "pssl:7:0.0.0.0"),
        ("ptcp:7:127.0.0.1", "ptcp:7:127.0.0.1"),
        ("ptcp::127.0.0.1", "ptcp:6653:127.0.0.1"),
        ("ptcp:7:[::1]", "ptcp:7:::1"),
    ] {
        let method = Passive::parse(text, OPENFLOW_PORT).map(|m| m.to_string());
        assert_eq!(method.as_deref(), Ok(shown));
    }
    for bad in ["", "punix:", "ptcp:x", "ptcp:1:host", "pssl:99999", "tcp:1.2.3.4"] {
        assert!(Passive::parse(bad, OPENFLOW_PORT).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn a_socket_path_longer_than_an_address() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("d".repeat(100));
    std::fs::create_dir(&deep).unwrap();
    let path = deep.join("db.sock");
    assert!(path.as_os_str().len() > 107);
    // Bound by way of the directory's descriptor, as connecting does.
    let handle = std::fs::File::open(&deep).unwrap();
    let short = format!(
        "/proc/self/fd/{}/db.sock",
        std::os::fd::AsRawFd::as_raw_fd(&handle)
    );
    let _listener = tokio::net::UnixListener::bind(short).unwrap();
    assert!(Active::Unix(path).connect(&Tls::default()).await.is_ok());
}

#[tokio::test]
async fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let tls = Arc::default();
    let first = Passive::Unix(path.clone()).listen(&tls).unwrap();
    assert!(Passive::Unix(path.clone()).listen(&tls).is_err());
    drop(first);
    assert!(!path.exists());
}

/// An authority and the directory that its files go to.
struct Pki {
    dir: PathBuf,
    name: String,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    fn new(dir: &Path, name: &str) -> Pki {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(dir.join(format!("{name}.ca")), issuer.pem()).unwrap();
        Pki {
            dir: dir.to_owned(),
            name: name.to_owned(),
            issuer,
        }
    }

    fn ca(&self) -> PathBuf {
        self.dir.join(format!("{}.ca", self.name))
    }

    /// Writes a new key and certificate for `who`; trusts `peers`.
    fn settings(&self, who: &str, peers: &Path) -> Settings {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([who.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (key_file, cert_file) = (
            self.dir.join(format!("{who}.key")),
            self.dir.join(format!("{who}.crt")),
        );
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        std::fs::write(&cert_file, certificate.pem()).unwrap();
        Settings {
            private_key: Some(key_file),
            certificate: Some(cert_file),
            ca_cert: Some(peers.to_owned()),
            ..Settings::default()
        }
    }
}

fn tls(settings: Settings) -> Arc<Tls> {
    let tls = Tls::default();
    tls.configure(settings);
    Arc::new(tls)
}

/// The server sends the caller's word back twice. Returns whether all of it worked.
async fn talk(server: &Arc<Tls>, client: &Tls) -> bool {
    let loopback: SocketAddr = ([127, 0, 0, 1], 0).into();
    let acceptor = Passive::Tls(loopback).listen(server).unwrap();
    let to = acceptor.address().unwrap();
    let serve = async {
        let mut stream = acceptor.accept().await?.open().await?;
        let mut word = [0; 4];
        stream.read_exact(&mut word).await?;
        stream.write_all(&[word, word].concat()).await?;
        stream.shutdown().await
    };
    let call = async {
        let mut stream = Active::Tls(to).connect(client).await?;
        stream.write_all(b"word").await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    // The first side that fails ends the test for both.
    matches!(tokio::try_join!(serve, call), Ok(((), answer)) if answer == b"wordword")
}

/// A peer that is dropped in the middle of things has still ended the connection as TLS requires. The other
/// end reads an end, not an error.
#[tokio::test]
async fn a_dropped_connection_says_goodbye() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Pki::new(dir.path(), "ours");
    let server = tls(ours.settings("server", &ours.ca()));
    let client = tls(ours.settings("client", &ours.ca()));
    let loopback: SocketAddr = ([127, 0, 0, 1], 0).into();
    let acceptor = Passive::Tls(loopback).listen(&server).unwrap();
    let to = acceptor.address().unwrap();
    let serve = async {
        let mut stream = acceptor.accept().await.unwrap().open().await.unwrap();
        stream.write_all(b"last words").await.unwrap();
        stream.flush().await.unwrap();
        let mut word = [0; 4];
        stream.read_exact(&mut word).await.unwrap();
        // Both halves are dropped, as where connections are served.
        drop(tokio::io::split(stream));
    };
    let call = async {
        let mut stream = Active::Tls(to).connect(&client).await.unwrap();
        stream.write_all(b"word").await.unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).await.map(|_| heard)
    };
    let ((), heard) = tokio::join!(serve, call);
    assert_eq!(heard.unwrap(), b"last words");
}

#[tokio::test]
async fn both_ends_prove_who_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Pki::new(dir.path(), "ours"), Pki::new(dir.path(), "other"));
    let server = tls(ours.settings("server", &ours.ca()));
    assert!(talk(&server, &tls(ours.settings("client", &ours.ca()))).await);
    // The caller's authority is not ours.
    assert!(!talk(&server, &tls(other.settings("stranger", &ours.ca()))).await);
    // The caller does not trust us.
    assert!(!talk(&server, &tls(ours.settings("doubter", &other.ca()))).await);
    // The operator switched the check off, at one end and at the other.
    assert!(talk(&server, &tls(ours.settings("careless", Path::new("none")))).await);
    let open = tls(ours.settings("open", Path::new("none")));
    assert!(talk(&open, &tls(other.settings("stranger", &ours.ca()))).await);
}

#[tokio::test]
async fn protocols_are_as_configured() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Pki::new(dir.path(), "ours");
    let only = |who, protocols: &str| {
        tls(Settings {
            protocols: Some(protocols.into()),
            ..ours.settings(who, &ours.ca())
        })
    };
    assert!(talk(&only("a", "TLSv1.2"), &only("b", "TLSv1.2,TLSv1.3")).await);
    assert!(!talk(&only("a", "TLSv1.2"), &only("b", "TLSv1.3")).await);
    assert!(!talk(&only("a", "TLSv1.1"), &only("b", "TLSv1.1")).await);
}

#[tokio::test]
async fn without_keys_nothing_is_connected() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Pki::new(dir.path(), "ours");
    let server = tls(ours.settings("server", &ours.ca()));
    assert!(!talk(&server, &Tls::default()).await);
    assert!(!talk(&Arc::default(), &tls(ours.settings("client", &ours.ca()))).await);
    let mut broken = ours.settings("broken", &ours.ca());
    std::fs::write(broken.private_key.as_ref().unwrap(), "no key").unwrap();
    assert!(!talk(&server, &tls(broken.clone())).await);
    // Neither a pipe without a writer nor an endless device blocks the caller.
    let pipe = dir.path().join("pipe");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    for odd in [pipe.as_path(), Path::new("/dev/zero"), dir.path()] {
        broken.private_key = Some(odd.to_owned());
        assert!(!talk(&server, &tls(broken.clone())).await);
        let trusts = ours.settings("trusts", odd);
        assert!(!talk(&server, &tls(trusts)).await);
    }
    broken.private_key = Some(dir.path().join("absent"));
    assert!(!talk(&server, &tls(broken)).await);
}

#[tokio::test]
async fn renewed_files_are_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Pki::new(dir.path(), "ours"), Pki::new(dir.path(), "other"));
    let server = tls(ours.settings("server", &ours.ca()));
    let settings = other.settings("client", &ours.ca());
    let client = tls(settings.clone());
    assert!(!talk(&server, &client).await);
    // Other contents at the same place, and a later time even where the clock of files is coarse.
    assert_eq!(ours.settings("client", &ours.ca()), settings);
    let file = std::fs::File::options()
        .append(true)
        .open(settings.certificate.unwrap())
        .unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(10);
    file.set_modified(later).unwrap();
    assert!(talk(&server, &client).await);
    // Files that became unreadable: the keys that were read stay in use.
    std::fs::write(settings.private_key.unwrap(), "no key").unwrap();
    assert!(talk(&server, &client).await);
}

#[tokio::test]
async fn the_first_peers_authority_is_taken_on_trust() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Pki::new(dir.path(), "ours");
    let unknown = dir.path().join("fetched.ca");
    let server = ours.settings("server", &ours.ca());
    let client = tls(Settings {
        bootstrap: true,
        ..ours.settings("client", &unknown)
    });
    // A peer that does not send the authority's certificate.
    assert!(!talk(&tls(server.clone()), &client).await);
    assert!(!unknown.exists());
    let telling = tls(Settings {
        peer_ca_cert: Some(ours.ca()),
        ..server
    });
    let loopback: SocketAddr = ([127, 0, 0, 1], 0).into();
    let acceptor = Passive::Tls(loopback).listen(&telling).unwrap();
    let to = acceptor.address().unwrap();
    let caller = Active::Tls(to);
    // The first connection fetches the authority, the second is the requested one.
    let serve = async {
        for _ in 0..2 {
            drop(acceptor.accept().await?.open().await);
        }
        std::io::Result::Ok(())
    };
    assert!(tokio::try_join!(serve, caller.connect(&client)).is_ok());
    assert!(talk(&telling, &client).await);
    // From now on another authority's peer is a stranger.
    let other = Pki::new(dir.path(), "other");
    assert!(!talk(&tls(other.settings("liar", &ours.ca())), &client).await);
}
