//! `SLIDEGATE.FORGET`.

use std::sync::Arc;

use slidegate_config::{Limits, Scope, Token, Verbs};
use slidegate_engine::Authenticator;

use super::{PASSWORD, RespServer, command};

#[test]
fn forget_executes_in_pipeline_order() {
    let server = RespServer::start();
    let words: [&[&str]; 7] = [
        &["SLIDEGATE.CHECK", "api", "a", "60"],
        &["slidegate.forget", "api"],
        &["SLIDEGATE.CHECK", "api", "a", "60"],
        &["SLIDEGATE.FORGET"],
        &["SLIDEGATE.FORGET", "unknown"],
        &["PING"],
        &["SLIDEGATE.CHECK", "api", "a", "40"],
    ];
    let sent: String = words.into_iter().map(command).collect();
    // The last commands are inline.
    let replies = server.replies_to(format!("{sent}SLIDEGATE.FORGET api\r\nSLIDEGATE.PEEK api a\r\n"));
    let encoded =
        |numbers: [i64; 5]| format!("*5\r\n{}", numbers.map(|number| format!(":{number}\r\n")).concat());
    let expected = [
        encoded([1, 100, 40, -1, 120_000]),
        "+OK\r\n".to_owned(),
        encoded([1, 100, 40, -1, 120_000]),
        "-ERR wrong number of arguments for 'slidegate.forget' command\r\n".to_owned(),
        "-ERR policy: there is no policy \"unknown\"; known: \"api\", \"login\"\r\n".to_owned(),
        "+PONG\r\n".to_owned(),
        encoded([1, 100, 0, -1, 120_000]),
        "+OK\r\n".to_owned(),
        encoded([1, 100, 100, -1, 0]),
    ];
    assert_eq!(replies, expected.concat());
}

#[test]
fn a_token_without_the_verb_reset_cannot_forget() {
    let token = Token::new("app", PASSWORD, Scope::Read).unwrap().for_verbs(Verbs::default());
    let authenticator = Arc::new(Authenticator::new([token].into_iter().collect()));
    let server = RespServer::with_limits_and_passwords(Limits::default(), Some(authenticator));
    let mut client = server.connect();
    client.command(&["AUTH", PASSWORD]).unwrap().ok();
    for words in [
        &["SLIDEGATE.FORGET", "api"][..],
        &["SLIDEGATE.RESET", "api", "a"],
        &["SLIDEGATE.REFUND", "api", "a"],
    ] {
        let error = format!("{:?}", client.command(words).unwrap());
        assert!(
            error.contains("NOPERM") && error.contains("the configuration allows it check, peek"),
            "{error}"
        );
    }
    assert_eq!(client.command(&["SLIDEGATE.CHECK", "api", "a"]).unwrap().array().len(), 5);
}

#[test]
fn forget_needs_authentication() {
    let server = RespServer::with_password(Limits::default());
    let mut client = server.connect();
    let error = client.command(&["SLIDEGATE.FORGET", "api"]).unwrap();
    assert!(format!("{error:?}").contains("NOAUTH"), "{error:?}");
    client.command(&["AUTH", PASSWORD]).unwrap().ok();
    client.command(&["SLIDEGATE.FORGET", "api"]).unwrap().ok();
}
