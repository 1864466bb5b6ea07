//! What a kind of server has to offer to be part of the matrix.

use slidegate::Store;
use slidegate_testkit::FaultProxy;

use crate::fault::Fault;

/// A server with a proxy in front of it, made for one fault.
pub(crate) trait Backend {
    type Store: Store + 'static;

    const NAME: &'static str;
    /// How this kind of server runs out of room.
    const NO_ROOM: Fault;
    /// How many other clients there are when all of them have to connect anew.
    const CLIENTS: usize;
    /// What such a client says first. Whoever is turned away hears an answer that begins with `UNWELCOME`.
    const HELLO: &'static [u8];
    const UNWELCOME: u8;

    fn start(fault: Fault) -> Self;

    /// A store of its own for a node.
    fn connect(&self) -> impl Future<Output = Self::Store>;

    fn proxy(&self) -> &FaultProxy;

    fn kill(&self);

    fn restart(&self);

    /// Whether it takes writes.
    fn set_read_only(&self, is_read_only: bool);

    /// Leaves no room for anything new.
    fn fill(&self);

    fn make_room(&self);
}
