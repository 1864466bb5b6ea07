//! The faults, and how each begins and ends.

use std::time::Duration;

use crate::backend::Backend;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// What the machine does by itself, to compare with.
    None,
    /// Killed, its port closed, and started again with what it had counted. Nodes connect without the proxy, which would
    /// hide that nobody listens.
    Down,
    /// New connections are closed at once; the old ones were cut.
    Refused,
    /// Connections are accepted, and nothing is ever answered.
    BlackHole,
    /// A second for each packet.
    Slow,
    /// A byte at a time.
    Trickle,
    /// Replies are cut off after a few bytes, again and again.
    ResetMidReply,
    /// There for a second and away for a second.
    Flap,
    /// Killed and started at once, with nothing counted.
    RestartEmpty,
    /// Answers, and refuses to write.
    ReadOnly,
    /// All clients lose their connections at the same moment.
    Reconnect,
    /// Redis without memory.
    OutOfMemory,
    /// PostgreSQL without room on its disk.
    DiskFull,
}

const TRICKLE_PAUSE: Duration = Duration::from_millis(20);
const SLOW: Duration = Duration::from_secs(1);
/// Less than any reply has.
const REPLY_BYTES: usize = 4;

impl Fault {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none, to compare",
            Self::Down => "down",
            Self::Refused => "refused",
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

    /// How often the store forgets what it has counted.
    pub(crate) const fn forgets(self) -> u64 {
        matches!(self, Self::RestartEmpty) as u64
    }

    /// Whether the store cannot decide everything while it lasts. The others may pass between two requests.
    pub(crate) const fn is_felt(self) -> bool {
        !matches!(self, Self::None | Self::ResetMidReply | Self::RestartEmpty | Self::Reconnect)
    }

    pub(crate) fn begin(self, server: &impl Backend) {
        let proxy = server.proxy();
        match self {
            Self::Down => server.kill(),
            Self::Refused => {
                proxy.refuse();
                proxy.cut();
            }
            Self::BlackHole => proxy.stall(),
            Self::Slow => proxy.slow(SLOW),
            Self::Trickle => proxy.trickle(TRICKLE_PAUSE),
            Self::RestartEmpty => server.restart(),
            Self::ReadOnly => server.set_read_only(true),
            Self::Reconnect => proxy.cut(),
            Self::OutOfMemory | Self::DiskFull => server.fill(),
            // Those that come again and again begin with the first tick.
            Self::None | Self::ResetMidReply | Self::Flap => {}
        }
    }

    /// What has to be done again and again while it lasts. `flap_ticks` are a second in the long form.
    pub(crate) fn tick(self, server: &impl Backend, tick: u32, flap_ticks: u32) {
        match self {
            Self::ResetMidReply => server.proxy().cut_reply_after(REPLY_BYTES),
            Self::Flap if tick.is_multiple_of(2 * flap_ticks) => Self::Refused.begin(server),
            Self::Flap if tick.is_multiple_of(flap_ticks) => server.proxy().pass(),
            _ => {}
        }
    }

    pub(crate) fn end(self, server: &impl Backend) {
        server.proxy().pass();
        match self {
            Self::Down => server.restart(),
            Self::ReadOnly => server.set_read_only(false),
            Self::OutOfMemory | Self::DiskFull => server.make_room(),
            _ => {}
        }
    }
}
