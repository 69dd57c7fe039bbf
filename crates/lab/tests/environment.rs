//! What is captured of a machine and a server, what differs, what is warned of.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails says where"
)]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use pgstrata_lab::measure::environment::{Environment, Fact, Setting, diff, host, warning};
use support::{Lab, said, text};

/// Files of four machines, as their kernels show them.
const MACHINES: [(&str, &[(&str, &str)]); 4] = [
    (
        "a server with an Intel processor",
        &[
            (
                "proc/cpuinfo",
                "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Gold\nflags\t\t: fpu vme\ncpu cores\t: 1\nprocessor\t: 1\nmodel name\t: Intel(R) Xeon(R) Gold\n",
            ),
            (
                "proc/meminfo",
                "MemTotal:       65536000 kB\nMemAvailable:   60000000 kB\nHugePages_Total:    0\nHugepagesize:       2048 kB\n",
            ),
            (
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                "powersave\n",
            ),
            ("sys/devices/system/cpu/intel_pstate/no_turbo", "0\n"),
            ("sys/devices/system/node/online", "0-1\n"),
            (
                "sys/kernel/mm/transparent_hugepage/enabled",
                "[always] madvise never\n",
            ),
            (
                "etc/os-release",
                "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
            ),
        ],
    ),
    (
        "a laptop with an AMD processor, on battery",
        &[
            (
                "proc/cpuinfo",
                "processor\t: 0\nmodel name\t: AMD Ryzen 7 7700X\nflags\t\t: fpu vme\n",
            ),
            ("proc/meminfo", "MemTotal:       32768000 kB\n"),
            ("sys/devices/system/cpu/cpufreq/boost", "1\n"),
            ("sys/class/power_supply/AC/online", "0\n"),
            (
                "sys/devices/system/clocksource/clocksource0/current_clocksource",
                "hpet\n",
            ),
        ],
    ),
    (
        "a virtual machine",
        &[
            (
                "proc/cpuinfo",
                "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Processor\nflags\t\t: fpu hypervisor\n",
            ),
            ("proc/meminfo", "MemTotal:       8192000 kB\n"),
        ],
    ),
    (
        "an Arm machine in a container",
        &[
            (
                "proc/cpuinfo",
                "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n",
            ),
            ("sys/fs/cgroup/cpu.max", "150000 100000\n"),
        ],
    ),
];

fn machine(files: &[(&str, &str)], without: Option<&str>) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, contents) in files.iter().filter(|(path, _)| Some(*path) != without) {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }
    root
}

#[test]
fn a_file_that_is_missing_is_said_to_be_and_nothing_else_changes() {
    for (name, files) in MACHINES {
        let whole = host::capture(machine(files, None).path(), None);
        assert!(whole.get("cpu.model").is_some(), "{name}");
        for (path, _) in files {
            let part = host::capture(machine(files, Some(path)).path(), None);
            let names = |env: &Environment| env.facts.keys().cloned().collect::<BTreeSet<_>>();
            let lost: Vec<_> = whole
                .facts
                .iter()
                .filter(|(fact, found)| found.value().is_some() && part.get(fact).is_none())
                .collect();
            assert!(!lost.is_empty(), "{name} without {path} looks the same");
            for (fact, _) in lost {
                // What is not there is recorded with its reason, or derives from what is.
                let reason = part.facts.get(fact);
                assert!(
                    matches!(reason, Some(Fact::NotReadable { .. }) | None),
                    "{name} {fact}"
                );
            }
            assert!(
                names(&part).is_subset(&names(&whole)),
                "{name} without {path}"
            );
        }
    }
}

#[test]
fn machines_are_warned_of_by_what_their_files_say() {
    let ids = |index: usize| -> Vec<String> {
        let root = machine(MACHINES[index].1, None);
        let found = warning::of(&host::capture(root.path(), None));
        found.into_iter().map(|w| w.id).collect()
    };
    for (index, expected) in [
        (0, &["ENV-GOVERNOR", "ENV-BOOST", "ENV-NUMA", "ENV-THP"][..]),
        (1, &["ENV-BOOST", "ENV-BATTERY", "ENV-CLOCKSOURCE"]),
        (2, &["ENV-HYPERVISOR"]),
        (3, &["ENV-CGROUP-QUOTA"]),
    ] {
        assert_eq!(ids(index), expected, "{}", MACHINES[index].0);
    }
}

