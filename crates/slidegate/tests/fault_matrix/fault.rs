//! The faults, and how to start and stop each.

use std::time::Duration;

use crate::backend::Backend;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No fault, as a baseline.
    None,
    /// The server is killed, its port closed, and it restarts with its counts. Nodes connect without the proxy, which
    /// would accept connections for the closed port.
    Down,
    /// Established connections are cut and new ones closed at once.
    RefuseConnections,
    /// Connections are accepted, and no response is sent.
    BlackHole,
    /// Each packet is delayed by 1 s.
    Slow,
    /// Data arrives one byte at a time.
    Trickle,
    /// Replies are repeatedly cut off after a few bytes.
    ResetMidReply,
    /// Reachable for a second, then unreachable for a second.
    Flap,
    /// The server is killed and restarts at once without counts.
    RestartEmpty,
    /// The server responds but rejects writes.
    ReadOnly,
    /// All clients lose their connections at once.
    Reconnect,
    /// Redis without memory.
    OutOfMemory,
    /// PostgreSQL on a full disk.
    DiskFull,
}

const TRICKLE_PAUSE: Duration = Duration::from_millis(20);
const SLOW: Duration = Duration::from_secs(1);
/// Shorter than any reply.
const REPLY_BYTES: usize = 4;

impl Fault {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none, to compare",
            Self::Down => "down",
            Self::RefuseConnections => "refused",
            Self::BlackHole => "black hole",
            Self::Slow => "slow, 1 s",
            Self::Trickle => "trickle",
            Self::ResetMidReply => "reset mid-reply",
            Self::Flap => "flap, 1 s on and off",
            Self::RestartEmpty => "restart, empty",
            Self::ReadOnly => "read-only",
            Self::Reconnect => "all clients reconnect",
            Self::OutOfMemory => "out of memory",
            Self::DiskFull => "disk full",
        }
    }

    /// Number of times that the store loses its counts.
    pub(crate) const fn count_losses(self) -> u64 {
        matches!(self, Self::RestartEmpty) as u64
    }

    /// Returns whether some requests must fail during the fault. The other faults may pass between two requests.
    pub(crate) const fn is_noticeable(self) -> bool {
        !matches!(self, Self::None | Self::ResetMidReply | Self::RestartEmpty | Self::Reconnect)
    }

    pub(crate) fn begin(self, server: &impl Backend) {
        let proxy = server.proxy();
        match self {
            Self::Down => server.kill(),
            Self::RefuseConnections => {
                proxy.refuse_connections();
                proxy.cut();
            }
            Self::BlackHole => proxy.stall(),
            Self::Slow => proxy.slow(SLOW),
            Self::Trickle => proxy.trickle(TRICKLE_PAUSE),
            Self::RestartEmpty => server.restart(),
            Self::ReadOnly => server.set_read_only(true),
            Self::Reconnect => proxy.cut(),
            Self::OutOfMemory | Self::DiskFull => server.fill(),
            // Repeated faults start with the first tick.
            Self::None | Self::ResetMidReply | Self::Flap => {}
        }
    }

    /// Repeats the fault's action. `flap_ticks` are one second in the long form.
    pub(crate) fn tick(self, server: &impl Backend, tick: u32, flap_ticks: u32) {
        match self {
            Self::ResetMidReply => server.proxy().cut_reply_after(REPLY_BYTES),
            Self::Flap if tick.is_multiple_of(2 * flap_ticks) => Self::RefuseConnections.begin(server),
            Self::Flap if tick.is_multiple_of(flap_ticks) => server.proxy().pass(),
            _ => {}
        }
    }

    pub(crate) fn end(self, server: &impl Backend) {
        server.proxy().pass();
        match self {
            Self::Down => server.restart(),
            Self::ReadOnly => server.set_read_only(false),
            Self::OutOfMemory | Self::DiskFull => server.free_space(),
            _ => {}
        }
    }
}
