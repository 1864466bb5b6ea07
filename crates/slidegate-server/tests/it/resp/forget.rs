//! `SLIDEGATE.FORGET`.

use std::sync::Arc;

use slidegate_config::{Limits, Scope, Token, Verbs};
use slidegate_server::Authenticator;

use super::{PASSWORD, Resp, command};

#[test]
fn a_policy_is_forgotten_in_the_order_of_the_commands() {
    let server = Resp::start();
    let words: [&[&str]; 7] = [
        &["SLIDEGATE.CHECK", "api", "a", "60"],
        &["slidegate.forget", "api"],
        &["SLIDEGATE.CHECK", "api", "a", "60"],
        &["SLIDEGATE.FORGET"],
        &["SLIDEGATE.FORGET", "nobody"],
        &["PING"],
        &["SLIDEGATE.CHECK", "api", "a", "40"],
    ];
    let said: String = words.into_iter().map(command).collect();
    // The last one as a line.
    let answer = server.answer(format!("{said}SLIDEGATE.FORGET api\r\nSLIDEGATE.PEEK api a\r\n"));
    let five =
        |numbers: [i64; 5]| format!("*5\r\n{}", numbers.map(|number| format!(":{number}\r\n")).concat());
    let expected = [
        five([1, 100, 40, -1, 120_000]),
        "+OK\r\n".to_owned(),
        five([1, 100, 40, -1, 120_000]),
        "-ERR wrong number of arguments for 'slidegate.forget' command\r\n".to_owned(),
        "-ERR policy: there is no policy \"nobody\"; known: \"api\", \"login\"\r\n".to_owned(),
        "+PONG\r\n".to_owned(),
        five([1, 100, 0, -1, 120_000]),
        "+OK\r\n".to_owned(),
        five([1, 100, 100, -1, 0]),
    ];
    assert_eq!(answer, expected.concat());
}

#[test]
fn a_token_without_reset_forgets_nothing() {
    let token = Token::new("app", PASSWORD, Scope::Read).unwrap().for_verbs(Verbs::default());
    let admission = Arc::new(Authenticator::new([token].into_iter().collect()));
    let server = Resp::with(Limits::default(), Some(admission));
    let mut client = server.connect();
    client.command(&["AUTH", PASSWORD]).unwrap().ok();
    for words in [
        &["SLIDEGATE.FORGET", "api"][..],
        &["SLIDEGATE.RESET", "api", "a"],
        &["SLIDEGATE.REFUND", "api", "a"],
    ] {
        let refused = format!("{:?}", client.command(words).unwrap());
        assert!(
            refused.contains("NOPERM") && refused.contains("the configuration allows it check, peek"),
            "{refused}"
        );
    }
    assert_eq!(client.command(&["SLIDEGATE.CHECK", "api", "a"]).unwrap().array().len(), 5);
}

#[test]
fn nothing_is_forgotten_for_a_stranger() {
    let server = Resp::closed(Limits::default());
    let mut client = server.connect();
    let refused = client.command(&["SLIDEGATE.FORGET", "api"]).unwrap();
    assert!(format!("{refused:?}").contains("NOAUTH"), "{refused:?}");
    client.command(&["AUTH", PASSWORD]).unwrap().ok();
    client.command(&["SLIDEGATE.FORGET", "api"]).unwrap().ok();
}
