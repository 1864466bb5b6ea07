//! Script that decides in the server.

use std::sync::LazyLock;

/// Source of the script. The parts that most calls never need are inside one function, so that a call defines them only
/// when it needs them.
pub(super) const TEXT: &str = concat!(
    "local function general(invoke)\n",
    include_str!("lua/exact.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/token_bucket.lua"),
    include_str!("lua/strict_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/record.lua"),
    "end\n",
    include_str!("lua/main.lua"),
);

/// SHA-1 digest of the script, for `EVALSHA`.
pub(super) static SHA: LazyLock<String> = LazyLock::new(|| redis::Script::new(TEXT).get_hash().to_owned());
