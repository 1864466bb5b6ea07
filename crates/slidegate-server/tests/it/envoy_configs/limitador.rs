//! Import of Limitador's limits as policies and as files of envoyproxy/ratelimit.

use std::fs;

use serde_json::json;

use crate::process::{ServeProcess, outcome, slidegate};

#[test]
fn limits_are_imported_as_policies_or_rejected_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    fs::write(
        &path,
        "- namespace: shop\n  max_value: 10\n  seconds: 60\n  conditions: [\"descriptors[0]['req.method'] == 'POST'\"]\n  \
         variables: [\"descriptors[0]['user_id']\"]\n\
         - {namespace: shop, max_value: 5, seconds: 1, name: burst, conditions: ['path == \"/a\"'], variables: []}\n",
    )
    .unwrap();
    let written = folder.path().join("slidegate.yaml");
    let mut import = slidegate();
    import.args(["import", "limitador"]).arg(&path).arg("--output").arg(&written);
    let (code, _, stderr) = outcome(&mut import);
    let expected = "shop.req.method_POST.user_id.10/1m: 10/1m fixed-window\n  \
                    for requests whose req.method is \"POST\"\n  the key consists of user_id\n\
                    shop.path_/a.5/1s: 5/1s fixed-window\n  for requests whose path is \"/a\"\n  \
                    the key is the same for all requests, such as \"all\"\n";
    assert_eq!((code, stderr), (0, format!("{expected}written: {}\n", written.display())));
    assert_eq!(outcome(slidegate().arg("validate").arg(&written)).0, 0);

    fs::write(
        &path,
        "- {namespace: shop, max_value: 281474976710657, seconds: 60, conditions: ['a > \"b\"'], variables: []}\n\
         - {namespace: shop, max_value: 1, seconds: 60, conditions: ['size(a) == \"b\"'], variables: []}\n\
         - namespace: shop\n  max_value: 1\n  seconds: 60\n  variables: [user, size(a)]\n",
    )
    .unwrap();
    let (code, _, stderr) =
        outcome(slidegate().args(["import", "limitador", "limits.yaml"]).current_dir(folder.path()));
    assert_eq!(code, 2);
    assert_eq!(
        stderr,
        "limits.yaml:1: [0].max_value: 281474976710657 is not a whole number between 0 and 281474976710656\n\
         limits.yaml:1: [0].conditions[0]: \"a > \\\"b\\\"\" cannot be converted; only descriptor == \"value\" can\n\
         limits.yaml:2: [1].conditions[0]: \"size(a) == \\\"b\\\"\" cannot be converted; only descriptor == \
         \"value\" can\n\
         limits.yaml:6: [2].variables[1]: \"size(a)\" cannot be converted; only the name of a descriptor can\n"
    );
}

#[test]
fn all_problems_of_a_limits_file_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let import = |text: &str| {
        fs::write(folder.path().join("limits.yaml"), text).unwrap();
        outcome(slidegate().args(["import", "limitador", "limits.yaml"]).current_dir(folder.path()))
    };
    let text = "\
- {max_vale: 5, seconds: 0, policy: x}
- {namespace: [a], max_value: x, seconds: 1.5, conditions: {a: b}, variables: [~, u]}
- namespace: a
  namespace: b
- nothing
";
    let expected = "\
limits.yaml:1: [0].max_vale: unknown field; did you mean max_value? Known fields: namespace, max_value, seconds, conditions, variables, name, id, policy
limits.yaml:1: [0]: namespace is missing; expected a text
limits.yaml:1: [0].seconds: 0 is not a whole number between 1 and 31622400
limits.yaml:1: [0].policy: \"x\" cannot be converted; choose one with --algorithm
limits.yaml:2: [1].namespace: expected a text, not a list
limits.yaml:2: [1].max_value: x is not a whole number between 0 and 281474976710656
limits.yaml:2: [1].seconds: 1.5 is not a whole number between 1 and 31622400
limits.yaml:2: [1].conditions: expected a list of conditions, not a mapping
limits.yaml:2: [1].variables[0]: expected a text, not nothing
limits.yaml:3: [2]: max_value is missing; expected a whole number between 0 and 281474976710656
limits.yaml:3: [2]: seconds is missing; expected a whole number between 1 and 31622400
limits.yaml:4: [2]: \"namespace\" appears twice in this mapping
limits.yaml:5: [3]: expected a mapping, not a text
";
    assert_eq!(import(text), (2, String::new(), expected.to_owned()));
    let (code, _, stderr) = import("limits: []\n");
    assert_eq!(
        (code, stderr.as_str()),
        (2, "limits.yaml:1: yaml: expected a list of limits, not a mapping\n")
    );
}

