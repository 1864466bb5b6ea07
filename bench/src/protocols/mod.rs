//! What others speak to the service, beside servers of their own. `make bench-protocols` starts it.

pub(crate) mod resp;

/// The part that is named, or all of them.
pub(crate) fn report(part: Option<&str>) {
    match part {
        None | Some("resp") => resp::report(),
        Some(other) => eprintln!("no part is called {other:?}; there is resp"),
    }
}
