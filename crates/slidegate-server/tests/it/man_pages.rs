//! Shell completions and manual pages.

use std::process::{Output, Stdio};

use crate::process::{outcome, slidegate};

/// Returns the names of all commands from `--help`.
fn commands() -> Vec<String> {
    let (_, help, _) = outcome(slidegate().arg("--help"));
    let (_, listed) = help.split_once("Commands:\n").unwrap();
    let (listed, _) = listed.split_once("\n\n").unwrap();
    let names = listed.lines().map(|line| line.split_whitespace().next().unwrap().to_owned());
    let names: Vec<_> = names.filter(|name| name != "help").collect();
    assert!(names.len() > 8, "{help}");
    names
}

/// `head` closes the pipe early.
#[test]
fn a_closed_pipe_is_no_error() {
    for words in [&["man"][..], &["schema"], &["completions", "bash"], &["check", "a", "--quota", "5/1m"]] {
        let mut command = slidegate();
        let mut child = command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let Output { status, stderr, .. } = child.wait_with_output().unwrap();
        assert!(status.success() && stderr.is_empty(), "{words:?}: {}", String::from_utf8_lossy(&stderr));
    }
}

#[test]
fn completions_list_every_command_in_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, err) = outcome(slidegate().args(["completions", shell]));
        assert_eq!(code, 0, "{err}");
        for name in commands() {
            assert!(script.contains(&name), "{name} in {shell}");
        }
        assert!(script.contains("--store") || script.contains("-l store"), "{shell}");
    }
    let (code, _, err) = outcome(slidegate().args(["completions", "tcsh"]));
    assert!(code == 2 && err.contains("possible values"), "{err}");
}

#[test]
fn the_manual_has_a_page_for_every_command() {
    let (code, page, _) = outcome(slidegate().arg("man"));
    assert!(code == 0 && page.contains(".TH slidegate 1"), "{page}");
    for name in commands() {
        assert!(page.contains(&format!("slidegate\\-{name}(1)")), "{name} in {page}");
        let (code, page, err) = outcome(slidegate().args(["man", &name]));
        assert_eq!(code, 0, "{err}");
        assert!(page.contains(".SH SYNOPSIS") && page.contains(&name), "{page}");
    }
    let (code, _, err) = outcome(slidegate().args(["man", "nothing"]));
    assert!(code == 2 && err.contains("unknown command \"nothing\"; known: serve, check"), "{err}");
}
