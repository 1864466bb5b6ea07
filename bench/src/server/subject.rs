//! A server on its core, asked by wrk from the other.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use slidegate_testkit::until;

use crate::sample::{CALLERS_CORE, SERVER_CORE, output, pin};

const CONNECTIONS: &str = "64";
const DURATION: &str = "3s";

/// Random keys of a hundred thousand, one to a request or several.
const SCRIPT: &str = r#"
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local size, body = tonumber(os.getenv("BATCH")), os.getenv("BODY")
local function one() return string.format(body, math.random(0, 99999)) end
function request()
  if size == 1 then return wrk.format(nil, nil, nil, one()) end
  local all = {}
  for i = 1, size do all[i] = one() end
  return wrk.format(nil, nil, nil, "[" .. table.concat(all, ",") .. "]")
end
"#;

/// What is asked, and where.
#[derive(Clone, Copy)]
pub(super) struct Question {
    pub(super) path: &'static str,
    /// With a place for the number of the key, as Lua formats it.
    pub(super) body: &'static str,
}

/// A server, and what it is asked.
pub(super) struct Subject {
    child: Child,
    url: String,
    body: &'static str,
}

impl Subject {
    /// Starts what prints its address in the first line, behind the last space.
    pub(super) fn start(command: &mut Command, question: Question) -> Self {
        let mut child = spawn(command.stdout(Stdio::piped()));
        let mut line = String::new();
        let out = child.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut line).expect("it says where it listens");
        let url = line.trim().rsplit(' ').next().expect("an address").to_owned();
        Self::of(child, &url, question)
    }

    /// Starts what is told its port by the last argument.
    pub(super) fn start_on_port(command: &mut Command, question: Question) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it listens");
        drop(listener);
        let child =
            spawn(command.arg(address.port().to_string()).stdout(Stdio::null()).stderr(Stdio::null()));
        until("it listens", || TcpStream::connect(address).map_err(|error| error.to_string()));
        Self::of(child, &format!("http://{address}"), question)
    }

    fn of(child: Child, url: &str, question: Question) -> Self {
        pin(child.id(), SERVER_CORE);
        Self { child, url: format!("{url}{}", question.path), body: question.body }
    }

    /// Seconds of the processor's time.
    fn cpu_s(&self) -> f64 {
        let line = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("Linux");
        let fields: Vec<&str> = line.rsplit_once(')').expect("a name").1.split_whitespace().collect();
        // In hundredths, as Linux has it everywhere.
        [11, 12].iter().map(|place| fields[*place].parse::<f64>().expect("a number")).sum::<f64>() / 100.0
    }

    /// Requests in a second, and what one cost the server in microseconds.
    pub(super) fn ask(&self, batch: &str) -> (f64, f64) {
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
                .env("BATCH", batch)
                .env("BODY", self.body),
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

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(command: &mut Command) -> Child {
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}; `make bench-server` installs it"))
}

/// A program of others, where `make bench-server` has put it.
pub(super) fn peer(name: &str) -> Command {
    let own = std::env::current_exe().expect("this program has a path");
    let target = own.ancestors().nth(2).map(PathBuf::from).expect("it is below target/release");
    Command::new(target.join("tools/peers/bin").join(name))
}
