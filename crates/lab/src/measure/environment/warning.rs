//! Conditions a reader of a result must know of, by stable id.

use serde::{Deserialize, Serialize};

use super::Environment;

/// How grave it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Listed.
    Info,
    /// The verdict is printed with it.
    Warn,
    /// The comparison is invalid; the verdict is withheld.
    Block,
}

/// One condition found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// Stable id.
    pub id: String,
    /// How grave.
    pub level: Level,
    /// What was found, here.
    pub found: String,
    /// Why it matters.
    pub why: String,
    /// How to mend it.
    pub fix: String,
}

struct Rule {
    id: &'static str,
    level: Level,
    why: &'static str,
    fix: &'static str,
    holds: fn(&Environment) -> Option<String>,
}

/// A warning that no environment alone shows.
#[must_use]
pub fn warning(id: &str, found: impl Into<String>) -> Warning {
    let (level, why, fix) = MEASURED
        .iter()
        .find(|entry| entry.0 == id)
        .map_or((Level::Warn, "", ""), |e| (e.1, e.2, e.3));
    Warning {
        id: id.to_owned(),
        level,
        found: found.into(),
        why: why.to_owned(),
        fix: fix.to_owned(),
    }
}

/// Conditions that show while measuring or in the plan: id, level, why, fix.
const MEASURED: [(&str, Level, &str, &str); 20] = [
    (
        "ENV-EXE-CHANGED",
        Level::Block,
        "runs of one arm measured different programs",
        "measure again with packages left alone",
    ),
    (
        "ENV-ARMS-CHECKSUMS",
        Level::Warn,
        "checksums cost time and write hint bits to WAL; they are on by default since 18 and off before",
        "give both arms the same initdb option",
    ),
    (
        "ENV-ARMS-BUILD",
        Level::Warn,
        "compilers and flags differ, so the comparison is of builds",
        "build both arms alike",
    ),
    (
        "ENV-ARMS-SIZE",
        Level::Warn,
        "the arms hold different amounts of data",
        "load both arms alike",
    ),
    (
        "ENV-FOREIGN-CPU",
        Level::Warn,
        "other programs used the processor while it was measured, as may have what a tool left at work in the background; one such block can hide a real effect",
        "close them, or use a quieter machine",
    ),
    (
        "ENV-FOREIGN-UNKNOWN",
        Level::Warn,
        "the processes of a server that is reached by dsn cannot be told from others, so that no block is left out because of others",
        "measure a server of the lab's own, or see to it that nobody else works there",
    ),
    (
        "ENV-SETTINGS-LEFT",
        Level::Warn,
        "a server of others is not as it was before",
        "do by hand what is said there",
    ),
    (
        "TOOL-LEFT-OUT",
        Level::Warn,
        "nothing here says how it compares with that tool",
        "install a release that knows this server",
    ),
    (
        "RUN-INCOMPLETE",
        Level::Warn,
        "the experiment ended before its plan did, so there are fewer figures than were planned",
        "measure again",
    ),
    (
        "ENV-STEAL",
        Level::Warn,
        "the hypervisor gave processor time to others",
        "use a dedicated machine",
    ),
    (
        "STAT-SEQUENTIAL",
        Level::Warn,
        "arms ran one after another: drift of the machine looks like an effect",
        "leave out --sequential",
    ),
    (
        "STAT-UNPAIRED",
        Level::Warn,
        "the results are of different sessions: drift cannot be separated from an effect",
        "measure both with `pgstrata lab ab`",
    ),
    (
        "STAT-PARTIAL",
        Level::Warn,
        "values are missing, mostly where it went badly, so these metrics have no verdict",
        "lower --rate until all arms keep it, or measure longer",
    ),
    (
        "LOAD-CLIENT-BOUND",
        Level::Warn,
        "a pgbench thread was nearly always busy, so the server could do more than was asked",
        "use more pgbench threads (-j), or another machine for pgbench",
    ),
    (
        "LOAD-CLOSED-LOOP",
        Level::Info,
        "a closed loop hides queueing: clients wait while the server stalls, so few transactions see it",
        "use --rate to measure response times",
    ),
    (
        "LOAD-RATE-NOT-SUSTAINED",
        Level::Warn,
        "the server did not do what was due, so percentiles would measure the length of the run, or those alone who were served",
        "lower --rate",
    ),
    (
        "RUN-FAILED-TRANSACTIONS",
        Level::Warn,
        "a run with failed transactions did other work than the rest; its block is dropped",
        "look at pgbench.err beside the result",
    ),
    (
        "RUN-CHECKPOINTS",
        Level::Warn,
        "runs of one block held different numbers of checkpoints",
        "make runs longer, or raise max_wal_size",
    ),
    (
        "HYPOTHESIS-NONE",
        Level::Info,
        "a comparison without a hypothesis finds something in any noise",
        "say with --hypothesis what you expect",
    ),
    (
        "HYPOTHESIS-NOT-EXERCISED",
        Level::Block,
        "the workload did not exercise what the hypothesis is about",
        "choose a workload that does",
    ),
];

