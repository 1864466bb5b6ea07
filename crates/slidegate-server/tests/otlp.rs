//! Traces over OTLP to a collector on grpcio. `make test` builds the service with the feature `otlp`.
#![cfg(feature = "otlp")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Collector in Python: prints its port and then each request in hex.
const COLLECTOR: &str = r#"
import sys, grpc
from concurrent import futures

def export(request, context):
    print(request.hex(), flush=True)
    return b""

class Collector(grpc.GenericRpcHandler):
    def service(self, call):
        if call.method == "/opentelemetry.proto.collector.trace.v1.TraceService/Export":
            return grpc.unary_unary_rpc_method_handler(export)

server = grpc.server(futures.ThreadPoolExecutor(2))
server.add_generic_rpc_handlers((Collector(),))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
sys.stdin.read()
"#;

/// Child process that is killed on drop.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const PLAIN_TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const LAST_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

#[test]
fn a_request_becomes_a_span_of_its_trace() {
    let grpc = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/grpc");
    assert!(grpc.exists(), "`make deps` installs {}", grpc.display());
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", grpc).args(["-c", COLLECTOR]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut collector = KillOnDrop(python.spawn().unwrap());
    let mut collected = BufReader::new(collector.0.stdout.take().unwrap()).lines();
    let port = collected.next().unwrap().unwrap();

    let mut serve = Command::new(env!("CARGO_BIN_EXE_slidegate"));
    serve.args(["serve", "--http", "127.0.0.1:0", "--grpc", "off", "--admin", "off"]);
    serve.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://127.0.0.1:{port}")).stdout(Stdio::piped());
    let mut server = KillOnDrop(serve.spawn().unwrap());
    let mut startup_lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let first = startup_lines.next().unwrap().unwrap();
    let address = first.strip_prefix("slidegate serves http://").unwrap().to_owned();

    let body = r#"{"policy": "api", "key": "user:1"}"#;
    let request = |trace: &str, span: &str, header: &str| {
        let length = body.len();
        format!(
            "POST /v1/check HTTP/1.1\r\nhost: a\r\n{header}traceparent: 00-{trace}-{span}-01\r\n\
             content-length: {length}\r\n\r\n{body}"
        )
    };
    // The fast path serves the first request. The header of the second one hands the connection over to hyper.
    let plain = request(PLAIN_TRACE, "b7ad6b7169203331", "");
    let last = request(LAST_TRACE, "00f067aa0ba902b7", "connection: close\r\n");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all((plain + &last).as_bytes()).unwrap();
    let mut responses = String::new();
    stream.read_to_string(&mut responses).unwrap();
    assert_eq!(responses.matches(r#""allowed":true"#).count(), 2, "{responses}");

    // The server flushes its spans when it exits.
    let kill = format!("kill -TERM {}", server.0.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    assert!(server.0.wait().unwrap().success());
    drop(collector.0.stdin.take());
    let collected = collected.collect::<Result<Vec<_>, _>>().unwrap().concat();
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
    let parents = [PLAIN_TRACE, "b7ad6b7169203331", LAST_TRACE, "00f067aa0ba902b7"].map(str::to_owned);
    for expected in [hex("POST /v1/check"), hex("slidegate")].into_iter().chain(parents) {
        assert!(collected.contains(&expected), "{expected} in {collected}");
    }
}