#[test]
fn servers_are_counted_while_they_run() {
    let files = [
        ("proc/10/stat", "10 (postgres) S 1 10 10 0"),
        ("proc/11/stat", "11 (postgres) S 10 11 11 0"),
        ("proc/12/stat", "12 (postgres) Z 1 12 12 0"),
        ("proc/13/stat", "13 (bash) S 1 13 13 0"),
    ];
    let env = host::capture(machine(&files, None).path(), None);
    assert_eq!(env.get("noise.postmasters"), Some("1"));
}

/// (id, facts, settings with units that trigger it, the one whose change silences it).
type Trigger = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static [(&'static str, &'static str, &'static str)],
    (&'static str, &'static str),
);

const TRIGGERS: [Trigger; 26] = [
    (
        "ENV-GOVERNOR",
        &[("power.governor", "powersave")],
        &[],
        ("power.governor", "performance"),
    ),
    (
        "ENV-BOOST",
        &[("power.boost", "1")],
        &[],
        ("power.boost", "0"),
    ),
    (
        "ENV-BATTERY",
        &[("power.on_mains", "0")],
        &[],
        ("power.on_mains", "1"),
    ),
    (
        "ENV-CLOCKSOURCE",
        &[("time.clocksource", "hpet")],
        &[],
        ("time.clocksource", "tsc"),
    ),
    (
        "ENV-HYPERVISOR",
        &[("cpu.hypervisor", "yes")],
        &[],
        ("cpu.hypervisor", "no"),
    ),
    (
        "ENV-NUMA",
        &[("numa.nodes", "0-1")],
        &[],
        ("numa.nodes", "0"),
    ),
    (
        "ENV-NUMA-BALANCING",
        &[("numa.nodes", "0-1"), ("numa.balancing", "1")],
        &[],
        ("numa.balancing", "0"),
    ),
    (
        "ENV-THP",
        &[("memory.thp", "[always] madvise never")],
        &[],
        ("memory.thp", "always [madvise] never"),
    ),
    (
        "ENV-HUGEPAGES",
        &[("memory.hugepages_total", "0")],
        &[("shared_buffers", "131072", "8kB")],
        ("memory.hugepages_total", "600"),
    ),
    (
        "ENV-FILESYSTEM",
        &[("disk.filesystem", "nfs4")],
        &[],
        ("disk.filesystem", "xfs"),
    ),
    (
        "ENV-TMPFS",
        &[("disk.filesystem", "tmpfs")],
        &[],
        ("disk.filesystem", "ext4"),
    ),
    (
        "ENV-DISK-FULL",
        &[("disk.free_share", "0.1")],
        &[],
        ("disk.free_share", "0.2"),
    ),
    (
        "ENV-CGROUP-QUOTA",
        &[("container.cpu_max", "150000 100000")],
        &[],
        ("container.cpu_max", "max 100000"),
    ),
    (
        "ENV-THROTTLED",
        &[("power.throttled", "3")],
        &[],
        ("power.throttled", "0"),
    ),
    (
        "ENV-EXE-DELETED",
        &[("server.executable", "/usr/bin/postgres (deleted)")],
        &[],
        ("server.executable", "/usr/bin/postgres"),
    ),
    (
        "ENV-PENDING-RESTART",
        &[],
        &[("wal_level", "replica", "pending")],
        ("wal_level", ""),
    ),
    ("ENV-UNSAFE", &[], &[("fsync", "off", "")], ("fsync", "on")),
    (
        "ENV-ASYNC-COMMIT",
        &[],
        &[("synchronous_commit", "off", "")],
        ("synchronous_commit", "on"),
    ),
    (
        "ENV-STATEMENT-LOG",
        &[],
        &[("log_statement", "all", "")],
        ("log_statement", "none"),
    ),
    (
        "ENV-AUTOVACUUM-OFF",
        &[],
        &[("autovacuum", "off", "")],
        ("autovacuum", "on"),
    ),
    (
        "ENV-ASSERTIONS",
        &[],
        &[("debug_assertions", "on", "")],
        ("debug_assertions", "off"),
    ),
    (
        "ENV-UNOPTIMIZED",
        &[("server.cflags", "-Wall -O0 -g")],
        &[],
        ("server.cflags", "-Wall -O2 -g"),
    ),
    (
        "ENV-SHARED-BUFFERS",
        &[("contents.database_bytes", "1000000000")],
        &[("shared_buffers", "16384", "8kB")],
        ("contents.database_bytes", "1000000"),
    ),
    (
        "ENV-DEAD-TUPLES",
        &[("contents.dead_share", "0.2")],
        &[],
        ("contents.dead_share", "0.01"),
    ),
    (
        "ENV-OTHER-SESSIONS",
        &[("noise.other_sessions", "2")],
        &[],
        ("noise.other_sessions", "0"),
    ),
    (
        "ENV-OTHER-POSTGRES",
        &[("noise.postmasters", "2")],
        &[],
        ("noise.postmasters", "1"),
    ),
];

fn setting(value: &str, unit: &str) -> Setting {
    Setting {
        value: value.to_owned(),
        unit: (!unit.is_empty() && unit != "pending").then(|| unit.to_owned()),
        source: "configuration file".to_owned(),
        pending_restart: unit == "pending",
    }
}

#[test]
fn every_warning_has_what_triggers_it_and_what_does_not() {
    let known: BTreeSet<&str> = warning::rule_ids().collect();
    let tested: BTreeSet<&str> = TRIGGERS.iter().map(|t| t.0).collect();
    assert_eq!(known, tested);
    for (id, facts, settings, (name, calm)) in TRIGGERS {
        let mut env = Environment::default();
        for (name, value) in facts {
            env.found(name, value);
        }
        for (name, value, unit) in settings {
            env.settings
                .insert((*name).to_owned(), setting(value, unit));
        }
        let warned = |env: &Environment| warning::of(env).into_iter().find(|w| w.id == id);
        let found = warned(&env).unwrap_or_else(|| panic!("{id} was not triggered"));
        assert!(!found.why.is_empty() && !found.fix.is_empty() && !found.found.is_empty());
        if name.contains('.') {
            env.found(name, calm);
        } else {
            env.settings.insert(name.to_owned(), setting(calm, ""));
        }
        assert_eq!(warned(&env), None, "{id}");
    }
    assert_eq!(warning::of(&Environment::default()), []);
}

#[test]
fn a_difference_shows_what_differs_in_units_people_use() {
    let env = |buffers: &str, unit: &str, load: &str| {
        let mut env = Environment::default();
        env.found("cpu.model", "the same");
        env.found("noise.load", load);
        env.settings
            .insert("shared_buffers".to_owned(), setting(buffers, unit));
        env.settings
            .insert("work_mem".to_owned(), setting("4096", "kB"));
        env
    };
    // The same amount in other units, and another load at the moment, are no difference.
    assert_eq!(
        diff(&env("131072", "8kB", "1"), &env("1024", "MB", "7")),
        []
    );
    let found = diff(&env("131072", "8kB", "1"), &env("16384", "8kB", "1"));
    assert_eq!(found.len(), 1);
    assert_eq!(
        (
            found[0].name.as_str(),
            found[0].first.as_str(),
            found[0].second.as_str()
        ),
        ("setting shared_buffers", "1GB", "128MB")
    );
}

#[test]
fn two_captures_of_this_machine_differ_in_nothing_and_hold_no_password() {
    let lab = Lab::new();
    let cluster =
        pgstrata_testbed::cluster::Cluster::builder(pgstrata_testbed::cluster::Major::V17)
            .conf("primary_conninfo", "host=elsewhere password=hunter2")
            .conf("archive_command", "upload --token hunter2 %p")
            .start()
            .unwrap();
    let dsn = format!("{} password=hunter2", cluster.conninfo("postgres"));
    let capture = |name: &str| -> PathBuf {
        let output = lab
            .command(&["env", "capture", "--dsn", &dsn])
            .env("PGPASSWORD", "hunter2")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(!said(&output).contains("hunter2"), "{}", said(&output));
        assert!(text(&output.stdout).contains("shared_buffers"));
        let path = lab.scratch.path().join(name);
        fs::write(&path, &output.stdout).unwrap();
        path
    };
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (first, second) = (path(&capture("one.json")), path(&capture("two.json")));
    let same = text(&lab.run(&["env", "diff", &first, &second]).stdout);
    assert_eq!(same.trim(), "no difference");
    cluster.append_conf("work_mem", "64MB").unwrap();
    cluster.restart().unwrap();
    let other = path(&capture("three.json"));
    let differs = text(&lab.run(&["env", "diff", &first, &other]).stdout);
    assert!(
        differs.contains("setting work_mem\n  - 4MB\n  + 64MB"),
        "{differs}"
    );
    assert!(!differs.contains("shared_buffers"), "{differs}");

    let doctor = lab.run(&["doctor", "--dsn", &dsn]);
    assert_eq!(doctor.status.code(), Some(0), "{}", said(&doctor));
    assert!(
        text(&doctor.stdout).contains("PostgreSQL 17"),
        "{}",
        said(&doctor)
    );
}

#[test]
fn a_full_standard_output_is_an_error_for_help_as_well() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = Lab::new()
        .command(&["--help"])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    let told = said(&output);
    assert!(
        told.contains("could not write to standard output"),
        "{told}"
    );
}
