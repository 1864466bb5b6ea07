//! `slidegate peek` prints the counts of each quota.

use slidegate_testkit::{Flavour, Server as Redis};

use crate::process::{outcome, slidegate};

#[test]
fn peek_prints_a_line_for_each_quota() {
    let redis = Redis::start(Flavour::Redis);
    let store = redis.url();
    let quotas = ["--quota", "10/366d", "--quota", "5/366d strict-window", "--store", &store];
    let run = |verb: &str| outcome(slidegate().args([verb, "user:1", "--cost", "3"]).args(quotas));
    assert_eq!(run("check").0, 0);
    let (code, stdout, stderr) = run("peek");
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!((code, lines.len()), (1, 3), "{stdout}{stderr}");
    assert!(lines[0].starts_with("denied by 5/366d: retry in "), "{stdout}");
    assert_eq!(lines[1], "  10/366d: 3 of 10 used", "{stdout}");
    let age = lines[2].strip_prefix("  5/366d: 3 of 5 used; oldest entry ").unwrap();
    assert!(age.ends_with(" s old"), "{stdout}");
}
