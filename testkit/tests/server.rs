//! Servers of each flavour, tested from outside.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::UNIX_EPOCH;

use slidegate_testkit::{Flavour, Reply, Server, until};

fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_server_responds_and_is_removed_on_drop() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        let info = server.command(&["INFO", "server"]).text();
        assert_eq!(info.contains("valkey_version"), flavour == Flavour::Valkey, "{info}");
        assert!(info.contains(&format!("process_id:{}", server.pid())), "{info}");
        assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));

        let (pid, folder) = (server.pid(), server.folder().to_owned());
        assert!(exists(pid) && folder.exists());
        drop(server);
        assert!(!exists(pid) && !folder.exists());
    }
}

#[test]
fn a_server_is_removed_after_a_panic() {
    let (send, pid) = std::sync::mpsc::channel();
    let failed = std::thread::spawn(move || {
        let server = Server::start(Flavour::Redis);
        send.send(server.pid()).unwrap();
        panic!("this panic belongs to the test");
    });
    assert!(failed.join().is_err());
    assert!(!exists(pid.recv().unwrap()));
}

/// Runs in a separate process, which the next test kills.
#[test]
#[ignore = "runs until it is killed"]
fn hold_a_server_until_killed() {
    let server = Server::start(Flavour::Redis);
    println!("holding {}", server.pid());
    loop {
        std::thread::park();
    }
}

#[test]
fn a_server_is_removed_after_the_test_process_is_killed() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", "hold_a_server_until_killed"]);
    let mut holder = command.stdout(std::process::Stdio::piped()).spawn().unwrap();

    let mut output = String::new();
    let mut stdout = holder.stdout.take().unwrap();
    let pid: u32 = loop {
        let mut bytes = [0; 256];
        let count = stdout.read(&mut bytes).unwrap();
        assert_ne!(count, 0, "the holder has ended: {output}");
        output.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        let line = output.split_once("holding ").and_then(|(_, rest)| rest.split_once('\n'));
        if let Some((pid, _)) = line {
            break pid.parse().unwrap();
        }
    };
    assert!(exists(pid));
    holder.kill().unwrap();
    holder.wait().unwrap();
    until("the server is gone", || if is_running(pid) { Err("it is running".to_owned()) } else { Ok(()) });
}

/// An orphan stays a zombie until its new parent reaps it.
fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

#[test]
fn a_shared_server_outlives_its_first_thread() {
    static SHARED: OnceLock<Server> = OnceLock::new();
    let share = || SHARED.get_or_init(|| Server::start(Flavour::Redis)).command(&["PING"]).text();
    assert_eq!(std::thread::spawn(share).join().unwrap(), "PONG");
    assert_eq!(std::thread::spawn(share).join().unwrap(), "PONG");
    // The server is never dropped: the kernel kills it together with this process.
}

#[test]
fn replies_of_every_type_are_parsed() {
    let server = Server::start(Flavour::Redis);
    let bytes: Vec<u8> = (0..=255).chain(*b"\r\n").collect();
    server.command(&[b"SET".as_slice(), b"bytes", &bytes]).ok();
    assert_eq!(server.command(&["GET", "bytes"]), Reply::Bulk(bytes));
    assert_eq!(server.command(&["GET", "missing"]), Reply::Nil);
    assert_eq!(server.command(&["INCR", "count"]).int(), 1);
    assert!(
        matches!(server.command(&["LPUSH", "bytes", "x"]), Reply::Error(text) if text.starts_with("WRONGTYPE"))
    );
    let nested = server.command(&["EVAL", "return {1, {'a', false}}", "0"]);
    let inner = Reply::Array(vec![Reply::Bulk(b"a".to_vec()), Reply::Nil]);
    assert_eq!(nested, Reply::Array(vec![Reply::Int(1), inner]));
}

#[test]
fn a_server_restarts_empty_on_the_same_port() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        server.command(&["SET", "a", "1"]).ok();
        let (port, pid) = (server.port(), server.pid());
        server.kill();
        assert!(!server.is_alive() && !exists(pid));
        assert!(server.try_command(&["PING"]).is_err());
        server.restart();
        assert_eq!((server.port(), server.command(&["GET", "a"])), (port, Reply::Nil));
        assert_ne!(server.pid(), pid);
    }
}

