//! Protocols of the service beside servers that speak them natively. `make bench-protocols` starts it.

pub(crate) mod resp;

/// Runs the named part, or all parts.
pub(crate) fn report(part: Option<&str>) {
    match part {
        None | Some("resp") => resp::report(),
        Some(other) => eprintln!("no part is called {other:?}; there is resp"),
    }
}
