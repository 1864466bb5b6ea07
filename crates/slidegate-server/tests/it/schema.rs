//! What describes the file, and whether it is what the file is read by.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use slidegate_server::config::{Config, reference};

use crate::process::{TempFile, outcome, slidegate};

/// Files whose every mistake is one that a description of form cannot see.
const WRONG_IN_MEANING_ALONE: [&str; 13] = [
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
/// These are for the reader of YAML alone, and others may take long.
const NOT_FOR_OTHERS: [&str; 3] = ["alias_bomb.yaml", "nested.yaml", "recursive.yaml"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_schema_in_the_docs_is_what_the_command_prints() {
    let (code, printed, _) = outcome(slidegate().arg("schema"));
    assert_eq!(code, 0);
    let kept = fs::read_to_string(root().join("docs/slidegate.schema.json")).unwrap();
    assert!(kept == printed, "`slidegate schema > docs/slidegate.schema.json` makes it current");
}

#[test]
fn the_page_about_the_file_has_every_field_as_it_is_declared() {
    let path = root().join("docs/config.md");
    let page = fs::read_to_string(&path).unwrap();
    let mark = "<!-- From here on it is made of the declarations; see tests/it/schema.rs. -->\n";
    let (start, found) = page.split_once(mark).unwrap();
    let expected = format!("\n{}", reference());
    if std::env::var_os("SLIDEGATE_WRITE_DOCS").is_some() {
        fs::write(path, format!("{start}{mark}{expected}")).unwrap();
        return;
    }
    assert!(found == expected, "SLIDEGATE_WRITE_DOCS=1 makes {} current", path.display());
}

/// Every piece of YAML in the guides is one that could stand in a file.
#[test]
fn the_yaml_of_the_guides_is_right() {
    let mut pieces = 0;
    for page in ["service.md", "admin.md", "degrade.md", "redis.md", "postgres.md", "config.md"] {
        let text = fs::read_to_string(root().join("docs").join(page)).unwrap();
        for piece in text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()) {
            pieces += 1;
            let file = TempFile::new("piece", piece);
            // Without the files that it names.
            let read = Config::load_rules(Path::new(file.path()));
            assert!(read.is_ok(), "{page}:\n{piece}{}", read.unwrap_err());
        }
    }
    assert!(pieces > 5, "{pieces}");
}

/// Good files are valid under the schema, and bad ones are not, unless their form is right.
#[test]
fn the_schema_tells_good_files_from_bad_ones() {
    let tools = root().join("target/tools/schemathesis");
    assert!(tools.is_dir(), "`make deps` puts what is needed into {}", tools.display());
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let files = |folder: &str| {
        let entries = here.join("configs").join(folder).read_dir().unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| NOT_FOR_OTHERS.iter().all(|name| !path.ends_with(name))).collect::<Vec<_>>()
    };
    let tls = TempFile::new("with_tls", "tls: {cert: a.crt, key: a.key, client_ca: ca.crt}\n");
    let (good, bad) = (files("good"), files("bad"));
    let mut judge = Command::new("python3");
    judge.arg(here.join("it/schema.py")).arg(root().join("docs/slidegate.schema.json"));
    judge.args(&good).args(&bad).arg(tls.path()).arg(root().join("slidegate.yaml")).env("PYTHONPATH", tools);
    let (code, out, err) = outcome(&mut judge);
    assert_eq!(code, 0, "{err}");
    let valid: BTreeSet<&str> = out.lines().filter_map(|line| line.strip_prefix("valid ")).collect();
    for path in good.iter().map(|path| path.to_str().unwrap()).chain([tls.path()]) {
        assert!(valid.contains(path), "{path}: {out}");
    }
    assert!(valid.iter().any(|path| path.ends_with("slidegate.yaml")), "{out}");
    let right: BTreeSet<&str> = bad
        .iter()
        .filter(|path| valid.contains(path.to_str().unwrap()))
        .map(|path| path.file_name().unwrap().to_str().unwrap())
        .collect();
    assert_eq!(right, WRONG_IN_MEANING_ALONE.into());
}
