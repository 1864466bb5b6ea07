//! `slidegate validate --explain`: the policy, key, tier and quotas that a request resolves to, and why.

use crate::process::{TempFile, outcome, slidegate};

const FILE: &str = r#"
store: redis://127.0.0.1:6379
headers: legacy-delta
trusted_proxies: [10.0.0.0/8]
degrade: {on_failure: open, budget: 15ms}
policies:
  api:
    quotas: [10/1s, {limit: 50, window: 1d, algorithm: token-bucket, burst: 200, name: daily}]
    tiers:
      premium: {quotas: [100/1s strict-window]}
    overrides:
      "customer:42": {quotas: ["1000/1h fixed-window anchor=first-request"]}
      "partner:7": {tier: premium}
    key: [{header: X-Api-Key}, address]
  login:
    quotas: [5/1m]
    mode: shadow
    deny: [mallory]
    allow: [monitor]
    candidate: [3/1m]
    on_failure: closed
    headers: ietf
"#;

fn explain(request: &str) -> (i32, String, String) {
    let file = TempFile::new("explained", FILE);
    outcome(slidegate().args(["validate", file.path(), "--explain", request]))
}

fn explained(request: &str) -> String {
    let (code, out, err) = explain(request);
    assert_eq!(code, 0, "{err}");
    out
}

