//! Files of envoyproxy/ratelimit in `tests/envoy`. The leading `#!` comments of a file are the expected output or errors
//! of its import.

mod limitador;

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::{outcome, slidegate};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/envoy").join(folder);
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

fn name(file: &Path) -> &str {
    file.file_name().unwrap().to_str().unwrap()
}

fn expected(file: &Path, prefix: &str, before: &str) -> String {
    let mut expected = String::new();
    for line in fs::read_to_string(file).unwrap().lines().map_while(|line| line.strip_prefix(prefix)) {
        expected.extend([before, line, "\n"]);
    }
    expected
}

#[test]
fn each_bad_file_is_rejected_with_its_expected_errors() {
    for file in files("bad") {
        let name = name(&file);
        let expected = expected(&file, "#!", &format!("{name}:"));
        assert!(!expected.is_empty(), "{name} expects no error");
        let found = outcome(slidegate().args(["import", "envoy", name]).current_dir(file.parent().unwrap()));
        assert_eq!(found, (2, String::new(), expected), "{name}");
    }
}

#[test]
fn imports_of_good_files_are_valid_configurations() {
    for file in files("good") {
        let folder = tempfile::tempdir().unwrap();
        let written = folder.path().join("slidegate.yaml");
        let mut import = slidegate();
        import.args(["import", "envoy"]).arg(&file).arg("--output").arg(&written);
        let expected = expected(&file, "#! ", "");
        let expected = format!("{expected}written: {}\n", written.display());
        assert_eq!(outcome(&mut import), (0, String::new(), expected), "{}", name(&file));
        let (code, _, stderr) = outcome(&mut import);
        assert!(
            code == 2 && stderr.contains("cannot be written: File exists"),
            "an existing file was overwritten: {stderr}"
        );
        let (code, _, stderr) = outcome(slidegate().arg("validate").arg(&written));
        assert_eq!((code, stderr.as_str()), (0, ""), "{}", name(&file));
    }
}

#[test]
fn all_errors_of_a_folder_are_reported_together() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("a.yaml", "domain: a\ndescriptors: [{value: x}]\n"),
        ("b.yml", "domain: c\n"),
        ("c.yaml", "domain: c\n"),
        ("..hidden.yaml", "nothing"),
        ("notes.txt", "nothing"),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let (code, _, stderr) = outcome(slidegate().args(["import", "envoy", "."]).current_dir(folder.path()));
    assert_eq!(code, 2);
    assert_eq!(
        stderr,
        "./a.yaml:2: descriptors[0].key: missing; every descriptor needs a key\n\
         ./c.yaml:1: domain: \"c\" is already defined in ./b.yml\n"
    );
    let validated = outcome(slidegate().args(["validate", "."]).current_dir(folder.path()));
    assert_eq!(validated, (2, String::new(), stderr));
    let good = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/envoy");
    let validated = outcome(slidegate().args(["validate", "good"]).current_dir(good));
    assert_eq!(validated.1, "good: valid; domains: 1.50, deepest, everything, mongo_cps, nothing\n");
    let empty = tempfile::tempdir().unwrap();
    let (_, _, stderr) = outcome(slidegate().args(["import", "envoy", "."]).current_dir(empty.path()));
    assert_eq!(stderr, ".: file: no file in this folder ends in .yaml or .yml\n");
}

#[test]
fn an_import_writes_one_policy_for_each_limit() {
    let everything = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/envoy/good/everything.yaml");
    let mut import = slidegate();
    import.args(["import", "envoy", "--algorithm", "sliding-window"]).arg(everything);
    let (code, file, stderr) = outcome(&mut import);
    assert_eq!(code, 0);
    assert!(stderr.contains("  remote_address: 10 per minute (sliding-window)"), "{stderr}");
    for part in [
        "  \"everything.remote_address\":\n    quotas:\n      - {limit: 10, window: 1m, algorithm: \
         sliding-window, name: \"everything.remote_address\"}\n",
        "      - {limit: 7, window: 7d, algorithm: sliding-window, name: \"per-week\"}\n",
        "    mode: shadow\n",
        "  # \"everything.remote_address_10.0.0.1\" is left out: it is unlimited, which needs no policy\n",
        "  # it replaces [\"per-week\", \"other\"]",
    ] {
        assert!(file.contains(part), "{part} is not in {file}");
    }
}

#[test]
fn import_comments_precede_their_policies() {
    let everything = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/envoy/good/everything.yaml");
    let (_, file, _) = outcome(slidegate().args(["import", "envoy"]).arg(everything));
    let mut lines = file.lines();
    let mut line_after = |comment: &str| {
        assert!(lines.any(|line| line.starts_with(comment)), "{comment} is not in {file}");
        lines.next().unwrap().to_owned()
    };
    assert_eq!(line_after("  # it was in quota mode"), "  \"everything.quota\":");
    assert_eq!(
        line_after("  # it replaces [\"per-week\", \"other\"]"),
        "  \"everything.remote_address.path\":"
    );
}

#[test]
fn imported_limits_have_unique_names() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    let envoy = format!(
        "domain: d\ndescriptors:\n  - {{key: a.b, {limit}}}\n  - {{key: a, descriptors: [{{key: b, {limit}}}]}}\n"
    );
    let fields = "{namespace: shop, max_value: 5, seconds: 1, conditions: [], variables: []";
    let limitador = format!("- {fields}}}\n- {fields}, name: burst}}\n- {fields}}}\n- {fields}}}\n");
    for (from, path, names) in [
        ("envoy", file("envoy.yaml", &envoy), vec!["d.a.b#", "d.a.b"]),
        (
            "limitador",
            file("limitador.yaml", &limitador),
            vec!["shop.5/1s", "shop.5/1s.burst", "shop.5/1s#2", "shop.5/1s#3"],
        ),
    ] {
        let (code, written, stderr) = outcome(slidegate().args(["import", from]).arg(path));
        assert_eq!(code, 0, "{stderr}");
        let mut found = written.lines().filter_map(|line| line.strip_prefix("  \""));
        for name in names {
            let policy = found.next().unwrap_or_else(|| panic!("{name} is not in {written}"));
            let is_hashed = name.ends_with('#') && policy.starts_with(name);
            assert!(is_hashed || policy.strip_suffix("\":") == Some(name), "{name}: {written}");
        }
    }
}
