//! The machine: processor, memory, kernel, disks, containers, noise.

use std::fs;
use std::path::{Path, PathBuf};

use super::Environment;

/// One file below `root`, one fact.
const FILES: [(&str, &str); 33] = [
    ("cpu.smt", "sys/devices/system/cpu/smt/active"),
    (
        "power.governor",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    ),
    (
        "power.driver",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver",
    ),
    (
        "power.min_khz",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_min_freq",
    ),
    (
        "power.max_khz",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq",
    ),
    ("power.boost", "sys/devices/system/cpu/cpufreq/boost"),
    (
        "power.no_turbo",
        "sys/devices/system/cpu/intel_pstate/no_turbo",
    ),
    (
        "power.idle_driver",
        "sys/devices/system/cpu/cpuidle/current_driver",
    ),
    (
        "power.throttled",
        "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count",
    ),
    ("power.temperature", "sys/class/thermal/thermal_zone0/temp"),
    ("power.on_mains", "sys/class/power_supply/AC/online"),
    (
        "time.clocksource",
        "sys/devices/system/clocksource/clocksource0/current_clocksource",
    ),
    ("numa.nodes", "sys/devices/system/node/online"),
    ("numa.balancing", "proc/sys/kernel/numa_balancing"),
    ("memory.swappiness", "proc/sys/vm/swappiness"),
    ("memory.overcommit", "proc/sys/vm/overcommit_memory"),
    ("memory.zone_reclaim", "proc/sys/vm/zone_reclaim_mode"),
    ("memory.thp", "sys/kernel/mm/transparent_hugepage/enabled"),
    (
        "memory.thp_defrag",
        "sys/kernel/mm/transparent_hugepage/defrag",
    ),
    ("kernel.release", "proc/sys/kernel/osrelease"),
    ("kernel.version", "proc/sys/kernel/version"),
    ("kernel.command_line", "proc/cmdline"),
    (
        "kernel.autogroup",
        "proc/sys/kernel/sched_autogroup_enabled",
    ),
    (
        "kernel.dirty_background_bytes",
        "proc/sys/vm/dirty_background_bytes",
    ),
    (
        "kernel.dirty_background_ratio",
        "proc/sys/vm/dirty_background_ratio",
    ),
    ("kernel.dirty_ratio", "proc/sys/vm/dirty_ratio"),
    ("container.cpu_max", "sys/fs/cgroup/cpu.max"),
    ("container.memory_max", "sys/fs/cgroup/memory.max"),
    ("container.io_max", "sys/fs/cgroup/io.max"),
    ("noise.load", "proc/loadavg"),
    ("noise.pressure_cpu", "proc/pressure/cpu"),
    ("noise.pressure_io", "proc/pressure/io"),
    ("machine.product", "sys/class/dmi/id/product_name"),
];

/// Facts of /proc/meminfo worth keeping.
const MEMORY: [(&str, &str); 7] = [
    ("memory.total_kb", "MemTotal"),
    ("memory.available_kb", "MemAvailable"),
    ("memory.swap_total_kb", "SwapTotal"),
    ("memory.hugepages_total", "HugePages_Total"),
    ("memory.hugepages_free", "HugePages_Free"),
    ("memory.hugepage_kb", "Hugepagesize"),
    ("memory.page_tables_kb", "PageTables"),
];

/// Captures the machine seen below `root` (`/` on a live machine). `data` is
/// where the cluster lies, for the disk's facts.
#[must_use]
pub fn capture(root: &Path, data: Option<&Path>) -> Environment {
    let mut env = Environment::default();
    for (name, path) in FILES {
        file(&mut env, root, name, path);
    }
    processor(&mut env, root);
    memory(&mut env, root);
    mitigations(&mut env, root);
    distribution(&mut env, root);
    throttling(&mut env, root);
    other_servers(&mut env, root);
    if let Some(data) = data {
        disk(&mut env, root, data);
    }
    env
}

