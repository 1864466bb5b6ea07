//! RESP over a remote store: pipelines are batched, and store failures become errors.

use std::io::{Read, Write};

use slidegate_testkit::{Connection, Flavour, Reply, Server, until};

use super::{address_of, command, five_integers, open};
use crate::process::{ServeProcess, TempFile, slidegate};

fn serve(store: &str) -> ServeProcess {
    let config = "degrade: {on_failure: closed}\npolicies: {api: {quotas: [100/1m]}}\n";
    let file = TempFile::new("resp-shared", config);
    let arguments = ["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--store", store, "--config"];
    ServeProcess::start(slidegate().args(arguments).arg(file.path()))
}

#[test]
fn a_pipeline_is_one_observation_of_the_request_duration() {
    let redis = Server::start(Flavour::Redis);
    for store in [redis.url() + "?budget_ms=20000", "memory:".to_owned()] {
        let server = serve(&store);
        let mut client = Connection::open(address_of(&server)).unwrap();
        client.command(&["SLIDEGATE.CHECK", "api", "k"]).unwrap();
        client.command(&["PING"]).unwrap();
        let mut stream = open(address_of(&server));
        stream
            .write_all((command(&["SLIDEGATE.CHECK", "api", "k"]).repeat(9) + "QUIT\r\n").as_bytes())
            .unwrap();
        stream.read_to_string(&mut String::new()).unwrap();
        let metrics = server.get("/metrics").body;
        let expected = "slidegate_request_seconds_count{verb=\"resp\",stage=\"whole\"} 3";
        assert!(metrics.lines().any(|line| line == expected), "{metrics}");
    }
}

#[test]
fn a_pipeline_is_batched_and_its_replies_keep_their_order() {
    let redis = Server::start(Flavour::Redis);
    let server = serve(&(redis.url() + "?budget_ms=20000"));
    let mut stream = open(address_of(&server));
    let throttle = command(&["CL.THROTTLE", "k", "9", "10", "3600"]);
    let sent =
        throttle.repeat(20) + &command(&["ECHO", "between"]) + &command(&["SLIDEGATE.CHECK", "api", "k"]);
    // The first request loads the script.
    let before = {
        let mut client = Connection::open(address_of(&server)).unwrap();
        assert_eq!(five_integers(client.command(&["SLIDEGATE.CHECK", "api", "k"]).unwrap())[2], 99);
        redis.scripts_run()
    };
    stream.write_all((sent + "QUIT\r\n").as_bytes()).unwrap();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).unwrap();
    let (throttled, rest) = replies.split_once("$7\r\nbetween\r\n").unwrap();
    let throttled: Vec<&str> = throttled.split("*5\r\n").skip(1).collect();
    assert_eq!(throttled.len(), 20);
    for (index, reply) in throttled.iter().enumerate() {
        let allowed = format!(":0\r\n:10\r\n:{}\r\n:-1\r\n", 9_usize.saturating_sub(index));
        let expected = if index < 10 { allowed.as_str() } else { ":1\r\n:10\r\n:0\r\n:360\r\n" };
        assert!(reply.starts_with(expected), "{index}: {reply:?}");
    }
    assert!(rest.starts_with("*5\r\n:1\r\n:100\r\n:98\r\n:-1\r\n") && rest.ends_with("+OK\r\n"), "{rest:?}");
    let runs = redis.scripts_run() - before;
    assert!(runs <= 4, "{runs} calls of the store for 21 commands");
}

#[test]
fn an_unavailable_store_is_an_error_and_the_connection_stays_open() {
    let redis = Server::start(Flavour::Redis);
    let server = serve(&redis.url());
    let mut client = Connection::open(address_of(&server)).unwrap();
    let throttle = ["CL.THROTTLE", "k", "9", "10", "3600"];
    assert_eq!(five_integers(client.command(&throttle).unwrap())[0], 0);
    redis.kill();
    for words in [&throttle[..], &["SLIDEGATE.CHECK", "api", "k"]] {
        until("the store is unavailable", || match client.command(words).unwrap() {
            Reply::Error(error) if error.starts_with("UNAVAILABLE ") => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }
    assert_eq!(client.command(&["PING"]).unwrap(), Reply::Simple("PONG".to_owned()));
    redis.restart();
    until("the store is available again", || match client.command(&throttle).unwrap() {
        Reply::Array(_) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains(r#"slidegate_refusals_total{reason="store-unavailable"}"#), "{metrics}");
}