#[test]
fn each_step_of_the_resolution_is_a_line() {
    assert_eq!(
        explained(r#"{"policy": "api", "key": "customer:1"}"#),
        "\
policy        api, from the request
key           customer:1, from the request
forward-auth  derives the key from header x-api-key and address
override      none for this key
tier          none in the request
quotas        10/1s  10 in 1s, sliding-window
              daily  50 in 1d, token-bucket, capacity 200
cost          1 from each quota
mode          enforce
list          the key is on no list
on failure    open: the request is allowed if redis://127.0.0.1:6379 does not respond within 15ms; the default of all policies
headers       legacy-delta, the default of all policies
"
    );
    assert_eq!(
        explained(r#"{"policy": "login", "key": "mallory", "cost": 0}"#),
        "\
policy        login, from the request
key           mallory, from the request
override      none for this key
tier          none in the request
quotas        5/1m  5 in 1m, sliding-window
cost          0 from each quota
mode          shadow: decisions are counted and reported, but not enforced
list          the key is on the deny list: the denial is reported, but not enforced
candidate     3/1m  3 in 1m, sliding-window
on failure    closed: the request is rejected with 503 if redis://127.0.0.1:6379 does not respond within 15ms; the policy's own rule
headers       ietf, the policy's own style
"
    );
}

#[test]
fn the_precedence_of_overrides_tiers_and_lists_is_explained() {
    let table = [
        (
            r#"{"policy": "api", "key": "a", "tier": "premium"}"#,
            "tier          premium, from the request\nquotas        100/1s  100 in 1s, strict-window, 16 slots\n",
        ),
        (
            r#"{"policy": "api", "key": "customer:42", "tier": "premium"}"#,
            "override      the quotas of the key\ntier          none: the override takes precedence\nquotas        \
             1000/1h  1000 in 1h, fixed-window, starting at the key's first request\n",
        ),
        (
            r#"{"policy": "api", "key": "partner:7"}"#,
            "override      the tier of the key\ntier          premium, from the override\n",
        ),
        (
            r#"{"policy": "api", "key": "a", "cost": 11}"#,
            "cost          11 from each quota, more than the capacity of a quota\n",
        ),
        (r#"{"policy": "api", "key": "a", "cost": 10}"#, "cost          10 from each quota\n"),
        (
            r#"{"policy": "login", "key": "monitor"}"#,
            "the key is on the allow list: it is always allowed, without being counted",
        ),
        (
            r#"{"quotas": ["5/1m"], "key": "a"}"#,
            "policy        none: the quotas come with the request\nkey           a, from the request\nquotas        5/1m",
        ),
    ];
    for (request, expected) in table {
        let found = explained(request);
        assert!(found.contains(expected), "{request}: {found}");
    }
    let (code, _, err) = explain(r#"{"policy": "api", "ip": "192.0.2.1"}"#);
    assert!(code == 2 && err.ends_with("`key`, `cost`, `for_ms`, `peer`, `headers`\n"), "{err}");
}

#[test]
fn the_key_of_a_forward_auth_request_is_explained() {
    let found = explained(
        r#"{"policy": "api", "peer": "10.0.0.1", "headers": {"x-api-key": "k", "x-forwarded-for": "6.6.6.6, 203.0.113.7"}}"#,
    );
    let expected = "key           1:k,11:203.0.113.7, derived from header x-api-key and address; the address is \
                    from X-Forwarded-For, because the peer is a trusted proxy\n";
    assert!(found.contains(expected), "{found}");
    let found = explained(
        r#"{"policy": "api", "peer": "192.0.2.1", "headers": {"x-api-key": "k", "x-forwarded-for": ["203.0.113.7"]}}"#,
    );
    assert!(
        found.contains(
            "key           1:k,9:192.0.2.1, derived from header x-api-key and address; the address is that of the \
             peer, whose X-Forwarded-For is ignored because it is not in trusted_proxies\n"
        ),
        "{found}"
    );
    let found = explained(
        r#"{"policy": "login", "peer": "10.0.0.1", "headers": {"x-forwarded-for": "203.0.113.7"}}"#,
    );
    let expected = "key           203.0.113.7, derived from address, the default of a policy without key; the \
                    address is from X-Forwarded-For, because the peer is a trusted proxy\n";
    assert!(found.contains(expected), "{found}");
}

#[test]
fn explain_as_a_command_names_the_validate_flag() {
    for arguments in [vec!["explain"], vec!["explain", "limits.yaml", "--key", "a"]] {
        let (code, stdout, stderr) = outcome(slidegate().args(&arguments));
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        assert!(stderr.contains("'validate FILE --explain REQUEST'"), "{stderr}");
    }
}

#[test]
fn explain_needs_a_file_and_no_folder() {
    let folder = std::env::temp_dir();
    let (code, out, err) = outcome(
        slidegate().arg("validate").arg(&folder).args(["--explain", r#"{"policy": "api", "key": "a"}"#]),
    );
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.contains("--explain needs a configuration file"), "{err}");
}

#[test]
fn requests_that_the_service_rejects_are_rejected_with_the_same_errors() {
    let table = [
        (r#"{"policy": "nope", "key": "a"}"#, r#"policy: there is no policy "nope"; known: "api", "login""#),
        (
            r#"{"policy": "api", "key": "a", "tier": "gold"}"#,
            r#"tier: policy "api" has no tier "gold"; known: "premium""#,
        ),
        (r#"{"policy": "api"}"#, "key: missing; 1 to 4096 bytes are allowed"),
        (r#"{"key": "a"}"#, "policy: neither is given; give exactly one of policy and quotas"),
        (r#"{"policy": "api", "key": "a", "cots": 1}"#, "cots: unknown field"),
        (r#"{"policy": "api", "key": "a", "peer": "10.0.0.1"}"#, "key: give either key, or peer and headers"),
        (r#"{"policy": "api", "peer": "here"}"#, "peer: not an address, such as 203.0.113.7"),
        (r#"{"policy": "api", "peer": "10.0.0.1", "headers": 5}"#, "headers: not an object"),
        (
            r#"{"policy": "api", "peer": "10.0.0.1"}"#,
            "key: derived from header x-api-key and address; the request needs exactly one header x-api-key",
        ),
        (r#"{"policy": "nope", "peer": "10.0.0.1"}"#, r#"policy: there is no policy "nope""#),
        ("{", "the body is not valid JSON"),
        ("[]", "expected an object"),
    ];
    for (request, expected) in table {
        let (code, out, err) = explain(request);
        assert_eq!((code, out.as_str()), (2, ""), "{request}: {err}");
        assert!(err.contains(expected), "{request}: {err}");
    }
    let bad = TempFile::new("bad", "http: nowhere\n");
    let (code, _, err) = outcome(slidegate().args(["validate", bad.path(), "--explain", "{}"]));
    assert!(code == 2 && err.contains(":1: http: \"nowhere\" is not an address"), "{err}");
}
