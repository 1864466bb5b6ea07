//! Transport of the listeners: timeouts, buffers, TLS, HTTP by hyper, and the drain of connections. Knows no protocol of ours.

pub(crate) mod activity;
pub(crate) mod buffered_stream;
pub(crate) mod cork;
pub(crate) mod hyper_connection;
pub(crate) mod io_timeout;
mod limits;
pub(crate) mod lingering_close;
mod paced_body;
mod request_stream;
pub(crate) mod stop;
pub(crate) mod streams;
pub(crate) mod tls;
