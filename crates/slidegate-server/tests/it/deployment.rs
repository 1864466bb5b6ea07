//! Files of `deploy/`: valid for their tools, with existing metrics, flags and variables.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use slidegate_config::yaml_to_json;
use slidegate_testkit::{Flavour, Server};

use crate::process::{ServeProcess, TempFile, outcome, slidegate};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the path of a tool that `make deps` installs.
fn tool(path: &str) -> PathBuf {
    let path = root().join("target/tools").join(path);
    path.canonicalize().unwrap_or_else(|error| panic!("{}: {error}; make deps installs it", path.display()))
}

fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml(text: &str) -> Value {
    yaml_to_json(text).unwrap_or_else(|problems| panic!("{problems:?}: {text}"))
}

/// Asserts that the command accepts the arguments. `--help` keeps it from running.
fn assert_valid_arguments(arguments: &[&str]) {
    let (code, _, err) = outcome(slidegate().args(arguments).arg("--help"));
    assert_eq!(code, 0, "{arguments:?}: {err}");
}

/// Returns the names of all metrics in the text, without the suffixes of histograms.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let words = text.split(|letter: char| !is_name(letter)).filter(|word| word.starts_with("slidegate_"));
    words
        .map(|word| {
            let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
            histogram.unwrap_or(word).to_owned()
        })
        .collect()
}

/// Returns the names of all metrics of two servers that have had reloads, fallbacks and cached denials.
fn exported_metrics() -> BTreeSet<String> {
    let config = TempFile::new("shown", "policies: {api: {quotas: [1/1h]}}\n");
    let body = json!({"policy": "api", "key": "a"});
    let start = |more: &[&str]| {
        let mut command = slidegate();
        ServeProcess::start(
            command.args(["serve", "--http", "127.0.0.1:0", "--config", config.path()]).args(more),
        )
    };
    let limits = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/envoy/limits");
    let local = start(&["--envoy-config", limits.to_str().unwrap()]);
    local.check(&json!({"policy": "nope", "key": "a"}));
    local.send_signal("HUP");
    while !local.get("/metrics").body.contains("slidegate_reloads_total") {}
    let redis = Server::start(Flavour::Redis);
    let remote = start(&["--store", &redis.url()]);
    while !remote.get("/metrics").body.contains("slidegate_denied_cache_hits_total") {
        remote.check(&body);
    }
    redis.kill();
    while !remote.get("/metrics").body.contains("slidegate_fallback_total") {
        remote.check(&json!({"policy": "api", "key": "b"}));
    }
    let exported = [local.get("/metrics").body, remote.get("/metrics").body].concat();
    // Leaves out `# HELP` and `# TYPE`.
    metrics_in(&exported.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n"))
}

#[test]
fn rules_and_dashboard_use_existing_metrics() {
    let rules = yaml(&read("deploy/prometheus/slidegate.rules.yml"));
    let rules = rules["groups"][0]["rules"].as_array().unwrap();
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/slidegate.json")).unwrap();
    let mut expressions: Vec<&str> = rules.iter().map(|rule| rule["expr"].as_str().unwrap()).collect();
    for panel in dashboard["panels"].as_array().unwrap() {
        let targets = panel["targets"].as_array().unwrap();
        expressions.extend(targets.iter().map(|target| target["expr"].as_str().unwrap()));
    }
    expressions.push(dashboard["templating"]["list"][1]["query"].as_str().unwrap());
    let exported = exported_metrics();
    for expression in expressions {
        let names = metrics_in(expression);
        let is_recorded = expression.contains("policy:slidegate_hit_rate");
        assert!(!names.is_empty() || is_recorded, "{expression}");
        for name in names {
            assert!(exported.contains(&name), "{name} of {expression} is not in {exported:#?}");
        }
        assert_eq!(expression.matches('(').count(), expression.matches(')').count(), "{expression}");
    }
    for rule in rules.iter().filter(|rule| rule.get("alert").is_some()) {
        let (duration, summary) = (&rule["for"], &rule["annotations"]["summary"]);
        assert!(duration.is_string() && summary.is_string(), "{rule}");
        assert!(rule["labels"]["severity"].is_string(), "{rule}");
    }
}

/// Runs promtool over the rules and over test cases for each alert.
#[test]
fn alerts_fire_as_the_promtool_cases_expect() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("slidegate.rules.yml"), read("deploy/prometheus/slidegate.rules.yml"))
        .unwrap();
    let cases = read("crates/slidegate-server/tests/prometheus/rules.yml");
    fs::write(folder.path().join("rules.yml"), &cases).unwrap();
    let rules = yaml(&read("deploy/prometheus/slidegate.rules.yml"));
    for alert in
        rules["groups"][0]["rules"].as_array().unwrap().iter().filter_map(|rule| rule["alert"].as_str())
    {
        assert!(cases.contains(&format!("alertname: {alert}\n")), "{alert} has no case in which it fires");
    }
    for arguments in [["check", "rules", "slidegate.rules.yml"], ["test", "rules", "rules.yml"]] {
        let mut promtool = Command::new(tool("prometheus/usr/bin/promtool"));
        let (code, out, err) = outcome(promtool.args(arguments).current_dir(folder.path()));
        assert_eq!(code, 0, "{out}{err}");
    }
}