fn equals(env: &Environment, name: &str, value: &str) -> bool {
    env.get(name) == Some(value)
}

fn off(env: &Environment, setting: &str) -> Option<String> {
    (env.setting(setting)? == "off").then(|| format!("{setting} = off"))
}

fn megabytes(env: &Environment, setting: &str) -> Option<f64> {
    let setting = env.settings.get(setting)?;
    let factor = match setting.unit.as_deref() {
        Some("8kB") => 1.0 / 128.0,
        Some("kB") => 1.0 / 1024.0,
        Some("MB") => 1.0,
        _ => return None,
    };
    Some(setting.value.parse::<f64>().ok()? * factor)
}

const RULES: [Rule; 26] = [
    Rule {
        id: "ENV-GOVERNOR",
        level: Level::Warn,
        why: "the processor's clock follows the load of the moment",
        fix: "cpupower frequency-set -g performance",
        holds: |e| {
            e.get("power.governor")
                .filter(|g| *g != "performance")
                .map(|g| format!("frequency governor is {g}"))
        },
    },
    Rule {
        id: "ENV-BOOST",
        level: Level::Info,
        why: "boosted clocks depend on temperature and on how many cores work",
        fix: "turn boost off for comparisons",
        holds: |e| {
            (equals(e, "power.boost", "1") || equals(e, "power.no_turbo", "0"))
                .then(|| "frequency boost is on".to_owned())
        },
    },
    Rule {
        id: "ENV-BATTERY",
        level: Level::Warn,
        why: "on battery the processor saves power",
        fix: "plug the machine in",
        holds: |e| equals(e, "power.on_mains", "0").then(|| "running on battery".to_owned()),
    },
    Rule {
        id: "ENV-CLOCKSOURCE",
        level: Level::Warn,
        why: "reading a slow clock distorts EXPLAIN ANALYZE and track_io_timing",
        fix: "boot with clocksource=tsc if the processor's is stable",
        holds: |e| {
            e.get("time.clocksource")
                .filter(|c| !matches!(*c, "tsc" | "arch_sys_counter" | "kvm-clock"))
                .map(|c| format!("clock source is {c}"))
        },
    },
    Rule {
        id: "ENV-HYPERVISOR",
        level: Level::Info,
        why: "neighbours on the same host are invisible from here",
        fix: "repeat on hardware of your own for small effects",
        holds: |e| {
            equals(e, "cpu.hypervisor", "yes").then(|| "this is a virtual machine".to_owned())
        },
    },
    Rule {
        id: "ENV-NUMA",
        level: Level::Warn,
        why: "where memory lies decides how fast it is",
        fix: "bind the server with numactl, the same way in all arms",
        holds: |e| {
            e.get("numa.nodes")
                .filter(|n| *n != "0")
                .map(|n| format!("memory has nodes {n}"))
        },
    },
    Rule {
        id: "ENV-NUMA-BALANCING",
        level: Level::Warn,
        why: "the kernel moves memory while you measure",
        fix: "sysctl kernel.numa_balancing=0",
        holds: |e| {
            (e.number("numa.balancing")? > 0.0 && e.get("numa.nodes")? != "0")
                .then(|| "kernel.numa_balancing is on".to_owned())
        },
    },
    Rule {
        id: "ENV-THP",
        level: Level::Warn,
        why: "transparent huge pages are made and split in the background",
        fix: "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        holds: |e| {
            e.get("memory.thp")
                .filter(|t| t.contains("[always]"))
                .map(|_| "transparent huge pages are always on".to_owned())
        },
    },
    Rule {
        id: "ENV-HUGEPAGES",
        level: Level::Warn,
        why: "each new backend pays a page fault for every 4 kB of shared buffers it touches",
        fix: "set vm.nr_hugepages and huge_pages = on",
        holds: |e| {
            let size = megabytes(e, "shared_buffers")?;
            let obtained = e.setting("huge_pages_status").map_or_else(
                || e.number("memory.hugepages_total").unwrap_or(0.0) > 0.0,
                |s| s == "on",
            );
            (size >= 1000.0 && !obtained)
                .then(|| format!("shared_buffers {size:.0} MB without huge pages"))
        },
    },
    Rule {
        id: "ENV-FILESYSTEM",
        level: Level::Warn,
        why: "network and overlay filesystems measure something else",
        fix: "put the cluster on a local filesystem (--scratch)",
        holds: |e| {
            e.get("disk.filesystem")
                .filter(|f| {
                    matches!(
                        *f,
                        "nfs" | "nfs4" | "cifs" | "overlay" | "fuse.sshfs" | "9p"
                    )
                })
                .map(|f| format!("the cluster lies on {f}"))
        },
    },
    Rule {
        id: "ENV-TMPFS",
        level: Level::Info,
        why: "there is no disk in this measurement: overheads of the processor look largest",
        fix: "use a disk to see what users see",
        holds: |e| {
            equals(e, "disk.filesystem", "tmpfs").then(|| "the cluster lies in memory".to_owned())
        },
    },
    Rule {
        id: "ENV-DISK-FULL",
        level: Level::Warn,
        why: "full filesystems and flash slow down",
        fix: "free some space",
        holds: |e| {
            e.number("disk.free_share")
                .filter(|f| *f < 0.15)
                .map(|f| format!("{:.0} % of the disk is free", f * 100.0))
        },
    },
    Rule {
        id: "ENV-CGROUP-QUOTA",
        level: Level::Warn,
        why: "a quota stops all processes for the rest of a period",
        fix: "measure without a CPU quota",
        holds: |e| {
            e.get("container.cpu_max")
                .filter(|q| !q.starts_with("max"))
                .map(|q| format!("cpu.max is {q}"))
        },
    },
    Rule {
        id: "ENV-THROTTLED",
        level: Level::Warn,
        why: "the processor got hot and slowed down",
        fix: "cool it, and measure again",
        holds: |e| {
            e.number("power.throttled")
                .filter(|n| *n > 0.0)
                .map(|n| format!("throttled {n} times since boot"))
        },
    },
    Rule {
        id: "ENV-EXE-DELETED",
        level: Level::Warn,
        why: "the server's program was replaced on disk: the next start runs another",
        fix: "restart the server",
        holds: |e| {
            e.get("server.executable")
                .filter(|p| p.ends_with("(deleted)"))
                .map(|p| format!("the server runs {p}"))
        },
    },
    Rule {
        id: "ENV-PENDING-RESTART",
        level: Level::Block,
        why: "what the configuration says is not what runs",
        fix: "restart the server",
        holds: |e| {
            let names: Vec<&str> = e
                .settings
                .iter()
                .filter(|(_, s)| s.pending_restart)
                .map(|(n, _)| n.as_str())
                .collect();
            (!names.is_empty()).then(|| format!("waiting for a restart: {}", names.join(", ")))
        },
    },
    Rule {
        id: "ENV-UNSAFE",
        level: Level::Warn,
        why: "a crash would lose or damage data; times say nothing about a safe server",
        fix: "turn it on",
        holds: |e| off(e, "fsync").or_else(|| off(e, "full_page_writes")),
    },
    Rule {
        id: "ENV-ASYNC-COMMIT",
        level: Level::Info,
        why: "commits do not wait for the disk",
        fix: "set synchronous_commit = on to measure commits",
        holds: |e| off(e, "synchronous_commit"),
    },
    Rule {
        id: "ENV-STATEMENT-LOG",
        level: Level::Warn,
        why: "writing statements to the log costs time",
        fix: "log_statement = none, log_min_duration_statement = -1",
        holds: |e| {
            let duration = e
                .setting("log_min_duration_statement")
                .is_some_and(|v| v != "-1");
            let statement = e.setting("log_statement").is_some_and(|v| v != "none");
            (duration || statement).then(|| "statements are logged".to_owned())
        },
    },
    Rule {
        id: "ENV-AUTOVACUUM-OFF",
        level: Level::Info,
        why: "a real server vacuums",
        fix: "turn autovacuum on for long runs",
        holds: |e| off(e, "autovacuum"),
    },
    Rule {
        id: "ENV-ASSERTIONS",
        level: Level::Warn,
        why: "assertions make the server much slower, unevenly",
        fix: "build without --enable-cassert",
        holds: |e| {
            (e.setting("debug_assertions")? == "on")
                .then(|| "the server was built with assertions".to_owned())
        },
    },
    Rule {
        id: "ENV-UNOPTIMIZED",
        level: Level::Warn,
        why: "the server was compiled without optimisation",
        fix: "build with -O2",
        holds: |e| {
            e.get("server.cflags")
                .filter(|f| f.contains("-O0"))
                .map(|_| "built with -O0".to_owned())
        },
    },
    Rule {
        id: "ENV-SHARED-BUFFERS",
        level: Level::Warn,
        why: "the default of 128 MB is smaller than the database: scans go through a small ring and hit ratios mean little",
        fix: "set shared_buffers to what you would run",
        holds: |e| {
            (megabytes(e, "shared_buffers")? <= 128.0
                && e.number("contents.database_bytes")? > 134_217_728.0)
                .then(|| {
                    "shared_buffers is the default of 128 MB and the database is larger".to_owned()
                })
        },
    },
    Rule {
        id: "ENV-DEAD-TUPLES",
        level: Level::Warn,
        why: "dead rows make scans slower until a vacuum comes, whenever it does",
        fix: "VACUUM before measuring",
        holds: |e| {
            e.number("contents.dead_share")
                .filter(|s| *s > 0.05)
                .map(|s| format!("{:.0} % of the rows are dead", s * 100.0))
        },
    },
    Rule {
        id: "ENV-OTHER-SESSIONS",
        level: Level::Warn,
        why: "other sessions use the same server",
        fix: "measure when nobody else works",
        holds: |e| {
            e.number("noise.other_sessions")
                .filter(|n| *n > 0.0)
                .map(|n| format!("{n} other sessions"))
        },
    },
    Rule {
        id: "ENV-OTHER-POSTGRES",
        level: Level::Warn,
        why: "another PostgreSQL on this machine does work of its own",
        fix: "stop it, or know that it idles",
        holds: |e| {
            e.number("noise.postmasters")
                .filter(|n| *n > 1.0)
                .map(|n| format!("{n} PostgreSQL servers run on this machine"))
        },
    },
];

