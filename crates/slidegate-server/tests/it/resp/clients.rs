//! Common Redis clients.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::json;
use slidegate_testkit::Authority;

use super::address_of;
use crate::process::{ServeProcess, TempFile, outcome, slidegate};

fn serve() -> ServeProcess {
    ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]))
}

fn redis_cli(server: &ServeProcess, words: &[&str]) -> String {
    let port = address_of(server).port().to_string();
    let (code, out, err) = outcome(Command::new("redis-cli").args(["-p", &port]).args(words));
    assert_eq!(code, 0, "{err}");
    out
}

#[test]
fn resp_is_off_unless_enabled() {
    let default = ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0"]));
    assert!(!default.startup_lines.iter().any(|line| line.contains("redis")), "{:?}", default.startup_lines);
    let mut command = slidegate();
    command.env("SLIDEGATE_RESP", "127.0.0.1:0");
    let enabled = ServeProcess::start(command.args(["serve", "--http", "127.0.0.1:0"]));
    assert!(enabled.startup_lines.iter().any(|line| line.starts_with("resp: redis://127.0.0.1:")));
    let off = ServeProcess::start(command.args(["--resp", "off"]));
    assert!(!off.startup_lines.iter().any(|line| line.contains("redis")), "a flag overrides the environment");
    let taken = address_of(&enabled).to_string();
    let (code, _, err) = outcome(slidegate().args(["serve", "--http", "127.0.0.1:0", "--resp", &taken]));
    assert_eq!(code, 2);
    assert!(err.contains(&format!("cannot listen on {taken}")) && err.contains("--resp"), "{err}");
}

#[test]
fn redis_cli_works() {
    let server = serve();
    assert_eq!(redis_cli(&server, &["ping"]), "PONG\n");
    assert_eq!(redis_cli(&server, &["CL.THROTTLE", "k", "1", "1", "60"]), "0\n2\n1\n-1\n60\n");
    assert_eq!(redis_cli(&server, &["-3", "SLIDEGATE.CHECK", "api", "k", "7"]).lines().nth(2), Some("93"));
    assert!(redis_cli(&server, &["GET", "k"]).starts_with("ERR unknown command 'GET'"));
}

#[test]
fn the_configuration_enables_resp_and_its_tokens_are_the_passwords() {
    const TOKEN: &str = "0123456789abcdef-app";
    let text = format!(
        "resp: 127.0.0.1:0\ntokens: [{{name: app, token: {TOKEN}}}]\npolicies: {{api: {{quotas: [9/1m]}}}}\n"
    );
    let config = TempFile::new("resp-tokens", &text);
    let server =
        ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]));
    assert!(redis_cli(&server, &["SLIDEGATE.CHECK", "api", "k"]).starts_with("NOAUTH "));
    let as_default = ["--no-auth-warning", "-a", TOKEN, "SLIDEGATE.CHECK", "api", "k"];
    assert_eq!(redis_cli(&server, &as_default).lines().nth(2), Some("8"));
    let as_user = ["--no-auth-warning", "--user", "app", "--pass", TOKEN, "-3", "SLIDEGATE.PEEK", "api", "k"];
    assert_eq!(redis_cli(&server, &as_user).lines().nth(2), Some("8"));
}