#[test]
fn a_server_stops_until_the_continue_signal() {
    let server = Server::start(Flavour::Redis);
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    };
    server.stop_signal();
    until("the server has stopped", || if state() == 'T' { Ok(()) } else { Err(state().to_string()) });
    server.continue_signal();
    assert_eq!(server.command(&["PING"]).text(), "PONG");

    // A stopped server can be killed.
    server.stop_signal();
    let pid = server.pid();
    drop(server);
    assert!(!exists(pid));
}

#[test]
fn passwords_and_files_are_set_up() {
    let server =
        Server::builder(Flavour::Redis).args(["--requirepass", "secret", "--maxmemory", "5mb"]).start();
    assert_eq!(server.command(&["CONFIG", "GET", "maxmemory"]).array()[1].text(), "5242880");
    let users = "user default on nopass ~* +@all\nuser guest on >guest ~public:* +get\n";
    let server =
        Server::builder(Flavour::Valkey).file("users.acl", users).args(["--aclfile", "users.acl"]).start();
    let mut connection = server.connect().unwrap();
    connection.command(&["AUTH", "guest", "guest"]).unwrap().ok();
    assert_eq!(connection.command(&["GET", "public:1"]).unwrap(), Reply::Nil);
    assert!(matches!(connection.command(&["GET", "private"]).unwrap(), Reply::Error(_)));
}

#[test]
fn the_server_listens_on_a_unix_socket() {
    for flavour in Flavour::ALL {
        let server = Server::builder(flavour).unix_socket().start();
        let mut stream = UnixStream::connect(server.socket_path()).unwrap();
        stream.write_all(b"PING\r\n").unwrap();
        let mut reply = [0; 7];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+PONG\r\n");
    }
}

#[test]
fn tls_clients_that_trust_the_authority_connect() {
    let server = Server::builder(Flavour::Redis).tls().start();
    let tls = server.tls();
    assert_eq!(std::fs::read(tls.ca_path()).unwrap(), tls.ca_pem());
    let ping = |authority: &Path| {
        let mut client = Command::new("redis-cli");
        client.args(["-h", "127.0.0.1", "-p", &tls.port().to_string(), "--tls", "--cacert"]);
        String::from_utf8(client.arg(authority).arg("PING").output().unwrap().stdout).unwrap()
    };
    assert_eq!(ping(&tls.ca_path()).trim(), "PONG");
    let other = Server::builder(Flavour::Redis).tls().start();
    assert_eq!(ping(&other.tls().ca_path()).trim(), "");
}

#[test]
fn faketime_shifts_the_clock() {
    for flavour in Flavour::ALL {
        let server = Server::builder(flavour).faketime("+1h").start();
        let made = std::fs::metadata(server.folder()).unwrap().modified().unwrap();
        let real = made.duration_since(UNIX_EPOCH).unwrap().as_secs().cast_signed();
        let ahead = || server.command(&["TIME"]).array()[0].int() - real;
        // The folder is older than the reading, but by less than a minute.
        assert!((3_600..3_660).contains(&ahead()), "{}", ahead());

        server.command(&["SET", "a", "1", "EX", "600"]).ok();
        server.set_faketime("+2h");
        assert!((7_200..7_260).contains(&ahead()), "{}", ahead());
        assert_eq!(server.command(&["GET", "a"]), Reply::Nil, "the key has expired");
        server.set_faketime("-60s");
        assert!((-60..0).contains(&ahead()), "{}", ahead());
    }
}

#[test]
#[should_panic(expected = "Bad directive or wrong number of arguments")]
fn a_server_that_fails_to_start_reports_its_error() {
    Server::builder(Flavour::Redis).args(["--no-such-option", "1"]).start();
}

#[test]
#[should_panic(expected = "found no port in 20 attempts")]
fn a_server_whose_port_is_taken_tries_others() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    // Every attempt uses the taken port.
    Server::builder(Flavour::Redis).args(["--port", &port]).start();
}

#[test]
fn a_restart_waits_for_its_port() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour);
        server.kill();
        let taken = TcpListener::bind(server.address()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| server.restart());
            until("the server has failed to bind its port", || match server.log() {
                log if log.contains("Address already in use") => Ok(()),
                log => Err(log),
            });
            drop(taken);
        });
        assert_eq!(server.command(&["PING"]).text(), "PONG");
    }
}
