//! `THROTTLE` with the replies of throttlecrab's server 0.4.

use super::{RespServer, command, five_integers};

#[test]
fn throttle_replies_like_throttlecrab() {
    let server = RespServer::start();
    let mut client = server.connect();
    let mut send = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        five_integers(client.command(&words).unwrap())
    };
    // Allowed, limit, remaining, reset after, retry after. The first three lines are from throttlecrab's own tests.
    assert_eq!(send("THROTTLE test_key 10 100 60"), [1, 10, 9, 5, 0]);
    assert_eq!(send("throttle test_key2 10 100 60 5"), [1, 10, 5, 7, 0]);
    assert_eq!(send("THROTTLE large_quantity_key 10 100 60 15"), [0, 10, 10, 0, 3], "nothing is counted");
    assert_eq!(send("THROTTLE test_key 10 100 60 0"), [1, 10, 9, 5, 0], "a quantity of 0 is a peek");
    for remaining in [2, 1, 0] {
        assert_eq!(send("THROTTLE api-key-123 3 10 60")[..3], [1, 3, remaining]);
    }
    assert_eq!(send("THROTTLE api-key-123 3 10 60"), [0, 3, 0, 24, 6]);
    server.clock.advance(1);
    assert_eq!(send("THROTTLE api-key-123 3 10 60")[4], 6, "the retry is rounded up");
    server.clock.advance(5999);
    assert_eq!(send("THROTTLE api-key-123 3 10 60")[0], 1, "after the retry it is allowed");
    assert_eq!(
        send("THROTTLE single 1 1 60"),
        [1, 1, 0, 60, 0],
        "the reset is when the bucket is full again"
    );
    assert_eq!(send("THROTTLE single 1 1 60"), [0, 1, 0, 60, 60]);
}

#[test]
fn throttle_and_cl_throttle_have_separate_keys() {
    let server = RespServer::start();
    let mut client = server.connect();
    assert_eq!(five_integers(client.command(&["THROTTLE", "k", "1", "1", "60"]).unwrap())[..3], [1, 1, 0]);
    assert_eq!(five_integers(client.command(&["CL.THROTTLE", "k", "0", "1", "60"]).unwrap())[..3], [0, 1, 0]);
    assert_eq!(client.command(&["TTL", "other"]).unwrap().int(), -2);
}

#[test]
fn errors_of_throttle_begin_like_throttlecrabs_and_name_the_field() {
    let server = RespServer::start();
    let arity = "ERR wrong number of arguments for 'throttle' command";
    let rate = "ERR Rate limit check failed: invalid rate limit parameters";
    for (sent, error) in [
        ("THROTTLE", arity.to_owned()),
        ("THROTTLE k 1 1", arity.to_owned()),
        ("THROTTLE k 1 1 1 1 1", arity.to_owned()),
        ("THROTTLE k a 1 1", "ERR invalid max_burst".to_owned()),
        ("THROTTLE k 1 1.5 1", "ERR invalid count_per_period".to_owned()),
        ("THROTTLE k 1 1 99999999999999999999", "ERR invalid period".to_owned()),
        ("THROTTLE k 1 1 1 x", "ERR invalid quantity".to_owned()),
        ("THROTTLE k 0 1 1", format!("{rate}: max_burst: 0 is not between 1 and 281474976710656")),
        ("THROTTLE k 1 -1 1", format!("{rate}: count_per_period: -1 is not between 1 and 281474976710656")),
        ("THROTTLE k 1 1 0", format!("{rate}: period: 0 is not between 1 and 31622400")),
        ("THROTTLE k 1 1 31622401", format!("{rate}: period: 31622401 is not between 1 and 31622400")),
        (
            "THROTTLE k 281474976710657 1 1",
            format!("{rate}: max_burst: 281474976710657 is not between 1 and 281474976710656"),
        ),
        ("THROTTLE k 1 1 1 -1", "ERR Rate limit check failed: negative quantity: -1".to_owned()),
        (
            "THROTTLE k 1 1 1 281474976710657",
            "ERR Rate limit check failed: quantity: 281474976710657 is not between 0 and 281474976710656"
                .to_owned(),
        ),
    ] {
        let words: Vec<&str> = sent.split(' ').collect();
        assert_eq!(server.replies_to(command(&words)), format!("-{error}\r\n"), "{sent}");
    }
    let reply = server.replies_to(command(&["THROTTLE", &"k".repeat(4097), "1", "1", "1"]));
    assert_eq!(reply, "-ERR key: 4097 bytes; 1 to 4096 bytes are allowed\r\n");
}
