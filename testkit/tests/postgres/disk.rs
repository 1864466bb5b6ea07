use slidegate_testkit::Postgres;

use super::{is_mounted_in, one};

#[test]
fn a_full_disk_rejects_writes_until_it_is_freed() {
    let postgres = Postgres::builder().data_on_tmpfs(100).start();
    let folder = postgres.folder().to_owned();
    assert!(is_mounted_in(&folder));
    postgres.sql("CREATE TABLE t (n int)");
    let insert = "INSERT INTO t SELECT generate_series(1, 10000)";
    postgres.sql(insert);

    postgres.fill_disk();
    let error = postgres.try_sql(insert).unwrap_err();
    assert!(error.starts_with("ERROR 53100: could not extend file"), "{error}");
    assert_eq!(postgres.sql("SELECT count(*) FROM t"), one("10000"));

    postgres.free_disk();
    postgres.sql(insert);
    postgres.kill();
    assert!(is_mounted_in(&folder), "the disk outlives a crash");
    postgres.restart();
    assert_eq!(postgres.sql("SELECT count(*) FROM t"), one("20000"));
    drop(postgres);
    assert!(!is_mounted_in(&folder) && !folder.exists());
}

#[test]
fn the_disk_is_unmounted_despite_an_open_file() {
    let postgres = Postgres::builder().data_on_tmpfs(100).start();
    let folder = postgres.folder().to_owned();
    let held = std::fs::File::open(folder.join("disk/data/PG_VERSION")).unwrap();
    drop(postgres);
    assert!(!is_mounted_in(&folder) && !folder.exists());
    drop(held);
}

#[test]
#[should_panic(expected = "built without data_on_tmpfs()")]
fn the_disk_of_the_machine_is_not_filled() {
    Postgres::start().fill_disk();
}