/// The ids of all rules on environments: tests hold a fixture for each.
pub fn rule_ids() -> impl Iterator<Item = &'static str> {
    RULES.iter().map(|rule| rule.id)
}

/// What is wrong with one environment.
#[must_use]
pub fn of(env: &Environment) -> Vec<Warning> {
    RULES
        .iter()
        .filter_map(|rule| {
            (rule.holds)(env).map(|found| Warning {
                id: rule.id.to_owned(),
                level: rule.level,
                found,
                why: rule.why.to_owned(),
                fix: rule.fix.to_owned(),
            })
        })
        .collect()
}

/// What is wrong with comparing two arms.
#[must_use]
pub fn between(base: &Environment, arm: &Environment, name: &str) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let differ = |fact: &str| match (base.get(fact), arm.get(fact)) {
        (Some(a), Some(b)) if a != b => Some((a.to_owned(), b.to_owned())),
        _ => None,
    };
    if let Some((a, b)) = differ("server.checksums") {
        let found = format!("data checksums are {a} in the base and {b} in {name}");
        warnings.push(warning("ENV-ARMS-CHECKSUMS", found));
    }
    if differ("server.cflags").is_some() && differ("server.version_num").is_none() {
        let found = format!("{name} was compiled with other flags than the base");
        warnings.push(warning("ENV-ARMS-BUILD", found));
    }
    let size = |env: &Environment| env.number("contents.database_bytes");
    if let (Some(a), Some(b)) = (size(base), size(arm))
        && (b / a - 1.0).abs() > 0.01
    {
        let found = format!("{name}'s database is {:.3} of the base's size", b / a);
        warnings.push(warning("ENV-ARMS-SIZE", found));
    }
    warnings
}
