//! A server on its core, asked by wrk from the other.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use slidegate_testkit::until;

use crate::sample::{CALLERS_CORE, Server, cpu_s, output};

const CONNECTIONS: &str = "64";
const DURATION: &str = "3s";

/// Random keys of a hundred thousand, one to a request or several. All requests are written before the first is sent, for
/// writing them would take wrk longer than sending them.
const SCRIPT: &str = r#"
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local size, body = tonumber(os.getenv("BATCH")), os.getenv("BODY")
local requests = {}
local function one(key) return string.format(body, key) end
function init()
  if size == 1 then
    for key = 1, 100000 do requests[key] = wrk.format(nil, nil, nil, one(key - 1)) end
    return
  end
  for number = 1, 2000 do
    local all = {}
    for i = 1, size do all[i] = one(math.random(0, 99999)) end
    requests[number] = wrk.format(nil, nil, nil, "[" .. table.concat(all, ",") .. "]")
  end
end
function request() return requests[math.random(#requests)] end
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
    server: Server,
    url: String,
    body: &'static str,
}

impl Subject {
    /// Starts what prints its address in the first line, behind the last space.
    pub(super) fn start(command: &Command, question: Question) -> Self {
        let mut server = Server::start(command);
        let line = server.lines().next().unwrap_or_else(|| missing(command));
        let url = line.trim().rsplit(' ').next().expect("an address").to_owned();
        Self::of(server, &url, question)
    }

    /// Starts what is told its port by the last argument.
    pub(super) fn start_on_port(command: &mut Command, question: Question) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it listens");
        drop(listener);
        let server = Server::start(command.arg(address.port().to_string()));
        until("it listens", || TcpStream::connect(address).map_err(|error| error.to_string()));
        Self::of(server, &format!("http://{address}"), question)
    }

    fn of(server: Server, url: &str, question: Question) -> Self {
        Self { server, url: format!("{url}{}", question.path), body: question.body }
    }

    /// Requests in a second, and what one cost the server in microseconds.
    pub(super) fn ask(&self, batch: &str) -> (f64, f64) {
        let script = std::env::temp_dir().join(format!("slidegate-bench-{}.lua", std::process::id()));
        fs::write(&script, SCRIPT).expect("a temporary file");
        let before = cpu_s(self.server.id());
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
        let used = cpu_s(self.server.id()) - before;
        assert!(!said.contains("Non-2xx"), "{said}");
        let number = |name: &str| {
            let line = said.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{said}"));
            let mut words = line.split_whitespace();
            words.find_map(|word| word.parse::<f64>().ok()).unwrap_or_else(|| panic!("{line}"))
        };
        (number("Requests/sec:"), used * 1e6 / number("requests in"))
    }
}

fn missing(command: &Command) -> ! {
    panic!("{command:?} says nothing; `make bench-server` installs it")
}

/// A program of others, where `make bench-server` has put it.
pub(super) fn peer(name: &str) -> Command {
    let own = std::env::current_exe().expect("this program has a path");
    let target = own.ancestors().nth(2).map(PathBuf::from).expect("it is below target/release");
    Command::new(target.join("tools/peers/bin").join(name))
}