fn read(root: &Path, path: &str) -> Result<String, String> {
    fs::read_to_string(root.join(path)).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("/{path} is not there"),
        _ => format!("/{path}: {error}"),
    })
}

fn file(env: &mut Environment, root: &Path, name: &str, path: &str) {
    match read(root, path) {
        Ok(text) => env.found(name, text),
        Err(why) => env.not_readable(name, why),
    }
}

fn processor(env: &mut Environment, root: &Path) {
    let text = match read(root, "proc/cpuinfo") {
        Ok(text) => text,
        Err(why) => {
            for name in ["cpu.model", "cpu.count", "cpu.hypervisor"] {
                env.not_readable(name, &why);
            }
            return;
        }
    };
    let value = |key: &str| {
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim().to_owned())
        })
    };
    let count = text.lines().filter(|l| l.starts_with("processor")).count();
    env.found("cpu.count", count.to_string());
    // Arm names no model, but implementer and part.
    let model = value("model name").or_else(|| {
        Some(format!(
            "implementer {} part {}",
            value("CPU implementer")?,
            value("CPU part")?
        ))
    });
    match model {
        Some(model) => env.found("cpu.model", model),
        None => env.not_readable("cpu.model", "/proc/cpuinfo names none"),
    }
    let flags = value("flags")
        .or_else(|| value("Features"))
        .unwrap_or_default();
    let hypervisor = flags.split_ascii_whitespace().any(|f| f == "hypervisor");
    env.found("cpu.hypervisor", if hypervisor { "yes" } else { "no" });
    if let Some(cache) = value("cache size") {
        env.found("cpu.cache", cache);
    }
    if let Some(cores) = value("cpu cores") {
        env.found("cpu.cores_per_socket", cores);
    }
}

fn memory(env: &mut Environment, root: &Path) {
    match read(root, "proc/meminfo") {
        Ok(text) => {
            for (name, key) in MEMORY {
                let value = text.lines().find_map(|line| {
                    let (found, rest) = line.split_once(':')?;
                    (found == key).then(|| rest.trim().trim_end_matches(" kB").to_owned())
                });
                match value {
                    Some(value) => env.found(name, value),
                    None => env.not_readable(name, "/proc/meminfo does not say"),
                }
            }
        }
        Err(why) => {
            for (name, _) in MEMORY {
                env.not_readable(name, &why);
            }
        }
    }
}

fn mitigations(env: &mut Environment, root: &Path) {
    let path = "sys/devices/system/cpu/vulnerabilities";
    match fs::read_dir(root.join(path)) {
        Ok(entries) => {
            let mut found: Vec<String> = entries
                .flatten()
                .filter_map(|entry| {
                    let text = fs::read_to_string(entry.path()).ok()?;
                    let name = entry.file_name().to_string_lossy().into_owned();
                    (text.trim() != "Not affected").then(|| format!("{name}: {}", text.trim()))
                })
                .collect();
            found.sort();
            env.found("cpu.mitigations", found.join("; "));
        }
        Err(error) => env.not_readable("cpu.mitigations", format!("/{path}: {error}")),
    }
}

fn distribution(env: &mut Environment, root: &Path) {
    match read(root, "etc/os-release") {
        Ok(text) => {
            let name = text
                .lines()
                .find_map(|line| line.strip_prefix("PRETTY_NAME="))
                .unwrap_or("unnamed");
            env.found("machine.system", name.trim_matches('"'));
        }
        Err(why) => env.not_readable("machine.system", why),
    }
    env.found("machine.architecture", std::env::consts::ARCH);
}

fn throttling(env: &mut Environment, root: &Path) {
    match read(root, "sys/fs/cgroup/cpu.stat") {
        Ok(text) => {
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix("nr_throttled "))
                .unwrap_or("0");
            env.found("container.throttled", value);
        }
        Err(why) => env.not_readable("container.throttled", why),
    }
}