#[test]
fn redis_benchmark_runs_with_pipelines_of_16() {
    let server = serve();
    let port = address_of(&server).port().to_string();
    let numbers = ["-n", "20000", "-r", "1000", "-c", "20", "-P", "16", "--csv"];
    let throttle = ["CL.THROTTLE", "k:__rand_int__", "15", "30", "60"];
    let (code, out, err) =
        outcome(Command::new("redis-benchmark").args(["-p", &port]).args(numbers).args(throttle));
    assert_eq!(code, 0, "{err}");
    assert!(!out.is_empty() && !out.contains("rror") && !err.contains("rror from server"), "{out} {err}");
    let metrics = server.get("/metrics").body;
    let decisions = metrics.lines().filter(|line| line.starts_with("slidegate_decisions_total"));
    let decided: u64 = decisions
        .filter(|line| line.contains(r#"policy="CL.THROTTLE""#))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    // redis-benchmark may send a few more than `-n`, to fill the last pipelines.
    assert!((20_000..21_000).contains(&decided), "{decided} decisions: {metrics}");
}

const PYTHON: &str = r#"
import sys
import redis
for protocol in (2, 3):
    client = redis.Redis(port=int(sys.argv[1]), protocol=protocol, client_name="test")
    assert client.ping()
    assert client.client_getname() in ("test", b"test"), client.client_getname()
    key = f"py:{protocol}"
    assert client.execute_command("CL.THROTTLE", key, 15, 30, 60, 1) == [0, 16, 15, -1, 2]
    pipeline = client.pipeline(transaction=False)
    for _ in range(1000):
        pipeline.execute_command("CL.THROTTLE", key, 15, 30, 60)
    replies = pipeline.execute()
    assert len(replies) == 1000 and sum(reply[0] == 0 for reply in replies) == 15, replies
    assert client.execute_command("SLIDEGATE.CHECK", "api", key)[:3] == [1, 100, 99]
    try:
        client.execute_command("SLIDEGATE.CHECK", "nothing", key)
        raise AssertionError("the command was executed")
    except redis.ResponseError as error:
        assert 'there is no policy "nothing"' in str(error), error
    try:
        client.execute_command("CL.THROTTLE", key, 15, 0, 60)
        raise AssertionError("the command was executed")
    except redis.ResponseError as error:
        assert str(error) == "Cell error: Zero rates are not supported", error
    client.close()
print("fine")
"#;

#[test]
fn redis_py_works() {
    let library = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/redis-py");
    assert!(library.exists(), "`make deps` installs {}", library.display());
    let server = serve();
    let port = address_of(&server).port().to_string();
    let mut python = Command::new("python3");
    let (code, out, err) = outcome(python.env("PYTHONPATH", library).args(["-c", PYTHON, &port]));
    assert_eq!((code, out.as_str()), (0, "fine\n"), "{err}");
}

const NODE: &str = r#"
const assert = require("assert");
const Redis = require("ioredis");
async function main() {
  const client = new Redis({port: Number(process.argv[1]), connectionName: "test", maxRetriesPerRequest: 1});
  assert.strictEqual(await client.ping(), "PONG");
  assert.deepStrictEqual(await client.call("CL.THROTTLE", "node", 15, 30, 60, 1), [0, 16, 15, -1, 2]);
  const pipeline = client.pipeline();
  for (let i = 0; i < 1000; i++) pipeline.call("CL.THROTTLE", "node", 15, 30, 60);
  const replies = await pipeline.exec();
  assert.strictEqual(replies.filter(([error, reply]) => error === null && reply[0] === 0).length, 15);
  assert.deepStrictEqual((await client.call("SLIDEGATE.CHECK", "api", "node")).slice(0, 3), [1, 100, 99]);
  await assert.rejects(client.call("SLIDEGATE.CHECK", "nothing", "node"), /there is no policy "nothing"/);
  await client.quit();
  console.log("fine");
}
main().catch((error) => { console.error(error); process.exit(1); });
"#;

#[test]
fn ioredis_works() {
    let library = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/ioredis/node_modules");
    assert!(library.exists(), "`make deps` installs {}", library.display());
    let server = serve();
    let port = address_of(&server).port().to_string();
    let mut node = Command::new("node");
    let (code, out, err) = outcome(node.env("NODE_PATH", library).args(["-e", NODE, &port]));
    assert_eq!((code, out.as_str()), (0, "fine\n"), "{err}");
}

/// Returns the first code block in a language from docs/resp.md, with the port replaced.
fn documented_example(language: &str, port: &str) -> String {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/resp.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, block) = page.split_once(&format!("```{language}\n")).unwrap();
    let (block, _) = block.split_once("```").unwrap();
    assert!(block.contains("6380"), "{block}");
    block.replace("6380", port)
}

/// Runs a script in lockstep, and suspends and then kills its server in between.
fn run_while_the_server_fails(script: &mut Command, server: ServeProcess) {
    let mut script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(script.stdout.take().unwrap()).lines();
    let mut input = script.stdin.take().unwrap();
    let mut expect = |line: &str| assert_eq!(lines.next().unwrap().unwrap(), line);
    expect("decided");
    server.suspend();
    writeln!(input, "stalled").unwrap();
    expect("timed out");
    drop(server);
    writeln!(input, "killed").unwrap();
    expect("failed at once");
    assert!(script.wait().unwrap().success());
}

/// Appended to the documented example. Measures no time: a call that fails at once does so before the next event. Retries
/// the first call, because its reply may time out on a busy machine.
const NODE_WITHOUT_SERVER: &str = r#"
const assert = require("assert");
const readline = require("readline");
async function main() {
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  const call = () => limiter.call("CL.THROTTLE", "gone", 15, 30, 60);
  const next = (event) => new Promise((resolve) => limiter.once(event, resolve));
  if (limiter.status !== "ready") await next("ready");
  const decided = () => call().catch((error) => /Command timed out/.test(error) ? decided() : Promise.reject(error));
  assert.strictEqual((await decided())[0], 0);
  assert.strictEqual(await isAllowed("gone"), true);
  console.log("decided");
  await lines.next();
  await assert.rejects(call(), /Command timed out/);
  assert.strictEqual(await isAllowed("gone"), true);
  const closed = next("close");
  console.log("timed out");
  await lines.next();
  await closed;
  let failure;
  call().catch((error) => { failure = error; });
  await new Promise(setImmediate);
  assert.match(String(failure), /Stream isn't writeable/);
  console.log("failed at once");
  limiter.disconnect();
  process.stdin.destroy();
}
main().catch((error) => { console.error(error); process.exit(1); });
"#;

#[test]
fn the_documented_options_of_ioredis_fail_fast_without_the_server() {
    let library = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/ioredis/node_modules");
    let server = serve();
    let port = address_of(&server).port().to_string();
    let script = documented_example("js", &port) + NODE_WITHOUT_SERVER;
    run_while_the_server_fails(Command::new("node").env("NODE_PATH", library).args(["-e", &script]), server);
}

/// Appended to the documented example.
const PYTHON_WITHOUT_SERVER: &str = r#"
def call():
    return limiter.execute_command("CL.THROTTLE", "gone", 15, 30, 60)
connections = []
class Counted(redis.Connection):
    def connect(self):
        connections.append(1)
        super().connect()
limiter.connection_pool.connection_class = Counted
def decided():
    try:
        return call()
    except redis.TimeoutError:
        return decided()
assert decided()[0] == 0 and is_allowed("gone")
print("decided", flush=True)
input()
try:
    call()
    raise AssertionError("the command was executed")
except redis.TimeoutError:
    pass
assert is_allowed("gone")
print("timed out", flush=True)
input()
limiter.connection_pool.disconnect()
connections.clear()
try:
    call()
    raise AssertionError("the command was executed")
except redis.ConnectionError:
    pass
assert len(connections) == 1, "more than one attempt to connect"
print("failed at once", flush=True)
"#;

#[test]
fn the_documented_options_of_redis_py_fail_fast_without_the_server() {
    let library = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/redis-py");
    let server = serve();
    let port = address_of(&server).port().to_string();
    let script = documented_example("python", &port) + PYTHON_WITHOUT_SERVER;
    run_while_the_server_fails(
        Command::new("python3").env("PYTHONPATH", library).args(["-c", &script]),
        server,
    );
}

#[test]
fn with_a_certificate_resp_accepts_only_tls() {
    let folder = std::env::temp_dir().join(format!("slidegate-rediss-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let authority = Authority::make(&folder);
    let file = |name: &str| folder.join(name).display().to_string();
    let tls = json!({"cert": file("server.crt"), "key": file("server.key")});
    let config = TempFile::new("rediss", &format!("tls: {tls}\npolicies: {{api: {{quotas: [100/1m]}}}}\n"));
    let arguments = ["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--config", config.path()];
    let server = ServeProcess::start(slidegate().args(arguments));
    assert!(
        server.startup_lines.iter().any(|line| line.starts_with("resp: rediss://")),
        "{:?}",
        server.startup_lines
    );
    let ca = authority.ca_path();
    let tls = ["--tls", "--cacert", ca.to_str().unwrap(), "SLIDEGATE.CHECK", "api", "k"];
    assert_eq!(redis_cli(&server, &tls).lines().nth(2), Some("99"));
    let port = address_of(&server).port().to_string();
    let (_, out, err) = outcome(Command::new("redis-cli").args(["-p", &port, "ping"]));
    assert!(!out.contains("PONG"), "{out} {err}");
    let _ = fs::remove_dir_all(folder);
}
