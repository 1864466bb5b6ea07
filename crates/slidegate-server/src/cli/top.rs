//! `slidegate top`: live decisions and heavy hitters of a running server.

mod screen;
mod view;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use slidegate::{Clock, SystemClock, parse_window};

use self::screen::Screen;
use self::view::{Frame, Size};
use super::certificate::ClientCertificate;
use super::{Failure, client};
use crate::protocols::admin::LiveResponse;

/// Watch a running server: decisions, hit rates, and the busiest and most denied keys
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// URL of the admin API; its token is read from `SLIDEGATE_TOKEN`
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8082", env = "SLIDEGATE_ADMIN_URL")]
    admin: client::ServerUrl,

    #[command(flatten)]
    certificate: ClientCertificate,

    /// Time between updates
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,

    /// Print once and exit, as always if standard output is not a terminal
    #[arg(long)]
    once: bool,
}

/// Minimum interval, so that the updates put little load on the server.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_window(text).map_err(|error| error.message().to_owned())?;
    if interval < MIN_INTERVAL { Err("at least 100ms".to_owned()) } else { Ok(interval) }
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut previous = fetch(arguments).await?;
    if arguments.once || !io::stdout().is_terminal() {
        let frame = Frame {
            current: &previous,
            previous: None,
            server: arguments.admin.to_string(),
            is_coloured: false,
        };
        let _ = io::stdout().write_all(frame.draw(Size::default()).as_bytes());
        return Ok(ExitCode::SUCCESS);
    }
    let screen = Screen::open();
    tokio::select! {
        () = watch(arguments, &mut previous, &screen) => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(ExitCode::SUCCESS)
}

async fn fetch(arguments: &Arguments) -> Result<LiveResponse, Failure> {
    let server = client::Server { url: &arguments.admin, certificate: &arguments.certificate };
    client::get(server, "/v1/live?keys=50").await
}

async fn watch(arguments: &Arguments, previous: &mut LiveResponse, screen: &Screen) {
    let interval_ms = u64::try_from(arguments.interval.as_millis()).unwrap_or(u64::MAX);
    let server = arguments.admin.to_string();
    let draw = |current: &LiveResponse, previous: Option<&LiveResponse>| {
        let frame = Frame { current, previous, server: server.clone(), is_coloured: true };
        screen.show(&frame.draw(screen.size()));
    };
    draw(previous, None);
    loop {
        SystemClock::default().sleep(interval_ms).await;
        match fetch(arguments).await {
            Ok(current) => {
                draw(&current, Some(previous));
                *previous = current;
            }
            // The server may be available again soon.
            Err(failure) => screen.show(&format!("{failure}\n\nretrying …\n")),
        }
    }
}