/// Validates the manifests strictly by the schemas of Kubernetes.
#[test]
fn kubernetes_manifests_are_valid() {
    let mut validate = Command::new("python3");
    validate.env("PYTHONPATH", tool("kubernetes-validate"));
    validate.args(["-m", "kubernetes_validate", "--strict"]);
    let (code, out, err) = outcome(validate.arg(root().join("deploy/kubernetes/slidegate.yaml")));
    assert_eq!(code, 0, "{out}{err}");
    for kind in ["configmap", "deployment", "service", "poddisruptionbudget", "networkpolicy"] {
        assert!(
            format!("{out}{err}").contains(&format!("passed for resource {kind}/slidegate")),
            "{out}{err}"
        );
    }
}

#[test]
fn kubernetes_manifests_are_consistent() {
    let text = read("deploy/kubernetes/slidegate.yaml");
    let documents: Vec<Value> = text.split("\n---\n").map(yaml).collect();
    let by_kind: BTreeMap<&str, &Value> =
        documents.iter().map(|document| (document["kind"].as_str().unwrap(), document)).collect();
    let config = by_kind["ConfigMap"]["data"]["slidegate.yaml"].as_str().unwrap();
    let config = TempFile::new("configmap", config);
    let (code, out, err) = outcome(slidegate().args(["validate", config.path()]));
    assert_eq!(code, 0, "{out}{err}");

    let deployment = &by_kind["Deployment"]["spec"];
    let pod = &deployment["template"];
    let container = &pod["spec"]["containers"][0];
    let arguments: Vec<&str> =
        container["args"].as_array().unwrap().iter().map(|argument| argument.as_str().unwrap()).collect();
    assert_valid_arguments(&arguments);
    let (_, help, _) = outcome(slidegate().args(["serve", "--help"]));
    for variable in container["env"].as_array().unwrap() {
        assert!(help.contains(variable["name"].as_str().unwrap()), "{variable}");
    }
    let server = ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0"]));
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().unwrap();
        assert_eq!(server.get(path).status, 200, "{probe}");
    }
    let selector = &deployment["selector"]["matchLabels"];
    for labels in [
        &pod["metadata"]["labels"],
        &by_kind["Service"]["spec"]["selector"],
        &by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        &by_kind["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ] {
        assert_eq!(labels, selector);
    }
    assert_eq!(pod["spec"]["securityContext"]["runAsNonRoot"], true);
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
}

#[test]
fn the_systemd_unit_is_valid() {
    let unit = read("deploy/systemd/slidegate.service");
    let settings: Vec<(&str, &str)> = unit
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with(['#', '[']))
        .map(|line| line.split_once('=').unwrap_or_else(|| panic!("{line}")))
        .collect();
    let commands = settings.iter().filter(|(name, _)| ["ExecStart", "ExecStartPre"].contains(name));
    let mut count = 0;
    for (_, command) in commands {
        let words: Vec<&str> = command.split(' ').collect();
        assert_eq!(words[0], "/usr/local/bin/slidegate");
        assert_valid_arguments(&words[1..]);
        count += 1;
    }
    assert_eq!(count, 2);
    for hardening in [("DynamicUser", "yes"), ("ProtectSystem", "strict"), ("NoNewPrivileges", "yes")] {
        assert!(settings.contains(&hardening), "{hardening:?}");
    }
    verify(&unit);
}

/// Verifies the unit with systemd-analyze if it is installed.
fn verify(unit: &str) {
    let folder = std::env::temp_dir().join(format!("slidegate-unit-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("slidegate.service");
    fs::write(&file, unit.replace("/usr/local/bin/slidegate", env!("CARGO_BIN_EXE_slidegate"))).unwrap();
    let verified = Command::new("systemd-analyze").arg("verify").arg(&file).output();
    fs::remove_dir_all(folder).unwrap();
    if let Ok(output) = verified {
        let output = String::from_utf8_lossy(&output.stderr);
        // The output may also be about other units of the machine.
        assert!(!output.contains("slidegate.service"), "{output}");
    }
}

#[test]
fn the_container_runs_valid_commands_without_root() {
    let file = read("deploy/Containerfile");
    let after =
        |start: &str| -> Vec<&str> { file.lines().filter_map(|line| line.strip_prefix(start)).collect() };
    let arguments = |json: &str| serde_json::from_str::<Vec<String>>(json).unwrap();
    let [entry, command] = ["ENTRYPOINT ", "CMD "].map(|start| arguments(after(start)[0]));
    assert_eq!(entry, ["/usr/local/bin/slidegate"]);
    assert_valid_arguments(&command.iter().map(String::as_str).collect::<Vec<_>>());
    // Environment variables also apply when the arguments are replaced.
    let (_, help, _) = outcome(slidegate().args(["serve", "--help"]));
    for variable in after("ENV ").iter().filter(|variable| !variable.starts_with("STATE_DIRECTORY=")) {
        assert!(help.contains(variable.split_once('=').unwrap().0), "{variable}");
    }
    assert!(after("ENV ").contains(&"SLIDEGATE_HTTP=0.0.0.0:8080"));
    assert_eq!(after("USER "), ["65532:65532"]);
    let manifest = read("Cargo.toml");
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap();
    let image = format!("docker.io/library/rust:{}-slim-bookworm AS build", version.trim_matches('"'));
    assert_eq!(after("FROM ")[0], image);
    // The health check succeeds on a running server and fails on a killed one.
    let health = after("HEALTHCHECK ")[0].split_once("CMD ").unwrap().1;
    let health = arguments(health);
    let mut server = ServeProcess::start(slidegate().args(["serve", "--http", "127.0.0.1:0"]));
    let url = server.url().to_owned();
    let health_status = || {
        let words = health[1..].iter().map(|word| if word.starts_with("http://") { &url } else { word });
        outcome(slidegate().args(words)).0
    };
    assert_eq!(health_status(), 0);
    server.signal_and_wait("KILL");
    assert_eq!(health_status(), 2);
}
