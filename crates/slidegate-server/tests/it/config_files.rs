//! Configuration files in `tests/configs`, one for each kind of mistake. The leading `#!` comments of a bad file are
//! its expected error messages.

use std::path::{Path, PathBuf};

use slidegate_config::Config;

use crate::process::{TempFile, outcome, slidegate};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs").join(folder);
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

#[test]
fn each_bad_file_is_rejected_with_its_expected_errors() {
    for file in files("bad") {
        let name = file.file_name().unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let mut expected = String::new();
        for line in text.lines().map_while(|line| line.strip_prefix("#! ")) {
            expected.extend([name, ":", line, "\n"]);
        }
        assert!(!expected.is_empty(), "{name} expects no error");
        let found = outcome(slidegate().args(["validate", name]).current_dir(file.parent().unwrap()));
        assert_eq!(found, (2, String::new(), expected), "{name}");
    }
}

#[test]
fn good_files_are_valid() {
    for file in files("good") {
        let (code, _, stderr) = outcome(slidegate().arg("validate").arg(&file));
        assert_eq!(code, 0, "{}: {stderr}", file.display());
    }
}

#[test]
fn the_size_of_a_file_and_the_number_of_problems_are_bounded() {
    let validate = |path: &str| {
        let (code, _, stderr) = outcome(slidegate().args(["validate", path]));
        assert_eq!(code, 2, "{stderr}");
        stderr
    };
    assert!(validate("/dev/zero").contains("file: has more than 8388608 bytes"));
    assert!(validate("/nonexistent").contains("file: cannot be read: "));
    let wrong = TempFile::new("wrong", &"- x/1s\n".repeat(3000).replace("- ", "    - "));
    let text = std::fs::read_to_string(wrong.path()).unwrap();
    std::fs::write(wrong.path(), format!("policies:\n  api:\n    quotas:\n{text}")).unwrap();
    let problems = validate(wrong.path());
    assert_eq!(problems.lines().count(), 1001);
    assert!(problems.trim_end().ends_with("and 2000 more problems"), "{problems}");
    let deep = TempFile::new("deep", &format!("policies: {}", "{a: ".repeat(100_000)));
    assert!(validate(deep.path()).contains("nested"));
}

/// Characters with a meaning in YAML.
const YAML_MARKS: &[u8] = b"[]{}:,-&*!|>'\"#%@`?~\n \t0";

/// Parses 5000 random mutations of the good and bad files. Each is either accepted or rejected with a problem.
#[test]
fn the_parser_survives_mutated_files() {
    let texts: Vec<Vec<u8>> =
        [files("good"), files("bad")].concat().iter().map(|file| std::fs::read(file).unwrap()).collect();
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (mut accepted, mut rejected) = (0, 0);
    for _ in 0..5000 {
        let mut text = texts[random(texts.len())].clone();
        for _ in 0..=random(4) {
            let place = random(text.len() + 1);
            match random(4) {
                0 => text.truncate(place),
                1 => text.insert(place, YAML_MARKS[random(YAML_MARKS.len())]),
                2 => drop(text.drain(place..(place + random(9)).min(text.len()))),
                _ => {
                    let other = &texts[random(texts.len())];
                    let from = random(other.len() + 1);
                    text.splice(
                        place..place,
                        other[from..(from + random(60)).min(other.len())].iter().copied(),
                    );
                }
            }
        }
        match Config::parse(&String::from_utf8_lossy(&text)) {
            Ok(_) => accepted += 1,
            Err(problems) => {
                assert!(!problems.is_empty(), "{text:?} is rejected without a problem");
                rejected += 1;
            }
        }
    }
    assert!(accepted > 100 && rejected > 100, "{accepted} {rejected}");
}

#[test]
fn the_sample_file_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let found = outcome(slidegate().args(["validate", "slidegate.yaml"]).current_dir(root));
    assert_eq!(found, (0, "slidegate.yaml: valid; policies: api, login, upload\n".to_owned(), String::new()));
}
