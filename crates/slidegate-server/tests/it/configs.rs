//! Config files: one for each thing that can be wrong with them, in `tests/configs`. The first lines, as comments,
//! say what is expected.

use std::path::{Path, PathBuf};

use crate::process::{outcome, slidegate};

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
fn the_sample_file_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let found = outcome(slidegate().args(["validate", "slidegate.yaml"]).current_dir(root));
    assert_eq!(found, (0, "slidegate.yaml: valid; policies: api, login, upload\n".to_owned(), String::new()));
}
