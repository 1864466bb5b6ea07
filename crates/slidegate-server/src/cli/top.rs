//! `slidegate top`: what a running server decides, and who stands out, as it happens.

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

/// Watch a running server: decisions, hit rates and the keys that stand out
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Its admin API, with the token in `SLIDEGATE_TOKEN` if it wants one
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8082", env = "SLIDEGATE_ADMIN_URL")]
    admin: client::ServerUrl,

    #[command(flatten)]
    certificate: ClientCertificate,

    /// How often to look
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,

    /// Print one picture and end, as it also does where nobody watches
    #[arg(long)]
    once: bool,
}

/// Not so often that looking is what keeps the server busy.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_window(text).map_err(|error| error.message().to_owned())?;
    if interval < LEAST_INTERVAL { Err("at least 100ms".to_owned()) } else { Ok(interval) }
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut before = look(arguments).await?;
    if arguments.once || !io::stdout().is_terminal() {
        let frame =
            Frame { now: &before, before: None, server: arguments.admin.to_string(), is_coloured: false };
        let _ = io::stdout().write_all(frame.draw(Size::default()).as_bytes());
        return Ok(ExitCode::SUCCESS);
    }
    let screen = Screen::open();
    tokio::select! {
        () = watch(arguments, &mut before, &screen) => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(ExitCode::SUCCESS)
}

async fn look(arguments: &Arguments) -> Result<LiveResponse, Failure> {
    let server = client::Server { url: &arguments.admin, certificate: &arguments.certificate };
    client::get(server, "/v1/live?keys=50").await
}

async fn watch(arguments: &Arguments, before: &mut LiveResponse, screen: &Screen) {
    let interval_ms = u64::try_from(arguments.interval.as_millis()).unwrap_or(u64::MAX);
    let server = arguments.admin.to_string();
    let draw = |now: &LiveResponse, before: Option<&LiveResponse>| {
        let frame = Frame { now, before, server: server.clone(), is_coloured: true };
        screen.show(&frame.draw(screen.size()));
    };
    draw(before, None);
    loop {
        SystemClock::default().sleep(interval_ms).await;
        match look(arguments).await {
            Ok(now) => {
                draw(&now, Some(before));
                *before = now;
            }
            // It may be back soon.
            Err(failure) => screen.show(&format!("{failure}\n\nlooking again …\n")),
        }
    }
}
