//! What a backup into several repositories costs the server's disk: one backup.

use super::*;

#[test]
fn a_backup_into_two_repositories_reads_the_cluster_once() {
    let two = Two::in_directories();
    two.stage.cluster.pgbench(&["-i", "-q", "-s", "4"]).unwrap();
    let pgdata = two.stage.pgdata();
    let backup = [
        "--output", "json", "backup", "-D", &pgdata, "--type", "full",
    ];
    let words = [&backup[..], &SLOWLY[..]];
    let mut command = two.command(&words.concat());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let counters = format!("/proc/{}/io", child.id());
    let mut read = 0;
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&counters).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("rchar: "));
        read = count.map_or(read, |count| count.parse::<u64>().unwrap());
        thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let report = schema::document(&String::from_utf8(output.stdout).unwrap());
    let bytes = number(&report, "/totals/cluster_bytes");
    assert!(bytes > 80 << 20, "{report:#}");
    assert!(
        read > bytes / 2,
        "{read} of {bytes}: the counters were not seen"
    );
    // The rest is WAL. Both copies are read back by nobody.
    assert!(read < bytes / 2 * 3, "{read} of {bytes}");
    for directory in [&two.near, &two.far] {
        let layers = fs::read_dir(directory.join("main/layer")).unwrap();
        assert_eq!(layers.count(), 1);
    }
}