#[test]
fn numbers_as_names_and_shared_limits_are_converted() {
    let folder = tempfile::tempdir().unwrap();
    let text = "\
- &first {namespace: 5, max_value: 0x10, seconds: 1_0, conditions: ~, variables: &user [u], name: 7}
- {<<: *first, seconds: 60, variables: []}
- {namespace: !!str true, max_value: 1, seconds: 1, conditions: , variables: *user, id: ~, policy: }
";
    fs::write(folder.path().join("limits.yaml"), text).unwrap();
    let (code, _, stderr) =
        outcome(slidegate().args(["import", "limitador", "limits.yaml"]).current_dir(folder.path()));
    let same_key = "the key is the same for all requests, such as \"all\"";
    let expected = format!(
        "5.u.16/10s: 16/10s fixed-window\n  the key consists of u\n\
         5.16/1m: 16/1m fixed-window\n  {same_key}\n\
         true.u.1/1s: 1/1s fixed-window\n  the key consists of u\n"
    );
    assert_eq!((code, stderr), (0, expected));
}

const MIXED: &str = r#"
- namespace: toystore
  max_value: 2
  seconds: 31536000
  name: per-user
  conditions: ["descriptors[0]['limit.toystore__abc'] == '1'"]
  variables: ["descriptors[0]['auth.identity.userid']"]
- {namespace: toystore, max_value: 1, seconds: 31536000, conditions: ['descriptors[0].path == "/a"'], variables: []}
- {namespace: toystore, max_value: 0, seconds: 1, conditions: ['ip == "6.6.6.6"'], variables: [ip]}
- {namespace: toystore, max_value: 9, seconds: 90, conditions: ['path == "/b"'], variables: []}
- {namespace: toystore, max_value: 9, seconds: 60, conditions: ['path == "/a"'], variables: []}
- {namespace: toystore, max_value: 9, seconds: 60, conditions: ['path != "/a"'], variables: []}
- {namespace: toystore, max_value: 9, seconds: 60, conditions: , variables: }
- {namespace: toystore, max_value: 9, seconds: 60, conditions: ['path == "/*"'], variables: []}
"#;

const LEFT_OUT: &str = "left out:
limits.yaml:9: [3].seconds: 90 s cannot be converted; the units of envoyproxy/ratelimit are second, minute, hour, day, week, month, year
limits.yaml:10: [4]: another limit has the same descriptor; envoyproxy/ratelimit allows one limit for each
limits.yaml:11: [5].conditions[0]: \"path != \\\"/a\\\"\" cannot be converted; only descriptor == \"value\" can
limits.yaml:12: [6]: the limit applies to every request of its namespace; envoyproxy/ratelimit needs a condition or a variable
limits.yaml:13: [7].conditions[0]: \"/*\" cannot be converted; in envoyproxy/ratelimit it matches any value
";

