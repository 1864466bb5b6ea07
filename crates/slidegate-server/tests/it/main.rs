//! The service from outside: real sockets, the real binary, and time that stands still unless it is moved.
#![expect(clippy::unwrap_used, reason = "clippy takes only functions marked as tests for tests")]

mod admin;
mod answers;
mod batches;
mod checking;
mod configs;
mod contract;
mod deploying;
mod doors;
mod envoy;
mod envoy_configs;
mod explaining;
mod forward_auth;
mod fuzzing;
mod grpc;
mod killing;
mod lane;
mod manual;
mod outages;
mod overrides;
mod postgres;
mod probing;
mod process;
mod proxies;
mod refusals;
mod reloading;
mod resp;
mod rig;
mod rls;
mod schema;
mod secrets;
mod serving;
mod shared;
mod stopping;
mod throttle;
mod tokens;
