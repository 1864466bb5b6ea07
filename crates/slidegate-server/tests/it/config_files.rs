//! Config files: one for each thing that can be wrong with them, in `tests/configs`. The first lines, as comments,
//! say what is expected.

use std::path::{Path, PathBuf};

use slidegate_server::config::Config;

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

/// What means something to YAML.
const MARKS: &[u8] = b"[]{}:,-&*!|>'\"#%@`?~\n \t0";

/// Files that are nearly right, and files that are nearly wrong: whatever stands there, it is read or refused.
#[test]
fn no_text_is_more_than_the_reader_can_take() {
    let texts: Vec<Vec<u8>> =
        [files("good"), files("bad")].concat().iter().map(|file| std::fs::read(file).unwrap()).collect();
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (mut right, mut wrong) = (0, 0);
    for _ in 0..5000 {
        let mut text = texts[random(texts.len())].clone();
        for _ in 0..=random(4) {
            let place = random(text.len() + 1);
            match random(4) {
                0 => text.truncate(place),
                1 => text.insert(place, MARKS[random(MARKS.len())]),
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
            Ok(_) => right += 1,
            Err(problems) => {
                assert!(!problems.is_empty(), "{text:?} is refused for nothing");
                wrong += 1;
            }
        }
    }
    assert!(right > 100 && wrong > 100, "{right} {wrong}");
}

#[test]
fn the_sample_file_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let found = outcome(slidegate().args(["validate", "slidegate.yaml"]).current_dir(root));
    assert_eq!(found, (0, "slidegate.yaml: valid; policies: api, login, upload\n".to_owned(), String::new()));
}