/// Postmasters on this machine: processes named postgres whose parent is not.
fn other_servers(env: &mut Environment, root: &Path) {
    let Ok(entries) = fs::read_dir(root.join("proc")) else {
        env.not_readable("noise.postmasters", "/proc is not there");
        return;
    };
    let mut parents = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Ok(pid) = name.to_string_lossy().parse::<i32>() else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        if !(stat.contains("(postgres)") || stat.contains("(postmaster)")) {
            continue;
        }
        let (_, rest) = stat.rsplit_once(')').unwrap_or_default();
        let mut fields = rest.split_ascii_whitespace();
        // A zombie has stopped; whoever adopted it takes its time.
        if fields.next() == Some("Z") {
            continue;
        }
        let parent: Option<i32> = fields.next().and_then(|field| field.parse().ok());
        parents.push((pid, parent.unwrap_or(0)));
    }
    let count = parents
        .iter()
        .filter(|(_, parent)| !parents.iter().any(|(pid, _)| pid == parent))
        .count();
    env.found("noise.postmasters", count.to_string());
}

/// A mounted filesystem.
struct Mount {
    point: PathBuf,
    kind: String,
    options: String,
    source: String,
    device: String,
}

fn mounts(root: &Path) -> Result<Vec<Mount>, String> {
    let text = read(root, "proc/self/mountinfo")?;
    Ok(text
        .lines()
        .filter_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let before: Vec<&str> = before.split(' ').collect();
            let after: Vec<&str> = after.split(' ').collect();
            Some(Mount {
                device: (*before.get(2)?).to_owned(),
                point: PathBuf::from(before.get(4)?.replace("\\040", " ")),
                options: format!("{},{}", before.get(5)?, after.get(2).unwrap_or(&"")),
                kind: (*after.first()?).to_owned(),
                source: (*after.get(1)?).to_owned(),
            })
        })
        .collect())
}

fn disk(env: &mut Environment, root: &Path, data: &Path) {
    let mounts = match mounts(root) {
        Ok(mounts) => mounts,
        Err(why) => {
            env.not_readable("disk.filesystem", why);
            return;
        }
    };
    let place = fs::canonicalize(data).unwrap_or_else(|_| data.to_owned());
    let Some(mount) = mounts
        .iter()
        .filter(|mount| place.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.as_os_str().len())
    else {
        env.not_readable("disk.filesystem", "no mount holds the data directory");
        return;
    };
    env.found("disk.filesystem", &mount.kind);
    env.found("disk.mount_options", &mount.options);
    env.found("disk.source", &mount.source);
    if root == Path::new("/") {
        space(env, &place);
    }
    device(env, root, &mount.device);
}

fn space(env: &mut Environment, place: &Path) {
    match rustix::fs::statvfs(place) {
        Ok(stat) => {
            let free = crate::number::real_u64(stat.f_bavail)
                / crate::number::real_u64(stat.f_blocks.max(1));
            env.found("disk.free_share", format!("{free:.3}"));
        }
        Err(error) => env.not_readable("disk.free_share", error),
    }
}

fn device(env: &mut Environment, root: &Path, device: &str) {
    let base = format!("sys/dev/block/{device}");
    // A partition has no queue; its parent directory has.
    let queue = if root.join(&base).join("queue").is_dir() {
        format!("{base}/queue")
    } else {
        format!("{base}/../queue")
    };
    for name in [
        "rotational",
        "scheduler",
        "nr_requests",
        "read_ahead_kb",
        "wbt_lat_usec",
        "max_sectors_kb",
        "write_cache",
        "fua",
        "discard_max_bytes",
    ] {
        file(
            env,
            root,
            &format!("disk.{name}"),
            &format!("{queue}/{name}"),
        );
    }
    file(env, root, "disk.model", &format!("{queue}/../device/model"));
    match fs::canonicalize(root.join(&base)) {
        Ok(path) => {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            env.found("disk.device", name);
        }
        Err(error) => env.not_readable("disk.device", format!("/{base}: {error}")),
    }
}
