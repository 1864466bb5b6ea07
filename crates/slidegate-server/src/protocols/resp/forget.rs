//! `SLIDEGATE.FORGET policy`: forgets what all keys of a policy have spent.

use metrics::counter;
use slidegate::Verb;
use slidegate::store::Store;
use tracing::debug;

use super::command::Name;
use super::frame::Arguments;
use super::reply;
use super::session::{Session, arity};
use crate::app::App;

/// Whether it is this command.
pub(super) fn is_forget(name: &Name) -> bool {
    name.as_bytes() == b"SLIDEGATE.FORGET"
}

/// Executes it. The commands behind it wait until the store has forgotten.
pub(super) async fn answer<S: Store>(
    app: &App<S>,
    session: &Session,
    words: Arguments<'_, '_>,
    out: &mut Vec<u8>,
) {
    if words.len() != 2 {
        return arity(out, "slidegate.forget");
    }
    let forgotten = match session.may(Verb::Reset) {
        Ok(()) => app.forget(&String::from_utf8_lossy(words.word(1))).await,
        Err(rejection) => Err(rejection),
    };
    match forgotten {
        Ok(_) => reply::simple(out, "OK"),
        Err(rejection) => {
            debug!(kind = ?rejection.kind, why = rejection.detail, "refused");
            counter!("slidegate_refusals_total", "reason" => rejection.kind.name()).increment(1);
            reply::rejection(out, &rejection);
        }
    }
}
