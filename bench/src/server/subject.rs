//! Server on its core, measured from the other with wrk and with our own load generator.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use slidegate_testkit::until;

use crate::load::{Load, Measured, ResponseEnd};
use crate::sample::{CALLERS_CORE, Sample, Server, cpu_s, output};

const CONNECTIONS: usize = 64;
const DURATION: &str = "3s";

/// Draws from a hundred thousand keys in random order, one or several per request. Builds all requests before the first
/// is sent, because wrk takes longer to build a request than to send it. Keeps them in sending order, because random
/// access to memory takes a twentieth of wrk's core.
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

/// Number of keys.
const KEYS: usize = 100_000;
/// Requests of our own load generator per round.
const REQUESTS: usize = 250_000;

/// Path and body of a request.
#[derive(Clone, Copy)]
pub(super) struct Endpoint {
    pub(super) path: &'static str,
    /// Contains a placeholder for the key's number in Lua's notation.
    pub(super) body: &'static str,
}

/// Running server and the requests for it.
pub(super) struct Subject {
    server: Server,
    address: SocketAddr,
    url: String,
    body: &'static str,
    /// Encoded requests, one for each key.
    requests: Vec<Vec<u8>>,
}

impl Subject {
    /// Starts a server that prints its address at the end of its first line.
    pub(super) fn start(command: &Command, endpoint: Endpoint) -> Self {
        let mut server = Server::start(command);
        let line = server.lines().next().unwrap_or_else(|| missing(command));
        let url = line.trim().rsplit(' ').next().expect("an address").to_owned();
        Self::new(server, &url, endpoint)
    }

    /// Starts a server that takes its port as its last argument.
    pub(super) fn start_on_port(command: &mut Command, endpoint: Endpoint) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("the server listens");
        drop(listener);
        let server = Server::start(command.arg(address.port().to_string()));
        until("the server listens", || TcpStream::connect(address).map_err(|error| error.to_string()));
        Self::new(server, &format!("http://{address}"), endpoint)
    }

    fn new(server: Server, url: &str, endpoint: Endpoint) -> Self {
        let Endpoint { path, body } = endpoint;
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

    /// Measures with our own load generator.
    pub(super) fn measure(&self) -> Measured {
        let load = Load {
            address: self.address,
            connections: CONNECTIONS,
            depth: 1,
            requests: &self.requests,
            response_end: ResponseEnd::ContentLength,
        };
        load.measure(self.server.id(), REQUESTS)
    }

    /// Measures with wrk.
    pub(super) fn measure_with_wrk(&self, batch: &str) -> Sample {
        let script = std::env::temp_dir().join(format!("slidegate-bench-{}.lua", std::process::id()));
        fs::write(&script, SCRIPT).expect("a temporary file");
        let before = cpu_s(self.server.id());
        let text = output(
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
        assert!(!text.contains("Non-2xx"), "{text}");
        let number = |name: &str| {
            let line = text.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{text}"));
            let mut words = line.split_whitespace();
            words.find_map(|word| word.parse::<f64>().ok()).unwrap_or_else(|| panic!("{line}"))
        };
        let server_us = used * 1e6 / number("requests in");
        Sample { per_second: number("Requests/sec:"), server_us }
    }
}

fn missing(command: &Command) -> ! {
    panic!("{command:?} prints nothing; install it with `make bench-server`")
}

/// Command for a peer that `make bench-server` has installed.
pub(super) fn peer(name: &str) -> Command {
    let own = std::env::current_exe().expect("this program has a path");
    let target = own.ancestors().nth(2).map(PathBuf::from).expect("the program is below target/release");
    Command::new(target.join("tools/peers/bin").join(name))
}
