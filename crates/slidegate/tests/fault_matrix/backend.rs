//! Interface of a kind of server in the fault matrix.

use slidegate::store::Store;
use slidegate_testkit::FaultProxy;

use crate::fault::Fault;

/// A server behind a proxy, set up for one fault.
pub(crate) trait Backend {
    type Store: Store + 'static;

    const NAME: &'static str;
    /// Fault of a full server of this kind.
    const FULL: Fault;
    /// Number of other clients that all reconnect at once.
    const CLIENTS: usize;
    /// First bytes that such a client sends. The response to a rejected client begins with `REJECTED`.
    const HELLO: &'static [u8];
    const REJECTED: u8;

    fn start(fault: Fault) -> Self;

    /// Connects a store for one node.
    fn connect(&self) -> impl Future<Output = Self::Store>;

    fn proxy(&self) -> &FaultProxy;

    fn kill(&self);

    fn restart(&self);

    /// Rejects or accepts writes.
    fn set_read_only(&self, is_read_only: bool);

    /// Uses up the server's memory or disk.
    fn fill(&self);

    fn free_space(&self);
}