#[test]
fn files_for_envoy_apply_the_imported_limits() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("limits.yaml"), &MIXED[1..]).unwrap();
    let mut import = slidegate();
    import.args(["import", "limitador", "limits.yaml", "--to", "envoy", "--output", "made"]);
    let (code, out, stderr) = outcome(import.current_dir(folder.path()));
    let imported = "\
toystore: descriptor [limit.toystore__abc=1, auth.identity.userid]: {unit: year, requests_per_unit: 2, name: \"per-user\"}
toystore: descriptor [path=/a]: {unit: year, requests_per_unit: 1}
toystore: descriptor [ip=6.6.6.6]: {unit: second, requests_per_unit: 0}
";
    let written = "written: made/toystore.yaml\n";
    assert_eq!((code, out.as_str(), stderr), (0, "", format!("{imported}{LEFT_OUT}{written}")));
    let envoy_folder = folder.path().join("made");
    assert_eq!(outcome(slidegate().arg("validate").arg(&envoy_folder)).0, 0);
    let text = fs::read_to_string(envoy_folder.join("toystore.yaml")).unwrap();
    assert!(text.contains("# left out: [5].conditions[0]: "), "{text}");

    let mut serve = slidegate();
    serve.args(["serve", "--http", "127.0.0.1:0", "--envoy-config"]).arg(&envoy_folder);
    let server = ServeProcess::start(&mut serve);
    let codes = |entries: &[(&str, &str)]| {
        let entries: Vec<_> =
            entries.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
        let request = json!({"domain": "toystore", "descriptors": [{"entries": entries}]});
        [(); 3].map(|()| server.post("/json", &request).status)
    };
    let user = |user| codes(&[("limit.toystore__abc", "1"), ("auth.identity.userid", user)]);
    assert_eq!([user("ann"), user("ben")], [[200, 200, 429]; 2]);
    assert_eq!(codes(&[("path", "/a")]), [200, 429, 429]);
    assert_eq!(codes(&[("ip", "6.6.6.6")]), [429; 3]);
}

#[test]
fn policies_can_express_more_limits_than_files_for_envoy() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("limits.yaml"), &MIXED[1..]).unwrap();
    let mut import = slidegate();
    import.args(["import", "limitador", "limits.yaml", "--output", "made.yaml"]);
    let (code, _, stderr) = outcome(import.current_dir(folder.path()));
    assert_eq!(code, 0, "{stderr}");
    let left_out = "\nlimits.yaml:11: [5].conditions[0]: \"path != \\\"/a\\\"\" cannot be converted; only \
                    descriptor == \"value\" can\nwritten: made.yaml\n";
    assert!(stderr.ends_with(left_out), "{stderr}");
    assert!(stderr.contains("toystore.path_/b.9/90s: 9/90s fixed-window\n"), "{stderr}");
    assert_eq!(outcome(slidegate().args(["validate", "made.yaml"]).current_dir(folder.path())).0, 0);
}

#[test]
fn several_namespaces_need_an_output_folder_and_files_for_envoy_take_no_algorithm() {
    let folder = tempfile::tempdir().unwrap();
    let limit = |namespace: &str| {
        format!("- {{namespace: {namespace}, max_value: 1, seconds: 60, conditions: [], variables: [u]}}\n")
    };
    let import = |more: &[&str]| {
        let mut import = slidegate();
        import.args(["import", "limitador", "limits.yaml", "--to", "envoy"]).args(more);
        outcome(import.current_dir(folder.path()))
    };
    fs::write(folder.path().join("limits.yaml"), limit("a/b")).unwrap();
    let (code, out, _) = import(&[]);
    assert_eq!(code, 0);
    assert!(
        out.contains("domain: \"a/b\"\ndescriptors:\n  - key: \"u\"\n    rate_limit: {unit: minute,"),
        "{out}"
    );
    let (code, _, stderr) = import(&["--algorithm", "sliding-window"]);
    assert!(code == 2 && stderr.contains("--envoy-algorithm"), "{stderr}");

    fs::write(folder.path().join("limits.yaml"), limit("a/b") + &limit("a-b")).unwrap();
    let (code, out, stderr) = import(&[]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(
        stderr.contains("2 files to write, one for each namespace; name a folder with --output"),
        "{stderr}"
    );
    assert_eq!(import(&["--output", "made"]).0, 0);
    let validated = outcome(slidegate().args(["validate", "made"]).current_dir(folder.path()));
    assert_eq!(validated.1, "made: valid; domains: a-b, a/b\n");
    let (code, _, stderr) = import(&["--output", "made"]);
    assert!(code == 2 && stderr.contains("cannot be written: File exists"), "{stderr}");
}
