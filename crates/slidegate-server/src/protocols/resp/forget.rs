//! `SLIDEGATE.FORGET policy`: clears the counts of all keys of a policy.

use slidegate::Verb;
use slidegate::store::Store;
use slidegate_engine::Engine;

use super::frame::Arguments;
use super::grammar::Keyword;
use super::reply;
use super::session::{Session, write_arity_error};
use crate::request_metrics::record_rejection;

/// Returns whether this is the name of the command.
pub(super) fn is_forget(name: &Keyword) -> bool {
    name.as_bytes() == b"SLIDEGATE.FORGET"
}

/// Executes the command. Later commands of the connection wait until the store has cleared the counts.
pub(super) async fn execute<S: Store>(
    engine: &Engine<S>,
    session: &Session,
    words: Arguments<'_, '_>,
    out: &mut Vec<u8>,
) {
    if words.len() != 2 {
        return write_arity_error(out, "slidegate.forget");
    }
    let forgotten = match session.authorize(Verb::Reset) {
        Ok(()) => engine.forget(&String::from_utf8_lossy(words.word(1))).await,
        Err(rejection) => Err(rejection),
    };
    match forgotten {
        Ok(_) => reply::simple_string(out, "OK"),
        Err(rejection) => {
            record_rejection(&rejection);
            reply::rejection(out, &rejection);
        }
    }
}
