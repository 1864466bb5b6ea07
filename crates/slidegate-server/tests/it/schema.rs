//! The JSON schema and the reference page of the configuration file match the parser.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use slidegate_config::{Config, reference};

use crate::process::{TempFile, outcome, slidegate};

/// Bad files that the schema accepts, because it describes structure only.
const STRUCTURALLY_VALID: [&str; 13] = [
    "admin_open.yaml",
    "aliased.yaml",
    "duplicate_policy.yaml",
    "max_bytes.yaml",
    "option_of_another_algorithm.yaml",
    "policy_name.yaml",
    "quota_name.yaml",
    "quotas_of_one_name.yaml",
    "store_host.yaml",
    "store_option.yaml",
    "store_postgres.yaml",
    "tls.yaml",
    "tokens_of_one_name.yaml",
];
/// Files that attack the YAML parser. Other parsers may take long for them.
const PARSER_ATTACKS: [&str; 3] = ["alias_bomb.yaml", "nested.yaml", "recursive.yaml"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_schema_in_the_docs_is_what_the_command_prints() {
    let (code, printed, _) = outcome(slidegate().arg("schema"));
    assert_eq!(code, 0);
    let committed = fs::read_to_string(root().join("docs/slidegate.schema.json")).unwrap();
    assert!(committed == printed, "`slidegate schema > docs/slidegate.schema.json` makes it current");
}

#[test]
fn the_reference_page_documents_every_declared_field() {
    let path = root().join("docs/config.md");
    let page = fs::read_to_string(&path).unwrap();
    let marker = "<!-- Generated from the declarations of the fields; see tests/it/schema.rs. -->\n";
    let (start, current) = page.split_once(marker).unwrap();
    let expected = format!("\n{}", reference());
    if std::env::var_os("SLIDEGATE_WRITE_DOCS").is_some() {
        fs::write(path, format!("{start}{marker}{expected}")).unwrap();
        return;
    }
    assert!(current == expected, "SLIDEGATE_WRITE_DOCS=1 makes {} current", path.display());
}

#[test]
fn yaml_examples_in_the_guides_are_valid() {
    let mut examples = 0;
    let service = ["service.md", "policies.md", "tokens.md", "tls.md", "monitoring.md", "admin.md"];
    for page in service.into_iter().chain(["resilience.md", "redis.md", "postgres.md", "config.md"]) {
        let text = fs::read_to_string(root().join("docs").join(page)).unwrap();
        for example in text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()) {
            examples += 1;
            let file = TempFile::new("example", example);
            // `load_rules` does not read the files that the example names.
            let config = Config::load_without_references(Path::new(file.path()));
            assert!(config.is_ok(), "{page}:\n{example}{}", config.unwrap_err());
        }
    }
    assert!(examples > 5, "{examples}");
}

/// Good files are valid under the schema. Bad files are not, except those in `STRUCTURALLY_VALID`.
#[test]
fn the_schema_accepts_good_files_and_rejects_bad_ones() {
    let tools = root().join("target/tools/schemathesis");
    assert!(tools.is_dir(), "`make deps` installs jsonschema_rs into {}", tools.display());
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let files = |folder: &str| {
        let entries = here.join("configs").join(folder).read_dir().unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| PARSER_ATTACKS.iter().all(|name| !path.ends_with(name))).collect::<Vec<_>>()
    };
    let tls = TempFile::new("with_tls", "tls: {cert: a.crt, key: a.key, client_ca: ca.crt}\n");
    let (good, bad) = (files("good"), files("bad"));
    let mut validator = Command::new("python3");
    validator.arg(here.join("it/schema.py")).arg(root().join("docs/slidegate.schema.json"));
    validator
        .args(&good)
        .args(&bad)
        .arg(tls.path())
        .arg(root().join("slidegate.yaml"))
        .env("PYTHONPATH", tools);
    let (code, out, err) = outcome(&mut validator);
    assert_eq!(code, 0, "{err}");
    let valid: BTreeSet<&str> = out.lines().filter_map(|line| line.strip_prefix("valid ")).collect();
    for path in good.iter().map(|path| path.to_str().unwrap()).chain([tls.path()]) {
        assert!(valid.contains(path), "{path}: {out}");
    }
    assert!(valid.iter().any(|path| path.ends_with("slidegate.yaml")), "{out}");
    let structurally_valid: BTreeSet<&str> = bad
        .iter()
        .filter(|path| valid.contains(path.to_str().unwrap()))
        .map(|path| path.file_name().unwrap().to_str().unwrap())
        .collect();
    assert_eq!(structurally_valid, STRUCTURALLY_VALID.into());
}
