//! Serving until told to stop.

use std::future::{Future, IntoFuture, pending};
use std::io;
use std::sync::Arc;

use axum::serve::ListenerExt;
use slidegate::Store;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tracing::{debug, info, warn};

use crate::app::App;
use crate::http;

/// How long requests that have begun may take after a stop was asked for.
const DRAIN_MS: u64 = 10_000;

/// Serves HTTP on `listener` until `shutdown` is done and the requests that have begun are answered, or have had
/// ten seconds to be.
pub async fn run<S: Store + 'static>(
    listener: TcpListener,
    app: Arc<App<S>>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (asked, was_asked) = oneshot::channel();
    let shutdown = async move {
        shutdown.await;
        info!("draining");
        let _ = asked.send(());
    };
    // Answers are small; waiting to fill a packet would only delay them.
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            debug!(%error, "cannot set TCP_NODELAY");
        }
    });
    let serving = axum::serve(listener, http::router(app.clone())).with_graceful_shutdown(shutdown);
    let patience = async {
        match was_asked.await {
            Ok(()) => app.clock().sleep(DRAIN_MS).await,
            Err(_) => pending().await,
        }
    };
    tokio::select! {
        result = serving.into_future() => result,
        () = patience => {
            warn!("some requests were not over after {DRAIN_MS} ms and are dropped");
            Ok(())
        }
    }
}
