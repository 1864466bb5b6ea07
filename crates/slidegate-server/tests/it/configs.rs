//! Config files: one for each thing that can be wrong with them, in `tests/configs`. The first lines, as comments,
//! say what is expected.

use std::path::{Path, PathBuf};

use crate::process::{TempFile, outcome, slidegate};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs").join(folder);
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

#[test]
fn each_bad_file_is_refused_as_it_says_itself() {
    for file in files("bad") {
        let name = file.file_name().unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let mut expected = String::new();
        for line in text.lines().map_while(|line| line.strip_prefix("#! ")) {
            expected.extend([name, ":", line, "\n"]);
        }
        assert!(!expected.is_empty(), "{name} says nothing");
        let found = outcome(slidegate().args(["validate", name]).current_dir(file.parent().unwrap()));
        assert_eq!(found, (2, String::new(), expected), "{name}");
    }
}

#[test]
fn good_files_are_taken() {
    for file in files("good") {
        let (code, _, stderr) = outcome(slidegate().arg("validate").arg(&file));
        assert_eq!(code, 0, "{}: {stderr}", file.display());
    }
}

#[test]
fn no_file_is_read_without_end() {
    let validate = |path: &str| {
        let (code, _, stderr) = outcome(slidegate().args(["validate", path]));
        assert_eq!(code, 2, "{stderr}");
        stderr
    };
    assert!(validate("/dev/zero").contains("file: has more than 8388608 bytes"));
    assert!(validate("/").contains("file: cannot be read: "));
    let wrong = TempFile::new("wrong", &"- 0/1s\n".repeat(3000).replace("- ", "    - "));
    let text = std::fs::read_to_string(wrong.path()).unwrap();
    std::fs::write(wrong.path(), format!("policies:\n  api:\n    quotas:\n{text}")).unwrap();
    let problems = validate(wrong.path());
    assert_eq!(problems.lines().count(), 1001);
    assert!(problems.trim_end().ends_with("and 2000 more problems"), "{problems}");
    let deep = TempFile::new("deep", &format!("policies: {}", "{a: ".repeat(100_000)));
    assert!(validate(deep.path()).contains("nested"));
}

#[test]
fn the_sample_file_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let found = outcome(slidegate().args(["validate", "slidegate.yaml"]).current_dir(root));
    assert_eq!(found, (0, "slidegate.yaml: valid; policies: api, login, upload\n".to_owned(), String::new()));
}
