//! A server on its core, asked from the other: by wrk, and by callers of our own.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use slidegate_testkit::until;

use crate::load::{Ends, Load, Seen};
use crate::sample::{CALLERS_CORE, Sample, Server, cpu_s, output};

const CONNECTIONS: usize = 64;
const DURATION: &str = "3s";

/// A hundred thousand keys in random order, one to a request or several. All requests are written before the first is sent,
/// for writing them would take wrk longer than sending them, and in the order in which they are sent, for to look for each
/// all over memory takes a twentieth of its core.
const SCRIPT: &str = r#"
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local size, body = tonumber(os.getenv("BATCH")), os.getenv("BODY")
local requests, count, sent = {}, 0, 0
local function one(key) return string.format(body, key) end
local function add(text) count = count + 1; requests[count] = wrk.format(nil, nil, nil, text) end
function init()
  if size == 1 then
    local keys = {}
    for place = 1, 100000 do keys[place] = place - 1 end
    for place = #keys, 1, -1 do
      local other = math.random(place)
      keys[place], keys[other] = keys[other], keys[place]
      add(one(keys[place]))
    end
    return
  end
  for number = 1, 2000 do
    local all = {}
    for i = 1, size do all[i] = one(math.random(0, 99999)) end
    add("[" .. table.concat(all, ",") .. "]")
  end
end
function request()
  sent = sent % count + 1
  return requests[sent]
end
"#;

/// How many keys there are.
const KEYS: usize = 100_000;
/// How many requests our own callers make at a time.
const QUESTIONS: usize = 250_000;

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
    address: SocketAddr,
    url: String,
    body: &'static str,
    /// As they go over the wire, one for each key.
    requests: Vec<Vec<u8>>,
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
        let Question { path, body } = question;
        let host = url.trim_start_matches("http://");
        let request = |key: usize| {
            let body = body.replace("%06d", &format!("{key:06}"));
            let length = body.len();
            format!(
                "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
                 Content-Length: {length}\r\n\r\n{body}"
            )
        };
        let requests = (0..KEYS).map(|key| request(key).into_bytes()).collect();
        let address = host.parse().expect("an address and a port");
        Self { server, address, url: format!("{url}{path}"), body, requests }
    }

    /// What our own callers see.
    pub(super) fn ask_ourselves(&self) -> Seen {
        let load = Load {
            address: self.address,
            connections: CONNECTIONS,
            depth: 1,
            requests: &self.requests,
            ends: Ends::AsHttp,
        };
        load.ask(self.server.id(), QUESTIONS)
    }

    /// What wrk sees.
    pub(super) fn ask(&self, batch: &str) -> Sample {
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
                    &CONNECTIONS.to_string(),
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
        let server_us = used * 1e6 / number("requests in");
        Sample { per_second: number("Requests/sec:"), server_us }
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
