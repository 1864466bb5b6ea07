//! The service beside an axum handler that only reads the same JSON, asked by wrk. `make bench-server` starts it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;

use crate::figures::{Aim, Figures, Row};
use crate::sample::{CALLERS_CORE, SERVER_CORE, output, pin};

const ROUNDS: usize = 7;
const CONNECTIONS: &str = "64";
const DURATION: &str = "3s";
/// How many checks there are in a batch.
const BATCH: f64 = 100.0;

/// Random keys of a hundred thousand, one to a request or a hundred.
const SCRIPT: &str = r#"
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local size = tonumber(os.getenv("BATCH"))
local function one()
  return string.format('{"policy": "api", "key": "user:%06d", "cost": 1}', math.random(0, 99999))
end
function request()
  if size == 1 then return wrk.format(nil, nil, nil, one()) end
  local all = {}
  for i = 1, size do all[i] = one() end
  return wrk.format(nil, nil, nil, "[" .. table.concat(all, ",") .. "]")
end
"#;

/// A server on its core, and where it listens.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    /// Starts what prints its address in the first line, behind the last space.
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut line).expect("it says where it listens");
        pin(child.id(), SERVER_CORE);
        let url = line.trim().rsplit(' ').next().expect("an address").to_owned();
        Self { child, url: format!("{url}/v1/check") }
    }

    /// Seconds of the processor's time.
    fn cpu_s(&self) -> f64 {
        let line = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("Linux");
        let fields: Vec<&str> = line.rsplit_once(')').expect("a name").1.split_whitespace().collect();
        // In hundredths, as Linux has it everywhere.
        [11, 12].iter().map(|place| fields[*place].parse::<f64>().expect("a number")).sum::<f64>() / 100.0
    }

    /// Requests in a second, and what one cost the server in microseconds.
    fn ask(&self, batch: &str) -> (f64, f64) {
        let script = std::env::temp_dir().join(format!("slidegate-bench-{}.lua", std::process::id()));
        fs::write(&script, SCRIPT).expect("a temporary file");
        let before = self.cpu_s();
        let said = output(
            Command::new("taskset")
                .args([
                    "-c",
                    &CALLERS_CORE.to_string(),
                    "wrk",
                    "-t1",
                    "-c",
                    CONNECTIONS,
                    "-d",
                    DURATION,
                    "-s",
                ])
                .arg(&script)
                .arg(&self.url)
                .env("BATCH", batch),
        );
        let used = self.cpu_s() - before;
        assert!(!said.contains("Non-2xx"), "{said}");
        let number = |name: &str| {
            let line = said.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{said}"));
            let mut words = line.split_whitespace();
            words.find_map(|word| word.parse::<f64>().ok()).unwrap_or_else(|| panic!("{line}"))
        };
        (number("Requests/sec:"), used * 1e6 / number("requests in"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn report() {
    let own = std::env::current_exe().expect("this program has a path");
    let service = PathBuf::from(&own).with_file_name("slidegate");
    let config = std::env::temp_dir().join(format!("slidegate-bench-{}.yaml", std::process::id()));
    fs::write(&config, "policies: {api: {quotas: [1000/1m]}}\nlog: {violations: 0}\n")
        .expect("a temporary file");
    let ours = Server::start(
        Command::new(service).args(["serve", "--http", "127.0.0.1:0", "--config"]).arg(&config),
    );
    let bare = Server::start(Command::new(own).arg("server-constant"));
    let (mut ours_rate, mut ours_us, mut bare_rate, mut bare_us, mut batches) =
        <[Figures; 5]>::default().into();
    for round in 1..=ROUNDS {
        eprintln!("64 connections, 100 k keys, round {round} of {ROUNDS} …");
        let (rate, us) = ours.ask("1");
        ours_rate.push(rate);
        ours_us.push(us);
        let (rate, us) = bare.ask("1");
        bare_rate.push(rate);
        bare_us.push(us);
        batches.push(ours.ask("100").0 * BATCH);
    }
    let _ = fs::remove_file(config);
    println!("medians (least to most)\n\n| | slidegate | beside it | ratio | aim |\n|---|---|---|---|---|");
    let rows = [
        (
            "requests/s, an axum handler that reads the same JSON",
            ours_rate.clone(),
            bare_rate,
            Aim::AtLeast(0.9),
        ),
        ("server CPU µs each, the same", ours_us, bare_us, Aim::Open),
        ("decisions/s in batches of 100, single requests", batches, ours_rate, Aim::AtLeast(10.0)),
    ];
    for (what, here, beside, aim) in rows {
        println!("{}", Row { what: what.to_owned(), here, beside, aim });
    }
}

/// What reads the JSON and answers a constant.
pub(crate) fn constant() {
    const ANSWER: &str = r#"{"allowed":true,"policy":"api","limit":1000,"remaining":999,"reset_after_ms":60000,"retry_after_ms":null,"violated":[],"source":"store","quotas":[{"name":"1000/1m","limit":1000,"window_ms":60000,"used":1,"remaining":999,"reset_after_ms":60000,"retry_after_ms":null}]}"#;
    #[derive(serde::Deserialize)]
    #[expect(dead_code, reason = "it is only read")]
    struct Request {
        policy: String,
        key: String,
        cost: u64,
    }
    let handler = async |body: Bytes| {
        let request: Request = serde_json::from_slice(&body).expect("what wrk sends");
        std::hint::black_box(&request);
        ([("content-type", "application/json")], ANSWER)
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        println!("constant at http://{}", listener.local_addr().expect("it listens"));
        let app: Router = Router::new().route("/v1/check", post(handler));
        axum::serve(axum::serve::ListenerExt::tap_io(listener, |io| drop(io.set_nodelay(true))), app)
            .await
            .expect("it serves");
    });
}
